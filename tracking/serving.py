"""What a served model is packed from: the run's network, the source that it needs, an example, and its card."""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinds
from models.objectives import DEFAULT
from storage.errors import InputError
from storage.files import read_json, write_json
from storage.prepared import DESCRIPTION, SPLITS, open_prepared
from storage.source import ROOT, closure

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
    """Lay out in ``folder`` (empty) what serving the network of a finished run needs.

    InputError when the run has no weights or its prepared data is gone.
    """
    job = read_json(Path(run_directory) / "job.json")
    prepared = open_prepared(Path(job["prepared"]))
    network = folder / "network"
    network.mkdir(parents=True)
    needed = [Path(run_directory) / "best.safetensors", prepared.directory / DESCRIPTION]
    kind = kinds.kind(prepared.kind)
    if kind.reader is None:
        raise InputError(f"models of {prepared.kind} data are not served: kinds/{prepared.kind}.py has no reader")
    reader = kinds.load(kind.reader)
    needed += [prepared.directory / name for name in reader.FILES]
    for file in needed:
        if not file.is_file():
            raise InputError(f"{file} is missing: remove its folder and run again, it will be made anew")
        shutil.copyfile(file, network / file.name)
    write_json(network / "job.json", job)
    addresses = map(kinds.module_of, (kind.collator, kind.reader))
    objective = f"models.objectives.{job['training'].get('objective', DEFAULT)['name']}"
    modules = [f"models.{job['model']}", objective, "batches.answers", f"kinds.{prepared.kind}", *addresses]
    code = folder / "code"
    for path in closure(modules):
        copy = code / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    packages = ["mlflow", "numpy", "pandas", "safetensors", "torch", *reader.PACKAGES]
    # The public version: 2.13.0+cpu is not on a package index.
    requirements = [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in packages]
    example = reader.model_input(reader.example(prepared, EXAMPLES), prepared.description)
    return Package(network, sorted(code.iterdir()), requirements, example, dict(reader.PARAMETERS))


def model_card(
    job: Mapping[str, Any],
    description: Mapping[str, Any],
    data: Mapping[str, Any],
    metrics: Mapping[str, float],
    of_variant: Mapping[str, float],
) -> str:
    """The model's card, markdown: what it is, what it learnt from, how good it is and where it ends.

    ``description`` is its prepared.json, ``data`` its entry in data.manifest.json, ``metrics`` the figures of this run
    and ``of_variant`` those of its parent (NAME.mean, .mean_low, .mean_high, variant.seeds).
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
        mean, low, high = (of_variant.get(f"{name}.{end}") for end in ("mean", "mean_low", "mean_high"))
        interval = "one seed: none" if low is None or high is None else f"{low:.4f} to {high:.4f}"
        lines.append(f"| {name} | {metrics[name]:.4f} | {mean if mean is None else format(mean, '.4f')} | {interval} |")
    seeds = f"{of_variant.get('variant.seeds', 1):.0f}"
    lines += ["", f"Mean and interval (Student's t) are over the seeds of the variant, {seeds} so far."]
    lines += ["", "## Limits", ""]
    lines.append("- Chosen as the best of its seeds on validation: expect the mean of the variant, not better.")
    lines += [f"- {limit}" for limit in kinds.load(kind.reader).limits(description)]
    lines.append(
        "- Gives one of these labels to anything that it is shown; it does not know when it has not seen the like."
    )
    return "\n".join(lines) + "\n"
