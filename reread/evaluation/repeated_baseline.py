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
        metrics = {split: mean_of([fit.metrics[split] for fit in each]) for split in each[0].metrics}
        return cls(**summary_of(each), metrics=metrics, probabilities=each[0].probabilities, by_seed=dict(by_seed))


def seeds_of(baseline: Baseline) -> dict[int | None, Baseline]:
    """Return a baseline by seed; under None one that was fitted once."""
    return dict(baseline.by_seed.items()) if isinstance(baseline, RepeatedBaseline) else {None: baseline}


def summary_of(fits: Sequence[Baseline]) -> dict[str, Any]:
    """Return title, mean grid, the C that was chosen most often, and median temperature and weights of several fits."""
    strengths = dict.fromkeys(strength for fit in fits for strength in fit.grid)
    scores = {name: [score for fit in fits if (score := fit.grid.get(name)) is not None] for name in strengths}
    temperatures = [fit.temperature for fit in fits if fit.temperature is not None]
    return {
        "name": fits[0].name,
        "grid": {name: fmean(values) if values else None for name, values in scores.items()},
        "chosen": Counter(fit.chosen for fit in fits).most_common(1)[0][0],
        "temperature": median(temperatures) if temperatures else None,
        "parameters": median_low([fit.parameters for fit in fits]),
    }


def mean_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of the first seed with the mean over seeds of each that is a share or another real number."""
    first = dict(measured[0])
    for name, value in first.items():
        if isinstance(value, float):
            values = [metrics[name] for metrics in measured]
            first[name] = None if None in values else fmean(values)
    return first
