"""The baselines: simple classifiers, on the same rows as the networks.

tf-idf   TF-IDF of words with logistic regression
nb-svm   NB-SVM on unigrams and bigrams (reread/evaluation/nb_svm.py)
char-svm linear SVM on TF-IDF of character n-grams (reread/evaluation/char_svm.py)
linear   logistic regression over pixels, or over the means of 16 x 16 fields of larger images

The inverse regularisation C is chosen on the validation split: eight values each, as many trials as a network of an
experiment gets, and the result lists what each scored. An SVM gives scores and no probabilities: for the metrics that
need them one temperature, chosen on validation by log loss, turns scores into them; accuracy does not depend on it.
Several labels: one regression a label (one against the rest). Deterministic, one thread.
"""

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from safetensors.numpy import save_file
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from reread import kinds
from reread.evaluation.char_svm import character_vectoriser, fit_char_svm
from reread.evaluation.linear_models import (
    ROWS_AT_A_TIME,
    Features,
    Regressions,
    State,
    flat,
    tempered,
    vocabulary_of,
    word_vectoriser,
)
from reread.evaluation.nb_svm import bigram_vectoriser, fit_nb_svm
from reread.evaluation.one_against_rest import OneAgainstRest
from reread.goals import goal, higher_is_better, metric_value
from reread.goals.classification import row_losses
from reread.storage.digests import Damaged, digested_directory, refuse_damaged_folder
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import content_key, read_json, write_json
from reread.storage.source import source_digests

MODEL = "model.safetensors"
MOST_ITERATIONS = 10_000
# After so many strengths in a row that are no better, weaker regularisation is not tried: it takes the longest.
PATIENCE = 3
# A fit that takes as long is worth a line.
SLOW_SECONDS = 5.0
# Between these powers of e a temperature is looked for.
COLDEST, HOTTEST = -7.0, 7.0

Labels = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fitted:
    """A classifier: features of any rows to float32 probabilities [N, K], and its number of weights.

    state: its arrays (reread/evaluation/linear_models.py); None: it is not served.
    """

    predict: Callable[[Any], np.ndarray]
    parameters: int
    temperature: float | None = None
    state: State | None = None


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: its title, each C's validation score (None where not defined), and its metrics by split.

    directory: where MODEL has its state; None where it is not kept, or not served.
    """

    name: str
    grid: dict[str, float | None]
    chosen: float
    temperature: float | None
    parameters: int
    metrics: dict[str, Any]
    probabilities: dict[str, np.ndarray] = field(repr=False)
    directory: Path | None = None

    def parameters_and_metrics(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return what was chosen, and the metrics by SPLIT.NAME without those that are undefined, as a log has them."""
        chosen = {"baseline": self.name, "C": self.chosen, "temperature": self.temperature}
        measured = {
            f"{split}.{name}": value
            for split, metrics in self.metrics.items()
            for name, value in metrics.items()
            if isinstance(value, float)
        }
        return chosen, {**measured, "parameters": float(self.parameters)}


def evaluate_baseline(
    name: str,
    inputs: Mapping[str, Sequence[str] | np.ndarray],
    labels: Labels,
    task: str,
    classes: list[str],
    cache: Path | None = None,
    metric: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Baseline:
    """Fit on ``train``, choose C on ``validation``, and measure every other split that ``inputs`` has.

    metric: by which C is chosen, as a comparison names it; None: the task's first.

    name: of kinds.baselines(). inputs: by split, texts or uint8 [N, H, W, C]. labels: by split, int [N] or
    uint8 [N, K]. cache: a folder that keeps results by the digest of all these; InputError where
    a kept one is damaged. tell: called with a line for each C whose fit took SLOW_SECONDS.
    """
    refuse_unknown([name], kinds.baselines(), "the baselines")
    for split in ("train", "validation"):
        if not len(inputs.get(split, ())):
            raise InputError(f"the baseline needs rows in the {split} split and there are none: correct the manifest")
    if cache is None:
        return _fit(name, inputs, labels, task, classes, metric, tell)[0]
    directory = Path(cache) / content_key(
        {
            "inputs": {split: _digest(inputs[split], labels[split]) for split in sorted(inputs)},
            "name": name,
            "task": task,
            "classes": classes,
            "source": source_digests(["reread.evaluation.baselines", "reread.kinds", *_modules(name)]),
            "scikit-learn": sklearn.__version__,
            **({"metric": metric} if metric else {}),
        }
    )
    if directory.is_dir():
        try:
            refuse_damaged_folder(directory)
        except Damaged as error:
            raise InputError(f"{error}: remove {directory} and run again, it will be fitted again") from None
    else:
        baseline, state = _fit(name, inputs, labels, task, classes, metric, tell)
        with digested_directory(directory) as working:
            if state is not None:
                save_file({key: np.ascontiguousarray(array) for key, array in state.items()}, working / MODEL)
            for split, measured in baseline.probabilities.items():
                np.save(working / f"{split}.npy", measured, allow_pickle=False)
            kept = ("name", "grid", "chosen", "temperature", "parameters", "metrics")
            write_json(working / "baseline.json", {key: getattr(baseline, key) for key in kept})
    values = read_json(directory / "baseline.json")
    probabilities = {
        split: np.load(directory / f"{split}.npy", allow_pickle=False) for split in inputs if split != "train"
    }
    served = directory if (directory / MODEL).is_file() else None
    return Baseline(**values, probabilities=probabilities, directory=served)


def _modules(name: str) -> set[str]:
    baseline = kinds.baselines()[name]
    return {kinds.module_of(baseline.features), kinds.module_of(baseline.fit)}


def _fit(
    name: str,
    inputs: Mapping[str, Any],
    labels: Labels,
    task: str,
    classes: list[str],
    metric: str | None,
    tell: Callable[[str], None] | None,
) -> tuple[Baseline, State | None]:
    """Return the baseline and its state, None where it is not served."""
    baseline = kinds.baselines()[name]
    read, fit = kinds.load(baseline.features), kinds.load(baseline.fit)
    score = metric or goal(task).names[0]
    sign = 1.0 if higher_is_better(score) else -1.0
    others = [split for split in inputs if split != "train"]
    with threadpool_limits(1), warnings.catch_warnings():
        # Weak regularisation may not converge; its score decides all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        features = read(inputs)
        best: tuple[tuple[float, float], float, Fitted] | None = None
        grid: dict[str, float | None] = {}
        worse = 0
        for strength in baseline.grid:
            started = time.monotonic()
            fitted = fit(features, labels, len(classes), task, strength)
            validation = {"validation": fitted.predict(features["validation"])}
            measured = goal(task).measure(validation, labels, classes)["validation"]
            value = metric_value(measured, score)
            grid[f"{strength:g}"] = value
            if tell and (seconds := time.monotonic() - started) >= SLOW_SECONDS:
                number, most = len(grid), len(baseline.grid)
                tell(f"baseline {baseline.title}: {number} of at most {most} fits, C = {strength:g}, {seconds:.0f} s")
            # Equal scores: the smaller loss, then the stronger regularisation, which came first.
            rank = (-np.inf if value is None else sign * value, -measured.get("loss", 0.0))
            if best is None or rank > best[0]:
                best, worse = (rank, strength, fitted), 0
            else:
                worse += 1
            if worse == PATIENCE:
                break
        assert best is not None, "the grid is empty"
        _, chosen, fitted = best
        probabilities = {split: fitted.predict(features[split]) for split in others}
    metrics = goal(task).measure(probabilities, labels, classes)
    evaluated = Baseline(baseline.title, grid, chosen, fitted.temperature, fitted.parameters, metrics, probabilities)
    # A kind of one's own may have features and classifiers without a state.
    of_features, of_classifier = (getattr(part, "state", None) for part in (features, fitted))
    if baseline.serve is None or of_features is None or of_classifier is None:
        return evaluated, None
    return evaluated, {**of_features, **of_classifier}


def word_features(texts: Mapping[str, Sequence[str]]) -> Features:
    """TF-IDF of words seen in at least two training documents, log counts, unit length."""
    vectoriser = word_vectoriser(min_df=2)
    features = _counted(
        vectoriser, texts, "no word occurs in two training documents: TF-IDF has nothing to count; add documents"
    )
    return Features(features, {"vocabulary": vocabulary_of(vectoriser), "idf": vectoriser.idf_})


def bigram_features(texts: Mapping[str, Sequence[str]]) -> Features:
    """f of each split, float32 [N, V] (reread/evaluation/nb_svm.py): every unigram and bigram of the training split."""
    vectoriser = bigram_vectoriser()
    nothing = "no training document has a word: NB-SVM has nothing to count; add documents"
    features = _counted(vectoriser, texts, nothing)
    return Features(features, {"vocabulary": vocabulary_of(vectoriser)})


def character_features(texts: Mapping[str, Sequence[str]]) -> Features:
    """TF-IDF of the n-grams of characters in at least two training documents (reread/evaluation/char_svm.py)."""
    vectoriser = character_vectoriser(min_df=2)
    features = _counted(
        vectoriser,
        texts,
        "no two characters occur in two training documents: the SVM has nothing to count; add documents",
    )
    return Features(features, {"vocabulary": vocabulary_of(vectoriser), "idf": vectoriser.idf_})


def _counted(vectoriser: CountVectorizer, texts: Mapping[str, Sequence[str]], nothing: str) -> dict[str, Any]:
    """Fit a vectoriser on the training split and return the features of each split; InputError ``nothing`` where no
    training document has what it counts."""
    try:
        features = {"train": vectoriser.fit_transform(texts["train"])}
    except ValueError:
        raise InputError(nothing) from None
    return features | {split: vectoriser.transform(texts[split]) for split in texts if split != "train"}


def pixel_features(images: Mapping[str, np.ndarray]) -> Features:
    """Each pixel less its mean in the training split, divided by its deviation there; or each field's mean likewise."""
    arrays = {split: flat(array) for split, array in images.items()}
    scaler = StandardScaler().fit(arrays["train"])
    features = {split: scaler.transform(array) for split, array in arrays.items()}
    return Features(features, {"mean": scaler.mean_, "scale": scaler.scale_})


def logistic_regression(features: Features, labels: Labels, classes: int, task: str, strength: float) -> Fitted:
    """A class that the training split has no row of (or, of several labels, one that every row has) cannot be learnt:
    it gets the probability that it has there, 0 or 1."""

    def regression(target: np.ndarray) -> LogisticRegression | int:
        if len(np.unique(target)) == 1:
            return int(target[0])
        return LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(features["train"], target)

    target = np.asarray(labels["train"])
    fitted = [regression(column) for column in ([target] if task == "single-label" else target.T)]
    regressions = Regressions(classes, task, fitted)
    return Fitted(regressions.predict, regressions.parameters, state=regressions.state)


def nb_svm(features: Features, labels: Labels, classes: int, task: str, strength: float) -> Fitted:
    return with_temperature(
        fit_nb_svm(features["train"], labels["train"], classes, task, strength), features, labels, task
    )


def linear_svm(features: Features, labels: Labels, classes: int, task: str, strength: float) -> Fitted:
    return with_temperature(
        fit_char_svm(features["train"], labels["train"], classes, task, strength), features, labels, task
    )


def with_temperature(machine: OneAgainstRest, features: Features, labels: Labels, task: str) -> Fitted:
    """Return an SVM with the temperature of least log loss on validation, one for all classes."""
    scores = machine.scores(features["validation"])

    def loss(log_temperature: float) -> float:
        return float(row_losses(tempered(scores, np.exp(log_temperature), task), labels["validation"]).mean())

    temperature = float(np.exp(minimize_scalar(loss, bounds=(COLDEST, HOTTEST), method="bounded").x))
    return Fitted(
        lambda rows: tempered(machine.scores(rows), temperature, task),
        machine.parameters,
        temperature,
        {**machine.state, "temperature": np.array([temperature])},
    )


def _digest(inputs: Sequence[str] | np.ndarray, labels: np.ndarray) -> str:
    digest = hashlib.sha256(f"{len(inputs)} {np.asarray(labels).shape}".encode())
    if isinstance(inputs, np.ndarray):
        for start in range(0, len(inputs), ROWS_AT_A_TIME):
            digest.update(np.ascontiguousarray(inputs[start : start + ROWS_AT_A_TIME]).data)
    else:
        for text in inputs:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    whole_numbers = np.issubdtype(np.asarray(labels).dtype, np.integer)
    digest.update(np.ascontiguousarray(labels, dtype=np.int64 if whole_numbers else np.float64).tobytes())
    return digest.hexdigest()
