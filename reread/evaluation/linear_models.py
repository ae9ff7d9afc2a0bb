"""Fitted baselines as arrays, and their answers to raw rows: what is saved, and served without a pickle.

The state of a baseline is a mapping of names to arrays, of its features and of its classifier:

    vocabulary       uint8, UTF-8: the words, bigrams or n-grams, one per line; the line's number is the column
    idf              float64 [V], of TF-IDF; of n-grams float32
    mean, scale      float64 [F], of pixels
    coefficients.N   float64 [P, F], intercepts.N [P] and classes.N int64: the regression of problem N; in place of them
    constant.N       int64 [1]: the one value that its target has
    weights, ...     of an SVM, as the fields of OneAgainstRest are named; temperature float64 [1]

Each ``serve_`` function takes a state, the number of classes and the task, and returns f(raw rows) -> float32
probabilities [n, K]. These are the very ones of the fitted baseline: the same scikit-learn code computes them.

Shape legend: n rows, K classes, V words, F numbers per row, P problems of one regression.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from reread.evaluation.char_svm import character_vectoriser
from reread.evaluation.nb_svm import bigram_vectoriser
from reread.evaluation.one_against_rest import OneAgainstRest

State = Mapping[str, np.ndarray]
Answer = Callable[[Any], np.ndarray]

# Images of more numbers are described by the means of FIELDS x FIELDS fields: on 3,072 numbers a fit takes minutes.
MOST_PIXELS = 2048
FIELDS = 16
ROWS_AT_A_TIME = 512


class Features(dict[str, Any]):
    """Features by split, and the ``state`` of what computes them of raw rows."""

    def __init__(self, by_split: Mapping[str, Any], state: State) -> None:
        super().__init__(by_split)
        self.state = state


@dataclass(frozen=True)
class Regressions:
    """Logistic regressions: one of all classes, or one per label. A target with one value has no regression."""

    classes: int
    task: str
    fitted: list[LogisticRegression | int]

    def predict(self, rows: Any) -> np.ndarray:
        """Return float32 probabilities [n, K] of features [n, F]."""
        result = np.zeros((rows.shape[0], self.classes), np.float32)
        for number, model in enumerate(self.fitted):
            if self.task == "single-label":
                if isinstance(model, int):
                    result[:, model] = 1
                else:
                    result[:, model.classes_] = model.predict_proba(rows)
            else:
                result[:, number] = model if isinstance(model, int) else model.predict_proba(rows)[:, 1]
        return result

    @property
    def parameters(self) -> int:
        return sum(model.coef_.size + model.intercept_.size for model in self.fitted if not isinstance(model, int))

    @property
    def state(self) -> State:
        state = {}
        for number, model in enumerate(self.fitted):
            if isinstance(model, int):
                state[f"constant.{number}"] = np.array([model], np.int64)
            else:
                state[f"coefficients.{number}"] = model.coef_
                state[f"intercepts.{number}"] = model.intercept_
                state[f"classes.{number}"] = np.asarray(model.classes_, np.int64)
        return state

    @classmethod
    def of(cls, state: State, classes: int, task: str) -> "Regressions":
        """Return the regressions of a state."""
        fitted: list[LogisticRegression | int] = []
        for number in range(1 if task == "single-label" else classes):
            if f"constant.{number}" in state:
                fitted.append(state[f"constant.{number}"].item())
                continue
            model = LogisticRegression()
            model.coef_, model.intercept_ = state[f"coefficients.{number}"], state[f"intercepts.{number}"]
            model.classes_ = state[f"classes.{number}"]
            fitted.append(model)
        return cls(classes, task, fitted)


def word_vectoriser(**settings: Any) -> TfidfVectorizer:
    """Return TF-IDF with log counts and unit length; a mark of punctuation is no word."""
    return TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", **settings)


def vocabulary_of(vectoriser: CountVectorizer) -> np.ndarray:
    """Return the words of a fitted vectoriser, in the order of their columns, as a state has them."""
    return np.frombuffer("\n".join(vectoriser.get_feature_names_out()).encode(), np.uint8)


def words_of(state: State) -> list[str]:
    return state["vocabulary"].tobytes().decode().split("\n")


def flat(images: np.ndarray) -> np.ndarray:
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


def tempered(scores: np.ndarray, temperature: float, task: str) -> np.ndarray:
    """float32 probabilities of scores [N, K]: softmax (one label) or sigmoid (several) of scores / temperature."""
    turn = expit if task == "multi-label" else lambda values: softmax(values, axis=1)
    return turn(scores / temperature).astype(np.float32)


def serve_words(state: State, classes: int, task: str) -> Answer:
    """Serve logistic regression over TF-IDF: rows are texts."""
    vectoriser = word_vectoriser(vocabulary=words_of(state))
    vectoriser.idf_ = state["idf"]
    regressions = Regressions.of(state, classes, task)
    return lambda texts: regressions.predict(vectoriser.transform(texts))


def serve_bigrams(state: State, classes: int, task: str) -> Answer:
    """Serve an NB-SVM: rows are texts."""
    vectoriser = bigram_vectoriser(vocabulary=words_of(state))
    machine, temperature = OneAgainstRest.of(state, classes, task), state["temperature"].item()
    return lambda texts: tempered(machine.scores(vectoriser.transform(texts)), temperature, task)


def serve_characters(state: State, classes: int, task: str) -> Answer:
    """Serve an SVM on character n-grams: rows are texts."""
    vectoriser = character_vectoriser(vocabulary=words_of(state))
    vectoriser.idf_ = state["idf"]
    machine, temperature = OneAgainstRest.of(state, classes, task), state["temperature"].item()
    return lambda texts: tempered(machine.scores(vectoriser.transform(texts)), temperature, task)


def serve_pixels(state: State, classes: int, task: str) -> Answer:
    """Serve logistic regression over pixels: rows are images, uint8 [n, H, W, C]."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = state["mean"], state["scale"]
    regressions = Regressions.of(state, classes, task)
    return lambda images: regressions.predict(scaler.transform(flat(images)))
