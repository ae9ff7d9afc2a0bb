"""The training loop: early stopping on the validation split, one checkpoint per epoch. The test split is never read.

Everything random in an epoch is drawn from (seed, epoch), so a resumed run ends with the same weights as an
uninterrupted one.
"""

from collections import deque
from functools import partial
from typing import Any

import numpy as np
import torch

import models
from cuda_ext import library
from models.layers import uses_kernels
from models.layers.initialisation import init_from_data
from models.objectives import make_objective
from reread.batches.batches import Batches
from reread.batches.collation import reads_ragged
from reread.batches.inference import Predictor
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared
from reread.training.average import Average
from reread.training.checkpoint import Checkpoint, Writer
from reread.training.epoch_metrics import EpochMetrics, refuse_non_finite
from reread.training.lookahead import Lookahead
from reread.training.optimisers import make_optimiser
from reread.training.processes import SINGLE_PROCESS, Processes, with_shared_statistics
from reread.training.progress import Progress
from reread.training.schedules import Schedule
from reread.training.settings import TrainingJob
from reread.training.state import State
from reread.training.step import Step
from reread.training.validation import validate


def train(
    job: TrainingJob,
    prepared: Prepared,
    device: torch.device,
    progress: Progress,
    processes: Processes = SINGLE_PROCESS,
) -> tuple[torch.nn.Module, State]:
    """Train to the end, resuming from the last checkpoint if there is one; return the network after its last epoch and
    the state."""
    settings = job.training
    seed_epoch(job.seed, epoch=0)
    network: torch.nn.Module = models.build(job.model, job.network, prepared.description)
    network.to(device)
    init_from_data(network, prepared)
    if settings.strict_kernels:
        refuse_references(network, device)
    # Before the norms are exchanged: a network's parameter groups may depend on their class.
    optimiser = make_optimiser(network, settings)
    network = with_shared_statistics(network, processes)
    schedule = Schedule(settings.schedule, settings.learning_rate, settings.max_epochs)
    objective = make_objective(settings.objective, prepared.description, prepared.labels[prepared.rows("train")])
    step = Step(network, objective, optimiser, settings, device, processes)
    average = Average(network, settings.ema_decay)
    # On a GPU, training continues while a checkpoint is written.
    writer = Writer(background=device.type == "cuda")
    checkpoint = Checkpoint(job.run_directory, network, average, optimiser, step.scaler, processes.main, writer)
    state = checkpoint.resume()
    rows, ragged = prepared.rows("train"), reads_ragged(network, device)
    batches = Batches(
        prepared,
        rows,
        device,
        settings.batch_size,
        job.seed,
        ragged=ragged,
        augmentation=settings.augmentation,
        rank=processes.rank,
        world_size=processes.world_size,
    )
    lookahead = Lookahead(network, settings.lookahead_decay, len(batches), settings.max_epochs)
    half = step.half if settings.amp_validation else None
    predictor = Predictor(prepared, prepared.rows("validation"), device, ragged, None, half, settings.cuda_graphs)
    progress.started(state.epoch, str(device))

    with writer.finishing():
        while not state.stopped(settings):
            epoch = state.epoch + 1
            seed_epoch(job.seed, epoch, processes.rank)
            metrics = EpochMetrics(epoch, len(batches), settings.learning_rate, progress)
            network.train()
            recent: deque[tuple[torch.Tensor, ...]] = deque(maxlen=average.batches)
            for number, batch in enumerate(batches.epoch(epoch)):
                done = (epoch - 1) * len(batches) + number
                rate = schedule(done, len(batches))
                metrics.add(batch.global_rows, step(batch.inputs, batch.target, rate, batch.rows / batch.global_rows))
                lookahead.update(done)
                average.update(done)
                recent.append(batch.inputs)
            training = metrics.row()
            average.take_buffers(recent)
            validation = processes.run_on_rank_zero(partial(validate, average.network, objective, prepared, predictor))
            refuse_non_finite(validation.loss, f"validation loss after epoch {epoch}", settings.learning_rate)
            row: dict[str, Any] = {
                "epoch": epoch,
                "learning_rate": rate,
                **training,
                "validation_loss": validation.loss,
                "validation_accuracy": validation.accuracy,
                "validation_score": validation.score,
                "validation_comparable_loss": validation.comparable_loss,
            }
            state.record(row, validation)
            if processes.main:
                checkpoint.save(state, partial(progress.epoch, row, len(batches)))
    return network, state


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed torch's generators, from which weights (epoch 0) and dropout are drawn, by (seed, epoch, rank)."""
    entropy = [seed, epoch, rank] if rank else [seed, epoch]
    torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]))


def refuse_references(network: torch.nn.Module, device: torch.device) -> None:
    """Raise InputError where ``network`` would run references on a GPU because the library does not fit."""
    reason = library.unfit(device) if device.type == "cuda" and uses_kernels(network) else None
    if reason:
        raise InputError(
            f"strict_kernels is true, and the kernels cannot run: {reason}, or set strict_kernels to false"
        )
