"""Probabilities in readable form: labels, and the probability of each class by its name.

Shape legend: n rows, K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

LIKELY = 0.5


def columns(probabilities: np.ndarray, classes: Sequence[str], task: str) -> dict[str, list[Any]]:
    """Return one entry per row of float probabilities [n, K] in each column: label, probability, probabilities.

    label: the likeliest class, and probability its own; where a row can have several labels, the list of those with a
    probability of 0.5 or more, and the list of theirs. probabilities: each class by name.
    """
    names = np.array(classes)
    if task == "multi-label":
        likely = [row >= LIKELY for row in probabilities]
        label = [names[chosen].tolist() for chosen in likely]
        probability = [row[chosen].tolist() for row, chosen in zip(probabilities, likely, strict=True)]
    else:
        label = names[probabilities.argmax(axis=1)].tolist()
        probability = probabilities.max(axis=1).tolist()
    by_name = [dict(zip(classes, row.tolist(), strict=True)) for row in probabilities]
    return {"label": label, "probability": probability, "probabilities": by_name}
