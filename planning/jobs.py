"""Jobs: what one (variant, seed) trains, complete, and the key that names its folder in runs/.

The key is made of everything that the weights can depend on: the resolved parameters, the variant, the seed, the
prepared arrays, the source that the run reaches (read by ``ast``: the model's file and training/, so that a new file
in models/ retrains nothing), torch and its CUDA, the device, and the number of threads. Times, hosts and commits stay
out of it.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kinds
import models
import training.machine
from models.layers.embedding import refuse_missing_vectors
from planning.experiment import Experiment, networks
from planning.folders import runs_root
from preprocessing.manifest import Manifest
from preprocessing.settings import settings_for
from preprocessing.workers import choice
from storage.errors import InputError, refuse_unknown
from storage.files import content_key, read_json, sha256_file
from storage.prepared import DESCRIPTION
from storage.settings import members
from storage.source import source_digests
from training.device import runs_a_gpu
from training.settings import Settings as TrainingSettings


@functools.cache
def machine() -> dict[str, Any]:
    """What of the machine that trains the weights depend on: this one, or the one in the file REREAD_MACHINE.

    The file is what ``python -m training.machine`` printed there; InputError where it is not.
    """
    given = os.environ.get("REREAD_MACHINE")
    return read_machine(Path(given)) if given else training.machine.machine()


def elsewhere() -> bool:
    """Whether jobs are made for another machine than this: then none is trained here."""
    return machine() != training.machine.machine()


def read_machine(path: Path) -> dict[str, Any]:
    """The mapping that ``python -m training.machine`` wrote to ``path``."""
    where = f"REREAD_MACHINE={path}"
    hint = "write it on the machine that trains, by `python -m training.machine > machine.json`"
    try:
        found = read_json(path)
    except InputError as error:
        raise InputError(f"{where}: {error}; {hint}") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("torch", "device")):
        raise InputError(f"{where} does not name torch and device: {hint}")
    refuse_unknown(found, ("torch", "cuda", "device", "kernels"), where)
    of_a_gpu = all(isinstance(found.get(name), str) for name in ("cuda", "kernels"))
    if not of_a_gpu and (found.get("cuda", "") is not None or "kernels" in found):
        raise InputError(f"{where} has cuda and kernels neither of a GPU (both text) nor of a CPU (null, none): {hint}")
    return found


def source(model: str, training: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of each source file that training ``model`` with these settings reaches."""
    chosen = members(TrainingSettings.read(training, "the training settings"))
    return _source(f"models.{model}", *(f"{package}.{tagged['name']}" for package, tagged in chosen))


@functools.cache
def _source(*modules: str) -> dict[str, str]:
    return source_digests(["training", "batches", *modules])


def make_job(experiment: Experiment, variant_name: str, seed: int, prepared_directory: Path) -> dict[str, Any]:
    """The job of one (variant, seed), with every setting filled in and checked; InputError names a wrong one."""
    variant = experiment.variants[variant_name]
    job = {
        "variant": variant.name,
        "model": variant.model,
        "data": variant.data,
        "seed": seed,
        "network": resolved_network(experiment, variant_name),
        "training": resolved_training(experiment, variant_name),
    }
    determined_by = {
        **job,
        # It holds the sha256 of each array, and so stands for them.
        "prepared_sha256": sha256_file(prepared_directory / DESCRIPTION),
        "source": source(variant.model, job["training"]),
        "machine": machine(),
    }
    run_key = content_key(determined_by)
    return {
        **determined_by,
        "experiment": experiment.name,
        "prepared": str(prepared_directory),
        "run_key": run_key,
        "run_directory": str(runs_root() / run_key),
    }


@contextlib.contextmanager
def naming(experiment: Experiment, variant_name: str) -> Iterator[None]:
    """An InputError of what is done in it begins with where it stands."""
    try:
        yield
    except InputError as error:
        raise InputError(f"experiment '{experiment.name}', variant '{variant_name}': {error}") from None


def resolved_network(experiment: Experiment, variant_name: str) -> dict[str, Any]:
    """Every setting of a variant's network; InputError says in which experiment a wrong one stands."""
    variant = experiment.variants[variant_name]
    with naming(experiment, variant_name):
        return asdict(models.settings(variant.model, variant.network))


def resolved_training(experiment: Experiment, variant_name: str) -> dict[str, Any]:
    """Every setting of a variant's training; InputError says in which experiment a wrong one stands."""
    with naming(experiment, variant_name):
        return asdict(TrainingSettings.read(experiment.variants[variant_name].training, "the training settings"))


def check(experiment: Experiment) -> None:
    """Refuse an experiment with a wrong model, setting or pair, or with a model and data that do not fit, before
    anything is started.

    A published data set that is not in data/ yet says of what kind it is when it is ingested.
    """
    from evaluation.metrics import metric_names  # slow to import

    # What the environment asks of the machine, before anything is started by it.
    runs_a_gpu()
    choice()
    known = Manifest.load().datasets
    for data, settings in experiment.preprocessing.items():
        if data in known:
            settings_for(known[data].kind, data, settings)
    for name, variant in experiment.variants.items():
        network = resolved_network(experiment, name)
        resolved_training(experiment, name)
        data = variant.data
        prepared_vectors = bool(experiment.preprocessing[data].get("word_vectors"))
        with naming(experiment, name):
            if data in known:
                models.refuse_other_kind(variant.model, data, known[data].kind)
            refuse_missing_vectors(network.get("word_vectors", "random"), data, prepared_vectors)
    for pair in experiment.pairs:
        data = next(experiment.variants[name].data for name in networks(pair))
        if data in known:
            there = (*experiment.variants, *(baseline.name for baseline in kinds.kind(known[data].kind).baselines))
            refuse_unknown(
                (pair["better"], pair["worse"]),
                there,
                f"experiment '{experiment.name}': pair '{pair['name']}' on {data}",
            )
            refuse_unknown(
                [pair["metric"]],
                metric_names(known[data].task),
                f"experiment '{experiment.name}': the metric of pair '{pair['name']}' on {data}",
            )


def unfinished(experiment: Experiment, prepared: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The jobs of the runs that are not trained; ``prepared``: the prepared folder of each data set."""
    for variant in experiment.variants.values():
        for seed in experiment.seeds:
            job = make_job(experiment, variant.name, seed, Path(prepared[variant.data]))
            if not (Path(job["run_directory"]) / "result.json").is_file():
                yield job
