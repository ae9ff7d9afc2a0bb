"""Remove a data set of your own, after asking.

reread data remove reviews          name the runs, reports and experiments that use it, ask, then remove
reread data remove reviews --yes    remove without asking

Removes data/NAME and its entry in data.manifest.json. Runs, reports and experiments stay; `reread prune` removes runs
that no experiment would reuse. A data set of the project itself is refused.
Then: `dvc add data`, and commit data.dvc and data.manifest.json.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reread.commands.data_add import alone
from reread.commands.options import completion
from reread.storage.errors import InputError

if TYPE_CHECKING:
    from reread.preprocessing.manifest import DataSetEntry

MOST_NAMES = 10


def own_names() -> list[str]:
    """The data sets of the manifest that the project does not make."""
    from reread.preprocessing.manifest import Manifest
    from reread.preprocessing.sources import SOURCES

    return sorted(set(Manifest.load().datasets) - set(SOURCES.available()))


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A data set of your own.", autocompletion=completion(lambda _: own_names())
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    from reread.planning.manifest import read_manifest
    from reread.preprocessing.ingest import sizes
    from reread.preprocessing.raw import removable, remove_data_set

    read_manifest()
    entry: DataSetEntry = removable(name)
    users = uses(name)
    lines = [f"{what}: {len(names)} ({listed(names)})" for what, names in users.items() if names]
    if not yes and not sys.stdin.isatty():
        used = f"; it is used: {', '.join(lines)}" if lines else ""
        raise InputError(f"--yes is missing: without a terminal to ask at, '{name}' is not removed{used}")
    with alone(name):
        print(f"{name}: {entry.kind}, {sizes(entry)}")
        for line in lines or ["no run, report or experiment uses it"]:
            print(line)
        if not yes:
            print(f"remove '{name}' from data/ and data.manifest.json? [y/N] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print("nothing was removed")
                return
        remove_data_set(name)
    print(f"removed '{name}'; what used it is kept")
    if experiments := users["experiments"]:
        files = listed([f"experiments/{experiment}.yaml" for experiment in experiments])
        print(f"Next: remove {files}, which cannot run without it")
    print("Next: dvc add data, and commit data.dvc and data.manifest.json")


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def uses(name: str) -> Mapping[str, list[str]]:
    """Return the runs, reports and experiments that use a data set, each sorted.

    A file that cannot be read is under "unreadable files": what it belongs to may use the data set.
    """
    from reread.planning.environment import read_environment
    from reread.planning.experiment import EXPERIMENTS, experiments, load_experiment
    from reread.planning.plan import PLAN
    from reread.planning.runs import RESULTS, all_runs
    from reread.storage.files import read_object
    from reread.storage.run_folder import JOB

    users: dict[str, list[str]] = {"runs": [], "reports": [], "experiments": [], "unreadable files": []}

    @contextlib.contextmanager
    def reading(file: Path) -> Iterator[None]:
        try:
            yield
        except InputError:
            users["unreadable files"].append(str(file))

    environment = read_environment()
    for run in all_runs(environment.runs):
        with reading(run.directory / JOB):
            if run.job.get("data") == name:
                users["runs"].append(run.key)
    for root in (environment.reports, RESULTS):
        for path in sorted(root.glob(f"[!.]*/{PLAN}")):
            with reading(path):
                if name in read_object(path, "data")["data"]:
                    users["reports"].append(str(path.parent))
    for experiment in experiments():
        with reading(EXPERIMENTS / f"{experiment}.yaml"):
            if name in load_experiment(experiment).data_sets:
                users["experiments"].append(experiment)
    return users
