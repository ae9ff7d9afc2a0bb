"""A bootstrap of test items: what their choice leaves in a difference of means over seeds.

Shape legend: n seeds, m test items, G groups of items, R resamples.

Items that share a group (a patient, a film, a source file) are drawn together, as a cluster bootstrap. A resample of
items is a vector of counts, so that a metric of all resamples is a matrix product.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from reread.storage.errors import InputError
from reread.verdicts.items import Items, item_deviation

# The relative standard error of a variance from R resamples is sqrt(2 / R): 3 % here.
RESAMPLES = 2_000
# Blocks of this size stay in the cache: ten times as much takes twice as long.
CELLS_AT_ONCE = 500_000

# Metric of R resamples, float64 [R], from their counts of items, float64 [R, m].
Resampled = Callable[[np.ndarray], np.ndarray]


def mean_of(scores: np.ndarray) -> Resampled:
    """Return the metric that is the mean of one score per item, float [m]."""
    return lambda counts: counts @ scores.astype(np.float64) / counts.sum(axis=1)


def item_counts(
    resamples: int, items: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the counts of each item in each resample, float64 [some, m] at a time, ``resamples`` in all.

    groups: the number of each item's group, int [m] from 0; the items of a group have the same count.
    """
    units = items if groups is None else int(groups.max()) + 1
    step = max(1, min(resamples, CELLS_AT_ONCE // max(items, units)))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, units, size=(rows, units)) + np.arange(rows)[:, None] * units
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
        yield counts if groups is None else counts[:, groups]


def item_spread_of(
    treatment: Sequence[Resampled],
    control: Sequence[Resampled],
    items: int,
    resamples: int = RESAMPLES,
    groups: Sequence[Any] | np.ndarray | None = None,
) -> Items:
    """Return ``item_spread`` of metrics given as functions of the counts of ``items`` items, one per seed."""
    if not treatment:
        raise InputError("a comparison needs at least one seed of its treatment")
    numbers = group_numbers(groups, items)
    units = items if numbers is None else int(numbers.max()) + 1
    blocks = [
        np.stack([metric(counts) for metric in (*treatment, *control)], axis=1)
        for counts in item_counts(resamples, items, np.random.default_rng(0), numbers)
    ]
    by_seed, n = np.concatenate(blocks), len(treatment)  # [R, seeds of both sides]
    undefined = int((~np.isfinite(by_seed)).any(axis=1).sum())
    if undefined:
        raise InputError(
            f"{undefined} of {resamples} resamples of the {items} items have no finite score, so that the error of the "
            "items is not known: use a metric that every choice of items has"
        )
    deviation = item_deviation(by_seed[:, :n], by_seed[:, n:] if control else None)
    return Items(deviation, units, items, resamples)


def group_numbers(groups: Sequence[Any] | np.ndarray | None, items: int) -> np.ndarray | None:
    """Return the number of each item's group, int [m] from 0; InputError where not every item has one."""
    if groups is None:
        return None
    names = np.asarray(groups)
    if names.shape != (items,):
        raise InputError(f"groups have shape {names.shape}: give one group for each of the {items} items")
    numbers = np.unique(names, return_inverse=True)[1]
    if numbers.max() == 0:
        raise InputError("all items are in one group: at least two groups are needed to draw from")
    return numbers
