"""NB-SVM on unigrams and bigrams: Wang and Manning 2012, "Baselines and Bigrams", section 2.3.

Shape legend: N documents, V unigrams and bigrams, K classes.

f: whether a document has each unigram and bigram, 0 or 1, [N, V]. For one class against the rest

    p = alpha + the sum of f over its documents,  q = alpha + the same over the others
    r = log((p / ||p||_1) / (q / ||q||_1))

and an L2-regularised linear SVM with squared hinge loss is fitted on r * f (elementwise), whose weights w are drawn
towards their mean magnitude: w' = (1 - beta) mean |w| + beta w. As in the paper alpha is 1 and beta 0.25. Several
classes, and several labels: one against the rest.

So the SVM is interpolated with naive Bayes (weights r, intercept log(N+ / N-)) times mean |w|. The paper does not say
what becomes of the SVM's intercept; here intercepts are interpolated like the weights, which was chosen on IMDB's
validation split: an intercept that is kept whole goes with weights four times as large.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.svm import LinearSVC

ALPHA = 1.0
BETA = 0.25
# With C of 1 they may not be worked out to the end: what it scored is what it is chosen by.
MOST_ITERATIONS = 1_000
# A mark of punctuation is a word of its own: "bad ." and "bad ?" are bigrams.
WORD = r"(?u)\w+|[^\w\s]"


def bigram_vectoriser(**settings: Any) -> CountVectorizer:
    """Return what computes f, float32 [N, V]: every unigram and bigram of the rows that it is fitted on."""
    return CountVectorizer(binary=True, ngram_range=(1, 2), token_pattern=WORD, dtype=np.float32, **settings)


@dataclass(frozen=True)
class NbSvm:
    """A fitted NB-SVM. weights float64 [V, P] and intercepts [P] of the P problems fitted; of two classes, one."""

    classes: int
    single_label: bool
    weights: np.ndarray = field(repr=False)
    intercepts: np.ndarray
    fitted: list[int]
    constant: dict[int, bool]

    @classmethod
    def fit(cls, features: csr_matrix, labels: np.ndarray, classes: int, task: str, strength: float) -> "NbSvm":
        """Fit on f [N, V] and labels int [N] or uint8 [N, K]. ``strength`` is C, the inverse regularisation.

        A class that no row or every row has cannot be learnt: it is ``constant``.
        """
        single_label = task == "single-label"
        truth = labels[:, None] == np.arange(classes) if single_label else np.asarray(labels).astype(bool)
        constant = {k: bool(truth[0, k]) for k in range(classes) if truth[:, k].all() or not truth[:, k].any()}
        fitted = [k for k in range(classes) if k not in constant]
        if single_label and len(fitted) == 2:
            fitted = fitted[1:]  # the other's score is this one's turned round
        problems = [one_against_the_rest(features, truth[:, k], strength) for k in fitted]
        weights = [weights for weights, _ in problems]
        return cls(
            classes,
            single_label,
            np.stack(weights, axis=1) if weights else np.zeros((features.shape[1], 0)),
            np.array([intercept for _, intercept in problems]),
            fitted,
            constant,
        )

    def scores(self, features: csr_matrix) -> np.ndarray:
        """float64 [N, K]: each document's signed distance to the class's boundary; infinite for a constant class."""
        scores = np.zeros((features.shape[0], self.classes))
        found = features @ self.weights + self.intercepts
        if self.single_label and len(self.fitted) == 1:
            scores -= found
        scores[:, self.fitted] = found
        for k, always in self.constant.items():
            scores[:, k] = 0.0 if always and self.single_label else np.inf if always else -np.inf
        return scores

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The arrays of ``of``; a constant class is its number, or -1 - its number where no row has it."""
        constant = [k if always else -1 - k for k, always in self.constant.items()]
        return {
            "weights": self.weights,
            "intercepts": self.intercepts,
            "fitted": np.array(self.fitted, np.int64),
            "constant": np.array(constant, np.int64),
        }

    @classmethod
    def of(cls, state: Mapping[str, np.ndarray], classes: int, task: str) -> "NbSvm":
        """Return the machine of a ``state``."""
        constant = {k if k >= 0 else -1 - k: k >= 0 for k in state["constant"].tolist()}
        fitted = state["fitted"].tolist()
        return cls(classes, task == "single-label", state["weights"], state["intercepts"], fitted, constant)

    @property
    def parameters(self) -> int:
        return self.weights.size + self.intercepts.size


def one_against_the_rest(features: csr_matrix, positive: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Weights of f, float64 [V] (r and the interpolated w in one), and the intercept. positive: bool [N]."""
    p, q = (ALPHA + np.asarray(features[rows].sum(axis=0), np.float64).ravel() for rows in (positive, ~positive))
    ratio = np.log((p / p.sum()) / (q / q.sum()))
    scaled = csr_matrix(
        (features.data * ratio[features.indices], features.indices, features.indptr), features.shape, copy=False
    )
    machine = LinearSVC(C=strength, dual=True, random_state=0, max_iter=MOST_ITERATIONS).fit(scaled, positive)
    weights = machine.coef_[0]
    magnitude = np.abs(weights).mean()
    prior = np.log(positive.sum() / (~positive).sum())
    intercept = (1 - BETA) * magnitude * prior + BETA * machine.intercept_[0]
    return ratio * ((1 - BETA) * magnitude + BETA * weights), float(intercept)
