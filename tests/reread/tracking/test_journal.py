"""What is logged while MLflow is away waits in journals, and is sent once: real servers and processes, killed."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sqlalchemy import event

from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.locks import run_locked
from reread.storage.source import ROOT
from reread.tracking import journal
from reread.tracking.journal import Journal, Sender, TrackedRun, Tracker, entry, reconcile, settle, waiting
from reread.tracking.runs import open_tracking
from tests.reread.tracking.comparison import server
from tests.reread.tracking.examples import evaluate_run, finish_run, history, make_job, prepared_text
from tests.servers import free_port

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
    pytest.mark.filterwarnings("ignore:.*type hint:UserWarning"),
]
AWAY = "http://127.0.0.1:9"
# A process that trains a run while MLflow is away, until it is killed.
TRAINS = """
    import json, sys, time
    from reread.storage.job import Job
    from reread.storage.locks import run_locked
    from reread.tracking.journal import TrackedRun
    job, rows = json.loads(sys.argv[1])
    job = Job.from_json(job)
    with run_locked(job.run_directory):
        run = TrackedRun(job, {}, lambda line: None)
        for row in rows:
            run.log_epoch(row)
        print("logged", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty project folder as the current one, which no server of the user's reaches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_ATTEMPTS", 0.0)
    return tmp_path


@pytest.fixture
def database(folder, empty_databases) -> None:
    """MLflow's database without a run, whose tables take a second to make."""
    shutil.copy2(empty_databases / "mlflow.db", folder)


def start(code: str, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def steps(tracking, run_id: str, key: str) -> list[int]:
    return [metric.step for metric in tracking.client.get_metric_history(run_id, key)]


def found(tracking, job: Job):
    (run,) = tracking.client.search_runs([tracking.experiment("trial")], f"tags.run_key = '{job.run_key}'")
    return run


def test_a_server_that_is_killed_stops_no_training_and_gets_everything_once(folder, monkeypatch, empty_databases):
    shutil.copy2(empty_databases / "mlflow.db", folder / "server.db")
    port, lines, rows = free_port(), [], history(3)
    prepared = prepared_text(folder)
    jobs = [make_job(folder, prepared, "han", seed) for seed in range(5)]
    killed = jobs[4]

    def serve(end=signal.SIGKILL):
        return server(f"sqlite:///{folder / 'server.db'}", folder / "artifacts", folder / "server.log", port, end)

    with serve() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        early, late = (TrackedRun(job, {"git.commit": "0123abc"}, lines.append) for job in jobs[:2])
        for run in (early, late):
            run.log_epoch(rows[0])
        assert lines == [] and waiting(folder / "runs") == []
    for run in (early, late):
        run.log_epoch(rows[1])
    early.log_epoch(rows[2])
    described = read_json(prepared / "prepared.json")
    finish_run(jobs[0], description=described)
    early.finish()
    never_up = TrackedRun(jobs[2], {}, lines.append)
    stopped = TrackedRun(jobs[3], {}, lines.append)
    stopped.log_epoch(rows[0])
    time.sleep(0.002)  # times are whole milliseconds
    stopped.fail("KILLED", "stopped from outside")
    tracker = Tracker(lines.append)
    evaluation = evaluate_run(jobs[0].run_directory)
    tracker.record(jobs[0].run_directory, evaluation, jobs[0])
    tracker.model(jobs[0].run_directory, evaluation, jobs[0], champion=True)
    page = folder / "reports/trial/report.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>report</p>")
    tracker.report(folder / "runs", "trial", [page], {"verdict.one": "holds"})
    # One line in all: not one per run or per epoch.
    (line,) = lines
    assert "\n" not in line and ".journals" in line and "reread reconcile" in line
    assert not (folder / "mlflow.db").exists()

    process = start(TRAINS, json.dumps([killed.to_json(), rows[:2]]))
    try:
        assert process.stdout.readline() == "logged\n"
        restarted = time.time() * 1000
        with serve(signal.SIGTERM):
            late.log_epoch(rows[2])
            tracking = open_tracking()
            assert steps(tracking, found(tracking, jobs[1]).info.run_id, "training_loss") == [1, 2, 3]
            names = {one.path.stem for one in waiting(folder / "runs")}
            assert names == {jobs[n].run_key for n in (0, 2, 3, 4)} | {"report-trial"}
            copies = {one.path: one.path.read_bytes() for one in waiting(folder / "runs")}
            # The live run's journal is left to its own process.
            settled = reconcile(folder / "runs")
            assert set(settled.sent) == names - {killed.run_key} and settled.left == {}
            assert [one.path.stem for one in waiting(folder / "runs")] == [killed.run_key]
            assert late.journal.waits is False
            assert found(tracking, jobs[1]).info.status == "RUNNING"

            process.kill()
            process.communicate()
            settled = reconcile(folder / "runs")
            assert settled.sent == [killed.run_key]
            assert settled.closed[found(tracking, killed).info.run_id] == "KILLED"
            finish_run(jobs[2])
            never_up.finish()
            finish_run(jobs[1])
            late.finish()

            def logged():
                runs = tracking.client.search_runs([tracking.experiment("trial")])
                return {
                    run.info.run_id: (
                        run.info.status,
                        {key: steps(tracking, run.info.run_id, key) for key in run.data.metrics},
                        sorted(one.path for one in tracking.client.list_artifacts(run.info.run_id)),
                    )
                    for run in runs
                }

            before = logged()
            status = [found(tracking, job).info.status for job in jobs]
            assert status == ["FINISHED", "FINISHED", "FINISHED", "KILLED", "KILLED"]
            expected = ([1, 2, 3], [1, 2, 3], [1, 2, 3], [1], [1, 2])
            for job, epochs in zip(jobs, expected, strict=True):
                run = found(tracking, job)
                assert steps(tracking, run.info.run_id, "training_loss") == epochs
            # Each has its own time, not that of the sending.
            first, last = found(tracking, jobs[0]), found(tracking, jobs[3])
            times = [one.timestamp for one in tracking.client.get_metric_history(first.info.run_id, "training_loss")]
            assert max(times) < restarted and first.info.end_time < restarted
            assert last.info.start_time < last.info.end_time < restarted
            assert first.data.tags["git.commit"] == "0123abc" and first.data.metrics["test.accuracy"] == 0.9
            assert last.data.tags["ended_by"] == "stopped from outside"
            version = tracking.client.get_model_version_by_alias("reread-snippets", "champion")
            assert version.run_id == first.info.run_id

            # A process that was killed before it removed a journal: sent again, nothing is there twice.
            for path, content in copies.items():
                path.write_bytes(content)
            assert set(reconcile(folder / "runs").sent) == names
            assert logged() == before | {
                found(tracking, killed).info.run_id: before[found(tracking, killed).info.run_id]
            }
            assert len(tracking.client.search_model_versions("name = 'reread-snippets'")) == 1
            assert reconcile(folder / "runs").sent == [] and lines == [line]
    finally:
        process.kill()
        process.communicate()


# Elsewhere: what `reread reconcile` and every flow that starts do.
RECONCILES = """
    import json
    from pathlib import Path
    from reread.tracking.journal import reconcile
    print(json.dumps(reconcile(Path("runs")).closed))
"""


def reconciled_elsewhere() -> dict[str, str]:
    process = start(RECONCILES)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(output)


@pytest.mark.parametrize("away", [False, True])
def test_a_run_that_ends_frees_its_own_lock_alone(folder, database, monkeypatch, away):
    """One thread tracks all runs of a flow: the short run ends while the other one trains."""
    prepared, lines = prepared_text(folder), []
    short, long = (make_job(folder, prepared, "han", seed) for seed in range(2))
    first, second = (TrackedRun(job, {}, lines.append) for job in (short, long))
    tracking = open_tracking()
    ended, live = (found(tracking, job).info.run_id for job in (short, long))
    finish_run(short)
    with monkeypatch.context() as broken:
        if away:
            broken.setattr(Sender, "finish", lambda self: 1 / 0)
        first.finish()
    # What MLflow did not get of the short run is sent elsewhere, since its lock is free.
    assert reconciled_elsewhere() == {}
    assert [tracking.client.get_run(one).info.status for one in (ended, live)] == ["FINISHED", "RUNNING"]
    second.fail("KILLED", "stopped from outside")
    assert tracking.client.get_run(live).info.status == "KILLED"


def test_a_run_whose_folder_is_locked_is_live(folder, database):
    """It resumes, and MLflow, which did not answer when it began, still has it as RUNNING from before."""
    job = make_job(folder, prepared_text(folder), "han")
    process = start(TRAINS, json.dumps([job.to_json(), history(1)]))
    try:
        assert process.stdout.readline() == "logged\n"
    finally:
        process.kill()
        process.communicate()
    with run_locked(job.run_directory):
        assert reconciled_elsewhere() == {}
        assert found(open_tracking(), job).info.status == "RUNNING"
    assert list(reconciled_elsewhere().values()) == ["KILLED"]


def test_a_locked_database_and_an_exception_in_the_tracker_stop_no_training(folder, database, monkeypatch, capfd):
    job, lines = make_job(folder, prepared_text(folder), "han"), []
    run = TrackedRun(job, {}, lines.append)
    engine = run.sender.tracking.client._tracking_client.store.engine
    # MLflow waits for 20 seconds.
    at_once = lambda _, __, statement, values, *___: (statement.replace("= 20000", "= 100"), values)  # noqa: E731
    event.listen(engine, "before_cursor_execute", at_once, retval=True)
    other = sqlite3.connect(folder / "mlflow.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    run.log_epoch(history(3)[0])
    other.close()
    (line,) = lines
    assert "database is locked" in line and "\n" not in line
    with monkeypatch.context() as broken:
        broken.setattr(Sender, "epochs", lambda self, rows: 1 / 0)
        run.log_epoch(history(3)[1])
    run.log_epoch(history(3)[2])
    finish_run(job)
    run.finish()
    tracking = open_tracking()
    assert steps(tracking, found(tracking, job).info.run_id, "training_loss") == [1, 2, 3]
    assert found(tracking, job).info.status == "FINISHED" and not run.journal.waits
    # The outage was over: the next one is named again.
    with monkeypatch.context() as broken:
        broken.setattr(Sender, "epochs", lambda self, rows: 1 / 0)
        run.log_epoch({"epoch": 4, "training_loss": object()})
    assert len(lines) == 3 and "ZeroDivisionError" in lines[2] and "cannot be written" in lines[1]
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_a_finished_run_that_mlflow_does_not_know_waits_until_it_answers(folder, database, monkeypatch):
    lines = []
    job = make_job(folder, prepared_text(folder), "han", seed=1)
    run = finish_run(job)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    Tracker(lines.append).record(run, None, job)
    settle(folder / "runs", lines.append)
    (line,) = lines
    assert "does not answer" in line and "\n" not in line
    with pytest.raises(InputError, match="does not answer"):
        reconcile(folder / "runs")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    settle(folder / "runs", lines.append)
    tracking = open_tracking()
    assert found(tracking, job).info.status == "FINISHED" and "sent what waited of 1" in lines[1]


def test_a_journal_that_cannot_be_sent_is_named_and_keeps_no_other_waiting(folder, database, monkeypatch):
    jobs = [make_job(folder, prepared_text(folder), "han", seed) for seed in range(2)]
    for job in jobs:
        finish_run(job)
        Journal.of_run(job.run_directory).append([entry("start", job=job.to_json(), about={}), entry("finish")])
    first, second = sorted(jobs, key=lambda job: job.run_key)
    (first.run_directory / "result.json").unlink()
    # A disk that was full has cut a line, and somebody else has written one.
    path = Journal.of_run(second.run_directory).path
    path.write_text(f'{path.read_text()}{{"time": 1, "what": "client"}}\n{{"time": 1, "what": "fa')
    Journal(path).append([entry("fail", status="KILLED", message="after the cut line")])
    settled = reconcile(folder / "runs")
    ((left, why),) = settled.left.items()
    assert Path(left).stem == first.run_key and "has no result.json" in why and left in why
    assert settled.sent == [second.run_key]
    assert found(open_tracking(), second).data.tags["ended_by"] == "after the cut line"


@pytest.mark.parametrize(
    "change",
    [
        {"what": "report", "experiment": "trial", "files": ["/etc/hostname"], "tags": {}},
        {"what": "report", "experiment": "trial", "files": ["reports/trial/link"], "tags": {}},
        {"what": "record", "run_directory": "elsewhere/run", "evaluation_directory": None},
        {"what": "start", "about": {"git.commit": "0123abc"}, "job": {"run_directory": "elsewhere/new"}},
        {"what": "start", "about": {}, "job": {"prepared": "elsewhere/prepared"}},
    ],
)
def test_a_journal_of_a_folder_from_elsewhere_names_no_file_outside_of_it(folder, database, monkeypatch, change):
    monkeypatch.delenv("REREAD_REPORTS", raising=False)
    job = make_job(folder, prepared_text(folder), "han")
    shutil.copytree(finish_run(job), folder / "elsewhere/run")
    shutil.copytree(job.prepared, folder / "elsewhere/prepared")
    Path("reports/trial").mkdir(parents=True)
    Path("reports/trial/link").symlink_to("/etc/hostname")
    before = sorted(Path("elsewhere").rglob("*"))
    one = {
        "time": 1,
        **change,
        **({} if change["what"] == "report" else {"job": {**job.to_json(), **change.get("job", {})}}),
    }
    Journal.of_report(folder / "runs", "trial").append([one])
    settled = reconcile(folder / "runs")
    ((_, why),) = settled.left.items()
    assert "outside" in why and settled.sent == []
    tracking = open_tracking()
    assert not tracking._search([tracking.experiment("trial")], "")
    assert not [path for path in Path("mlartifacts").rglob("*") if path.is_file()]
    assert sorted(Path("elsewhere").rglob("*")) == before


def test_a_link_in_a_runs_folder_is_not_followed(folder, database):
    job = make_job(folder, prepared_text(folder), "han")
    run_directory = finish_run(job)
    (folder / "secret").write_text("secret")
    (run_directory / "log.txt").unlink(missing_ok=True)
    (run_directory / "log.txt").symlink_to(folder / "secret")
    with pytest.raises(InputError, match=r"log\.txt"):
        open_tracking().record(run_directory)
    assert not list(Path("mlartifacts").rglob("log.txt"))


FULL = """
    import resource, shutil
    from pathlib import Path
    from tests.reread.tracking.examples import history, make_job, prepared_text
    from reread.tracking.journal import TrackedRun
    from reread.tracking.runs import open_tracking
    folder = Path.cwd()
    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    open_tracking(folder / "first")
    limit(100_000)
    try:
        open_tracking()
    except ValueError as error:
        print(f"refused: {error}")
    print([path.name for path in folder.glob("*mlflow*")])
    limit(resource.RLIM_INFINITY)
    job = make_job(folder, prepared_text(folder), "han")
    shutil.copy2(folder / "first/mlflow.db", folder)
    limit(100_000)
    run = TrackedRun(job, {}, print)
    for row in history(2):
        run.log_epoch(row)
    run.fail("FAILED", "no room")
    limit(resource.RLIM_INFINITY)
    from reread.tracking.journal import reconcile
    print(reconcile(folder / "runs").sent == [job.run_key])
"""


def test_a_full_disk_that_mlflow_meets_is_one_line(folder):
    process = start(FULL)
    output, errors = process.communicate()
    assert process.returncode == 0 and errors == "", errors
    refused, leftovers, line, sent = output.splitlines()
    assert "Make room" in refused and "Move that file away" not in refused
    assert leftovers == "[]"
    assert "disk I/O error" in line or "disk is full" in line
    assert ".journals" in line and sent == "True"
