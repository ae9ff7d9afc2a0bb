"""reports/EXPERIMENT/: the report of an experiment, from result files alone.

metrics.json, verdicts.json and the CSV files are equal byte for byte between two evaluations of the same runs.
latency.json and the pages, which show times and the environment, are not.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from reread import kinds
from reread.evaluation import charts, tables
from reread.evaluation.baselines import Baseline
from reread.evaluation.by_class import write_class_figures
from reread.evaluation.folds import Repetition
from reread.evaluation.head import recommendations, warnings_of
from reread.evaluation.items import item_spread
from reread.evaluation.page import VEGA, WORDS, render
from reread.evaluation.records import RunRecord, write_evidence
from reread.evaluation.repeated_baseline import seeds_of
from reread.evaluation.summary import champion_of, summarise
from reread.evaluation.trials import at_an_end
from reread.goals import bounds, goal, higher_is_better, metric_title, metric_value, metric_words
from reread.storage.digests import digested_directory
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import write_json, write_text
from reread.storage.ledger import SplitRead
from reread.verdicts.reads import Fixed, earlier_reads, reads_of, standing
from reread.verdicts.rule import (
    NETWORKS,
    RULE,
    RULE_OF_FOLDS,
    Comparison,
    Measured,
    Side,
    Verdict,
    judge,
    kind_of,
    named,
    perfect,
    which_look,
)
from reread.verdicts.statistics import rounded

# Pairs of classes in the table of confusions.
MOST_CONFUSED = 20


@dataclass(frozen=True)
class Links:
    """Where an experiment was tracked: the address of each ``page`` by its title, and of each run in MLflow by key."""

    pages: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)


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
    links: Links | None = None,
    untuned: Mapping[str, Sequence[str]] | None = None,
    record: Mapping[str, Any] | None = None,
    fixed: Fixed | None = None,
) -> dict[str, Any]:
    """Judge the comparisons of an experiment and write its report to ``destination`` (replaced whole).

    experiment: the plan (name, title, variants, seeds, comparisons, equivalence_margin, alpha, evaluate_on, tuning).
    baselines: by data set and name. command, environment and links: how it was run and where it was tracked, for the
    report alone. repeated: for each data set the test rows, bool [m], that occur in another split too. reads, plan: the
    ledger of test reads and the experiment's plan key in it. fixed: the commits that fixed what decides the verdicts;
    None where it is not known. untuned: by variant, how its tuning ended too early.
    record: plan.json. digests.json names each file's sha256.
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
    cautions = cautions_of(metrics["variants"], untuned or {})
    verdicts = judge_experiment(experiment, records, baselines, split, reads, plan, cautions)
    judged = rounded([verdict.as_dict() for verdict in verdicts])
    warnings = warnings_of(metrics, cautions)
    times = latencies(records)
    if missing := metrics.get("so_far"):
        experiment["title"] = f"{experiment['title'] or experiment['name']} (so far: {in_words(missing)})"
    # Only the chosen trials of a grid are drawn; the tables have all.
    drawn = {choice["chosen"] for choice in metrics.get("tuned", {}).values()} or set(metrics["variants"])
    with digested_directory(Path(destination), replace=True) as working:
        write_json(working / "metrics.json", metrics)
        if record is not None:
            write_json(working / "plan.json", record)
        about = {"experiment": experiment["name"], "evaluated_on": split, **({"so_far": missing} if missing else {})}
        about |= {"folds": experiment["folds"]} if experiment.get("folds") else {}
        write_json(working / "verdicts.json", {**about, "verdicts": judged, "warnings": warnings})
        write_json(working / "latency.json", times)
        write_evidence(records, baselines, splits, experiment.get("comparisons", ()), working)
        written = write_tables(records, baselines, verdicts, split, working)
        by_class = write_class_figures(records, baselines, split, drawn, working)
        # Of a repetition there is no one network that answers.
        explanations = [] if experiment.get("folds") else write_explanations(metrics, records, split, working)
        page = report_page(
            experiment,
            metrics,
            judged,
            written,
            [about_data(data, metrics, records) for data in dict.fromkeys(record.data for record in records)],
            left_out=set(metrics["variants"]) - drawn,
            times=times,
            by_class=by_class,
            explanations=explanations,
            links=links or Links(),
            reads=reads_of(reads, sorted({record.data for record in records})) if split == "test" else [],
            command=command,
            environment=environment or {},
            warnings=warnings,
            standing=standing(fixed, reads, {**experiment, "key": plan}) if split == "test" else None,
            fixed=fixed,
        )
        write_text(working / "report.html", page)
        names = sorted(path.name for path in working.iterdir())
    return {"metrics": metrics, "verdicts": judged, "files": [str(Path(destination) / name) for name in names]}


def in_words(missing: Mapping[str, str]) -> str:
    """Return ``so_far`` of metrics.json in words: "5 of 6 seeds", or of each variant where they differ."""
    if len(set(missing.values())) == 1:
        return next(iter(missing.values()))
    return ", ".join(f"{name} {seeds}" for name, seeds in missing.items())


def report_page(
    experiment: Mapping[str, Any],
    metrics: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    written: Mapping[str, pd.DataFrame],
    sets: Sequence[Mapping[str, Any]],
    left_out: Set[str] = frozenset(),
    times: Mapping[str, Any] | None = None,
    by_class: Mapping[str, Mapping[str, Any]] | None = None,
    explanations: Sequence[kinds.Explanation] = (),
    links: Links | None = None,
    reads: Sequence[SplitRead] = (),
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    standing: str | None = None,
    fixed: Fixed | None = None,
) -> str:
    """Return report.html.

    metrics, verdicts, warnings: metrics.json and the lists in verdicts.json. written: of ``write_tables``. sets: of
    ``about_data``. by_class: of ``write_class_figures``. standing: in words, whether what decides the verdicts was
    fixed before the test split was read. Without the others their sections are missing: results/ does not keep them.
    """
    drawn = charts_of(written, metrics, left_out)
    by_class = by_class or {}
    for data, about in by_class.items():
        for key, name, draw in (
            ("roc", "roc", charts.roc),
            ("calibration", "class-calibration", charts.class_calibration),
        ):
            if len(about.get(key, ())):
                drawn[data][name] = draw(about[key])
    table = written["confusion"]
    return render(
        "report.html",
        [VEGA, "report.js", "tables.js"],
        experiment=experiment,
        folds=experiment.get("folds"),
        metrics=metrics,
        verdicts=verdicts,
        split=metrics["evaluated_on"],
        sets=sets,
        times=times or {},
        charts=drawn,
        differences=charts.differences(written["differences"]) if len(written["differences"]) else None,
        confused={data: confused(table[table["data"] == data]) for data in drawn},
        by_class=by_class,
        explanations=explanations,
        title=metric_title,
        words=WORDS,
        words_of=metric_words,
        use=recommendations(metrics, times),
        warnings=warnings,
        at_an_end=at_an_end,
        higher=higher_is_better,
        rule=f"{RULE}\n\n{RULE_OF_FOLDS}" if experiment.get("folds") else RULE,
        margin=experiment["equivalence_margin"],
        links=links or Links(),
        reads=reads,
        standing=standing,
        fixed=fixed,
        command=command,
        environment=dict(environment or {}),
    )


def judge_experiment(
    experiment: Mapping[str, Any],
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
    reads: Sequence[SplitRead] = (),
    plan: str = "",
    cautions: Mapping[str, Sequence[str]] | None = None,
) -> list[Verdict]:
    """Return the verdicts of the experiment's comparisons on ``split``; reads and plan as in evaluate_experiment.

    cautions: by variant. Where the experiment withholds the verdict then, they are the reasons for that.
    """
    comparisons = [
        named(
            comparison,
            kinds.baselines(),
            metric_words(comparison["metric"]),
            higher_is_better(comparison["metric"]),
            bounds(comparison["metric"]),
        )
        for comparison in experiment.get("comparisons", ())
    ]
    if not comparisons:
        return []
    data = {record.variant: record.data for record in records}
    planned = {**experiment, "key": plan}
    measured = []
    for comparison in comparisons:
        result = measure(comparison, records, baselines, split)
        if result is not None:
            lines = [line for name in comparison.networks for line in (cautions or {}).get(name, ())]
            if experiment.get("withhold_untuned"):
                result = replace(result, flags=[*result.flags, *lines])
            else:
                result = replace(result, cautions=lines)
            if split == "test" and reads:
                earlier = earlier_reads(reads, planned, data[comparison.networks[0]], comparison.networks)
                result = replace(result, reads=earlier)
        measured.append(result)
    return judge(comparisons, measured, experiment["equivalence_margin"], experiment["alpha"], which_look(experiment))


def cautions_of(
    variants: Mapping[str, Mapping[str, Any]], untuned: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return by variant, in sentences, that it was still learning and what its tuning says against its settings.

    variants: of metrics.json. A variant was still learning if half of its seeds were.
    """
    cautions = {}
    for name, about in variants.items():
        learning, seeds = len(about["still_improving_seeds"]), about["n"]
        lines = list(untuned.get(name, ()))
        if 2 * learning >= seeds:
            lines.insert(0, f"was still learning when it ended ({learning} of {seeds} seeds): raise max_epochs")
        cautions[name] = [f"{name} {line}." for line in lines]
    return cautions


def measure(
    comparison: Comparison,
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
) -> Measured | None:
    """Return the scores of both sides by seed, or None where a variant has none.

    A baseline has one figure, or of cross-validation one per seed; a published reference has one.
    """
    names, metric = (comparison.treatment, comparison.control), comparison.metric
    sides = [
        sorted((record for record in records if record.variant == name), key=lambda record: record.seed)
        for name in names
    ]
    networks = [side for side, name in zip(sides, names, strict=True) if name in comparison.networks]
    if not all(networks):
        return None
    first = networks[0][0]
    labels, asked, classes = first.labels(split), goal(first.description["task"]), first.description["classes"]
    for other in (side[0] for side in networks):
        if labels.tobytes() != other.labels(split).tobytes() or first.data != other.data:
            raise InputError(
                f"comparison '{comparison.name}': {' and '.join(names)} were not measured on the same {split} items: "
                "give both the same data set"
            )
    where = f"the metric of comparison '{comparison.name}' on a {asked.task} data set"
    refuse_unknown([metric], asked.comparison_metrics(classes), where)

    for run in (run for side in networks for run in side):
        if not run.measures(split, metric):
            raise InputError(
                f"comparison '{comparison.name}': what results/ keep of {run.variant} seed {run.seed} does not decide "
                f"{metric}: copy its run here with its evaluation, or train it again"
            )

    def defined(score: float | None) -> float:
        if score is None:
            raise InputError(
                f"comparison '{comparison.name}': {metric} is not defined on the {split} split, a class is missing"
            )
        return score

    def measured_side(name: str, runs: Sequence[RunRecord]) -> tuple[Side, list[np.ndarray]]:
        """Return the scores, and the probabilities float32 [m, K] of each, which a published figure has not."""
        if name == comparison.control and comparison.reference is not None:
            return Side([comparison.reference]), []
        if name != comparison.baseline:
            scores = [defined(metric_value(run.metrics([split])[split], metric)) for run in runs]
            chosen = [run.metrics(["validation"])["validation"] for run in runs]
            predictions = [
                asked.judged(metric, run.probabilities(split), validated)
                for validated, run in zip(chosen, runs, strict=True)
            ]
            return Side(scores, [run.seed for run in runs]), predictions
        there = baselines.get(first.data, {})
        refuse_unknown([name], there, f"comparison '{comparison.name}': the baselines of {first.data}")
        by_seed = seeds_of(there[name])
        scores = [defined(metric_value(fit.metrics[split], metric)) for fit in by_seed.values()]
        predictions = [
            asked.judged(metric, fit.probabilities[split], fit.metrics["validation"]) for fit in by_seed.values()
        ]
        return Side(scores, [seed for seed in by_seed if seed is not None]), predictions

    (treatment, of_treatment), (control, of_control) = map(measured_side, names, sides)
    flags = [
        perfect(name, side.scores, bool(side.seeds))
        for name, side, there in zip(names, (treatment, control), (of_treatment, of_control), strict=True)
        if there and comparison.higher_is_better
    ]
    measure_of = asked.metric(metric, classes)
    items = item_spread(measure_of, of_treatment, of_control, labels, groups=first.groups(split))
    kind = NETWORKS if treatment.seeds and control.seeds else kind_of(comparison)
    overlap = first.test_to_train if isinstance(first, Repetition) else 0.0
    return Measured(kind, treatment, control, items, list(filter(None, flags)), test_to_train=overlap)


def write_tables(
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    verdicts: Sequence[Verdict],
    split: str,
    folder: Path,
) -> dict[str, pd.DataFrame]:
    """Write the CSV files that the charts are made of, and differences.png; return the tables by name."""
    written = {
        "curves": tables.curves(records),
        "calibration": tables.calibration(records, split, baselines),
        "confusion": tables.confusion(records, split, baselines),
    }
    if len(learnt := tables.betas(records)):
        written["betas"] = learnt
    for name, table in written.items():
        tables.write_table(table, folder / f"{name}.csv")
    return {**written, "differences": write_differences(verdicts, folder)}


def write_differences(verdicts: Sequence[Verdict], folder: Path) -> pd.DataFrame:
    """Write differences.csv and its chart, differences.png; return the table."""
    table = tables.differences(verdicts)
    tables.write_table(table, folder / "differences.csv")
    if len(table):
        charts.png(charts.differences(table), folder / "differences.png")
    return table


def charts_of(
    written: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any], left_out: Set[str] = frozenset()
) -> dict[str, dict[str, charts.Chart]]:
    """Return the charts of ``write_tables`` by data set and name, without the variants ``left_out``."""
    drawn: dict[str, dict[str, charts.Chart]] = {}
    for data in dict.fromkeys(variant["data"] for variant in metrics["variants"].values()):
        drawn[data] = {"scores": charts.scores(*score_rows(data, metrics, left_out))}
    for name, draw in (
        ("curves", charts.curves),
        ("calibration", charts.calibration),
        ("confusion", charts.confusion),
        ("betas", charts.betas),
    ):
        if name in written:
            table = written[name]
            for data, rows in table[~table["variant"].isin(left_out)].groupby("data", sort=False):
                drawn[str(data)][name] = draw(rows)
    return drawn


def score_rows(data: str, metrics: Mapping[str, Any], left_out: Set[str]) -> tuple[list[dict[str, Any]], str]:
    """Return what the chart of scores shows of a data set, and the score's title."""
    split, rows, score = metrics["evaluated_on"], [], ""
    for name, variant in metrics["variants"].items():
        if variant["data"] == data and name not in left_out:
            score = variant["score"]
            measured = variant[split][score]
            bounds = {"low": measured["low"], "high": measured["high"]}
            rows.append({"variant": name, "part": "mean", "score": measured["mean"], **bounds})
            rows += [
                {"variant": name, "part": "seed", "seed": int(seed), "score": run[split][score],
                 "epochs": run["epochs"], "run": run["run_key"]}
                for seed, run in variant["seeds"].items()
            ]  # fmt: skip
    for baseline in metrics["baselines"].get(data, {}).values():
        rows.append({"variant": baseline["name"], "part": "baseline", "score": baseline[split][score]})
    return rows, metric_title(score)


def write_explanations(
    metrics: Mapping[str, Any], records: Sequence[RunRecord], split: str, folder: Path
) -> list[kinds.Explanation]:
    """Write the pages that explain answers, of each kind of data.

    They show rows of the test split, so an experiment that may not read it has no such page.
    """
    if split != "test":
        return []
    by_kind: dict[str, list[RunRecord]] = {}
    for record in records:
        by_kind.setdefault(record.description["kind"], []).append(record)
    return [
        page
        for kind, of_kind in by_kind.items()
        for explain in kinds.kind(kind).explain
        if (page := kinds.load(explain)(of_kind, best_seeds(metrics, of_kind), folder)) is not None
    ]


def best_seeds(metrics: Mapping[str, Any], records: Sequence[RunRecord]) -> dict[str, int]:
    """Return the best seed of each variant that ``records`` have, in order."""
    names = {record.variant for record in records}
    return {name: variant["best_seed"] for name, variant in metrics["variants"].items() if name in names}


def about_data(data: str, metrics: Mapping[str, Any], records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what the report shows of one data set.

    ``description``: prepared.json (version, splits, truncation); ``lengths``: the picture of the lengths of a text data
    set, or None; ``differing`` and ``settings``: of its variants; and of ``columns``.
    """
    of_data = [record for record in records if record.data == data]
    lengths = Path(of_data[0].prepared_directory) / "lengths.png"
    return {
        "name": data,
        "description": of_data[0].description,
        "lengths": lengths if lengths.is_file() else None,
        **settings_of_set(settings_table(of_data)),
        **columns(data, metrics),
    }


def settings_of_set(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ``settings`` of settings_table and those of them that are ``differing``."""
    differing = {name: values for name, values in settings.items() if len(set(map(repr, values.values()))) > 1}
    return {"settings": settings, "differing": differing}


def columns(data: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``variants`` of a data set, the metrics that are defined there (``metric_names``), and its leaders.

    ``best``: for each metric the name with the best mean of variants and baselines. ``outdone``: the title of the
    baseline that has the best score, or None. ``champion``: the variant's name or the baseline's title, with its
    ``champion_mean`` of ``score``.
    """
    split = metrics["evaluated_on"]
    variants = {name: variant for name, variant in metrics["variants"].items() if variant["data"] == data}
    baselines = metrics["baselines"].get(data, {})
    task = next(iter(variants.values()))["task"]
    best = {}
    score = variants[next(iter(variants))]["score"]
    for name in dict.fromkeys([score, *goal(task).shown_names]):
        means = {title: variant[split][name]["mean"] for title, variant in variants.items()}
        means |= {baseline["name"]: baseline[split][name] for baseline in baselines.values()}
        known = {title: value for title, value in means.items() if value is not None}
        if known:
            best[name] = (max if higher_is_better(name) else min)(known, key=known.__getitem__)
    outdone = best.get(score) if best.get(score) not in variants else None
    champion, mean = champion_of(data, metrics)
    return {
        "variants": list(variants),
        "metric_names": list(best),
        "best": best,
        "outdone": outdone,
        "champion": baselines[champion]["name"] if champion in baselines else champion,
        "score": score,
        "champion_mean": mean,
    }


def settings_table(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Return every setting of model, preparation, network and training by name, with its value in each variant.

    None where a variant has no such setting.
    """
    table: dict[str, dict[str, Any]] = {}
    names = dict.fromkeys(record.variant for record in records)
    for record in records:
        job = record.job
        groups = {
            "": {"model": job["model"]},
            "preprocessing.": record.description.get("settings", {}),
            "network.": job.get("network", {}),
            "training.": job.get("training", {}),
        }
        for group, values in groups.items():
            for name, value in values.items():
                table.setdefault(f"{group}{name}", dict.fromkeys(names))[record.variant] = value
    return dict(sorted(table.items()))


def confused(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the pairs of classes that are confused most, of confusion.csv of one data set with one label per row.

    Each has ``actual``, ``predicted`` and, by variant or baseline, the share of the rows of the class (``shares``).
    """
    if table["label"].astype(bool).any():
        return []
    totals = table.groupby(["variant", "actual"], sort=False)["count"].transform("sum")
    wrong = table.assign(share=table["count"] / totals.clip(lower=1))[table["actual"] != table["predicted"]]
    wide = wrong.pivot(index=["actual", "predicted"], columns="variant", values="share")
    wide = wide[list(dict.fromkeys(table["variant"]))]
    worst = wide.mean(axis=1).sort_values(ascending=False, kind="stable").head(MOST_CONFUSED)
    return [
        {"actual": pair[0], "predicted": pair[1], "shares": wide.loc[pair].to_dict()}
        for pair, share in worst.items()
        if share > 0
    ]


def latencies(records: Sequence[RunRecord]) -> dict[str, dict[str, Any]]:
    """Return for each variant the median over seeds of the seconds per row and of training, and of its peak memory."""
    by_variant: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(record.variant for record in records):
        runs = [record for record in records if record.variant == name]
        measured = [record.latency for record in runs]
        training = [seconds for record in runs if (seconds := record.training_seconds) is not None]
        memory = [peak for record in runs if (peak := record.peak_memory_bytes) is not None]
        by_variant[name] = {
            "unit": measured[0]["unit"],
            "one_by_one": median([latency["one_by_one"] for latency in measured]),
            "in_one_batch": median([latency["in_one_batch"] for latency in measured]),
            "rows": measured[0]["rows"],
            "device": measured[0]["device"],
            "threads": measured[0]["threads"],
            "training": median(training) if training else None,
            "memory": median(memory) if memory else None,
        }
    return by_variant


def refuse_twice(records: Sequence[RunRecord]) -> None:
    seen = set()
    for record in records:
        if (record.variant, record.seed) in seen:
            raise InputError(f"{record.variant} with seed {record.seed} was given twice: evaluate each run once")
        seen.add((record.variant, record.seed))
