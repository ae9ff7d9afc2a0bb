"""Write jobs to train on another machine.

REREAD_MACHINE=machine.json reread jobs --experiment imdb > jobs.txt
reread jobs --experiment imdb --variant han --seed 0
reread jobs --experiment imdb --tuned-by imdb-tuning      jobs for each trial of the tuning
python -m reread.training $(cat jobs.txt)                 on that machine, which needs torch, numpy and safetensors

Writes runs/KEY/job.json for each and prints the paths, one per line. What else that machine needs is printed on stderr.
With --tuned-by, `python -m reread.evaluation.choose` there keeps the jobs with the settings that did best in the
tuning.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reread.commands.options import (
    EXPERIMENTS,
    AsJson,
    Experiment,
    Overrides,
    Seeds,
    Variants,
    plan_of,
    print_json,
    progress,
)
from reread.storage.errors import InputError

if TYPE_CHECKING:
    from reread.planning.plan import Plan


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    tuned_by: Annotated[
        str | None,
        typer.Option(metavar="TUNING", help="Jobs for each trial of this experiment.", autocompletion=EXPERIMENTS),
    ] = None,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides)

    from reread.storage.files import write_json
    from reread.storage.git import checkout
    from tasks.preprocess import preprocess

    plans = {"": plan} if tuned_by is None else dict(plans_of_trials(plan, tuned_by))
    preparations = {key: about for each in plans.values() for key, about in each.preparations().items()}
    # Only the paths go to stdout, for `python -m reread.training $(...)`.
    with progress(as_json=True):
        prepared = {key: preprocess.fn(about) for key, about in preparations.items()}
    jobs: dict[Path, dict[str, Any]] = {}
    for trial, of_trial in plans.items():
        # Of trials finished runs are listed too: which jobs are needed is known after the choice.
        for job in of_trial.jobs(prepared) if trial else of_trial.unfinished(prepared):
            jobs[job.file] = {**job.to_json(), **({"trial": trial} if trial else {})}
    source = checkout()
    for path, content in jobs.items():
        # The training machine has no git; its source is compared with the job's before it trains.
        write_json(path, {**content, "checkout": source} if source else content)
    if as_json:
        print_json([str(path) for path in jobs])
    else:
        print(*jobs, sep="\n", end="\n" if jobs else "")
    folders = ", ".join(dict.fromkeys(content["prepared"] for content in jobs.values()))
    summary = f"{len(jobs)} jobs; copy them there with the source and {folders}" if jobs else "every run is finished"
    print(summary, file=sys.stderr)


def plans_of_trials(plan: "Plan", tuning: str) -> "Iterator[tuple[str, Plan]]":
    """Yield each trial of a tuning with the plan of its variant that has the settings of the trial."""
    from reread.planning.resolve import make_plan
    from reread.planning.tuning import differing, flow

    tried = make_plan(tuning)
    if tried.search is not None:
        raise InputError(f"--tuned-by {tuning}: the trials of a search depend on its results: name one with a grid")
    known = {name: trials for name, trials in tried.trials.items() if name in plan.variants}
    if missing := [name for name in plan.variants if name not in known]:
        raise InputError(f"--tuned-by {tuning}: it has no trials of '{missing[0]}': name the tuning of '{plan.name}'")
    for name, trials in known.items():
        for trial, settings in differing(
            {trial_name: vars(tried.variants[trial_name]) for trial_name in trials}
        ).items():
            chosen = [f"{address}={flow(value)}" for address, value in settings.items()]
            overrides = [*plan.overrides, *chosen]
            yield trial, make_plan(plan.name, [name], plan.seeds, overrides, environment=plan.environment)
