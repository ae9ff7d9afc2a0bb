"""Evaluate the finished runs of an experiment, judge its pairs, write the report, and tell MLflow.

    python -m tasks.evaluate [--experiment default]
"""

import argparse
import os
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import TaskRunContext

from evaluation.baselines import Baseline, evaluate_baseline
from evaluation.records import RunRecord
from evaluation.report import evaluate_experiment
from evaluation.run import evaluate_run
from preprocessing.prepare import raw_inputs
from storage.errors import InputError, command
from storage.files import read_json
from storage.prepared import SPLITS, open_prepared
from tasks.jobs import make_job, runs_root
from tasks.parameters import Experiment, load_experiment
from tasks.preprocess import preprocess
from tasks.progress import say
from tasks.step import publish_results, step
from tasks.tracking import Tracking, open_tracking


def reports_root() -> Path:
    """The folder of the reports: REREAD_REPORTS, or reports/."""
    return Path(os.environ.get("REREAD_REPORTS", "reports"))


@step(task_run_name="evaluate-{experiment}")
def evaluate(experiment: str, variants: list[str] | None = None, seeds: list[int] | None = None) -> str:
    """Evaluate the finished runs of ``variants`` and ``seeds`` (default: all) and write the experiment's report.

    Returns the report's folder, reports/EXPERIMENT. An experiment with ``evaluate_on: validation`` leaves the test
    split unread.
    """
    chosen = load_experiment(experiment).select(variants, seeds)
    splits = ("validation", "test") if chosen.evaluate_on == "test" else ("validation",)
    prepared = {name: preprocess.fn(experiment, name) for name in chosen.preprocessing}
    jobs = [
        make_job(chosen, variant.name, seed, Path(prepared[variant.data]))
        for variant in chosen.variants.values()
        for seed in chosen.seeds
    ]
    unfinished = [job for job in jobs if not (Path(job["run_directory"]) / "result.json").is_file()]
    if unfinished:
        first = unfinished[0]
        raise InputError(
            f"{len(unfinished)} of {len(jobs)} runs of '{experiment}' are not trained ({first['variant']} seed "
            f"{first['seed']} is the first): run `python -m flows.train --experiment {experiment}`"
        )
    tracking = open_tracking()
    records = [_evaluate_run(job, splits, tracking) for job in jobs]
    baselines = {name: _baseline(chosen, name, Path(folder), splits) for name, folder in sorted(prepared.items())}
    destination = reports_root() / experiment
    evaluate_experiment(chosen.as_dictionary(), records, baselines, destination)
    _track(chosen, records, destination, tracking)
    if TaskRunContext.get() is not None:
        _show_in_prefect(experiment, destination)
    say(f"report: {destination / 'report.html'}")
    return str(destination)


def _evaluate_run(job: dict[str, Any], splits: tuple[str, ...], tracking: Tracking) -> RunRecord:
    run_directory, prepared = Path(job["run_directory"]), Path(job["prepared"])
    evaluation = evaluate_run(run_directory, prepared, splits)
    tracking.record(run_directory, evaluation, job=job)
    return RunRecord(job["variant"], job["data"], job["seed"], run_directory, prepared, evaluation)


def _baseline(experiment: Experiment, data: str, prepared_directory: Path, splits: tuple[str, ...]) -> Baseline:
    """What a user would try first, on the very rows that the networks have, but uncut."""
    prepared = open_prepared(prepared_directory)
    read = [split for split in SPLITS if split == "train" or split in splits]
    inputs = raw_inputs(prepared, read)
    labels = {split: prepared.labels[prepared.rows(split)] for split in read}
    cache = runs_root() / "baselines"
    return evaluate_baseline(prepared.kind, inputs, labels, prepared.task, prepared.classes, cache)


def _track(experiment: Experiment, records: list[RunRecord], destination: Path, tracking: Tracking) -> None:
    """The report as artifacts; of each variant its best seed as a model; the champion of each data set."""
    metrics = read_json(destination / "metrics.json")
    verdicts = read_json(destination / "verdicts.json")
    champions = {data: about["variant"] for data, about in metrics["champions"].items()}
    for name, about in metrics["variants"].items():
        best = next(record for record in records if record.variant == name and record.seed == about["best_seed"])
        job = {**best.job, "experiment": experiment.name}
        version = tracking.log_model(tracking.record(best.run_directory, best.evaluation_directory, job), best.run_directory)
        if champions[best.data] == name:
            tracking.set_champion(best.data, version)
    tags = {f"verdict.{verdict['name']}": verdict["verdict"] for verdict in verdicts}
    tracking.report(experiment.name, sorted(path for path in destination.iterdir() if path.is_file()), tags)


def _show_in_prefect(experiment: str, destination: Path) -> None:
    """Artifacts of Prefect's run: the table of variants, and the verdicts as markdown."""
    raise NotImplementedError


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluate", description="Evaluate an experiment.")
    parser.add_argument("--experiment", default="default")
    arguments = parser.parse_args()
    evaluate.fn(arguments.experiment)


if __name__ == "__main__":
    main()
