"""A linear SVM on character n-grams: TF-IDF of 2 to 5 characters within words, squared hinge loss, L2.

n-grams of characters know parts of words, so that they read inflections, misspellings and other languages' compounds.
An n-gram begins and ends within a word and the spaces around it (scikit-learn's ``char_wb``).

Shape legend: N documents, V n-grams.
"""

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from reread.evaluation.one_against_rest import OneAgainstRest

LENGTHS = (2, 5)
LONGEST = 2_000  # characters of a document are read: time and memory grow with all of them
MOST_ITERATIONS = 1_000  # as of NB-SVM


def beginning(text: str) -> str:
    """Return what is read of a document, in lower case."""
    return text[:LONGEST].lower()


def character_vectoriser(**settings: Any) -> TfidfVectorizer:
    """Return TF-IDF with log counts and unit length of the n-grams of characters, float32 [N, V]."""
    return TfidfVectorizer(
        analyzer="char_wb", ngram_range=LENGTHS, preprocessor=beginning, sublinear_tf=True, dtype=np.float32, **settings
    )


def fit_char_svm(features: csr_matrix, labels: np.ndarray, classes: int, task: str, strength: float) -> OneAgainstRest:
    """Fit on features [N, V] and labels int [N] or uint8 [N, K]. ``strength`` is C, the inverse regularisation."""
    return OneAgainstRest.fit(features, labels, classes, task, partial(one_svm, strength=strength))


def one_svm(features: csr_matrix, positive: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Return the weights, float64 [V], and the intercept of one class against the rest. positive: bool [N]."""
    machine = LinearSVC(C=strength, dual=True, random_state=0, max_iter=MOST_ITERATIONS).fit(features, positive)
    return machine.coef_[0], float(machine.intercept_[0])
