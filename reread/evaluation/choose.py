"""Keep of many jobs those with the settings that tuning chose:  python -m reread.evaluation.choose TUNING.txt JOBS.txt

The command runs on a training machine, between tuning and the runs that it decides. TUNING.txt lists the jobs of a
tuning experiment, trained and evaluated there. JOBS.txt lists what `reread jobs --tuned-by` wrote: jobs for each trial
of each variant. A variant's choice is the trial with the best mean on the validation split, as in the report of the
tuning. The paths of its jobs are printed, one per line, and each choice with its score on stderr.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reread.evaluation.run import find_evaluation
from reread.evaluation.summary import over_seeds
from reread.evaluation.trials import best_variant
from reread.goals import goal, higher_is_better
from reread.storage.errors import InputError, command, refuse_unknown
from reread.storage.files import read_json, read_object
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import METRICS, RunFolder

VALIDATION = ("validation",)


def measured_trials(tuning: Sequence[Path], metric: str | None = None) -> dict[str, dict[str, Any]]:
    """Return each trial of the tuning's jobs as metrics.json has variants: its mean over seeds, and its parameters.

    metric: the one that chooses; None for the first of the data's task.
    """
    seeds: dict[str, list[float | None]] = {}
    about: dict[str, dict[str, Any]] = {}
    for path in tuning:
        job = read_object(path, "variant", "prepared")
        run = RunFolder(path.parent)
        result = run.require_result()
        folder = find_evaluation(run.directory, VALIDATION)
        if folder is None:
            raise InputError(f"{run.directory} is not evaluated: run `python -m reread.evaluation {run.directory}`")
        task = read_object(Path(job["prepared"]) / DESCRIPTION, "task")["task"]
        if metric is not None:
            refuse_unknown([metric], [name for name in goal(task).names if higher_is_better(name)], "--metric")
        score = metric or goal(task).names[0]
        seeds.setdefault(job["variant"], []).append(read_json(folder / METRICS)["validation"][score])
        about[job["variant"]] = {"score": score, "parameters": result["parameters"]}
    return {
        name: {**about[name], "validation": {about[name]["score"]: over_seeds(values, about[name]["score"])}}
        for name, values in seeds.items()
    }


def choose(measured: Mapping[str, Mapping[str, Any]], jobs: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the jobs of each chosen trial, by the trial's name, in the order of ``jobs``.

    measured: the trials of the tuning. InputError for a trial of a variant that only one of the two has.
    """
    trials: dict[str, dict[str, list[Path]]] = {}
    for path in jobs:
        job = read_object(path, "variant")
        if "trial" not in job:
            raise InputError(f"{path} is for no trial: write the jobs by `reread jobs --tuned-by`")
        trials.setdefault(job["variant"], {}).setdefault(job["trial"], []).append(path)
    for variant, of_variant in trials.items():
        tuned = {name for name in measured if name.startswith(f"{variant}/")}
        if missing := sorted(tuned ^ set(of_variant)):
            raise InputError(f"trial '{missing[0]}' is in one of the two lists alone: both must have every trial")
    return {(best := best_variant(list(of_variant), measured)): of_variant[best] for of_variant in trials.values()}


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m reread.evaluation.choose", description=__doc__.partition("\n")[0])
    parser.add_argument("tuning", type=Path, metavar="TUNING.txt", help="a list of the tuning's jobs, all evaluated")
    parser.add_argument("jobs", type=Path, metavar="JOBS.txt", help="the list of `reread jobs --tuned-by`")
    parser.add_argument("--metric", help="the metric of the tuning's experiment, if it has one")
    options = parser.parse_args(arguments)
    tuning, jobs = (
        list(map(Path, path.read_text(encoding="utf-8").splitlines())) for path in (options.tuning, options.jobs)
    )
    measured = measured_trials(tuning, options.metric)
    for trial, paths in choose(measured, jobs).items():
        score = measured[trial]["score"]
        print(f"{trial}: {score} {measured[trial]['validation'][score]['mean']:.4f}", file=sys.stderr)
        print(*paths, sep="\n")


if __name__ == "__main__":
    main()
