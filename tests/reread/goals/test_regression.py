"""Metrics of numbers against scikit-learn, and numbers that cannot be."""

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from reread.goals import goal
from reread.storage.errors import InputError

REGRESSION = goal("regression")


def numbers(rows: int = 200, level: float = 50_000.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    target = (level + rng.normal(0, 3, (rows, 1))).astype(np.float32)
    return (target + rng.normal(0, 1, (rows, 1))).astype(np.float32), target


def test_metrics_agree_with_scikit_learn():
    prediction, target = numbers()
    measured = REGRESSION.measure({"test": prediction}, {"test": target}, ["price"])["test"]
    assert measured["rows"] == 200
    for name, reference in (("r2", r2_score), ("rmse", root_mean_squared_error), ("mae", mean_absolute_error)):
        assert measured[name] == pytest.approx(reference(target.astype(float), prediction.astype(float))), name


def test_equal_targets_have_no_r2():
    prediction, target = np.array([[1], [2]], np.float32), np.full((2, 1), 3, np.float32)
    measured = REGRESSION.measure({"test": prediction}, {"test": target}, ["price"])["test"]
    assert measured["r2"] is None and measured["mae"] == 1.5
    with pytest.raises(InputError, match="all rows .* the same number"):
        REGRESSION.description(target)


@pytest.mark.parametrize("labels", [(), (1.0, 2.0), ("3",), (True,), (float("nan"),), (1e300,)])
def test_what_is_no_number_is_named(labels):
    assert REGRESSION.fault(labels) and not REGRESSION.fault((3.5,))
