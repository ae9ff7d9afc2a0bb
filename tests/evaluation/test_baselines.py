"""The baselines learn, choose C on validation, and are found again."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from evaluation import baselines
from evaluation.baselines import IMAGE_GRID, TEXT_GRID, evaluate_baseline
from storage.errors import InputError


def split_of(values, *edges):
    return {name: values[slice(*edge)] for name, edge in zip(("train", "validation", "test"), edges, strict=True)}


def texts_of(labels) -> list[str]:
    """A third of the words of a text tell its label."""
    rng = np.random.default_rng(0)
    common = [f"common{number}" for number in range(50)]
    return [
        " ".join([*rng.choice(common, 12), *rng.choice([f"only{label}{number}" for number in range(9)], 6)])
        for label in labels
    ]


EDGES = ((0, 90), (90, 130), (130, 200))
LABELS = np.random.default_rng(1).integers(0, 3, 200)


def test_text():
    texts = texts_of(LABELS)
    found = evaluate_baseline(
        "text", split_of(texts, *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"]
    )
    assert found.metrics["test"]["accuracy"] > 0.9 and found.metrics["test"]["rows"] == 70
    assert found.probabilities["test"].shape == (70, 3)
    assert list(found.grid) == [f"{strength:g}" for strength in TEXT_GRID] and found.chosen in TEXT_GRID
    assert found.grid[f"{found.chosen:g}"] == max(found.grid.values())


def test_images_reach_what_a_linear_model_can():
    digits = load_digits()
    images = digits.images.astype(np.uint8)[..., None]
    edges = ((0, 1000), (1000, 1300), (1300, 1797))
    found = evaluate_baseline(
        "image", split_of(images, *edges), split_of(digits.target, *edges), "single-label", list("0123456789")
    )
    assert found.metrics["validation"]["accuracy"] > 0.9 and len(found.grid) == len(IMAGE_GRID)


def test_several_labels_one_of_them_never_there():
    labels = np.stack([LABELS == 0, LABELS != 1, np.zeros(200)], axis=1).astype(np.uint8)
    found = evaluate_baseline(
        "text",
        split_of(texts_of(LABELS), *EDGES),
        split_of(labels, *EDGES),
        "multi-label",
        ["zero", "not one", "never"],
    )
    assert found.metrics["test"]["macro_auroc"] > 0.9 and (found.probabilities["test"][:, 2] == 0).all()


def test_a_class_without_training_rows_gets_probability_zero():
    labels = LABELS.copy()
    labels[:90][labels[:90] == 2] = 0
    found = evaluate_baseline(
        "text", split_of(texts_of(LABELS), *EDGES), split_of(labels, *EDGES), "single-label", ["a", "b", "c"]
    )
    assert (found.probabilities["test"][:, 2] == 0).all() and np.isfinite(found.metrics["test"]["loss"])


def test_found_again_by_content(tmp_path, monkeypatch):
    arguments = (split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"])
    first = evaluate_baseline("text", *arguments, cache=tmp_path)
    monkeypatch.setattr(baselines, "_fit", lambda *_: pytest.fail("fitted again"))
    second = evaluate_baseline("text", *arguments, cache=tmp_path)
    assert first.metrics == second.metrics and first.grid == second.grid
    assert (first.probabilities["test"] == second.probabilities["test"]).all()
    monkeypatch.undo()
    arguments[0]["train"][0] += " another"
    evaluate_baseline("text", *arguments, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_test_split_that_is_not_given_is_not_measured():
    inputs, labels = split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES)
    del inputs["test"]
    assert set(evaluate_baseline("text", inputs, labels, "single-label", list("abc")).metrics) == {"validation"}


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(InputError, match="no word stands in two"):
        evaluate_baseline(
            "text",
            {"train": ["one", "two"], "validation": ["three"]},
            {"train": np.array([0, 1]), "validation": np.array([0])},
            "single-label",
            ["a", "b"],
        )
    with pytest.raises(InputError, match="validation split"):
        evaluate_baseline("text", {"train": ["a"], "validation": []}, {}, "single-label", ["a", "b"])
