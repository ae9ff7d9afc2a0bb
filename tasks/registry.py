"""The only door to MLflow for models: the registered models, their versions, cards and champions.

One registered model a data set, ``reread-DATA``; a version of it is the network of one run, packed by tasks/serving.py
so that it takes raw input. Runs go through tasks/tracking.py, whose connection serves here too.
"""

import contextlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preprocessing.manifest import MANIFEST_PATH, Manifest
from storage.files import file_lock, read_json
from storage.prepared import DESCRIPTION
from tasks.serving import CARD, SERVED_MODEL, model_card, pack
from tasks.tracking import LOCKS, SCORES, Tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CHAMPION = "champion"


def registered_name(data: str) -> str:
    """The name of a data set's registered model."""
    return f"reread-{data}"


def log_model(tracking: Tracking, run_id: str, run_directory: Path) -> str:
    """Log the network of a run as a model that takes raw input, register it, and return its version.

    The versions of a registered model are told apart by the tags ``variant`` and ``run_key``. A run that has a version
    already gets its card renewed and no other version.
    """
    client, run_directory = tracking.client, Path(run_directory)
    job = read_json(run_directory / "job.json")
    description = read_json(Path(job["prepared"]) / DESCRIPTION)
    name = registered_name(job["data"])
    with _changing(tracking):
        run = client.get_run(run_id)
        of_variant = client.get_run(run.data.tags["mlflow.parentRunId"]).data.metrics
        data = Manifest.load(tracking.root / MANIFEST_PATH).datasets.get(job["data"])
        card = model_card(job, description, vars(data) if data else {}, run.data.metrics, of_variant)
        found = client.search_model_versions(f"name = '{name}' AND tags.run_key = '{job['run_key']}'")
        if found:
            version = str(found[0].version)
        else:
            model_id = _log_package(client, run, run_directory, card)
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            made = client.create_model_version(
                name, f"models:/{model_id}", run_id, tags={"run_key": job["run_key"]}, model_id=model_id
            )
            version = str(made.version)
        client.update_model_version(name, version, description=card)
        # How the variant stands on the validation split over its seeds: by that champions are chosen.
        start, stop = description["splits"]["validation"]
        standing = {
            "variant": job["variant"],
            "experiment": client.get_experiment(run.info.experiment_id).name,
            "validation.rows": str(stop - start),
            "validation.score": repr(of_variant[f"validation.{SCORES[description['task']]}.mean"]),
        }
        for key, value in standing.items():
            client.set_model_version_tag(name, version, key, value)
    return version


def set_champion(tracking: Tracking, data: str, version: str) -> str:
    """Give the alias ``champion`` of a data set's registered model to this version; return the version that has it.

    Within one experiment the latest choice holds. A champion of another experiment gives way only to one that was
    judged on as many validation rows at least, and scored no less: a quick trial dethrones nobody.
    """
    client, name = tracking.client, registered_name(data)
    with _changing(tracking):
        challenger = client.get_model_version(name, version).tags
        aliases = client.get_registered_model(name).aliases
        if CHAMPION in aliases:
            champion = client.get_model_version(name, aliases[CHAMPION]).tags
            if champion.get("experiment") != challenger["experiment"] and _merit(challenger) < _merit(champion):
                return str(aliases[CHAMPION])
        client.set_registered_model_alias(name, CHAMPION, version)
    return str(version)


def _changing(tracking: Tracking) -> contextlib.AbstractContextManager[bool]:
    """Only one process at a time looks for a version and makes it, or weighs a champion and replaces it."""
    return file_lock(tracking.root / LOCKS / "mlflow-models.lock")


def _merit(tags: Mapping[str, str]) -> tuple[int, float]:
    """Validation rows and score; a version that somebody registered without them stands behind all others."""
    return int(tags.get("validation.rows", 0)), float(tags.get("validation.score", 0.0))


def _log_package(client: "MlflowClient", run: "Run", run_directory: Path, card: str) -> str:
    """Log what serving the network needs as a model of the run; return the model's id."""
    import mlflow
    import pandas
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model, infer_signature

    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as folder:
        package = pack(run_directory, Path(folder))
        text = isinstance(package.example, list)
        example = pandas.DataFrame({"text": package.example}) if text else package.example
        artifacts = {"network": str(package.network)}
        answer = _served(artifacts).predict(None, example)
        # MLflow takes no dot or slash in a model's name, and a variant may have one (han-0.01).
        name = re.sub(r"[^\w-]", "_", run.info.run_name)
        logged = client.create_logged_model(
            run.info.experiment_id, name, run_id, params=run.data.params, model_type="classifier"
        )
        saved = Path(folder) / "saved"
        mlflow.pyfunc.save_model(
            saved,
            python_model=SERVED_MODEL,
            artifacts=artifacts,
            code_paths=[str(path) for path in package.code_paths],
            signature=infer_signature(example, answer),
            input_example=example,
            pip_requirements=package.requirements,
            mlflow_model=Model(artifact_path=logged.artifact_location, run_id=run_id, model_uuid=logged.model_id,
                               model_id=logged.model_id),
        )  # fmt: skip
        (saved / CARD).write_text(card, encoding="utf-8")
        client.log_model_artifacts(logged.model_id, str(saved))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return logged.model_id


def _served(artifacts: Mapping[str, str]) -> Any:
    """The served model, loaded in this process: what it answers to the example gives the signature."""
    from mlflow.pyfunc.model import PythonModelContext

    from tasks.served_model import ServedModel

    served = ServedModel()
    served.load_context(PythonModelContext(dict(artifacts), None))
    return served
