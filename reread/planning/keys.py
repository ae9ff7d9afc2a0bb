"""Keys: what decides the weights of a run, and the name that is made of it.

A key is made of the model, its settings and those of training that differ from their defaults, the seed, the prepared
arrays, the machine, and a digest of the source that computes: training's loop, the model, and the members of
registries that the settings name. A network of another package adds the version of the package, and all its settings:
nothing here holds their defaults. On a GPU that runs the compiled kernels it has the digests of those that this code
calls. What a variant is called, and the wording, typing and place of code, change no key.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import models
from reread import kinds
from reread.planning.environment import Environment, variable
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import content_key, read_json
from reread.storage.numeric import numeric_source, package_version
from reread.storage.settings import members, to_json, without_defaults
from reread.storage.source import ROOT

# The loop, how arrays are opened, how the process computes, and which weights are kept.
ROOTS = (
    "reread.training.loop",
    "reread.storage.prepared:open_prepared",
    "reread.training.device:configure",
    "reread.training.checkpoint:publish_best_weights",
)
# Entries of prepared.json that name or describe the arrays and change nothing that is computed.
NOT_NUMERIC_ENTRIES = ("schema", "name", "settings", "data_version", "cut", "arrays")
# Arrays that no network reads: where rows come from, and where classes are to be seen.
NOT_READ = ("raw_indices", "groups", "boxes")
MACHINE_HINT = "write it on the machine that trains, by `python -m reread.training.machine > machine.json`"
# Of cuda_ext.library.implementation.
IMPLEMENTATION = re.compile(r"extension(; .*)?|reference")
MACHINE_NAMES = ("torch", "cuda", "cudnn", "numpy", "device", "kernels")


def without_code(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a run's key that are not of the code."""
    return {name: value for name, value in parts.items() if name not in ("source", "kernels")}


def key_parts(
    model: str, network: Any, training: Any, seed: int, data: str, machine: Mapping[str, Any], source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what decides the weights; their ``content_key`` is the run's.

    network, training: the settings' dataclasses. data: of ``data_digest``. machine: of ``job_machine``. source: of
    ``source``.
    """
    kernels = {"kernels": source["kernels"]} if runs_kernels(machine) else {}
    outside = models.is_outside(model)
    version = package_version(models.module_name(model).split(".")[0]) if outside else None
    return {
        **kernels,
        **({"version": version} if version else {}),
        "model": model,
        "network": to_json(network) if outside else without_defaults(network),
        "training": without_defaults(training),
        "seed": seed,
        "data": data,
        "machine": dict(machine),
        "source": source["digest"],
    }


def runs_kernels(machine: Mapping[str, Any]) -> bool:
    """Return whether a machine runs the compiled kernels, and not their references."""
    return str(machine.get("kernels")).startswith("extension")


def source(model: str, kind: str | None, *settings: Any, root: Path = ROOT) -> dict[str, Any]:
    """Return the modules that compute a run of ``model`` on a kind of data, and the digest of all that they reach.

    settings: those of the network and of training; the members of registries that they name are of these modules.
    ``files`` has the digest of each file by its path, so that a difference can be named; the paths are in no key.
    ``kernels`` has the digest of the CUDA source of each folder of kernels that the modules call.
    """
    named = {f"{package}.{tagged['name']}" for section in settings for package, tagged in members(section)}
    read = [f"reread.kinds.{kind}:KIND", kinds.module_of(kinds.kind(kind).collator)] if kind else []
    modules = (*ROOTS, models.module_name(model), *read, *sorted(named))
    return source_of(modules, root)


def source_of(modules: Iterable[str], root: Path = ROOT) -> dict[str, Any]:
    """Return ``source`` of named modules; ValueError where there is no such module."""
    modules = list(modules)
    source = numeric_source(modules, root)
    return {"modules": modules, "digest": source.digest, "files": dict(source.files), "kernels": dict(source.kernels)}


def data_digest(description: Mapping[str, Any]) -> str:
    """Return the key of prepared arrays, by what a network reads of them: ``description`` is their prepared.json."""
    read = {name: value for name, value in description.items() if name not in NOT_NUMERIC_ENTRIES}
    arrays = {name: array["sha256"] for name, array in description["arrays"].items() if name not in NOT_READ}
    return content_key({**read, "arrays": arrays})


def job_machine(machine: Mapping[str, Any], training: Any, world_size: int) -> dict[str, Any]:
    """Return what of the machine, and of how a run uses it, its weights depend on."""
    return {**machine, "threads": training.threads, "world_size": world_size}


def this_machine() -> dict[str, Any]:
    """Return what of this machine weights depend on (torch is imported for it)."""
    from reread.training.machine import machine

    return machine()


def target_machine(environment: Environment) -> dict[str, Any]:
    """Return the machine that jobs are made for: this one, or the one in the file that the environment names."""
    return read_machine(environment.machine) if environment.machine else this_machine()


def read_machine(path: Path) -> dict[str, Any]:
    """Read what ``python -m reread.training.machine`` wrote to ``path``; InputError where it is something else."""
    where = f"{variable('machine')}={path}"
    try:
        described = read_json(path)
    except InputError as error:
        raise InputError(f"{where}: {error}; {MACHINE_HINT}") from None
    if not isinstance(described, dict):
        raise InputError(f"{where} holds no mapping: {MACHINE_HINT}")
    refuse_unknown(described, MACHINE_NAMES, where)
    on_gpu = described.get("cuda") is not None
    for name in MACHINE_NAMES:
        wanted = str if on_gpu or name in ("torch", "numpy", "device") else type(None)
        if not isinstance(described.get(name), wanted):
            raise InputError(f"{where}: '{name}' is {described.get(name)!r}: {MACHINE_HINT}")
    if on_gpu and not IMPLEMENTATION.fullmatch(described["kernels"]):
        raise InputError(f"{where}: 'kernels' is {described['kernels']!r}: {MACHINE_HINT}")
    return described
