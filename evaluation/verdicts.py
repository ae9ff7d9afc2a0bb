"""From the statistics of a comparison to a verdict: supported, refuted, equivalent, or inconclusive."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import kinds
from evaluation.bootstrap import TwoWay
from evaluation.metric_names import metric_words
from evaluation.power import seeds_needed
from evaluation.seeds import least_seeds
from evaluation.statistics import (
    EQUAL,
    Interval,
    equivalence_p,
    finite,
    holm,
    paired_interval,
    sign_flip_p,
)

SUPPORTED, REFUTED, EQUIVALENT, INCONCLUSIVE = "supported", "refuted", "equivalent", "inconclusive"

RULE = """\
The experiment names its comparisons, their metric, the equivalence margin and alpha before it runs.
A difference is the metric of the treatment minus that of the control, for the same seed on the same test items. For a
loss or an error, where less is better, it is negated. A positive difference favours the claim.
A baseline has no seeds: its one figure is compared with each seed of the network, on the same test items.
A published figure (reference) is compared with each seed as well. It is taken as exact: its own spread is not known.

Two analyses must agree, so the larger of their two p values counts. Over seeds: the sign-flip test, exact up to 20
seeds, and the interval that inverts it. Over seeds and items: Student's test with the variance between seeds and the
variance that a bootstrap of test items finds (groups of items are drawn together where the data have groups).
There are two families of tests. The first asks for a difference from 0, two-sided. The second asks for equivalence by
two one-sided tests (TOST; Schuirmann 1987) against the margin. Holm's correction covers all comparisons in each family.
- supported: the corrected p of a difference is below alpha, and the mean difference is at least the margin.
- refuted: the corrected p of a difference is below alpha, and the mean difference is at most minus the margin.
- equivalent: the corrected p of equivalence is below alpha: the difference is smaller than the margin either way.
- inconclusive: anything else. The report says how many seeds this spread would need.

The two families do not share alpha. In one comparison their null hypotheses (no difference; a difference of at least
the margin) cannot both be true, so at most one of them can be rejected wrongly (Goeman, Solari and Stijnen 2010,
"Three-sided hypothesis testing", Statistics in Medicine 29). The chance of any wrong direction in an experiment is at
most alpha, and so is the chance of any wrong equivalence. docs/verdicts.md has both rates by simulation.

The smallest p of n seeds is 2^(1-n) for a difference and 2^-n for equivalence, and Holm's correction multiplies it by
the number of comparisons: one comparison at 0.05 needs 6 seeds for a direction and 5 for equivalence.
The printed intervals are of 1 - alpha and are not corrected for the number of comparisons.
A variant that scores exactly 1 on every seed is suspiciously perfect. Its comparison is inconclusive until a leak of
labels has been ruled out.
Where the test split had been read before with other settings, the verdict says how often.
A caution stands beside the verdict where half of a side's seeds were still learning when they ended, or where a side
has a setting at the edge of what its tuning tried. An experiment may withhold the verdict then: it is inconclusive."""


@dataclass(frozen=True)
class Comparison:
    """A comparison named before the experiment runs: the claim, its source, two variants and a metric.

    One side may be a baseline of the same data, by its name in kinds.baselines(). reference: a published figure of the
    metric in place of a control; ``control`` is then its title. equivalence_margin: None for the experiment's.
    """

    name: str
    claim: str
    source: str
    treatment: str
    control: str
    metric: str
    equivalence_margin: float | None = None
    reference: float | None = None

    @property
    def networks(self) -> list[str]:
        """The sides that are variants."""
        sides = [self.treatment] if self.reference is not None else [self.treatment, self.control]
        return [name for name in sides if name != self.baseline]

    @property
    def baseline(self) -> str | None:
        """The side that is a baseline, or None."""
        return next((name for name in (self.treatment, self.control) if name in kinds.baselines()), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields; ``reference`` only where there is one."""
        return {name: value for name, value in asdict(self).items() if name != "reference" or value is not None}


@dataclass(frozen=True)
class Measured:
    """The measurements of a comparison: the paired difference of each seed, and the analysis over seeds and items.

    flags: why there is no verdict, whatever the statistics are. cautions: what a reader of the verdict should know.
    earlier_reads: how often the test split had been read before with other settings.
    """

    seeds: Sequence[int]
    differences: Sequence[float]
    two_way: TwoWay
    flags: Sequence[str] = ()
    cautions: Sequence[str] = ()
    earlier_reads: int = 0


@dataclass(frozen=True)
class Verdict:
    """The verdict of one comparison with its evidence. Fields are None where nothing could be measured.

    p, p_items: of a difference, over seeds and over seeds and items; holm_p: the larger, corrected. equivalence_p: the
    larger p of equivalence of both analyses; holm_equivalence_p: corrected.
    """

    comparison: Comparison
    verdict: str
    sentence: str
    equivalence_margin: float
    alpha: float
    seeds: list[int]
    differences: list[float]
    least_seeds: int
    over_seeds: Interval | None = None
    over_seeds_and_items: Interval | None = None
    item_deviation: float | None = None
    resamples: int | None = None
    p: float | None = None
    p_items: float | None = None
    holm_p: float | None = None
    equivalence_p: float | None = None
    holm_equivalence_p: float | None = None
    seeds_needed: int | None = None
    flags: list[str] = field(default_factory=list)
    earlier_reads: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values, with the comparison's fields beside its own."""
        values = asdict(self)
        del values["comparison"]
        return {**self.comparison.as_dict(), "baseline": self.comparison.baseline, **values}


@dataclass(frozen=True)
class _PValues:
    """The p values of one comparison; all 1 where it was not measured, so that it still counts in the correction."""

    seeds: float = 1.0
    items: float = 1.0
    difference: float = 1.0
    equivalence: float = 1.0
    holm_difference: float = 1.0
    holm_equivalence: float = 1.0


def judge(
    comparisons: Sequence[Comparison],
    measured: Sequence[Measured | None],
    equivalence_margin: float,
    alpha: float = 0.05,
) -> list[Verdict]:
    """Return the verdicts of all comparisons of an experiment by RULE; None is a comparison that was not run.

    All are judged at once because Holm's correction covers all of them: one that was not run counts with p = 1.
    """
    margins = [one.equivalence_margin or equivalence_margin for one in comparisons]
    values = [_p_values(found, margin) for found, margin in zip(measured, margins, strict=True)]
    of_difference = holm([one.difference for one in values])
    of_equivalence = holm([one.equivalence for one in values])
    values = [
        replace(one, holm_difference=first, holm_equivalence=second)
        for one, first, second in zip(values, of_difference, of_equivalence, strict=True)
    ]
    return [
        judge_comparison(comparison, found, p, len(comparisons), margin, alpha)
        for comparison, found, p, margin in zip(comparisons, measured, values, margins, strict=True)
    ]


def _p_values(measured: Measured | None, margin: float) -> _PValues:
    if measured is None:
        return _PValues()
    over_seeds, over_items = sign_flip_p(measured.differences), measured.two_way.p()
    equivalence = max(equivalence_p(measured.differences, margin), measured.two_way.equivalence_p(margin))
    return _PValues(over_seeds, over_items, max(over_seeds, over_items), equivalence)


def judge_comparison(
    comparison: Comparison, measured: Measured | None, p: _PValues, comparisons: int, margin: float, alpha: float
) -> Verdict:
    """Return the verdict of one comparison from its measurements and its p values, corrected over ``comparisons``."""
    least = least_seeds(alpha, comparisons)
    if measured is None:
        names = comparison.networks
        lack = "has no finished seed" if len(names) == 1 else "have no finished seed in common"
        text = f"Not measured: {' and '.join(names)} {lack}."
        return Verdict(comparison, INCONCLUSIVE, text, margin, alpha, [], [], least)
    differences = finite(measured.differences)
    over_seeds, over_items = paired_interval(differences, 1 - alpha), measured.two_way.interval
    mean = over_seeds.mean
    verdict, reasons, needed = INCONCLUSIVE, list(measured.flags), None
    if measured.flags:
        pass
    elif p.holm_difference < alpha and abs(mean) >= margin - EQUAL:
        verdict = SUPPORTED if mean > 0 else REFUTED
    elif p.holm_equivalence < alpha:
        verdict = EQUIVALENT
    else:
        needed, sentence_of_seeds = _seeds_needed(differences, measured.two_way, p, comparisons, margin, alpha)
        if len(differences) < least:
            reasons.append(too_few(len(differences), least, comparisons, alpha))
        else:
            reasons.extend(why_not(mean, p, margin, alpha))
        reasons.append(sentence_of_seeds)
    return Verdict(
        comparison=comparison,
        verdict=verdict,
        sentence=sentence(comparison, verdict, over_seeds, margin, reasons, measured),
        equivalence_margin=margin,
        alpha=alpha,
        seeds=list(measured.seeds),
        differences=differences.tolist(),
        least_seeds=least,
        over_seeds=over_seeds,
        over_seeds_and_items=over_items,
        item_deviation=measured.two_way.item_deviation,
        resamples=measured.two_way.resamples,
        p=p.seeds,
        p_items=p.items,
        holm_p=p.holm_difference,
        equivalence_p=p.equivalence,
        holm_equivalence_p=p.holm_equivalence,
        seeds_needed=needed,
        flags=list(measured.flags),
        earlier_reads=measured.earlier_reads,
    )


def _seeds_needed(
    differences: Any, two_way: TwoWay, p: _PValues, comparisons: int, margin: float, alpha: float
) -> tuple[int | None, str]:
    """Return the seeds that this mean and spread need, at what Holm's correction left of alpha."""
    if len(differences) < 2:
        return None, "One difference has no spread: run at least two seeds to learn how many are needed."
    levels = (alpha * p.difference / p.holm_difference, alpha * p.equivalence / p.holm_equivalence)
    least = (least_seeds(alpha, comparisons), least_seeds(alpha, comparisons, sides=1))
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    return seeds_needed(mean, spread, two_way.item_deviation, margin, levels, least, len(differences))


def too_few(seeds: int, least: int, comparisons: int, alpha: float) -> str:
    """Return why so few seeds cannot show a difference: the smallest p that they can give."""
    smallest = 2.0 ** (1 - seeds)
    text = f"With {seeds} seed{'s' if seeds != 1 else ''} no p can be below {smallest:.3g}"
    if smallest < alpha:
        text += f", which Holm's correction over {comparisons} comparisons raises to {comparisons * smallest:.3g}"
    return f"{text}: a direction needs at least {least} seeds per variant to reach {alpha:g}."


def why_not(mean: float, p: _PValues, margin: float, alpha: float) -> list[str]:
    """Return what keeps a comparison of enough seeds from a verdict."""
    equivalence = f"equivalence is not shown either (corrected p {p.holm_equivalence:.3g})"
    if p.holm_difference < alpha:
        return [f"There is a difference, but its mean is below the margin of {margin:g}, and {equivalence}."]
    if (p.seeds < alpha) != (p.items < alpha):
        return [
            f"The two analyses disagree on a difference: p is {p.seeds:.3g} over seeds and {p.items:.3g} over seeds "
            "and items."
        ]
    if p.difference < alpha:
        return [f"The p of a difference is {p.difference:.3g}, but {p.holm_difference:.3g} after Holm's correction."]
    return [f"The corrected p of a difference is {p.holm_difference:.3g}, and {equivalence}."]


def sentence(
    comparison: Comparison, verdict: str, found: Interval, margin: float, reasons: list[str], measured: Measured
) -> str:
    """Return the verdict in words, with the cautions that stand beside it."""
    treatment, control = comparison.treatment, comparison.control
    size = f"{abs(found.mean):.4f} in {metric_words(comparison.metric)} over {found.n} seed"
    size += "s" if found.n > 1 else ""
    if verdict == SUPPORTED:
        text = f"{treatment} is better than {control} by {size}."
    elif verdict == REFUTED:
        text = f"The claim is refuted: {control} is better than {treatment} by {size}."
    elif verdict == EQUIVALENT:
        text = f"{treatment} and {control} differ by less than {margin:g} either way ({size})."
    else:
        shown = round(found.mean, 4)
        direction = f"{'better' if shown > 0 else 'worse'} than {control} by {size}"
        if shown == 0:
            direction = f"level with {control} over {found.n} seeds"
        text = " ".join([f"{treatment} is {direction}, which is inconclusive.", *reasons])
    notes = [f"Caution: {line}" for line in measured.cautions]
    if measured.earlier_reads:
        notes.append(read_before(measured.earlier_reads))
    return " ".join([text, *notes])


def read_before(earlier_reads: int) -> str:
    """Return the mark of a verdict whose test split was read before with other settings."""
    times = "once" if earlier_reads == 1 else f"{earlier_reads} times"
    return f"The test split had been read before with other settings: {times}."
