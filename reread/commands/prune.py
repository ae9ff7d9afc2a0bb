"""Remove what is no longer needed, after asking.

reread prune --dry-run      list what can be removed; remove nothing
reread prune                ask, then remove
reread prune --yes          remove without asking

checkpoint  checkpoints/ of a finished run: only an unfinished or a damaged one is resumed from them
run         a run that no experiment would reuse, whichever its seed: its variant is gone, or its parameters, data or
            source are different today
prepared    arrays that neither an experiment nor a kept run refers to
leftover    hidden files of a process that died while it wrote, and reproductions that were kept

Runs of another machine are kept: torch, CUDA and device are ignored. So are runs of a job file that was written by
hand. What MLflow keeps (metrics, models) is left alone. Nothing goes whose lock is held, however old it looks: a run
that is trained, evaluated or reproduced, arrays that are prepared, data that is added, a report that is written. No run
and no arrays of a flow go before it has ended. While an experiment cannot be read, neither runs nor prepared arrays go:
it might reuse them.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from reread.commands.data_add import lock_of as data_lock
from reread.commands.options import AsJson, print_json, print_table
from reread.commands.reproduce import FOLDER as REPRODUCED
from reread.planning.environment import read_environment
from reread.planning.experiment import experiments
from reread.planning.runs import RESULTS, all_runs
from reread.storage.errors import InputError
from reread.storage.files import remove_directory
from reread.storage.locks import file_lock, holder, is_held, reservations, reserved_in, run_lock
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import CHECKPOINTS, RunFolder
from reread.tracking.connection import LOCKS
from reread.tracking.recording import FOLDER as UNRECORDED

# A hidden file younger than this may be one that somebody writes now, before it is locked.
SETTLED_SECONDS = 3600
# What a job that an experiment made has, and the parts of its key that are the same for all seeds and machines.
OF_EXPERIMENTS = {"variant", "prepared", "key_parts"}
SHARED_PARTS = {"model", "network", "training", "data", "source"}


@dataclass(frozen=True)
class Item:
    """A file or folder that can go. Whoever works on it holds ``lock`` or the folder's own, or has it reserved."""

    kind: str
    path: Path
    why: str
    bytes: int
    lock: Path | None = None

    @property
    def in_use(self) -> bool:
        """Whether a process works on it now."""
        return is_held(self.path) or (self.lock is not None and is_used(self.lock))

    @property
    def user(self) -> str:
        """Who works on it, in words."""
        return holder(reserved_in(self.lock) or self.lock) if self.lock else "another process"


def is_used(lock: Path) -> bool:
    """Return whether a process holds the lock of a run or of arrays, or has them reserved."""
    return is_held(lock) or reserved_in(lock) is not None


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what can go and leave it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if as_json and not dry_run:
        raise InputError("--json lists and removes nothing: give --dry-run as well")
    items = find(lambda line: print(f"warning: {line}", file=sys.stderr))
    if as_json:
        print_json([{**vars(item), "path": str(item.path), "lock": item.lock and str(item.lock)} for item in items])
        return
    if not items:
        console.print("nothing to remove")
        return
    print_table(table(items))
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("--yes is missing: without a terminal to ask at, nothing is removed")
        if console.input("remove all of these? \\[y/N] ").strip().lower() not in ("y", "yes"):
            console.print("nothing was removed")
            return
    freed, in_use = remove(items)
    console.print(f"freed {decimal(freed)}")
    for item in in_use:
        console.print(f"left: {item.path} is in use by {item.user}", markup=False)


def find(warn: Callable[[str], None] = lambda line: None) -> list[Item]:
    """Return every item that can be removed, kinds in the order above.

    ``warn`` gets a line for each experiment that cannot be read: then no run and no arrays are among the items.
    """
    from reread.planning.resolve import make_plan  # torch

    wanted, unreadable = {}, False
    for name in experiments():
        try:
            wanted[name] = make_plan(name).parts()
        except InputError as error:
            unreadable = True
            warn(f"{error}; until then '{name}' might reuse any run or prepared arrays: they are kept")
    prepared_root = read_environment().prepared
    kept, items = [], []
    for run in all_runs():
        lock = run_lock(run.directory)
        if is_used(lock):
            kept.append(run)
            continue
        why = None if unreadable else _why_stale(run, wanted)
        if why:
            items.append(Item("run", run.directory, why, _size(run.directory), lock))
            continue
        kept.append(run)
        if run.finished:
            checkpoints = run.directory / CHECKPOINTS
            if checkpoints.is_dir():
                items.append(Item("checkpoint", checkpoints, "the run is finished", _size(checkpoints), lock))
    used = {Path(run.job["prepared"]).name for run in kept if "prepared" in run.job}
    used |= {parts["prepared_key"] for variants in wanted.values() for parts in variants.values()}
    for folder in [] if unreadable else sorted(prepared_root.glob(f"*/{DESCRIPTION}")):
        if not folder.parent.name.startswith(".") and folder.parent.name not in used:
            size, lock = _size(folder.parent), run_lock(folder.parent)
            items.append(Item("prepared", folder.parent, "nothing refers to it", size, lock))
    items += _leftovers({item.path for item in items})
    order = ("checkpoint", "run", "prepared", "leftover")
    items = [item for item in items if not item.in_use]
    return sorted(items, key=lambda item: (order.index(item.kind), str(item.path)))


def remove(items: Iterable[Item]) -> tuple[int, list[Item]]:
    """Remove ``items``; return the bytes freed and the items that are in use since they were listed."""
    freed, in_use = 0, []
    for item in items:
        with contextlib.ExitStack() as held:
            if item.lock:
                held.enter_context(file_lock(reservations(item.lock)))
            if item.in_use or (item.lock and not held.enter_context(file_lock(item.lock, blocking=False))):
                in_use.append(item)
                continue
            if item.path.is_dir():
                remove_directory(item.path)
            else:
                item.path.unlink(missing_ok=True)
            freed += item.bytes
    return freed, in_use


def _why_stale(run: RunFolder, wanted: dict[str, dict[str, dict[str, Any]]]) -> str | None:
    """Why no experiment would reuse ``run``: what differs from the nearest variant; None where one would.

    None as well for a run of a job that no experiment made, which lacks parts of the key.
    """
    if not run.job.keys() >= OF_EXPERIMENTS or not set(run.job["key_parts"]) >= SHARED_PARTS:
        return None
    changes = [(_changes(run.job, parts), name) for name, variants in wanted.items() for parts in variants.values()]
    own = [
        _changes(run.job, variants[run.job["variant"]])
        for variants in wanted.values()
        if run.job["variant"] in variants
    ]
    if not all(change for change, _ in changes):
        return None
    if not own:
        return f"no experiment has a variant '{run.job['variant']}'"
    if run.job.get("experiment", "") not in wanted:
        return f"experiment '{run.job.get('experiment', '')}' is gone, and no other has this variant as it was"
    return min(own, key=len)


def _changes(job: dict[str, Any], today: dict[str, Any]) -> str:
    """Return in words how a job differs from today's parts of its key; empty if it does not."""
    then = job["key_parts"]
    parts = []
    if any(then[name] != today[name] for name in ("model", "network", "training")):
        parts.append("parameters")
    same_data = then["data"] == today["data"]
    if today["data"] is None:
        same_data = today["prepared_key"] in (None, Path(job["prepared"]).name)
    if not same_data:
        parts.append("data")
    if then["source"] != today["source"]:
        parts.append("source")
    return f"{', '.join(parts)} changed" if parts else ""


def _leftovers(files: set[Path]) -> Iterator[Item]:
    """Hidden files and folders that have not been touched for an hour; reproductions that were kept."""
    environment = read_environment()
    hidden: dict[Path, Path | None] = {}
    for root in (environment.runs, environment.prepared):  # whose locks are in the same place
        hidden |= {path: run_lock(root / _written(path)) for path in root.glob(".*")}
    hidden |= {path: data_lock(_written(path)) for path in Path("data").glob(".*")}
    hidden |= dict.fromkeys((*environment.reports.glob(".*"), *RESULTS.glob("**/.*")))
    hidden |= dict.fromkeys(Path().glob(".mlflow.db.*"), LOCKS / "mlflow.lock")
    for run in all_runs():
        if run.directory not in files:
            inside = (*run.directory.glob(".*.*"), *run.directory.glob(f"{CHECKPOINTS}/.*"))
            hidden |= dict.fromkeys(inside, run_lock(run.directory))
    reproduced = {path: run_lock(path) for path in (environment.runs / REPRODUCED).glob("[!.]*")}
    for path, lock in (hidden | reproduced).items():
        if path.name in (".locks", ".gitignore", UNRECORDED, REPRODUCED):
            continue
        if time.time() - _touched(path) > SETTLED_SECONDS:
            why = "a reproduction that was kept" if path in reproduced else "left by a process that died"
            yield Item("leftover", path, why, _size(path), lock)


def _written(path: Path) -> str:
    """Return the name under which a hidden file or folder was to appear: ``KEY`` of ``.KEY.a1b2c3``."""
    return path.name[1:].rpartition(".")[0]


def _files(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        yield from path.rglob("*")


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.lstat().st_size for file in _files(path) if not file.is_dir())


def _touched(path: Path) -> float:
    """When anything in it was last changed, in seconds since 1970."""
    return max(file.lstat().st_mtime for file in _files(path))


def table(items: list[Item]) -> Table:
    """Return the table of the items and the total that they free."""
    listed = Table(box=None, padding=(0, 3, 0, 0), show_footer=True)
    total = f"{decimal(sum(item.bytes for item in items))} in all"
    for title, footer in (("what", ""), ("where", total), ("why", "")):
        listed.add_column(title, footer, overflow="fold", no_wrap=title == "what")
    listed.add_column("size", justify="right", no_wrap=True)
    for item in items:
        listed.add_row(item.kind, Text(str(item.path)), Text(item.why), decimal(item.bytes))
    return listed
