"""Pack a served model: the run's network, the source that it needs, an example, and the model card."""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinds
import models
from models.objectives import DEFAULT
from storage.errors import InputError
from storage.files import write_json
from storage.prepared import DESCRIPTION, SPLITS, open_prepared
from storage.run_folder import JOB, RESULT, RunFolder
from storage.source import ROOT, closure, numeric_digest

SERVED_MODEL = Path(__file__).with_name("served_model.py")
CARD = "model_card.md"
EXAMPLES = 2


@dataclass(frozen=True)
class Package:
    """The parts of a served model.

    network: folder with weights and JSON; code_paths: top folders of the source; example: a request; parameters: those
    of a request with their defaults.
    """

    network: Path
    code_paths: list[Path]
    requirements: list[str]
    example: Any
    parameters: dict[str, Any]


def pack(run_directory: Path, folder: Path) -> Package:
    """Copy into ``folder`` (empty) what serving the network of a finished run needs.

    InputError where the run has no result or weights, or its prepared data is gone.
    """
    run = RunFolder(Path(run_directory))
    job = run.job
    prepared = open_prepared(Path(job["prepared"]))
    network = folder / "network"
    network.mkdir(parents=True)
    kind = kinds.kind(prepared.kind)
    if kind.reader is None:
        raise InputError(f"models of {prepared.kind} data are not served: kinds/{prepared.kind}.py has no reader")
    reader = kinds.load(kind.reader)
    needed = [run.weights, run.directory / RESULT, prepared.directory / DESCRIPTION]
    needed += [prepared.directory / name for name in reader.FILES]
    for file in needed:
        if not file.is_file():
            raise InputError(f"{file} is missing: remove its folder and run again to make it")
        shutil.copyfile(file, network / file.name)
    write_json(network / JOB, job)
    code = folder / "code"
    for path in closure([*served_modules(job, prepared.kind), f"kinds.{prepared.kind}"]):
        copy = code / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    packages = ["mlflow", "numpy", "pandas", "safetensors", "torch", *reader.PACKAGES]
    # The public version: 2.13.0+cpu is not on a package index.
    requirements = [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in packages]
    example = reader.model_input(reader.example(prepared, EXAMPLES), prepared.description)
    return Package(network, sorted(code.iterdir()), requirements, example, dict(reader.PARAMETERS))


def served_modules(job: Mapping[str, Any], kind: str) -> list[str]:
    """Return the modules that compute a served network's answers."""
    described = kinds.kind(kind)
    objective = job["training"].get("objective", DEFAULT)["name"]
    readers = [kinds.module_of(entry) for entry in (described.collator, described.reader) if entry]
    network = models.source_modules(job["model"], job["network"])
    return [*network, f"models.objectives.{objective}", "batches.answers", *readers]


def served_source(job: Mapping[str, Any], kind: str) -> str:
    """Return the digest of the code that decides a served network's answers."""
    return numeric_digest(served_modules(job, kind))


def model_card(
    job: Mapping[str, Any],
    description: Mapping[str, Any],
    data: Mapping[str, Any],
    metrics: Mapping[str, float],
    variant_metrics: Mapping[str, float],
) -> str:
    """Return the model card as markdown: task, training data, results and limits.

    description: prepared.json; data: the entry of data.manifest.json; metrics: of this run; variant_metrics: of its
    parent run (NAME.mean, .mean_low, .mean_high, variant.seeds).
    """
    rows = {name: description["splits"][name] for name in SPLITS}
    splits = ", ".join(f"{stop - start:,} for {name}" for name, (start, stop) in rows.items())
    several = description["task"] == "multi-label"
    kind = kinds.kind(description["kind"])
    lines = [
        f"# {job['variant']} on {job['data']}",
        "",
        f"A {job['model']} network that reads {kind.reads} and gives {'any number of' if several else 'one'} of "
        f"{len(description['classes'])} labels: {', '.join(description['classes'])}.",
        f"Seed {job['seed']}, the best of its variant on the validation split; run {job['run_key']}.",
        "",
        "## Data",
        "",
        f"{job['data']}, version {description['data_version']}: {splits}.",
    ]
    lines += [f"{name.capitalize()}: {data[name]}." for name in ("source", "licence") if data.get(name)]
    lines += [
        "",
        "## Results",
        "",
        "| metric | this model | mean of the variant | 95 % interval |",
        "|---|---|---|---|",
    ]
    for name in sorted(name for name in metrics if name.startswith(("test.", "validation."))):
        mean, low, high = (variant_metrics.get(f"{name}.{end}") for end in ("mean", "mean_low", "mean_high"))
        interval = "one seed: none" if low is None or high is None else f"{low:.4f} to {high:.4f}"
        lines.append(f"| {name} | {metrics[name]:.4f} | {mean if mean is None else format(mean, '.4f')} | {interval} |")
    seeds = f"{variant_metrics.get('variant.seeds', 1):.0f}"
    lines += ["", f"Mean and interval (Student's t) are over the seeds of the variant, {seeds} so far."]
    lines += ["", "## Limits", ""]
    lines.append("- Chosen as the best of its seeds on validation: expect the mean of the variant, not better.")
    lines += [f"- {limit}" for limit in kinds.reader(description["kind"]).limits(description)]
    lines.append(
        "- Gives one of these labels to anything that it is shown; it does not know when it has not seen the like."
    )
    return "\n".join(lines) + "\n"
