"""Plain scores to verdicts: arms, seeds and, where they are known, items, from any source.

A score of a seed is one number, the mean over its items, or a function of sums over them, such as BLEU.

Shape legend: m items, S statistics per item.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reread.storage.errors import InputError, nearest
from reread.verdicts.items import Items
from reread.verdicts.reads import NO_READS, EarlierReads
from reread.verdicts.resampling import Resampled, item_spread_of, mean_of
from reread.verdicts.rule import NETWORKS, ONE_FIGURE, PAIRS, Comparison, Measured, Side, Verdict, judge, perfect
from reread.verdicts.seeds import least_seeds
from reread.verdicts.statistics import DIGITS

# The squares of larger scores and margins are no finite numbers.
LARGEST = 1e100
# Scores are judged as they are published, with ten decimals: a smaller margin would be one of their rounding.
LEAST_MARGIN = 1e-7
# The score of sums of statistics, float64 [..., S], and the number of items, [...].
Reduction = Callable[[np.ndarray, Any], np.ndarray]
OVER_SEEDS, OVER_ITEMS = "over seeds", "over seeds and items"


@dataclass(frozen=True)
class Rows:
    """Scores of one metric as columns of equal length; item and group are None where the rows are of seeds.

    score: a number per row or, with ``reduction``, the S statistics of its item. group: what an item belongs to (a
    patient, a source file). lower_is_better: None where the source does not say.
    """

    metric: str
    arm: Sequence[Any]
    seed: Sequence[Any]
    score: Sequence[float] | Sequence[np.ndarray]
    item: Sequence[Any] | None = None
    group: Sequence[Any] | None = None
    lower_is_better: bool | None = None
    cautions: Sequence[str] = ()
    reduction: Reduction | None = None


@dataclass(frozen=True)
class Scores:
    """The scores of every arm by seed, in the order of the seeds.

    items: of each arm and seed the scores by item, float64 [m], all in one order, or with ``reduction`` their
    statistics, float64 [m, S]; None without rows per item. groups: the number of each item's group, int [m].
    """

    metric: str
    arms: Mapping[str, Mapping[Any, float]]
    items: Mapping[str, Mapping[Any, np.ndarray]] | None = field(default=None, repr=False)
    groups: np.ndarray | None = field(default=None, repr=False)
    lower_is_better: bool | None = None
    cautions: Sequence[str] = ()
    reduction: Reduction | None = None

    @property
    def analyses(self) -> list[str]:
        """The analyses of the rule that these scores allow."""
        return [OVER_SEEDS] if self.items is None else [OVER_SEEDS, OVER_ITEMS]


@dataclass(frozen=True)
class Claim:
    """A claim about two arms, or about an arm and a published figure, ``reference``; ``control`` is then its title.

    margin: the smallest difference that matters, in the unit of the score; of ratios that of the natural logarithm.
    ratio: whether logarithms of the scores are compared. paired: whether equal seeds of both arms are pairs.
    """

    name: str
    text: str
    source: str
    treatment: str
    control: str
    metric: str
    margin: float
    higher_is_better: bool = True
    ratio: bool = False
    paired: bool = False
    reference: float | None = None

    def comparison(self) -> Comparison:
        """Return the comparison that the rule judges."""
        return Comparison(
            self.name,
            self.text,
            self.source,
            self.treatment,
            self.control,
            self.metric,
            self.margin,
            self.reference,
            higher_is_better=self.higher_is_better,
            ratio=self.ratio,
        )


def collect(rows: Rows) -> Scores:
    """Return the scores by arm and seed; InputError for duplicates, and for items that differ between seeds."""
    seeds = seed_names(rows.seed)
    arms = list(map(str, rows.arm))
    if not arms:
        raise InputError(f"there is no score of {rows.metric}")
    if rows.item is None and rows.reduction is not None:
        raise InputError(f"{rows.metric} is measured over items: add the column 'item', the name of each row's item")
    if rows.item is None:
        by_arm: dict[str, dict[Any, Any]] = {}
        for arm, seed, score in zip(arms, seeds, rows.score, strict=True):
            by_seed = by_arm.setdefault(arm, {})
            if seed in by_seed:
                raise InputError(f"seed {seed} of arm '{arm}' has two scores: a seed has one, or a row per item")
            by_seed[seed] = score
        return Scores(rows.metric, in_order(by_arm), lower_is_better=rows.lower_is_better, cautions=rows.cautions)
    by_item: dict[str, dict[Any, dict[Any, Any]]] = {}
    for arm, seed, item, score in zip(arms, seeds, rows.item, rows.score, strict=True):
        scores = by_item.setdefault(arm, {}).setdefault(seed, {})
        if item in scores:
            raise InputError(f"item '{item}' of arm '{arm}', seed {seed} has two scores: an item has one per seed")
        scores[item] = score
    (first_arm, first_seed), order = next(
        ((arm, seed), list(scores)) for arm, of_arm in by_item.items() for seed, scores in of_arm.items()
    )
    if len(order) < 2:
        raise InputError(f"seed {first_seed} of arm '{first_arm}' has one item: leave out the column of items")
    arrays: dict[str, dict[Any, np.ndarray]] = {}
    for arm, of_arm in by_item.items():
        for seed, scores in of_arm.items():
            if scores.keys() != by_item[first_arm][first_seed].keys():
                item = min(scores.keys() ^ by_item[first_arm][first_seed].keys(), key=str)
                place = [f"seed {seed} of arm '{arm}'", f"seed {first_seed} of arm '{first_arm}'"]
                has, lacks = place if item in scores else place[::-1]
                raise InputError(f"{has} has item '{item}', and {lacks} has not: every seed needs the same items")
            arrays.setdefault(arm, {})[seed] = np.array([scores[item] for item in order])
    items = in_order(arrays)
    values = {
        arm: {seed: value_of(array, rows.reduction, rows.metric, arm, seed) for seed, array in of_arm.items()}
        for arm, of_arm in items.items()
    }
    groups = group_of_items(rows, order)
    return Scores(rows.metric, values, items, groups, rows.lower_is_better, rows.cautions, rows.reduction)


def value_of(items: np.ndarray, reduction: Reduction | None, metric: str, arm: str, seed: Any) -> float:
    """Return the score of a seed from its items; InputError where it is not defined on them."""
    value = float(items.mean() if reduction is None else reduction(items.sum(axis=0), float(len(items))))
    if not math.isfinite(value):
        raise InputError(f"{metric} of arm '{arm}', seed {seed} is {value}: it is not defined on these items")
    return value


def seed_names(seeds: Sequence[Any]) -> list[Any]:
    """Return the seeds as whole numbers where all of them are, else as text."""
    try:
        return [whole_number(seed) for seed in seeds]
    except (TypeError, ValueError, OverflowError):
        return [str(seed) for seed in seeds]


def whole_number(seed: Any) -> int:
    """Return a seed such as 3, "3" or 3.0, with all its digits; ValueError for another."""
    try:
        number = int(seed)
    except ValueError:
        number = int(float(seed))
    if float(number) != float(seed):
        raise ValueError(f"{seed} is no whole number")
    return number


def in_order(arms: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[Any, Any]]:
    return {arm: dict(sorted(by_seed.items())) for arm, by_seed in arms.items()}


def group_of_items(rows: Rows, order: Sequence[Any]) -> np.ndarray | None:
    """Return the number of each item's group, int [m]; InputError where an item is in two groups."""
    if rows.group is None or rows.item is None:
        return None
    groups: dict[Any, Any] = {}
    for item, group in zip(rows.item, rows.group, strict=True):
        if groups.setdefault(item, group) != group:
            raise InputError(f"item '{item}' is in the groups '{groups[item]}' and '{group}': it has one group")
    return np.unique([str(groups[item]) for item in order], return_inverse=True)[1]


def measure(claim: Claim, scores: Scores, cautions: Sequence[str] = (), earlier_reads: int = 0) -> Measured:
    """Return what a claim's arms measured; InputError where they cannot be compared."""
    names = [claim.treatment] if claim.reference is not None else [claim.treatment, claim.control]
    if not claim.ratio and claim.margin < LEAST_MARGIN:
        raise InputError(
            f"the margin of {claim.metric} is {claim.margin:g}, and scores are judged with {DIGITS} decimals: give the "
            "margin in percent, or give scores and margin in a smaller unit"
        )
    for name in names:
        if name not in scores.arms:
            raise InputError(f"there is no arm '{name}' with {claim.metric}: {nearest(name, scores.arms)}")
        if len(scores.arms[name]) < 2:
            least = least_seeds(0.05, one_figure=claim.paired or claim.reference is not None)
            raise InputError(
                f"arm '{name}' has one seed ({next(iter(scores.arms[name]))}): one has no spread, and a direction "
                f"needs {least} per arm"
            )
    if len(names) == 2 and names[0] == names[1]:
        raise InputError(f"'{claim.name}' compares arm '{names[0]}' with itself: name two arms")
    if claim.paired and len(names) == 2:
        first, second = (scores.arms[name] for name in names)
        alone = sorted(first.keys() ^ second.keys(), key=str)
        if alone:
            name = names[0] if alone[0] in first else names[1]
            raise InputError(f"seed {alone[0]} is only in arm '{name}': pairs need each seed in both arms")
    sides = [side(scores.arms[name], claim, name) for name in names]
    items = Items()
    if scores.items is not None:
        resampled = [
            [of_items(array, claim, scores.reduction) for array in scores.items[name].values()] for name in names
        ]
        count = len(next(iter(scores.items[names[0]].values())))
        items = item_spread_of(resampled[0], resampled[1] if len(names) == 2 else [], count, groups=scores.groups)
    if claim.reference is not None:
        sides.append(side({None: claim.reference}, claim, claim.control))
    kind = ONE_FIGURE if claim.reference is not None else PAIRS if claim.paired else NETWORKS
    flags = [perfect(name, list(scores.arms[name].values())) for name in names if claim.higher_is_better]
    reads = EarlierReads(earlier_reads, related=None) if earlier_reads else NO_READS
    return Measured(kind, sides[0], sides[1], items, list(filter(None, flags)), [*scores.cautions, *cautions], reads)


def side(by_seed: Mapping[Any, float], claim: Claim, name: str) -> Side:
    """Return an arm as the rule takes it, logarithms where ratios are judged."""
    seeds = [seed for seed in by_seed if seed is not None]
    if not claim.ratio:
        return Side(list(by_seed.values()), seeds)
    least = min(by_seed.values())
    if least <= 0:
        raise InputError(
            f"{name} has a score of {least:g} in {claim.metric}: a margin in percent needs positive scores"
        )
    return Side([math.log(score) for score in by_seed.values()], seeds)


def of_items(items: np.ndarray, claim: Claim, reduction: Reduction | None = None) -> Resampled:
    """Return the score of one seed on resampled items, from its scores by item, float64 [m], or statistics [m, S]."""
    score = mean_of(items)
    if reduction is not None:

        def score(counts: np.ndarray) -> np.ndarray:
            return reduction(counts @ items, counts.sum(axis=1))

    return (lambda counts: np.log(positive(score(counts), claim.metric))) if claim.ratio else score


def positive(values: np.ndarray, metric: str) -> np.ndarray:
    """Return the scores of resampled items; InputError where one has no logarithm."""
    least = float(values.min())
    if least <= 0:
        raise InputError(
            f"some choices of the test items score {least:g} in {metric}: a margin in percent needs positive scores; "
            "give the margin in the unit of the metric, or more items"
        )
    return values


def judge_claims(
    claims: Sequence[Claim],
    scores: Mapping[str, Scores],
    alpha: float = 0.05,
    look: int | None = None,
    cautions: Sequence[str] = (),
    earlier_reads: int = 0,
) -> list[Verdict]:
    """Return the verdicts of claims that were named together; scores: of each metric.

    InputError for a claim whose arms cannot be compared.
    """
    measured = [measure(claim, scores[claim.metric], cautions, earlier_reads) for claim in claims]
    return judge([claim.comparison() for claim in claims], measured, claims[0].margin, alpha, look)


def as_ratio(verdict: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the margin, the difference and its interval of judged logarithms as ratios, as a verdict's JSON has them.

    Above 1 the treatment is better.
    """
    interval = verdict["interval"] or {"mean": None, "low": None, "high": None}
    ends = {"margin": verdict["equivalence_margin"], **interval}
    return {name: None if end is None else math.exp(end) for name, end in ends.items()}
