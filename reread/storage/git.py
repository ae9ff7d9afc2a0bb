"""The commit of the source that runs, and since when files have what they have."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reread.storage.errors import ROOT

# Data sets that were added, results, and pages: what they hold is versioned by digests, and no run is computed by them.
NOT_SOURCE = ("data.dvc", "data.manifest.json", "dvc.lock", "results", "docs")


@dataclass(frozen=True)
class Commit:
    """A commit, and when it was made: UTC, as YYYY-MM-DDTHH:MM:SSZ."""

    sha: str
    date: str


def checkout() -> tuple[str, bool] | None:
    """Return the commit and whether tracked source differs from it; None without git or outside a checkout."""
    left_out = [f":(exclude){name}" for name in NOT_SOURCE]
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *left_out)
    return None if head is None or changes is None else (head, bool(changes))


def commits(root: Path, paths: Sequence[Path], change: str | None = None) -> list[Commit] | None:
    """Return the commits that changed one of ``paths``, from the root on, the newest first.

    One path is followed through its renames. change: a regular expression; only commits that changed a line which it
    matches. None without git, in a shallow clone, and where one of the paths is not committed as it is.
    """
    names = [str(path) for path in paths]
    whole = _git("rev-parse", "--is-shallow-repository", root=root) == "false"
    if not whole or _git("status", "--porcelain", "--", *names, root=root) != "":
        return None
    pattern = [*(["--follow"] if len(names) == 1 else []), *(["-G", change] if change else [])]
    lines = _git("log", "--format=%H %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", *pattern, "--", *names, root=root)
    return None if lines is None else [Commit(*line.split()) for line in lines.splitlines()]


def file_at(root: Path, commit: str, path: Path) -> str | None:
    """Return a file as a commit has it; None where it has none."""
    return _git("show", f"{commit}:./{path}", root=root)


def _git(*arguments: str, root: Path | None = None) -> str | None:
    command = ["git", "-C", str(root or ROOT), *arguments]
    environment = {**os.environ, "TZ": "UTC"}  # dates are UTC, as those of the ledger
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
