"""Runs that MLflow missed while it was away are recorded once it is back: real servers and processes, killed."""

import json
import shutil
import signal
import sqlite3
import time
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from sqlalchemy import event

from reread.planning.environment import Environment
from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.job import Job
from reread.storage.locks import run_locked
from reread.tracking import recording
from reread.tracking.recording import Tracker, reconcile, settle, unrecorded
from reread.tracking.runs import Tracking, open_tracking
from tests.conftest import run_python
from tests.reread.tracking.comparison import server
from tests.reread.tracking.examples import (
    Followed,
    content,
    evaluate_run,
    finish_run,
    history,
    make_job,
    prepared_text,
    run_of,
    start,
    steps,
    write_report,
)
from tests.servers import free_port

AWAY = "http://127.0.0.1:9"
HERE = Environment()
# A process that trains runs, also while MLflow is away, until it is killed.
TRAINS = """
    import contextlib, json, sys, time
    from reread.storage.job import Job
    from reread.storage.locks import run_locked
    from reread.tracking.recording import Tracker
    from tests.reread.tracking.examples import Followed
    jobs, rows = json.loads(sys.argv[1])
    tracker = Tracker(lambda line: None, strict=False)
    with contextlib.ExitStack() as locks:
        for job in map(Job.from_json, jobs):
            locks.enter_context(run_locked(job.run_directory))
            run = Followed(job, tracker.record)
            for row in rows:
                run.epoch(row)
        print("logged", flush=True)
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def at_once(folder, monkeypatch) -> None:
    """MLflow is tried again at once, not after a minute."""
    monkeypatch.setattr(recording, "SECONDS_BETWEEN_ATTEMPTS", 0.0)


def train_elsewhere(jobs: list[Job], rows: list[dict]):
    process = start(TRAINS, json.dumps([[job.to_json() for job in jobs], rows]))
    assert process.stdout.readline() == "logged\n"
    return process


def model_of(job: Job, evaluation: Path) -> dict:
    return {
        "run": job.run_key, "evaluation": evaluation.name, "variant": job.variant, "score": ("accuracy", 0.9),
        "champion": True,
    }  # fmt: skip


def test_a_server_that_is_killed_stops_no_training_and_gets_everything_once(folder, monkeypatch):
    (folder / "mlflow.db").rename(folder / "server.db")
    port, lines, rows = free_port(), [], history(3)
    prepared = prepared_text(folder)
    jobs = [make_job(folder, prepared, "han", seed) for seed in range(5)]
    killed = jobs[4]
    tracker = Tracker(lines.append, strict=False)

    def serve(end=signal.SIGKILL):
        return server(f"sqlite:///{folder / 'server.db'}", folder / "artifacts", folder / "server.log", port, end)

    def waiting():
        return {path.stem.rpartition("-")[0] for path in unrecorded(folder / "runs")}

    with serve() as address, run_locked(jobs[1].run_directory):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        early, late = (Followed(job, tracker.record, {"git.commit": "0123abc"}) for job in jobs[:2])
        for run in (early, late):
            run.epoch(rows[0])
        assert lines == [] and waiting() == set()
    for run in (early, late):
        run.epoch(rows[1])
    early.epoch(rows[2])
    finish_run(jobs[0], description=read_json(prepared / "prepared.json"))
    assert tracker.record(jobs[0]) is None
    never_up, stopped = (Followed(job, tracker.record) for job in jobs[2:4])
    stopped.epoch(rows[0])
    time.sleep(0.002)  # times are whole milliseconds
    stopped.end("KILLED", "stopped from outside")
    evaluation = evaluate_run(jobs[0].run_directory)
    tracker.record(jobs[0], evaluation)
    # MLflow hides the runs that are not in the report.
    write_report(jobs, folder)
    tracker.report({"report": "trial", "models": [model_of(jobs[0], evaluation)], "baselines": []}, HERE)
    # One line in all: not one per run or per epoch.
    (line,) = lines
    assert "\n" not in line and "runs" in line and "reread reconcile" in line

    process = train_elsewhere([killed], rows[:2])
    try:
        restarted = time.time() * 1000
        with serve(signal.SIGTERM):
            with run_locked(jobs[1].run_directory):
                late.epoch(rows[2])
                tracking = open_tracking()
                assert steps(tracking, run_of(tracking, jobs[1]).info.run_id, "training_loss") == [1, 2, 3]
                assert waiting() == {jobs[n].run_key for n in (0, 2, 3, 4)} | {"report"}
                copies = {path: path.read_bytes() for path in unrecorded(folder / "runs")}
                # A run that a process trains is left to it.
                settled = reconcile(HERE)
                assert {jobs[0].run_key, "report-trial"} < set(settled.recorded) and settled.left == {}
                assert waiting() == {killed.run_key}
                assert run_of(tracking, jobs[1]).info.status == "RUNNING"

            process.kill()
            process.communicate()
            assert reconcile(HERE).recorded == [killed.run_key]
            for run in (never_up, late):
                finish_run(run.job)
                tracker.record(run.job)

            def logged():
                runs = tracking.client.search_runs([tracking.experiment("trial")])
                return {run.info.run_id: content(tracking, run) for run in runs}

            tracker.__exit__(None, None, None)
            before = logged()
            status = [run_of(tracking, job).info.status for job in jobs]
            assert status == ["FINISHED", "FINISHED", "FINISHED", "KILLED", "KILLED"]
            expected = ([1, 2, 3], [1, 2, 3], [1, 2, 3], [1], [1, 2])
            for job, epochs in zip(jobs, expected, strict=True):
                assert steps(tracking, run_of(tracking, job).info.run_id, "training_loss") == epochs
            # Each has its own time, not that of the recording.
            first, last = run_of(tracking, jobs[0]), run_of(tracking, jobs[3])
            for name in ("training_loss", "best_epoch", "test.accuracy"):
                times = [metric.timestamp for metric in tracking.client.get_metric_history(first.info.run_id, name)]
                assert max(times) < restarted
            times = [
                metric.timestamp for metric in tracking.client.get_metric_history(first.info.run_id, "training_loss")
            ]
            assert sorted(times) == [*early.times.epochs.values()] and first.info.end_time < restarted
            assert last.info.start_time < last.info.end_time < restarted
            assert first.data.tags["git.commit"] == "0123abc" and first.data.metrics["test.accuracy"] == 0.9
            assert last.data.tags["ended_by"] == "stopped from outside"
            version = tracking.client.get_model_version_by_alias("reread-snippets", "champion")
            assert version.run_id == first.info.run_id
            assert tracking.find("trial", "report", "trial").data.tags["verdict.one"] == "holds"

            # A process that was killed before it removed a file: recorded again, nothing is there twice.
            for path, text in copies.items():
                path.write_bytes(text)
            assert set(reconcile(HERE).recorded) == {*(jobs[n].run_key for n in (0, 2, 3, 4)), "report-trial"}
            assert logged() == before
            assert len(tracking.client.search_model_versions("name = 'reread-snippets'")) == 1
            assert reconcile(HERE, everything=True).recorded == [] and lines == [line]
        # Everything is the server's, and nothing is made beside us.
        assert list((folder / "artifacts").rglob("best.safetensors"))
        assert not (folder / "mlflow.db").exists() and not (folder / "mlartifacts").exists()
    finally:
        process.kill()
        process.communicate()


class Killed(BaseException):
    """In place of a signal."""


def test_a_process_that_is_killed_before_or_after_any_request_is_repeated_and_logs_nothing_twice(folder, monkeypatch):
    """A run that was killed is finished and evaluated, and so recorded, until a request that writes. Then again."""
    writes = ("create_run", "log_batch", "log_inputs", "log_artifacts", "set_terminated", "delete_tag", "set_tag")
    prepared, client = prepared_text(folder), type(open_tracking().client)
    left, after, seeds = -1, False, iter(range(100))

    def record_until_killed() -> tuple[Job, bool]:
        job = make_job(folder, prepared, "han", next(seeds))
        stopped = Followed(job, lambda *_, **__: None)
        stopped.epoch(history(3)[0])
        stopped.end("KILLED")
        try:
            open_tracking().record(job)
            open_tracking().record(job, evaluate_run(finish_run(job)))
        except Killed:
            return job, True
        return job, False

    def interrupted(method):
        def call(self, *arguments, **keywords):
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            answer = method(self, *arguments, **keywords)
            if left == 0:
                raise Killed
            return answer

        return call

    for name in writes:
        monkeypatch.setattr(client, name, interrupted(getattr(client, name)))
    tracking = open_tracking()
    whole = content(tracking, run_of(tracking, record_until_killed()[0]))
    killed, number = True, 0
    while killed:
        number += 1
        for after in (False, True):
            left = number
            job, killed = record_until_killed()
            open_tracking().record(job, evaluate_run(finish_run(job)))
            assert content(tracking, run_of(tracking, job)) == whole, (number, after)
    assert number > 8


def test_a_run_lives_while_its_folder_is_locked_and_is_closed_afterwards(folder):
    other = prepared_text(folder, "multi-label")
    broken, done, gone = (make_job(folder, prepared_text(folder), "han", seed) for seed in range(3))
    without_arrays = make_job(folder, other, "han", 3)
    process = train_elsewhere([broken, done, gone, without_arrays], history(1))
    tracking = open_tracking()
    ids = [run_of(tracking, job).info.run_id for job in (broken, done, gone, without_arrays)]
    try:
        # It lives: nobody takes its runs away.
        assert reconcile(HERE).closed == {}
        finish_run(done)
    finally:
        process.kill()
        process.communicate()
    shutil.rmtree(gone.run_directory)
    shutil.rmtree(other)
    # One resumes. MLflow, which did not answer when it began, still has it as RUNNING from before.
    with run_locked(broken.run_directory):
        assert reconcile(HERE).closed == dict(zip(ids[1:], ("FINISHED", "KILLED", "KILLED"), strict=True))
        assert run_of(tracking, broken).info.status == "RUNNING"
    assert reconcile(HERE).closed == {ids[0]: "KILLED"} and reconcile(HERE).closed == {}
    assert steps(tracking, ids[1], "training_loss") == [1, 2, 3]
    for job in (broken, gone, without_arrays):
        assert "the process was gone" in run_of(tracking, job).data.tags["ended_by"]
    # What was killed goes on as the same run.
    assert Followed(broken, tracking.record).id == ids[0]


def test_a_locked_database_and_an_exception_in_the_tracker_stop_no_training(folder, monkeypatch, capfd):
    job, lines = make_job(folder, prepared_text(folder), "han"), []
    tracker = Tracker(lines.append, strict=False)
    run = Followed(job, tracker.record)
    engine = tracker.tracking.client._tracking_client.store.engine
    # MLflow waits for 20 seconds.
    at_once = lambda _, __, statement, values, *___: (statement.replace("= 20000", "= 100"), values)  # noqa: E731
    event.listen(engine, "before_cursor_execute", at_once, retval=True)
    other = sqlite3.connect(folder / "mlflow.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    run.epoch(history(4)[0])
    other.close()
    (line,) = lines
    assert "database is locked" in line and "\n" not in line
    with monkeypatch.context() as broken:
        broken.setattr(Tracking, "record", lambda *_: 1 / 0)
        run.epoch(history(4)[1])
    # Times that a full disk has cut cost no epoch.
    times = job.run_directory / "times.json"
    times.write_text(times.read_text()[:40])
    tracker.record(job, live=True)
    tracking = open_tracking()
    assert steps(tracking, run_of(tracking, job).info.run_id, "training_loss") == [1, 2]
    assert lines == [line] and unrecorded(folder / "runs") == []
    # The outage was over: the next one is named again.
    with monkeypatch.context() as broken:
        broken.setattr(Tracking, "record", lambda *_: 1 / 0)
        run.epoch(history(4)[2])
    assert len(lines) == 2 and "ZeroDivisionError" in lines[1] and len(unrecorded(folder / "runs")) == 1
    finish_run(job)
    run.recorded(job)
    assert run_of(tracking, job).info.status == "FINISHED" and unrecorded(folder / "runs") == []
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"began": "x"}', '{"epochs": 3}', '{"epochs": {"1": "x"}}', '{"ended": [], "x": 1}']
)
def test_times_that_are_damaged_are_as_none(folder, content):
    job = make_job(folder, prepared_text(folder), "han")
    (finish_run(job) / "times.json").write_text(content)
    tracking = open_tracking()
    run_id = tracking.record(job)
    ended = int((job.run_directory / "result.json").stat().st_mtime * 1000)
    metrics = tracking.client.get_metric_history(run_id, "training_loss")
    assert {metric.timestamp for metric in metrics} == {ended}


def test_mlflow_is_left_alone_for_a_minute_after_it_failed(folder, monkeypatch):
    monkeypatch.setattr(recording, "SECONDS_BETWEEN_ATTEMPTS", 60.0)
    clock, attempts, lines = [1000.0], [], []
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    job, tracker = make_job(folder, prepared_text(folder), "han"), Tracker(lines.append, strict=False)
    run = Followed(job, tracker.record)

    def fail(*_):
        attempts.append(clock[0])
        raise ConnectionError("away")

    with monkeypatch.context() as away:
        away.setattr(Tracking, "record", fail)
        for seconds, row in enumerate(history(4)):
            clock[0] = 1001.0 + 25 * seconds
            run.epoch(row)
    assert attempts == [1001.0, 1076.0] and len(lines) == 1
    clock[0] += 59
    assert tracker.record(job, live=True) is None
    clock[0] += 1
    assert steps(open_tracking(), tracker.record(job, live=True), "training_loss") == [1, 2, 3, 4]


def test_every_finished_run_is_recorded_that_mlflow_lacks_for_another_reason(folder):
    """An earlier version's journal, a deleted database, a folder that was copied from another machine."""
    prepared = prepared_text(folder)
    jobs = [make_job(folder, prepared, "han", seed) for seed in range(2)]
    other = make_job(folder, prepared, "han", experiment="removed")
    gone = make_job(folder, prepared, "gru_flat")
    for job in (*jobs, other, gone):
        write_json(finish_run(job) / "origin.json", {"git.commit": "0123abc", "data.dvc.md5": "89ef.dir"})
    write_json(gone.file, {**gone.to_json(), "prepared": "prepared/gone"})
    tracking = open_tracking()
    tracking.record(jobs[0])
    before = run_of(tracking, jobs[0]).data
    tracking.client.delete_experiment(tracking.experiment("removed"))
    assert reconcile(HERE).recorded == []
    settled = reconcile(HERE, everything=True)
    assert settled.recorded == [jobs[1].run_key] and settled.left == {}
    assert reconcile(HERE, everything=True).recorded == []

    (folder / "mlflow.db").unlink()
    # Another process, as a user's would be: this one's connection is to a file that is gone.
    code = f"""
        from reread.planning.environment import Environment
        from reread.storage.job import Job
        from reread.tracking.recording import reconcile
        from reread.tracking.runs import open_tracking
        from tests.reread.tracking.examples import run_of
        assert len(reconcile(Environment(), everything=True).recorded) == 3
        data = run_of(open_tracking(), Job.from_json({jobs[0].to_json()!r})).data
        assert (data.metrics, data.params) == ({before.metrics!r}, {before.params!r}), data
        assert data.tags["git.commit"] == "0123abc" and data.tags["data.dvc.md5"] == "89ef.dir", data.tags
    """
    done = run_python("-c", dedent(code), folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_cannot_be_recorded_is_named_and_keeps_no_other_waiting(folder, monkeypatch):
    jobs, lines = [make_job(folder, prepared_text(folder), "han", seed) for seed in range(3)], []
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", AWAY)
        for job in jobs:
            finish_run(job)
            Tracker(lines.append).record(job)
        settle(HERE, lines.append)
        (line,) = lines
        assert "does not answer" in line and "\n" not in line
        with pytest.raises(InputError, match="does not answer"):
            reconcile(HERE)
    first, second, third = sorted(jobs, key=lambda job: job.run_key)
    (first.run_directory / "result.json").write_text("{")
    shutil.rmtree(third.run_directory)
    # One that a full disk has cut, and one of somebody else.
    (folder / "runs/.unrecorded/cut.json").write_text('{"run": "')
    (folder / "runs/.unrecorded/other.json").write_text('{"what": 1}')
    settle(HERE, lines.append)
    assert "recorded 1 runs" in lines[1] and len(lines) == 5
    for name, text in zip(sorted([first.run_key, "cut", "other"]), sorted(lines[2:]), strict=True):
        assert f"runs/.unrecorded/{name}" in text and "\n" not in text
    assert len(unrecorded(folder / "runs")) == 3
    assert run_of(open_tracking(), second).info.status == "FINISHED"


@pytest.mark.parametrize(
    "about",
    [
        {"run": "../elsewhere/run", "experiment": "trial", "variant": "han", "evaluation": None},
        {"run": "KEY", "experiment": "trial", "variant": "han", "evaluation": "../../../elsewhere/run/evaluation/key"},
        {"run": "foreign", "experiment": "trial", "variant": "han", "evaluation": None},
        {"report": "../elsewhere/report", "models": [], "baselines": []},
        {"report": "link", "models": [], "baselines": []},
        {"report": "trial", "models": [{"run": "../elsewhere/run"}], "baselines": []},
        {"report": "trial", "models": [{"run": "foreign"}], "baselines": []},
    ],
)
def test_a_folder_from_elsewhere_names_no_file_outside_of_it(folder, about):
    job, other = (make_job(folder, prepared_text(folder), "han", seed) for seed in range(2))
    evaluate_run(finish_run(job))
    shutil.copytree(job.prepared, folder / "elsewhere/prepared")
    shutil.copytree(job.run_directory, folder / "elsewhere/run")
    write_report([job], folder)
    shutil.copytree(folder / "reports/trial", folder / "elsewhere/report")
    (folder / "reports/link").symlink_to(folder / "elsewhere/report")
    shutil.move(finish_run(other), folder / "runs/foreign")
    write_json(folder / "runs/foreign/job.json", {**other.to_json(), "prepared": "elsewhere/prepared"})
    before = sorted(Path("elsewhere").rglob("*"))
    if about.get("run") == "KEY":
        about = about | {"run": job.run_key}
    write_json(folder / "runs/.unrecorded/foreign.json", about)
    settled = reconcile(HERE)
    ((_, why),) = settled.left.items()
    assert "outside" in why and settled.recorded == []
    tracking = open_tracking()
    assert not tracking._search([tracking.experiment("trial")], "")
    assert not [path for path in Path("mlartifacts").rglob("*") if path.is_file()]
    assert sorted(Path("elsewhere").rglob("*")) == before


def test_a_link_in_a_runs_folder_is_not_followed(folder):
    job = make_job(folder, prepared_text(folder), "han")
    run_directory = finish_run(job)
    (folder / "secret").write_text("secret")
    (run_directory / "log.txt").unlink(missing_ok=True)
    (run_directory / "log.txt").symlink_to(folder / "secret")
    with pytest.raises(InputError, match=r"log\.txt"):
        open_tracking().record(job)
    assert not list(Path("mlartifacts").rglob("log.txt"))


FULL = """
    import resource
    from pathlib import Path
    from tests.reread.tracking.examples import Followed, history, make_job, prepared_text, run_of
    from reread.planning.environment import Environment
    from reread.tracking.recording import Tracker, reconcile
    from reread.tracking.runs import open_tracking
    folder = Path.cwd()
    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    Path("mlflow.db").rename("kept.db")
    limit(100_000)
    try:
        open_tracking()
    except ValueError as error:
        print(f"refused: {error}")
    print([path.name for path in folder.glob("*mlflow*")])
    limit(resource.RLIM_INFINITY)
    job = make_job(folder, prepared_text(folder), "han")
    Path("kept.db").rename("mlflow.db")
    limit(100_000)
    run = Followed(job, Tracker(print, strict=False).record)
    for row in history(2):
        run.epoch(row)
    run.end("FAILED", "no room")
    limit(resource.RLIM_INFINITY)
    print(reconcile(Environment()).recorded == [job.run_key])
    run = run_of(open_tracking(), job)
    print(run.info.status, run.data.tags["ended_by"], run.data.metrics["training_loss"])
"""


def test_a_full_disk_that_mlflow_meets_is_one_line(folder):
    done = run_python("-c", dedent(FULL), folder=folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    refused, leftovers, line, recorded, ended = done.stdout.splitlines()
    assert "Make room" in refused and "Move that file away" not in refused
    assert leftovers == "[]"
    assert "disk I/O error" in line or "disk is full" in line
    assert "runs" in line and recorded == "True" and ended == "FAILED no room 0.5"
