"""The board: the runs that train now in a live table, and how long the whole will take."""

import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import mean

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reread.storage.job import Job
from tasks import AT_TERMINAL

# A log has no width of its own: wide enough for the tables.
LOG_WIDTH = 132
# Between two lines about the whole, in a log of several runs.
STATUS_SECONDS = 60.0


@dataclass
class Row:
    """The newest figures of a run that trains."""

    variant: str
    seed: int
    max_epochs: int
    epoch: int = 0
    loss: float | None = None
    validation: float | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    began: float = field(default_factory=time.monotonic)

    def cells(self) -> list[str]:
        return [
            self.variant,
            str(self.seed),
            f"{self.epoch}/{self.max_epochs}",
            *("" if value is None else f"{value:.4f}" for value in (self.loss, self.validation)),
            "" if self.samples_per_second is None else f"{self.samples_per_second:,.0f}",
            duration(self.seconds_left),
        ]


TITLES = ("variant", "seed", "epoch", "loss", "validation", "samples/s", "time left")


class Board:
    """The runs of this process: those that wait, those that train, and how many have finished. Threads share it.

    On a terminal the training runs are a table, redrawn in place. In a log (no terminal, or CI is set) several runs
    have a line each minute together, and a single run a line per epoch.
    """

    def __init__(self) -> None:
        self.console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False)
        self.lock = threading.RLock()
        self.live: Live | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every run."""
        self.workers = 1
        self.waiting: dict[str, str] = {}
        self.rows: dict[str, Row] = {}
        self.total = self.finished = 0
        self.seconds: dict[str, list[float]] = {}
        self.printed = time.monotonic()

    @property
    def interactive(self) -> bool:
        """Return whether a table can be redrawn: a terminal, and no continuous integration."""
        return AT_TERMINAL and self.console.is_interactive and sys.stdout.isatty() and not os.environ.get("CI")

    def expect(self, jobs: Iterable[Job], workers: int) -> None:
        """Begin a whole of ``jobs``, of which ``workers`` train at a time."""
        with self.lock:
            self.reset()
            self.workers = workers
            self.waiting = {job.name: job.variant for job in jobs}
            self.total = len(self.waiting)

    def begin(self, job: Job) -> Row:
        """Add a run that starts to train."""
        with self.lock:
            self.waiting.pop(job.name, None)
            self.total = max(self.total, self.finished + len(self.rows) + 1)
            row = self.rows[job.name] = Row(job.variant, job.seed, job.training["max_epochs"])
            self.draw()
            return row

    def draw(self) -> None:
        """Draw the table, or print a line about the whole where one is due."""
        with self.lock:
            if not self.interactive:
                if self.total > 1 and time.monotonic() - self.printed > STATUS_SECONDS:
                    self.printed = time.monotonic()
                    self.print(self.status())
            elif self.rows:
                if self.live is None:
                    self.live = Live(console=self.console, refresh_per_second=4, transient=True)
                    self.live.start()
                self.live.update(Group(self.table(), Text(self.status(), style="dim")))
            elif self.live is not None:
                self.live.stop()
                self.live = None

    def end(self, job: Job, trained: bool) -> None:
        """Take off a run that is over; ``trained``: it was trained here, so that its time counts."""
        with self.lock:
            name = job.name
            row = self.rows.pop(name, None)
            known = self.waiting.pop(name, None) is not None or row is not None
            self.finished += known
            if row and trained:
                self.seconds.setdefault(row.variant, []).append(time.monotonic() - row.began)
            self.draw()

    def print(self, line: str) -> None:
        """Print a line above the table."""
        if AT_TERMINAL:
            self.console.print(line, markup=False, soft_wrap=True)

    def table(self) -> Table:
        """Return the table of the runs that train."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        for title in TITLES:
            # A long name is broken over lines; figures are whole at any width.
            name = title == "variant"
            table.add_column(title, justify="left" if name else "right", no_wrap=not name, overflow="fold",
                             min_width=None if name else len(title))  # fmt: skip
        for row in self.rows.values():
            table.add_row(*row.cells())
        return table

    def status(self) -> str:
        """Return one line about the whole."""
        line = f"{self.finished} of {self.total} runs finished, {len(self.rows)} training, {len(self.waiting)} waiting"
        left = duration(self.seconds_left())
        return f"{line}; at most {left} left" if left else line

    def seconds_left(self) -> float | None:
        """Return the seconds until all runs are over, or None while no run has shown its pace.

        A run that waits takes as long as those of its variant did, or as all did where none of its variant began.
        """
        now = time.monotonic()
        of_variant = {variant: list(values) for variant, values in self.seconds.items()}
        for row in self.rows.values():
            if row.seconds_left is not None:
                of_variant.setdefault(row.variant, []).append(now - row.began + row.seconds_left)
        if not of_variant:
            return None
        known = {variant: mean(values) for variant, values in of_variant.items()}
        every = mean(known.values())
        running = [known.get(row.variant, every) if row.seconds_left is None else row.seconds_left
                   for row in self.rows.values()]  # fmt: skip
        waiting = sum(known.get(variant, every) for variant in self.waiting.values())
        return max([(sum(running) + waiting) / self.workers, *running])


def duration(seconds: float | None) -> str:
    """Return a time as a person says it: ``2 h 5 min``, ``12 min``, ``40 s``; empty where it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    if minutes >= 10 or (minutes and not rest):
        return f"{minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


BOARD = Board()
