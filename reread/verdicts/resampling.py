"""A bootstrap of test items: what their choice leaves in a difference of means over seeds.

Shape legend: n seeds, m test items, G groups of items, R resamples.

Items that share a group (a patient, a film, a source file) are drawn together, as a cluster bootstrap. A resample of
items is a vector of counts, so that a metric of all resamples is a matrix product.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from reread.storage.errors import InputError
from reread.verdicts.items import Items, item_deviation

# The relative standard error of a variance from R resamples is sqrt(2 / R): 3 % here.
RESAMPLES = 2_000
# Blocks of this size stay in the cache: ten times as much takes twice as long.
CELLS_AT_ONCE = 500_000
# Counts that are kept for the next comparison of the same items, a byte each.
MOST_KEPT = 50_000_000

# Metric of R resamples, float64 [R], or of n seeds at once, [R, n], from their counts of items, float64 [R, m].
Resampled = Callable[[np.ndarray], np.ndarray]


def mean_of(scores: np.ndarray) -> Resampled:
    """Return the metric that is the mean of one score per item, float [m]."""
    return lambda counts: counts @ scores.astype(np.float64) / counts.sum(axis=1)


def item_counts(resamples: int, items: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yield the counts of each item in each resample, float64 [some, m] at a time, ``resamples`` in all.

    They are the same whenever as many are drawn. groups: the number of each item's group, int [m] from 0; the items of
    a group have the same count.
    """
    units = items if groups is None else int(groups.max()) + 1
    step = max(1, min(resamples, CELLS_AT_ONCE // max(items, units)))
    blocks = (_kept if resamples * units <= MOST_KEPT else _drawn)(resamples, units, step)
    for counts in blocks:
        yield (counts if groups is None else counts[:, groups]).astype(np.float64)


@functools.lru_cache(maxsize=2)
def _kept(resamples: int, units: int, step: int) -> list[np.ndarray]:
    return list(_drawn(resamples, units, step))


def _drawn(resamples: int, units: int, step: int) -> Iterator[np.ndarray]:
    """Yield the counts of each unit in ``step`` resamples at a time, in the smallest type that holds them."""
    rng = np.random.default_rng(0)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, units, size=(rows, units)) + np.arange(rows)[:, None] * units
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units)
        yield counts.astype(np.min_scalar_type(int(counts.max())))


def item_spread_of(
    treatment: Sequence[Resampled],
    control: Sequence[Resampled],
    items: int,
    resamples: int = RESAMPLES,
    groups: Sequence[Any] | np.ndarray | None = None,
) -> Items:
    """Return ``item_spread`` of metrics given as functions of the counts of ``items`` items, of one seed or several."""
    if not treatment:
        raise InputError("a comparison needs at least one seed of its treatment")
    numbers = group_numbers(groups, items)
    units = items if numbers is None else int(numbers.max()) + 1
    blocks = [
        [np.column_stack([metric(counts) for metric in side]) for side in (treatment, control) if side]
        for counts in item_counts(resamples, items, numbers)
    ]
    sides = [np.concatenate(of_side) for of_side in zip(*blocks, strict=True)]  # [R, seeds] each
    undefined = int((~np.isfinite(np.column_stack(sides))).any(axis=1).sum())
    if undefined:
        raise InputError(
            f"{undefined} of {resamples} resamples of the {items} items have no finite score, so that the error of the "
            "items is not known: use a metric that every choice of items has"
        )
    return Items(item_deviation(*sides), units, items, resamples)


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
