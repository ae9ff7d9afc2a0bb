"""The networks by name. A network is one file, models/NAME.py, with

Settings   a frozen dataclass (reread.storage.settings) of the network's settings
DEBUG      Settings of a size for tests
build      build(settings, description) -> torch.nn.Module, description being the data set's prepared.json
KIND       optional: "text" or "image", the only kind of data that the network reads
SIZES      optional: named sizes, {"bc-100-12": {"depth": 100, "growth_rate": 12}}; ``network: {size: bc-100-12}``
load_initial_weights   optional: load_initial_weights(network, settings) puts weights of a file that the settings name
           into a new network

Or it is of another package: reread/storage/outside.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reread.storage import outside
from reread.storage.errors import InputError, nearest
from reread.storage.files import read_object, sha256_file
from reread.storage.numeric import numeric_digest, numeric_files
from reread.storage.registry import Registry
from reread.storage.run_folder import JOB, RESULT, RunFolder
from reread.storage.settings import from_json, members

if TYPE_CHECKING:
    from torch import Tensor, nn

    from models.objectives import Objective

    class Network(nn.Module):
        """A network as ``load`` returns it, for type checkers: the methods are those that its class may have."""

        objective: Objective
        embedding: nn.Module
        attend: Callable[..., tuple[Tensor, Tensor, Tensor]]
        reconstruct: Callable[[Tensor, Tensor], Tensor]


REGISTRY = Registry("models", "model", ("Settings", "DEBUG", "build"))


def available() -> list[str]:
    """Return the names of the networks, in order. Files are parsed and not imported, so this needs no torch."""
    return REGISTRY.available()


def is_outside(model: str) -> bool:
    """Return whether ``model`` is of another package, and no file of models/."""
    return outside.provides(REGISTRY.package, model)


def address(model: str) -> str:
    """Return ``model``, that of an entry point as PACKAGE.MODULE:NAME: where it has no name, the module is found."""
    return outside.address(REGISTRY.package, model) if is_outside(model) else model


def module_name(model: str) -> str:
    """Return the dotted name of the module that ``model`` is in."""
    return address(model).partition(":")[0] if is_outside(model) else f"models.{model}"


def place(model: str) -> str:
    """Return where the code of ``model`` is, for a message."""
    return address(model) if is_outside(model) else f"models/{model}.py"


def kind(model: str) -> str | None:
    """Return the only kind of data that ``model`` reads, ``text`` or ``image``; None where it reads both."""
    return getattr(REGISTRY.module(model), "KIND", None)


def refuse_other_kind(model: str, data: str, kind_of_data: str) -> None:
    """Raise InputError where ``model`` does not read the kind of data that ``data`` is."""
    if kind(model) not in (None, kind_of_data):
        raise InputError(f"{model} reads {kind(model)}, and {data} is {kind_of_data} data: choose another")


def settings_class(model: str) -> type:
    """Return the Settings of ``model``, a frozen dataclass; InputError for an unknown model."""
    return REGISTRY.module(model).Settings


def settings(model: str, mapping: Mapping[str, Any]) -> Any:
    """Return the Settings of ``model`` with the values of ``mapping``; InputError for an unknown model or name.

    reread.planning.validation checks values before a job is made of them.
    """
    return from_json(settings_class(model), mapping)


def sizes(model: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of each named size of ``model``; InputError for an unknown model."""
    return getattr(REGISTRY.module(model), "SIZES", {})


def with_size(model: str, network: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``network`` with its ``size``, if it names one, replaced by that size's settings; those beside it win.

    InputError for an unknown size names the nearest one. A network without named sizes is returned as it is.
    """
    named = sizes(model) if "size" in network else {}
    if not named:
        return dict(network)
    given = dict(network)
    name = str(given.pop("size"))
    if name not in named:
        raise InputError(f"network.size is '{name}', and {model} has no such size: {nearest(name, named)}")
    return {**named[name], **given}


def debug(model: str) -> Any:
    """Return the Settings of ``model`` in the size for tests."""
    return REGISTRY.module(model).DEBUG


def build(model: str, network: Mapping[str, Any], description: Mapping[str, Any]) -> "Network":
    """Build a network to be trained: its weights are drawn from torch's global generator, or read from a file where
    its settings name one."""
    built = _build(model, network, description)
    if load_initial_weights := getattr(REGISTRY.module(model), "load_initial_weights", None):
        load_initial_weights(built, settings(model, network))
    return built


def _build(model: str, network: Mapping[str, Any], description: Mapping[str, Any]) -> "Network":
    refuse_other_kind(model, description["name"], description["kind"])
    return REGISTRY.module(model).build(settings(model, network), description)


def load(run_directory: Path, description: Mapping[str, Any]) -> "Network":
    """Load the network of a finished run with its best weights, on the CPU and in evaluation mode.

    Its ``objective`` (models/objectives), by which it was trained, turns its scores into probabilities.

    ``description``: prepared.json of the data. InputError where the run has not finished, its weights are missing, are
    not those that result.json names or do not fit the data; SourceChanged where the network's code has changed.
    """
    from safetensors.torch import load_file

    from models.objectives import DEFAULT, make_objective

    run = RunFolder(Path(run_directory))
    job = read_object(run.directory / JOB, "model", "network")
    _refuse_other_weights(run)
    network = _build(job["model"], job["network"], description)
    try:
        network.load_state_dict(load_file(run.weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(
            f"{run.weights} does not fit {job['model']} on {description['name']} ({reason}): "
            "give the arrays that it was trained on"
        ) from None
    network.objective = make_objective(job.get("training", {}).get("objective", DEFAULT), description)
    return network.eval()


class SourceChanged(InputError):
    """The code of a network has changed since its weights were trained."""


def source_modules(model: str, network: Mapping[str, Any]) -> list[str]:
    """Return the modules that compute a network: its own and those that its settings name, such as an activation."""
    named = members(settings(model, network))
    if outside.provides(REGISTRY.package, model):
        return [module_name(model), *sorted({f"{package}.{tagged['name']}" for package, tagged in named})]
    return [f"models.{model}", *sorted({f"{package}.{tagged['name']}" for package, tagged in named})]


def network_source(model: str, network: Mapping[str, Any]) -> str:
    """Return the digest of the code that computes a network: all that ``source_modules`` import, without comments.

    result.json keeps it beside the sha256 of the weights; ``load`` compares both.
    """
    return numeric_digest(source_modules(model, network))


def _refuse_other_weights(run: RunFolder) -> None:
    if not run.weights.is_file():
        raise InputError(f"{run.weights} is missing: copy it from where the run was trained, or train it again")
    result = run.require_result()
    for name in ("weights_sha256", "network_source"):
        if name not in result:
            raise InputError(
                f"{run.directory / RESULT} has no '{name}', so its weights cannot be checked: train the run again"
            )
    if sha256_file(run.weights) != result["weights_sha256"]:
        raise InputError(
            f"{run.weights} has changed since training: its sha256 is not the 'weights_sha256' of {RESULT}; "
            f"remove {run.directory} and train it again"
        )
    model, network = run.job["model"], run.job["network"]
    if network_source(model, network) != result["network_source"]:
        before = run.job.get("source", {}).get("files", {})
        here = numeric_files(source_modules(model, network))
        changed = [name for name, digest in here.items() if before and before.get(name) != digest]
        named = changed[0] if changed else f"models/{model}.py or what it imports"
        commit = run.environment.get("git_commit")
        raise SourceChanged(
            f"the code of network '{model}' ({named}) has changed since {run.directory} was trained"
            f"{f' at commit {commit[:12]}' if commit else ''}: train it again, or use the code of that time"
        )
