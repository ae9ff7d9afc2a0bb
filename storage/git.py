"""The commit of the source that runs."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent


def checkout() -> tuple[str, bool] | None:
    """Return the commit and whether tracked files differ from it; None without git or outside a checkout."""
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return None if head is None or changes is None else (head, bool(changes))


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", SOURCE, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
