"""From the statistics of a pair to a verdict: holds, fails, no difference that matters, or inconclusive."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import kinds
from evaluation.bootstrap import TwoWay
from evaluation.statistics import (
    EQUAL,
    Interval,
    SeedsNeeded,
    finite,
    holm,
    least_seeds,
    paired_interval,
    seeds_needed,
    sign_flip_p,
)

HOLDS, FAILS, NONE, INCONCLUSIVE = "holds", "fails", "no difference that matters", "inconclusive"

RULE = """\
The primary pairs, the metric, the smallest effect of interest and alpha are named in the experiment before it runs.
A difference is the metric of the variant that the claim favours minus that of the other, for the same seed on the
same test items (turned round for a loss or an error, where less is better): positive speaks for the claim.
A baseline has no seeds: each seed of the network is compared with the baseline's one figure on the same test items.
The seeds are then the network's alone, and the bootstrap over seeds and items draws the items of both together.
Two analyses must agree. Over seeds: the mean of the paired differences with its BCa bootstrap interval, and the p of
the two-sided sign-flip test (exact up to 20 seeds), corrected by Holm over all primary pairs. Over seeds and items: a
bootstrap that draws seeds and test items anew together. Intervals are of 1 - alpha.
- holds: Holm's p is under alpha, both intervals lie above 0, and the mean difference is at least the smallest effect.
- fails: the same the other way round.
- no difference that matters: both intervals lie inside (-smallest effect, +smallest effect).
- inconclusive: anything else; the report says how many seeds this spread would need.

With n seeds the least p is 2^(1-n), and Holm multiplies it by the number of pairs: a pair with fewer seeds than can
reach alpha (6 for one pair at 0.05) is inconclusive whatever its numbers. A variant that scores exactly 1 on every
seed is suspiciously perfect: its pair is flagged, and inconclusive until a leak of labels has been ruled out.
A bootstrap over so few seeds is a little too narrow, one reason why p, the second analysis and the smallest effect
must all agree before a claim holds."""


@dataclass(frozen=True)
class Pair:
    """A primary pair: the claim, where it is from, and the variants and metric that it is about.

    One of the two may be a baseline of the same data, by its name in kinds.baselines().
    """

    name: str
    claim: str
    source: str
    better: str
    worse: str
    metric: str

    @property
    def baseline(self) -> str | None:
        """Which of the two is a baseline, or None."""
        return next((name for name in (self.better, self.worse) if name in kinds.baselines()), None)


@dataclass(frozen=True)
class Measured:
    """What was measured of a pair: the paired difference of each seed, and the bootstrap over seeds and items."""

    seeds: Sequence[int]
    differences: Sequence[float]
    two_way: TwoWay
    flags: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """One pair's verdict with all that it rests on. Fields are None where nothing could be measured."""

    pair: Pair
    verdict: str
    sentence: str
    smallest_effect: float
    alpha: float
    seeds: list[int]
    differences: list[float]
    least_seeds: int
    over_seeds: Interval | None = None
    over_seeds_and_items: Interval | None = None
    resamples: int | None = None
    p: float | None = None
    holm_p: float | None = None
    seeds_needed: int | None = None
    flags: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The verdict as values that JSON can hold, the pair's fields beside its own."""
        values = asdict(self)
        return {**values.pop("pair"), "baseline": self.pair.baseline, **values}


def judge(
    pairs: Sequence[Pair], measured: Sequence[Measured | None], smallest_effect: float, alpha: float = 0.05
) -> list[Verdict]:
    """The verdicts of all primary pairs of an experiment, by RULE; None stands for a pair that was not run.

    All pairs come at once because Holm's correction is over all of them: one that was not run counts with p = 1.
    """
    p_values = [1.0 if found is None else sign_flip_p(found.differences) for found in measured]
    return [
        judge_pair(pair, found, p, holm_p, len(pairs), smallest_effect, alpha)
        for pair, found, p, holm_p in zip(pairs, measured, p_values, holm(p_values), strict=True)
    ]


def judge_pair(
    pair: Pair,
    measured: Measured | None,
    p: float,
    holm_p: float,
    pairs: int,
    smallest_effect: float,
    alpha: float,
) -> Verdict:
    """One pair's verdict from its measurements and its p before and after Holm's correction over ``pairs`` pairs."""
    least = least_seeds(alpha, pairs)
    if measured is None:
        said = f"Not measured: {pair.better} and {pair.worse} have no seed in common that has finished."
        if pair.baseline:
            network = pair.worse if pair.baseline == pair.better else pair.better
            said = f"Not measured: {network} has no seed that has finished."
        return Verdict(pair, INCONCLUSIVE, said, smallest_effect, alpha, [], [], least)
    differences = finite(measured.differences)
    seeds_alone = paired_interval(differences, 1 - alpha)
    both = measured.two_way.interval
    intervals = (seeds_alone, both)
    verdict, reasons = INCONCLUSIVE, list(measured.flags)
    if len(differences) < least:
        reasons.append(too_few(len(differences), least, pairs, alpha))
    elif measured.flags:
        pass
    elif holm_p < alpha and all(i.above(0) for i in intervals) and seeds_alone.mean >= smallest_effect - EQUAL:
        verdict = HOLDS
    elif holm_p < alpha and all(i.below(0) for i in intervals) and seeds_alone.mean <= EQUAL - smallest_effect:
        verdict = FAILS
    elif all(i.inside(smallest_effect) for i in intervals):
        verdict = NONE
    else:
        reasons = why_not(seeds_alone, both, holm_p, smallest_effect, alpha)
    needed = still_needed(differences, smallest_effect, alpha, measured.two_way, least, alpha * p / holm_p)
    if not measured.flags:
        reasons.append(needed.sentence)
    return Verdict(
        pair=pair,
        verdict=verdict,
        sentence=sentence(pair, verdict, seeds_alone, smallest_effect, reasons),
        smallest_effect=smallest_effect,
        alpha=alpha,
        seeds=list(measured.seeds),
        differences=differences.tolist(),
        least_seeds=least,
        over_seeds=seeds_alone,
        over_seeds_and_items=both,
        resamples=measured.two_way.resamples,
        p=p,
        holm_p=holm_p,
        seeds_needed=needed.seeds if verdict == INCONCLUSIVE and not measured.flags else None,
        flags=list(measured.flags),
    )


def still_needed(
    differences: Sequence[float], smallest_effect: float, alpha: float, two_way: TwoWay, least: int, corrected: float
) -> SeedsNeeded:
    """How many seeds this spread needs: for an interval of the smallest effect and for the test to be able to pass.

    Where there are as many already, the difference lies near 0 or near the smallest effect: what it takes to tell it
    from the nearer of the bounds that a verdict turns on, if the mean stays as it is. From 0 the test over seeds tells
    it, to which Holm's correction leaves ``corrected`` of alpha.
    """
    deviations = (two_way.item_deviation, two_way.residual_deviation)
    needed = seeds_needed(differences, smallest_effect, alpha, *deviations)
    mean = abs(float(finite(differences).mean()))
    apart = mean >= smallest_effect - EQUAL
    margin = mean if apart else smallest_effect - mean
    if needed.seeds is not None and len(differences) >= max(needed.seeds, least) and margin > 0:
        needed = seeds_needed(differences, margin, alpha, *deviations, test_alpha=corrected if apart else alpha)
    if needed.seeds is None:
        return needed
    if len(differences) < least:
        return needed if needed.seeds > least else SeedsNeeded(least, f"With this spread, {least} seeds would do.")
    if needed.seeds <= len(differences):
        more = len(differences) + 1
        return SeedsNeeded(more, f"It lacks little: with this spread, {more} seeds or a few more may settle it.")
    return needed


def too_few(seeds: int, least: int, pairs: int, alpha: float) -> str:
    """Why so few seeds cannot decide: the least p that they can give."""
    smallest = 2.0 ** (1 - seeds)
    said = f"With {seeds} seed{'s' if seeds != 1 else ''} no p can be under {smallest:.3g}"
    if smallest < alpha:
        said += f", and Holm's correction over {pairs} pairs makes it up to {pairs * smallest:.3g}"
    return f"{said}, which does not reach {alpha:g}: at least {least} seeds a variant are needed."


def why_not(seeds_alone: Interval, both: Interval, holm_p: float, smallest_effect: float, alpha: float) -> list[str]:
    """What keeps a pair with enough seeds from a verdict, in plain words."""
    reasons = []
    sides = [decides(interval, smallest_effect) for interval in (seeds_alone, both)]
    if sides[0] != sides[1]:
        reasons.append(f"The two analyses disagree: over seeds {sides[0]}, over seeds and items {sides[1]}.")
    elif sides[0] == "undecided":
        reasons.append("Both intervals leave it open.")
    else:
        if holm_p >= alpha:
            reasons.append(f"Both intervals lie on one side of 0, but Holm's p of {holm_p:.3g} is not under {alpha:g}.")
        if abs(seeds_alone.mean) < smallest_effect - EQUAL:
            reasons.append(
                "There is a difference, but the mean is below the smallest effect of interest and larger ones "
                "are not excluded."
            )
    return reasons


def decides(interval: Interval, smallest_effect: float) -> str:
    """What one interval says by itself."""
    if interval.inside(smallest_effect):
        return "no difference that matters"
    if interval.above(0):
        return "a difference for the claim"
    if interval.below(0):
        return "a difference against the claim"
    return "undecided"


def sentence(pair: Pair, verdict: str, found: Interval, smallest_effect: float, reasons: list[str]) -> str:
    """The verdict in plain words."""
    size = f"{abs(found.mean):.4f} in {pair.metric.replace('_', ' ')} over {found.n} seed{'s' if found.n > 1 else ''}"
    if verdict == HOLDS:
        return f"{pair.better} is better than {pair.worse} by {size}."
    if verdict == FAILS:
        return f"The claim fails: {pair.worse} is better than {pair.better} by {size}."
    if verdict == NONE:
        return f"{pair.better} and {pair.worse} differ by less than {smallest_effect:g} either way ({size})."
    shown = round(found.mean, 4)
    direction = "better than" if shown > 0 else "worse than" if shown < 0 else "level with"
    start = f"{pair.better} is {direction} {pair.worse} by {size}, which decides nothing."
    if shown == 0:
        start = f"{pair.better} is {direction} {pair.worse} over {found.n} seeds, which decides nothing."
    return " ".join([start, *reasons])
