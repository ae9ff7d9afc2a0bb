"""The power of an experiment: what its size can decide before it runs, and how many seeds an undecided one needs.

The mean difference over n seeds has the standard error sqrt(S^2 / n + I^2), with S the standard deviation of the
differences between seeds and I what the choice of test items leaves (evaluation.bootstrap). Power is that of Student's
test with this error at the level that Holm's correction leaves to the first of the comparisons, alpha / comparisons;
it is an approximation, since S is estimated from few tuning runs.
"""

import bisect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

import kinds
from evaluation.metrics import higher_is_better
from evaluation.seeds import least_seeds
from evaluation.statistics import EQUAL

POWER = 0.8
EVEN_ODDS = 0.5
MOST_SEEDS = 10_000
# I^2 as a share of the variance that errors independent between the two sides would have. In 25 comparisons on
# docstrings, digits, IMDB and 20 Newsgroups it was 0 to about .12 between two networks, .30 to .46 against a baseline.
ITEM_SHARE = 0.1
ITEM_SHARE_OF_A_BASELINE = 0.4


@dataclass(frozen=True)
class Design:
    """One comparison before it runs.

    comparisons: how many Holm's correction covers. spread: standard deviation of the paired differences between seeds;
    item_deviation: standard error from the choice of test items; None where nothing is known of either.
    room: the largest gain that the control's score leaves to the treatment, None where the metric has no bound.
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


@dataclass(frozen=True)
class Reach:
    """The verdicts that a design can reach.

    supported, refuted, equivalent: whether the verdict has at least even odds where the truth favours it most (a
    difference as large as the room; no difference). smallest_detectable: the true difference found with a power of
    80 %. power_at_margin: of a direction where the true difference is the margin. power_of_equivalence: where the true
    difference is 0. The numbers are None where the spread is not known. ``sentences`` say all of it, ``warnings`` what
    the design cannot decide.
    """

    name: str
    supported: bool
    refuted: bool
    equivalent: bool
    smallest_detectable: float | None
    power_at_margin: float | None
    power_of_equivalence: float | None
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
) -> list[Reach]:
    """Return what each comparison of an experiment can decide.

    comparisons: evaluation.verdicts.Comparison. items: rows of the evaluated split by the comparison's name. evidence:
    metrics.json of the tuning experiment, then of earlier results. Validation scores give the spread between seeds, the
    item deviation and the room, each from the first file that has it. spread: the standard deviation of paired
    differences, where the experiment names it instead.
    """
    designs = []
    for comparison in comparisons:
        sides = (comparison.treatment, comparison.control)
        scores = [first_known(tuned_score(one, name, comparison.metric) for one in evidence) for name in sides]
        deviations = [
            first_known(tuned_deviation(one, name, comparison.metric) for one in evidence)
            if name in comparison.networks
            else 0.0
            for name in sides
        ]
        found = [one for one in deviations if one is not None]
        known = math.hypot(*found) if len(found) == 2 else None
        rows = items[comparison.name]
        share = ITEM_SHARE if comparison.baseline is None else ITEM_SHARE_OF_A_BASELINE
        varying = scores
        if comparison.reference is not None:
            # A published figure is fixed: the treatment's whole variance over the items counts.
            scores[1], share, varying = comparison.reference, 1.0, scores[:1]
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
                known if spread is None else spread,
                math.sqrt(share * independent / rows),
                room(scores[1], comparison.metric),
            )
        )
    return [reach(design) for design in designs]


def room(control: float | None, metric: str) -> float | None:
    """Return the largest gain over a control's score: up to 1, or down to 0 where less is better."""
    if control is None:
        return None
    return 1 - control if higher_is_better(metric) else control


def first_known(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def tuned_trials(tuning: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the trials of variant ``name`` in a metrics.json: those of its grid, or named NAME-VALUE or NAME."""
    if name in tuning.get("tuned", {}):
        return [tuning["variants"][trial] for trial in tuning["tuned"][name]["trials"]]
    trial = re.compile(re.escape(name) + r"(-[0-9.e-]+|/.+)?")
    return [variant for key, variant in tuning["variants"].items() if trial.fullmatch(key)]


def tuned_score(tuning: Mapping[str, Any], name: str, metric: str) -> float | None:
    """Return the best mean validation score of a variant's trials, or a baseline's; None where there is none."""
    if name in kinds.baselines():
        found = [one[name]["validation"] for one in tuning.get("baselines", {}).values() if name in one]
        return found[0].get(metric) if found else None
    means = [
        trial["validation"][metric]["mean"]
        for trial in tuned_trials(tuning, name)
        if trial["validation"].get(metric, {}).get("mean") is not None
    ]
    return (max if higher_is_better(metric) else min)(means, default=None)


def tuned_deviation(tuning: Mapping[str, Any], name: str, metric: str) -> float | None:
    """Return the standard deviation between seeds within trials, pooled over a variant's trials of several seeds."""
    deviations = [
        trial["validation"][metric]["deviation"]
        for trial in tuned_trials(tuning, name)
        if trial["validation"].get(metric, {}).get("deviation") is not None
    ]
    return math.sqrt(float(np.mean(np.square(deviations)))) if deviations else None


def reach(design: Design) -> Reach:
    """Return what one design can decide."""
    two_sided = least_seeds(design.alpha, design.comparisons)
    one_sided = least_seeds(design.alpha, design.comparisons, sides=1)
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
        sentences.append(
            f"{design.name}: the spread between seeds is not known, so neither power nor a smallest detectable "
            "difference can be computed before the runs; publish a tuning of two seeds, or give tuning.spread."
        )
        fits = design.room is None or design.room >= design.margin
        if not fits:
            warnings.append(no_room(design, design.margin))
        return Reach(
            design.name, enough and fits, enough, enough_for_equivalence, None, None, None, sentences, warnings
        )
    level = design.alpha / design.comparisons
    error, freedom = standard_error(design.spread, design.item_deviation, design.seeds)
    least = max(design.margin, float(scipy.stats.t.ppf(1 - level / 2, freedom)) * error)
    detectable = least + float(scipy.stats.t.ppf(POWER, freedom)) * error
    at_margin = float(scipy.stats.t.cdf((design.margin - least) / error, freedom)) if enough else 0.0
    inside = design.margin - float(scipy.stats.t.ppf(1 - level, freedom)) * error
    of_equivalence = 0.0
    if enough_for_equivalence and inside > 0:
        of_equivalence = 2 * float(scipy.stats.t.cdf(inside / error, freedom)) - 1
    fits = design.room is None or design.room >= least - EQUAL
    sentences.append(
        f"{design.name}: with {over}, a true difference of {detectable:.4f} is found with a power of {POWER:.0%}, "
        f"one of the margin ({design.margin:g}) with {at_margin:.0%}. If there is no difference, equivalence within "
        f"±{design.margin:g} is found with {of_equivalence:.0%}."
    )
    if enough and not fits:
        warnings.append(no_room(design, least))
    elif enough and design.room is not None and design.room < detectable:
        warnings.append(
            f"{design.name}: at most {design.room:.4f} can be gained over {design.control}, less than the "
            f"{detectable:.4f} that is found with a power of {POWER:.0%}."
        )
    if of_equivalence < EVEN_ODDS:
        needed = seeds_for_equivalence(design)
        remedy = f"{needed} seeds would have even odds" if needed else "more seeds do not help, more test items would"
        warnings.append(
            f"{design.name}: equivalence within ±{design.margin:g} is found with a power of {of_equivalence:.0%} "
            f"only: {remedy}, or a wider margin."
        )
    return Reach(
        design.name, enough and fits, enough, of_equivalence >= EVEN_ODDS, detectable, at_margin, of_equivalence,
        sentences, warnings,
    )  # fmt: skip


def no_room(design: Design, least: float) -> str:
    return (
        f"{design.name}: cannot be supported: at most {design.room:.4f} can be gained over {design.control}, "
        f"and a mean difference of at least {least:.4f} is required."
    )


def standard_error(spread: float, item_deviation: float, seeds: int) -> tuple[float, float]:
    """Return the standard error of the mean difference of so many seeds, and its degrees of freedom."""
    of_seeds, of_items = max(spread, 1e-9) ** 2 / seeds, item_deviation**2
    # Items are many, so their own degrees of freedom are left out.
    freedom = (of_seeds + of_items) ** 2 * max(seeds - 1, 1) / of_seeds**2
    return math.sqrt(of_seeds + of_items), freedom


def seeds_for_equivalence(design: Design) -> int | None:
    """Return the fewest seeds that find equivalence with even odds if there is no difference, or None."""
    spread = design.spread
    if spread is None:
        return None
    level = design.alpha / design.comparisons

    def enough(seeds: int) -> bool:
        error, freedom = standard_error(spread, design.item_deviation, seeds)
        inside = design.margin / error - scipy.stats.t.ppf(1 - level, freedom)
        return bool(2 * scipy.stats.t.cdf(inside, freedom) - 1 >= EVEN_ODDS)

    return first_seeds(least_seeds(design.alpha, design.comparisons, sides=1), enough)


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
    least: tuple[int, int],
    have: int,
) -> tuple[int | None, str]:
    """Return how many seeds would give a verdict if mean and spread stay as they are, and a sentence; None if none do.

    A mean of at least ``margin`` needs a difference from 0 (two-sided), a smaller one a distance from the margin (two
    one-sided tests). levels and least: alpha as Holm's correction leaves it, and the fewest seeds, of either.
    """
    apart = abs(mean) >= margin - EQUAL
    distance = abs(mean) if apart else margin - abs(mean)
    level, fewest = (levels[0] / 2, least[0]) if apart else (levels[1], least[1])

    def enough(seeds: int) -> bool:
        error, freedom = standard_error(spread, item_deviation, seeds)
        return bool(scipy.stats.t.ppf(1 - level, freedom) * error < distance)

    needed = first_seeds(max(fewest, have + 1), enough)
    if needed is not None:
        return needed, f"With this spread, {needed} seeds would decide."
    from_items = float(scipy.stats.norm.ppf(1 - level)) * item_deviation
    if from_items >= distance:
        more = (from_items / distance) ** 2 if distance > EQUAL else math.inf
        remedy = (
            f"{math.ceil(10 * more) / 10:.1f} times the test items could"
            if more < 100
            else "the mean is too near to the margin"
        )
        return None, (
            f"The choice of test items alone gives ±{from_items:.4f}, more than the {distance:.4f} to be resolved: "
            f"more seeds cannot settle it, {remedy}."
        )
    return None, f"With this spread, more than {MOST_SEEDS:,} seeds would be needed."
