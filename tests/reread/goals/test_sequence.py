"""The metrics of sequences against sacreBLEU and a plain edit distance, and a data set of sequences that is trained."""

import json

import numpy as np
import pytest
import sacrebleu

from reread import goals
from reread.goals.sequence import END, GOAL, rows_of

WORDS = ["a", "man", "dog", "walks", "runs", "on", "the", "beach", "with", "two", "red", "blue", "shirts", "."]


def corpus(rng, rows: int, changes: float) -> tuple[list[str], list[str]]:
    """Return predictions and references: of each reference some words are replaced, left out or repeated."""
    references, predictions = [], []
    for _ in range(rows):
        reference = rng.choice(WORDS, size=rng.integers(1, 14)).tolist()
        prediction = []
        for word in reference:
            draw = rng.random()
            kept = [rng.choice(WORDS)] if draw < changes / 3 else [] if draw < changes * 2 / 3 else [word]
            prediction += kept * (2 if changes * 2 / 3 <= draw < changes else 1)
        references.append(" ".join(reference))
        predictions.append(" ".join(prediction))
    return predictions, references


def value(name: str, predictions, references) -> float | None:
    return GOAL.metric(name).value(*GOAL.from_texts(predictions, references))


@pytest.mark.parametrize("changes", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_bleu_is_that_of_sacrebleu(rows, changes):
    predictions, references = corpus(np.random.default_rng(rows), rows, changes)
    expected = sacrebleu.corpus_bleu(predictions, [references], tokenize="none").score
    assert value("bleu", predictions, references) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("predictions", [[""], ["x y z"], ["a man"], ["a x man y"], ["a man x y z u v w"]])
def test_bleu_of_few_matches_is_smoothed_as_sacrebleu_does(predictions):
    references = ["a man walks on the beach ."]
    expected = sacrebleu.corpus_bleu(predictions, [references], tokenize="none").score
    assert value("bleu", predictions, references) == pytest.approx(expected, abs=1e-9)


def test_bleu_of_resamples_is_that_of_the_drawn_rows():
    predictions, references = corpus(np.random.default_rng(0), 20, 0.4)
    counts = np.random.default_rng(1).multinomial(20, np.full(20, 0.05), size=5).astype(np.float64)
    prediction, target = GOAL.from_texts(predictions, references)
    resampled = GOAL.metric("bleu").resampled([prediction], target)(counts)
    for row, [score] in zip(counts.astype(int), resampled, strict=True):
        drawn = [number for number, times in enumerate(row) for _ in range(times)]
        expected = sacrebleu.corpus_bleu(
            [predictions[i] for i in drawn], [[references[i] for i in drawn]], tokenize="none"
        ).score
        assert score == pytest.approx(expected, abs=1e-9)


def edit_distance(first: list[str], second: list[str]) -> int:
    if not first or not second:
        return len(first) + len(second)
    if first[-1] == second[-1]:
        return edit_distance(first[:-1], second[:-1])
    shorter = (first[:-1], second), (first, second[:-1]), (first[:-1], second[:-1])
    return 1 + min(edit_distance(*pair) for pair in shorter)


def test_word_errors_are_the_edit_distance_over_the_words():
    predictions, references = corpus(np.random.default_rng(3), 40, 0.5)
    pairs = [(p.split()[:6], r.split()[:6]) for p, r in zip(predictions, references, strict=True)]
    pairs += [([], ["a"]), (["a", "b"], ["a"]), (["b", "a"], ["a", "b"])]
    expected = sum(edit_distance(*pair) for pair in pairs) / sum(len(reference) for _, reference in pairs)
    texts = [[" ".join(pair[side]) for pair in pairs] for side in (0, 1)]
    assert value("word_error_rate", *texts) == pytest.approx(expected, abs=1e-12)


def test_what_is_not_defined_has_no_value():
    assert value("word_error_rate", ["a"], [""]) is None
    assert value("bleu", [""], [""]) == 0
    assert goals.known_metric("perplexity").value(np.zeros((1, 1)), np.zeros((1, 1))) is None
    perplexity = goals.known_metric("perplexity").reduce(np.array([2 * np.log(8.0), 2.0]), 5)
    assert float(perplexity) == pytest.approx(8)


def test_targets_end_and_their_faults_are_named():
    targets = GOAL.targets([[3, 1], [2]], 3)
    assert targets.tolist() == [[3, 1, END], [2, END, END]] and targets.dtype == np.float32
    assert rows_of(targets) == [[3, 1], [2]]
    assert GOAL.fault([3, 1, END]) == "" == GOAL.fault([END, END])
    assert "after -1" in GOAL.fault([END, 1]) and "whole numbers" in GOAL.fault([0.5, END])
    assert GOAL.columns(targets, "abc") == {"tokens": [[3, 1], [2]]}
    assert GOAL.described(targets[0], "abc") == [("3 1", None)]


OBJECTIVE = '''
"""Cross entropy of a class per place; the most probable class of each is the prediction. Class 0 is the end."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from models.objectives import scores


@dataclass(frozen=True)
class Settings:
    """No settings."""


class Places:
    def __init__(self, places):
        self.places = places

    def apart(self, values):
        return values.unflatten(1, (self.places, -1))

    def loss(self, network, outputs, target, inputs):
        return functional.cross_entropy(network.apart.flatten(0, 1), (target + 1).long().flatten())

    def held_out_loss(self, scores, target):
        return (scores.round() != target).float().mean()

    def probabilities(self, scores):
        ended = torch.cummax((scores < 0).int(), dim=1).values.bool()
        return scores.masked_fill(ended, -1.0)

    def correct(self, scores, target):
        return scores == target


def build(settings, description, labels):
    return Places(len(description["classes"]))
'''

NETWORK = '''
"""A linear layer that reads one token at each place of an image."""

from dataclasses import dataclass

import torch
from torch import nn

KIND = "image"


@dataclass(frozen=True)
class Settings:
    """No settings."""


DEBUG = Settings()


class Reader(nn.Module):
    def __init__(self, pixels, places):
        super().__init__()
        self.places = places
        self.classifier = nn.Linear(pixels, places * 4)

    def forward(self, images):
        self.apart = self.classifier(images.float().flatten(1)).unflatten(1, (self.places, 4))
        return (self.apart.argmax(dim=2) - 1).float() + 0 * self.apart.sum(dim=2)


def build(settings, description):
    _, height, width, _ = description["arrays"]["images"]["shape"]
    return Reader(height * width, len(description["classes"]))
'''

SOURCE = '''
"""Images with up to three bars: their heights are the tokens, from left to right."""

import numpy as np

from reread.preprocessing.raw import About
from reread.preprocessing.raw_images import ImageRows

ABOUT = About(classes=("1", "2", "3"), source="drawn by the test", licence="none", task="sequence")


def rows(progress):
    generator = np.random.default_rng(0)
    target = generator.integers(0, 3, size=(600, 3)).astype(np.float32)
    target[np.arange(3) >= generator.integers(1, 4, size=600)[:, None]] = -1
    heights = np.repeat(2 * (target + 1), 2, axis=1)
    images = np.where(np.arange(6)[:, None] < heights[:, None, :], 200, 20)
    images = (images + generator.normal(0, 8, images.shape)).astype(np.uint8)[..., None]
    return ImageRows(ABOUT, images, target, np.repeat(np.arange(3), (400, 100, 100)))
'''

EXPERIMENT = """
title: Which bars?
defaults:
  model: bars
  data: bars
  training: {learning_rate: 0.02, batch_size: 20, objective: {name: places}}
variants:
  short: {training: {max_epochs: 1, patience: 1, schedule: {warmup_epochs: 0.2}}}
  long: {training: {max_epochs: 20, patience: 20}}
seeds: [0, 1, 2, 3, 4, 5]
comparisons:
  - {claim: Twenty epochs read more than one., treatment: long, control: short, metric: word_error_rate}
equivalence_margin: 0.05
alpha: 0.05
evaluate_on: test
"""


def test_a_network_of_sequences_is_trained_and_judged(project, prefect_api):
    project = project.using(prefect_api)
    new = {
        "models/objectives/places.py": OBJECTIVE,
        "models/bars.py": NETWORK,
        "reread/preprocessing/sources/bars.py": SOURCE,
        "experiments/bars.yaml": EXPERIMENT,
    }
    for name, source in new.items():
        (project.directory / name).write_text(source)
    project.run("python", "-m", "reread", "data", "bars")
    project.run("python", "-m", "reread", "run", "--experiment", "bars")

    metrics = json.loads((project.directory / "reports/bars/metrics.json").read_text())
    of_long = metrics["variants"]["long"]
    assert set(of_long["test"]) == {"bleu", "word_error_rate"}
    assert of_long["test"]["word_error_rate"]["mean"] < 0.1
    (verdict,) = json.loads((project.directory / "reports/bars/verdicts.json").read_text())["verdicts"]
    assert (verdict["metric"], verdict["verdict"]) == ("word_error_rate", "supported")
