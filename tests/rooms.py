"""A copy of the project's source, for tests that edit it."""

import shutil
from pathlib import Path

from reread.storage.source import ROOT


def copy_rooms(destination: Path, *rooms: str) -> Path:
    """Copy rooms of the project ("models", "reread/training"; none given: all), without what was compiled, into
    ``destination`` and return it."""
    destination.mkdir(exist_ok=True)
    for room in rooms or [package.parent.name for package in ROOT.glob("*/__init__.py")]:
        shutil.copytree(ROOT / room, destination / room, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    package = Path("reread/__init__.py")
    if (destination / package.parent).is_dir():
        shutil.copy(ROOT / package, destination / package)
    return destination
