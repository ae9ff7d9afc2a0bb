"""Progress where Prefect's server is gone, and what a name prints."""

from tasks import progress
from tasks.progress import RunProgress, say
from tests.tasks.test_board import job


def test_a_bar_that_cannot_be_drawn_stops_no_training(monkeypatch, capsys):
    calls = []

    def refuse(*arguments, **keywords):
        calls.append(keywords)
        raise ConnectionError("All connection attempts failed")

    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", refuse)
    monkeypatch.setattr(progress, "task_context", lambda: object())
    monkeypatch.setattr(progress, "log", lambda *_: None)
    monkeypatch.setattr(progress, "ARTIFACT_SECONDS", 0.0)
    run = RunProgress(job("han", seed=0))
    event = {"event": "epoch", "epoch": 1, "training_loss": 0.5, "validation_score": 0.5, "samples_per_second": 1.0}
    run(event | {"seconds_left": 1.0})
    run(event | {"epoch": 2, "seconds_left": 0.0})
    run.finish("done")
    assert len(calls) == 1


def test_what_a_name_has_moves_no_cursor(capsys):
    say("variant \x1b[2J of\ntwo lines")
    assert capsys.readouterr().out == "variant \\x1b[2J of\ntwo lines\n"
