"""What MLflow remembers: on a real sqlite database, from several real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.source import ROOT
from reread.tracking.registry import log_model, set_champion
from reread.tracking.runs import HAPPENED, MAXIMUM_METRICS, open_tracking, shared_connection
from tests.reread.tracking.comparison import server
from tests.reread.tracking.examples import evaluate_run, finish_run, history, make_job, prepared_text

# MLflow 3.17 uses what SQLAlchemy and pandas have deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
    pytest.mark.filterwarnings("ignore:.*type hint:UserWarning"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_databases):
    """An empty project folder as the current one, which no server of the user's reaches."""
    shutil.copy2(empty_databases / "mlflow.db", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def python(code: str, folder: Path) -> subprocess.Popen:
    """Start a Python process in ``folder`` that imports from the project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def runs_with(tracking, tag: str, value: str) -> list:
    everywhere = [one.experiment_id for one in tracking.client.search_experiments()]
    return list(tracking.client.search_runs(everywhere, f"tags.{tag} = '{value}'"))


def steps(tracking, run_id: str, key: str) -> list[int]:
    return [metric.step for metric in tracking.client.get_metric_history(run_id, key)]


def test_importing_it_does_not_import_mlflow(folder):
    process = python("import sys; from reread.tracking import registry, runs; print('mlflow' in sys.modules)", folder)
    assert process.communicate() == ("False\n", "")


def test_eight_processes_meet_no_database_and_all_finish(folder):
    """Each trains a run of its own and records one that all of them record: all is there once, in one experiment."""
    (folder / "mlflow.db").unlink()
    prepared = prepared_text(folder)
    jobs = [make_job(folder, prepared, "han", seed) for seed in range(9)]
    shared = finish_run(jobs[8])
    evaluation = evaluate_run(shared)
    code = f"""
        import os, sys
        import mlflow.store.tracking.sqlalchemy_store  # imported once: the processes are forked, and start at once
        from tests.reread.tracking.examples import finish_run, history
        from reread.storage.job import Job
        from reread.tracking.journal import TrackedRun
        from reread.tracking.runs import open_tracking
        go, start = os.pipe()
        processes = []
        for job in map(Job.from_json, {[job.to_json() for job in jobs[:8]]!r}):
            processes.append(os.fork())
            if processes[-1] == 0:
                os.close(start)
                os.read(go, 1)  # ends for all when the parent closes it
                run = TrackedRun(job, {{}}, lambda line: print(line, file=sys.stderr))
                for row in history(3):
                    run.log_epoch(row)
                finish_run(job)
                run.finish()
                print(open_tracking().record({str(shared)!r}, {str(evaluation)!r}), flush=True)
                os._exit(0)
        os.close(start)
        print([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes])
    """
    output, errors = python(code, folder).communicate()
    assert errors == ""
    *recorded, codes = output.splitlines()
    assert codes == str([0] * 8) and len(recorded) == 8 and len(set(recorded)) == 1
    tracking = open_tracking()
    assert [one.name for one in tracking.client.search_experiments() if one.name != "Default"] == ["trial"]
    for job in jobs:
        (found,) = runs_with(tracking, "run_key", job.run_key)
        assert found.info.status == "FINISHED"
        assert found.data.tags["folder"] == (folder / ".locks/folder").read_text()
        assert steps(tracking, found.info.run_id, "training_loss") == [1, 2, 3]
    assert recorded[0] == found.info.run_id and steps(tracking, found.info.run_id, "test.accuracy") == [0]
    (parent,) = runs_with(tracking, "mlflow.runName", "han")
    assert parent.data.metrics["variant.seeds"] == 9
    assert [path.name for path in folder.glob("*mlflow.db*")] == ["mlflow.db"]
    assert not list(folder.glob("runs/.journals/*.jsonl"))


def test_a_run_carries_what_it_was(folder):
    prepared = prepared_text(folder)
    job = make_job(folder, prepared, "han", seed=3)
    tracking = open_tracking()
    run_id = tracking.start(job, {"git.commit": "0123abc", "git.dirty": True, "prefect": {"url": None}, "cuda": None})
    assert tracking.client.get_run(run_id).info.status == "RUNNING"
    run_directory = finish_run(job)
    tracking.finish(run_id, run_directory, evaluate_run(run_directory))
    run = tracking.client.get_run(run_id)
    assert run.info.run_name == "han-seed-3"
    assert run.info.status == "FINISHED"
    assert run.data.params["network.hidden_size"] == "4"
    assert run.data.params["training.learning_rate"] == "0.01"
    assert run.data.params["preprocessing.min_count"] == "1"
    assert run.data.params["seed"] == "3"
    assert run.data.tags["git.commit"] == "0123abc"
    assert run.data.tags["git.dirty"] == "true"
    assert run.data.tags["kernels"] == "none"
    assert "cuda" not in run.data.tags
    assert run.data.metrics["test.accuracy"] == 0.9
    assert run.data.metrics["validation.accuracy"] == 0.9
    assert "test.rows" not in run.data.metrics
    assert len(run.data.metrics) <= MAXIMUM_METRICS
    (data,) = run.inputs.dataset_inputs
    assert data.dataset.name == "snippets"
    assert data.dataset.digest == ("0123456789abcdef" * 4)[:36]
    names = {artifact.path for artifact in tracking.client.list_artifacts(run_id)}
    assert names >= {"job.json", "result.json", "environment.json"}


def test_a_run_that_is_recorded_as_a_whole_is_as_one_that_was_logged_live(folder):
    prepared = prepared_text(folder)
    live, whole = make_job(folder, prepared, "han", seed=0), make_job(folder, prepared, "han", seed=1)
    about = {"git.commit": "0123abc", "prefect": {"url": "there"}}
    with shared_connection():
        tracking = open_tracking()
        assert open_tracking() is tracking and tracking.recorded(live.experiment) == set()
        first = tracking.start(live, about)
        for row in history(2):
            tracking.log_epochs(first, [row])
        tracking.finish(first, finish_run(live, epochs=2))
        run = finish_run(whole, epochs=2)
        write_json(run / "origin.json", about)
        second = tracking.record(run)
        # Parents are updated once, at the end.
        assert "variant.seeds" not in tracking.client.get_run(tracking.parent(live)).data.metrics
    assert open_tracking() is not tracking
    parent = tracking.client.get_run(tracking.parent(live))
    assert parent.data.metrics["variant.seeds"] == 2
    assert tracking.recorded(live.experiment) == {("han", live.run_key), ("han", whole.run_key)}

    def content(run_id):
        run = tracking.client.get_run(run_id)
        # Of the seed and the folder, as the note and the command that name them.
        seeds = {"seed", "run_key", "mlflow.runName", "mlflow.note.content", "mlflow.source.name"}
        parts = {
            name: {k: v for k, v in getattr(run.data, name).items() if k not in seeds} for name in ("params", "tags")
        }
        metrics = {
            name: [(one.step, one.value) for one in tracking.client.get_metric_history(run_id, name)]
            for name in run.data.metrics
        }
        files = {artifact.path for artifact in tracking.client.list_artifacts(run_id)}
        return parts, metrics, files, run.info.status, run.inputs.dataset_inputs[0].dataset.digest

    assert content(second) == content(first)


def test_learnt_betas_are_one_metric_whose_steps_are_the_layers(folder):
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    write_json(run / "result.json", read_json(run / "result.json") | {"betas": {"one": [0.5], "two": [1.0, 2.0]}})
    tracking = open_tracking()
    run_id = tracking.record(run)
    tracking.record(run, evaluate_run(run))
    found = tracking.client.get_metric_history(run_id, "beta")
    assert sorted((metric.step, metric.value) for metric in found) == [(1, 0.5), (2, 1.5)]


def test_a_resumed_run_is_the_same_run_and_repeats_no_step(folder):
    job = make_job(folder, prepared_text(folder), "gru_flat")
    tracking = open_tracking()
    run_id = tracking.start(job, {"prefect.flow_run": "first"})
    tracking.log_epochs(run_id, history(2))
    tracking.fail(run_id, "KILLED", "stopped from outside")
    assert tracking.client.get_run(run_id).info.status == "KILLED"

    again = open_tracking()
    assert again.start(job, {"prefect.flow_run": "second"}) == run_id
    again.log_epochs(run_id, history(3)[1:])
    again.finish(run_id, finish_run(job, epochs=3))
    run = again.client.get_run(run_id)
    assert "ended_by" not in run.data.tags
    assert (run.info.status, run.data.tags["prefect.flow_run"]) == ("FINISHED", "second")
    for key in ("training_loss", "validation_loss", "validation_score"):
        assert steps(again, run_id, key) == [1, 2, 3]
    # Nor does recording it again, whole.
    again.record(job.run_directory)
    assert steps(again, run_id, "training_loss") == [1, 2, 3]
    assert steps(again, run_id, "best_epoch") == [0]


def test_seeds_trained_later_join_their_variant(folder):
    prepared = prepared_text(folder)
    tracking = open_tracking()
    for seed, score in enumerate((0.8, 0.9)):
        job = make_job(folder, prepared, "han", seed)
        tracking.record(finish_run(job, score), evaluate_run(job.run_directory, score))
        parent_id = tracking.parent(job)
        if seed == 0:
            first = tracking.client.get_run(parent_id)
            assert first.data.metrics["test.accuracy.mean"] == 0.8
            assert "test.accuracy.mean_low" not in first.data.metrics
    parent = tracking.client.get_run(parent_id)
    assert parent.info.run_id == first.info.run_id
    assert (parent.info.run_name, parent.info.status) == ("han", "FINISHED")
    assert "seed" not in parent.data.params
    # Two values 0.8 and 0.9: half width t(0.975, 1) * s / sqrt(2) = 12.706 * 0.05. An accuracy ends at 1.
    assert parent.data.metrics["variant.seeds"] == 2
    assert parent.data.metrics["test.accuracy.mean"] == pytest.approx(0.85)
    assert parent.data.metrics["test.accuracy.mean_low"] == pytest.approx(0.85 - 12.7062 * 0.05, abs=1e-4)
    assert parent.data.metrics["test.accuracy.mean_high"] == 1
    assert len(parent.data.metrics) <= MAXIMUM_METRICS
    assert len(runs_with(tracking, "mlflow.parentRunId", parent_id)) == 2

    # Nothing new: nothing is written. Another setting or another data version: another parent.
    before = steps(tracking, parent_id, "test.accuracy.mean")
    tracking.update_parent(parent_id)
    assert steps(tracking, parent_id, "test.accuracy.mean") == before
    assert tracking.parent(make_job(folder, prepared, "han", learning_rate=0.02)) != parent_id
    assert tracking.parent(make_job(folder, prepared, "han", experiment="other")) != parent_id
    described = prepared / "prepared.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "data_version": "f" * 64}))
    assert tracking.parent(job) != parent_id


def test_kill_9_leaves_a_run_that_is_settled_later(folder):
    prepared = prepared_text(folder)
    broken, done = make_job(folder, prepared, "han", 0), make_job(folder, prepared, "han", 1)
    code = f"""
        import time
        from reread.storage.job import Job
        from reread.tracking.runs import open_tracking
        for job in ({broken.to_json()!r}, {done.to_json()!r}):
            print(open_tracking().start(Job.from_json(job), {{}}), flush=True)
        time.sleep(600)
    """
    process = python(code, folder)
    try:
        broken_id, done_id = (process.stdout.readline().strip() for _ in range(2))
        tracking = open_tracking()
        # It lives: nobody takes its runs away.
        assert tracking.reconcile(folder / "runs") == {}
        assert tracking.client.get_run(broken_id).info.status == "RUNNING"
        finish_run(done)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert tracking.client.get_run(broken_id).info.status == "RUNNING"
    assert tracking.reconcile(folder / "runs") == {broken_id: "KILLED", done_id: "FINISHED"}
    assert tracking.client.get_run(broken_id).info.status == "KILLED"
    assert "the process was gone" in tracking.client.get_run(broken_id).data.tags["ended_by"]
    assert steps(tracking, done_id, "training_loss") == [1, 2, 3]
    assert tracking.reconcile(folder / "runs") == {}
    # What was killed goes on as the same run.
    assert tracking.start(broken, {}) == broken_id
    tracking.fail(broken_id)


def test_runs_of_another_folder_are_left_to_it(folder, tmp_path_factory, monkeypatch):
    job = make_job(folder, prepared_text(folder), "han")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'shared.db'}")
    run_id = open_tracking().start(job, {})
    other = tmp_path_factory.mktemp("other")
    assert open_tracking(other).reconcile(other / "runs") == {}
    open_tracking().fail(run_id)


def test_a_deleted_database_is_written_again(folder):
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    evaluation = evaluate_run(run)
    first = open_tracking()
    run_id = first.start(job, {"git.commit": "0123abc", "data.dvc.md5": "89ef.dir"})
    first.finish(run_id, run, evaluation)
    before = first.client.get_run(run_id).data
    # Another process, as a user would: this one's connection is to a file that is gone.
    (folder / "mlflow.db").unlink()
    code = f"""
        from reread.tracking.runs import open_tracking
        tracking = open_tracking()
        tracking.record({str(run)!r}, {str(evaluation)!r})
        run_id = tracking.record({str(run)!r}, {str(evaluation)!r})
        data = tracking.client.get_run(run_id).data
        assert data.metrics == {before.metrics!r}, data.metrics
        assert data.params == {before.params!r}, data.params
        assert data.tags["git.commit"] == "0123abc" and data.tags["data.dvc.md5"] == "89ef.dir", data.tags
        assert len(tracking.client.search_runs([tracking.experiment("trial")])) == 2
    """
    assert python(code, folder).communicate() == ("", "")


def test_an_evaluation_that_changed_is_the_latest_value(folder):
    """And the score that training saw does not come back over it."""
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    tracking = open_tracking()
    run_id = tracking.record(run, evaluate_run(run, 0.8))
    tracking.record(run, evaluate_run(run, 0.7))
    assert tracking.client.get_run(run_id).data.metrics["test.accuracy"] == 0.7
    assert steps(tracking, run_id, "test.accuracy") == [0, 1]
    tracking.record(run)
    assert tracking.client.get_run(run_id).data.metrics["validation.accuracy"] == 0.7


def test_one_run_in_two_experiments(folder):
    """The same run_key, trained once: each experiment has it in its own place."""
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    tracking = open_tracking()
    ids = {tracking.record(run), tracking.record(run, job=replace(job, experiment="other"))}
    assert len(ids) == 2
    assert {tracking.record(run), tracking.record(run, job=replace(job, experiment="other"))} == ids


def test_more_than_25_metrics_are_named_and_left_out(folder):
    job = make_job(folder, prepared_text(folder), "han")
    tracking = open_tracking()
    run_id = tracking.start(job, {})
    tracking.log_epochs(
        run_id, [{"epoch": 1, "gap": float("nan"), **{f"m{number:02}": number for number in range(30)}}]
    )
    tracking.fail(run_id)
    run = tracking.client.get_run(run_id)
    assert sorted(run.data.metrics) == [f"m{number:02}" for number in range(25)]
    assert run.data.tags["metrics_left_out"] == "m25, m26, m27, m28, m29"


def test_the_report_of_an_experiment(folder):
    tracking = open_tracking()
    (folder / "report.html").write_text("<p>first</p>")
    run_id = tracking.report("trial", [folder / "report.html"], {"verdict.β > 1?": "holds"})
    assert tracking.client.get_run(run_id).data.tags["verdict.β _ 1_"] == "holds"
    (folder / "report.html").write_text("<p>second</p>")
    assert tracking.report("trial", [folder / "report.html"]) == run_id
    kept = tracking.client.download_artifacts(run_id, "report.html")
    assert Path(kept).read_text() == "<p>second</p>"
    assert tracking.client.get_run(run_id).info.status == "FINISHED"


def test_what_cannot_be_opened_is_one_line(folder, monkeypatch):
    (folder / "mlflow.db").write_text("this is no database, whatever its name may say of it")
    with pytest.raises(InputError, match="MLflow cannot open sqlite:.*mlflow.db: .*Move that file away") as error:
        open_tracking()
    assert "\n" not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="does not answer.*start that server or unset the variable"):
        open_tracking()


def test_an_experiment_deleted_in_mlflow(folder):
    tracking = open_tracking()
    tracking.client.delete_experiment(tracking.experiment("trial"))
    with pytest.raises(InputError, match="'trial' was deleted in MLflow.*restore"):
        tracking.experiment("trial")


def test_a_server_instead_of_the_database(folder, monkeypatch):
    """Through MLFLOW_TRACKING_URI everything is the server's, and nothing is made beside us."""
    (folder / "mlflow.db").rename(folder / "server.db")
    project = folder / "project"
    project.mkdir()
    with server(f"sqlite:///{folder / 'server.db'}", folder / "artifacts", folder / "server.log") as address:
        monkeypatch.chdir(project)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        prepared = prepared_text(folder)
        job = make_job(folder, prepared, "han")
        run = finish_run(job, description=read_json(prepared / "prepared.json"))
        tracking = open_tracking()
        run_id = tracking.start(job, {})
        tracking.log_epochs(run_id, history(2))
        tracking.finish(run_id, run, evaluate_run(run))
        assert tracking.record(run, evaluate_run(run)) == run_id
        assert steps(tracking, run_id, "training_loss") == [1, 2, 3]
        assert "result.json" in {artifact.path for artifact in tracking.client.list_artifacts(run_id)}
        assert tracking.reconcile(folder / "runs") == {}
        version = log_model(tracking, run_id, run)
        assert set_champion(tracking, "snippets", version) == version == log_model(tracking, run_id, run)
        assert list((folder / "artifacts").rglob("best.safetensors"))
    assert [path.name for path in project.iterdir()] == [".locks"]


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_clock_that_is_set_back_ends_no_run_before_it_began(folder, end):
    """A run was killed, the clock was set back by a day, and the run resumed."""
    tracking, job = open_tracking(), make_job(folder, prepared_text(folder), "han")
    began = int(time.time() * 1000)
    run_id = tracking.start(job, {})
    token = HAPPENED.set(began - 24 * 3600 * 1000)
    try:
        assert tracking.start(job, {}) == run_id
        if end == "finish":
            tracking.finish(run_id, finish_run(job))
        else:
            tracking.fail(run_id, "KILLED")
    finally:
        HAPPENED.reset(token)
    run = tracking.client.get_run(run_id)
    assert run.info.start_time >= began and run.info.end_time >= run.info.start_time
    parent = tracking.client.get_run(run.data.tags["mlflow.parentRunId"])
    assert parent.info.end_time >= parent.info.start_time
