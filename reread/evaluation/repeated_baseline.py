"""A baseline that is fitted several times: of cross-validation, on each fold of each seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low
from typing import Any

from reread.evaluation.baselines import Baseline


@dataclass(frozen=True)
class RepeatedBaseline(Baseline):
    """A baseline that was fitted on the folds of every seed: its figures are means over them, its predictions the first
    seed's."""

    by_seed: Mapping[int, Baseline] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, by_seed: Mapping[int, Baseline]) -> "RepeatedBaseline":
        """Return the baseline of those of each seed."""
        each = list(by_seed.values())
        metrics = {split: mean_of([one.metrics[split] for one in each]) for split in each[0].metrics}
        return cls(**summary_of(each), metrics=metrics, probabilities=each[0].probabilities, by_seed=dict(by_seed))


def seeds_of(baseline: Baseline) -> dict[int | None, Baseline]:
    """Return a baseline by seed; under None one that was fitted once."""
    return dict(baseline.by_seed.items()) if isinstance(baseline, RepeatedBaseline) else {None: baseline}


def summary_of(fits: Sequence[Baseline]) -> dict[str, Any]:
    """Return title, mean grid, the C that was chosen most often, and median temperature and weights of several fits."""
    strengths = dict.fromkeys(strength for one in fits for strength in one.grid)
    scores = {name: [found for one in fits if (found := one.grid.get(name)) is not None] for name in strengths}
    temperatures = [one.temperature for one in fits if one.temperature is not None]
    return {
        "name": fits[0].name,
        "grid": {name: fmean(found) if found else None for name, found in scores.items()},
        "chosen": Counter(one.chosen for one in fits).most_common(1)[0][0],
        "temperature": median(temperatures) if temperatures else None,
        "parameters": median_low([one.parameters for one in fits]),
    }


def mean_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of the first seed with the mean over seeds of each that is a share or another real number."""
    first = dict(measured[0])
    for name, value in first.items():
        if isinstance(value, float):
            values = [one[name] for one in measured]
            first[name] = None if None in values else fmean(values)
    return first
