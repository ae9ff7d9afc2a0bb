"""Linear classifiers of one class against the rest: of several classes, or of several labels.

Shape legend: N documents, V features, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_matrix

Problem = Callable[[csr_matrix, np.ndarray], tuple[np.ndarray, float]]


@dataclass(frozen=True)
class OneAgainstRest:
    """Fitted. weights float64 [V, P] and intercepts [P] of the P problems fitted; of two classes, one."""

    classes: int
    single_label: bool
    weights: np.ndarray = field(repr=False)
    intercepts: np.ndarray
    fitted: list[int]
    constant: dict[int, bool]

    @classmethod
    def fit(
        cls, features: csr_matrix, labels: np.ndarray, classes: int, task: str, problem: Problem
    ) -> "OneAgainstRest":
        """Fit on features [N, V] and labels int [N] or uint8 [N, K].

        problem: features and bool [N], the rows of one class -> weights float64 [V] and the intercept. A class that no
        row or every row has cannot be learnt: it is ``constant``.
        """
        single_label = task == "single-label"
        truth = labels[:, None] == np.arange(classes) if single_label else np.asarray(labels).astype(bool)
        constant = {k: bool(truth[0, k]) for k in range(classes) if truth[:, k].all() or not truth[:, k].any()}
        fitted = [k for k in range(classes) if k not in constant]
        if single_label and len(fitted) == 2:
            fitted = fitted[1:]  # the other's score is this one's turned round
        problems = [problem(features, truth[:, k]) for k in fitted]
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
        distances = features @ self.weights + self.intercepts
        if self.single_label and len(self.fitted) == 1:
            scores -= distances
        scores[:, self.fitted] = distances
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
    def of(cls, state: Mapping[str, np.ndarray], classes: int, task: str) -> "OneAgainstRest":
        """Return the machine of a ``state``."""
        constant = {k if k >= 0 else -1 - k: k >= 0 for k in state["constant"].tolist()}
        fitted = state["fitted"].tolist()
        return cls(classes, task == "single-label", state["weights"], state["intercepts"], fitted, constant)

    @property
    def parameters(self) -> int:
        return self.weights.size + self.intercepts.size
