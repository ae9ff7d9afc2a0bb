"""Evaluate finished runs:  python -m evaluation [--test] RUN [PREPARED] [RUN [PREPARED] ...]

For a machine that trains, as ``python -m training`` is: it needs torch, numpy, safetensors, scikit-learn and scipy, and
nothing else. RUN is a folder of runs/; its prepared folder may follow it, and is else the one that its job.json names.
The validation split is read, and with --test the test split too: for an experiment that reports, when all its choices
are made. Each evaluation lies in RUN/evaluation/, and one that is there is not made again.

A run that cannot be evaluated is named on stderr, and the others are evaluated still. Exit code 0: all; 2: not all.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation.run import evaluate_run
from storage.errors import InputError, command
from storage.files import read_object
from storage.prepared import DESCRIPTION

JOB = "job.json"


def pairs(folders: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """Each run with the prepared folder that follows it, or None; InputError for a folder that is neither."""
    found: list[tuple[Path, Path | None]] = []
    for folder in folders:
        if (folder / JOB).is_file():
            found.append((folder, None))
        elif not (folder / DESCRIPTION).is_file():
            raise InputError(f"{folder} is no run and no prepared data: it has neither {JOB} nor {DESCRIPTION}")
        elif not found or found[-1][1] is not None:
            raise InputError(f"{folder} is prepared data and follows no run: name the run before it")
        else:
            found[-1] = (found[-1][0], folder)
    return found


@command
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evaluation", description="Evaluate finished runs.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN [PREPARED]")
    parser.add_argument("--test", action="store_true", help="read the test split too, when all choices are made")
    options = parser.parse_args(arguments)
    splits = ("validation", "test") if options.test else ("validation",)
    failed = 0
    for run, prepared in pairs(options.folders):
        try:
            job = read_object(run / JOB, "prepared")
            print(evaluate_run(run, prepared or Path(job["prepared"]), splits), flush=True)
        except InputError as error:
            failed += 1
            print(f"error: {error}", file=sys.stderr, flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    main()
