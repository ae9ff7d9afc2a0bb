"""Progress of training: the board for a person; a log line per run and a bar of epochs in Prefect."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from reread.storage.errors import BREAKS, printable
from reread.storage.job import Job
from tasks.board import BOARD
from tasks.prefect_run import flow_context, task_context

if TYPE_CHECKING:
    from prefect.context import FlowRunContext

ARTIFACT_SECONDS = 2.0

OUTERMOST: "ContextVar[FlowRunContext | None]" = ContextVar("outermost", default=None)


@contextlib.contextmanager
def outermost_flow() -> Iterator[None]:
    """Let the first flow that is entered keep the summary: lines and artifacts of the flows inside it."""
    token = OUTERMOST.set(OUTERMOST.get() or flow_context())
    try:
        yield
    finally:
        OUTERMOST.reset(token)


def in_outermost_flow() -> bool:
    """Return whether this is the body of the flow that was entered first, and none of its tasks or subflows."""
    here, outermost = flow_context(), OUTERMOST.get()
    return bool(here and outermost and _id(here) == _id(outermost)) and task_context() is None


def say(line: str, summary: bool = False) -> None:
    """Tell a person one line: on the terminal, and in the log of Prefect's run where there is one.

    summary: in the log of the outermost flow, too.
    """
    line = printable(line, BREAKS)
    BOARD.print(line)
    log(line, summary)


def log(line: str, summary: bool = False) -> None:
    """Log one line in Prefect's run where there is one; ``summary`` as ``say`` has it."""
    here, outermost = flow_context(), OUTERMOST.get()
    if not (here or task_context()):
        return
    from prefect.logging import get_run_logger
    from prefect.logging.loggers import flow_run_logger

    get_run_logger().info(line)
    if summary and outermost and here and _id(here) != _id(outermost):
        flow_run_logger(outermost.flow_run, outermost.flow).info(line)


def _id(context: "FlowRunContext") -> UUID | None:
    return context.flow_run.id if context.flow_run else None


def artifact_key(*names: object) -> str:
    """Return a key as Prefect takes it: lower-case ASCII letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, names)).lower()).strip("-")


class RunProgress:
    """Follows one run's events: the board or printed lines for a person, a bar of epochs where Prefect runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.row = BOARD.begin(job)
        self.artifact: UUID | None = None
        self.updated = time.monotonic()
        self.drawable = True

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event["event"] not in ("progress", "epoch"):
            return
        row = self.row
        row.epoch, row.samples_per_second = int(event["epoch"]), event["samples_per_second"]
        row.seconds_left = event["seconds_left"]
        if event["event"] == "epoch":
            row.loss, row.validation = event["training_loss"], event["validation_score"]
            if BOARD.total == 1 and not BOARD.interactive:
                BOARD.print(
                    f"{self.job.name}: epoch {row.epoch} of at most {row.max_epochs}, loss {row.loss:.4f}, "
                    f"validation {row.validation:.4f}, {row.samples_per_second:,.0f} samples/s"
                )
        else:
            row.loss = event["loss"]
        BOARD.draw()
        # Between epochs the bar stays, and each update is an event on Prefect's pages. A shorter run needs no bar.
        now = time.monotonic()
        if task_context() and event["event"] == "epoch" and now - self.updated > ARTIFACT_SECONDS:
            self.updated = now
            self._draw(100.0 * row.epoch / row.max_epochs, self._description())

    def finish(self, line: str, trained: bool = True) -> None:
        """End the run: leave one line about it and, where it was ``trained`` to its end, a full bar."""
        BOARD.end(self.job, trained)
        say(line, summary=True)
        if self.artifact and trained:
            self._draw(100.0, line)

    def _draw(self, percent: float, description: str) -> None:
        """Show the bar of the run on Prefect's pages at ``percent``; leave it as it is from the first error on."""
        if not self.drawable:
            return
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        try:
            if self.artifact:
                update_progress_artifact(self.artifact, percent, description)
                return
            fold = [] if self.job.fold is None else [self.job.fold]
            key = artifact_key(self.job.experiment, self.job.variant, self.job.seed, *fold, "epochs")
            artifact = create_progress_artifact(progress=percent, key=key, description=description)
            self.artifact = cast(UUID, artifact)  # a coroutine in asynchronous flows alone
        except Exception:  # whatever Prefect's client raises: the run goes on
            self.drawable = False

    def _description(self) -> str:
        row = self.row
        score = "" if row.validation is None else f", validation {row.validation:.4f}"
        return f"{self.job.name}: epoch {row.epoch} of at most {row.max_epochs}{score}"
