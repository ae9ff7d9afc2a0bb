"""Evaluate the finished runs of an experiment, judge its comparisons, write the report, and log it to MLflow.

python -m tasks.evaluate [--experiment default]
"""

import argparse
import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from reread import kinds
from reread.evaluation.baselines import Baseline, evaluate_baseline
from reread.evaluation.folds import put_together, repetitions
from reread.evaluation.records import RunRecord
from reread.evaluation.repeated_baseline import RepeatedBaseline
from reread.evaluation.report import evaluate_experiment
from reread.evaluation.run import evaluate_run
from reread.evaluation.summary import champion_of
from reread.goals import goal
from reread.planning.experiment import networks
from reread.planning.history import fixed
from reread.planning.plan import Plan
from reread.planning.resolve import make_plan
from reread.planning.tuning import published, untuned
from reread.preprocessing.manifest import load_raw_rows
from reread.preprocessing.settings import FOLD
from reread.storage.errors import InputError, command
from reread.storage.job import Job
from reread.storage.ledger import SplitRead, add_reads, open_test_split, read_ledger, reads_file, version_of
from reread.storage.locks import reserve
from reread.storage.prepared import SPLITS, Prepared, open_prepared
from reread.tracking.recording import BASELINES, Tracker
from tasks.links import links
from tasks.preprocess import preprocess
from tasks.progress import say
from tasks.provenance import described
from tasks.step import step

# The seed and the number of a fold; None of the split that a data set has itself.
Place = tuple[int, int] | None


@step(task_run_name="evaluate-{plan.name}")
def evaluate(plan: Plan, prepared: Mapping[str, str], so_far: bool = False) -> str:
    """Evaluate the finished runs of a plan and write its report; return the report's folder.

    ``prepared`` maps prepared keys to folders. The report is reports/EXPERIMENT or, of a partial plan,
    reports/EXPERIMENT-part-DIGEST, which leaves the experiment's own report and champions alone. ``evaluate_on:
    validation`` leaves the test split unread. plan.json is in the report. InputError where runs are not trained; with
    ``so_far`` only where none is, and the report says how many seeds there are.
    """
    experiment, splits = plan.name, plan.splits
    jobs = sorted(plan.jobs(prepared), key=lambda job: list(plan.variants).index(job.variant))
    reserve(job.run_directory for job in jobs)
    unfinished = [job for job in jobs if not job.run.finished]
    if unfinished and (not so_far or len(unfinished) == len(jobs)):
        first = unfinished[0]
        command = "jobs" if plan.targets_remote_machine else "train"
        raise InputError(
            f"{len(unfinished)} of {len(jobs)} runs of '{experiment}' are not trained ({first.name} is the "
            f"first): run `reread {command} --experiment {experiment}`"
            + "".join(f". {line}" for line in plan.of_older_code(prepared))
        )
    if plan.folds is not None:
        # A repetition counts as a whole.
        halves = {(job.variant, job.seed) for job in unfinished}
        unfinished = [job for job in jobs if (job.variant, job.seed) in halves]
        if len(unfinished) == len(jobs):
            raise InputError(
                f"no seed of '{experiment}' has all its folds: run `reread train --experiment {experiment}`"
            )
    jobs = [job for job in jobs if job not in unfinished]
    restored = sum(bool(job.run.published) for job in jobs)
    if restored:
        say(
            f"{restored} of {len(jobs)} runs are known from results/, without weights: what needs weights, or "
            "probabilities that are not published, is left out of the report or made for the other runs alone"
        )
    data_sets = _rows_of_data_sets(plan, prepared)
    add_reads(entry for job in jobs for entry in read_ledger(reads_file(job.run_directory)))
    versions = {
        name: version
        for folds in data_sets.values()
        for data in folds.values()
        for name, version in version_of(data.description).items()
    }
    reading: AbstractContextManager[list[SplitRead]] = nullcontext([])
    if "test" in splits:
        reading = open_test_split(experiment, plan.key, versions, plan.key_parts(), folds=plan.folds)
    with reading as reads, Tracker(say) as tracker:
        destination = _report(plan, jobs, data_sets, reads, tracker)
    say(f"report: {destination / 'report.html'}")
    return str(destination)


def _report(
    plan: Plan,
    jobs: list[Job],
    data_sets: Mapping[str, Mapping[Place, Prepared]],
    reads: list[SplitRead],
    tracker: Tracker,
) -> Path:
    """Evaluate the runs of ``jobs`` and the baselines, and write the report; return its folder."""
    experiment, splits = plan.name, plan.splits
    run_ids: dict[str, str] = {}
    records = [_evaluate_run(job, splits, tracker, run_ids) for job in jobs]
    if plan.folds is not None:
        records = [*repetitions(sorted(records, key=lambda record: record.job["fold"]), plan.folds)]
    baselines: dict[str, dict[str, Baseline]] = {}
    repeated = {}
    seeds = {record.seed for record in records}
    for name, places in data_sets.items():
        fitted: dict[Place, dict[str, Baseline]] = {}
        for place, data in places.items():
            if place is not None and place[0] not in seeds:
                continue
            raw = load_raw_rows(data, [split for split in SPLITS if split == "train" or split in splits])
            fitted[place] = _baselines(data, raw, plan.environment.runs / BASELINES, asked_metrics(plan, name))
            # Equal rows are in one fold.
            if "test" in splits and place is None:
                repeated[name] = repeated_rows(raw)
        baselines[name] = fitted[None] if None in fitted else _over_folds(fitted, places)
    destination = plan.report_directory
    report = evaluate_experiment(
        plan.to_json(),
        records,
        baselines,
        destination,
        command=plan.command,
        environment=described({name: jobs[0].machine[name] for name in plan.machine}, jobs[0].training["threads"]),
        repeated=repeated,
        reads=reads,
        plan=plan.key,
        links=links(experiment, run_ids),
        untuned=untuned(plan, published(plan)),
        record=plan.record(),
        fixed=fixed(plan),
    )
    if not plan.partial:
        about: dict[str, Any] = {"report": experiment, "models": [], "baselines": []}
        # One that tunes registers no model: its variants are settings to choose from, not candidates to serve.
        # Cross-validation judges settings: none of its networks is the one to serve.
        if plan.evaluate_on == "test" and plan.folds is None:
            whole = {name: places[None] for name, places in data_sets.items()}
            about |= _candidates(records, baselines, whole, report["metrics"])
        tracker.report(about, plan.environment)
    return destination


def _evaluate_run(job: Job, splits: tuple[str, ...], tracker: Tracker, run_ids: dict[str, str]) -> RunRecord:
    # Where an evaluation exists, the weights are not opened.
    job.run.refuse_damage()
    evaluation = job.run.published_evaluation(splits) or evaluate_run(job.run_directory, job.prepared, splits)
    run_id = tracker.record(job, evaluation)
    if run_id:
        run_ids[job.run_key] = run_id
    return RunRecord(job.variant, job.data, job.seed, job.run_directory, job.prepared, evaluation)


def _over_folds(
    fitted: Mapping[Place, Mapping[str, Baseline]], places: Mapping[Place, Prepared]
) -> dict[str, Baseline]:
    """Return the baselines of a data set over the folds of all seeds; fitted: those of each fold."""
    by_seed: dict[int, list[Place]] = {}
    for place in sorted(place for place in fitted if place is not None):
        by_seed.setdefault(place[0], []).append(place)
    names = fitted[next(iter(fitted))]
    return {
        name: RepeatedBaseline.of(
            {
                seed: put_together([fitted[place][name] for place in of_seed], [places[place] for place in of_seed])
                for seed, of_seed in by_seed.items()
            }
        )
        for name in names
    }


def _rows_of_data_sets(plan: Plan, prepared: Mapping[str, str]) -> dict[str, dict[Place, Prepared]]:
    """Return one opened set of arrays of each data set and, of cross-validation, of each fold.

    InputError where two sets of one data set are not of the same rows.
    """
    opened: dict[str, dict[Place, Prepared]] = {}
    for key, about in sorted(plan.preparations().items()):
        data = open_prepared(Path(prepared[key]))
        fold = about["settings"].get(FOLD)
        first = opened.setdefault(about["data"], {}).setdefault(fold and (fold["seed"], fold["number"]), data)
        same = first.description["splits"] == data.description["splits"] and all(
            np.array_equal(first.arrays[name], data.arrays[name]) for name in ("labels", "raw_indices")
        )
        if not same:
            raise InputError(
                f"{prepared[key]} and {first.directory} have different rows of {about['data']}: "
                "their variants cannot be compared, give both the same settings that choose rows"
            )
    return opened


def asked_metrics(plan: Plan, data: str) -> dict[str, str]:
    """Return by baseline the metric of the first comparison that judges it on a data set.

    A baseline that none judges has the experiment's metric, or that of the first comparison on the data set.
    """
    there = [comparison for comparison in plan.comparisons if plan.variants[networks(comparison)[0]].data == data]
    first = plan.metric or (there[0]["metric"] if there else None)
    asked = dict.fromkeys(kinds.baselines(), first) if first else {}
    for comparison in reversed(there):
        asked |= dict.fromkeys(
            {comparison["treatment"], comparison["control"]} & kinds.baselines().keys(), comparison["metric"]
        )
    return asked


def _baselines(
    prepared: Prepared, raw: Mapping[str, Any], cache: Path, asked: Mapping[str, str]
) -> dict[str, Baseline]:
    """Return the baselines, on the raw data of the same rows as the networks have, C by the metric that is asked."""
    first = goal(prepared.task).names[0]
    labels = {split: prepared.labels[prepared.rows(split)] for split in raw}
    others = {name: metric for name, metric in asked.items() if metric != first}
    return {
        baseline.name: evaluate_baseline(
            baseline.name, raw, labels, prepared.task, prepared.classes, cache, others.get(baseline.name), say
        )
        for baseline in kinds.baselines_of(prepared.kind, prepared.task)
    }


def repeated_rows(raw: Mapping[str, Any]) -> np.ndarray:
    """Return which test rows, bool [m], also occur byte for byte in the training or validation split."""

    def content(row: Any) -> str | bytes:
        return row if isinstance(row, str) else hashlib.sha256(row.tobytes()).digest()

    seen = {content(row) for split in ("train", "validation") for row in raw[split]}
    return np.array([content(row) in seen for row in raw["test"]], bool)


def _candidates(
    records: list[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    data_sets: Mapping[str, Prepared],
    metrics: Mapping[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Return what is registered, as ``record_report`` has it: the best seed of each variant, and each baseline.

    The champion of a data set is the best on validation: a variant by its mean, or a baseline that is better than all
    of them. A run whose weights are on another machine is not registered: one line lists the missing ones.
    """
    models, fitted, missing = [], [], []
    champions = {data: champion_of(data, metrics)[0] for data in metrics["champions"]}
    for name, about in metrics["variants"].items():
        best = next(record for record in records if record.variant == name and record.seed == about["best_seed"])
        if kinds.kind(best.description["kind"]).reader is None:
            continue  # models of this kind are not served
        if not best.run.weights.is_file():
            missing.append(f"{name} seed {best.seed} ({best.run.weights})")
            continue
        mean = about["validation"][about["score"]]["mean"]
        models.append(
            {
                "run": best.key,
                "evaluation": best.evaluation_directory.name,
                "variant": name,
                "score": None if mean is None else (about["score"], mean),
                "champion": champions[best.data] == name,
            }
        )
    for data, of_data in baselines.items():
        for name, baseline in of_data.items():
            if baseline.directory is None or kinds.kind(data_sets[data].kind).reader is None:
                continue
            fitted.append(
                {
                    "name": name,
                    "directory": baseline.directory.name,
                    "prepared": data_sets[data].directory.name,
                    "metric": metrics["champions"][data]["metric"],
                    "champion": champions[data] == name,
                }
            )
    if missing:
        say(f"weights are missing, so no model is registered and no attention shown of: {', '.join(missing)}")
    return {"models": models, "baselines": fitted}


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluate", description="Evaluate an experiment.")
    parser.add_argument("--experiment", default="default")
    arguments = parser.parse_args()
    plan = make_plan(arguments.experiment)
    prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
    evaluate.fn(plan, prepared)


if __name__ == "__main__":
    main()
