"""The folder in which the tests of tracking run."""

import shutil
import sys

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_databases):
    """An empty project folder as the current one, which no server of the user's reaches."""
    shutil.copy2(empty_databases / "mlflow.db", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # MLflow puts the code of each model that it loads before the project's, for this process and those it starts.
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
