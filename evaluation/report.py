"""reports/EXPERIMENT/: the report of an experiment, from result files alone.

metrics.json, verdicts.json and the CSV files are equal byte for byte between two evaluations of the same runs.
latency.json and the pages, which show times and the environment, are not.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import kinds
from evaluation import pictures, tables
from evaluation.baselines import Baseline
from evaluation.bootstrap import two_way
from evaluation.by_class import write_class_figures
from evaluation.ledger import SplitRead, earlier_reads, reads_of
from evaluation.metrics import comparison_metrics, higher_is_better, metric_names, metric_title, metric_value
from evaluation.page import render
from evaluation.reconstructions import has_reconstructions, write_reconstructions
from evaluation.records import RunRecord
from evaluation.statistics import finite
from evaluation.summary import rounded, summarise
from evaluation.verdicts import RULE, Comparison, Measured, Verdict, judge
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
    reads: Sequence[SplitRead] = (),
    plan: str = "",
) -> dict[str, Any]:
    """Judge the comparisons of an experiment and write its report to ``destination`` (replaced whole).

    experiment: the plan (name, title, variants, seeds, comparisons, equivalence_margin, alpha, evaluate_on, tuning).
    baselines: by data set and name. command and environment: how it was run, for the report alone. repeated: for each
    data set the test rows, bool [m], that occur in another split too. reads, plan: the ledger of test reads and the
    experiment's plan key in it.
    Returns {"metrics": metrics.json, "verdicts": [...], "files": [paths]}.

    With ``evaluate_on: validation`` the test split is not read.
    """
    experiment = {"name": Path(destination).name, "title": "", "tuning": {}, "alpha": 0.05, **experiment}
    if not records:
        raise InputError(f"experiment '{experiment['name']}' has no finished run to evaluate: train it first")
    refuse_unknown({record.variant for record in records}, experiment["variants"], "the runs to evaluate")
    split = experiment.get("evaluate_on", "validation")
    if split not in ("validation", "test"):
        raise InputError(f"experiment '{experiment['name']}': evaluate_on is '{split}': choose validation or test")
    splits = ["validation"] if split == "validation" else ["validation", "test"]
    order = list(experiment["variants"])
    records = sorted(records, key=lambda record: (order.index(record.variant), record.seed))
    refuse_twice(records)

    metrics = summarise(experiment, records, baselines, splits, repeated)
    verdicts = judge_experiment(experiment, records, baselines, split, reads, plan)
    judged = rounded([verdict.as_dict() for verdict in verdicts])
    times = latencies(records)
    with published_directory(Path(destination), replace=True) as working:
        write_json(working / "metrics.json", metrics)
        write_json(
            working / "verdicts.json", {"experiment": experiment["name"], "evaluated_on": split, "verdicts": judged}
        )
        write_json(working / "latency.json", times)
        # Only the chosen trials of a grid are drawn; the tables have all.
        shown_variants = {one["chosen"] for one in metrics.get("tuned", {}).values()} or set(metrics["variants"])
        drawn = write_tables_and_pictures(records, verdicts, split, shown_variants, working)
        decoded = draw_reconstructions(metrics, records, split, working)
        by_class = write_class_figures(records, split, shown_variants, working)
        explanations = write_explanations(metrics, records, split, working)
        page = render(
            "report.html",
            experiment=experiment,
            metrics=metrics,
            verdicts=judged,
            split=split,
            sets=[about_data(data, metrics, records) for data in dict.fromkeys(one.data for one in records)],
            settings=settings_table(records),
            times=times,
            pictures=drawn,
            folder=working,
            reconstructions=decoded,
            by_class=by_class,
            explanations=explanations,
            title=metric_title,
            higher=higher_is_better,
            rule=RULE,
            margin=experiment["equivalence_margin"],
            reads=reads_of(reads, sorted({record.data for record in records})) if split == "test" else [],
            command=command,
            environment=dict(environment or {}),
        )
        write_text(working / "report.html", page)
        names = sorted(path.name for path in working.iterdir())
    return {"metrics": metrics, "verdicts": judged, "files": [str(Path(destination) / name) for name in names]}


def judge_experiment(
    experiment: Mapping[str, Any],
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
    reads: Sequence[SplitRead] = (),
    plan: str = "",
) -> list[Verdict]:
    """Return the verdicts of the experiment's comparisons on ``split``; the last two as in evaluate_experiment."""
    comparisons = [Comparison(**one) for one in experiment.get("comparisons", ())]
    if not comparisons:
        return []
    measured = [measure(one, records, baselines, split, experiment["alpha"]) for one in comparisons]
    if split == "test":
        data = {record.variant: record.data for record in records}
        measured = [
            found and replace(found, earlier_reads=earlier_reads(reads, experiment["name"], plan, data_of(one, data)))
            for one, found in zip(comparisons, measured, strict=True)
        ]
    return judge(comparisons, measured, experiment["equivalence_margin"], experiment["alpha"])


def data_of(comparison: Comparison, data: Mapping[str, str]) -> str:
    """Return the data set of a comparison, from the data set of each variant."""
    return data[comparison.networks[0]]


@dataclass(frozen=True)
class Side:
    """One side of a comparison, for each seed the metric (None where undefined) and probabilities float32 [m, K].

    A published figure has no probabilities.
    """

    name: str
    scores: list[float | None]
    probabilities: list[np.ndarray]


def measure(
    comparison: Comparison,
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
    alpha: float,
) -> Measured | None:
    """Return the paired differences over the seeds that both variants have, or None where they have none.

    The one figure of a baseline, or a published one, is paired with every seed of the other side.
    """
    names, metric = (comparison.treatment, comparison.control), comparison.metric
    sides = [{one.seed: one for one in records if one.variant == name} for name in names]
    networks = [side for side, name in zip(sides, names, strict=True) if name in comparison.networks]
    seeds = sorted(set.intersection(*(set(side) for side in networks)))
    if not seeds:
        return None
    first = networks[0][seeds[0]]
    labels, task, classes = first.labels(split), first.description["task"], first.description["classes"]
    for other in (side[seeds[0]] for side in networks):
        if labels.tobytes() != other.labels(split).tobytes() or first.data != other.data:
            raise InputError(
                f"comparison '{comparison.name}': {' and '.join(names)} were not measured on the same {split} items: "
                "give both the same data set"
            )
    allowed = comparison_metrics(task, classes)
    refuse_unknown([metric], allowed, f"the metric of comparison '{comparison.name}' on a {task} data set")

    def measured_side(name: str, runs: Mapping[int, RunRecord]) -> Side:
        if name == comparison.control and comparison.reference is not None:
            return Side(name, [comparison.reference] * len(seeds), [])
        if name != comparison.baseline:
            scores = [metric_value(runs[seed].metrics([split])[split], metric) for seed in seeds]
            return Side(name, scores, [runs[seed].probabilities(split) for seed in seeds])
        there = baselines.get(first.data, {})
        refuse_unknown([name], there, f"comparison '{comparison.name}': the baselines of {first.data}")
        found = there[name]
        score = metric_value(found.metrics[split], metric)
        return Side(name, [score] * len(seeds), [found.probabilities[split]] * len(seeds))

    treatment, control = map(measured_side, names, sides)
    scores = [[score for score in side.scores if score is not None] for side in (treatment, control)]
    if any(len(known) < len(seeds) for known in scores):
        raise InputError(
            f"comparison '{comparison.name}': {metric} is not defined on the {split} split, a class is missing"
        )
    sign = 1 if higher_is_better(metric) else -1
    flags = [
        f"Suspiciously perfect: {side.name} scores exactly 1"
        f"{'' if side.name == comparison.baseline else ' on every seed'}. Rule out a leak of labels first."
        for side in (treatment, control)
        if side.probabilities and higher_is_better(metric) and all(value == 1.0 for value in side.scores)
    ]
    both = two_way(
        treatment.probabilities,
        control.probabilities,
        labels,
        task,
        metric,
        confidence=1 - alpha,
        groups=first.groups(split),
        classes=classes,
        reference=comparison.reference,
    )
    differences = (sign * (finite(scores[0]) - finite(scores[1]))).tolist()
    return Measured(seeds=seeds, differences=differences, two_way=both, flags=flags)


def write_tables_and_pictures(
    records: Sequence[RunRecord], verdicts: Sequence[Verdict], split: str, variants: Set[str], folder: Path
) -> dict[str, dict[str, str]]:
    """Write the CSV files and a picture of ``variants`` for each data set; returns file names by data set and kind."""
    figures = {
        "curves": (tables.curves(records), pictures.learning_curves),
        "calibration": (tables.calibration(records, split), pictures.reliability),
        "confusion": (tables.confusion(records, split), pictures.confusion_matrices),
    }
    drawn: dict[str, dict[str, str]] = {}
    if len(learnt := tables.betas(records)):
        figures["betas"] = (learnt, pictures.betas)
    for kind, (table, draw) in figures.items():
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


def write_explanations(
    metrics: Mapping[str, Any], records: Sequence[RunRecord], split: str, folder: Path
) -> list[kinds.Explanation]:
    """Write for each kind of data the page that explains the first of its variants that can be, at its best seed.

    It shows rows of the test split, so an experiment that may not read it has no such page.
    """
    if split != "test":
        return []
    found: dict[str, kinds.Explanation] = {}
    for name, variant in metrics["variants"].items():
        best = next(one for one in records if one.variant == name and one.seed == variant["best_seed"])
        kind = best.description["kind"]
        explain = kinds.kind(kind).explain
        if kind in found or explain is None:
            continue
        prepared = open_prepared(best.prepared_directory, verify=False)
        page = kinds.load(explain)(best, prepared, folder)
        if page is not None:
            found[kind] = page
    return list(found.values())


def draw_reconstructions(
    metrics: Mapping[str, Any], records: Sequence[RunRecord], split: str, folder: Path
) -> str | None:
    """Draw reconstructions.png of the first variant with a decoder, at its best seed; returns the variant's name.

    It shows images of the test split, so an experiment that may not read it has no such picture.
    """
    if split != "test":
        return None
    for name, variant in metrics["variants"].items():
        best = next(one for one in records if one.variant == name and one.seed == variant["best_seed"])
        prepared = open_prepared(best.prepared_directory, verify=False)
        if has_reconstructions(best.run_directory, prepared):
            write_reconstructions(
                best.run_directory, prepared, best.probabilities("test"), folder / "reconstructions.png"
            )
            return name
    return None


def about_data(data: str, metrics: Mapping[str, Any], records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what the report shows of one data set: its variants, and prepared.json (version, splits, truncation).

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
    """Return every setting of network and training by name, with its value in each variant that has it."""
    table: dict[str, dict[str, Any]] = {}
    for record in records:
        job = record.job
        for group in ("network", "training"):
            for name, value in job.get(group, {}).items():
                table.setdefault(f"{group}.{name}", {})[record.variant] = value
    return dict(sorted(table.items()))


def latencies(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Return for each variant the median over seeds of the seconds per row and of training, and of its peak memory."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(record.variant for record in records):
        mine = [record for record in records if record.variant == name]
        measured = [record.latency for record in mine]
        training = [seconds for record in mine if (seconds := record.training_seconds) is not None]
        memory = [peak for record in mine if (peak := record.peak_memory_bytes) is not None]
        found[name] = {
            "unit": measured[0]["unit"],
            "one_by_one": median([one["one_by_one"] for one in measured]),
            "in_one_batch": median([one["in_one_batch"] for one in measured]),
            "rows": measured[0]["rows"],
            "device": measured[0]["device"],
            "threads": measured[0]["threads"],
            "training": median(training) if training else None,
            "memory": median(memory) if memory else None,
        }
    return found


def refuse_twice(records: Sequence[RunRecord]) -> None:
    seen = set()
    for record in records:
        if (record.variant, record.seed) in seen:
            raise InputError(f"{record.variant} with seed {record.seed} was given twice: evaluate each run once")
        seen.add((record.variant, record.seed))
