"""What can go from runs/ and prepared/, why, and how much that frees.

    checkpoint  last.safetensors of a finished run: only an unfinished one is resumed from it
    run         one that no experiment would take up again, whichever its seed: its variant is gone, or parameters,
                data or source are others today
    prepared    arrays that neither an experiment nor a run that stays refers to
    leftover    hidden files of a process that died while it wrote, and reproductions that were kept

A machine's runs are no other machine's rubbish: torch, CUDA and device are not asked. What MLflow keeps (metrics,
models) is its own. A run that trains now holds a lock, and is left alone.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.reproduction import FOLDER as REPRODUCED
from planning.environment import read_environment
from planning.experiment import experiments
from planning.plan import make_plan
from planning.runs import Run, all_runs
from storage.files import file_lock
from storage.prepared import DESCRIPTION
from tasks.train import run_lock

# A hidden file younger than this may be one that somebody writes now.
SETTLED_SECONDS = 3600


@dataclass(frozen=True)
class Item:
    """A file or folder that can go; ``lock`` is held while somebody works on it."""

    kind: str
    path: Path
    why: str
    bytes: int
    lock: Path | None = None


def find() -> list[Item]:
    """Everything that can go, the kinds in the order above. InputError where an experiment cannot be read."""
    wanted = {name: make_plan(name).parts() for name in experiments()}
    prepared_root = read_environment().prepared
    kept, items = [], []
    for run in all_runs():
        if _is_held(run_lock(run.key)) or _is_held(run.directory / ".lock"):
            kept.append(run)
            continue
        why = _why_stale(run, wanted)
        if why:
            items.append(Item("run", run.directory, why, _size(run.directory), run_lock(run.key)))
            continue
        kept.append(run)
        if run.finished:
            for file in sorted(run.directory.glob("last.*")):
                items.append(Item("checkpoint", file, "the run is finished", _size(file), run_lock(run.key)))
    used = {Path(run.job["prepared"]).name for run in kept}
    used |= {one["prepared_key"] for variants in wanted.values() for one in variants.values()}
    for folder in sorted(prepared_root.glob(f"*/{DESCRIPTION}")):
        if not folder.parent.name.startswith(".") and folder.parent.name not in used:
            lock = prepared_root / ".locks" / f"{folder.parent.name}.lock"
            if not _is_held(lock):
                items.append(Item("prepared", folder.parent, "nothing refers to it", _size(folder.parent), lock))
    items += _leftovers({item.path for item in items})
    order = ("checkpoint", "run", "prepared", "leftover")
    return sorted(items, key=lambda item: (order.index(item.kind), str(item.path)))


def remove(items: Iterable[Item]) -> tuple[int, list[Item]]:
    """Remove ``items``; return the bytes freed and the items that somebody has begun to use meanwhile."""
    freed, in_use = 0, []
    for item in items:
        with contextlib.ExitStack() as held:
            if item.lock and not held.enter_context(file_lock(item.lock, blocking=False)):
                in_use.append(item)
                continue
            if item.path.is_dir():
                # By another name first, so that a folder is whole or gone, also when we are killed here.
                doomed = item.path.with_name(f".{item.path.name.lstrip('.')}.pruned")
                os.replace(item.path, doomed)
                shutil.rmtree(doomed)
            else:
                item.path.unlink(missing_ok=True)
            freed += item.bytes
    return freed, in_use


def _why_stale(run: Run, wanted: dict[str, dict[str, dict[str, Any]]]) -> str | None:
    """Why no experiment would reuse ``run``: what differs from the nearest variant; None where one would."""
    changes = [(_changes(run.job, one), name) for name, variants in wanted.items() for one in variants.values()]
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
    """What of a job differs from the parts of a key today, in words; empty where nothing does."""
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


def _leftovers(found: set[Path]) -> Iterator[Item]:
    """Hidden files and folders that have not been touched for an hour; reproductions that were kept."""
    data = Path("data")
    environment = read_environment()
    roots = (environment.runs, environment.prepared, environment.reports, data)
    hidden = [path for root in roots for path in root.glob(".*")]
    hidden += [path for run in all_runs() if run.directory not in found for path in run.directory.glob(".*.*")]
    hidden += Path().glob(".mlflow.db.*")
    for path in sorted(hidden):
        if path.name in (".locks", ".gitignore"):
            continue
        if time.time() - _touched(path) > SETTLED_SECONDS:
            why = "reproductions that were kept" if path.name == REPRODUCED else "left by a process that died"
            yield Item("leftover", path, why, _size(path))


def _is_held(lock: Path) -> bool:
    if not lock.is_file():
        return False
    with file_lock(lock, blocking=False) as free:
        return not free


def _files(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        yield from path.rglob("*")


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(one.lstat().st_size for one in _files(path) if not one.is_dir())


def _touched(path: Path) -> float:
    """When anything in it was last changed, in seconds since 1970."""
    return max(one.lstat().st_mtime for one in _files(path))
