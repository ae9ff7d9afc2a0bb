"""Baselines that predict a number: ridge regression, and gradient boosting of trees.

The targets are centred, so that stronger regularisation tends to their mean. Gradient boosting is scikit-learn's on
histograms, without early stopping; C is the inverse of its L2 regularisation. Of texts it reads the strongest
components of TF-IDF (Deerwester et al. 1990, "Indexing by Latent Semantic Analysis"), since trees need dense features.

Shape legend: n rows, F features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from reread.evaluation.baselines import Fitted, Labels, word_features
from reread.evaluation.linear_models import Answer, Features, State, flat, word_vectoriser, words_of

COMPONENTS = 64
TREES = 200


def column(values: Any) -> np.ndarray[Any, Any]:
    """Return n numbers as float32 [n, 1], as a regression's predictions are."""
    return np.asarray(values, np.float32).reshape(-1, 1)


def ridge(features: Features, labels: Labels, outputs: int, task: str, strength: float) -> Fitted:
    """Fit ridge regression with the penalty 1 / C on features [n, F]."""
    model = Ridge(alpha=1 / strength, solver="auto").fit(features["train"], np.asarray(labels["train"])[:, 0])
    state = {"coefficients": np.asarray(model.coef_), "intercept": np.atleast_1d(model.intercept_)}
    return Fitted(lambda rows: column(model.predict(rows)), len(model.coef_) + 1, state=state)


def boosting(features: Features, labels: Labels, outputs: int, task: str, strength: float) -> Fitted:
    """Fit gradient boosting on dense features [n, F]; its parameters are the values of its leaves."""
    model = HistGradientBoostingRegressor(
        max_iter=TREES, l2_regularization=1 / strength, early_stopping=False, random_state=0
    ).fit(features["train"], np.asarray(labels["train"])[:, 0])
    leaves = sum(tree.get_n_leaf_nodes() for trees in model._predictors for tree in trees)
    return Fitted(lambda rows: column(model.predict(rows)), leaves)


def reduced_word_features(texts: Mapping[str, Sequence[str]]) -> Features:
    """Return the COMPONENTS strongest components of TF-IDF, or fewer where there are fewer words, float64 [n, F]."""
    words = word_features(texts)
    components = min(COMPONENTS, min(words["train"].shape) - 1)
    if components < 1:
        return Features({split: rows.toarray() for split, rows in words.items()}, words.state)
    reduction = TruncatedSVD(components, random_state=0).fit(words["train"])
    return Features({split: reduction.transform(rows) for split, rows in words.items()}, words.state)


def _ridge_of(state: State) -> Ridge:
    model = Ridge()
    model.coef_, model.intercept_ = state["coefficients"], state["intercept"].item()
    return model


def serve_words(state: State, outputs: int, task: str) -> Answer:
    """Serve ridge regression over TF-IDF: rows are texts."""
    vectoriser = word_vectoriser(vocabulary=words_of(state))
    vectoriser.idf_ = state["idf"]
    model = _ridge_of(state)
    return lambda texts: column(model.predict(vectoriser.transform(texts)))


def serve_pixels(state: State, outputs: int, task: str) -> Answer:
    """Serve ridge regression over pixels: rows are images, uint8 [n, H, W, C]."""
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = state["mean"], state["scale"]
    model = _ridge_of(state)
    return lambda images: column(model.predict(scaler.transform(flat(images))))
