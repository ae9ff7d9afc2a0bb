"""The only door to MLflow for models: the registered models, their versions, cards and champions.

Each data set has one registered model, ``reread-DATA``. A version of it is the network of one run, or a baseline, with
the code that serves it, packed by reread/tracking/serving.py so that it takes raw input. Runs go through
reread/tracking/runs.py, whose connection serves here too.

To predict in Python, in the project's folder, without a server:

    from reread.tracking.registry import load_model
    load_model("docstrings").predict(["Return the eigenvalues of a matrix. They are sorted."])

That uses the project's installed code, and refuses a version whose code has changed since. The scoring server
(``mlflow models serve``) uses the code that is kept with the version, and so serves any.
"""

import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import models
from reread import kinds
from reread.goals import goal
from reread.planning.experiment import EXPERIMENTS, experiments
from reread.preprocessing.manifest import MANIFEST_PATH, Manifest
from reread.storage.errors import InputError, nearest
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.locks import file_lock
from reread.storage.prepared import DESCRIPTION, Prepared, open_prepared
from reread.storage.run_folder import METRICS, RunFolder
from reread.tracking.baseline_predictor import SERVED
from reread.tracking.connection import LOCKS
from reread.tracking.descriptions import NOTE, registered_name
from reread.tracking.figures import SEEDS
from reread.tracking.runs import Tracking
from reread.tracking.serving import (
    BASELINE,
    CARD,
    NETWORK,
    Package,
    baseline_card,
    baseline_source,
    label_threshold,
    model_card,
    pack,
    pack_baseline,
    served_source,
)
from reread.tracking.temperature import calibration_of
from reread.tracking.versions import Registered, Version, files, registered_model

if TYPE_CHECKING:
    import numpy
    import pandas
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from reread.evaluation.baselines import Baseline
    from reread.tracking.predictor import Predictor

CHAMPION = "champion"
METRIC = "validation.metric"  # the tag that names what "validation.score" is of
ENOUGH_SEEDS = 6  # the fewest with which a comparison can be decided: more do not make a better champion


def log_model(
    tracking: Tracking,
    run_id: str,
    run_directory: Path,
    evaluation_directory: Path | None = None,
    score: tuple[str, float] | None = None,
) -> str:
    """Log the network of a run as a model that takes raw input, register it, and return its version.

    evaluation_directory: its evaluation, which has the threshold of several labels (without it that is 0.5), and the
    probabilities on validation by which those of one label are calibrated.
    score: the metric that chooses champions, and the variant's mean of it on validation; None: that of the task.

    A version is identified by the tags ``run_key``, ``variant`` and ``source``, the digest of the code that serves it.
    If the run has a version of today's code already, only its card is updated.
    """
    client, run_directory = tracking.client, Path(run_directory)
    job = Job.read(RunFolder(run_directory))
    description = read_json(job.prepared / DESCRIPTION)
    threshold = calibration = None
    if evaluation_directory:
        threshold = label_threshold(read_json(evaluation_directory / METRICS))
        # Its arrays were verified for the evaluation, and are again where a version is packed.
        calibration = calibration_of(evaluation_directory, open_prepared(job.prepared, verify=False))
    with _locked(tracking):
        run = client.get_run(run_id)
        # The run may have been trained under another name.
        job = replace(job, variant=run.data.params["variant"])
        parent_id = run.data.tags["mlflow.parentRunId"]
        tracking.update_parents()
        variant_metrics = client.get_run(parent_id).data.metrics
        data = _data_entry(tracking, job.data)
        card = model_card(job, description, data, run.data.metrics, variant_metrics, calibration)
        usual = goal(description["task"]).names[0]
        # The variant's validation score over its seeds: champions are chosen by it. MLflow has not every metric.
        score = score or (usual, variant_metrics[f"validation.{usual}.mean"])
        return _register(
            tracking, run, registered_name(job.data), card,
            {
                "run_key": job.run_key,
                "variant": job.variant,
                "source": served_source(job, description["kind"], description["task"]),
            },
            {
                **_validated(description, *score),
                "validation.seeds": str(int(variant_metrics.get(SEEDS, 1))),
            },
            lambda folder: pack(run_directory, folder, threshold, calibration),
            description,
        )  # fmt: skip


def log_baseline(
    tracking: Tracking,
    experiment: str,
    name: str,
    baseline: "Baseline",
    prepared: Prepared,
    metric: str | None = None,
) -> str:
    """Log a fitted baseline as a run and a model of the data set of ``prepared``, register it; return its version.

    name: of kinds.baselines(). It is fitted once and has no seeds: as many count for it as are enough.
    metric: the one that chooses champions; None: that of the task.
    """
    assert baseline.directory is not None, f"{name} is not served"
    data, description = prepared.description["name"], prepared.description
    metric = metric or goal(description["task"]).names[0]
    run_id = tracking.baseline(experiment, data, name, baseline.parameters_and_metrics(), description)
    calibration = calibration_of(baseline.directory, prepared)
    card = baseline_card(name, baseline, description, data, _data_entry(tracking, data), calibration)
    with _locked(tracking):
        return _register(
            tracking, tracking.client.get_run(run_id), registered_name(data), card,
            {
                "run_key": baseline.directory.name,
                "variant": name,
                "source": baseline_source(prepared.kind, name, prepared.task),
            },
            {
                **_validated(description, metric, baseline.metrics["validation"][metric]),
                "validation.seeds": str(ENOUGH_SEEDS),
            },
            lambda folder: pack_baseline(baseline, prepared, name, folder, calibration),
            description,
        )  # fmt: skip


def _data_entry(tracking: Tracking, name: str) -> Mapping[str, Any]:
    data = Manifest.load(tracking.root / MANIFEST_PATH).datasets.get(name)
    return vars(data) if data else {}


def _validated(description: Mapping[str, Any], metric: str, score: float) -> dict[str, str]:
    start, stop = description["splits"]["validation"]
    return {"validation.rows": str(stop - start), METRIC: metric, "validation.score": repr(score)}


def _register(
    tracking: Tracking,
    run: "Run",
    name: str,
    card: str,
    identity: Mapping[str, str],
    tags: Mapping[str, str],
    package: Callable[[Path], Package],
    description: Mapping[str, Any],
) -> str:
    """Find or create the version of registered model ``name`` with the tags ``identity``; update its card and tags.

    description: prepared.json of the data that the model was trained on.
    """
    from mlflow.entities import LoggedModelOutput

    client = tracking.client
    versions = client.search_model_versions(f"name = '{name}' AND tags.run_key = '{identity['run_key']}'")
    matching = [version for version in versions if identity.items() <= version.tags.items()]
    if matching:
        version = str(matching[0].version)
    else:
        model_id = _log_package(client, run, package, card)
        if parent := run.data.tags.get("mlflow.parentRunId"):
            # The variant's own page has its model, too.
            client.log_outputs(parent, [LoggedModelOutput(model_id, step=0)])
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        made = client.create_model_version(
            name, f"models:/{model_id}", run.info.run_id, tags=dict(identity), model_id=model_id
        )
        version = str(made.version)
    client.update_model_version(name, version, description=card)
    client.update_registered_model(
        name,
        f"Models that read {kinds.kind(description['kind']).reads} and give labels of {description['name']}: "
        f"{', '.join(description['classes'])}. A request is the input example of a version; its schema is the "
        f"version's signature. The alias `{CHAMPION}` is the best on validation.",
    )
    claim = {**tags, "experiment": client.get_experiment(run.info.experiment_id).name}
    # Where two experiments share the run, the version stays that of the one with more evidence.
    if not matching or not _outranks(tracking, matching[0].tags, claim, ties=True):
        for key, value in claim.items():
            client.set_model_version_tag(name, version, key, value)
    return version


def set_champion(tracking: Tracking, data: str, version: str, experiment: str | None = None) -> str:
    """Give the alias ``champion`` of a data set's registered model to this version; return the version that has it.

    experiment: the one that chose it; None: the one that the version is of. They differ where two share a run.
    Within one experiment the latest choice wins. Across experiments, the version that was validated on more rows wins,
    then the one with more seeds (up to ENOUGH_SEEDS), then the one with the higher score, or the later one where the
    two scores are of different metrics. A trial on a subset or of one seed therefore cannot replace the champion. A
    champion whose experiment was deleted is replaced by any other.
    """
    client, name = tracking.client, registered_name(data)
    with _locked(tracking):
        challenger = client.get_model_version(name, version).tags
        aliases = client.get_registered_model(name).aliases
        if CHAMPION in aliases:
            champion = client.get_model_version(name, aliases[CHAMPION]).tags
            claim = {**challenger, "experiment": experiment or challenger["experiment"]}
            if _outranks(tracking, champion, claim):
                return str(aliases[CHAMPION])
        client.set_registered_model_alias(name, CHAMPION, version)
    return str(version)


def champion_tags(data: str) -> Mapping[str, str]:
    """Return the tags of a data set's champion: ``variant``, ``experiment``, ``validation.score`` and others."""
    return _choose(registered_model(data), None, None).tags


@dataclass(frozen=True)
class LoadedModel:
    """A version of a registered model, ready to predict. Made by ``load_model``.

    card: the model card as Markdown.
    """

    name: str
    version: str
    variant: str
    predictor: "Predictor" = field(repr=False)
    card: str = field(default="", repr=False)

    def predict(
        self, values: "Sequence[str] | pandas.DataFrame | numpy.ndarray", attention: bool = True
    ) -> "pandas.DataFrame":
        """Return one row per text, given as a list or as a table's column ``text``, or per image of uint8 [N, H, W, C].

        reread/tracking/served_model.py has the columns. Without ``attention`` that column is left out, which takes less
        time and memory. InputError for input that a model of this kind does not read.
        """
        try:
            rows = self.check(values)
        except InputError as error:
            raise InputError(f"{self.name} version {self.version}: {error}") from None
        return self.predictor.answers(rows, attention)

    def check(self, values: "Sequence[str] | pandas.DataFrame | numpy.ndarray") -> Sequence[Any]:
        """Return the rows of a request; InputError for input that the model does not read."""
        try:
            return self.predictor.check(kinds.reader(self.kind).model_input(values, self.description))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(str(error).splitlines()[0]) from None

    @property
    def description(self) -> Mapping[str, Any]:
        """Return prepared.json of the data that the model was trained on."""
        return self.predictor.description

    @property
    def kind(self) -> str:
        """The kind of data."""
        return str(self.description["kind"])

    @property
    def reads_text(self) -> bool:
        """Return whether a row of a request is a text."""
        return isinstance(self.predictor.reader.blank()[0], str)


def load_model(
    data: str, *, variant: str | None = None, version: int | str | None = None, root: Path = Path()
) -> LoadedModel:
    """Load the champion of a data set, the version of ``variant`` that was best on validation, or version ``version``.

    The model is loaded from the database in the project's folder ``root``, or from MLFLOW_TRACKING_URI, and runs with
    the project's own code. Nothing is started or sent anywhere. Threads may load at the same time.

    InputError names what is registered where the requested model is not, and a version whose code is not today's.
    """
    if variant is not None and version is not None:
        raise InputError(f"variant '{variant}' and version {version} are given: choose one")
    chosen = _choose(registered_model(data, root), variant, version)
    title = f"{chosen.name} version {chosen.version}"
    try:
        artifacts = files(chosen, root) / "artifacts"
        artifact = NETWORK if (artifacts / NETWORK).is_dir() else BASELINE
        description = read_json(artifacts / artifact / DESCRIPTION)
        packed, source = _what_and_source(artifacts / artifact, description)
        if source != chosen.tags.get("source"):
            raise models.SourceChanged(
                f"{title}: the code of {packed} or of what serves it has changed since it was "
                f"registered; serve it by `mlflow models serve -m models:/{chosen.name}/{chosen.version} "
                "--env-manager local`, which uses the code kept with it, or run its experiment again, which registers "
                "a new version"
            )
        predictor = _predictor(artifact, artifacts / artifact)
    except models.SourceChanged:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{title} does not load ({str(error).splitlines()[0]}): choose another version") from None
    variant = chosen.tags.get("variant", "unknown")
    return LoadedModel(chosen.name, chosen.version, variant, predictor, chosen.description)


def _what_and_source(folder: Path, description: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the name of what was packed, and the digest of its code today, None where there is no such code."""
    kind, task = description["kind"], description["task"]
    if (folder / SERVED).is_file():
        name = read_json(folder / SERVED)["baseline"]
        known = any(baseline.name == name and baseline.serve for baseline in kinds.kind(kind).baselines)
        return f"baseline '{name}'", baseline_source(kind, name, task) if known else None
    job = Job.read(RunFolder(folder))
    known = models.is_outside(job.model) or job.model in models.available()
    return f"network '{job.model}'", served_source(job, kind, task) if known else None


def _choose(model: Registered, variant: str | None, version: int | str | None) -> Version:
    versions = model.versions
    if version is not None:
        if str(version) not in versions:
            raise InputError(f"{model.name} has no version {version}: choose from {model.listed()}")
        return versions[str(version)]
    if variant is not None:
        of_variant = [number for number, candidate in versions.items() if candidate.tags.get("variant") == variant]
        if not of_variant:
            variants = {candidate.tags["variant"] for candidate in versions.values() if "variant" in candidate.tags}
            raise InputError(
                f"{model.name} has no version of variant '{variant}': {nearest(variant, variants)} (`reread run` "
                "registers the variants of an experiment, also a renamed one)"
            )
        # The newest may be a trial of a small experiment.
        return versions[max(of_variant, key=lambda number: (*_merit(versions[number].tags), int(number)))]
    champion = model.aliases.get(CHAMPION, "")
    if champion not in versions:
        raise InputError(f"{model.name} has no champion: name a version, {model.listed()}")
    return versions[champion]


def _locked(tracking: Tracking) -> contextlib.AbstractContextManager[TextIO | None]:
    """Lock the registry for one process: to find or create a version, or to compare and replace a champion."""
    return file_lock(tracking.root / LOCKS / "mlflow-models.lock")


def _merit(tags: Mapping[str, str]) -> tuple[int, int, float]:
    """Return validation rows, seeds and score; a version without these tags, or whose tags are no numbers, comes after
    all others."""
    try:
        seeds = min(int(tags.get("validation.seeds", 1)), ENOUGH_SEEDS)
        return int(tags.get("validation.rows", 0)), seeds, float(tags.get("validation.score", 0.0))
    except ValueError:
        return 0, 0, 0.0


def _outranks(tracking: Tracking, holder: Mapping[str, str], claim: Mapping[str, str], ties: bool = False) -> bool:
    """Return whether the tags of a version hold against a claim: of another experiment, which is there, and better.

    ties: also if both are as good. Scores of two metrics are not compared.
    """
    other = holder.get("experiment")
    if other == claim["experiment"] or not _exists(tracking, other):
        return False
    metrics = {tags[METRIC] for tags in (holder, claim) if METRIC in tags}
    comparable = 2 if len(metrics) > 1 else 3
    ours, theirs = _merit(claim)[:comparable], _merit(holder)[:comparable]
    return ours <= theirs if ties else ours < theirs


def _exists(tracking: Tracking, experiment: str | None) -> bool:
    """Return whether an experiment is in MLflow and, where the project's folder has experiments, still among them."""
    in_mlflow = tracking.client.get_experiment_by_name(experiment) if experiment else None
    if in_mlflow is None or in_mlflow.lifecycle_stage != "active":
        return False
    folder = tracking.root / EXPERIMENTS
    return not folder.is_dir() or experiment in experiments(tracking.root)


def _log_package(client: "MlflowClient", run: "Run", make: Callable[[Path], Package], card: str) -> str:
    """Log what serving a model needs as a model of the run; return the model's id. make: packs into a folder."""
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    run_id = run.info.run_id
    with tempfile.TemporaryDirectory() as folder:
        package = make(Path(folder))
        predictor = _predictor(package.artifact, package.folder)
        answer = predictor.answers(predictor.check(package.example))
        signature = _signature(package.example, answer, package.parameters)
        # MLflow takes no dot or slash in a model's name, and a variant may have one (han-0.01).
        name = re.sub(r"[^\w-]", "_", run.info.run_name)
        logged = client.create_logged_model(
            run.info.experiment_id, name, run_id, params=run.data.params, model_type="classifier"
        )
        saved = Path(folder) / "saved"
        mlflow.pyfunc.save_model(
            saved,
            python_model=package.python_model,
            artifacts={package.artifact: str(package.folder)},
            code_paths=[str(path) for path in package.code_paths],
            signature=signature,
            input_example=package.example,
            pip_requirements=package.requirements,
            mlflow_model=Model(artifact_path=logged.artifact_location, run_id=run_id, model_uuid=logged.model_id,
                               model_id=logged.model_id),
        )  # fmt: skip
        (saved / CARD).write_text(card, encoding="utf-8")
        client.log_model_artifacts(logged.model_id, str(saved))
    client.set_logged_model_tags(logged.model_id, {NOTE: card})
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return logged.model_id


def _signature(example: Any, answer: "pandas.DataFrame", parameters: Mapping[str, Any]) -> Any:
    """Infer the model's schema from an example of each of input, output and parameters."""
    from mlflow.models import infer_signature

    with warnings.catch_warnings():
        # An integer column cannot have a missing value. Counts of words are never missing.
        warnings.filterwarnings("ignore", "Hint: Inferred schema contains integer", UserWarning)
        return infer_signature(example, answer, dict(parameters) or None)


def _predictor(artifact: str, folder: Path) -> "Predictor":
    """Open a packed model in this process; torch is imported for a network alone."""
    if artifact == BASELINE:
        from reread.tracking.baseline_predictor import BaselinePredictor

        return BaselinePredictor(folder)
    from reread.tracking.network_predictor import NetworkPredictor

    return NetworkPredictor(folder)
