"""The networks by name. A network is one file, models/NAME.py, with

    Settings   a frozen dataclass (storage.settings) of what the network can be told
    DEBUG      Settings of a size for tests
    build      build(settings, description) -> torch.nn.Module, description being the data set's prepared.json
    KIND       optional: "text" or "image", the only kind of data that the network reads

and is known by being there: no list is kept, so that a new network changes no other's source.
"""

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import InputError, nearest
from storage.files import read_object
from storage.settings import from_json
from storage.source import parse

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).resolve().parent


def available() -> list[str]:
    """The names of the networks, in order. Files are read and not imported, so this needs no torch."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if _defined(path) >= {"Settings", "DEBUG", "build"})


def kind(model: str) -> str | None:
    """The only kind of data that ``model`` reads, ``text`` or ``image``; None where it reads both."""
    return getattr(_module(model), "KIND", None)


def refuse_other_kind(model: str, data: str, kind_of_data: str) -> None:
    """InputError where ``model`` does not read the kind of data that ``data`` is."""
    if kind(model) not in (None, kind_of_data):
        raise InputError(f"{model} reads {kind(model)}, and {data} is {kind_of_data} data: choose another")


def settings_class(model: str) -> type:
    """The Settings of ``model``, a frozen dataclass; InputError for an unknown model."""
    return _module(model).Settings


def settings(model: str, mapping: Mapping[str, Any]) -> Any:
    """Return the Settings of ``model`` with the values of ``mapping``; InputError for an unknown model or name.

    planning.validation checks values before a job is made of them.
    """
    return from_json(settings_class(model), mapping)


def debug(model: str) -> Any:
    """The Settings of ``model`` in the size for tests."""
    return _module(model).DEBUG


def build(model: str, network: Mapping[str, Any], description: Mapping[str, Any]) -> "nn.Module":
    """The untrained network, its weights drawn from torch's global generator."""
    refuse_other_kind(model, description["name"], description["kind"])
    return _module(model).build(settings(model, network), description)


def load(run_directory: Path, description: Mapping[str, Any]) -> "nn.Module":
    """Load the network of a finished run with its best weights, on the CPU and in evaluation mode.

    Its ``objective`` (models/objectives), by which it was trained, turns its scores into probabilities.

    InputError where the run has no weights yet, where they are not whole, or do not fit the data of ``description``.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from models.objectives import DEFAULT, make_objective

    job = read_object(Path(run_directory) / "job.json", "model", "network")
    weights = Path(run_directory) / "best.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights} is missing: the run has not finished its first epoch, train it again")
    network = build(job["model"], job["network"], description)
    try:
        network.load_state_dict(load_file(weights))
    except SafetensorError as error:
        raise InputError(f"{weights} is not whole ({error}): remove {run_directory} and train it again") from None
    except RuntimeError as error:
        said = str(error).splitlines()[-1].strip()
        raise InputError(
            f"{weights} does not fit {job['model']} on {description['name']} ({said}): "
            "give the arrays and the source that it was trained on"
        ) from None
    network.objective = make_objective(job.get("training", {}).get("objective", DEFAULT), description)
    return network.eval()


def _module(model: str) -> Any:
    if model not in available():
        raise InputError(f"unknown model '{model}': {nearest(model, available())}")
    return importlib.import_module(f"models.{model}")


def _defined(path: Path) -> set[str]:
    """The names that a source file defines at its top level."""
    names: set[str] = set()
    for node in parse(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
