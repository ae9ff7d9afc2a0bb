"""metrics.json of an experiment: for each variant the mean over seeds with its interval, and the best seed.

The champion of a data set is the variant with the best mean score on the validation split, and a variant's best seed is
its best there. Neither reads the test split.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reread.evaluation.baselines import Baseline
from reread.evaluation.folds import Repetition
from reread.evaluation.records import RunRecord
from reread.evaluation.repeated_baseline import RepeatedBaseline
from reread.evaluation.trials import best_baseline, best_variant, tuned
from reread.goals import bounds, goal
from reread.verdicts.statistics import mean_interval, rounded

HIGH_RATE = 0.25


def summarise(
    experiment: Mapping[str, Any],
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    splits: Sequence[str],
    repeated: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Return the nested values of metrics.json, which ``dvc metrics diff`` reads: variants, baselines, champions.

    An experiment with a grid has ``tuned`` as well, one with ``repeated`` test rows ``without_repeated``, and one
    of which seeds are missing ``so_far``. One that is cross-validated has ``folds``: its splits are of all rows.
    """
    variants = {}
    for name in experiment["variants"]:
        runs = sorted((record for record in records if record.variant == name), key=lambda record: record.seed)
        if runs:
            variants[name] = summarise_variant(experiment["variants"][name], runs, splits, experiment.get("metric"))
    tasks = {record.data: record.description["task"] for record in records}
    choice = {"tuned": tuned(experiment["trials"], variants)} if experiment.get("trials") else {}
    again = without_repeated(records, baselines, repeated or {})
    return rounded(
        {
            "experiment": experiment["name"],
            "evaluated_on": splits[-1],
            **({"folds": experiment["folds"]} if experiment.get("folds") else {}),
            "variants": variants,
            "baselines": {
                data: {name: summarise_baseline(baseline, splits, tasks[data]) for name, baseline in of_data.items()}
                for data, of_data in sorted(baselines.items())
            },
            "champions": champions(variants),
            **choice,
            **({"without_repeated": again} if again else {}),
            **({"so_far": missing} if (missing := so_far(experiment, records)) else {}),
        }
    )


def so_far(experiment: Mapping[str, Any], records: Sequence[RunRecord]) -> dict[str, str]:
    """Return the variants of which seeds are missing, with how many there are: "5 of 6 seeds"."""
    counts = Counter(record.variant for record in records)
    planned = len(experiment.get("seeds", ()))
    return {name: f"{counts[name]} of {planned} seeds" for name in experiment["variants"] if counts[name] < planned}


def summarise_variant(
    variant: Mapping[str, Any], records: list[RunRecord], splits: Sequence[str], metric: str | None = None
) -> dict[str, Any]:
    """Summarise one variant over its seeds (``records``, in order of seed).

    metric: its score, by which trials, seeds and champions are chosen; None for the first of the task.
    """
    task = records[0].description["task"]
    names = goal(task).names
    seeds, splits_by_seed = {}, {}
    for record in records:
        measured = record.metrics(splits)
        splits_by_seed[record.seed] = measured
        result = record.result
        seeds[str(record.seed)] = {
            "run_key": result["run_key"],
            **({"folds": result["folds"]} if "folds" in result else {}),
            "epochs": result["epochs"],
            "best_epoch": result["best_epoch"],
            "ended": ended(result),
            **{
                split: {**{name: measured[split][name] for name in names}, **counts(measured[split])}
                for split in splits
            },
        }
    score = metric or names[0]
    last = [seed[splits[-1]][score] for seed in seeds.values()]
    summary = {
        "model": variant["model"],
        "data": records[0].data,
        "task": task,
        "score": score,
        "n": len(records),
        "parameters": records[0].result["parameters"],
        "still_improving_seeds": [record.seed for record in records if was_still_improving(record)],
        "suspiciously_perfect": all(value == 1.0 for value in last),
        "best_seed": best_seed(seeds, score),
        "absent_classes": {split: splits_by_seed[records[0].seed][split].get("absent_classes", []) for split in splits},
        "seeds": seeds,
    }
    for split in splits:
        summary[split] = {name: over_seeds([seed[split][name] for seed in seeds.values()], name) for name in names}
        if task == "multi-label":
            by_class = [measured[split]["auroc"] for measured in splits_by_seed.values()]
            summary[split]["auroc"] = {
                name: over_seeds([scores[name] for scores in by_class], "auroc") for name in by_class[0]
            }
    return summary


def counts(measured: Mapping[str, Any]) -> dict[str, int]:
    """Return how many ``rows`` a split has and, where a metric counts rows that are ``right``, how many are.

    Rounded numbers that are equal need not come from equal counts; these do not round.
    """
    share = measured.get("accuracy", measured.get("exact_match"))
    return {"rows": measured["rows"]} | ({} if share is None else {"right": round(share * measured["rows"])})


def ended(result: Mapping[str, Any]) -> str:
    """Return how a run ended: by patience, or after all the epochs of its schedule."""
    return "stopped early" if result["stopped"] == "patience" else "schedule completed"


def was_still_improving(record: RunRecord) -> bool:
    """Return whether a run ended at its best epoch while its rate was still high: more epochs might have helped.

    A rate is high above a quarter of the run's highest. A schedule that decays is designed to end at its best epoch,
    which says nothing: of that only a longer schedule tells whether it was long enough. Of a repetition: half its runs.
    """
    if isinstance(record, Repetition):
        each = [was_still_improving(fold) for fold in record.folds]
        return 2 * sum(each) >= len(each)
    result = record.result
    if result["stopped"] == "patience" or result["best_epoch"] < result["epochs"]:
        return False
    rates = record.history()["learning_rate"]
    return bool(rates.iloc[-1] > HIGH_RATE * rates.max())


def over_seeds(values: Sequence[float | None], metric: str) -> dict[str, float | None]:
    """Return mean, low and high (95 % t interval, within the metric's bounds) and standard deviation over seeds.

    None where a value is undefined.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "low": None, "high": None, "deviation": None}
    interval = mean_interval(known, bounds=bounds(metric))
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "deviation": deviation}


def best_seed(seeds: Mapping[str, Mapping[str, Any]], score: str) -> int:
    """Return the seed with the highest validation score; equal ones: the lower validation loss, then the lower seed."""

    def rank(number: str) -> tuple[float, float, int]:
        validation = seeds[number]["validation"]
        return (-np.inf if validation[score] is None else validation[score], -validation.get("loss", 0.0), -int(number))

    return int(max(seeds, key=rank))


def summarise_baseline(baseline: Baseline, splits: Sequence[str], task: str) -> dict[str, Any]:
    """Summarise a baseline: the same metrics as a variant's, one fit and no seeds; of cross-validation the means over
    seeds, and under ``seeds`` the metrics of each."""
    by_seed = baseline.by_seed if isinstance(baseline, RepeatedBaseline) else {}
    seeds = {str(seed): measured_of(fit, splits, task) for seed, fit in by_seed.items()}
    return {
        "name": baseline.name,
        "parameters": baseline.parameters,
        "chosen": baseline.chosen,
        "temperature": baseline.temperature,
        "grid": baseline.grid,
        **measured_of(baseline, splits, task),
        **({"seeds": seeds} if seeds else {}),
    }


def measured_of(baseline: Baseline, splits: Sequence[str], task: str) -> dict[str, dict[str, Any]]:
    """Return the metrics of a baseline and its counts of rows, by split."""
    return {
        split: {name: measured[name] for name in goal(task).names} | counts(measured)
        for split in splits
        if (measured := baseline.metrics[split])
    }


def champions(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each data set the variant with the best mean validation score."""
    chosen = {}
    for data in sorted({variant["data"] for variant in variants.values()}):
        name = best_variant([name for name, variant in variants.items() if variant["data"] == data], variants)
        variant = variants[name]
        chosen[data] = {
            "variant": name,
            "metric": variant["score"],
            "mean": variant["validation"][variant["score"]]["mean"],
            "seed": variant["best_seed"],
            "run_key": variant["seeds"][str(variant["best_seed"])]["run_key"],
        }
    return chosen


def champion_of(data: str, metrics: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the champion of a data set and its validation score: a variant, or a baseline that is better than all.

    metrics: metrics.json, whose order does not count: a baseline as good as the best variant is not the champion, and
    of two equal baselines ``best_baseline`` is. A baseline is named by its key, as in ``metrics["baselines"]``.
    """
    best = metrics["champions"][data]
    name, mean = best["variant"], best["mean"]
    if baselines := metrics["baselines"].get(data):
        key = best_baseline(baselines, best["metric"])
        value = baselines[key]["validation"][best["metric"]]
        if value is not None and (mean is None or value > mean):
            return key, value
    return name, mean


def without_repeated(
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    repeated: Mapping[str, np.ndarray],
) -> dict[str, dict[str, Any]]:
    """Return for each data set the scores on the test rows that occur in no other split.

    repeated: bool [m] for each data set; one without repeated rows has no entry.
    """
    by_data = {}
    for data, rows in repeated.items():
        of_data = [record for record in records if record.data == data]
        if (
            not rows.any()
            or not of_data
            or not all(record.measures("test", goal(record.description["task"]).names[0]) for record in of_data)
        ):
            continue
        metric = goal(of_data[0].description["task"]).metrics[0]
        kept = ~rows
        labels = of_data[0].labels("test")[kept]
        by_variant: dict[str, list[float | None]] = {}
        for record in of_data:
            by_variant.setdefault(record.variant, []).append(metric.value(record.probabilities("test")[kept], labels))
        by_data[data] = {
            "metric": metric.name,
            "rows_left_out": int(rows.sum()),
            "variants": {name: over_seeds(values, metric.name) for name, values in by_variant.items()},
            "baselines": {
                name: metric.value(baseline.probabilities["test"][kept], labels)
                for name, baseline in baselines.get(data, {}).items()
            },
        }
    return by_data
