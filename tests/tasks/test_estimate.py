"""How long training takes, measured: the share of other work on the machine, and what is timed and counted."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from reread.batches.inference import Predictor
from reread.evaluation import baselines
from reread.planning.resolve import make_plan
from reread.training.checkpoint import Checkpoint
from reread.training.step import Step
from tasks import estimate as module
from tasks.estimate import (
    FITTED,
    STEPS,
    VALIDATED,
    Measurement,
    baseline_seconds,
    estimate,
    load,
    measure,
    share_of_each,
)
from tasks.preprocess import preprocess
from tests.reread.commands.conftest import make_folder


@pytest.mark.parametrize(
    ("share", "workers", "cores", "expected"),
    [
        (1.0, 2, 2, 1.0),  # an idle machine with a core for each
        (1.0, 4, 2, 0.5),  # more runs than cores
        (0.5, 1, 2, 0.5),  # three others: what was measured is what one run gets
        (0.5, 2, 2, 0.4),  # a second run is one more that shares
        (0.25, 2, 1, 0.2),
    ],
)
def test_runs_share_the_cores_with_each_other_and_with_other_work(share, workers, cores, expected):
    assert share_of_each(share, workers, cores) == pytest.approx(expected)


@pytest.mark.parametrize(("average", "above"), [(1.9, None), (2.0, None), (5.5, 5.5)])
def test_a_load_average_above_the_cores_is_named(monkeypatch, average, above):
    monkeypatch.setattr("os.getloadavg", lambda: (average, 0.0, 0.0))
    assert load(2) == above


def make_jobs(folder, monkeypatch, **variants):
    monkeypatch.chdir(make_folder(folder))
    defaults = {"model": "densenet", "data": "digits", "network": {"depth": 10, "growth_rate": 4}}
    content = {
        "title": "Sizes",
        "variants": {name: defaults | variant for name, variant in variants.items()},
        "seeds": [0, 1],
    }
    plan = make_plan("sizes", content=content)
    return plan.jobs({key: preprocess.fn(about) for key, about in plan.preparations().items()})


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for training steps (2 s, of which ``used`` on a core), rows that are predicted
    (10 ms), checkpoints (500 ms), and baselines (30 ms for each row that they are fitted on)."""
    now = SimpleNamespace(wall=0.0, cpu=0.0, used=1.0, calls=[])

    def slow(of, name, seconds):
        before = getattr(of, name)

        def call(*arguments, **named):
            passed = seconds(*arguments)
            now.calls.append(name)
            now.wall, now.cpu = now.wall + passed, now.cpu + passed * now.used
            return before(*arguments, **named)

        monkeypatch.setattr(of, name, call)

    slow(Step, "__call__", lambda *_: 2.0)
    slow(Predictor, "__call__", lambda predictor, _: 0.01 * len(predictor.rows))
    slow(Checkpoint, "save", lambda *_: 0.5)
    slow(baselines, "evaluate_baseline", lambda _, inputs, *others: 0.03 * len(inputs["train"]))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.cpu))
    return now


@pytest.mark.parametrize("used", [1.0, 0.5])
def test_an_epoch_is_its_steps_its_validation_and_its_checkpoint(tmp_path, monkeypatch, clock, used):
    job, _ = make_jobs(tmp_path, monkeypatch, relu={"training": {"batch_size": 50, "max_epochs": 10}})
    clock.used = used
    measurement = measure(job)
    rows = measurement.rows
    assert rows == {"train": 1265, "validation": 266, "test": 266} and measurement.share == pytest.approx(used)
    assert measurement.steps == pytest.approx((2.0,) * STEPS) and measurement.steps_per_epoch == math.ceil(1265 / 50)
    assert VALIDATED < 266 and measurement.validated == pytest.approx(0.01)
    work = 26 * 2.0 + 266 * 0.01
    # With half of a core: a core would do the work in half of the time, and half of one does it in the time measured.
    assert measurement.epoch(share=used) == pytest.approx(work * (used if used < 1 else 1) / used + 0.5)
    assert measurement.evaluation(share=used) == pytest.approx(2 * 266 * 0.01)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    about = estimate([job], 1)
    assert about.share == pytest.approx(used)
    assert about.training == pytest.approx({"relu": 10 * (work + 0.5)})
    assert about.evaluation == pytest.approx(2 * 266 * 0.01)


def test_an_epoch_of_one_batch_is_timed_and_nothing_is_written(tmp_path, monkeypatch, clock):
    job, _ = make_jobs(tmp_path, monkeypatch, relu={"training": {"batch_size": 1265}})
    before = sorted(tmp_path.rglob("*"))
    assert measure(job).steps == pytest.approx((2.0,)) and measure(job).steps_per_epoch == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_baselines_take_as_long_as_on_a_sample_for_each_row(tmp_path, monkeypatch, clock):
    job, _ = make_jobs(tmp_path, monkeypatch, relu={})
    assert baseline_seconds(job.prepared) == pytest.approx(0.03 * 1265)
    assert clock.calls.count("evaluate_baseline") == 1 and FITTED["train"] < 1265


def test_trials_are_timed_each_and_a_variant_counts_as_its_slowest(tmp_path, monkeypatch):
    sizes = {"training": {"max_epochs": [10]}, "network": {"depth": [10], "growth_rate": [4, 6]}}
    jobs = make_jobs(tmp_path, monkeypatch, relu={"network": {}, "grid": sizes}, other={})
    jobs += [replace(job, variant="relu") for job in jobs if job.variant.startswith("relu/") and job.seed == 0][:1]
    seconds = {"relu/max_epochs=10,depth=10,growth_rate=4": 1.0, "relu/max_epochs=10,depth=10,growth_rate=6": 3.0}
    seconds |= {"other": 7.0, "relu": 2.0}
    timed = []

    def measured(job):
        timed.append(job.variant)
        return Measurement((seconds[job.variant],), 1, 0.0, 0.0, {"validation": 1, "test": 1}, 1.0)

    monkeypatch.setattr("tasks.estimate.measure", measured)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    estimated = estimate(jobs, 2)
    epochs = next(job for job in jobs if job.variant == "other").training["max_epochs"]
    assert estimated.training == {"relu": 10 * (2 * 1.0 + 2 * 3.0 + 3.0) / 2, "other": 2 * 7.0 * epochs / 2}
    assert sorted(timed) == sorted(seconds)  # each once, whatever the seeds
    assert estimate([], 2).training == {}


def test_real_steps_are_timed(tmp_path, monkeypatch):
    job, _ = make_jobs(tmp_path, monkeypatch, relu={})
    estimated = estimate([job], 1)
    assert estimated.training["relu"] > 0 and estimated.evaluation > 0 and 0 < estimated.share <= 1
    assert baseline_seconds(job.prepared) > 0
