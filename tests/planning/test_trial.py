"""The experiment that tries every network on a user's data, before and after tuning."""

import shutil

import pytest

from planning.experiment import load_experiment
from planning.resolve import make_plan
from planning.trial import MARK, experiment_of, tuned, tuning_of, write_experiment
from planning.tuning import tuning_name
from preprocessing.manifest import Manifest
from preprocessing.raw import About, add_data_set
from preprocessing.raw_text import Document, TextRows
from storage.errors import InputError
from storage.source import ROOT


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy2(ROOT / "params.yaml", tmp_path)
    (tmp_path / "experiments").mkdir()


def entry(task):
    splits = ("train",) * 4 + ("validation", "test")
    rows = [Document(f"d{row}", (row % 2,), split, f"Text number {row}.") for row, split in enumerate(splits)]
    return add_data_set("mine", TextRows(About(("a", "b"), "a test", "none", task=task), rows))


@pytest.mark.parametrize(
    ("task", "smoothing", "metric"), [("single-label", 0.1, "accuracy"), ("multi-label", 0.0, "tuned_micro_f1")]
)
def test_tuning_chooses_settings_and_the_two_sides(task, smoothing, metric):
    first = experiment_of("mine", entry(task), seeds=6, epochs=3)
    write_experiment("mine", first)
    write_experiment(tuning_name("mine"), tuning_of("mine", first))
    tuning = make_plan(tuning_name("mine"))
    assert tuning.evaluate_on == "validation" and len(tuning.variants) == 12 and tuning.seeds == (100,)
    chosen = {name: next(one for one in trials if "0.003" in one) for name, trials in tuning.trials.items()}
    scores = {"tf-idf": {"validation": {metric: 0.8}}, "nb-svm": {"validation": {metric: 0.9}}}
    metrics = {
        "tuned": {name: {"chosen": trial, "trials": tuning.trials[name]} for name, trial in chosen.items()},
        "variants": {
            trial: {"validation": {metric: {"mean": 0.7 + 0.1 * (name == "gru-flat")}}}
            for name, trial in chosen.items()
        },
        "baselines": {"mine": scores},
    }
    write_experiment("mine", tuned(first, tuning, metrics))
    plan = make_plan("mine")
    assert {one.training["learning_rate"] for one in plan.variants.values()} == {0.003}
    assert {one.training["max_epochs"] for one in plan.variants.values()} == {3}
    assert plan.variants["han"].training["objective"]["label_smoothing"] == smoothing
    assert plan.variants["han"].network["hidden_size"] == 32 and len(plan.seeds) == 6
    (comparison,) = plan.comparisons
    assert (comparison["treatment"], comparison["control"], comparison["metric"]) == ("gru-flat", "nb-svm", metric)
    assert plan.evaluate_on == "test"
    assert plan.tuning["experiment"] == "mine-tuning" and "4 sizes and learning rates" in plan.tuning["budget"]


def test_some_of_the_networks_can_be_chosen():
    about = entry("single-label")
    assert list(experiment_of("mine", about, 6, None, ["word-average"])["variants"]) == ["word-average"]
    # Another network of models/ is tuned over its learning rate.
    first = experiment_of("mine", entry("multi-label"), 6, None, ["word_average", "han"])
    write_experiment("mine", first)
    write_experiment(tuning_name("mine"), tuning_of("mine", first))
    trials = make_plan(tuning_name("mine")).trials
    assert trials["word_average"] == [f"word_average/learning_rate={rate}" for rate in (0.003, 0.01)]
    assert len(trials["han"]) == 4
    with pytest.raises(InputError, match="densenet reads image, and mine is text data"):
        experiment_of("mine", about, 6, None, ["densenet"])
    with pytest.raises(InputError, match="'word-avereg'.*'word-average'"):
        experiment_of("mine", about, 6, None, ["word-avereg"])


def test_an_experiment_of_the_user_s_own_is_left_alone():
    first = experiment_of("mine", entry("single-label"), 6, None)
    path = write_experiment("mine", first)
    assert path.read_text().startswith(MARK) and write_experiment("mine", first) == path
    path.write_text("title: mine\n")
    with pytest.raises(InputError, match="experiments/mine.yaml"):
        write_experiment("mine", first)
    assert path.read_text() == "title: mine\n"


def test_data_of_one_s_own_needs_no_section():
    write_experiment("mine", experiment_of("mine", entry("single-label"), 6, None))
    assert "mine" in Manifest.load().datasets
    assert load_experiment("mine").variants["han"].preprocessing == {}
