"""A disk that becomes full while a run trains: its checkpoint stays, the run has FAILED, and it resumes."""

import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tasks.train
from reread.planning.resolve import make_plan
from reread.storage.digests import refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.source import ROOT
from reread.tracking.runs import open_tracking
from reread.training.checkpoint import checkpoints
from reread.training.launcher import RUNNING, run_training
from tasks.preprocess import preprocess
from tasks.progress import RunProgress
from tasks.train import train
from tests.reread.commands.conftest import make_folder
from tests.reread.training.outcome import outcome

ENOUGH = resource.RLIM_INFINITY


class Filling(RunProgress):
    """Leaves the training process no room for a checkpoint from its second epoch on."""

    def __call__(self, event):
        super().__call__(event)
        if event["event"] == "epoch" and event["epoch"] == 2:
            (process,) = RUNNING
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, ENOUGH))


def test_a_disk_that_becomes_full_leaves_the_checkpoint_and_the_run_resumes(empty_databases, tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_databases / "mlflow.db", tmp_path)
    plan = make_plan("tiny", ["densenet-relu"], [0], ["training.max_epochs=8", "training.patience=8"])
    (job,) = plan.jobs({key: preprocess.fn(about) for key, about in plan.preparations().items()})
    folder = job.run_directory

    monkeypatch.setattr(tasks.train, "RunProgress", Filling)
    with pytest.raises(InputError, match=f"^densenet-relu seed 0: .*{folder} cannot be written .*make room"):
        train.fn(job)
    kept = checkpoints(folder)
    assert len(kept) == 2 and int(kept[-1].name) >= 2 and not (folder / "result.json").exists()
    for checkpoint in kept:
        refuse_damaged_folder(checkpoint)
    assert list(folder.glob("checkpoints/.*")) == []

    def tracked():
        (run,) = open_tracking().client.search_runs([open_tracking().experiment("tiny")], "tags.seed = '0'")
        return run

    assert tracked().info.status == "FAILED" and "make room" in tracked().data.tags["ended_by"]

    monkeypatch.setattr(tasks.train, "RunProgress", RunProgress)
    train.fn(job)
    assert f"resumed after epoch {int(kept[-1].name)}\n" in (folder / "log.txt").read_text()
    assert tracked().info.status == "FINISHED"
    alone = replace(job, run_directory=Path("alone/run"))
    alone.run_directory.mkdir(parents=True)
    run_training(alone, lambda event: None)
    assert outcome(folder) == outcome(alone.run_directory)
