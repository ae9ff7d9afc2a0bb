"""Run commands as the arms of a claim and judge them.

reread claim claim.yaml --dry-run                    # each run with its key: cached, or to run
reread claim claim.yaml                              # the runs that are missing, then the verdicts
reread claim claim.yaml --workers 4 --exit-code --output verdict
reread claim claim.yaml --on slurm                   # each run is a task of a Slurm array

The file names arms, each a command in a revision of git or in a folder:

arms:
  control:   {git: main,    run: "python train.py --seed {seed} --out {out}"}
  treatment: {git: my-idea, run: "python train.py --seed {seed} --out {out}"}
metric: accuracy        # the command writes {out}/metrics.json, or {out}/items.csv with item and score
margin: 0.005
seeds: 6

CAUTION: the commands and the repositories are programs. They run with all your rights, and without a sandbox.

A finished run is cached by its content: files, command, seed, data and machine. An unfinished one starts again from
nothing. Runs are in .reread/ beside the claim file. Verdicts and exit codes are those of `reread judge`.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from reread.arms.jobs import FOLDER, Job, made_by, make_jobs, warnings
from reread.arms.machine import read_machine
from reread.arms.revisions import exclude_from_git
from reread.arms.run import run_all
from reread.arms.scores import TABLE, refuse_cached_without_scores, scores_table
from reread.arms.settings import ArmsFile, read_arms_file, undecidable
from reread.commands.judging import ExitCode, Output, deliver, judged, refuse_file
from reread.commands.options import AsJson, NoCache, On, print_json, print_table, progress
from reread.planning.environment import EXECUTORS, read_environment
from reread.storage.errors import BREAKS, printable, refuse_unknown
from reread.storage.files import write_text
from tasks import users_environment

CACHED, TO_RUN = "cached", "run"
# In the current folder, which may be in a repository of others. secret.env has a password.
LEFT_BY_FLOW = (".locks/", ".prefect/", "mlartifacts/", "mlflow.db*", "secret.env")


def command(
    file: Annotated[Path, typer.Argument(metavar="CLAIM.yaml", help="A claim file with arms.", show_default=False)],
    seeds: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Run so many seeds in place of the file's.")
    ] = None,
    workers: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Commands that run at once.")] = 1,
    no_cache: NoCache = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs; start nothing.")] = False,
    flow: Annotated[bool, typer.Option("--flow", help="Show the runs in Prefect, and log them in MLflow.")] = False,
    on: On = None,
    output: Output = None,
    exit_code: ExitCode = False,
    as_json: AsJson = False,
) -> None:
    refuse_file(output)
    refuse_unknown([on] if on else [], EXECUTORS, "--on")
    environment = read_environment()
    environment = environment.model_copy(update={"executor": on or environment.executor})
    on_slurm = environment.executor == "slurm"
    given = with_seeds(read_arms_file(file), seeds)
    few = undecidable(given)
    # Of the nodes, whose GPUs this machine may lack.
    machine = read_machine(environment.machine) if on_slurm and environment.machine else None
    jobs = make_jobs(given, file, machine)
    for line in [*few, *warnings(jobs)]:
        say(f"warning: {line}")
    if dry_run:
        print_runs(jobs, as_json)
        return
    if not no_cache:
        refuse_cached_without_scores(jobs)
    if flow:
        import psutil  # noqa: F401 (refused here where it is missing: a process beside this one needs it first)

        from reread.commands.servers import prefect_session

        exclude_from_git(LEFT_BY_FLOW)
        with progress(as_json=True), prefect_session():
            from flows.claim import claim

            claim(str(file), given.seed_list, environment, machine, workers, no_cache)
    elif on_slurm:
        from tasks.claim import run_commands_on_slurm

        with progress(as_json=True):
            run_commands_on_slurm.fn(jobs, environment.slurm, environment.runs_per_job, no_cache)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        run_all(jobs, users_environment(), workers, say, no_cache)
    table = scores_table(jobs)
    path = file.parent / FOLDER / file.stem / TABLE
    write_text(path, table)
    document = judged(given, [str(path)], made_by(jobs))
    # Of the output folder, where it stands beside the verdict.
    document["inputs"][0]["file"] = TABLE
    deliver(document, output, as_json, exit_code, {TABLE: table})


def with_seeds(given: ArmsFile, seeds: int | None) -> ArmsFile:
    """Return the claims with another number of seeds; the verdict says so where the file does not declare it."""
    if seeds is None or seeds in (len(given.seed_list), given.second_look):
        return given if seeds is None else replace(given, seeds=longer(given, seeds))
    line = f"judged on {seeds} seeds per arm, and the claim file declares {len(given.seed_list)}."
    return replace(given, seeds=longer(given, seeds), cautions=[*(given.cautions or ()), line])


def longer(given: ArmsFile, count: int) -> list[int]:
    """Return the first ``count`` seeds: those of the file, then the next numbers."""
    seeds = given.seed_list[:count]
    following = range(max(given.seed_list) + 1, max(given.seed_list) + 1 + count)
    return [*seeds, *following][:count]


def print_runs(jobs: Sequence[Job], as_json: bool) -> None:
    """Print each run with its key and whether it is cached."""
    runs = [
        {"arm": job.arm, "seed": job.seed, "key": job.key, "state": CACHED if job.finished else TO_RUN} for job in jobs
    ]
    if as_json:
        print_json({"runs": runs, "arms": made_by(jobs)})
        return
    table = Table()
    for name in ("arm", "seed", "run", "state"):
        table.add_column(name, justify="right" if name == "seed" else "left")
    for run in runs:
        table.add_row(printable(run["arm"]), str(run["seed"]), str(run["key"]), str(run["state"]))
    print_table(table)
    cached = sum(run["state"] == CACHED for run in runs)
    print(f"{len(runs)} runs: {cached} cached, {len(runs) - cached} to run")


def say(line: str) -> None:
    """Tell a person one line on stderr: stdout has the verdicts."""
    print(printable(line, BREAKS), file=sys.stderr, flush=True)
