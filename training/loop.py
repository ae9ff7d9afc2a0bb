"""The training loop: early stopping on the validation split, a checkpoint an epoch. The test split is never read.

Everything random in an epoch is drawn from (seed, epoch), so a run that was killed and resumed ends with the same
weights as one that was not.
"""

import math

import numpy as np
import torch

import models
from batches.batches import Batches
from batches.collation import reads_ragged
from batches.inference import Predictor
from cuda_ext import library
from models.layers import uses_kernels
from models.layers.embedding import begin_with_prepared_vectors
from models.objectives import make_objective
from storage.errors import InputError
from storage.files import write_text
from storage.prepared import Prepared
from training.average import Average
from training.checkpoint import Checkpoint
from training.optimisers import make_optimiser
from training.progress import Progress
from training.schedules import Schedule
from training.settings import Job, Settings
from training.state import State
from training.step import Outcome, Step
from training.validation import validate


def train(job: Job, prepared: Prepared, device: torch.device, progress: Progress) -> tuple[torch.nn.Module, State]:
    """Train to the end, from the last checkpoint if there is one: the network as it last was, and the final state."""
    settings = job.training
    draw_from(job.seed, epoch=0)
    network = models.build(job.model, job.network, prepared.description)
    begin_with_prepared_vectors(network, prepared)
    network.to(device)
    if settings.strict_kernels:
        refuse_references(network, device)
    optimiser = make_optimiser(network, settings)
    schedule = Schedule(settings.schedule, settings.learning_rate, settings.max_epochs)
    objective = make_objective(settings.objective, prepared.description, prepared.labels[prepared.rows("train")])
    step = Step(network, objective, optimiser, settings, device)
    average = Average(network, settings.ema_decay)
    checkpoint = Checkpoint(job.run_directory, network, average, optimiser, step.scaler)
    state = checkpoint.resume()
    rows, ragged = prepared.rows("train"), reads_ragged(network, device)
    batches = Batches(
        prepared, rows, device, settings.batch_size, job.seed, ragged=ragged, augmentation=settings.augmentation
    )
    predictor = Predictor(prepared, prepared.rows("validation"), device, ragged)
    progress.started(state.epoch, str(device))

    while not state.stopped(settings):
        epoch = state.epoch + 1
        draw_from(job.seed, epoch)
        told = EpochSoFar(epoch, len(batches), settings, progress)
        network.train()
        for number, batch in enumerate(batches.epoch(epoch)):
            done = (epoch - 1) * len(batches) + number
            rate = schedule(done, len(batches))
            told.step(batch.rows, step(batch.inputs, batch.target, rate))
            average.update(done)
        told.read()
        average.take_buffers()
        validation = validate(average.network, objective, prepared, predictor)
        refuse_non_finite(validation.loss, f"validation loss after epoch {epoch}", settings.learning_rate)
        row = {
            "epoch": epoch,
            "learning_rate": rate,
            "training_loss": told.loss / len(rows),
            "training_accuracy": told.correct / len(rows),
            "validation_loss": validation.loss,
            "validation_accuracy": validation.accuracy,
            "validation_score": validation.score,
            # A step whose half-precision gradient overflowed is passed over by the scaler, and here.
            "gradient_norm": float(np.mean([norm for norm in told.norms if math.isfinite(norm)] or [0.0])),
        }
        state.record(row, validation)
        # Before the checkpoint, so that no run is taken up after an epoch that history lacks.
        write_text(job.run_directory / "history.csv", state.history_csv())
        checkpoint.save(state)
        progress.epoch(row, len(batches))
    return network, state


class EpochSoFar:
    """Sums over an epoch's steps, each read while the next one runs, so that a GPU does not wait to be asked."""

    def __init__(self, epoch: int, steps: int, settings: Settings, progress: Progress) -> None:
        self.epoch = epoch
        self.steps = steps
        self.settings = settings
        self.progress = progress
        self.loss = self.correct = 0.0
        self.norms: list[float] = []
        self._unread: tuple[int, Outcome] | None = None

    def step(self, samples: int, outcome: Outcome) -> None:
        """A step on ``samples`` rows is under way."""
        self.read()
        self._unread = samples, outcome

    def read(self) -> None:
        """Wait for the last step and take it in; InputError if its loss is not finite."""
        if self._unread is None:
            return
        samples, outcome = self._unread
        self._unread = None
        loss = outcome.loss.item()
        self.norms.append(outcome.norm.item())
        where = f"training loss at epoch {self.epoch}, step {len(self.norms)}"
        refuse_non_finite(loss, where, self.settings.learning_rate)
        self.loss += loss * samples
        self.correct += outcome.correct.item() * samples
        self.progress.step(self.epoch, len(self.norms), self.steps, samples, loss)


def draw_from(seed: int, epoch: int) -> None:
    """Seed torch's generators, of which weights (epoch 0) and dropout are drawn, from (seed, epoch)."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]))


def refuse_references(network: torch.nn.Module, device: torch.device) -> None:
    """InputError where ``network`` would run references on a GPU for want of the library."""
    reason = library.unfit(device) if device.type == "cuda" and uses_kernels(network) else None
    if reason:
        raise InputError(
            f"strict_kernels is true, and the kernels cannot run: {reason}, or set strict_kernels to false"
        )


def refuse_non_finite(loss: float, where: str, rate: float) -> None:
    if not math.isfinite(loss):
        raise InputError(f"{where} is {loss}: lower learning_rate ({rate:g}) or max_grad_norm, then run again")
