"""What a served model is packed from: the run's network, the source that it needs, an example, and its card."""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import InputError
from storage.files import read_json, write_json
from storage.prepared import DESCRIPTION, SPLITS, open_prepared
from storage.source import ROOT, closure

SERVED_MODEL = Path(__file__).with_name("served_model.py")
CARD = "model_card.md"
EXAMPLES = 2
PACKAGES = {"text": ["blingfire"], "image": []}


@dataclass(frozen=True)
class Package:
    """``network``: folder with weights and JSON; ``code_paths``: top folders of the source; ``example``: raw input."""

    network: Path
    code_paths: list[Path]
    requirements: list[str]
    example: Any


def pack(run_directory: Path, folder: Path) -> Package:
    """Lay out in ``folder`` (empty) what serving the network of a finished run needs.

    InputError when the run has no weights or its prepared data is gone.
    """
    job = read_json(Path(run_directory) / "job.json")
    prepared = open_prepared(Path(job["prepared"]))
    network = folder / "network"
    network.mkdir(parents=True)
    needed = [Path(run_directory) / "best.safetensors", prepared.directory / DESCRIPTION]
    if prepared.kind == "text":
        needed.append(prepared.directory / "vocabulary.json")
    for file in needed:
        if not file.is_file():
            raise InputError(f"{file} is missing: remove its folder and run again, it will be made anew")
        shutil.copyfile(file, network / file.name)
    write_json(network / "job.json", job)
    modules = [f"models.{job['model']}", "batches.answers", f"batches.{prepared.kind}"]
    if prepared.kind == "text":
        modules.append("preprocessing.reading")
    code = folder / "code"
    for path in closure(modules):
        copy = code / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    packages = ["mlflow", "numpy", "pandas", "safetensors", "torch", *PACKAGES[prepared.kind]]
    # The public version: 2.13.0+cpu is not on a package index.
    requirements = [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in packages]
    return Package(network, sorted(code.iterdir()), requirements, _example(prepared))


def _example(prepared: Any) -> Any:
    """Raw input as a user would send it: the first test rows, a list of texts or uint8 [n, H, W, C]."""
    if prepared.kind == "text":
        shown = read_json(prepared.directory / "shown.json")[:EXAMPLES]
        return [". ".join(" ".join(words) for words in document["words"]) for document in shown]
    return np.asarray(prepared.arrays["images"][prepared.rows("test")[:EXAMPLES]])


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
    reads = "documents as raw text" if description["kind"] == "text" else "images as raw pixels (uint8, 0 to 255)"
    lines = [
        f"# {job['variant']} on {job['data']}",
        "",
        f"A {job['model']} network that reads {reads} and gives {'any number of' if several else 'one'} of "
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
    if description["kind"] == "text":
        sentences, words = (description["lengths"][level]["kept"] for level in ("sentences", "words"))
        lines.append(f"- Reads the first {sentences} sentences of a document and the first {words} words of each.")
        lines.append(f"- Knows {description['vocabulary_size']:,} words; any other is one unknown word to it.")
    else:
        shape = " x ".join(map(str, description["arrays"]["images"]["shape"][1:]))
        lines.append(f"- Reads images of {shape} (height, width, channels) alone.")
    lines.append(
        "- Gives one of these labels to anything that it is shown; it does not know when it has not seen the like."
    )
    return "\n".join(lines) + "\n"
