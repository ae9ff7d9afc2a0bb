"""One job from its file to its result: runs/RUN_KEY/ is written here, result.json last of all."""

import warnings
from typing import Any

import torch

from cuda_ext.library import ReferenceWarning
from models.layers import kernels, parameter_count
from storage.errors import InputError
from storage.files import file_lock, read_json, sha256_file, write_json
from storage.prepared import open_prepared
from training.checkpoint import BEST
from training.device import claimed, configure, environment
from training.loop import train
from training.progress import Progress
from training.settings import Job


def run(job: Job, given: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Train ``job`` (``given`` is its file's content, kept as job.json) and return its result.

    Two processes with the same job: the second waits, and finds it finished.
    """
    directory = job.run_directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}, where the run is to be written, cannot be made ({error.strerror})") from None
    with file_lock(directory / ".lock"):
        if (directory / "result.json").is_file():
            return read_json(directory / "result.json")
        prepared = open_prepared(job.prepared)
        write_json(directory / "job.json", given)
        configure(job.training)
        with claimed() as device, warnings.catch_warnings():
            if device.type == "cpu":
                # No kernel runs there, as result.json says.
                warnings.simplefilter("ignore", ReferenceWarning)
            write_json(directory / "environment.json", environment(device))
            try:
                network, state = train(job, prepared, device, progress)
            except torch.OutOfMemoryError:
                raise InputError(
                    f"{device} has too little memory for {job.variant}: lower batch_size "
                    f"({job.training.batch_size}) or the size of the network"
                ) from None
        write_json(directory / "timing.json", progress.timing())
        result = {
            "run_key": job.run_key,
            "variant": job.variant,
            "seed": job.seed,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "stopped": state.stopped(job.training),
            "validation": state.best_validation(),
            "weights_sha256": sha256_file(directory / BEST),
            "parameters": parameter_count(network),
            "kernels": kernels(network),
        }
        write_json(directory / "result.json", result)
        return result
