"""A search for settings: trials that a sampler proposes from validation scores, the same ones after each restart."""

import dataclasses
import json
import math

import pytest

from reread.planning.environment import Environment
from reread.planning.resolve import make_plan
from reread.planning.search import rounds, with_known_trials
from reread.planning.space import axes, propose
from reread.storage.errors import InputError
from reread.storage.run_folder import write_result
from tests.reread.planning.test_experiment import refused, write

SPACE = {
    "training": {"learning_rate": {"low": 0.0001, "high": 1.0, "log": True}},
    "network": {"growth_rate": {"low": 4, "high": 12, "step": 4}, "activation": ["relu", "swish"]},
}
SEARCH = {"sampler": "tpe", "trials": 24, "parallel": 3, "startup": 8, "seed": 5}
EXPERIMENT = {
    "title": "A search",
    "variants": {
        "plain": {"model": "densenet", "data": "digits"},
        "fixed": {"model": "densenet", "data": "digits", "space": {}},
    },
    "seeds": [0, 1],
    "search": {"trials": 5, "parallel": 2, "startup": 2, "space": SPACE},
}


def score(name, settings):
    """Best at a learning rate of .01 with Swish."""
    distance = abs(math.log10(settings["training"]["learning_rate"]) + 2)
    return -distance + 0.5 * (settings["network"]["activation"] == "swish")


def best(search):
    return max(score(name, settings) for name, settings in propose(search, axes(SPACE, "space"), score).items())


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_trials_are_of_the_space_and_the_same_for_a_seed(sampler):
    search = {**SEARCH, "sampler": sampler}
    trials = propose(search, axes(SPACE, "space"), score)
    assert trials == propose(search, axes(SPACE, "space"), score)
    for other in (6, 5 + 64, 2**40):
        assert set(trials) != set(propose({**search, "seed": other}, axes(SPACE, "space"), score))
    tried = [settings["network"] for settings in trials.values()]
    assert {network["growth_rate"] for network in tried} == {4, 8, 12}
    assert {network["activation"] for network in tried} == {"relu", "swish"}
    for name, settings in trials.items():
        rate, network = settings["training"]["learning_rate"], settings["network"]
        assert (
            0.0001 <= rate <= 1 and network["growth_rate"] in (4, 8, 12) and network["activation"] in ("relu", "swish")
        )
        assert name == f"learning_rate={rate},growth_rate={network['growth_rate']},activation={network['activation']}"
        assert len(f"{rate:e}".rstrip("0").split("e")[0].strip("0").replace(".", "")) <= 4 or rate == float(
            f"{rate:.4g}"
        )


def test_tpe_finds_more_than_chance():
    seeds = range(10)
    gains = [best({**SEARCH, "seed": seed}) - best({**SEARCH, "seed": seed, "sampler": "random"}) for seed in seeds]
    assert sum(gains) / len(gains) > 0.05 and sum(gain > 0 for gain in gains) >= 6


def test_the_first_trials_are_drawn_by_chance():
    """As many as ``startup`` says do not depend on the scores; the next ones do."""
    trials, other = (
        list(propose({**SEARCH, "startup": 15}, axes(SPACE, "space"), scores))
        for scores in (score, lambda name, settings: -score(name, settings))
    )
    assert trials[:15] == other[:15] and trials[15:] != other[15:]


def drawn(axis):
    """The values of a setting of the optimiser that the trials draw."""
    space = {"training": {"optimizer": {"weight_decay": axis}}}
    search = {**SEARCH, "sampler": "random", "trials": 30}
    trials = propose(search, axes(space, "space"), lambda name, settings: 0.0)
    assert all(name.startswith("optimizer.weight_decay=") for name in trials)
    return {settings["training"]["optimizer"]["weight_decay"] for settings in trials.values()}


def test_an_interval_of_whole_numbers_has_whole_numbers_alone():
    assert drawn({"low": 1, "high": 3}) == {1, 2, 3}
    for low, high in ((1, 2.5), (1.5, 3)):
        assert any(value != round(value) for value in drawn({"low": low, "high": high}))
    assert drawn({"low": 0.5, "high": 1.5, "step": 0.5}) == {0.5, 1.0, 1.5}


def test_a_batch_is_proposed_from_the_results_before_it_alone():
    whole = propose(SEARCH, axes(SPACE, "space"), score)
    for known in (0, 3, 7, 12):
        scores = {name: score(name, settings) for name, settings in list(whole.items())[:known]}
        proposed = propose(SEARCH, axes(SPACE, "space"), lambda name, _, scores=scores: scores.get(name))
        # Those of the first batch that has a trial without a result, and all before.
        assert list(proposed) == list(whole)[: known - known % 3 + 3]


@pytest.fixture
def project(tmp_path):
    """A project whose arrays are prepared, as far as a plan reads them."""
    root = write(tmp_path, EXPERIMENT)
    folders = {"runs": root / "runs", "prepared": root / "prepared", "reports": root / "reports"}
    environment = Environment(**folders)
    plan = make_plan("trial", root=root, environment=environment)
    (key,) = {variant.prepared_key for variant in plan.variants.values()}
    (root / "prepared" / key).mkdir(parents=True)
    (root / "prepared" / key / "prepared.json").write_text(json.dumps({"kind": "image", "arrays": {}}))
    return lambda: make_plan("trial", root=root, environment=environment)


def finish(job):
    """Write the result that a run would have."""
    directory = job.run_directory
    directory.mkdir(parents=True)
    (directory / "history.csv").write_text("epoch\n")
    settings = {"training": job.training, "network": {"activation": job.network["activation"]["name"]}}
    write_result(directory, {"validation": {"score": score("", settings) + job.seed / 100}})


def trial_name(job):
    """The name of a trial by what its job trains with."""
    rate, network = job.training["learning_rate"], job.network
    return f"plain/learning_rate={rate},growth_rate={network['growth_rate']},activation={network['activation']['name']}"


def test_a_search_that_is_killed_goes_on_with_what_is_missing(project):
    plan = project()
    assert list(plan.bases) == ["plain", "fixed"] and len(plan.trials["plain"]) == 2 and "fixed" in plan.variants
    assert not plan.partial and plan.record()["search"]["trials"] == 5
    given = rounds(plan, {})
    first = next(given)
    assert [job.seed for job in first] == [0, 0, 0, 1, 1, 1]
    assert {job.variant for job in first} == {"fixed", *(trial_name(job) for job in first[:2])}
    for job in first:
        finish(job)
    second = next(given)
    assert len(second) == 4 and not {job.run_key for job in first} & {job.run_key for job in second}
    # Trials that become known leave the report of a selection where it was.
    part = dataclasses.replace(plan, partial=True)
    assert with_known_trials(part).variants != part.variants
    assert with_known_trials(part).report_name == part.report_name
    finish(second[0])

    # A new process begins with the plan that the finished runs make.
    again = project()
    assert len(again.trials["plain"]) == 4
    unfinished = {job.run_key for job in again.unfinished()}
    assert unfinished == {job.run_key for job in second[1:]}
    for job in second[1:]:
        finish(job)
    (third,) = given
    assert len(third) == 2
    for job in third:
        finish(job)
    whole = project()
    assert len(whole.trials["plain"]) == 5 and not whole.unfinished()
    assert with_known_trials(plan) == whole
    (again,) = rounds(whole, {})
    assert len(again) == 12


COMPARISON = {
    "name": "n", "claim": "c", "source": "s", "treatment": "plain", "control": "fixed", "metric": "accuracy",
}  # fmt: skip


def test_a_search_that_cannot_be_is_refused(tmp_path):
    def said(**changes):
        return refused(write(tmp_path, {**EXPERIMENT, **changes}))

    assert "evaluate_on" in said(evaluate_on="test")
    assert "grid" in said(grid={"training": {"learning_rate": [0.1]}})
    assert "comparisons" in said(comparisons=[COMPARISON])
    assert "'plain' has a space" in said(
        search=None, variants={"plain": {**EXPERIMENT["variants"]["plain"], "space": SPACE}}
    )
    assert "no space" in said(search={"trials": 5})
    assert "trials" in said(search={"trials": 0, "space": SPACE})
    assert "'tpe'" in said(search={"trials": 5, "sampler": "tpo", "space": SPACE})
    assert "preprocessing" in said(search={"trials": 5, "space": {"preprocessing": {"rows_per_class": [1]}}})
    for section in ([1, 2], {"low": 1, "high": 2}):
        assert "list of values" in said(search={"trials": 5, "space": {"training": section}})


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        ({"low": 1, "high": 0.1}, "low is 1"),
        ({"low": 1, "high": 1}, "low is 1"),
        ({"low": 0, "high": 0.1, "log": True}, "space of plain.training.learning_rate"),
        ({"low": 0.1, "high": "1e-1"}, "learning_rate.high is '1e-1'"),
        ({"low": 0.1}, "learning_rate.high is None"),
        ({"low": 0.1, "high": 0.2, "step": 0.3}, "not divisible by `step`"),
        ({"low": 0.1, "higher": 1}, "'high'"),
        ({"low": -2.0, "high": -1.0}, "learning_rate is -"),
        (0.1, "list of values"),
        ({"low": True, "high": 2}, "learning_rate.low is True"),
        ([0.1, 0.1], "list of values"),
        ([], "list of values"),
        ({}, "list of values"),
    ],
)
def test_an_axis_that_cannot_be_is_refused(tmp_path, rate, named):
    search = {"trials": 5, "space": {"training": {"learning_rate": rate}}}
    assert named in refused(write(tmp_path, {**EXPERIMENT, "search": search}))


def test_a_setting_that_there_is_not_is_refused(tmp_path):
    search = {"trials": 5, "space": {"training": {"learning_rat": [0.1]}}}
    assert "'learning_rate'" in refused(write(tmp_path, {**EXPERIMENT, "search": search}))


def test_an_experiment_that_tunes_another_gives_its_variants_spaces(tmp_path):
    write(tmp_path)
    tuning = {
        "title": "t",
        "tunes": "trial",
        "seeds": [9],
        "search": {"trials": 3, "space": {"training": {"patience": [1, 2, 3]}}},
    }
    write(tmp_path, {**tuning, "variants": {"relu": {"space": {"network": {"depth": [10, 16]}}}}}, name="tuning")
    plan = make_plan("tuning", root=tmp_path)
    assert all("depth=" in name for name in plan.trials["relu"]) and all(
        "patience=" in name for name in plan.trials["swish"]
    )
    write(tmp_path, {**tuning, "variants": {"swich": {"space": {}}}}, name="tuning")
    with pytest.raises(InputError, match="'swish'"):
        make_plan("tuning", root=tmp_path)
