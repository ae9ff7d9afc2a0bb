"""MLflow's records: on a real sqlite database, from several real processes."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from reread.planning.environment import Environment
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.run_folder import write_result
from reread.storage.source import ROOT
from reread.tracking.recording import reconcile
from reread.tracking.runs import MAXIMUM_METRICS, open_tracking
from reread.tracking.views import TAG, views
from tests.conftest import run_python
from tests.reread.tracking import examples
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


def runs_with(tracking, tag: str, value: str) -> list:
    everywhere = [experiment.experiment_id for experiment in tracking.client.search_experiments()]
    return list(tracking.client.search_runs(everywhere, f"tags.{tag} = '{value}'"))


def test_importing_it_does_not_import_mlflow(folder):
    process = start("import sys; from reread.tracking import registry, runs; print('mlflow' in sys.modules)")
    assert process.communicate() == ("False\n", "")


def test_eight_processes_meet_no_database_and_all_finish(folder):
    """Each trains a run of its own and records one that all of them record: all is there once, in one experiment."""
    (folder / "mlflow.db").unlink()
    prepared = prepared_text(folder)
    jobs = [make_job(folder, prepared, "han", seed) for seed in range(9)]
    evaluation = evaluate_run(finish_run(jobs[8]))
    code = f"""
        import os, sys
        import mlflow.store.tracking.sqlalchemy_store  # imported once: the processes are forked, and start at once
        from pathlib import Path
        from tests.reread.tracking.examples import Followed, finish_run, history
        from reread.storage.job import Job
        from reread.tracking.recording import Tracker
        from reread.tracking.runs import open_tracking
        shared = Job.from_json({jobs[8].to_json()!r})
        go, start = os.pipe()
        processes = []
        for job in map(Job.from_json, {[job.to_json() for job in jobs[:8]]!r}):
            processes.append(os.fork())
            if processes[-1] == 0:
                os.close(start)
                os.read(go, 1)  # ends for all when the parent closes it
                with Tracker(lambda line: print(line, file=sys.stderr)) as tracker:
                    run = Followed(job, tracker.record)
                    for row in history(3):
                        run.epoch(row)
                    finish_run(job)
                    tracker.record(job)
                tracking = open_tracking()
                print(tracking.record(shared, Path({str(evaluation)!r})), flush=True)
                tracking.update_parents()
                os._exit(0)
        os.close(start)
        print([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes])
    """
    done = run_python("-c", dedent(code), folder=folder)
    assert done.stderr == ""
    *recorded, codes = done.stdout.splitlines()
    assert codes == str([0] * 8) and len(recorded) == 8 and len(set(recorded)) == 1
    tracking = open_tracking()
    names = [experiment.name for experiment in tracking.client.search_experiments()]
    assert [name for name in names if name != "Default"] == ["trial"]
    for job in jobs:
        run = run_of(tracking, job)
        assert run.info.status == "FINISHED"
        assert run.data.tags["folder"] == (folder / ".locks/folder").read_text()
        assert steps(tracking, run.info.run_id, "training_loss") == [1, 2, 3]
    assert recorded[0] == run.info.run_id and steps(tracking, run.info.run_id, "test.accuracy") == [0]
    (parent,) = runs_with(tracking, "mlflow.runName", "han")
    assert parent.data.metrics["variant.seeds"] == 9
    assert [path.name for path in folder.glob("*mlflow.db*")] == ["mlflow.db"]
    assert not list(folder.glob("runs/.unrecorded/*"))


def test_a_run_carries_what_it_was_logged_live_or_as_a_whole(folder):
    prepared = prepared_text(folder)
    live, whole = (make_job(folder, prepared, "han", seed) for seed in (3, 4))
    tracking = open_tracking()
    assert tracking.recorded("trial") == set()
    about = {"git.commit": "0123abc", "git.dirty": True, "prefect": {"url": None}, "cuda": None}
    run = Followed(live, tracking.record, about)
    for row in history(3):
        run.epoch(row)
    assert run_of(tracking, live).info.status == "RUNNING"
    for job in (live, whole):
        write_json(finish_run(job) / "origin.json", about)
        tracking.record(job, evaluate_run(job.run_directory))
    # Parents are updated once, at the end.
    assert "variant.seeds" not in tracking.client.get_run(tracking.parent(live)).data.metrics
    tracking.update_parents()
    assert tracking.client.get_run(tracking.parent(live)).data.metrics["variant.seeds"] == 2
    assert tracking.recorded("trial") == {("han", live.run_key), ("han", whole.run_key)}

    run = run_of(tracking, live)
    assert content(tracking, run) == content(tracking, run_of(tracking, whole))
    assert run.info.run_name == "han-seed-3" and run.info.status == "FINISHED"
    wanted = {"network.hidden_size": "4", "training.learning_rate": "0.01", "preprocessing.min_count": "1", "seed": "3"}
    assert wanted.items() <= run.data.params.items()
    assert {"git.commit": "0123abc", "git.dirty": "true", "kernels": "none"}.items() <= run.data.tags.items()
    assert "cuda" not in run.data.tags
    assert run.data.metrics["test.accuracy"] == run.data.metrics["validation.accuracy"] == 0.9
    assert "test.rows" not in run.data.metrics and len(run.data.metrics) <= MAXIMUM_METRICS
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("snippets", ("0123456789abcdef" * 4)[:36])
    files = {artifact.path for artifact in tracking.client.list_artifacts(run.info.run_id)}
    assert files >= {"job.json", "result.json", "environment.json"}


def test_learnt_betas_are_one_metric_whose_steps_are_the_layers(folder):
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    write_result(run, read_json(run / "result.json") | {"betas": {"one": [0.5], "two": [1.0, 2.0]}})
    tracking = open_tracking()
    run_id = tracking.record(job)
    tracking.record(job, evaluate_run(run))
    betas = tracking.client.get_metric_history(run_id, "beta")
    assert sorted((metric.step, metric.value) for metric in betas) == [(1, 0.5), (2, 1.5)]


def test_a_resumed_run_is_the_same_run_and_repeats_no_step(folder):
    job = make_job(folder, prepared_text(folder), "gru_flat")
    run = Followed(job, open_tracking().record, {"prefect.flow_run": "first"})
    run_id = run.id
    for row in history(2):
        run.epoch(row)
    run.end("KILLED", "stopped from outside")
    assert open_tracking().client.get_run(run_id).info.status == "KILLED"

    again = open_tracking()
    resumed = Followed(job, again.record, {"prefect.flow_run": "second"})
    assert resumed.id == run_id and resumed.times.began == run.times.began
    resumed.rows = history(3)[:2]
    resumed.epoch(history(3)[2])
    finish_run(job, epochs=3)
    again.record(job)
    run = again.client.get_run(run_id)
    assert "ended_by" not in run.data.tags
    assert (run.info.status, run.data.tags["prefect.flow_run"]) == ("FINISHED", "second")
    for key in ("training_loss", "validation_loss", "validation_score"):
        assert steps(again, run_id, key) == [1, 2, 3]
    # Nor does recording it again, whole.
    again.record(job)
    assert steps(again, run_id, "training_loss") == [1, 2, 3]
    assert steps(again, run_id, "best_epoch") == [0]


def test_seeds_trained_later_join_their_variant(folder):
    prepared = prepared_text(folder)
    tracking = open_tracking()
    for seed, score in enumerate((0.8, 0.9)):
        job = make_job(folder, prepared, "han", seed)
        tracking.record(job, evaluate_run(finish_run(job, score), score))
        tracking.update_parents()
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


def test_runs_of_another_folder_are_left_to_it(folder, tmp_path_factory, monkeypatch):
    job = make_job(folder, prepared_text(folder), "han")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'shared.db'}")
    run_id = Followed(job, open_tracking().record).id
    other = tmp_path_factory.mktemp("other")
    assert reconcile(Environment(runs=other / "runs"), other).closed == {}
    assert open_tracking().client.get_run(run_id).info.status == "RUNNING"


def test_the_charts_have_the_runs_with_the_settings_of_the_experiment_alone(folder):
    """Others are hidden until a report has them, also while they train."""
    (folder / "experiments").mkdir()
    for name in ("params.yaml", "data.manifest.json", "experiments/tiny.yaml"):
        shutil.copy2(ROOT / name, folder / name)
    small, tracking = prepared_text(folder), open_tracking()
    overrides = [
        [],
        ["training.learning_rate=0.02"],
        ["network.hidden_size=12"],
        ["preprocessing.min_count=4"],
        ["training.ema_decay=0.0"],  # the default
    ]
    for seed, given in enumerate(overrides):
        variant = make_plan("tiny", ["han"], overrides=given).variants["han"]
        prepared = folder / "prepared" / variant.prepared_key
        shutil.copytree(small, prepared, dirs_exist_ok=True)
        job = make_job(folder, prepared, "han", seed, experiment="tiny")
        job = replace(job, data=variant.data, network=variant.network, training=variant.training)
        run = Followed(job, tracking.record)
        run.epoch(history(1)[0])
        finish_run(job)
        tracking.record(job)
    shown = json.loads(views("test", ["accuracy"])[f"{TAG}charts"])["searchFilter"]
    runs = tracking.client.search_runs([tracking.experiment("tiny")], shown)
    assert sorted(run.data.tags["seed"] for run in runs) == ["0", "4"]
    assert len(tracking.client.search_runs([tracking.experiment("tiny")], "tags.run_key != ''")) == len(overrides)


def test_an_evaluation_that_changed_is_the_latest_value(folder):
    """And the score that training saw does not come back over it."""
    job = make_job(folder, prepared_text(folder), "han")
    run = finish_run(job)
    tracking = open_tracking()
    run_id = tracking.record(job, evaluate_run(run, 0.8))
    tracking.record(job, evaluate_run(run, 0.7))
    assert tracking.client.get_run(run_id).data.metrics["test.accuracy"] == 0.7
    assert steps(tracking, run_id, "test.accuracy") == [0, 1]
    tracking.record(job)
    assert tracking.client.get_run(run_id).data.metrics["validation.accuracy"] == 0.7


def test_one_run_in_two_experiments(folder):
    """The same run_key, trained once: each experiment has it in its own place."""
    job = make_job(folder, prepared_text(folder), "han")
    finish_run(job)
    tracking = open_tracking()
    ids = {tracking.record(job), tracking.record(replace(job, experiment="other"))}
    assert len(ids) == 2
    assert {tracking.record(job), tracking.record(replace(job, experiment="other"))} == ids


def test_more_than_25_metrics_are_named_and_left_out(folder):
    job = make_job(folder, prepared_text(folder), "han")
    tracking = open_tracking()
    run = Followed(job, tracking.record)
    run.epoch({"epoch": 1, "gap": float("nan"), **{f"m{number:02}": number for number in range(30)}})
    run = tracking.client.get_run(run.id)
    assert sorted(run.data.metrics) == [f"m{number:02}" for number in range(25)]
    assert run.data.tags["metrics_left_out"] == "m25, m26, m27, m28, m29"


def test_the_report_of_an_experiment(folder):
    tracking = open_tracking()
    report = write_report([], folder)
    verdicts = read_json(report / "verdicts.json")
    verdicts["verdicts"][0]["name"] = "β > 1?"
    write_json(report / "verdicts.json", verdicts)
    run_id = tracking.report(report)
    assert tracking.client.get_run(run_id).data.tags["verdict.β _ 1_"] == "holds"
    (report / "report.html").write_text("<p>second</p>")
    assert tracking.report(report) == run_id
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
        open_tracking().experiment("trial")


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_clock_that_is_set_back_ends_no_run_before_it_began(folder, monkeypatch, end):
    """A run was killed, the clock was set back by a day, and the run resumed."""
    tracking, job = open_tracking(), make_job(folder, prepared_text(folder), "han")
    run = Followed(job, tracking.record)
    before = run.times.began - 24 * 3600 * 1000
    if end == "finish":
        os.utime(finish_run(job) / "result.json", ns=(before * 10**6, before * 10**6))
        tracking.record(job)
    else:
        monkeypatch.setattr(examples, "now", lambda: before)
        run.end("KILLED")
    ended = tracking.client.get_run(run.id)
    assert ended.info.status == {"finish": "FINISHED", "fail": "KILLED"}[end]
    assert ended.info.start_time == run.times.began and ended.info.end_time >= ended.info.start_time
    tracking.update_parents()
    parent = tracking.client.get_run(ended.data.tags["mlflow.parentRunId"])
    assert parent.info.end_time >= parent.info.start_time
