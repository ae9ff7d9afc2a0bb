"""What a user would try first: TF-IDF with logistic regression for text, logistic regression over pixels for images.

The inverse regularisation C is chosen on the validation split from a fixed grid, which is listed in the result. Several
labels: one logistic regression a label (one-vs-rest). Deterministic, one thread.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from evaluation.metrics import metric_names, split_metrics
from storage.errors import InputError
from storage.files import content_key, published_directory, read_json, write_json
from storage.source import source_digests

TEXT_GRID = (1.0, 10.0, 100.0)
IMAGE_GRID = (0.01, 0.1, 1.0, 10.0)
MOST_ITERATIONS = 10_000

NAMES = {"text": "TF-IDF + logistic regression", "image": "logistic regression over pixels"}


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: its name, the grid and what each C scored on validation, and its metrics by split."""

    name: str
    grid: dict[str, float]
    chosen: float
    parameters: int
    metrics: dict[str, Any]
    probabilities: dict[str, np.ndarray] = field(repr=False)


def evaluate_baseline(
    kind: str,
    inputs: Mapping[str, Sequence[str] | np.ndarray],
    labels: Mapping[str, np.ndarray],
    task: str,
    classes: list[str],
    cache: Path | None = None,
) -> Baseline:
    """Fit on ``train``, choose C on ``validation``, and measure every other split that ``inputs`` has.

    kind: ``text`` or ``image``. inputs: by split, texts or uint8 [N, H, W, C]. labels: by split, int [N] or
    uint8 [N, K]. cache: a folder in which results lie by the digest of all this and are found again.
    """
    for split in ("train", "validation"):
        if not len(inputs.get(split, ())):
            raise InputError(f"the baseline needs rows in the {split} split and there are none: mend the manifest")
    if cache is None:
        return _fit(kind, inputs, labels, task, classes)
    directory = Path(cache) / content_key(
        {
            "inputs": {split: _digest(kind, inputs[split], labels[split]) for split in sorted(inputs)},
            "kind": kind,
            "task": task,
            "classes": classes,
            "source": source_digests(["evaluation.baselines"]),
            "scikit-learn": sklearn.__version__,
        }
    )
    if not (directory / "baseline.json").is_file():
        found = _fit(kind, inputs, labels, task, classes)
        with published_directory(directory) as working:
            for split, probabilities in found.probabilities.items():
                np.save(working / f"{split}.npy", probabilities, allow_pickle=False)
            write_json(
                working / "baseline.json",
                {name: getattr(found, name) for name in ("name", "grid", "chosen", "parameters", "metrics")},
            )
    values = read_json(directory / "baseline.json")
    probabilities = {
        split: np.load(directory / f"{split}.npy", allow_pickle=False) for split in inputs if split != "train"
    }
    return Baseline(**values, probabilities=probabilities)


def _fit(kind: str, inputs: Mapping, labels: Mapping[str, np.ndarray], task: str, classes: list[str]) -> Baseline:
    score = metric_names(task)[0]
    others = [split for split in inputs if split != "train"]
    with threadpool_limits(1):
        features = _text_features(inputs) if kind == "text" else _image_features(inputs)
        best, grid = None, {}
        for strength in TEXT_GRID if kind == "text" else IMAGE_GRID:
            predict, parameters = _classifier(features["train"], labels["train"], len(classes), task, strength)
            measured = split_metrics(predict(features["validation"]), labels["validation"], task, classes)
            grid[f"{strength:g}"] = measured[score]
            # Equal scores: the smaller loss, then the stronger regularisation, which came first.
            rank = (measured[score] if measured[score] is not None else -1.0, -measured["loss"])
            if best is None or rank > best[0]:
                best = (rank, strength, predict, parameters)
        _, chosen, predict, parameters = best
        probabilities = {split: predict(features[split]) for split in others}
    metrics = {split: split_metrics(probabilities[split], labels[split], task, classes) for split in others}
    return Baseline(NAMES[kind], grid, chosen, parameters, metrics, probabilities)


def _text_features(texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """TF-IDF of words seen in at least two training documents, log counts, unit length."""
    vectoriser = TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=r"(?u)\b\w+\b")
    try:
        features = {"train": vectoriser.fit_transform(texts["train"])}
    except ValueError:
        raise InputError(
            "no word stands in two training documents: TF-IDF has nothing to count; add documents"
        ) from None
    return features | {split: vectoriser.transform(texts[split]) for split in texts if split != "train"}


def _image_features(images: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each pixel less its mean in the training split, divided by its deviation there."""
    flat = {split: np.asarray(array).reshape(len(array), -1).astype(np.float64) for split, array in images.items()}
    scaler = StandardScaler().fit(flat["train"])
    return {split: scaler.transform(array) for split, array in flat.items()}


def _classifier(features: Any, labels: np.ndarray, classes: int, task: str, strength: float) -> tuple[Any, int]:
    """A function from features to float32 probabilities [N, K], and how many weights stand behind it.

    A class that the training split has no row of (or, of several labels, one that every row has) cannot be learnt: it
    gets the probability that it has there, 0 or 1.
    """

    def regression(target: np.ndarray) -> LogisticRegression | int:
        if len(np.unique(target)) == 1:
            return int(target[0])
        return LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(features, target)

    columns = [np.asarray(labels)] if task == "single-label" else list(np.asarray(labels).T)
    fitted = [regression(column) for column in columns]

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

    return predict, sum(model.coef_.size + model.intercept_.size for model in fitted if not isinstance(model, int))


def _digest(kind: str, inputs: Sequence[str] | np.ndarray, labels: np.ndarray) -> str:
    digest = hashlib.sha256(f"{len(inputs)} {np.asarray(labels).shape}".encode())
    if kind == "text":
        for text in inputs:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    else:
        digest.update(np.ascontiguousarray(inputs).tobytes())
    digest.update(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()
