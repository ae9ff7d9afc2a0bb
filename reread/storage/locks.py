"""File locks, which the kernel releases when their holder ends in any way, and the lock of a run.

Everything that writes to a folder in runs/, or removes it, holds ``run_lock`` of that folder: training, evaluation,
reproduction, ``--no-cache`` and prune. The lock is beside the folder, so that it outlives the folder's removal.

A flow needs its runs and arrays between these moments, too: it reserves them against prune until its process ends.

ROOT/.locks/KEY.lock           the lock of ROOT/KEY
ROOT/.locks/reserved/ID.lock   held by a process: its id, then each KEY that it reserves
ROOT/.locks/reserved.lock      held by who reserves, and by prune while it removes
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from reread.storage.errors import InputError

# The open files in which this process names what it reserves, by their folder; they are locked until it ends.
RESERVED: dict[Path, TextIO] = {}
HELD = contextlib.ExitStack()


@contextlib.contextmanager
def file_lock(path: Path, blocking: bool = True) -> Iterator[TextIO | None]:
    """Hold an exclusive lock on ``path``; yield its open file, or None where it is held and ``blocking`` is false.

    The file contains the holder's process id. A process that inherits its descriptor holds the lock too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file


@contextlib.contextmanager
def run_locked(
    run_directory: Path, wait: bool = True, say: Callable[[str], None] = lambda line: None
) -> Iterator[TextIO]:
    """Hold the lock of a run. Where another process holds it, ``say`` which, and wait; InputError unless ``wait``."""
    path = run_lock(run_directory)
    with file_lock(path, blocking=False) as file:
        if file:
            yield file
            return
    if not wait:
        raise InputError(f"{run_directory} is in use by {holder(path)}: wait until that ends, then run again")
    say(f"{run_directory} is in use by {holder(path)}: waiting until that ends")
    with file_lock(path) as file:
        assert file
        yield file


@contextlib.contextmanager
def held_alone(path: Path, refusal: Callable[[str], str]) -> Iterator[TextIO]:
    """Hold an exclusive lock on ``path``; InputError with ``refusal`` of its ``holder`` where another holds it."""
    with file_lock(path, blocking=False) as file:
        if file is None:
            raise InputError(refusal(holder(path)))
        yield file


def run_lock(run_directory: Path) -> Path:
    """Return the path of the lock of a run: RUNS/.locks/KEY.lock."""
    run_directory = Path(run_directory)
    return run_directory.parent / ".locks" / f"{run_directory.name}.lock"


def reserve(directories: Iterable[Path | str]) -> None:
    """Keep ``reread prune`` from these runs or arrays until this process ends, also while nobody holds their locks."""
    for lock in map(run_lock, map(Path, directories)):
        folder = reservations(lock).with_suffix("").absolute()
        with file_lock(reservations(lock)):
            if folder not in RESERVED:
                for path in folder.glob("*.lock"):
                    if not is_held(path):
                        path.unlink()
                file = HELD.enter_context(file_lock(folder / f"{uuid.uuid4().hex}.lock"))
                assert file
                RESERVED[folder] = file
            print(lock.stem, file=RESERVED[folder], flush=True)


def reserved_in(lock: Path) -> Path | None:
    """Return the file in which a live process reserves the folder that has this lock; None where none does."""
    files = reservations(lock).with_suffix("").glob("*.lock")
    return next((path for path in files if is_held(path) and lock.stem in path.read_text().split()[1:]), None)


def reservations(lock: Path) -> Path:
    """Return the path of the lock that is held while somebody reserves a folder whose lock is beside ``lock``."""
    return lock.with_name("reserved.lock")


@contextlib.contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that this process has made, on the folder itself: it is locked under any name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether another process, or another part of this one, holds the lock: a file's, or a folder's own."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(path: Path) -> str:
    """Return who last acquired the lock, in words: ``process 1234``, or ``another process``."""
    with contextlib.suppress(OSError):
        process = Path(path).read_text(encoding="utf-8").partition("\n")[0]
        if process:
            return f"process {process}"
    return "another process"
