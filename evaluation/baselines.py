"""The baselines: simple classifiers, on the same rows as the networks.

tf-idf   TF-IDF of words with logistic regression
nb-svm   NB-SVM on unigrams and bigrams (evaluation/nb_svm.py)
linear   logistic regression over pixels, or over the means of 16 x 16 fields of larger images

The inverse regularisation C is chosen on the validation split: eight values each, as many trials as a network of an
experiment gets, and the result lists what each scored. An SVM gives scores and no probabilities: for the metrics that
need them one temperature, chosen on validation by log loss, turns scores into them; accuracy does not depend on it.
Several labels: one regression a label (one against the rest). Deterministic, one thread.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import kinds
from evaluation.metrics import higher_is_better, metric_names, metric_value, row_losses, split_metrics
from evaluation.nb_svm import NbSvm
from storage.errors import InputError, refuse_unknown
from storage.files import content_key, published_directory, read_json, write_json
from storage.source import source_digests

MOST_ITERATIONS = 10_000
# Images of more numbers than a CIFAR-10 image has are described by the means of FIELDS x FIELDS fields.
MOST_PIXELS = 32 * 32 * 3
FIELDS = 16
ROWS_AT_A_TIME = 512
# Between these powers of e a temperature is looked for.
COLDEST, HOTTEST = -7.0, 7.0

Features = Mapping[str, Any]
Labels = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fitted:
    """A classifier: features of any rows to float32 probabilities [N, K], and its number of weights."""

    predict: Callable[[Any], np.ndarray]
    parameters: int
    temperature: float | None = None


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: its title, each C's validation score (None where not defined), and its metrics by split."""

    name: str
    grid: dict[str, float | None]
    chosen: float
    temperature: float | None
    parameters: int
    metrics: dict[str, Any]
    probabilities: dict[str, np.ndarray] = field(repr=False)


def evaluate_baseline(
    name: str,
    inputs: Mapping[str, Sequence[str] | np.ndarray],
    labels: Labels,
    task: str,
    classes: list[str],
    cache: Path | None = None,
    metric: str | None = None,
) -> Baseline:
    """Fit on ``train``, choose C on ``validation``, and measure every other split that ``inputs`` has.

    metric: by which C is chosen, as a comparison names it; None: the task's first.

    name: of kinds.baselines(). inputs: by split, texts or uint8 [N, H, W, C]. labels: by split, int [N] or
    uint8 [N, K]. cache: a folder that keeps results by the digest of all these.
    """
    refuse_unknown([name], kinds.baselines(), "the baselines")
    for split in ("train", "validation"):
        if not len(inputs.get(split, ())):
            raise InputError(f"the baseline needs rows in the {split} split and there are none: correct the manifest")
    if cache is None:
        return _fit(name, inputs, labels, task, classes, metric)
    directory = Path(cache) / content_key(
        {
            "inputs": {split: _digest(inputs[split], labels[split]) for split in sorted(inputs)},
            "name": name,
            "task": task,
            "classes": classes,
            "source": source_digests(["evaluation.baselines", "kinds", *_modules(name)]),
            "scikit-learn": sklearn.__version__,
            **({"metric": metric} if metric else {}),
        }
    )
    if not (directory / "baseline.json").is_file():
        found = _fit(name, inputs, labels, task, classes, metric)
        with published_directory(directory) as working:
            for split, measured in found.probabilities.items():
                np.save(working / f"{split}.npy", measured, allow_pickle=False)
            kept = ("name", "grid", "chosen", "temperature", "parameters", "metrics")
            write_json(working / "baseline.json", {one: getattr(found, one) for one in kept})
    values = read_json(directory / "baseline.json")
    probabilities = {
        split: np.load(directory / f"{split}.npy", allow_pickle=False) for split in inputs if split != "train"
    }
    return Baseline(**values, probabilities=probabilities)


def _modules(name: str) -> set[str]:
    baseline = kinds.baselines()[name]
    return {kinds.module_of(baseline.features), kinds.module_of(baseline.fit)}


def _fit(name: str, inputs: Mapping, labels: Labels, task: str, classes: list[str], metric: str | None) -> Baseline:
    baseline = kinds.baselines()[name]
    read, fit = kinds.load(baseline.features), kinds.load(baseline.fit)
    score = metric or metric_names(task)[0]
    sign = 1.0 if higher_is_better(score) else -1.0
    others = [split for split in inputs if split != "train"]
    with threadpool_limits(1), warnings.catch_warnings():
        # Weak regularisation may not converge; its score decides all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        features = read(inputs)
        best: tuple[tuple[float, float], float, Fitted] | None = None
        grid = {}
        for strength in baseline.grid:
            fitted = fit(features, labels, len(classes), task, strength)
            measured = split_metrics(fitted.predict(features["validation"]), labels["validation"], task, classes)
            value = metric_value(measured, score)
            grid[f"{strength:g}"] = value
            # Equal scores: the smaller loss, then the stronger regularisation, which came first.
            rank = (-np.inf if value is None else sign * value, -measured["loss"])
            if best is None or rank > best[0]:
                best = (rank, strength, fitted)
        assert best is not None, "the grid is empty"
        _, chosen, fitted = best
        probabilities = {split: fitted.predict(features[split]) for split in others}
    metrics = {split: split_metrics(probabilities[split], labels[split], task, classes) for split in others}
    return Baseline(baseline.title, grid, chosen, fitted.temperature, fitted.parameters, metrics, probabilities)


def word_features(texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """TF-IDF of words seen in at least two training documents, log counts, unit length."""
    vectoriser = TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=r"(?u)\b\w+\b")
    try:
        features = {"train": vectoriser.fit_transform(texts["train"])}
    except ValueError:
        raise InputError(
            "no word occurs in two training documents: TF-IDF has nothing to count; add documents"
        ) from None
    return features | {split: vectoriser.transform(texts[split]) for split in texts if split != "train"}


def pixel_features(images: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each pixel less its mean in the training split, divided by its deviation there; or each field's mean likewise."""
    flat = {split: _flat(array) for split, array in images.items()}
    scaler = StandardScaler().fit(flat["train"])
    return {split: scaler.transform(array) for split, array in flat.items()}


def _flat(images: np.ndarray) -> np.ndarray:
    """Images uint8 [N, H, W, C] -> float64 [N, pixels or fields], a few at a time where they are large."""
    height, width, channels = images.shape[1:]
    if height * width * channels <= MOST_PIXELS or min(height, width) < FIELDS:
        return np.asarray(images).reshape(len(images), -1).astype(np.float64)
    rows, columns = (np.arange(FIELDS) * side // FIELDS for side in (height, width))
    pixels = np.diff(rows, append=height)[:, None, None] * np.diff(columns, append=width)[:, None]
    means = np.empty((len(images), FIELDS * FIELDS * channels))
    for start in range(0, len(images), ROWS_AT_A_TIME):
        part = images[start : start + ROWS_AT_A_TIME]
        sums = np.add.reduceat(np.add.reduceat(part, rows, axis=1, dtype=np.float64), columns, axis=2)
        means[start : start + ROWS_AT_A_TIME] = (sums / pixels).reshape(len(part), -1)
    return means


def logistic_regression(features: Features, labels: Labels, classes: int, task: str, strength: float) -> Fitted:
    """A class that the training split has no row of (or, of several labels, one that every row has) cannot be learnt:
    it gets the probability that it has there, 0 or 1."""

    def regression(target: np.ndarray) -> LogisticRegression | int:
        if len(np.unique(target)) == 1:
            return int(target[0])
        return LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(features["train"], target)

    target = np.asarray(labels["train"])
    fitted = [regression(column) for column in ([target] if task == "single-label" else target.T)]

    def predict(rows: Any) -> np.ndarray:
        result = np.zeros((rows.shape[0], classes), np.float32)
        for number, model in enumerate(fitted):
            if task == "single-label":
                if isinstance(model, int):
                    result[:, model] = 1
                else:
                    result[:, model.classes_] = model.predict_proba(rows)
            else:
                result[:, number] = model if isinstance(model, int) else model.predict_proba(rows)[:, 1]
        return result

    weights = sum(model.coef_.size + model.intercept_.size for model in fitted if not isinstance(model, int))
    return Fitted(predict, weights)


def nb_svm(features: Features, labels: Labels, classes: int, task: str, strength: float) -> Fitted:
    """The temperature is the one of least log loss on validation, one for all classes."""
    machine = NbSvm.fit(features["train"], labels["train"], classes, task, strength)
    scores = machine.scores(features["validation"])

    def loss(log_temperature: float) -> float:
        return float(row_losses(_tempered(scores, np.exp(log_temperature), task), labels["validation"]).mean())

    temperature = float(np.exp(minimize_scalar(loss, bounds=(COLDEST, HOTTEST), method="bounded").x))
    return Fitted(lambda rows: _tempered(machine.scores(rows), temperature, task), machine.parameters, temperature)


def _tempered(scores: np.ndarray, temperature: float, task: str) -> np.ndarray:
    """float32 probabilities of scores [N, K]: softmax (one label) or sigmoid (several) of scores / temperature."""
    turn = expit if task == "multi-label" else lambda values: softmax(values, axis=1)
    return turn(scores / temperature).astype(np.float32)


def _digest(inputs: Sequence[str] | np.ndarray, labels: np.ndarray) -> str:
    digest = hashlib.sha256(f"{len(inputs)} {np.asarray(labels).shape}".encode())
    if isinstance(inputs, np.ndarray):
        for start in range(0, len(inputs), ROWS_AT_A_TIME):
            digest.update(np.ascontiguousarray(inputs[start : start + ROWS_AT_A_TIME]).data)
    else:
        for text in inputs:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()
