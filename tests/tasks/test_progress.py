"""The bar of a run's epochs on Prefect's pages, and the lines about a run."""

import uuid
from dataclasses import replace

import pytest

from tasks import progress
from tasks.board import BOARD
from tasks.progress import RunProgress, artifact_key
from tests.tasks.test_board import job

JOB = replace(job("han-0.01", seed=3), training={"max_epochs": 4})


def epoch(number: int) -> dict:
    return {"event": "epoch", "epoch": number, "training_loss": 0.5, "validation_score": 0.75,
            "samples_per_second": 100.0, "seconds_left": 9.0}  # fmt: skip


@pytest.fixture
def drawn(monkeypatch) -> list:
    """The bars that would be drawn: (key or none, percent, description)."""
    bars: list = []

    def create(progress, key, description):
        bars.append((key, progress, description))
        return uuid.uuid4()

    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", create)
    monkeypatch.setattr("prefect.artifacts.update_progress_artifact", lambda _, *about: bars.append((None, *about)))
    monkeypatch.setattr(progress, "task_context", lambda: object())
    monkeypatch.setattr(progress, "log", lambda *_: None)
    monkeypatch.setattr(progress, "ARTIFACT_SECONDS", 0.0)
    BOARD.reset()
    return bars


def test_a_run_has_a_bar_of_its_epochs(drawn, capsys):
    run = RunProgress(JOB)
    run({"event": "started", "epoch": 0})
    run(epoch(1))
    run({**epoch(2), "event": "progress", "loss": 0.4})
    run(epoch(2))
    run.finish("han-0.01 seed 3: done")
    assert [about[:2] for about in drawn] == [("tiny-han-0-01-3-epochs", 25.0), (None, 50.0), (None, 100.0)]
    assert drawn[0][2] == "han-0.01 seed 3: epoch 1 of at most 4, validation 0.7500"
    assert drawn[-1][2] == "han-0.01 seed 3: done"
    printed = capsys.readouterr().out
    assert printed.count("epoch") == 2 and "epoch 2 of at most 4, loss 0.5000, validation 0.7500" in printed


def test_a_run_that_fails_leaves_its_bar_where_it_is(drawn):
    run = RunProgress(JOB)
    run(epoch(1))
    run.finish("han-0.01 seed 3: stopped", trained=False)
    assert [about[1] for about in drawn] == [25.0]


def test_keys_of_artifacts_are_as_prefect_takes_them():
    assert artifact_key("IMDB_tuning", "han/learning_rate=0.01", 7) == "imdb-tuning-han-learning-rate-0-01-7"
