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

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.svm import LinearSVC

from reread.evaluation.one_against_rest import OneAgainstRest

ALPHA = 1.0
BETA = 0.25
# With C of 1 they may not be worked out to the end: what it scored is what it is chosen by.
MOST_ITERATIONS = 1_000
# A mark of punctuation is a word of its own: "bad ." and "bad ?" are bigrams.
WORD = r"(?u)\w+|[^\w\s]"


def bigram_vectoriser(**settings: Any) -> CountVectorizer:
    """Return what computes f, float32 [N, V]: every unigram and bigram of the rows that it is fitted on."""
    return CountVectorizer(binary=True, ngram_range=(1, 2), token_pattern=WORD, dtype=np.float32, **settings)


def fit_nb_svm(features: csr_matrix, labels: np.ndarray, classes: int, task: str, strength: float) -> OneAgainstRest:
    """Fit on f [N, V] and labels int [N] or uint8 [N, K]. ``strength`` is C, the inverse regularisation."""
    return OneAgainstRest.fit(features, labels, classes, task, partial(one_against_the_rest, strength=strength))


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
