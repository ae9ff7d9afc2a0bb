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
from planning.experiment import experiments, load_experiment
from planning.folders import prepared_root, reports_root, run_lock, runs_root
from planning.jobs import resolved_network, resolved_training, source
from planning.runs import Run, all_runs
from preprocessing.manifest import Manifest
from preprocessing.prepare import prepared_key
from storage.files import file_lock, sha256_file
from storage.prepared import DESCRIPTION

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
    wanted = {name: list(_wanted(name)) for name in experiments()}
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
    used |= {one["prepared_key"] for variants in wanted.values() for one in variants}
    for folder in sorted(prepared_root().glob(f"*/{DESCRIPTION}")):
        if not folder.parent.name.startswith(".") and folder.parent.name not in used:
            lock = prepared_root() / ".locks" / f"{folder.parent.name}.lock"
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


def _wanted(experiment_name: str) -> Iterator[dict[str, Any]]:
    """What each variant of an experiment would train with today, as its job has it."""
    experiment = load_experiment(experiment_name)
    known = Manifest.load().datasets
    for name, variant in experiment.variants.items():
        # A published data set that is not in data/ yet: nothing can be said of its arrays.
        key = prepared_key(variant.data, experiment.preprocessing[variant.data]) if variant.data in known else None
        description = prepared_root() / (key or "") / DESCRIPTION
        yield {
            "variant": name,
            "model": variant.model,
            "network": resolved_network(experiment, name),
            "training": resolved_training(experiment, name),
            "prepared_key": key,
            # Unknown while the arrays are gone: they may be made again, and with them the runs are reached.
            "prepared_sha256": sha256_file(description) if description.is_file() else None,
            "source": source(variant.model, variant.training),
        }


def _why_stale(run: Run, wanted: dict[str, list[dict[str, Any]]]) -> str | None:
    """Why no experiment takes up ``run``: by the one that comes nearest; None where one does."""
    candidates = [one for variants in wanted.values() for one in variants if one["variant"] == run.job["variant"]]
    if not candidates:
        return f"no experiment has a variant '{run.job['variant']}'"
    changes = min((_changes(run.job, one) for one in candidates), key=len)
    if changes and run.job.get("experiment", "") not in wanted:
        return f"experiment '{run.job.get('experiment', '')}' is gone, and no other has this variant as it was"
    return changes or None


def _changes(job: dict[str, Any], today: dict[str, Any]) -> str:
    """What of a job is another today, in words; empty where nothing is."""
    parts = []
    if (job["model"], job["network"], job["training"]) != (today["model"], today["network"], today["training"]):
        parts.append("parameters")
    same_data = job.get("prepared_sha256") == today["prepared_sha256"]
    if today["prepared_sha256"] is None:
        same_data = today["prepared_key"] in (None, Path(job["prepared"]).name)
    if not same_data:
        parts.append("data")
    source_then = job.get("source", {})
    files = sorted(
        name for name in {*source_then, *today["source"]} if source_then.get(name) != today["source"].get(name)
    )
    if files:
        parts.append(f"source ({files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''})")
    return f"{', '.join(parts)} changed" if parts else ""


def _leftovers(found: set[Path]) -> Iterator[Item]:
    """Hidden files and folders that have not been touched for an hour; reproductions that were kept."""
    data = Path("data")
    hidden = [path for root in (runs_root(), prepared_root(), reports_root(), data) for path in root.glob(".*")]
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
