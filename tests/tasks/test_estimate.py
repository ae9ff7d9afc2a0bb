"""How long training takes, measured: the share of other work on the machine, and what is counted."""

import pytest

from reread.planning.resolve import make_plan
from tasks.estimate import slowdown, training_seconds
from tasks.preprocess import preprocess
from tests.reread.commands.conftest import make_folder


@pytest.mark.parametrize(
    ("share", "workers", "cores", "expected"),
    [
        (1.0, 2, 2, (1.0, 1.0)),  # an idle machine with a core for each
        (1.0, 4, 2, (2.0, 0.5)),  # more runs than cores
        (0.5, 1, 2, (1.0, 0.5)),  # three others: what was measured is what one run gets
        (0.5, 2, 2, (1.25, 0.4)),  # a second run is one more that shares
        (0.25, 2, 1, (1.25, 0.2)),
    ],
)
def test_runs_share_the_cores_with_each_other_and_with_other_work(share, workers, cores, expected):
    assert slowdown(share, workers, cores) == pytest.approx(expected)


def test_each_trial_counts_as_the_slowest_of_its_variant_and_each_seed_as_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path))
    sizes = {"training": {"max_epochs": [10]}, "network": {"growth_rate": [4, 6]}}
    content = {
        "title": "Sizes",
        "variants": {"relu": {"model": "densenet", "data": "digits", "network": {"depth": 10}, "grid": sizes}},
        "seeds": [0, 1],
    }
    plan = make_plan("sizes", content=content)
    jobs = plan.jobs({key: preprocess.fn(about) for key, about in plan.preparations().items()})
    seconds = {"relu/max_epochs=10,growth_rate=4": 1.0, "relu/max_epochs=10,growth_rate=6": 3.0}
    measured = []

    def epoch_seconds(job):
        measured.append(job["variant"])
        return seconds[job["variant"]], 1.0

    monkeypatch.setattr("tasks.estimate.epoch_seconds", epoch_seconds)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert training_seconds(jobs, 2) == ({"relu": 4 * 3.0 * 10 / 2}, 1.0)
    assert sorted(measured) == sorted(seconds)  # each once, whatever the seeds
    assert training_seconds([], 2) == ({}, 1.0)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    found, share = training_seconds(jobs[:1], 1)
    assert found["relu"] > 0 and 0 < share <= 1
