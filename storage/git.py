"""The commit of the source that runs."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
# Data sets that were added, results, and pages: what they hold is versioned by digests, and no run is computed by them.
NOT_SOURCE = ("data.dvc", "data.manifest.json", "dvc.lock", "results", "docs")


def checkout() -> tuple[str, bool] | None:
    """Return the commit and whether tracked source differs from it; None without git or outside a checkout."""
    left_out = [f":(exclude){name}" for name in NOT_SOURCE]
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *left_out)
    return None if head is None or changes is None else (head, bool(changes))


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", SOURCE, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
