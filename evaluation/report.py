"""reports/EXPERIMENT/: what an experiment found, from result files alone.

metrics.json, verdicts.json and the CSV files are equal byte for byte between two evaluations of the same runs.
latency.json, the pages (which show times and the environment) and what is drawn from them are not.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from evaluation import pictures, tables
from evaluation.attention import has_attention, write_attention_page
from evaluation.baselines import Baseline
from evaluation.bootstrap import two_way
from evaluation.metrics import HIGHER_IS_BETTER, TITLES, metric_names
from evaluation.page import render
from evaluation.records import RunRecord
from evaluation.statistics import finite
from evaluation.summary import rounded, summarise
from evaluation.verdicts import RULE, Measured, Pair, Verdict, judge
from storage.errors import InputError, refuse_unknown
from storage.files import published_directory, write_json, write_text
from storage.prepared import open_prepared


def evaluate_experiment(
    experiment: Mapping[str, Any],
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    destination: Path,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    repeated: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Judge the pairs of an experiment, write its report to ``destination`` (replaced whole), and return what it says.

    experiment: the plan (name, title, variants, seeds, comparisons, equivalence_margin, alpha, evaluate_on, tuning).
    baselines: by data set and name. command and environment: how it was run, for the report alone.
    repeated: by data set which test rows, bool [m], stand in another split too.
    Returns {"metrics": metrics.json, "verdicts": [...], "files": [paths]}.

    With ``evaluate_on: validation`` (an experiment that tunes) the test split is not read.
    """
    experiment = {"name": Path(destination).name, "title": "", "tuning": {}, "alpha": 0.05, **experiment}
    if not records:
        raise InputError(f"experiment '{experiment['name']}' has no finished run to evaluate: train it first")
    refuse_unknown({record.variant for record in records}, experiment["variants"], "the runs to evaluate")
    split = experiment.get("evaluate_on", "test")
    if split not in ("validation", "test"):
        raise InputError(f"experiment '{experiment['name']}': evaluate_on is '{split}': say test or validation")
    splits = ["validation"] if split == "validation" else ["validation", "test"]
    order = list(experiment["variants"])
    records = sorted(records, key=lambda record: (order.index(record.variant), record.seed))
    refuse_twice(records)

    metrics = summarise(experiment, records, baselines, splits, repeated)
    verdicts = judge_experiment(experiment, records, baselines, split)
    said = rounded([verdict.as_dict() for verdict in verdicts])
    times = latencies(records)
    with published_directory(Path(destination), replace=True) as working:
        write_json(working / "metrics.json", metrics)
        write_json(
            working / "verdicts.json", {"experiment": experiment["name"], "evaluated_on": split, "verdicts": said}
        )
        write_json(working / "latency.json", times)
        # Of a grid's many trials, the chosen ones are drawn; the tables have all.
        shown_variants = {one["chosen"] for one in metrics.get("tuned", {}).values()} or set(metrics["variants"])
        drawn = write_tables_and_pictures(records, verdicts, split, shown_variants, working)
        shown = write_attention(metrics, records, split, working)
        page = render(
            "report.html",
            experiment=experiment,
            metrics=metrics,
            verdicts=said,
            split=split,
            sets=[about_data(data, metrics, records) for data in dict.fromkeys(one.data for one in records)],
            settings=settings_table(records),
            times=times,
            pictures=drawn,
            folder=working,
            attention=shown,
            titles=TITLES,
            higher=HIGHER_IS_BETTER,
            rule=RULE,
            command=command,
            environment=dict(environment or {}),
        )
        write_text(working / "report.html", page)
        names = sorted(path.name for path in working.iterdir())
    return {"metrics": metrics, "verdicts": said, "files": [str(Path(destination) / name) for name in names]}


def judge_experiment(
    experiment: Mapping[str, Any],
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
) -> list[Verdict]:
    """The verdicts of the experiment's primary pairs on ``split``."""
    pairs = [
        Pair(one["name"], one["claim"], one["source"], one["treatment"], one["control"], one["metric"])
        for one in experiment.get("comparisons", ())
    ]
    if not pairs:
        return []
    measured = [measure(pair, records, baselines, split, experiment["alpha"]) for pair in pairs]
    return judge(pairs, measured, experiment["equivalence_margin"], experiment["alpha"])


@dataclass(frozen=True)
class Side:
    """One side of a pair, a value a seed: the metric (None where undefined) and probabilities float32 [m, K]."""

    name: str
    scores: list[float | None]
    probabilities: list[np.ndarray]


def measure(
    pair: Pair,
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
    alpha: float,
) -> Measured | None:
    """The paired differences of a pair over the seeds that both variants have, or None where they have none.

    A baseline stands beside every seed of the other side with its one figure.
    """
    sides = [{one.seed: one for one in records if one.variant == name} for name in (pair.better, pair.worse)]
    networks = [side for side, name in zip(sides, (pair.better, pair.worse), strict=True) if name != pair.baseline]
    seeds = sorted(set.intersection(*(set(side) for side in networks)))
    if not seeds:
        return None
    first = networks[0][seeds[0]]
    labels, task = first.labels(split), first.description["task"]
    for other in (side[seeds[0]] for side in networks):
        if labels.tobytes() != other.labels(split).tobytes() or first.data != other.data:
            raise InputError(
                f"pair '{pair.name}': {pair.better} and {pair.worse} were not measured on the same {split} items: "
                "give both the same data set"
            )
    refuse_unknown([pair.metric], metric_names(task), f"the metric of pair '{pair.name}' on a {task} data set")

    def measured_side(name: str, runs: Mapping[int, RunRecord]) -> Side:
        if name != pair.baseline:
            scores = [runs[seed].metrics([split])[split][pair.metric] for seed in seeds]
            return Side(name, scores, [runs[seed].probabilities(split) for seed in seeds])
        there = baselines.get(first.data, {})
        refuse_unknown([name], there, f"pair '{pair.name}': the baselines of {first.data}")
        found = there[name]
        return Side(name, [found.metrics[split][pair.metric]] * len(seeds), [found.probabilities[split]] * len(seeds))

    better, worse = map(measured_side, (pair.better, pair.worse), sides)
    if None in better.scores + worse.scores:
        raise InputError(f"pair '{pair.name}': {pair.metric} is not defined on the {split} split, a class is missing")
    sign = 1 if HIGHER_IS_BETTER[pair.metric] else -1
    flags = [
        f"Suspiciously perfect: {side.name} scores exactly 1{'' if side.name == pair.baseline else ' on every seed'}. "
        "Rule out a leak of labels first."
        for side in (better, worse)
        if HIGHER_IS_BETTER[pair.metric] and all(value == 1.0 for value in side.scores)
    ]
    return Measured(
        seeds=seeds,
        differences=(sign * (finite(better.scores) - finite(worse.scores))).tolist(),
        two_way=two_way(better.probabilities, worse.probabilities, labels, task, pair.metric, confidence=1 - alpha),
        flags=flags,
    )


def write_tables_and_pictures(
    records: Sequence[RunRecord], verdicts: Sequence[Verdict], split: str, variants: Set[str], folder: Path
) -> dict[str, dict[str, str]]:
    """Write the CSV files, and a picture of ``variants`` in each for each data set; returns its file names by data set
    and kind."""
    kinds = {
        "curves": (tables.curves(records), pictures.learning_curves),
        "calibration": (tables.calibration(records, split), pictures.reliability),
        "confusion": (tables.confusion(records, split), pictures.confusion_matrices),
    }
    drawn: dict[str, dict[str, str]] = {}
    for kind, (table, draw) in kinds.items():
        tables.write_table(table, folder / f"{kind}.csv")
        for data, mine in table[table["variant"].isin(variants)].groupby("data", sort=False):
            name = f"{kind}-{data}.png"
            draw(mine, folder / name)
            drawn.setdefault(str(data), {})[kind] = name
    paired = tables.differences(verdicts)
    tables.write_table(paired, folder / "differences.csv")
    if len(paired):
        pictures.paired_differences(paired, folder / "differences.png")
    return drawn


def write_attention(metrics: Mapping[str, Any], records: Sequence[RunRecord], split: str, folder: Path) -> str | None:
    """The attention page of the first variant that has attention, at its best seed; returns the variant's name.

    The documents shown are of the test split, so that an experiment that may not read it has no such page.
    """
    if split != "test":
        return None
    for name, variant in metrics["variants"].items():
        best = next(one for one in records if one.variant == name and one.seed == variant["best_seed"])
        prepared = open_prepared(best.prepared_directory, verify=False)
        if has_attention(best.run_directory, prepared):
            title = f"What {name} attends to (seed {best.seed})"
            write_attention_page(best.run_directory, prepared, title, folder / "attention.html")
            return name
    return None


def about_data(data: str, metrics: Mapping[str, Any], records: Sequence[RunRecord]) -> dict[str, Any]:
    """What the report says of one data set: its variants' names, and prepared.json (version, splits, what was cut).

    ``lengths`` is the picture of the lengths of a text data set, or None.
    """
    record = next(one for one in records if one.data == data)
    description = record.description
    lengths = Path(record.prepared_directory) / "lengths.png"
    return {
        "name": data,
        "description": description,
        "lengths": lengths if lengths.is_file() else None,
        "metric_names": metric_names(description["task"]),
        "variants": [name for name, variant in metrics["variants"].items() if variant["data"] == data],
    }


def settings_table(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Every setting of network and training by name, with its value in each variant that has it."""
    table: dict[str, dict[str, Any]] = {}
    for record in records:
        job = record.job
        for group in ("network", "training"):
            for name, value in job.get(group, {}).items():
                table.setdefault(f"{group}.{name}", {})[record.variant] = value
    return dict(sorted(table.items()))


def latencies(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """By variant the median over seeds of the seconds a row and of training. Not the same twice."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(record.variant for record in records):
        mine = [record for record in records if record.variant == name]
        measured = [record.latency for record in mine]
        training = [seconds for record in mine if (seconds := record.training_seconds) is not None]
        found[name] = {
            "unit": measured[0]["unit"],
            "one_by_one": median([one["one_by_one"] for one in measured]),
            "in_one_batch": median([one["in_one_batch"] for one in measured]),
            "rows": measured[0]["rows"],
            "device": measured[0]["device"],
            "threads": measured[0]["threads"],
            "training": median(training) if training else None,
        }
    return found


def refuse_twice(records: Sequence[RunRecord]) -> None:
    seen = set()
    for record in records:
        if (record.variant, record.seed) in seen:
            raise InputError(f"{record.variant} with seed {record.seed} was given twice: evaluate each run once")
        seen.add((record.variant, record.seed))
