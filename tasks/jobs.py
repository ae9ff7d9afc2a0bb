"""Jobs: what one (variant, seed) trains, complete, and the key that names its folder in runs/.

The key is made of everything that the weights can depend on: the resolved parameters, the variant, the seed, the
prepared arrays, the source that the run reaches (read by ``ast``: the model's file and training/, so that a new file
in models/ retrains nothing), torch and its CUDA, the device, and the number of threads. Times, hosts and commits stay
out of it.
"""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import models
from cuda_ext import library
from preprocessing.manifest import Manifest
from preprocessing.settings import settings_for
from storage.errors import InputError
from storage.files import content_key, sha256_file
from storage.prepared import DESCRIPTION
from storage.source import source_digests
from tasks.folders import runs_root
from tasks.parameters import Experiment
from training.settings import Settings as TrainingSettings


@functools.cache
def machine() -> dict[str, Any]:
    """What of this machine the weights depend on: torch, CUDA, and the GPU's name or the CPU's instruction set.

    On a GPU also the kernels: their CUDA sources, or that there is no library of them that fits.
    """
    if not torch.cuda.is_available():
        return {"torch": torch.__version__, "cuda": None, "device": torch.backends.cpu.get_cpu_capability()}
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "kernels": library.kernels(torch.device("cuda", torch.cuda.current_device())),
    }


@functools.cache
def source(model: str) -> dict[str, str]:
    """sha256 of each source file that training ``model`` reaches."""
    return source_digests(["training", "models.feeding", f"models.{model}"])


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
        "source": source(variant.model),
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


def resolved_network(experiment: Experiment, variant_name: str) -> dict[str, Any]:
    """Every setting of a variant's network; InputError says in which experiment a wrong one stands."""
    variant = experiment.variants[variant_name]
    try:
        return asdict(models.settings(variant.model, variant.network))
    except InputError as error:
        raise InputError(f"experiment '{experiment.name}', variant '{variant_name}': {error}") from None


def resolved_training(experiment: Experiment, variant_name: str) -> dict[str, Any]:
    """Every setting of a variant's training; InputError says in which experiment a wrong one stands."""
    try:
        return asdict(TrainingSettings.read(experiment.variants[variant_name].training, "the training settings"))
    except InputError as error:
        raise InputError(f"experiment '{experiment.name}', variant '{variant_name}': {error}") from None


def check(experiment: Experiment) -> None:
    """Refuse an experiment with a wrong model, or a wrong setting of any kind, before anything is started."""
    known = Manifest.load().datasets
    for data, settings in experiment.preprocessing.items():
        # A published data set that is not in data/ yet says of what kind it is when it is ingested.
        if data in known:
            settings_for(known[data].kind, data, settings)
    for name in experiment.variants:
        resolved_network(experiment, name)
        resolved_training(experiment, name)
