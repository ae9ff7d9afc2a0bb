"""One job from its file to its result: runs/RUN_KEY/ is written here, result.json last of all."""

import contextlib
import warnings
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import models
from cuda_ext.errors import KernelError
from cuda_ext.library import ReferenceWarning
from models.layers import kernels, parameter_count
from models.layers.betas import learnt_betas
from storage.errors import InputError
from storage.files import read_json, sha256_file, write_json
from storage.locks import file_lock, run_lock
from storage.prepared import open_prepared
from storage.run_folder import ENVIRONMENT, JOB, RESULT, TIMING, WEIGHTS
from training.device import acquire_device, configure, environment, peak_memory
from training.loop import train
from training.processes import ONE, Processes
from training.progress import Progress
from training.settings import Job
from training.state import State


def run(
    job: Job, given: dict[str, Any], progress: Progress, locked: bool = False, processes: Processes = ONE
) -> dict[str, Any]:
    """Train ``job`` (``given`` is its file's content, kept as job.json) and return its result.

    Of two runs of the same job at once, the second waits and finds the first's result. ``locked``: the launcher of this
    process holds the run's lock.
    """
    with contextlib.ExitStack() as held:
        finished = processes.lead(lambda: begin(job, given, held, locked))
        if finished is not None:
            return finished
        prepared = open_prepared(job.prepared)
        # Before training: the file may be edited meanwhile.
        network_source = models.network_source(job.model, job.network)
        configure(job.training)
        with acquire_device(processes, job.runs_per_gpu) as device, warnings.catch_warnings():
            if device.type == "cpu":
                # No kernel runs there, as result.json says.
                warnings.simplefilter("ignore", ReferenceWarning)
            if processes.main:
                write_json(job.run_directory / ENVIRONMENT, environment(device, job.runs_per_gpu))
            try:
                with peak_memory(device) as peak:
                    network, state = train(job, prepared, device, progress, processes)
            except KernelError as error:
                raise InputError(str(error)) from None
            except torch.OutOfMemoryError:
                raise InputError(
                    f"{device} has too little memory for {job.variant}: lower batch_size "
                    f"({job.training.batch_size}) or the size of the network"
                ) from None
        return processes.lead(lambda: finish(job, network, network_source, state, progress.timing() | peak))


def begin(job: Job, given: dict[str, Any], held: contextlib.ExitStack, locked: bool) -> dict[str, Any] | None:
    """Lock the run for ``held``, unless its launcher has, and write job.json; the result where the run is finished."""
    directory = job.run_directory
    try:
        run_lock(directory).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}, the run's folder, cannot be made ({error.strerror})") from None
    if not locked:
        held.enter_context(file_lock(run_lock(directory)))
    if (directory / RESULT).is_file():
        return read_json(directory / RESULT)
    directory.mkdir(exist_ok=True)
    write_json(directory / JOB, given)
    return None


def finish(job: Job, network: nn.Module, network_source: str, state: State, timing: dict[str, float]) -> dict[str, Any]:
    """Write timing.json and result.json, and return the result."""
    write_json(job.run_directory / TIMING, timing)
    result = {
        "run_key": job.run_key,
        "variant": job.variant,
        "seed": job.seed,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "stopped": state.stopped(job.training),
        "validation": state.best_validation(),
        "weights_sha256": sha256_file(job.run_directory / WEIGHTS),
        "network_source": network_source,
        "parameters": parameter_count(network),
        "kernels": kernels(network),
    }
    if betas := learnt_betas(network, load_file(job.run_directory / WEIGHTS)):
        result["betas"] = betas
    write_json(job.run_directory / RESULT, result)
    return result
