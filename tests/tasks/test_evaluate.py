"""The test rows that are in another split, too, and the metric by which baselines are tuned."""

from types import SimpleNamespace

import numpy as np

from tasks.evaluate import asked_metrics, repeated_rows


def test_rows_that_stand_in_two_splits():
    texts = {"train": ["one", "two"], "validation": ["three"], "test": ["two", "Two", "three", "four", "four"]}
    assert repeated_rows(texts).tolist() == [True, False, True, False, False]
    images = np.arange(12, dtype=np.uint8).reshape(6, 1, 2, 1)
    images[4] = images[1]
    repeated = repeated_rows({"train": images[:2], "validation": images[2:3], "test": images[3:]})
    assert repeated.tolist() == [False, True, False]


def test_every_baseline_of_a_data_set_is_tuned_for_a_metric_that_is_asked():
    names = ("han", "flat", "dense")
    variants = {name: SimpleNamespace(data="digits" if name == "dense" else "news") for name in names}
    comparisons = [
        {"treatment": "han", "control": "flat", "metric": "macro_f1"},
        {"treatment": "han", "control": "nb-svm", "metric": "loss"},
        {"treatment": "flat", "control": "nb-svm", "metric": "accuracy"},
    ]
    plan = SimpleNamespace(comparisons=comparisons, variants=variants, metric=None)
    asked = asked_metrics(plan, "news")
    assert (asked["nb-svm"], asked["tf-idf"]) == ("loss", "macro_f1")
    assert asked_metrics(plan, "digits") == {}
    # The experiment's own metric comes first where no comparison asks for another: a tuning has no comparison.
    plan.metric = "macro_recall"
    assert [asked_metrics(plan, "news")[name] for name in ("nb-svm", "tf-idf")] == ["loss", "macro_recall"]
    assert asked_metrics(plan, "digits")["linear"] == "macro_recall"
