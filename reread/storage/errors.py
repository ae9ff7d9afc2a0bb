"""Errors that a user can act on: one line with what is wrong, where and what to do, and exit code 2."""

import contextlib
import difflib
import errno
import functools
import importlib.metadata
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

BREAKS = "\n\t"
OURS = ("reread", "flows", "tasks", "models", "cuda_ext")
MOST_NAMES = 50  # in a message: a grid has thousands of trials
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A folder without write permission, a full disk, a file in place of a folder and vice versa, a name that is too long.
OF_THE_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, *FULL)
ROOT = Path(__file__).resolve().parents[2]
# The package of pyproject.toml that installs what is imported by another name.
INSTALLED_BY = {
    "PIL": "pillow",
    "psycopg2": "psycopg2-binary",
    "sklearn": "scikit-learn",
    "sqlalchemy": "mlflow",
    "starlette": "fastapi",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
FAULT = os.EX_SOFTWARE  # 70: Python's own code, 1, is a verdict of some commands


class InputError(ValueError):
    """Input that cannot be used. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2


class OutOfMemory(InputError):
    """Work that needs more memory than there is, alone or beside others."""


class WorkFailed(RuntimeError):
    """Work that started and ended without a result. The message is one line: which, how, and where its log is."""


class TransientError(RuntimeError):
    """A failure outside this process that may be transient (a network, a busy database): worth a retry."""


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a half sentence that names the nearest known name, or all of them: ``did you mean 'han'?``.

    ``name`` need not be text: YAML reads ``on`` as true and 5 as a number.
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(names[:MOST_NAMES])}{more}"


def refuse_unknown(given: Iterable[object], known: Iterable[str], where: str) -> None:
    """Raise InputError for the first of ``given`` that is not in ``known``, naming the place, ``where``."""
    known = list(known)
    for name in given:
        if name not in known:
            raise InputError(f"unknown name '{name}' in {where}: {nearest(name, known)}")


def printable(text: object, kept: str = "") -> str:
    """Return text in which control characters, but those of ``kept``, are escaped.

    A name or a document may have some that move a terminal's cursor or break the line.
    """
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in str(text)
    )


def is_full_disk(error: OSError) -> bool:
    """Return whether a write failed for want of room. Such an error names no file, and numpy's has no number either."""
    return error.errno in FULL or (error.errno is None and "requested and" in str(error))


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of an error's traceback that are of this project, each with its line."""
    rooms = tuple(f"{ROOT / room}{os.sep}" for room in OURS)
    walked = traceback.walk_tb(error.__traceback__)
    return [(frame, line) for frame, line in walked if frame.f_code.co_filename.startswith(rooms)]


def last_own_line(error: BaseException) -> str:
    """Return the last line of this project in an error's traceback: "FILE, line N"; "" where there is none."""
    frames = own_frames(error)
    return f"{Path(frames[-1][0].f_code.co_filename).relative_to(ROOT)}, line {frames[-1][1]}" if frames else ""


def is_fault_of_member(error: BaseException) -> bool:
    """Return whether a file of a registry fails while it is imported, by a line of its own."""
    frames = [frame for frame, _ in own_frames(error)]
    if not frames:
        return False
    file = frames[-1].f_code.co_filename
    if not any(frame.f_code.co_filename == file and frame.f_code.co_name == "<module>" for frame in frames):
        return False
    package, _, name = str(frames[-1].f_globals.get("__name__")).rpartition(".")
    registry = getattr(sys.modules.get(package), "REGISTRY", None)
    return registry is not None and name in registry


@contextlib.contextmanager
def faults_of_members() -> Iterator[None]:
    """Raise InputError, with the line, for an error of a registry's file while it is imported."""
    try:
        yield
    except SyntaxError:
        raise
    except Exception as error:
        if hasattr(error, "exit_code") or absent_package(error) or not is_fault_of_member(error):
            raise
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"{last_own_line(error)}: {type(error).__name__}: {reason}") from error


def absent_package(error: BaseException) -> str:
    """Return the package, other than those of this project, that an error finds not installed; "" for other errors."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return "" if package in OURS else package


def is_needed(package: str) -> bool:
    """Return whether `reread[run]` has the package that is imported as ``package``."""
    try:
        wanted = importlib.metadata.requires("reread") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return True
    users = (line for line in wanted if 'extra == "dev"' not in line)
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in users}
    return INSTALLED_BY.get(package, package.lower().replace("_", "-")) in names


def end_by_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback and exit with FAULT: a ``sys.excepthook``."""
    sys.__excepthook__(kind, error, trace)
    sys.exit(FAULT)


@contextlib.contextmanager
def own_exit_codes() -> Iterator[None]:
    """Exit with 141 where the reader of the output has exited (head, less), and with FAULT by what is not expected."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as ended:
        # Typer and Rich exit with 1 while they handle it.
        if not isinstance(ended if isinstance(ended, BrokenPipeError) else ended.__context__, BrokenPipeError):
            raise
        # Redirect stdout so that no traceback follows.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception:
        sys.excepthook = end_by_fault
        raise


def fail(message: str, code: int) -> NoReturn:
    """Print an error on stderr, and exit with ``code``."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def command(main: Callable[..., int | None]) -> Callable[..., None]:
    """Make ``main`` a command that prints errors as one line on stderr.

    Exit codes: 2 for InputError, for a ValueError of another package that has an ``exit_code`` (cuda_ext's
    KernelError), for a source file with a syntax error, for a registry's file that fails when it is imported, for a
    package that is not installed, and for a file or folder that cannot be used; 1 for WorkFailed and TransientError;
    130 for an interrupt; 141 where the reader of the output has exited; FAULT, after its traceback, for any other
    error.
    """

    @functools.wraps(main)
    @own_exit_codes()
    def run(*arguments: Any, **keywords: Any) -> None:
        try:
            with faults_of_members():
                code = main(*arguments, **keywords)
            sys.stdout.flush()
        except ValueError as error:
            exit_code = getattr(error, "exit_code", None)
            if exit_code is None:
                raise
            fail(printable(error), exit_code)
        except ModuleNotFoundError as error:
            package = absent_package(error)
            if not package:
                raise
            absent = f"the package '{printable(package)}' is not installed"
            if is_needed(package):
                fail(f"{absent}: `pip install 'reread[run]'` has all that reread needs", 2)
            fail(": ".join(filter(None, (printable(last_own_line(error)), absent, "install it"))), 2)
        except SyntaxError as error:
            # Every file of a registry is parsed to list its members: a new network, a new optimiser.
            fail(printable(f"{error.filename}, line {error.lineno}: {error.msg}"), 2)
        except WorkFailed as error:
            fail(printable(error, BREAKS), 1)
        except TransientError as error:
            fail(f"{printable(error, BREAKS)}; it may be temporary: run the same command again", 1)
        except OSError as error:
            # A file that cannot be used is the user's problem; any other error is a defect of ours.
            if is_full_disk(error):
                problem = f"the disk has no room for {error.filename or 'a file'} ({error.strerror or error})"
                advice = "make room"
            elif error.filename is not None and error.errno in OF_THE_PLACE:
                problem, advice = f"{error.filename} cannot be used ({error.strerror})", "correct that"
            else:
                raise
            fail(f"{printable(problem)}: {advice}, and run the same command again", 2)
        except KeyboardInterrupt:
            print("interrupted: finished work is kept; run the same command again to resume", file=sys.stderr)
            sys.exit(130)
        sys.exit(code or 0)

    return run
