"""Errors that a user can act on: one line with what is wrong, where and what to do, and exit code 2."""

import contextlib
import difflib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

BREAKS = "\n\t"
OURS = ("reread", "flows", "tasks", "models", "cuda_ext")
MOST_NAMES = 50  # in a message: a grid has thousands of trials
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A folder without write permission, a full disk, a file in place of a folder and vice versa, a name that is too long.
OF_THE_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, *FULL)
FAULT = os.EX_SOFTWARE  # 70: Python's own code, 1, is a verdict of some commands


class InputError(ValueError):
    """Input that cannot be used. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2


class OutOfMemory(InputError):
    """Work that needs more memory than there is, alone or beside others."""


class WorkFailed(RuntimeError):
    """Work that started and ended without a result. The message is one line: which, how, and where its log is."""


class PassingError(RuntimeError):
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


def command(main: Callable[..., int | None]) -> Callable[..., None]:
    """Make ``main`` a command that prints errors as one line on stderr.

    Exit codes: 2 for InputError, for a ValueError of another package that has an ``exit_code`` (cuda_ext's
    KernelError), for a source file with a syntax error, for a package that is not installed, and for a file or folder
    that cannot be used; 1 for WorkFailed and PassingError; 130 for an interrupt; 141 where the reader of the output has
    exited; FAULT, after its traceback, for any other error.
    """

    @functools.wraps(main)
    @own_exit_codes()
    def run(*arguments: Any, **keywords: Any) -> None:
        try:
            code = main(*arguments, **keywords)
            sys.stdout.flush()
        except ValueError as error:
            exit_code = getattr(error, "exit_code", None)
            if exit_code is None:
                raise
            print(f"error: {printable(error)}", file=sys.stderr)
            sys.exit(exit_code)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", *OURS):
                raise
            print(
                f"error: the package '{printable(package)}' is not installed: `pip install 'reread[run]'` has all that "
                "reread needs",
                file=sys.stderr,
            )
            sys.exit(2)
        except SyntaxError as error:
            # Every file of a registry is parsed to list its members: a new network, a new optimiser.
            print(f"error: {printable(f'{error.filename}, line {error.lineno}: {error.msg}')}", file=sys.stderr)
            sys.exit(2)
        except WorkFailed as error:
            print(f"error: {printable(error, BREAKS)}", file=sys.stderr)
            sys.exit(1)
        except PassingError as error:
            print(
                f"error: {printable(error, BREAKS)}; it may be temporary: run the same command again", file=sys.stderr
            )
            sys.exit(1)
        except OSError as error:
            # A file that cannot be used is the user's problem; any other error is a defect of ours.
            if error.filename is not None and error.errno in OF_THE_PLACE:
                problem = f"{error.filename} cannot be used ({error.strerror})"
            elif is_full_disk(error):
                problem = f"the disk has no room for a file ({error.strerror or error})"
            else:
                raise
            print(f"error: {printable(problem)}: correct that, and run the same command again", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print("interrupted: finished work is kept; run the same command again to resume", file=sys.stderr)
            sys.exit(130)
        sys.exit(code or 0)

    return run
