"""Run jobs of a claim that another process has written as files, one after the other: a task of a cluster.

python -m reread.arms JOB.json...

The exit code is 1 where one of them failed, and 2 where one cannot be run here.
"""

import os
import signal
import sys
from pathlib import Path

from reread.arms.jobs import read_job, refuse_other_machine
from reread.arms.run import RunFailed, run_all
from reread.storage.errors import BREAKS, InputError, printable


def say(line: str) -> None:
    print(printable(line, BREAKS), flush=True)


def main(files: list[str]) -> int:
    # As Ctrl-C, which ends the command that runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        jobs = [read_job(Path(file)) for file in files]
        refuse_other_machine(jobs)
        run_all(jobs, os.environ, 1, say)
    except RunFailed as error:
        say(f"error: {error}")
        return 1
    except InputError as error:
        say(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
