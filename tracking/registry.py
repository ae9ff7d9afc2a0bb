"""The only door to MLflow for models: the registered models, their versions, cards and champions.

One registered model per data set, ``reread-DATA``; a version of it is the network of one run, packed by
tracking/serving.py so that it takes raw input. Runs go through tracking/runs.py, whose connection serves here too.

To predict in Python, in the project's folder, without a server:

    from tracking.registry import load_model
    load_model("docstrings").predict(["Return the eigenvalues of a matrix. They are sorted."])
"""

import contextlib
import importlib
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kinds
from preprocessing.manifest import MANIFEST_PATH, Manifest
from storage.errors import InputError, nearest
from storage.files import read_json
from storage.locks import file_lock
from storage.prepared import DESCRIPTION
from tracking.runs import DATABASE, LOCKS, SCORES, Tracking, open_tracking, tracking_uri
from tracking.serving import CARD, SERVED_MODEL, model_card, pack

if TYPE_CHECKING:
    import numpy
    import pandas
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.pyfunc import PyFuncModel

CHAMPION = "champion"
TRAIN = "an experiment on that data (`make run` or `make run EXPERIMENT=NAME`) trains some and registers the best"


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


@dataclass(frozen=True)
class LoadedModel:
    """A version of a registered model, ready to predict. Made by ``load_model``.

    description: prepared.json of the data that it was trained on.
    """

    name: str
    version: str
    variant: str
    description: Mapping[str, Any] = field(repr=False)
    pyfunc: "PyFuncModel" = field(repr=False)

    def predict(
        self, values: "Sequence[str] | pandas.DataFrame | numpy.ndarray", attention: bool = True
    ) -> "pandas.DataFrame":
        """One row for each text, also of a table's column ``text``, or for each image of uint8 [N, H, W, C];
        tracking/served_model.py has the columns.

        Without ``attention`` that column is left out, which takes less time and memory. InputError for what a model
        of this kind does not read.
        """
        from mlflow.exceptions import MlflowException

        reader = kinds.load(kinds.kind(self.kind).reader)
        parameters = {"attention": attention} if "attention" in reader.PARAMETERS else None
        try:
            return self.pyfunc.predict(reader.model_input(values, self.description), parameters)
        except MlflowException as error:
            raise InputError(f"{self.name} version {self.version}: {error.message.splitlines()[0]}") from None

    @property
    def kind(self) -> str:
        """The kind of data."""
        return self.description["kind"]

    @property
    def reads_text(self) -> bool:
        """Whether the model takes a table with the column ``text``."""
        inputs = self.pyfunc.metadata.signature.inputs
        return inputs.has_input_names() and "text" in inputs.input_names()


def load_model(
    data: str, *, variant: str | None = None, version: int | str | None = None, root: Path = Path()
) -> LoadedModel:
    """Load the champion of a data set, the version of ``variant`` that was best on validation, or version ``version``.

    From the database in the project's folder ``root``, or MLFLOW_TRACKING_URI; nothing is started or sent anywhere.
    InputError names what there is when the one that is asked for is not.
    """
    if variant is not None and version is not None:
        raise InputError(f"variant '{variant}' and version {version} are given: choose one")
    from mlflow import pyfunc
    from mlflow.exceptions import MlflowException

    if tracking_uri(root) == f"sqlite:///{(root / DATABASE).resolve()}" and not (root / DATABASE).exists():
        raise InputError(f"no model is registered yet ({(root / DATABASE).resolve()} is not there): {TRAIN}")
    tracking = open_tracking(root)
    chosen = _find(tracking, data, variant, version)
    which = f"{chosen.name} version {chosen.version}"
    try:
        folder = _fetch(tracking, chosen)
        description = read_json(folder / "artifacts" / "network" / DESCRIPTION)
        with _code_of_its_own(folder):
            loaded = pyfunc.load_model(str(folder), suppress_warnings=True)
    except (MlflowException, OSError, ValueError) as error:
        raise InputError(f"{which} does not load ({str(error).splitlines()[0]}): choose another version") from None
    return LoadedModel(chosen.name, str(chosen.version), chosen.tags.get("variant", "unknown"), description, loaded)


def _find(tracking: Tracking, data: str, variant: str | None, version: int | str | None) -> "ModelVersion":
    client, name = tracking.client, registered_name(data)
    registered = {model.name: model for model in client.search_registered_models()}
    if name not in registered:
        known = [one.removeprefix(registered_name("")) for one in registered if one.startswith(registered_name(""))]
        hint = nearest(data, known) if known else TRAIN
        raise InputError(f"no model of '{data}' is registered: {hint}")
    versions = {str(one.version): one for one in client.search_model_versions(f"name = '{name}'")}
    listed = ", ".join(
        f"{number} ({versions[number].tags.get('variant', 'unknown')})" for number in sorted(versions, key=int)
    )
    if version is not None:
        if str(version) not in versions:
            raise InputError(f"{name} has no version {version}: choose from {listed}")
        return versions[str(version)]
    if variant is not None:
        of_variant = [number for number, one in versions.items() if one.tags.get("variant") == variant]
        if not of_variant:
            variants = {one.tags["variant"] for one in versions.values() if "variant" in one.tags}
            raise InputError(f"{name} has no version of variant '{variant}': {nearest(variant, variants)}")
        # Not the newest: a trial of a small experiment may have come since.
        return versions[max(of_variant, key=lambda number: (*_merit(versions[number].tags), int(number)))]
    champion = registered[name].aliases.get(CHAMPION)
    if str(champion) not in versions:
        raise InputError(f"{name} has no champion: name a version, {listed}")
    return versions[str(champion)]


def _fetch(tracking: Tracking, version: "ModelVersion") -> Path:
    """The folder of a version's files: where they lie, or a copy where a server keeps them."""
    from mlflow.artifacts import download_artifacts

    source = version.source
    if source.startswith("models:/"):
        source = tracking.client.get_logged_model(source.removeprefix("models:/")).artifact_location
    return Path(download_artifacts(artifact_uri=source, tracking_uri=tracking.uri))


@contextlib.contextmanager
def _code_of_its_own(folder: Path) -> Iterator[None]:
    """While a model is loaded, modules of the names that it brings are its own, not the newer ones of the project.

    cuda_ext alone is the project's: a process can register its operations once, and here its kernels are compiled.
    """
    code = folder / "code"
    brought = [path.relative_to(code).with_suffix("").parts for path in sorted(code.rglob("*.py"))]
    for parts in brought:
        if parts[0] == "cuda_ext":
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
    tops = {parts[0] for parts in brought} - {"cuda_ext"}
    path = list(sys.path)
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] in tops}
    for name in ours:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in tops]:
            del sys.modules[name]
        sys.modules.update(ours)
        sys.path[:] = path


def _changing(tracking: Tracking) -> contextlib.AbstractContextManager[bool]:
    """Only one process at a time looks for a version and makes it, or weighs a champion and replaces it."""
    return file_lock(tracking.root / LOCKS / "mlflow-models.lock")


def _merit(tags: Mapping[str, str]) -> tuple[int, float]:
    """Validation rows and score; a version that somebody registered without them stands behind all others."""
    return int(tags.get("validation.rows", 0)), float(tags.get("validation.score", 0.0))


def _log_package(client: "MlflowClient", run: "Run", run_directory: Path, card: str) -> str:
    """Log what serving the network needs as a model of the run; return the model's id."""
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as folder:
        package = pack(run_directory, Path(folder))
        artifacts = {"network": str(package.network)}
        answer = _served(artifacts).predict(None, package.example)
        signature = _signature(package.example, answer, package.parameters)
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
            signature=signature,
            input_example=package.example,
            pip_requirements=package.requirements,
            mlflow_model=Model(artifact_path=logged.artifact_location, run_id=run_id, model_uuid=logged.model_id,
                               model_id=logged.model_id),
        )  # fmt: skip
        (saved / CARD).write_text(card, encoding="utf-8")
        client.log_model_artifacts(logged.model_id, str(saved))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return logged.model_id


def _signature(example: Any, answer: "pandas.DataFrame", parameters: Mapping[str, Any]) -> Any:
    """The model's input, output and parameters, by an example of each."""
    from mlflow.models import infer_signature

    with warnings.catch_warnings():
        # An integer column cannot have a missing value. Counts of words are never missing.
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
        return infer_signature(example, answer, dict(parameters) or None)


def _served(artifacts: Mapping[str, str]) -> Any:
    """The served model, loaded in this process: what it answers to the example gives the signature."""
    from mlflow.pyfunc.model import PythonModelContext

    from tracking.served_model import ServedModel

    served = ServedModel()
    served.load_context(PythonModelContext(dict(artifacts), None))
    return served
