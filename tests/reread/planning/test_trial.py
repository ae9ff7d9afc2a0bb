"""The experiment that tries every network on a user's data, before and after tuning."""

import shutil

import pytest

from reread.planning.experiment import load_experiment
from reread.planning.resolve import make_plan
from reread.planning.trial import (
    MARK,
    as_chosen_before,
    beyond,
    experiment_of,
    folds_name,
    tuned,
    tuning_of,
    widened,
    wider,
    with_folds,
    write_experiment,
    written,
)
from reread.planning.tuning import tuning_name
from reread.preprocessing.manifest import Manifest
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.errors import InputError
from reread.storage.source import ROOT


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy2(ROOT / "params.yaml", tmp_path)
    (tmp_path / "experiments").mkdir()


def entry(task):
    splits = ("train",) * 4 + ("validation", "test")
    rows = [Document(f"d{row}", (row % 2,), split, f"Text number {row}.") for row, split in enumerate(splits)]
    return add_data_set("mine", TextRows(About(("a", "b"), "a test", "none", task=task), rows))


def tuning_plan(content):
    return make_plan(tuning_name("mine"), content=content)


def results(plan, scores, seeds=None, metric="accuracy"):
    """metrics.json of a tuning: of each trial the score that ``scores`` has by a part of its name, else 0.5."""

    def score(trial):
        return next((value for part, value in scores.items() if part in trial), 0.5)

    variants = {
        trial: {
            "validation": {metric: {"mean": score(trial)}},
            "seeds": {"100": next((result for part, result in (seeds or {}).items() if part in trial), EARLY)},
        }
        for trial in plan.variants
    }
    trials = {name: {trial: score(trial) for trial in of_it} for name, of_it in plan.trials.items()}
    tuned = {name: {"chosen": max(of_it, key=of_it.get), "trials": of_it} for name, of_it in trials.items()}
    baselines = {
        name: {"validation": {metric: score}, "parameters": 9} for name, score in {"tf-idf": 0.8, "nb-svm": 0.9}.items()
    }
    return {"tuned": tuned, "variants": variants, "baselines": {"mine": baselines}}


EARLY = {"epochs": 9, "best_epoch": 5, "ended": "stopped early"}
FULL = {"epochs": 30, "best_epoch": 30, "ended": "schedule completed"}


@pytest.mark.parametrize(
    ("task", "smoothing", "metric"), [("single-label", 0.1, "accuracy"), ("multi-label", 0.0, "tuned_micro_f1")]
)
def test_tuning_chooses_settings_and_the_two_sides(task, smoothing, metric):
    about = entry(task)
    content = tuning_of("mine", about, epochs=3)
    tuning = tuning_plan(content)
    assert tuning.evaluate_on == "validation" and len(tuning.variants) == 12 and tuning.seeds == (100,)
    assert tuning.metric == metric
    metrics = results(tuning, {"gru-flat/learning_rate=0.003,hidden_size=32": 0.8, "=0.003": 0.7}, metric=metric)
    write_experiment("mine", tuned(experiment_of("mine", about, content), tuning, metrics))
    plan = make_plan("mine")
    assert {variant.training["learning_rate"] for variant in plan.variants.values()} == {0.003}
    assert {variant.training["max_epochs"] for variant in plan.variants.values()} == {3}
    assert plan.variants["han"].training["objective"]["label_smoothing"] == smoothing
    assert plan.variants["gru-flat"].network["hidden_size"] == 32 and len(plan.seeds) == 6
    (comparison,) = plan.comparisons
    assert (comparison["treatment"], comparison["control"], comparison["metric"]) == ("gru-flat", "nb-svm", metric)
    assert plan.evaluate_on == "test" and plan.metric == metric and plan.withhold_untuned
    assert plan.tuning["experiment"] == "mine-tuning" and "4 sizes and learning rates" in plan.tuning["budget"]


def test_another_metric_chooses_and_judges():
    about = entry("single-label")
    content = tuning_of("mine", about, metric="macro_f1")
    assert tuning_plan(content).metric == "macro_f1"
    experiment = experiment_of("mine", about, content)
    assert (experiment["metric"], experiment["comparisons"][0]["metric"]) == ("macro_f1", "macro_f1")
    with pytest.raises(InputError, match="macro_f2"):
        tuning_plan(tuning_of("mine", about, metric="macro_f2"))


def test_tuning_goes_on_where_a_choice_is_at_the_edge():
    about = entry("single-label")
    content = tuning_of("mine", about, only=["word-average", "han"])
    plan = tuning_plan(content)
    scores = {"word-average/learning_rate=0.01,embedding_dim=32": 0.9, "han/learning_rate=0.003,hidden_size=64": 0.9}
    more = wider(content, plan, results(plan, scores, {"han/learning_rate=0.003,hidden_size=64": FULL}))
    assert more["word-average"] == [
        {"network": {"embedding_dim": [8]}, "training": {"learning_rate": [0.01]}},
        {"network": {"embedding_dim": [32]}, "training": {"learning_rate": [0.0333]}},
    ]
    assert {"training": {"learning_rate": [0.003], "max_epochs": [60]}, "network": {"hidden_size": [64]}} in more["han"]
    content = widened(content, more)
    plan = tuning_plan(content)
    assert len(plan.trials["word-average"]) == 6 and len(plan.trials["han"]) == 7
    # The same choices are between others now, and 60 epochs were no better: nothing is open.
    metrics = results(plan, scores, {"han/learning_rate=0.003,hidden_size=64": FULL})
    assert metrics["tuned"]["han"]["chosen"] == "han/learning_rate=0.003,hidden_size=64"
    assert wider(content, plan, metrics) == {}
    # A better one beyond is gone on from.
    (further,) = wider(content, plan, results(plan, {**scores, "=0.0333": 0.95}))["word-average"]
    assert further["training"] == {"learning_rate": [0.111]}


def test_no_more_epochs_are_tried_than_were_asked_for():
    content = tuning_of("mine", entry("single-label"), epochs=30, only=["encoder"])
    plan = tuning_plan(content)
    (grid,) = wider(content, plan, results(plan, {"=0.01": 0.9}, {"=0.01": FULL}))["encoder"]
    assert grid == {"training": {"learning_rate": [0.0333]}}


def test_the_value_beyond_an_edge():
    assert beyond({0.01, 0.003, 0.001}, highest=True) == 0.0333 and beyond({0.01, 0.003}, highest=False) == 0.0009
    assert beyond({8, 12}, highest=True) == 18 and beyond({1, 2}, highest=False) == 1


def test_a_network_is_added_to_those_that_were_tried():
    about = entry("single-label")
    first = tuning_of("mine", about, epochs=9, only=["word-average"])
    first = widened(
        first, {"word-average": [{"training": {"learning_rate": [0.05]}, "network": {"embedding_dim": [8]}}]}
    )
    write_experiment(tuning_name("mine"), first)
    before = experiment_of("mine", about, first, seeds=8)
    assert before["equivalence_margin"] == 0.01
    write_experiment("mine", {**before, "equivalence_margin": 0.02})
    content = tuning_of("mine", about, only=["han"])
    assert list(content["variants"]) == ["word-average", "han"]
    assert content["variants"]["word-average"] == first["variants"]["word-average"]
    experiment = experiment_of("mine", about, content)
    assert experiment["seeds"] == list(range(8)) and list(experiment["variants"]) == ["word-average", "han"]
    assert experiment["equivalence_margin"] == 0.02
    # What an earlier tuning chose is expected of a variant that is tried as it was then, and of no other.
    chosen = {"model": "word_average", "network": {"embedding_dim": 8}}
    write_experiment("mine", {**before, "variants": {"word-average": {**chosen, "training": {"max_epochs": 9}}}})
    expected = as_chosen_before(experiment, content)["variants"]
    assert expected["word-average"]["network"] == {"embedding_dim": 8} and expected["han"] == {"model": "han"}
    fewer = tuning_of("mine", about, epochs=4, only=["word-average"])
    assert "network" not in as_chosen_before(experiment_of("mine", about, fewer), fewer)["variants"]["word-average"]
    # One that is tried again has the new options.
    again = tuning_of("mine", about, epochs=4, only=["word-average"])
    assert again["variants"]["word-average"]["training"] == {"max_epochs": 4}
    assert len(again["variants"]["word-average"]["grid"]) == 1


@pytest.mark.parametrize(("task", "metric"), [("single-label", "accuracy"), ("multi-label", "macro_auroc")])
def test_with_folds_each_network_is_compared_untuned_beside_those_of_before(task, metric):
    about = entry(task)
    write_experiment(folds_name("mine"), with_folds("mine", about, 3, epochs=4, only=["han"]))
    # A network may be named by its file.
    write_experiment(folds_name("mine"), with_folds("mine", about, 4, seeds=5, only=["word_average"]))
    plan = make_plan(folds_name("mine"))
    assert written(folds_name("mine"))["equivalence_margin"] == 0.01
    assert (plan.folds, len(plan.seeds), plan.metric, plan.evaluate_on) == (4, 5, metric, "test")
    assert plan.withhold_untuned and not plan.trials and not plan.tuning
    sides = [(each["treatment"], each["control"], each["metric"]) for each in plan.comparisons]
    assert sides == [("han", "tf-idf", metric), ("word-average", "tf-idf", metric)]
    assert plan.variants["han"].training["max_epochs"] == 4
    wrong = with_folds("mine", about, 3, metric="tuned_micro_f1")
    with pytest.raises(InputError, match="tuned_micro_f1"):
        make_plan(folds_name("mine"), content=wrong)


@pytest.mark.parametrize("section", [{"grid": [{}]}, {"model": "han"}, {"model": "han", "grid": {"training": {}}}])
def test_an_earlier_variant_that_was_edited_is_refused_unless_it_is_tried_again(section):
    about = entry("single-label")
    write_experiment(tuning_name("mine"), {"variants": {"han": section}})
    with pytest.raises(InputError, match="experiments/mine-tuning.yaml: variants.han"):
        tuning_of("mine", about, only=["word-average"])
    assert list(tuning_of("mine", about, only=["han", "word-average"])["variants"]) == ["han", "word-average"]


def test_some_of_the_networks_can_be_chosen():
    about = entry("multi-label")
    assert list(tuning_of("mine", about, only=["word-average"])["variants"]) == ["word-average"]
    # Another network of models/ is tuned over its learning rate.
    trials = tuning_plan(tuning_of("mine", about, only=["encoder", "han"])).trials
    assert trials["encoder"] == [f"encoder/learning_rate={rate}" for rate in (0.003, 0.01)]
    assert len(trials["han"]) == 4
    with pytest.raises(InputError, match="densenet reads image, and mine is text data"):
        tuning_of("mine", about, only=["densenet"])
    with pytest.raises(InputError, match="'word-avereg'.*'word-average'"):
        tuning_of("mine", about, only=["word-avereg"])
    # One that has a name here is the same by the name of its file.
    assert tuning_of("mine", about, only=["word_average"]) == tuning_of("mine", about, only=["word-average"])
    # Only those that read the data are named, each once.
    with pytest.raises(InputError, match="read text: choose from: encoder, gru-flat, han, word-average$"):
        tuning_of("mine", about, only=["zzz"])


def test_an_experiment_of_the_user_s_own_is_left_alone():
    about = entry("single-label")
    content = tuning_of("mine", about)
    path = write_experiment("mine", experiment_of("mine", about, content))
    assert path.read_text().startswith(MARK)
    path.write_text("title: mine\n")
    for attempt in (lambda: write_experiment("mine", content), lambda: experiment_of("mine", about, content, seeds=6)):
        with pytest.raises(InputError, match="experiments/mine.yaml"):
            attempt()
    assert path.read_text() == "title: mine\n"


def test_data_of_one_s_own_needs_no_section():
    about = entry("single-label")
    write_experiment("mine", experiment_of("mine", about, tuning_of("mine", about)))
    assert "mine" in Manifest.load().datasets
    assert load_experiment("mine").variants["han"].preprocessing == {}
