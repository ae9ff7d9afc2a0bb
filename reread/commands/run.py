"""Run an experiment from raw data to verdicts.

reread run
reread run --experiment imdb
reread run --experiment tiny --variant han --seed 0 --seed 1
reread run --experiment imdb --dry-run
reread run --experiment tiny --set training.learning_rate=0.02 --set network.dropout=0.3
reread run --experiment imdb --on slurm

Finished runs are cached; an interrupted one resumes from its last epoch. A selection or an override leaves the
experiment's report as it is: each selection has its own, reports/NAME-part-DIGEST, whose path is printed at the end.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from reread.commands.options import (
    AsJson,
    Experiment,
    NoCache,
    NoWait,
    On,
    Overrides,
    Seeds,
    Variants,
    plan_of,
    print_json,
    print_results,
    print_table,
    progress,
    results_of,
)
from reread.planning.entrance import read_experiment, undecidable, unset_margin
from reread.storage.errors import InputError

if TYPE_CHECKING:
    from reread.planning.plan import Plan

CACHED, TO_TRAIN = "cached", "train"


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
    no_wait: NoWait = False,
    on: On = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and which verdicts it can reach; start nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    read = read_experiment(experiment, variants, seeds, overrides or ())
    for line in undecidable(read, variants, seeds):
        print(f"warning: {line}", file=sys.stderr, flush=True)
    for line in unset_margin(read, variants):
        print(f"note: {line}", file=sys.stderr, flush=True)
    plan = plan_of(experiment, variants, seeds, overrides, on)
    if dry_run:
        print_plan(plan, as_json)
        return
    start = time.monotonic()

    from reread.commands.servers import prefect_session
    from tasks.progress import say

    with progress(as_json), prefect_session():
        from flows.pipeline import pipeline

        report = Path(pipeline(experiment, plan=plan, fresh=no_cache, wait=not no_wait))
    if as_json:
        print_json(results_of(report))
        return
    print_results(report)
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    say(f"\n{minutes} min {seconds} s. Report: {report / 'report.html'}")
    say("Next:  reread ui      the addresses of MLflow and Prefect, with runs to compare")
    if plan.name == "default":  # dvc.yaml has the stages of this experiment
        say("       make repro     DVC reuses the finished runs, and retrains what you change in params.yaml")


def print_plan(plan: "Plan", as_json: bool) -> None:
    """Print each run of the plan, with its key where the arrays are prepared, and what the comparisons can decide."""
    from reread.planning.reach import plan_reach, reach_lines
    from reread.planning.tuning import other_settings, published

    runs = planned_runs(plan)
    try:
        reaches, missing = plan_reach(plan), None
    except InputError as error:
        reaches, missing = [], f"which verdicts can be reached is not known: {error}"
    if as_json:
        reach = None if missing else [asdict(each) for each in reaches]
        print_json({"plan": plan.record(), "runs": runs, "reach": reach})
        return
    table = Table(title=plan.title, title_justify="left")
    numbers = ["seed"] if plan.folds is None else ["seed", "fold"]
    for name in ("variant", *numbers, "run", "state"):
        table.add_column(name, justify="right" if name in numbers else "left")
    for run in runs:
        of_run = [str(run[name]) for name in numbers]
        table.add_row(run["variant"], *of_run, run["run_key"] or "not known: no arrays yet", run["state"])
    print_table(table)
    cached = sum(run["state"] == CACHED for run in runs)
    print(f"{len(runs)} runs: {cached} cached, {len(runs) - cached} to train")
    for line in plan.known().of_older_code():
        print(line)
    if plan.search is not None:
        print(f"each variant has {plan.search['trials']} trials: further ones depend on the results of these")
    for line in [*([missing] if missing else reach_lines(reaches)), *other_settings(plan, published(plan))]:
        print(line)


def planned_runs(plan: "Plan") -> list[dict[str, Any]]:
    """Return each run: variant, seed, the number of its fold where there are folds, run_key (None where its arrays are
    not prepared), and state (cached, train)."""
    jobs = {(job.variant, job.seed, job.fold): job for job in plan.known().jobs()}
    runs = []
    for seed in plan.seeds:
        for variant in plan.variants:
            for fold in plan.folds_of(seed):
                job = jobs.get((variant, seed, fold.number if fold else None))
                cached = job is not None and job.run.finished
                about = {"variant": variant, "seed": seed, **({"fold": fold.number} if fold else {})}
                state = CACHED if cached else TO_TRAIN
                runs.append({**about, "run_key": job.run_key if job else None, "state": state})
    return runs
