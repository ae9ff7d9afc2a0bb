"""The power of an experiment: what its size can decide before it runs, and how many seeds an undecided one needs.

Two samples with the assumed spread are drawn, and the interval that decides is computed of each draw by the functions
that judge, at the level that Holm's procedure leaves to the first of the comparisons, alpha / comparisons. A shift of
the truth shifts the interval, so the same draws give the power at any true difference. S, the standard deviation of the
difference between a seed of each side, is known from few tuning runs: power is a range, from the lower to the upper end
of an interval of S of SPREAD_CONFIDENCE (chi squared).
"""

import bisect
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from reread.verdicts.items import MANY, Items, Student, Variance, errors_of, of_seeds, quantile, tail
from reread.verdicts.permutation import Permutation
from reread.verdicts.seeds import least_seeds
from reread.verdicts.statistics import EQUAL, SignFlip

POWER = 0.8
EVEN_ODDS = 0.5
MOST_SEEDS = 10_000
SPREAD_CONFIDENCE = 0.8
# The standard error of a power of 80 % is 3 %; both tests have fewer splits than where they judge.
DRAWS, SPLITS, BISECTIONS = 200, 4_000, 8
# I^2 as a share of the variance that errors independent between the two sides would have. In 25 comparisons on
# docstrings, digits, IMDB and 20 Newsgroups it was 0 to about .12 between two networks, .30 to .46 against a baseline.
ITEM_SHARE = 0.1
ITEM_SHARE_OF_A_BASELINE = 0.4


@dataclass(frozen=True)
class Design:
    """One comparison before it runs.

    comparisons: how many Holm's correction covers. alpha: that of one look. spread: standard deviation of the
    difference between a seed of each side, None where nothing is known of it; freedom: its degrees of freedom, None
    where it is taken as exact. item_deviation: standard error from the choice of test items. room: the largest gain
    that the control's score leaves to the treatment, None where the metric has no bound. one_figure: one side is a
    baseline or a published figure.
    """

    name: str
    treatment: str
    control: str
    seeds: int
    comparisons: int
    margin: float
    alpha: float = 0.05
    spread: float | None = None
    item_deviation: float = 0.0
    room: float | None = None
    freedom: float | None = None
    one_figure: bool = False


# From the value at the least spread to that at the largest.
Range = tuple[float, float]


@dataclass(frozen=True)
class PowerAnalysis:
    """The verdicts that a design can reach.

    supported, refuted, equivalent: whether the verdict has at least even odds where the truth favours it most (a
    difference as large as the room; no difference). smallest_detectable: the true difference whose direction is found
    with a power of 80 %; smallest_supported: the one that is shown to be at least the margin. power_at_margin: of a
    direction where the true difference is the margin. power_of_equivalence: where the true difference is 0. The numbers
    are None where the spread is not known. ``sentences`` say all of it, ``warnings`` what the design cannot decide.
    """

    name: str
    supported: bool
    refuted: bool
    equivalent: bool
    smallest_detectable: Range | None
    smallest_supported: Range | None
    power_at_margin: Range | None
    power_of_equivalence: Range | None
    sentences: list[str]
    warnings: list[str]


def reachable(
    comparisons: Sequence[Any],
    seeds: int,
    margin: float,
    alpha: float,
    items: Mapping[str, int],
    evidence: Sequence[Mapping[str, Any]] = (),
    spread: float | None = None,
    folds: int | None = None,
) -> list[PowerAnalysis]:
    """Return what each comparison of an experiment can decide.

    comparisons: reread.verdicts.rule.Comparison. alpha: that of one look. items: rows of the evaluated split by the
    comparison's name. evidence:
    metrics.json of the tuning experiment, then of earlier results. Validation scores give the spread between seeds, the
    item deviation and the room, each from the first file that has it. spread: the standard deviation of the difference
    between a seed of each side, where the experiment names it instead. folds: of cross-validation, where a baseline has
    seeds, and seeds share training rows (reread.verdicts.items.of_seeds).
    """
    designs = []
    for comparison in comparisons:
        sides = (comparison.treatment, comparison.control)
        scores = [first_known(tuned_score(metrics, name, comparison) for metrics in evidence) for name in sides]
        deviations = [
            first_known(tuned_deviation(metrics, name, comparison.metric) for metrics in evidence)
            for name in comparison.networks
        ]
        known: float | None
        known, freedom = pooled([deviation for deviation in deviations if deviation is not None])
        if None in deviations:
            known = None
        rows = items[comparison.name]
        share = ITEM_SHARE if comparison.baseline is None else ITEM_SHARE_OF_A_BASELINE
        varying = scores
        if comparison.reference is not None:
            # A published figure is fixed: the treatment's whole variance over the items counts.
            scores[1], share, varying = comparison.reference, 1.0, scores[:1]
        named = known if spread is None else spread
        # A network trains on all folds but two.
        of_folds = 0.0 if folds is None or named is None else named**2 * folds / (folds - 2)
        independent = sum(score * (1 - score) for score in varying if score is not None and 0 <= score <= 1)
        designs.append(
            Design(
                comparison.name,
                comparison.treatment,
                comparison.control,
                seeds,
                len(comparisons),
                comparison.equivalence_margin or margin,
                alpha,
                named,
                math.sqrt(share * independent / rows + of_folds),
                room(scores[1], comparison.higher_is_better),
                freedom if spread is None else None,
                comparison.reference is not None or (len(comparison.networks) == 1 and folds is None),
            )
        )
    return [reach(design) for design in designs]


def pooled(deviations: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the standard deviation of a difference of independent values and its degrees of freedom."""
    variance = sum(deviation**2 for deviation, _ in deviations)
    return math.sqrt(variance), variance**2 / max(
        sum(deviation**4 / degrees for deviation, degrees in deviations), 1e-300
    )


def room(control: float | None, higher_is_better: bool) -> float | None:
    """Return the largest gain over a control's score: up to 1, or down to 0 where less is better."""
    if control is None:
        return None
    return 1 - control if higher_is_better else control


def first_known(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def tuned_trials(tuning: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the trials of variant ``name`` in a metrics.json: those of its grid, or named NAME-VALUE or NAME."""
    if name in tuning.get("tuned", {}):
        return [tuning["variants"][trial] for trial in tuning["tuned"][name]["trials"]]
    trial = re.compile(re.escape(name) + r"(-[0-9.e-]+|/.+)?")
    return [variant for key, variant in tuning["variants"].items() if trial.fullmatch(key)]


def tuned_score(tuning: Mapping[str, Any], name: str, comparison: Any) -> float | None:
    """Return the best mean validation score of a variant's trials, or a baseline's; None where there is none."""
    metric = comparison.metric
    if name == comparison.baseline:
        validated = [
            baselines[name]["validation"] for baselines in tuning.get("baselines", {}).values() if name in baselines
        ]
        return validated[0].get(metric) if validated else None
    means = [
        trial["validation"][metric]["mean"]
        for trial in tuned_trials(tuning, name)
        if trial["validation"].get(metric, {}).get("mean") is not None
    ]
    return (max if comparison.higher_is_better else min)(means, default=None)


def tuned_deviation(tuning: Mapping[str, Any], name: str, metric: str) -> tuple[float, int] | None:
    """Return the standard deviation between seeds within a variant's trials of several seeds, and its freedom."""
    deviations = [
        (trial["validation"][metric]["deviation"], trial.get("n", 2) - 1)
        for trial in tuned_trials(tuning, name)
        if trial["validation"].get(metric, {}).get("deviation") is not None
    ]
    freedom = sum(degrees for _, degrees in deviations)
    return (
        (math.sqrt(sum(deviation**2 * degrees for deviation, degrees in deviations) / freedom), freedom)
        if freedom
        else None
    )


@dataclass(frozen=True)
class Draw:
    """The seeds of one drawn experiment, whose difference between a seed of each side has mean 0 and deviation 1.

    mean: of its difference; parts: the variances of its sides' means; ends: of the interval over seeds, or None.
    """

    mean: float
    parts: list[Variance]
    ends: tuple[float, float] | None


@functools.lru_cache(maxsize=64)
def drawn(seeds: int, one_figure: bool, level: float) -> list[Draw]:
    """Return DRAWS draws, each with its interval over seeds at 1 - ``level``."""
    rng, draws = np.random.default_rng([seeds, one_figure]), []
    for _ in range(DRAWS):
        parts = rng.normal(size=(1, seeds)) if one_figure else rng.normal(0, math.sqrt(0.5), (2, seeds))
        test: Permutation | SignFlip
        if one_figure:
            test = SignFlip(parts[0], SPLITS)
        else:
            test = Permutation(parts[0], parts[1], most=SPLITS, draws=SPLITS, bisections=BISECTIONS)
        draws.append(Draw(test.mean, [of_seeds(part) for part in parts], test.ends(level)))
    return draws


def simulated(design: Design, spread: float, level: float) -> np.ndarray:
    """Return the decision's interval of every draw where there is no difference, float64 [DRAWS, 2]."""
    items = Items(design.item_deviation, MANY + 1)
    errors = np.random.default_rng(1).normal(0, 1, DRAWS) * design.item_deviation
    ends = np.full((DRAWS, 2), (-math.inf, math.inf))
    for row, error, draw in zip(ends, errors, drawn(design.seeds, design.one_figure, level), strict=True):
        parts = [(spread**2 * variance, degrees) for variance, degrees in draw.parts]
        over_items = Student(spread * draw.mean, parts, items).ends(level)
        if draw.ends is not None and over_items is not None:
            low, high = (spread * end for end in draw.ends)
            row[:] = min(low, over_items[0]) + error, max(high, over_items[1]) + error
    return ends


@dataclass(frozen=True)
class Power:
    """The fields of PowerAnalysis at one spread, and the difference that is supported with even odds."""

    smallest_detectable: float
    smallest_supported: float
    power_at_margin: float
    power_of_equivalence: float
    supported_at_even_odds: float


def power(design: Design, spread: float) -> Power:
    level = design.alpha / design.comparisons
    low = simulated(design, spread, level)[:, 0]
    inside = simulated(design, spread, 2 * level)
    least, even = (-float(np.quantile(low, share, method="lower")) for share in (1 - POWER, 1 - EVEN_ODDS))
    equivalent = (inside[:, 0] > -design.margin) & (inside[:, 1] < design.margin)
    return Power(
        least,
        design.margin + least,
        float((low + design.margin > 0).mean()),
        float(equivalent.mean()),
        design.margin + even,
    )


def spreads(design: Design) -> list[float]:
    """Return the spread, and the ends of its interval where it was estimated."""
    assert design.spread is not None
    spread = max(design.spread, 1e-9)
    if design.freedom is None:
        return [spread]
    tails = (1 + SPREAD_CONFIDENCE) / 2, (1 - SPREAD_CONFIDENCE) / 2
    low, high = (spread * math.sqrt(design.freedom / scipy.stats.chi2.ppf(tail, design.freedom)) for tail in tails)
    return [spread, low, high]


def reach(design: Design) -> PowerAnalysis:
    """Return what one design can decide."""
    two_sided = least_seeds(design.alpha, design.comparisons, one_figure=design.one_figure)
    one_sided = least_seeds(design.alpha, design.comparisons, sides=1, one_figure=design.one_figure)
    enough, enough_for_equivalence = design.seeds >= two_sided, design.seeds >= one_sided
    over = (
        f"{design.seeds} seed{'s' if design.seeds > 1 else ''} and "
        f"{design.comparisons} comparison{'s' if design.comparisons > 1 else ''}"
    )
    sentences, warnings = [], []
    if not enough:
        warnings.append(
            f"{design.name}: {over} can support or refute nothing at alpha {design.alpha:g}: "
            f"at least {two_sided} seeds are needed."
        )
    if design.spread is None:
        shows = "equivalence and no direction" if enough_for_equivalence else "no direction"
        sentences.append(
            f"{design.name}: {over} can show {'a direction' if enough else shows} (which side is better). The smallest "
            "difference that they find, and how often they find it, is not known before the runs, because the spread "
            "between seeds is not known: name it in the experiment, for example `tuning: {spread: 0.01}`, or publish a "
            "tuning of two seeds."
        )
        fits = design.room is None or design.room >= design.margin
        if not fits:
            warnings.append(no_room(design, design.margin))
        return PowerAnalysis(
            design.name, enough and fits, enough, enough_for_equivalence, None, None, None, None, sentences, warnings
        )
    powers = [power(design, spread) for spread in spreads(design)]
    first = powers[0]
    detectable, supported, at_margin, of_equivalence = (
        (min(values), max(values))
        for values in zip(
            *((p.smallest_detectable, p.smallest_supported, p.power_at_margin, p.power_of_equivalence) for p in powers),
            strict=True,
        )
    )
    fits = design.room is None or design.room >= first.supported_at_even_odds - EQUAL
    known = "" if design.freedom is None else f" (the spread is known from {design.freedom:.0f} degrees of freedom)"
    if enough:
        sentences.append(
            f"{design.name}: with {over}, the direction of a true difference of {between(detectable)} is found with a "
            f"power of {POWER:.0%}, and one of {between(supported)} is shown to be at least the margin "
            f"({design.margin:g}). If there is no difference, equivalence within ±{design.margin:g} is found with "
            f"{shares(of_equivalence)}{known}."
        )
    if enough and not fits:
        warnings.append(no_room(design, first.supported_at_even_odds))
    elif enough and design.room is not None and design.room < first.smallest_supported:
        warnings.append(
            f"{design.name}: at most {design.room:.4f} can be gained over {design.control}, less than the "
            f"{first.smallest_supported:.4f} that is shown to be at least the margin with a power of {POWER:.0%}."
        )
    if first.power_of_equivalence < EVEN_ODDS:
        needed = seeds_for_equivalence(design)
        remedy = f"{needed} seeds would have even odds" if needed else "more seeds do not help, more test items would"
        warnings.append(
            f"{design.name}: equivalence within ±{design.margin:g} is found with a power of "
            f"{shares(of_equivalence)} only: {remedy}, or a wider margin."
        )
    return PowerAnalysis(
        design.name, enough and fits, enough, first.power_of_equivalence >= EVEN_ODDS,
        detectable if enough else None, supported if enough else None, at_margin, of_equivalence, sentences, warnings,
    )  # fmt: skip


def between(ends: Range) -> str:
    """Return ``0.0120``, or ``0.0120 to 0.0230`` of a range."""
    low, high = (f"{end:.4f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def shares(ends: Range) -> str:
    low, high = (f"{end:.0%}" for end in ends)
    return low if low == high else f"{low.removesuffix('%')} to {high}"


def no_room(design: Design, least: float) -> str:
    return (
        f"{design.name}: cannot be supported: at most {design.room:.4f} can be gained over {design.control}, "
        f"and a true difference of at least {least:.4f} is required."
    )


def errors_with(seeds: int, spread: float, item_deviation: float, sides: int) -> list[Variance]:
    """Return the errors of a difference of so many seeds of each of ``sides``, whose spreads are equal."""
    part = max(spread, 1e-9) ** 2 / (sides * seeds), seeds - 1
    return errors_of([part] * sides, Items(item_deviation, MANY + 1))


def seeds_for_equivalence(design: Design) -> int | None:
    """Return the fewest seeds that find equivalence with even odds if there is no difference, or None.

    By the second analysis alone, which is an approximation.
    """
    spread = design.spread
    if spread is None:
        return None
    level = design.alpha / design.comparisons

    def enough(seeds: int) -> bool:
        errors = errors_with(seeds, spread, design.item_deviation, 1 if design.one_figure else 2)
        inside = design.margin - quantile(errors, level)
        return inside > 0 and 1 - 2 * tail(errors, inside) >= EVEN_ODDS

    fewest = least_seeds(design.alpha, design.comparisons, sides=1, one_figure=design.one_figure)
    return first_seeds(max(fewest, design.seeds + 1), enough)


def first_seeds(least: int, enough: Callable[[int], bool]) -> int | None:
    """Return the fewest seeds, from ``least`` to MOST_SEEDS, that are enough (more always are), or None."""
    candidates = range(least, MOST_SEEDS + 1)
    place = bisect.bisect_left(candidates, True, key=enough)
    return candidates[place] if place < len(candidates) else None


def seeds_needed(
    mean: float,
    spread: float,
    item_deviation: float,
    margin: float,
    levels: tuple[float, float],
    least: int,
    sides: int,
    shared: str = "test items",
) -> tuple[int | None, str]:
    """Return how many seeds of each side a new experiment needs, and a sentence; None if none are enough.

    For a power of 80 % of a direction or, of a mean inside the margin, of equivalence, whichever needs fewer, if mean
    and spread are right; by the second analysis. levels: alpha as Holm's correction leaves it, of a direction
    (two-sided) and of equivalence. sides: how many have seeds. shared: what leaves ``item_deviation``, in words.
    """
    aims = [("a direction", abs(mean), levels[0] / 2), ("equivalence", margin - abs(mean), levels[1])]
    reached = []
    for aim, distance, level in aims:

        def enough(seeds: int, distance: float = distance, level: float = level) -> bool:
            errors = errors_with(seeds, spread, item_deviation, sides)
            return quantile(errors, level) + quantile(errors, 1 - POWER) < distance

        if distance > EQUAL and (needed := first_seeds(max(least, 2), enough)) is not None:
            reached.append((needed, aim))
    if reached:
        needed, aim = min(reached)
        return needed, (
            f"If this mean and spread are right, a new experiment with {needed} seeds of each side would show {aim} "
            f"with a power of {POWER:.0%}."
        )
    if item_deviation > 0 and any(
        distance <= float(scipy.stats.norm.ppf(1 - level)) * item_deviation for _, distance, level in aims
    ):
        return None, (
            f"The choice of {shared} alone has a standard error of {item_deviation:.4f}: more seeds would not show a "
            f"mean like this, more {shared} could."
        )
    return None, f"With this mean and spread, more than {MOST_SEEDS:,} seeds would be needed."
