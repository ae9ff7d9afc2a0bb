"""Progress where Prefect's server is gone, and what a name prints."""

from uuid import uuid4

from tasks import progress
from tasks.progress import RunProgress, say


def test_a_bar_that_cannot_be_drawn_stops_no_training(monkeypatch, capsys):
    calls = []

    def refuse(*arguments, **keywords):
        calls.append(keywords)
        raise ConnectionError("All connection attempts failed")

    for name in ("create_progress_artifact", "update_progress_artifact"):
        monkeypatch.setattr(progress, name, refuse)
    monkeypatch.setattr(progress.TaskRunContext, "get", lambda: object())
    monkeypatch.setattr(progress, "get_run_logger", lambda: progress.BOARD.console)
    monkeypatch.setattr(progress.BOARD.console, "info", lambda line: None, raising=False)
    run = RunProgress({"variant": "han", "seed": 0, "training": {"max_epochs": 2}})
    assert run.artifact is None and len(calls) == 1
    run.artifact = uuid4()
    event = {"event": "epoch", "epoch": 1, "training_loss": 0.5, "validation_score": 0.5, "samples_per_second": 1.0}
    run(event)
    run(event | {"epoch": 2})
    run.finish("done")
    assert len(calls) == 2


def test_what_a_name_has_moves_no_cursor(capsys):
    say("variant \x1b[2J of\ntwo lines")
    assert capsys.readouterr().out == "variant \\x1b[2J of\ntwo lines\n"
