"""Progress of training: a live table on a terminal, otherwise one line per epoch, and a bar in Prefect."""

import contextlib
import sys
import threading
import time
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_run_logger
from rich.console import Console
from rich.live import Live
from rich.table import Table

from storage.errors import BREAKS, printable
from tasks import AT_TERMINAL

ARTIFACT_SECONDS = 2.0


class Board:
    """The runs that train now, one line each, redrawn in place; shared by the threads of one process."""

    def __init__(self) -> None:
        # A log file has no width of its own: wide enough for the tables.
        self.console = Console(width=None if sys.stdout.isatty() else 132)
        self.lock = threading.Lock()
        self.rows: dict[str, dict[str, Any]] = {}
        self.live: Live | None = None

    def show(self, name: str, event: dict[str, Any]) -> None:
        """Show the newest event of a run."""
        with self.lock:
            self.rows[name] = event
            if self.live is None:
                self.live = Live(console=self.console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(self._table())

    def remove(self, name: str) -> None:
        """Take a run off the board."""
        with self.lock:
            self.rows.pop(name, None)
            if self.live is not None and not self.rows:
                self.live.stop()
                self.live = None
            elif self.live is not None:
                self.live.update(self._table())

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("variant", "seed", "epoch", "loss", "samples/s", "time left"):
            table.add_column(title, justify="left" if title == "variant" else "right")
        for event in self.rows.values():
            table.add_row(
                event["variant"],
                str(event["seed"]),
                f"{event['epoch']}/{event['max_epochs']}",
                f"{_loss(event):.4f}",
                f"{event['samples_per_second']:,.0f}",
                f"at most {event['seconds_left']:.0f} s",
            )
        return table


BOARD = Board()


def say(line: str) -> None:
    """Tell a person one line: on the terminal, and in the log of Prefect's run where there is one."""
    line = printable(line, BREAKS)
    if AT_TERMINAL:
        BOARD.console.print(line, highlight=False, markup=False, soft_wrap=True)
    if FlowRunContext.get() or TaskRunContext.get():
        get_run_logger().info(line)


class RunProgress:
    """Follows one run's events: the board or printed lines for a person, a progress artifact where Prefect runs."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.name = f"{job['variant']} seed {job['seed']}"
        self.terminal = AT_TERMINAL and sys.stdout.isatty()
        self.max_epochs = job["training"]["max_epochs"]
        self.artifact: UUID | None = None
        self.updated = time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] not in ("progress", "epoch"):
            return
        event = {**event, "max_epochs": self.max_epochs}
        if self.terminal:
            BOARD.show(self.name, event)
        elif event["event"] == "epoch":
            say(
                f"{self.name}: epoch {event['epoch']} of at most {event['max_epochs']}, loss {_loss(event):.4f}, "
                f"validation {event['validation_score']:.4f}, {event['samples_per_second']:,.0f} samples/s"
            )
        now = time.monotonic()
        # A run that is shorter needs no bar.
        if TaskRunContext.get() is not None and now - self.updated > ARTIFACT_SECONDS:
            self.updated = now
            self._fill(100.0 * event["epoch"] / self.max_epochs)

    def finish(self, line: str) -> None:
        """The run is over: leave one line about it and a full bar."""
        if self.terminal:
            BOARD.remove(self.name)
        say(line)
        if self.artifact:
            self._fill(100.0)

    def _fill(self, percent: float) -> None:
        """Fill the bar in Prefect, and make it first. Without its server, only the bar is lost."""
        with contextlib.suppress(Exception):  # whatever Prefect's client raises
            if self.artifact:
                update_progress_artifact(self.artifact, progress=percent)
                return
            artifact = create_progress_artifact(progress=percent, description=f"Training {self.name}")
            self.artifact = artifact if isinstance(artifact, UUID) else None


def _loss(event: dict[str, Any]) -> float:
    return event["loss"] if event["event"] == "progress" else event["training_loss"]
