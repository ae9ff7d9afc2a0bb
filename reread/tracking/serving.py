"""Pack a served model: a run's network or a baseline, the source that it needs, an example, and the model card."""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from models.objectives import DEFAULT
from reread import goals, kinds
from reread.storage.digests import refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.job import Job
from reread.storage.numeric import numeric_digest
from reread.storage.prepared import DESCRIPTION, SPLITS, Prepared, open_prepared
from reread.storage.run_folder import JOB, RESULT, RunFolder
from reread.storage.source import closure, outside_packages, root_of
from reread.tracking.baseline_predictor import SERVED, STATE
from reread.tracking.predictor import TEMPERATURE, THRESHOLD
from reread.tracking.temperature import Calibration

if TYPE_CHECKING:
    from reread.evaluation.baselines import Baseline

SERVED_MODEL = Path(__file__).with_name("served_model.py")
SERVED_BASELINE = Path(__file__).with_name("served_baseline.py")
NETWORK, BASELINE = "network", "baseline"
# What opens each, beside the modules that compute its answers.
NETWORK_CODE, BASELINE_CODE = ["reread.tracking.network_predictor"], ["reread.tracking.baseline_predictor"]
CARD = "model_card.md"
ALWAYS_A_NUMBER = "- Gives a number to anything that it is shown; it does not know when it has not seen the like."
ALWAYS_ANSWERS = (
    "- Gives one of these labels to anything that it is shown; it does not know when it has not seen the like."
)
AT_THRESHOLD = "- Gives a label from the probability on that has the best micro F1 on validation."
EXAMPLES = 2


@dataclass(frozen=True)
class Package:
    """The parts of a served model.

    python_model: the file that MLflow runs; artifact: the name under which that asks for the folder; folder: of weights
    and JSON; code_paths: top folders of the source; example: a request; parameters: those of a request with their
    defaults.
    """

    python_model: Path
    artifact: str
    folder: Path
    code_paths: list[Path]
    requirements: list[str]
    example: Any
    parameters: dict[str, Any]


def pack(run_directory: Path, folder: Path, threshold: float | None, calibration: Calibration | None) -> Package:
    """Copy into ``folder`` (empty) what serving the network of a finished run needs.

    threshold: of ``label_threshold``; calibration: of ``calibration_of``.
    InputError where the run has no result or weights, or its prepared data is gone.
    """
    run = RunFolder(Path(run_directory))
    job = Job.read(run)
    prepared = open_prepared(job.prepared)
    network = folder / "network"
    network.mkdir(parents=True)
    kind = kinds.kind(prepared.kind)
    if kind.reader is None:
        raise InputError(
            f"models of {prepared.kind} data are not served: reread/kinds/{prepared.kind}.py has no reader"
        )
    reader = kinds.load(kind.reader)
    needed = [run.weights, run.directory / RESULT, prepared.directory / DESCRIPTION]
    optional = _optional(reader, prepared.directory)
    needed += [prepared.directory / name for name in (*reader.FILES, *optional)]
    for file in needed:
        if not file.is_file():
            raise InputError(f"{file} is missing: remove its folder and run again to make it")
        shutil.copyfile(file, network / file.name)
    write_json(network / JOB, run.job)
    _write_decision(network, threshold, calibration)
    code = _copy_source(
        folder, [*served_modules(job, prepared.kind, prepared.task), *NETWORK_CODE, f"reread.kinds.{prepared.kind}"]
    )
    example = reader.model_input(reader.example(prepared, EXAMPLES), prepared.description)
    requirements = _requirements("torch", *reader.PACKAGES, *optional.values())
    return Package(SERVED_MODEL, NETWORK, network, code, requirements, example, dict(reader.PARAMETERS))


def pack_baseline(
    baseline: "Baseline", prepared: Prepared, name: str, folder: Path, calibration: Calibration | None
) -> Package:
    """Copy into ``folder`` (empty) what serving the baseline ``name`` needs, fitted on the rows of ``prepared``."""
    from reread.evaluation.baselines import MODEL

    assert baseline.directory is not None, f"{name} is not served"
    refuse_damaged_folder(baseline.directory)
    reader = kinds.reader(prepared.kind)
    destination = folder / BASELINE
    destination.mkdir(parents=True)
    shutil.copyfile(baseline.directory / MODEL, destination / STATE)
    optional = _optional(reader, prepared.directory)
    for file in (DESCRIPTION, *reader.FILES, *optional):
        shutil.copyfile(prepared.directory / file, destination / file)
    write_json(destination / SERVED, {"baseline": name})
    _write_decision(destination, label_threshold(baseline.metrics), calibration)
    code = _copy_source(
        folder, [*baseline_modules(prepared.kind, name, prepared.task), *BASELINE_CODE, f"reread.kinds.{prepared.kind}"]
    )
    example = reader.model_input(reader.example(prepared, EXAMPLES), prepared.description)
    requirements = _requirements("scikit-learn", "scipy", *reader.PACKAGES, *optional.values())
    return Package(SERVED_BASELINE, BASELINE, destination, code, requirements, example, {})


def label_threshold(metrics: Mapping[str, Any]) -> float | None:
    """Return the threshold of several labels with the best micro F1 on validation, None of one. metrics: by split.

    One per label would follow the few validation rows of a rare label.
    """
    thresholds = metrics.get("validation", {}).get("thresholds")
    return thresholds["overall"] if thresholds else None


def _write_decision(folder: Path, threshold: float | None, calibration: Calibration | None) -> None:
    if threshold is not None:
        write_json(folder / THRESHOLD, {"threshold": threshold})
    if calibration is not None:
        write_json(folder / TEMPERATURE, {"temperature": calibration.temperature})


def calibration_lines(calibration: Calibration | None) -> list[str]:
    """Return what a card says of the probabilities that the model gives."""
    if calibration is None:
        return []
    return [
        f"- Gives probabilities at a temperature of {calibration.temperature:.3g}, the best on validation (Guo et al. "
        f"2017): the calibration error there is {calibration.error_with_temperature:.4f}, without it "
        f"{calibration.error:.4f}."
    ]


def _optional(reader: Any, prepared: Path) -> dict[str, str]:
    """Return the reader's optional files that are in a prepared folder, each with the package that reads it."""
    return {name: package for name, package in getattr(reader, "OPTIONAL", {}).items() if (prepared / name).is_file()}


def _copy_source(folder: Path, modules: list[str]) -> list[Path]:
    """Copy the files that ``modules`` reach into folder/code; return the top folders there."""
    code = folder / "code"
    outside = outside_packages(modules)
    for path in closure(modules):
        copy = code / path.relative_to(root_of(path, outside=outside))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return sorted(code.iterdir())


def _requirements(*packages: str) -> list[str]:
    """Return the installed versions: the public ones, since 2.13.0+cpu is not on a package index."""
    names = ["mlflow", "numpy", "pandas", "safetensors", *packages]
    return [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in names]


def served_modules(job: Job, kind: str, task: str) -> list[str]:
    """Return the modules that compute a served network's answers."""
    described = kinds.kind(kind)
    objective = job.training.get("objective", DEFAULT)["name"]
    readers = [kinds.module_of(entry) for entry in (described.collator, described.reader) if entry]
    network = models.source_modules(job.model, job.network)
    own = [f"models.objectives.{objective}", "reread.batches.answers", "reread.tracking.temperature"]
    return [*network, *own, goals.module_of(task), *readers]


def served_source(job: Job, kind: str, task: str) -> str:
    """Return the digest of the code that decides a served network's answers."""
    return numeric_digest(served_modules(job, kind, task))


def baseline_modules(kind: str, name: str, task: str) -> list[str]:
    """Return the modules that compute a served baseline's answers."""
    described = kinds.kind(kind)
    (baseline,) = (candidate for candidate in described.baselines if candidate.name == name)
    entries = [entry for entry in (baseline.serve, described.reader) if entry]
    return [goals.module_of(task), "reread.tracking.temperature", *map(kinds.module_of, entries)]


def baseline_source(kind: str, name: str, task: str) -> str:
    """Return the digest of the code that decides a served baseline's answers."""
    return numeric_digest(baseline_modules(kind, name, task))


def baseline_card(
    name: str,
    baseline: "Baseline",
    description: Mapping[str, Any],
    data_set: str,
    data: Mapping[str, Any],
    calibration: Calibration | None,
) -> str:
    """Return the card of a baseline as markdown; the arguments as ``model_card`` has them."""
    lines = [
        f"# {name} on {data_set}",
        "",
        f"{baseline.name}: reads {kinds.kind(description['kind']).reads} and gives {given(description)}.",
        f"Regularisation C = {baseline.chosen:g}, the best of {len(baseline.grid)} on the validation split.",
        *_data_lines(description, data_set, data),
        "## Results",
        "",
        "| metric | this model |",
        "|---|---|",
    ]
    for split, metrics in baseline.metrics.items():
        lines += [
            f"| {split}.{metric} | {value:.4f} |" for metric, value in metrics.items() if isinstance(value, float)
        ]
    lines += ["", "It is fitted once: another fit gives the same.", "", "## Limits", ""]
    lines += [*limits(description), *calibration_lines(calibration)]
    return "\n".join(lines) + "\n"


def given(description: Mapping[str, Any]) -> str:
    """Return what a model gives, as a sentence has it: "one of 9 labels: ...", or the number's name."""
    names, number = ", ".join(description["classes"]), len(description["classes"])
    asked = {
        "multi-label": f"any number of {number} labels: {names}",
        "single-label": f"one of {number} labels: {names}",
    }
    return asked.get(description["task"], names)


def limits(description: Mapping[str, Any]) -> list[str]:
    """Return the limits of a model's card that its task has."""
    of_task = {"multi-label": [AT_THRESHOLD, ALWAYS_ANSWERS], "single-label": [ALWAYS_ANSWERS]}
    return of_task.get(description["task"], [ALWAYS_A_NUMBER])


def _data_lines(description: Mapping[str, Any], data_set: str, data: Mapping[str, Any]) -> list[str]:
    rows = {name: description["splits"][name] for name in SPLITS}
    splits = ", ".join(f"{stop - start:,} for {name}" for name, (start, stop) in rows.items())
    lines = ["", "## Data", "", f"{data_set}, version {description['data_version']}: {splits}."]
    return [*lines, *(f"{name.capitalize()}: {data[name]}." for name in ("source", "licence") if data.get(name)), ""]


def model_card(
    job: Job,
    description: Mapping[str, Any],
    data: Mapping[str, Any],
    metrics: Mapping[str, float],
    variant_metrics: Mapping[str, float],
    calibration: Calibration | None,
) -> str:
    """Return the model card as markdown: task, training data, results and limits.

    description: prepared.json; data: the entry of data.manifest.json; metrics: of this run; variant_metrics: of its
    parent run (NAME.mean, .mean_low, .mean_high, variant.seeds).
    """
    kind = kinds.kind(description["kind"])
    lines = [
        f"# {job.variant} on {job.data}",
        "",
        f"A {job.model} network that reads {kind.reads} and gives {given(description)}.",
        f"Seed {job.seed}, the best of its variant on the validation split; run {job.run_key}.",
        *_data_lines(description, job.data, data),
        "## Results",
        "",
        "| metric | this model | mean of the variant | 95 % interval |",
        "|---|---|---|---|",
    ]
    for name in sorted(name for name in metrics if name.startswith(("test.", "validation."))):
        mean, low, high = (variant_metrics.get(f"{name}.{end}") for end in ("mean", "mean_low", "mean_high"))
        if mean is None:  # MLflow keeps the first metrics of a run alone (reread.tracking.runs.MAXIMUM_METRICS)
            continue
        interval = "one seed: none" if low is None or high is None else f"{low:.4f} to {high:.4f}"
        lines.append(f"| {name} | {metrics[name]:.4f} | {mean:.4f} | {interval} |")
    seeds = f"{variant_metrics.get('variant.seeds', 1):.0f}"
    lines += ["", f"Mean and interval (Student's t) are over the seeds of the variant, {seeds} so far."]
    lines += ["", "## Limits", ""]
    lines.append("- Chosen as the best of its seeds on validation: expect the mean of the variant, not better.")
    lines += [f"- {limit}" for limit in kinds.reader(description["kind"]).limits(description)]
    lines += [*limits(description), *calibration_lines(calibration)]
    return "\n".join(lines) + "\n"
