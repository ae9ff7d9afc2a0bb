"""One job from its file to its result: writes runs/RUN_KEY/, result.json last."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import models
from cuda_ext.errors import KernelError
from cuda_ext.library import ReferenceWarning
from models.layers import kernels, parameter_count
from models.layers.betas import learnt_betas
from reread.storage.errors import InputError, OutOfMemory
from reread.storage.files import sha256_file, write_json
from reread.storage.locks import run_lock, run_locked
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import ENVIRONMENT, JOB, RESULT, TIMING, WEIGHTS, RunFolder, write_result
from reread.training.checkpoint import checkpoints, publish_best_weights
from reread.training.device import acquire_device, configure, environment, peak_memory
from reread.training.loop import train
from reread.training.network_check import check_network
from reread.training.processes import SINGLE_PROCESS, Processes
from reread.training.progress import Progress
from reread.training.settings import TrainingJob
from reread.training.state import State


def run(
    job: TrainingJob,
    given: dict[str, Any],
    progress: Progress,
    locked: bool = False,
    processes: Processes = SINGLE_PROCESS,
    wait: bool = True,
) -> dict[str, Any]:
    """Train ``job`` (``given`` is its file's content, kept as job.json) and return its result.

    Of two processes with the same job, the second waits and reuses the first's result; unless ``wait`` it ends with an
    InputError. ``locked``: the launcher of this process holds the run's lock.
    """
    with contextlib.ExitStack() as held:
        finished = processes.run_on_rank_zero(lambda: begin(job, given, held, locked, wait))
        if finished is not None:
            return finished
        prepared = open_prepared(job.prepared)
        # Read before training: the file may be edited in the meantime.
        network_source = models.network_source(job.model, job.network)
        with memory_advice(job, "this machine"):
            processes.run_on_rank_zero(lambda: check_network(job.model, job.network, job.training.objective, prepared))
        configure(job.training)
        with acquire_device(processes, job.runs_per_gpu) as device, warnings.catch_warnings():
            if device.type == "cpu":
                # No kernel runs on a CPU, and result.json records that.
                warnings.simplefilter("ignore", ReferenceWarning)
            if processes.main:
                write_json(job.run_directory / ENVIRONMENT, environment(device, job.runs_per_gpu))
            try:
                with memory_advice(job, device), peak_memory(device) as peak:
                    network, state = train(job, prepared, device, progress, processes)
            except KernelError as error:
                raise InputError(str(error)) from None
        return processes.run_on_rank_zero(lambda: finish(job, network, network_source, state, progress.timing() | peak))


def begin(
    job: TrainingJob, given: dict[str, Any], held: contextlib.ExitStack, locked: bool, wait: bool = True
) -> dict[str, Any] | None:
    """Acquire the run's lock for ``held``, unless its launcher holds it, and write job.json; return the result of a
    finished run.

    A finished run with a damaged file is restored from its checkpoints; InputError where it has none.
    """
    directory = job.run_directory
    try:
        run_lock(directory).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}, the run's folder, cannot be made ({error.strerror})") from None
    if not locked:
        held.enter_context(run_locked(directory, wait, warn))
    finished = RunFolder(directory)
    if finished.finished:
        damage = finished.damage()
        if damage is None:
            return finished.result
        # Weights that are trained again on a GPU need not be those that were evaluated.
        if not checkpoints(directory):
            raise InputError(f"{damage}, and no checkpoint of the run is left: remove {directory} and run again")
        warn(f"warning: {damage}: the run is restored from its last checkpoint")
        (directory / RESULT).unlink()
    directory.mkdir(exist_ok=True)
    write_json(directory / JOB, given)
    return None


@contextlib.contextmanager
def memory_advice(job: TrainingJob, where: object) -> Iterator[None]:
    """Raise OutOfMemory with advice where memory runs out inside the block: torch's, of GPU or CPU, or numpy's."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # torch has no class for the CPU's.
        of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        if not of_memory:
            raise
        raise OutOfMemory(
            f"{where} has too little memory for {job.variant}: lower batch_size ({job.training.batch_size}) or the "
            "size of the network, then run again"
        ) from None


def finish(
    job: TrainingJob, network: nn.Module, network_source: str, state: State, timing: dict[str, float]
) -> dict[str, Any]:
    """Write best.safetensors, timing.json, digests.json and result.json, and return the result."""
    publish_best_weights(job.run_directory)
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
    write_result(job.run_directory, result)
    return result


def warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
