"""Pack finished runs to bring them back from a training machine:  python -m reread.evaluation.pack @jobs.txt --to packs

The command may be called again and again, also while runs are trained and evaluated: each call adds parts with what is
new since the last one, so that a machine may be lost at any time. A part is a whole archive, to unpack in the project:

    packs/runs-0001.tar.xz     finished runs and their evaluations, without weights, checkpoints and logs
    packs/weights-KEY.tar      the weights of the best seed of a variant, by its evaluation on validation
    packs/packed.json          what the parts have

A part has one run or more, of at most --megabytes before compression.
"""

import argparse
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reread.evaluation.summary import best_seed
from reread.goals import goal
from reread.storage.digests import DIGESTS
from reread.storage.errors import InputError, command
from reread.storage.files import read_object, write_json
from reread.storage.ledger import reads_file
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import ENVIRONMENT, EVALUATION, HISTORY, JOB, METRICS, RESULT, TIMING, RunFolder

PACKED = "packed.json"
MEGABYTES = 15
RUN_FILES = (JOB, RESULT, HISTORY, ENVIRONMENT, TIMING, DIGESTS)


def files_of(run: Path) -> list[Path]:
    """Return the files of a finished run that travel: its results, and its evaluations that are complete."""
    # An evaluation that is being written has a hidden folder until it is complete.
    complete = [path.parent for path in sorted(run.glob(f"{EVALUATION}/[!.]*/{METRICS}"))]
    evaluated = [path for folder in complete for path in sorted(folder.iterdir())]
    return [path for path in (*(run / name for name in RUN_FILES), reads_file(run), *evaluated) if path.is_file()]


def parts(runs: Iterable[tuple[Path, list[Path]]], most: int) -> Iterator[list[tuple[Path, list[Path]]]]:
    """Yield runs, each with its files, in groups of at most ``most`` bytes; a larger run has a group of its own."""
    group: list[tuple[Path, list[Path]]] = []
    size = 0
    for run, files in runs:
        bytes_of_run = sum(path.stat().st_size for path in files)
        if group and size + bytes_of_run > most:
            yield group
            group, size = [], 0
        group.append((run, files))
        size += bytes_of_run
    if group:
        yield group


def pack(jobs: Sequence[Path], folder: Path, most: int = MEGABYTES << 20) -> list[Path]:
    """Write what no part in ``folder`` has of the finished runs of ``jobs``, and return the new files.

    Runs that have not finished are left out; one whose evaluation came after it was packed is packed again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = (
        read_object(folder / PACKED, "runs", "weights") if (folder / PACKED).is_file() else {"runs": {}, "weights": {}}
    )
    finished = [run for path in jobs if (run := RunFolder(path.parent)).finished]
    for run in finished:
        run.refuse_damage()
    contents = [(run.directory, files_of(run.directory)) for run in finished]
    new = [(run, files) for run, files in contents if state["runs"].get(run.name) != _names(run, files)]
    written = []
    for group in parts(new, most):
        number = 1 + max((int(path.name[5:9]) for path in folder.glob("runs-*.tar.xz")), default=0)
        written.append(_archive(folder / f"runs-{number:04}.tar.xz", [path for _, files in group for path in files]))
        state["runs"] |= {run.name: _names(run, files) for run, files in group}
        write_json(folder / PACKED, state)
    for variant, run in best_runs(finished).items():
        if state["weights"].get(variant) == run.key or not run.weights.is_file():
            continue
        written.append(_archive(folder / f"weights-{run.key}.tar", [run.weights]))
        if before := state["weights"].get(variant):
            (folder / f"weights-{before}.tar").unlink(missing_ok=True)
        state["weights"][variant] = run.key
        write_json(folder / PACKED, state)
    return written


def best_runs(finished: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """Return the run of the best seed of each variant, among those that are evaluated on validation."""
    seeds: dict[str, dict[str, dict[str, Any]]] = {}
    runs: dict[tuple[str, str], RunFolder] = {}
    score: dict[str, str] = {}
    for run in finished:
        measured = next((metrics for metrics in run.evaluations().values() if "validation" in metrics), None)
        if measured is None:
            continue
        task = read_object(Path(run.job["prepared"]) / DESCRIPTION, "task")["task"]
        variant = f"{run.job.get('experiment', '')}/{run.job['variant']}"
        score[variant] = goal(task).names[0]
        seeds.setdefault(variant, {})[str(run.job["seed"])] = measured
        runs[variant, str(run.job["seed"])] = run
    return {variant: runs[variant, str(best_seed(of_variant, score[variant]))] for variant, of_variant in seeds.items()}


def _names(run: Path, files: Sequence[Path]) -> list[str]:
    return [path.relative_to(run).as_posix() for path in files]


def _archive(destination: Path, files: Sequence[Path]) -> Path:
    """Write an archive under a temporary name and rename it, so that a part is whole or absent."""
    descriptor, temporary = tempfile.mkstemp(dir=destination.parent, prefix=".")
    os.close(descriptor)
    compressed = destination.suffix == ".xz"
    try:
        # Speed counts on a machine that is lent by the minute.
        with tarfile.open(temporary, "w:xz", preset=1) if compressed else tarfile.open(temporary, "w") as archive:
            for path in files:
                archive.add(path, recursive=False)
        os.replace(temporary, destination)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return destination


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reread.evaluation.pack",
        description="Pack finished runs to bring them back.",
        fromfile_prefix_chars="@",
    )
    parser.add_argument("jobs", type=Path, nargs="+", metavar="JOB", help="a job file; @FILE: a list, one per line")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the folder of the parts")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="the most that a part holds (%(default)s)")
    options = parser.parse_args(arguments)
    if options.megabytes < 1:
        raise InputError(f"--megabytes is {options.megabytes}: give a whole number from 1 up")
    written = pack(options.jobs, options.to, options.megabytes << 20)
    print(*written, sep="\n", end="\n" if written else "")
    packed = sum(RunFolder(path.parent).finished for path in options.jobs)
    print(f"{packed} of {len(options.jobs)} runs are packed", file=sys.stderr)


if __name__ == "__main__":
    main()
