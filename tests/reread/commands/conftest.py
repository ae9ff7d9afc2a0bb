"""The command in this process, in a project folder that tests share and do not change."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reread.commands.app import main
from reread.storage.source import ROOT
from tests.conftest import NOT_INHERITED

SETTINGS = ("params.yaml", "data.manifest.json", "pyproject.toml")


def make_folder(folder: Path) -> Path:
    """A project folder with its settings, its experiments and its data, and without its source."""
    for name in SETTINGS:
        shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    (folder / "data").symlink_to((ROOT / "data").resolve())
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("project"))


@pytest.fixture
def reread(shared_folder, monkeypatch, capsys) -> Callable[..., str]:
    """Call the command; check its exit code; return its stdout, or its stderr where it prints nothing.

    Bad input must be one line.
    """
    for name in list(os.environ):
        if name.startswith(NOT_INHERITED):
            monkeypatch.delenv(name)
    monkeypatch.chdir(shared_folder)

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        assert ended.value.code == code, printed
        if code == 2:
            assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
        return printed.out or printed.err

    return call
