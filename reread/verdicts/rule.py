"""From scores to verdicts: supported, refuted, equivalent, different, or inconclusive."""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from reread.verdicts.items import Items, Student, of_seeds
from reread.verdicts.permutation import Permutation
from reread.verdicts.power import seeds_needed
from reread.verdicts.reads import NO_READS, EarlierReads
from reread.verdicts.seeds import least_seeds, smallest_p
from reread.verdicts.statistics import DIGITS, SignFlip, finite, is_skewed, levels, outlying, shift

VERSION = 3
SUPPORTED, REFUTED, EQUIVALENT, DIFFERENT, INCONCLUSIVE = WORDS = (
    "supported",
    "refuted",
    "equivalent",
    "different",
    "inconclusive",
)
NETWORKS, PAIRS, ONE_FIGURE = "two networks", "pairs", "one figure"
NO_ITEMS = Items()

RULE = """\
Rule of verdicts, version 3. The experiment names its comparisons, their metric, the margin and alpha before it runs.
A difference is the mean of the treatment's metric over its seeds less that of the control, on the same test items. For
a loss or an error, where less is better, it is negated. A positive difference favours the claim.

There are three kinds of comparison, each with a test over seeds and the interval that inverts it.
- two networks: two samples of seeds. Seeds of different networks are no pairs, and each side may have its own number.
The test is the studentised permutation test, by all splits up to 200,000 of them (10 and 10 seeds), else by 50,000.
- pairs: the same trained networks, read in two ways. The test is the sign-flip test of the differences.
- one figure: a baseline, which is fitted once, or a published figure. The test is the sign-flip test of each seed's
difference from it. It takes the figure as exact and the seeds as symmetric about their mean: it says nothing of another
fit of the baseline or another run of the paper, and where a network's seeds are skewed it errs more often than alpha.

A second analysis asks for other test items too. Its error is the sum of two: Student's t of the seeds, each side with
its own variance, and Student's t of the items, with the variance that a bootstrap finds (groups of items are drawn
together where the data have groups). Of each hypothesis the larger p of both analyses counts, and of the interval the
wider end.

One interval decides each comparison. It is of 1 - its level, and the level is what Holm's procedure leaves of alpha.
- supported: the interval lies wholly above the margin: a difference of at least the margin is shown.
- refuted: it lies wholly below minus the margin.
- equivalent: two one-sided tests (TOST; Schuirmann 1987) show a difference smaller than the margin either way; the
interval, here of 1 - 2 times its level, lies inside the margins.
- different: the interval excludes 0: a direction is shown, and whether the difference reaches the margin is not.
- inconclusive: anything else.

Holm's procedure covers all comparisons, once for direction and size, and once for equivalence. In the first, each
comparison tests 0 and then the margin at one level, alpha over the number of comparisons that have not yet shown the
margin: a comparison passes its share on only when it has shown both (the sequential rejection principle; Goeman and
Solari 2010, Annals of Statistics 38). So the chance of any wrong direction or of any 'supported' or 'refuted' whose
difference is below the margin is at most alpha in an experiment, and so is that of any wrong equivalence, where the
tests hold their level. For two networks with 4 to 12 seeds of each docs/verdicts.md shows by simulation that they do
where the scores are normal, have heavy tails, are skewed, fail now and then on both sides, or have a spread three times
as large on one side. They do not where one side fails now and then and the other does not.

The smallest p of n seeds is 2 / C(2n, n) for two networks and 2^(1-n) for pairs and one figure: one comparison at 0.05
needs 4 seeds of each of two networks, and 6 seeds against one figure. The verdict says so where there are too few.
A second look adds seeds to an experiment that declared it before (second_look). Each look has half of alpha.
A seed is far from its side's median where its modified z score exceeds 3.5 (Iglewicz and Hoaglin 1993) and it is away
by more than the margin. A side with such seeds, or one that is skewed (D'Agostino 1970, 1 %), is named in a caution,
and the Hodges-Lehmann estimate of the difference and the share of failing seeds stand beside the mean.
A variant that scores exactly 1 on every seed is suspiciously perfect. Its comparison is inconclusive until a leak of
labels has been ruled out.
Where the test split had been read before with other settings, the verdict says how often.
A caution stands beside the verdict where half of a side's seeds were still learning when they ended, or where a side
has a setting at the edge of what its tuning tried. An experiment may withhold the verdict then: it is inconclusive."""

# What an experiment with ``folds`` adds to RULE.
RULE_OF_FOLDS = """\
This experiment is cross-validated. A seed draws folds anew, and each fold is the test split of one run: its score is
the metric of the predictions of all its runs together, for each row once. A baseline is fitted on the same folds, and
is a sample of seeds as a network is. Seeds share their rows, so that their scores are no independent draws: in the
second analysis the variance of a side's mean is S^2 (1 / n + test / train), with all rows that a seed tests and those
that one of its networks trains on (Nadeau and Bengio 2003, Machine Learning 52). The items of the bootstrap are all
rows. The first analysis is of these rows alone. docs/verdicts.md shows by simulation that the rule errs less than alpha
says then."""


@dataclass(frozen=True)
class Comparison:
    """A comparison named before the experiment runs: the claim, its source, two variants and a metric.

    reference: a published figure of the metric in place of a control; ``control`` is then its title. baseline: the side
    that is a baseline of the same data (``named``). equivalence_margin: None for the experiment's. metric_words: the
    metric as a sentence has it, where that is not its name. higher_is_better: of the metric. ratio: the scores and the
    margin are natural logarithms, and sentences have factors. span: the largest difference that the metric can have, at
    which an interval ends; None where it has none, or is not known.
    """

    name: str
    claim: str
    source: str
    treatment: str
    control: str
    metric: str
    equivalence_margin: float | None = None
    reference: float | None = None
    baseline: str | None = None
    metric_words: str = ""
    higher_is_better: bool = True
    ratio: bool = False
    span: float | None = None

    @property
    def networks(self) -> list[str]:
        """The sides that are variants."""
        sides = [self.treatment] if self.reference is not None else [self.treatment, self.control]
        return [name for name in sides if name != self.baseline]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields; ``reference``, ``ratio`` and ``span`` only where the comparison has one."""
        left_out = {"reference": self.reference is None, "ratio": not self.ratio, "span": self.span is None}
        return {name: value for name, value in asdict(self).items() if not left_out.get(name)}


def perfect(name: str, scores: Sequence[float], of_seeds: bool = True) -> str:
    """Return the flag of a side whose scores are all exactly 1; "" of another. of_seeds: a baseline has one score."""
    if any(score != 1 for score in scores):
        return ""
    seeds = " on every seed" if of_seeds else ""
    return f"Suspiciously perfect: {name} scores exactly 1{seeds}. Rule out a leak of labels first."


def named(
    given: Mapping[str, Any],
    baselines: Collection[str],
    metric_words: str = "",
    higher_is_better: bool = True,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Comparison:
    """Return the comparison that a plan has as a mapping; baselines: the names of those that there are; bounds: the
    least and the largest value of the metric."""
    baseline = next((given[side] for side in ("treatment", "control") if given[side] in baselines), None)
    span = bounds[1] - bounds[0]
    return Comparison(
        **given,
        baseline=baseline,
        metric_words=metric_words,
        higher_is_better=higher_is_better,
        span=span if math.isfinite(span) else None,
    )


@dataclass(frozen=True)
class Side:
    """The metric of one side by seed, in the order of ``seeds``; a figure without seeds has one score and no seed."""

    scores: Sequence[float]
    seeds: Sequence[int] = ()

    def values(self) -> np.ndarray:
        """Return the scores as they are published, float64 [n]: verdicts from these are those from the runs."""
        return finite(self.scores).round(DIGITS)


@dataclass(frozen=True)
class Measured:
    """The measurements of a comparison.

    kind: NETWORKS, PAIRS (both sides have the same seeds in the same order) or ONE_FIGURE (one side has a single
    score). flags: why there is no verdict, whatever the statistics are. cautions: what a reader of the verdict should
    know. reads: how often the test split had been read before with other settings. test_to_train: of cross-validation,
    the rows that a seed tests over those that one of its networks trains on (``of_seeds``); 0 of a fixed split.
    """

    kind: str
    treatment: Side
    control: Side
    items: Items = NO_ITEMS
    flags: Sequence[str] = ()
    cautions: Sequence[str] = ()
    reads: EarlierReads = NO_READS
    test_to_train: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The verdict of one comparison with its evidence. Fields are None where nothing could be measured.

    mean: the difference. interval: its ends at ``interval_level``, the decision's: 1 - level, or of an equivalence
    1 - 2 equivalence_level; over_seeds and over_seeds_and_items: those of the two analyses, whose wider ends it has. An
    end is None where so few seeds have none. p, p_items: of a difference, by either analysis; margin_p: of a difference
    of at least the margin; equivalence_p: of one smaller. holm_*: times alpha over the level: below alpha where
    rejected. level, equivalence_level: what Holm's procedure leaves of alpha. look: which of the two looks that the
    experiment declared; None where it declared none. earlier_reads, other_version_reads, related_reads: as in
    reread.verdicts.reads. robust_mean: the Hodges-Lehmann estimate. failing: by side the seeds that are far worse than
    its median; ``outliers``: the caution of these and of skew. test_to_train: as in Measured; None of a fixed split.
    """

    comparison: Comparison
    verdict: str
    sentence: str
    equivalence_margin: float
    alpha: float
    kind: str
    least_seeds: int
    seeds: dict[str, list[int]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    mean: float | None = None
    interval: dict[str, float | None] | None = None
    interval_level: float | None = None
    over_seeds: dict[str, float | None] | None = None
    over_seeds_and_items: dict[str, float | None] | None = None
    method: str | None = None
    item_deviation: float | None = None
    item_units: int | None = None
    items: int | None = None
    resamples: int | None = None
    p: float | None = None
    p_items: float | None = None
    margin_p: float | None = None
    equivalence_p: float | None = None
    holm_p: float | None = None
    holm_margin_p: float | None = None
    holm_equivalence_p: float | None = None
    level: float | None = None
    equivalence_level: float | None = None
    seeds_needed: int | None = None
    robust_mean: float | None = None
    failing: dict[str, list[int]] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    outliers: list[str] = field(default_factory=list)
    earlier_reads: int = 0
    other_version_reads: int = 0
    related_reads: int | None = 0
    look: int | None = None
    test_to_train: float | None = None
    rule: int = VERSION

    @property
    def differences(self) -> dict[int, float]:
        """The difference of each seed: from its pair, from the one figure, or from the mean of the other side's seeds.

        The seeds are the treatment's, or the control's where the treatment is one figure.
        """
        sign = 1.0 if self.comparison.higher_is_better else -1.0
        first, second = (np.array(self.scores[side]) for side in ("treatment", "control"))
        side = "treatment" if self.seeds["treatment"] else "control"
        if self.kind != PAIRS:
            first, second = (first, second.mean()) if side == "treatment" else (first.mean(), second)
        return dict(zip(self.seeds[side], (sign * (first - second)).tolist(), strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values, with the comparison's fields beside its own; ``test_to_train`` only where
        it was cross-validated, ``span`` only where an interval ends there."""
        values = asdict(self)
        del values["comparison"]
        if self.test_to_train is None:
            del values["test_to_train"]
        comparison, intervals = self.comparison.as_dict(), (self.interval, self.over_seeds, self.over_seeds_and_items)
        ends = [abs(end) for each in intervals if each for end in (each["low"], each["high"]) if end is not None]
        if self.comparison.span not in ends:
            comparison.pop("span", None)
        return {**comparison, **values}


class Evidence:
    """The statistics of one comparison: both analyses, and the p values of the three hypotheses of its margin.

    p values are 1 where a verdict is withheld, so that the comparison leaves its share of alpha to no other. exact: the
    largest p that must be exact: where both p of the second analysis are larger, the test over seeds, which can only
    raise them, is left out. settings: of reread.verdicts.permutation.Permutation.
    """

    def __init__(
        self, comparison: Comparison, measured: Measured, margin: float, exact: float = 1.0, **settings: int
    ) -> None:
        sign = 1.0 if comparison.higher_is_better else -1.0
        first, second = sign * measured.treatment.values(), sign * measured.control.values()
        self.margin, self.exact, self.settings = margin, exact, settings
        self.span = math.inf if comparison.span is None else comparison.span
        self.parts = [first, second] if measured.kind == NETWORKS else [first - second]
        self.mean = float(first.mean() - second.mean()) if measured.kind == NETWORKS else float(self.parts[0].mean())
        of_both = [of_seeds(part, measured.test_to_train) for part in self.parts]
        self.over_items = Student(self.mean, of_both, measured.items)
        self.of_zero, self.of_low, self.of_high = (self.one_sided_p(bound) for bound in (0.0, -margin, margin))
        withheld = bool(measured.flags)
        self.p = self.two_sided(self.of_zero)
        # Of a difference that is at least the margin in either direction; 0 is tested before.
        self.margin_p = 1.0 if withheld else max(self.p, min(1.0, 2 * min(self.of_high[0], self.of_low[1])))
        self.equivalence_p = 1.0 if withheld else max(self.of_low[0], self.of_high[1])

    @functools.cached_property
    def over_seeds(self) -> Permutation | SignFlip:
        if len(self.parts) == 1:
            return SignFlip(self.parts[0])
        return Permutation(self.parts[0], self.parts[1], **self.settings)

    @property
    def tests(self) -> tuple[Permutation | SignFlip, Student]:
        return self.over_seeds, self.over_items

    @property
    def robust(self) -> float:
        """The Hodges-Lehmann estimate of the difference."""
        return shift(*self.parts)

    def one_sided_p(self, bound: float) -> tuple[float, float]:
        """Return the larger p of both analyses of "above ``bound``" and of "below ``bound``"."""
        over_items = self.over_items.one_sided_p(bound)
        if min(over_items) > self.exact:
            return over_items
        above, below = zip(over_items, self.over_seeds.one_sided_p(bound), strict=True)
        return max(above), max(below)

    @staticmethod
    def two_sided(p: tuple[float, float]) -> float:
        return min(1.0, 2 * min(p))

    def ends(self, level: float) -> list[tuple[float, float] | None]:
        """Return the interval of either analysis at 1 - ``level``, within the differences that the metric can have."""
        both = [test.ends(level, (-self.margin, 0.0, self.margin)) for test in self.tests]
        return [ends and (max(ends[0], -self.span), min(ends[1], self.span)) for ends in both]

    def word(self, level: float, equivalence_level: float) -> str:
        """Return the word at the levels that Holm's procedure leaves; flags are the caller's."""
        if self.margin_p < level:
            return SUPPORTED if self.mean > 0 else REFUTED
        if self.equivalence_p < equivalence_level:
            return EQUIVALENT
        return DIFFERENT if self.p < level else INCONCLUSIVE


def words(evidence: Sequence[Evidence | None], alpha: float) -> list[tuple[str, float, float]]:
    """Return of each comparison its word and its levels for direction and size and for equivalence.

    None: a comparison that was not measured; it counts with p = 1.
    """
    of_margin = levels([each.margin_p if each else 1.0 for each in evidence], alpha)
    of_equivalence = levels([each.equivalence_p if each else 1.0 for each in evidence], alpha)
    return [
        (each.word(first, second) if each else INCONCLUSIVE, first, second)
        for each, first, second in zip(evidence, of_margin, of_equivalence, strict=True)
    ]


def judge(
    comparisons: Sequence[Comparison],
    measured: Sequence[Measured | None],
    equivalence_margin: float,
    alpha: float = 0.05,
    look: int | None = None,
) -> list[Verdict]:
    """Return the verdicts of all comparisons of an experiment by RULE; None is a comparison that was not run.

    All are judged at once because Holm's procedure covers all of them. look: 1 or 2 where the experiment declared a
    second look, each of which has half of alpha.
    """
    margins = [comparison.equivalence_margin or equivalence_margin for comparison in comparisons]
    evidence = [
        Evidence(comparison, scores, margin) if scores else None
        for comparison, scores, margin in zip(comparisons, measured, margins, strict=True)
    ]
    spent = alpha if look is None else alpha / 2
    return [
        judge_comparison(comparison, scores, of_it, word, (first, second), len(comparisons), margin, alpha, look)
        for comparison, scores, of_it, (word, first, second), margin in zip(
            comparisons, measured, evidence, words(evidence, spent), margins, strict=True
        )
    ]


def judge_comparison(
    comparison: Comparison,
    measured: Measured | None,
    evidence: Evidence | None,
    word: str,
    level: tuple[float, float],
    comparisons: int,
    margin: float,
    alpha: float,
    look: int | None,
) -> Verdict:
    """Return the verdict of one comparison; level: for direction and size, and for equivalence."""
    kind = kind_of(comparison) if measured is None else measured.kind
    spent = alpha if look is None else alpha / 2
    least = least_seeds(spent, comparisons, one_figure=kind != NETWORKS)
    if measured is None or evidence is None:
        names = comparison.networks
        lack = "has no finished seed" if len(names) == 1 else "have not both a finished seed"
        text = f"Not measured: {' and '.join(names)} {lack}."
        return Verdict(comparison, INCONCLUSIVE, text, margin, alpha, kind, least, look=look)
    if measured.flags:
        word = INCONCLUSIVE
    at = 2 * level[1] if word == EQUIVALENT else level[0]
    both = evidence.ends(at)
    interval = widest(both)
    p, p_items = (evidence.two_sided(test.one_sided_p()) for test in evidence.tests)
    ratio, ratio_of_equivalence = alpha / level[0], alpha / level[1]
    raised = {
        "p": min(1.0, evidence.p * ratio),
        "equivalence": min(1.0, evidence.equivalence_p * ratio_of_equivalence),
    }
    failing, outlying = outliers(comparison, measured, evidence, margin)
    reasons, needed = list(measured.flags), None
    if word == INCONCLUSIVE and not measured.flags:
        needed, sentence_of_seeds = _seeds_needed(evidence, measured, level, least, margin)
        smallest = min(len(side.seeds) for side in (measured.treatment, measured.control) if side.seeds)
        if smallest < least:
            reasons.append(too_few(smallest, least, comparisons, spent, kind))
        else:
            reasons.extend(why_not(evidence, (p, p_items), raised, alpha, level[0]))
        reasons.append(sentence_of_seeds)
    return Verdict(
        comparison=comparison,
        verdict=word,
        sentence=sentence(
            comparison, word, evidence.mean, interval, margin, reasons, [*measured.cautions, *outlying], measured, look
        ),
        equivalence_margin=margin,
        alpha=alpha,
        kind=kind,
        least_seeds=least,
        seeds={"treatment": list(measured.treatment.seeds), "control": list(measured.control.seeds)},
        scores={"treatment": measured.treatment.values().tolist(), "control": measured.control.values().tolist()},
        mean=evidence.mean,
        interval=as_interval(evidence.mean, interval),
        interval_level=1 - at,
        over_seeds=as_interval(evidence.mean, both[0]),
        over_seeds_and_items=as_interval(evidence.mean, both[1]),
        method=method(measured),
        item_deviation=measured.items.deviation,
        item_units=measured.items.units,
        items=measured.items.count,
        resamples=measured.items.resamples,
        p=p,
        p_items=p_items,
        margin_p=evidence.margin_p,
        equivalence_p=evidence.equivalence_p,
        holm_p=raised["p"],
        holm_margin_p=min(1.0, evidence.margin_p * ratio),
        holm_equivalence_p=raised["equivalence"],
        level=level[0],
        equivalence_level=level[1],
        seeds_needed=needed,
        robust_mean=evidence.robust,
        failing=failing,
        flags=list(measured.flags),
        cautions=list(measured.cautions),
        outliers=outlying,
        earlier_reads=measured.reads.earlier,
        other_version_reads=measured.reads.other,
        related_reads=measured.reads.related,
        look=look,
        test_to_train=measured.test_to_train or None,
    )


def which_look(experiment: Mapping[str, Any]) -> int | None:
    """Return 1, or 2 once a plan has all seeds of its declared second look; None where it declared none."""
    planned = experiment.get("second_look")
    return None if planned is None else 2 if len(experiment["seeds"]) >= planned else 1


def kind_of(comparison: Comparison) -> str:
    """Return the kind of a comparison between variants, baselines and published figures."""
    return ONE_FIGURE if len(comparison.networks) == 1 else NETWORKS


def widest(both: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the wider ends of the intervals; None where one of them has none."""
    if any(ends is None for ends in both):
        return None
    low, high = zip(*(ends for ends in both if ends is not None), strict=True)
    return min(low), max(high)


def as_interval(mean: float, ends: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = (None, None) if ends is None else (end if math.isfinite(end) else None for end in ends)
    return {"mean": mean, "low": low, "high": high}


def method(measured: Measured) -> str:
    """Return how the interval of a comparison was computed."""
    first = "permutation test" if measured.kind == NETWORKS else "sign-flip test"
    if not measured.items.count:
        return f"the wider of the inverted {first} and Student's t"
    corrected = ", corrected for training rows that folds share" if measured.test_to_train else ""
    return f"the wider of the inverted {first} and Student's t over seeds and {measured.items.words()}{corrected}"


def outliers(
    comparison: Comparison, measured: Measured, evidence: Evidence, margin: float
) -> tuple[dict[str, list[int]], list[str]]:
    """Return by side the seeds that are far worse than its median, and a caution for each side that has outliers or is
    skewed."""
    failing, lines = {}, []
    worse, better = ("below", "above") if comparison.higher_is_better else ("above", "below")
    for name, title, side in (
        ("treatment", comparison.treatment, measured.treatment),
        ("control", comparison.control, measured.control),
    ):
        if not side.seeds:
            continue
        values = side.values() * (1 if comparison.higher_is_better else -1)
        far = outlying(values, margin)
        low = far & (values < np.median(values))
        failing[name] = [seed for seed, is_low in zip(side.seeds, low, strict=True) if is_low]
        n = len(values)
        for count, where in ((low.sum(), worse), ((far & ~low).sum(), better)):
            if count:
                lines.append(f"{count} of {n} seeds of {title} {'is' if count == 1 else 'are'} far {where} its median")
        if not far.any() and is_skewed(values):
            lines.append(f"the seeds of {title} are skewed")
    if lines:
        digits = digits_of(margin)
        ratio = f"ratio is {math.exp(evidence.robust):.{digits}f}"
        robust = ratio if comparison.ratio else f"difference is {evidence.robust:+.{digits}f}"
        estimate = f"The robust estimate of the {robust} (Hodges-Lehmann)."
        return failing, [f"{'; '.join(lines)}. {estimate}"]
    return failing, []


def _seeds_needed(
    evidence: Evidence, measured: Measured, level: tuple[float, float], least: int, margin: float
) -> tuple[int | None, str]:
    """Return the seeds of each side that a new experiment with this mean and these spreads would need."""
    if min(map(len, evidence.parts)) < 2:
        return None, "One seed has no spread: run at least two to learn how many are needed."
    variance = sum(float(part.var(ddof=1)) for part in evidence.parts)
    return seeds_needed(
        evidence.mean,
        math.sqrt(variance),
        # No number of seeds lowers what they share: their items and, of cross-validation, their training rows.
        math.sqrt(measured.items.deviation**2 + measured.test_to_train * variance),
        margin,
        level,
        least,
        len(evidence.parts),
        "rows" if measured.test_to_train else "test items",
    )


def too_few(seeds: int, least: int, comparisons: int, alpha: float, kind: str) -> str:
    """Return why so few seeds cannot show a difference: the smallest p that they can give."""
    smallest = min(1.0, 2 * smallest_p(seeds, kind != NETWORKS))
    text = f"With {seeds} seed{'s' if seeds != 1 else ''} no p can be below {smallest:.3g}"
    if smallest < alpha:
        text += f", and Holm's correction over {comparisons} comparisons leaves {alpha / comparisons:.3g} to the first"
    return f"{text}: a direction needs at least {least} seeds per variant to reach {alpha:g}."


def why_not(
    evidence: Evidence, p: tuple[float, float], raised: Mapping[str, float], alpha: float, level: float
) -> list[str]:
    """Return what keeps a comparison of enough seeds from a verdict."""
    if (p[0] < level) != (p[1] < level):
        return [
            f"The two analyses disagree on a difference: p is {p[0]:.3g} over seeds and {p[1]:.3g} over seeds and "
            "items."
        ]
    if evidence.p < alpha:
        return [f"The p of a difference is {evidence.p:.3g}, but {raised['p']:.3g} after Holm's correction."]
    return [
        f"The corrected p of a difference is {raised['p']:.3g}, and equivalence is not shown either "
        f"({raised['equivalence']:.3g})."
    ]


def sentence(
    comparison: Comparison,
    word: str,
    mean: float,
    interval: tuple[float, float] | None,
    margin: float,
    reasons: Sequence[str],
    cautions: Sequence[str],
    measured: Measured,
    look: int | None,
) -> str:
    """Return the verdict in words, with the cautions that stand beside it."""
    treatment, control = comparison.treatment, comparison.control
    counts = sorted({len(side.seeds) for side in (measured.treatment, measured.control) if side.seeds})
    over = f"over {' and '.join(map(str, counts))} seed{'s' if counts != [1] else ''}"
    turned = mean < 0 and word in (REFUTED, DIFFERENT, INCONCLUSIVE)
    level = "a factor of " if comparison.ratio else ""
    signed, digits = word == EQUIVALENT, digits_of(margin)
    size = _size(-mean if turned else mean, interval, turned, signed, digits, comparison.ratio)
    size = f"{level}{size} in {comparison.metric_words or comparison.metric} {over}"
    better = f"{control} is better than {treatment}" if turned else f"{treatment} is better than {control}"
    least = f"{level}{math.exp(margin) if comparison.ratio else margin:g}"
    if word == SUPPORTED:
        text = f"{better} by {size}: at least the margin of {least}."
    elif word == REFUTED:
        text = f"The claim is refuted: {better} by {size}, at least the margin of {least}."
    elif word == EQUIVALENT:
        text = f"{treatment} and {control} differ by less than {least} either way ({size})."
    elif word == DIFFERENT:
        text = f"{better} by {size}; whether by the margin of {least} is not shown."
    else:
        shown = round(mean, digits_of(margin))
        text = f"{better} by {size}" if shown else f"{treatment} is level with {control} ({size})"
        text = " ".join([f"{text}, which is inconclusive.", *reasons])
    notes = [f"Caution: {line}" for line in cautions]
    if measured.kind == ONE_FIGURE and word != INCONCLUSIVE:
        figure = control if measured.treatment.seeds else treatment
        notes.append(f"{figure} is one figure, taken as exact.")
    if measured.test_to_train:
        notes.append("Cross-validated: each seed's folds test every row once.")
    if look is not None:
        notes.append(f"This is look {look} of the 2 that were declared; each has half of alpha.")
    if measured.reads.sentence:
        notes.append(measured.reads.sentence)
    return " ".join([text, *notes])


def digits_of(margin: float) -> int:
    """Return how many digits after the point show a difference of the size of the margin: at least 4."""
    return max(4, math.floor(-math.log10(margin)) + 1)


def _size(
    mean: float, interval: tuple[float, float] | None, turned: bool, signed: bool, digits: int, ratio: bool
) -> str:
    """Return a difference with its interval; turned: the other side's, so that it is positive; ratio: a difference of
    logarithms, as the ratio that it is."""
    form = f"+.{digits}f" if signed and not ratio else f".{digits}f"

    def shown(value: float) -> str:
        return f"{math.exp(value) if ratio else value:{form}}"

    if interval is None:
        return shown(mean)
    low, high = (-interval[1], -interval[0]) if turned else interval
    return f"{shown(mean)} [{shown(low)}, {shown(high)}]"
