"""Train a finished run again and compare the results.

reread reproduce 3f2a              a run's key or its beginning
reread reproduce runs/3f2a91c0...  or its folder

Exit code 0: equal weights and results; 1: they differ; 2: it cannot be tried. The original is only read. The second run
is removed when it is equal and kept in runs/.reproduced/ when it is not. Its job is the original's; source, machine and
prepared arrays are recorded again, so that the comparison names each part that differs.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from commands.compare import Row, compare, same_outcome, table_of_sections
from commands.options import RunKey, print_table
from planning.environment import read_environment
from planning.experiment import experiments
from planning.runs import find_run
from storage.errors import InputError
from storage.files import read_json
from storage.locks import file_lock, holder, run_lock
from storage.prepared import DESCRIPTION
from storage.run_folder import RunFolder

FOLDER = ".reproduced"
DETERMINED_BY = ("source", "data", "environment")
# Parts of the environment that no weight depends on.
IRRELEVANT = {"host", "git_commit", "git_dirty", "driver", "python"}


def command(run: RunKey) -> int:
    from tasks.progress import RunProgress
    from training.launcher import TrainingFailed

    original = find_run(run)
    console = Console(highlight=False, soft_wrap=True)
    progress = RunProgress(original.job)

    def follow(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            console.print(f"training {original.key} again on {event['device']}", markup=False)
        progress(event)

    name = f"{original.job['variant']} seed {original.job['seed']}"
    try:
        again = reproduce(original, follow)
    except TrainingFailed as error:
        progress.finish(f"{name}: failed", trained=False)
        console.print(f"not reproduced: {error}", markup=False)
        return 1
    progress.finish(f"{name}: trained again on {again.environment.get('device', 'this machine')}")
    sections = compare(original, again)
    changed = [describe(section, sections[section]) for section in DETERMINED_BY]
    equal = same_outcome(sections)
    if equal:
        weights = original.result["weights_sha256"][:12]
        console.print(f"[bold green]equal[/]: weights {weights} and all results of {original.key}")
        forget(again)
    else:
        print_table(table_of_sections({"first": original, "again": again}, sections, everything=False))
        console.print(f"\n[bold red]different[/]: the second run is kept in {again.directory}")
    if any(changed):
        console.print("What differs today: " + "; ".join(filter(None, changed)), markup=False)
    elif not equal:
        console.print("Source, data and machine are the same: training itself is not deterministic here.")
    return 0 if equal else 1


def describe(section: str, rows: list[Row]) -> str:
    """Name what differs in a section; return an empty text where nothing does."""
    names = [row.name for row in rows if not row.equal and row.name not in IRRELEVANT]
    return f"{section} ({', '.join(names)})" if names else ""


def reproduce(run: RunFolder, on_event: Callable[[dict[str, Any]], None]) -> RunFolder:
    """Train ``run`` again in runs/.reproduced/RUN_KEY and return that; the original is only read.

    InputError when the run is not finished, its prepared arrays are gone, or the source of today refuses its job.
    """
    from planning import keys  # torch
    from planning.plan import job_settings
    from training.launcher import run_training
    from training.machine import machine

    if not run.finished:
        raise InputError(
            f"{run.directory} is not finished: there is nothing to reproduce yet, run its experiment again"
        )
    prepared = Path(run.job["prepared"])
    if not (prepared / DESCRIPTION).is_file():
        raise InputError(f"{prepared} is gone: {_how_to_prepare(run)}")
    directory = read_environment().runs / FOLDER / run.key
    # The original's lock too: it is not removed while it is read.
    with file_lock(run_lock(run.directory)), file_lock(run_lock(directory), blocking=False) as lock:
        if lock is None:
            raise InputError(f"{run.key} is being reproduced by {holder(run_lock(directory))}: wait for it")
        # From the start: an earlier attempt may have been of another source.
        shutil.rmtree(directory, ignore_errors=True)
        network, training = job_settings(run.job)
        description = read_json(prepared / DESCRIPTION)
        job = {
            **run.job,
            "run_directory": str(directory),
            "key_parts": {**run.job["key_parts"], "data": keys.data_digest(description)},
            "source": keys.source(run.job["model"], description["kind"], network, training),
            "machine": keys.job_machine(machine(), training, run.job["processes"]),
        }
        run_training(job, on_event, lock)
    return RunFolder(directory)


def forget(again: RunFolder) -> None:
    """Remove the run that ``reproduce`` returned, and its folder where no other is in it."""
    shutil.rmtree(again.directory)
    if all(path.name == ".locks" for path in again.directory.parent.iterdir()):
        shutil.rmtree(again.directory.parent)


def _how_to_prepare(run: RunFolder) -> str:
    """The command that makes the prepared arrays of ``run`` again, or the reason why none can."""
    from planning.plan import make_plan

    data, key = run.job["data"], Path(run.job["prepared"]).name
    for name in experiments():
        if any(variant.prepared_key == key for variant in make_plan(name).variants.values()):
            return f"make it again with `reread preprocess --experiment {name} --data {data}`"
    commit = run.environment.get("git_commit")
    where = f"of commit {commit[:12]}" if commit else "that it was made with"
    return f"no experiment prepares '{data}' so today, only the data, parameters and source {where} do"
