"""From a claim file to jobs: each arm and seed with the key of its content, by which a finished run is found again."""

import functools
import glob
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from reread.arms.machine import this_machine
from reread.arms.revisions import Revision, find_revision
from reread.arms.settings import Arm, ArmsFile, command_of, listed, metrics_of
from reread.storage.digests import Damaged, current_sha256, refuse_damaged
from reread.storage.errors import InputError
from reread.storage.files import content_key, read_json, write_text
from reread.storage.run_folder import LOG, RESULT

FOLDER = ".reread"
RUNS = "runs"
OUT, SOURCE = "out", "source"
# Parts of a key that are digests of files by their paths.
FILES = ("sources", "lock", "data")
# What Python and git leave in a folder of sources changes no result.
NOT_SOURCE = ("__pycache__", ".git", FOLDER)


@dataclass(frozen=True)
class Job:
    """One run of a command: an arm and a seed, what its key is made of, and its folder.

    place: the folder of the claim file. revision: None where the command runs in a folder as it is. metrics: of the
    claims, which the command must write.
    """

    arm: str
    seed: int
    settings: Arm = field(repr=False)
    place: Path
    revision: Revision | None
    parts: Mapping[str, Any] = field(repr=False)
    runs: Path
    metrics: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @functools.cached_property
    def key(self) -> str:
        return content_key(self.parts)

    @property
    def directory(self) -> Path:
        """Its folder, RUNS/KEY."""
        return self.runs / self.key

    @property
    def out(self) -> Path:
        return self.directory / OUT

    @property
    def log(self) -> Path:
        return self.directory / LOG

    @property
    def command(self) -> str:
        """The command for the shell."""
        return command_of(self.settings, self.seed, self.out.resolve(), self.place.resolve())

    @property
    def folder(self) -> Path:
        """Where the command runs: in a copy of the revision, or in the folder that it names, as it is."""
        source = self.place if self.revision is None else self.directory / SOURCE
        return source / (self.settings.folder or "")

    @property
    def finished(self) -> bool:
        return (self.directory / RESULT).is_file()

    def damage(self) -> str | None:
        """Return in words which file of a finished run is not the one that it made; None if all are."""
        try:
            for name, digest in read_json(self.directory / RESULT)["files"].items():
                refuse_damaged(self.out / name, digest)
        except Damaged as error:
            return str(error)
        except (InputError, KeyError, TypeError, AttributeError):
            return f"{self.directory / RESULT} is damaged"
        return None

    def refuse_changed(self) -> None:
        """Raise InputError where a declared file is no longer the one of the key."""
        for part in FILES:
            for name, digest in self.parts[part].items():
                path = self.place / name
                if not path.is_file() or current_sha256(path) != digest:
                    raise InputError(f"{self.name}: {path} has changed since this command began: run it again")

    def record(self) -> dict[str, Any]:
        """Return job.json: what ran, and the parts of the key."""
        return {"arm": self.arm, "seed": self.seed, "key": self.key, "key_parts": self.parts, **self.origin}

    @property
    def origin(self) -> dict[str, str | None]:
        """The repository and the commit."""
        return {name: getattr(self.revision, name, None) for name in ("repository", "commit")}


def make_jobs(given: ArmsFile, path: Path, machine: Mapping[str, Any] | None = None) -> list[Job]:
    """Return the jobs of a claim file, all arms of a seed together; InputError for a revision or file that is missing.

    Arms in turn: a drift of the machine is no difference between them. machine: that runs the commands; by default
    this one.
    """
    place, seeds, metrics = path.parent, given.seed_list, metrics_of(given)
    cache = place / FOLDER
    machine = machine or this_machine()
    jobs: dict[str, dict[int, Job]] = {}
    find = functools.cache(lambda name, repository: find_revision(name, repository, place, cache))
    for name, arm in given.resolved_arms().items():
        try:
            revision = find(arm.git, arm.repository) if arm.git else None
            parts = {
                "tree": revision.tree if revision else None,
                # Where a command without a revision runs is no content: its sources are.
                "folder": arm.folder if revision else None,
                **{part: digests_of(getattr(arm, part), place) for part in FILES},
                "command": arm.run,
                "machine": machine,
            }
        except InputError as error:
            raise InputError(f"arm '{name}': {error}") from None
        if revision is None and not (place / (arm.folder or "")).is_dir():
            raise InputError(f"arm '{name}': {place / (arm.folder or '')} is no folder: correct `folder`")
        if arm.gpu:
            refuse_no_gpu(name, machine)
        jobs[name] = {
            seed: Job(name, seed, arm, place, revision, {**parts, "seed": seed}, cache / RUNS, metrics)
            for seed in seeds
        }
    refuse_equal_arms({name: by_seed[seeds[0]].key for name, by_seed in jobs.items()})
    return [by_seed[seed] for seed in seeds for by_seed in jobs.values()]


JOB_FILE = TypeAdapter(Job)


def write_job(job: Job, path: Path) -> None:
    """Write a job for a process of another machine that shares the folder and begins in the same one."""
    write_text(path, JOB_FILE.dump_json(job).decode())


def read_job(path: Path) -> Job:
    """Return the job that ``write_job`` wrote."""
    return JOB_FILE.validate_json(path.read_bytes())


def refuse_other_machine(jobs: Sequence[Job]) -> None:
    """Raise InputError where a key names another machine than this one."""
    for job in jobs:
        if job.parts["machine"] != this_machine():
            raise InputError(
                f"{job.name} is a run of {dict(job.parts['machine'])}, and this machine is {this_machine()}: write a "
                "file by `python -m reread.arms.machine` on this machine, and name it in REREAD_MACHINE"
            )


def refuse_no_gpu(arm: str, machine: Mapping[str, Any]) -> None:
    """Raise InputError where there is no GPU, or no torch, by which reread's runs share them."""
    if not machine["gpus"]:
        raise InputError(f"arm '{arm}' needs a GPU, and nvidia-smi shows none: remove gpu, or run it elsewhere")
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"arm '{arm}' needs a GPU, which takes torch beside reread: `pip install 'reread[gpu]'`")


def refuse_equal_arms(keys: Mapping[str, str]) -> None:
    """Raise InputError where two arms are the same runs."""
    first: dict[str, str] = {}
    for name, key in keys.items():
        if key in first:
            raise InputError(f"the arms '{first[key]}' and '{name}' are the same files and command: change one")
        first[key] = name


def warnings(jobs: list[Job]) -> list[str]:
    """Return a line for each arm whose commit is checked out with changes that are not committed."""
    dirty = {job.arm: job.revision.commit for job in jobs if job.revision is not None and job.revision.dirty}
    return [
        f"arm '{arm}' runs commit {commit[:12]}: the changes of the work tree that are not committed are left out"
        for arm, commit in dirty.items()
    ]


def made_by(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Return of each arm how its scores are made, as verdict.json has it: nothing that its runs wrote, and no time."""
    arms: dict[str, dict[str, Any]] = {}
    for job in jobs:
        parts = {name: value for name, value in job.parts.items() if name != "seed"}
        arms.setdefault(job.arm, {**job.origin, **parts, "runs": {}})["runs"][str(job.seed)] = job.key
    return arms


def digests_of(paths: str | list[str] | None, place: Path) -> dict[str, str]:
    """Return the sha256 of each file of paths, folders and patterns by its path from ``place``, as POSIX has it."""
    digests: dict[str, str] = {}
    for text in listed(paths):
        path = place / text
        chosen = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not chosen:
            raise InputError(f"{path} does not exist: correct the path")
        for start in chosen:
            files = [start] if start.is_file() else sorted(filter(Path.is_file, start.rglob("*")))
            for file in files:
                name = Path(os.path.relpath(file, place))
                if not set(NOT_SOURCE) & set(name.parts):
                    digests[name.as_posix()] = current_sha256(file)
    return digests
