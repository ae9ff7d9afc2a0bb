"""The variance of a tuning: what each of its seeds chooses, and the interval that has it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from reread.planning.resolve import make_plan
from reread.planning.runs import RESULTS
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.source import ROOT
from reread.studies.load_runs import evaluated_experiment
from reread.studies.tuning_variance import choices_by_seed, overrides_of, with_tuning, word_with_tuning
from tests.reread.studies.pipeline import run_pipeline

SMALL = {"embedding_dim": 8, "hidden_size": 4}
EXPERIMENT = {
    "title": "Two readers of few documents",
    "defaults": {
        "data": "docstrings",
        "preprocessing": {"rows_per_class": 6},
        "network": SMALL,
        "training": {"max_epochs": 2, "batch_size": 8, "learning_rate": 0.01, "schedule": {"warmup_epochs": 0}},
    },
    "variants": {"han": {"model": "han"}, "flat": {"model": "gru_flat"}},
    "seeds": [0, 1, 2, 3],
    "comparisons": [
        {"treatment": "han", "control": "flat", "metric": "accuracy", "claim": "A hierarchy helps.", "source": "none"}
    ],
    "evaluate_on": "test",
}
TUNING = {
    "title": "Which rate?",
    "tunes": "trial",
    "grid": {"training": {"learning_rate": [0.005, 0.01, 0.02]}},
    "seeds": [100, 101, 102],
}
# Validation accuracy by rate of seeds 100, 101 and 102. For flat the rates 0.005 and 0.01 tie by seed 102.
HAN = {0.005: (0.5, 0.6, 0.5), 0.01: (0.7, 0.5, 0.6), 0.02: (0.6, 0.7, 0.5)}
FLAT = {0.005: (0.5, 0.5, 0.6), 0.01: (0.7, 0.7, 0.6), 0.02: (0.6, 0.6, 0.5)}
OF_HAN = "variants.han.training.learning_rate=0.02"


def trial(accuracies: tuple[float, ...]) -> dict:
    seeds = {
        str(seed): {"validation": {"accuracy": accuracy}, "epochs": 2, "best_epoch": 1, "ended": "schedule completed"}
        for seed, accuracy in zip(TUNING["seeds"], accuracies, strict=False)
    }
    mean = {"accuracy": {"mean": float(np.mean(accuracies))}}
    return {"score": "accuracy", "parameters": 9, "seeds": seeds, "validation": mean}


def write_tuning(root: Path, seeds: int = 3) -> Path:
    """Write results of the tuning by its first ``seeds``, and return their folder."""
    folder = root / RESULTS / "trial-tuning"
    scores = {
        f"{name}/learning_rate={rate:g}": trial(accuracies[:seeds])
        for name, of in (("han", HAN), ("flat", FLAT))
        for rate, accuracies in of.items()
    }
    plan = make_plan("trial-tuning", root=root)
    means = {name: result["validation"]["accuracy"]["mean"] for name, result in scores.items()}
    tuned = {name: {key: means[key] for key in trials} for name, trials in plan.trials.items()}
    chosen = {name: {"chosen": max(of, key=of.__getitem__), "trials": of} for name, of in tuned.items()}
    write_json(folder / "plan.json", plan.record())
    write_json(folder / "metrics.json", {"variants": scores, "tuned": chosen})
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The experiment, trained and evaluated, and a tuning of it by three seeds."""
    root = tmp_path_factory.mktemp("project")
    for name in ("data", "data.manifest.json", "params.yaml"):
        (root / name).symlink_to(Path(ROOT, name).resolve())
    (root / "experiments").mkdir()
    for name, content in (("trial", EXPERIMENT), ("trial-tuning", TUNING)):
        (root / f"experiments/{name}.yaml").write_text(yaml.safe_dump(content))
    run_pipeline(root, "trial")
    write_tuning(root)
    return root


@pytest.fixture
def call(root, study, monkeypatch, tmp_path) -> Callable[..., str]:
    """``reread study tuning_variance`` in the project's folder."""
    monkeypatch.chdir(root)
    return lambda **given: study("tuning_variance", "--experiment", "trial", "--to", tmp_path, **given)


def test_each_seed_of_the_tuning_chooses_alone_and_a_tie_changes_nothing(root, monkeypatch):
    monkeypatch.chdir(root)
    chosen = choices_by_seed(RESULTS / "trial-tuning")
    rates = {
        seed: {name: choice.chosen["training.learning_rate"] for name, choice in of.items()}
        for seed, of in chosen.items()
    }
    assert {seed: of["han"] for seed, of in rates.items()} == {100: 0.01, 101: 0.02, 102: 0.01}
    source = evaluated_experiment(make_plan("trial"))
    assert [overrides_of(source, of) for of in chosen.values()] == [[], [OF_HAN], []]


def test_a_tuning_of_one_seed_is_refused(root, call):
    write_tuning(root, seeds=1)
    try:
        assert "fewer than 2 seeds" in call(code=2)
    finally:
        write_tuning(root)


def test_what_is_missing_is_named_and_then_each_tuning_is_compared(root, call, tmp_path):
    told = call(code=2)
    assert "1 of 3 tunings" in told and f"run `reread run --experiment trial --set {OF_HAN}`" in told
    other = evaluated_experiment(run_pipeline(root, "trial", [OF_HAN]))
    assert "inconclusive" in call()
    place = tmp_path / "tuning_variance/trial"
    own = evaluated_experiment(make_plan("trial"))
    means = {100: own.verdicts[0]["mean"], 101: other.verdicts[0]["mean"], 102: own.verdicts[0]["mean"]}
    differences = pd.read_csv(place / "differences.csv").set_index("tuning_seed")["difference"]
    assert differences.to_dict() == pytest.approx(means, abs=1e-5)
    interval = pd.read_csv(place / "intervals.csv").iloc[0]
    assert interval["mean_of_tunings"] == pytest.approx(np.mean(list(means.values())), abs=1e-5)
    assert interval["low_with_tuning"] <= interval["low"] < interval["high"] <= interval["high_with_tuning"]
    choices = pd.read_csv(place / "choices.csv").groupby("variant")["choice"].agg(list)
    assert choices["han"] == ["learning_rate=0.01", "learning_rate=0.02", "learning_rate=0.01"]
    assert choices["flat"] == ["learning_rate=0.01"] * 3
    results = json.loads((place / "results.json").read_text())
    assert results["tunings"]["101"] == {"plan": other.plan.key, "overrides": [OF_HAN]}
    assert results["provenance"]["plan"] == own.plan.key and (place / "figure.png").is_file()


def verdict(word: str, treatment: list[float], control: list[float], **changes) -> dict:
    mean = float(np.mean(treatment) - np.mean(control))
    return {
        "name": "p",
        "verdict": word,
        "equivalence_margin": 0.02,
        "interval": {"mean": mean, "low": mean, "high": mean},
        "interval_level": 0.95,
        "scores": {"treatment": treatment, "control": control},
        "seeds": {"treatment": list(range(len(treatment))), "control": list(range(len(control)))},
        "item_deviation": 0.0,
        "item_units": 0,
        "items": 0,
        "resamples": 0,
        **changes,
    }


def test_the_interval_with_tuning_covers_the_mean_of_all_tunings():
    """By simulation: 6 seeds of each side and 3 tunings, all of equal spread, and a true difference of 0."""
    generator, inside = np.random.default_rng(0), []
    for _ in range(2000):
        tunings = generator.normal(0, 1, 3)
        sides = [generator.normal(0, 1, 6) for _ in range(2)]
        of_seeds = sides[0].mean() - sides[1].mean()
        judged = verdict("different", *(side.tolist() for side in sides))
        # The verdict's own interval reaches nowhere.
        own = {"low": np.inf, "high": -np.inf}
        _, low, high = with_tuning({**judged, "interval": own}, (tunings + of_seeds).tolist())
        inside.append(low <= 0 <= high)
    # The standard error of the share is 0.005.
    assert np.mean(inside) > 0.94


def test_tunings_that_agree_leave_the_verdicts_own_interval():
    judged = verdict(
        "supported", [0.9, 0.91, 0.92], [0.8, 0.8, 0.8], interval={"mean": 0.11, "low": 0.01, "high": 0.21}
    )
    assert with_tuning(judged, [0.11, 0.11, 0.11]) == (pytest.approx(0.11), 0.01, 0.21)
    mean, low, high = with_tuning(judged, [0.01, 0.11, 0.21])
    assert mean == pytest.approx(0.11) and low < 0 and high > 0.22
    unknown = verdict("inconclusive", [0.9], [0.8], interval={"mean": 0.1, "low": None, "high": None})
    with pytest.raises(InputError, match="no interval"):
        with_tuning(unknown, [0.1, 0.1])


@pytest.mark.parametrize(
    ("before", "low", "high", "after"),
    [
        ("supported", 0.03, 0.09, "supported"),
        ("supported", 0.01, 0.09, "different"),
        ("supported", -0.01, 0.09, "inconclusive"),
        ("refuted", -0.09, -0.03, "refuted"),
        ("refuted", -0.09, -0.01, "different"),
        ("equivalent", -0.01, 0.01, "equivalent"),
        # Its interval is of another level than that of a direction.
        ("equivalent", 0.01, 0.03, "inconclusive"),
        ("different", 0.01, 0.03, "different"),
        ("different", -0.01, 0.03, "inconclusive"),
        # A verdict that was withheld stays so.
        ("inconclusive", 0.03, 0.09, "inconclusive"),
    ],
)
def test_a_verdict_only_becomes_weaker(before, low, high, after):
    assert word_with_tuning(verdict(before, [0.9], [0.8]), low, high) == after
