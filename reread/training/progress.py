"""The progress of a run: a live line on a terminal, otherwise one line per epoch, or JSON events.

An event is one JSON object per line, flushed, in a separate stream for the program that started the run:

    {"event": "started", "run_key", "variant", "seed", "epoch", "max_epochs", "device"}
    {"event": "progress", "variant", "seed", "epoch", "step", "steps", "loss", "samples_per_second", "seconds_left"}
    {"event": "epoch", "variant", "seed", then the columns of history.csv, "samples_per_second", "seconds_left"}
    {"event": "finished", "run_key", "variant", "seed", "result": {...}}
    {"event": "failed", "run_key", "variant", "seed", "message", "code"}

``seconds_left`` is counted to the last epoch allowed; patience may end the run earlier. The line of each epoch goes to
log.txt as well.
"""

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from reread.storage.errors import printable
from reread.storage.run_folder import LOG
from reread.training.settings import TrainingJob

INTERVAL = 0.5  # seconds between two live lines or progress events


class Progress:
    """Reports the progress of one job."""

    def __init__(self, job: TrainingJob, events: TextIO | None, quiet: bool = False) -> None:
        """quiet: show and log nothing; so for all but rank 0 of several processes."""
        self.job = job
        self.quiet = quiet
        self.events = None if quiet else events
        self.live = not events and not quiet and sys.stdout.isatty()
        self.log: Path = job.run_directory / LOG
        # The thread that writes a checkpoint announces its epoch.
        self._printing = threading.Lock()
        self.began = self.shown = time.perf_counter()
        self.samples = 0
        self.steps = 0

    def started(self, epoch: int, device: str) -> None:
        """Report that training begins after epoch ``epoch``: 0, or the last complete one of a run that resumes."""
        self.began = self.shown = time.perf_counter()
        maximum = self.job.training.max_epochs
        self._event("started", run_key=self.job.run_key, epoch=epoch, max_epochs=maximum, device=device)
        if epoch:
            self._line(f"{self._name()}: resumed after epoch {epoch}")

    def step(self, samples: int) -> bool:
        """Count a step on ``samples`` rows; return whether it is time to read its loss and ``show`` it."""
        self.samples += samples
        self.steps += 1
        return not self.quiet and time.perf_counter() - self.shown >= INTERVAL

    def show(self, epoch: int, step: int, steps: int, loss: float) -> None:
        """Show the loss of step ``step`` (from 1) of ``steps`` of an epoch."""
        self.shown = time.perf_counter()
        pace = self._pace((self.job.training.max_epochs - epoch + 1) * steps - step)
        self._event("progress", epoch=epoch, step=step, steps=steps, loss=round(loss, 6), **pace)
        if self.live:
            line = f"{self._name()}  epoch {epoch}, step {step}/{steps}  loss {loss:.4f}  {_spoken(pace)}"
            self._print(f"\r{line}\033[K")

    def epoch(self, row: dict[str, float], steps: int) -> None:
        """Report a finished epoch: its line of the history."""
        pace = self._pace((self.job.training.max_epochs - int(row["epoch"])) * steps)
        self._event("epoch", **row, **pace)
        self._line(
            f"{self._name()}  epoch {row['epoch']:>3}  loss {row['training_loss']:.4f}  "
            f"validation loss {row['validation_loss']:.4f}, score {row['validation_score']:.4f}  {_spoken(pace)}"
        )

    def finished(self, result: dict[str, Any]) -> None:
        self._event("finished", run_key=self.job.run_key, result=result)
        self._show(
            f"{self._name()}: stopped by {result['stopped']} after {result['epochs']} epochs, "
            f"best {result['best_epoch']} with validation score {result['validation']['score']:.4f}"
        )

    def failed(self, message: str, code: int) -> None:
        """code: the exit code of ``python -m reread.training``."""
        self._event("failed", run_key=self.job.run_key, message=message, code=code)
        if self.live:
            self._print("\n")
        self._log(f"{self._name()}: failed: {message}")

    def timing(self) -> dict[str, float]:
        """Return the seconds and the pace of this process, for timing.json."""
        seconds = time.perf_counter() - self.began
        return {"seconds": seconds, "samples": self.samples, "samples_per_second": self.samples / seconds}

    def _pace(self, steps_left: int) -> dict[str, float]:
        seconds = max(time.perf_counter() - self.began, 1e-9)
        left = steps_left * seconds / max(self.steps, 1)
        return {"samples_per_second": round(self.samples / seconds, 1), "seconds_left": round(left, 1)}

    def _name(self) -> str:
        return printable(f"{self.job.variant} seed {self.job.seed}")

    def _event(self, event: str, **values: Any) -> None:
        if self.events:
            named = {"event": event, "variant": self.job.variant, "seed": self.job.seed} | values
            self._print(json.dumps(named) + "\n", self.events)

    def _line(self, text: str) -> None:
        self._show(text)
        self._log(text)

    def _show(self, text: str) -> None:
        if not self.events and not self.quiet:
            self._print(f"\r{text}\033[K\n" if self.live else f"{text}\n")

    def _print(self, text: str, file: TextIO | None = None) -> None:
        with self._printing:
            print(text, end="", file=file, flush=True)

    def _log(self, text: str) -> None:
        if self.quiet:
            return
        # A disk that is full or may not be written is refused where a checkpoint is.
        with contextlib.suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(text + "\n")


def _spoken(pace: dict[str, float]) -> str:
    return f"{pace['samples_per_second']:.0f} samples/s  at most {pace['seconds_left']:.0f} s left"
