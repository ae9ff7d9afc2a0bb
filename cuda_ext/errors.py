"""The error that a user can act on, and commands that print it as one line."""

import functools
import sys
from collections.abc import Callable


class KernelError(ValueError):
    """A kernel cannot be built, run or timed. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2


def command(main: Callable[[], int | None]) -> Callable[[], None]:
    """Make ``main`` a command: KernelError is one line on stderr and exit code 2, an interrupt is exit code 130."""

    @functools.wraps(main)
    def run() -> None:
        try:
            code = main()
        except KernelError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(KernelError.exit_code)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(130)
        sys.exit(code or 0)

    return run
