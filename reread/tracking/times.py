"""When a run began, when each epoch and the run ended, and how: times.json in the run's folder.

Who follows the training writes it, and MLflow gets its times, also after an outage. All are milliseconds since 1970.
A file that is missing or damaged is as an empty one: what it does not say happens when it is logged.
"""

import contextlib
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from reread.planning.validation import validate
from reread.storage.errors import InputError
from reread.storage.files import read_object, write_json
from reread.storage.run_folder import RESULT, RunFolder

TIMES = "times.json"


def now() -> int:
    return int(time.time() * 1000)


def written(path: Path) -> int:
    """Return when a file was written."""
    return int(path.stat().st_mtime * 1000)


@dataclass
class Times:
    """The times of one run; ``epochs`` by number. status: FAILED or KILLED, of a run that ended without a result."""

    began: int | None = None
    epochs: dict[str, int] = field(default_factory=dict)
    ended: int | None = None
    status: str = ""
    message: str = ""

    @classmethod
    def read(cls, run_directory: Path) -> Self:
        try:
            times: Self = validate(cls, read_object(run_directory / TIMES), TIMES)
        except InputError:
            return cls()
        return times

    @classmethod
    def begin(cls, run_directory: Path) -> Self:
        """Return the times of a run that begins, or goes on, now."""
        before = cls.read(run_directory)
        times = cls(before.began or now(), before.epochs)
        times.write(run_directory)
        return times

    def write(self, run_directory: Path) -> None:
        # A disk without room costs the times, not the run.
        with contextlib.suppress(OSError):
            write_json(run_directory / TIMES, asdict(self))

    def span(self, run: RunFolder, finished: bool) -> tuple[int, int]:
        """Return when a run began and ended; it ends now where nothing says when it did."""
        ended = written(run.directory / RESULT) if finished else self.ended or now()
        return self.began or ended - int(run.timing.get("seconds", 0.0) * 1000), ended
