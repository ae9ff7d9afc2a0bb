"""Train a finished run again and compare the results.

reread reproduce 3f2a              a run's key or its beginning
reread reproduce runs/3f2a91c0...  or its folder

Exit code 0: equal weights and results; 1: they differ; 2: it cannot be tried. The original is only read. The second run
is removed when it is equal and kept in runs/.reproduced/ when it is not. Its job is the original's; source, machine and
prepared arrays are recorded again, so that the comparison names each part that differs.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from reread.commands.compare import Row, compare, find_trained, same_outcome, table_of_sections
from reread.commands.options import AsJson, RunKey, print_json, print_table, progress
from reread.planning.environment import read_environment
from reread.planning.experiment import experiments
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.locks import file_lock, held_alone, run_lock
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import RunFolder

FOLDER = ".reproduced"
DETERMINED_BY = ("source", "data", "environment")
# Parts of the environment that no weight depends on.
IRRELEVANT = {"host", "git_commit", "git_dirty", "driver", "python"}


def command(run: RunKey, as_json: AsJson = False) -> int:
    original = find_trained(run)
    with progress(as_json):
        again, sections = train_again(original)
        equal = again is not None and same_outcome(sections)
        if again is not None:
            print_comparison(original, again, sections)
        if again is not None and equal:
            forget(again)
    if as_json:
        kept = None if again is None or equal else str(again.directory)
        print_json({"run": original.key, "equal": equal, "kept": kept, "changed": changed_parts(sections)})
    return 0 if equal else 1


def train_again(original: RunFolder) -> tuple[RunFolder | None, dict[str, list[Row]]]:
    """Train a run again; return the second run, None where its training failed, and how the two compare."""
    from reread.training.launcher import TrainingFailed
    from tasks.progress import RunProgress

    job = Job.read(original)
    board = RunProgress(job)

    def follow(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            print(f"training {original.key} again on {event['device']}", flush=True)
        board(event)

    try:
        again = reproduce(original, follow)
    except TrainingFailed as error:
        board.finish(f"{job.name}: failed", trained=False)
        print(f"not reproduced: {error}")
        return None, {}
    board.finish(f"{job.name}: trained again on {again.environment.get('device', 'this machine')}")
    return again, compare(original, again)


def print_comparison(original: RunFolder, again: RunFolder, sections: dict[str, list[Row]]) -> None:
    """Print whether two runs are equal, what differs in them, and what differs today in what determines them."""
    console = Console(highlight=False, soft_wrap=True)
    equal = same_outcome(sections)
    if equal:
        weights = original.result["weights_sha256"][:12]
        console.print(f"[bold green]equal[/]: weights {weights} and all results of {original.key}")
    else:
        print_table(table_of_sections({"first": original, "again": again}, sections, everything=False))
        console.print(f"\n[bold red]different[/]: the second run is kept in {again.directory}")
    changed = [f"{section} ({', '.join(names)})" for section, names in changed_parts(sections).items()]
    if changed:
        console.print("What differs today: " + "; ".join(changed), markup=False)
    elif not equal:
        console.print("Source, data and machine are the same: training itself is not deterministic here.")


def changed_parts(sections: dict[str, list[Row]]) -> dict[str, list[str]]:
    """Return what differs in each section that determines a run; a section without a difference is left out."""
    differing = {
        section: [row.name for row in sections.get(section, ()) if not row.equal and row.name not in IRRELEVANT]
        for section in DETERMINED_BY
    }
    return {section: names for section, names in differing.items() if names}


def reproduce(run: RunFolder, on_event: Callable[[dict[str, Any]], None]) -> RunFolder:
    """Train ``run`` again in runs/.reproduced/RUN_KEY and return that; the original is only read.

    InputError when the run is not finished, its prepared arrays are gone, or the source of today refuses its job.
    """
    from reread.planning import keys  # torch
    from reread.planning.plan import job_settings
    from reread.training.launcher import run_training
    from reread.training.machine import machine

    if not run.finished:
        raise InputError(
            f"{run.directory} is not finished: there is nothing to reproduce yet, run its experiment again"
        )
    prepared = Path(run.job["prepared"])
    if not (prepared / DESCRIPTION).is_file():
        raise InputError(f"{prepared} is gone: {_how_to_prepare(run)}")
    directory = read_environment().runs / FOLDER / run.key
    # The original's lock too: it is not removed while it is read.
    alone = held_alone(run_lock(directory), lambda by: f"{run.key} is being reproduced by {by}: wait for it")
    with file_lock(run_lock(run.directory)), alone as lock:
        # From the start: an earlier attempt may have been of another source.
        shutil.rmtree(directory, ignore_errors=True)
        job = Job.read(run)
        network, training = job_settings(job)
        description = read_json(prepared / DESCRIPTION)
        again = dataclasses.replace(
            job,
            run_directory=directory,
            key_parts={**job.key_parts, "data": keys.data_digest(description)},
            source=keys.source(job.model, description["kind"], network, training),
            machine=keys.job_machine(machine(), training, job.processes),
        )
        run_training(again, on_event, lock)
    return RunFolder(directory)


def forget(again: RunFolder) -> None:
    """Remove the run that ``reproduce`` returned, and its folder where no other is in it."""
    shutil.rmtree(again.directory)
    if all(path.name == ".locks" for path in again.directory.parent.iterdir()):
        shutil.rmtree(again.directory.parent)


def _how_to_prepare(run: RunFolder) -> str:
    """The command that makes the prepared arrays of ``run`` again, or the reason why none can."""
    from reread.planning.resolve import make_plan

    data, key = run.job["data"], Path(run.job["prepared"]).name
    for name in experiments():
        if any(variant.prepared_key == key for variant in make_plan(name).variants.values()):
            return f"make it again with `reread preprocess --experiment {name} --data {data}`"
    commit = run.environment.get("git_commit")
    where = f"of commit {commit[:12]}" if commit else "that it was made with"
    return f"no experiment prepares '{data}' so today, only the data, parameters and source {where} do"
