"""A project's folder that was moved or copied: MLflow's artifacts are found in it and written to it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.source import ROOT
from reread.tracking.runs import open_tracking
from tests.reread.tracking.comparison import server
from tests.servers import call

# Record a finished run of the project in the current folder, register its model, and print the run's id.
TRACK = """
import sys
from pathlib import Path
from reread.storage.files import read_json
from tests.reread.tracking.examples import evaluate_run, finish_run, make_job, prepared_text
from reread.tracking.registry import log_model
from reread.tracking.runs import open_tracking

prepared = prepared_text(Path.cwd())
job = make_job(Path.cwd(), prepared, "gru_flat", int(sys.argv[1]))
run = finish_run(job, description=read_json(prepared / "prepared.json"))
tracking = open_tracking()
run_id = tracking.record(job, evaluate_run(run))
log_model(tracking, run_id, run)
print(run_id)
"""


def track(project: Path, seed: int) -> str:
    """Track a run in a process of its own, as a user would: MLflow's connections outlive a folder's move."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRACK, str(seed)], cwd=project, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def old(tmp_path, monkeypatch, empty_databases):
    """The folder of a project with an empty database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy2(empty_databases / "mlflow.db", folder)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_and_a_moved_project_have_their_own_artifacts(old, tmp_path):
    track(old, 0)
    before = contents(old)
    # The new name begins with the old one, and is encoded in an address.
    copy = shutil.copytree(old, tmp_path / "project, copied ü")
    track(copy, 1)
    assert contents(old) == before
    shutil.rmtree(old)
    moved = copy.rename(tmp_path / "moved")

    client = open_tracking(moved).client
    versions = client.search_model_versions("name = 'reread-snippets'")
    with server(f"sqlite:///{moved}/mlflow.db", moved / "mlartifacts", tmp_path / "server.log") as address:
        for version in versions:
            run = f"{address}/get-artifact?run_uuid={version.run_id}&path=result.json"
            model = f"{address}/model-versions/get-artifact?name={version.name}&version={version.version}&path=MLmodel"
            assert "run_key" in call(run) and "python_function" in call(model)
    assert len(versions) == 2
    of_new = client.create_run(client.get_experiment_by_name("trial").experiment_id)
    assert of_new.info.artifact_uri.startswith(f"{moved.as_uri()}/mlartifacts/trial/")
    assert not copy.exists() and not old.exists()


def test_what_another_project_keeps_is_left_in_its_place(old, tmp_path, monkeypatch):
    open_tracking(old).experiment("trial")
    (old / "mlartifacts/trial").mkdir(parents=True)
    copy = shutil.copytree(old, tmp_path / "copy")
    address = lambda tracking, name: tracking.client.get_experiment_by_name(name).artifact_location  # noqa: E731
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{old}/mlflow.db")
    tracking = open_tracking(copy)
    assert address(tracking, "trial") == (old / "mlartifacts/trial").as_uri()
    tracking.experiment("of the copy")
    place = copy / "mlartifacts/of the copy"
    place.mkdir()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert address(open_tracking(old), "of the copy") == place.as_uri()
