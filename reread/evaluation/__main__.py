"""Evaluate finished runs:  python -m reread.evaluation [--test] RUN [PREPARED] [RUN [PREPARED] ...]

The command runs on a training machine: it needs torch, numpy, safetensors, scikit-learn and scipy, and nothing else.
RUN is a folder of runs/. Its prepared folder may follow it; the default is the one that its job.json names.
It reads the validation split. With --test it reads the test split too: use that when all choices are made. Its entry is
written first: to RUN/evaluation/test-reads.jsonl and, in a project, to results/test-reads.jsonl
(reread/storage/ledger.py). Evaluations are written to RUN/evaluation/; existing ones are reused. The time per row is
measured once for all runs of one network.

A run that cannot be evaluated is named on stderr, and the other runs are still evaluated. Exit code 0: all; 2: not all.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from reread.evaluation.run import evaluate_run
from reread.runtime.garbage import collect_less
from reread.storage.errors import InputError, command
from reread.storage.files import read_object
from reread.storage.ledger import open_run_test_split
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import JOB, RunFolder


def pairs(folders: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """Return each run with the prepared folder that follows it, or None; InputError for a folder that is neither."""
    runs: list[tuple[Path, Path | None]] = []
    for folder in folders:
        if (folder / JOB).is_file():
            runs.append((folder, None))
        elif not (folder / DESCRIPTION).is_file():
            raise InputError(f"{folder} is no run and no prepared data: it has neither {JOB} nor {DESCRIPTION}")
        elif not runs or runs[-1][1] is not None:
            raise InputError(f"{folder} is prepared data and follows no run: name the run before it")
        else:
            runs[-1] = (runs[-1][0], folder)
    return runs


def recorded(run: Path, prepared: Path) -> AbstractContextManager[Any]:
    """Open the test split of a run's data, by what its prepared.json says of it."""
    return open_run_test_split(RunFolder(run), read_object(prepared / DESCRIPTION, "name"))


@command
def main(arguments: list[str] | None = None) -> int:
    collect_less()
    parser = argparse.ArgumentParser(prog="python -m reread.evaluation", description="Evaluate finished runs.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN [PREPARED]")
    parser.add_argument("--test", action="store_true", help="read the test split too, when all choices are made")
    options = parser.parse_args(arguments)
    splits = ("validation", "test") if options.test else ("validation",)
    failed = 0
    latencies: dict[str, dict[str, Any]] = {}
    for run, prepared in pairs(options.folders):
        try:
            RunFolder(run).refuse_damage()
            RunFolder(run).require_result()
            prepared = prepared or Path(read_object(run / JOB, "prepared")["prepared"])
            with recorded(run, prepared) if options.test else nullcontext():
                print(evaluate_run(run, prepared, splits, latencies), flush=True)
        except InputError as error:
            failed += 1
            print(f"error: {error}", file=sys.stderr, flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    main()
