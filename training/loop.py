"""The training loop: early stopping on the validation split, a checkpoint an epoch. The test split is never read.

Everything random in an epoch is drawn from (seed, epoch), so a run that was killed and resumed ends with the same
weights as one that was not.
"""

import math

import numpy as np
import torch

import models
from models import feeding
from storage.errors import InputError
from storage.files import write_text
from storage.prepared import Prepared
from training import data_order
from training.checkpoint import Checkpoint
from training.device import mixed_precision
from training.optimiser import learning_rate, make_optimiser
from training.progress import Progress
from training.settings import Job
from training.state import State
from training.validation import correct, validate


def train(job: Job, prepared: Prepared, device: torch.device, progress: Progress) -> tuple[torch.nn.Module, State]:
    """Train to the end, from the last checkpoint if there is one: the network as it last was, and the final state."""
    settings = job.training
    draw_from(job.seed, epoch=0)
    network = models.build(job.model, job.network, prepared.description).to(device)
    optimiser = make_optimiser(network, settings)
    half = mixed_precision(settings, device)
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
    checkpoint = Checkpoint(job.run_directory, network, optimiser, scaler)
    state = checkpoint.resume()
    rows = prepared.rows("train")
    sizes = feeding.sizes(prepared, rows)
    progress.started(state.epoch, str(device))

    while not state.stopped(settings):
        epoch = state.epoch + 1
        draw_from(job.seed, epoch)
        batches = data_order.batches(rows, sizes, settings.batch_size, job.seed, epoch)
        epoch_loss, epoch_correct, norms = 0.0, 0.0, []
        network.train()
        for step, batch in enumerate(batches):
            rate = learning_rate((epoch - 1) * len(batches) + step, len(batches), settings)
            for group in optimiser.param_groups:
                group["lr"] = rate
            target = feeding.labels(prepared, batch, device)
            with torch.autocast(device.type, half, enabled=half is not None):
                logits = network(*feeding.inputs(prepared, batch, device))
            loss = feeding.loss(logits.float(), target, settings.label_smoothing)
            refuse_non_finite(loss.item(), f"training loss at epoch {epoch}, step {step + 1}", settings.learning_rate)
            optimiser.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
            norms.append(torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm or math.inf).item())
            scaler.step(optimiser)
            scaler.update()
            epoch_loss += loss.item() * len(batch)
            epoch_correct += correct(logits, target).double().mean().item() * len(batch)
            progress.step(epoch, step + 1, len(batches), len(batch), loss.item())
        validation = validate(network, prepared)
        refuse_non_finite(validation.loss, f"validation loss after epoch {epoch}", settings.learning_rate)
        row = {
            "epoch": epoch,
            "learning_rate": rate,
            "training_loss": epoch_loss / len(rows),
            "training_accuracy": epoch_correct / len(rows),
            "validation_loss": validation.loss,
            "validation_accuracy": validation.accuracy,
            "validation_score": validation.score,
            # A step whose half-precision gradient overflowed is passed over by the scaler, and here.
            "gradient_norm": float(np.mean([norm for norm in norms if math.isfinite(norm)] or [0.0])),
        }
        state.record(row, validation)
        checkpoint.save(state)
        write_text(job.run_directory / "history.csv", state.history_csv())
        progress.epoch(row, len(batches))
    return network, state


def draw_from(seed: int, epoch: int) -> None:
    """Seed torch's generators, of which weights (epoch 0) and dropout are drawn, from (seed, epoch)."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]))


def refuse_non_finite(loss: float, where: str, rate: float) -> None:
    if not math.isfinite(loss):
        raise InputError(f"{where} is {loss}: lower learning_rate ({rate:g}) or clip_norm, then run again")
