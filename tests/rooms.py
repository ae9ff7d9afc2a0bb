"""A copy of the project's source, for tests that edit it."""

import shutil
from pathlib import Path

from reread.storage.source import ROOT


def copy_rooms(destination: Path) -> Path:
    """Copy every package of the project, without what was compiled, into ``destination`` and return it."""
    for package in ROOT.glob("*/__init__.py"):
        ignored = shutil.ignore_patterns("__pycache__", "built")
        shutil.copytree(package.parent, destination / package.parent.name, ignore=ignored)
    return destination
