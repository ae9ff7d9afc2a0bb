"""Write the results of an experiment to results/NAME.

reread publish imdb
reread publish imdb --without-weights      runs came back from another machine without their weights

Writes what is committed: metrics.json, verdicts.json, plan.json, the tables (CSV) and differences.png of the report,
and runs.json with each run's key, seed, sha256 of its weights, environment and commit. Refuses a report of a selection,
of other settings than today's, and of runs whose files do not match their digests.
"""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.options import EXPERIMENTS, AsJson, plan_of, print_json
from storage.errors import InputError
from storage.files import published_directory, read_json, read_object, sha256_file, write_json
from storage.run_folder import ENVIRONMENT, JOB, RESULT, WEIGHTS

RESULTS = Path("results")
RECORDS = ("metrics.json", "verdicts.json", "plan.json")
NOT_PUBLISHED = ("host",)


def command(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", autocompletion=EXPERIMENTS)],
    without_weights: Annotated[
        bool, typer.Option("--without-weights", help="Accept runs whose weights are on another machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment)
    report = plan.report_directory
    again = f"run `reread run --experiment {experiment}`"
    for name in RECORDS:
        if not (report / name).is_file():
            raise InputError(f"{report / name} is missing: {again}")
    record, metrics = (
        read_object(report / "plan.json", "key", "partial"),
        read_object(report / "metrics.json", "variants"),
    )
    if record["partial"] or record["key"] != plan.key:
        what = "a selection or override" if record["partial"] else "other settings or data than today's"
        raise InputError(f"{report} is the report of {what}: {again}")
    measured = {(name, int(seed)) for name, variant in metrics["variants"].items() for seed in variant["seeds"]}
    if measured != {(name, seed) for name in plan.variants for seed in plan.seeds}:
        raise InputError(f"{report / 'metrics.json'} does not have every variant and seed of the experiment: {again}")
    runs = [
        verified_run(plan.environment.runs / about["run_key"], without_weights)
        for variant in metrics["variants"].values()
        for about in variant["seeds"].values()
    ]
    with published_directory(RESULTS / experiment, replace=True) as folder:
        for name in (*RECORDS, *(path.name for path in report.glob("*.csv")), "differences.png"):
            if (report / name).is_file():
                shutil.copy2(report / name, folder / name)
        write_json(folder / "runs.json", runs)
    if as_json:
        print_json({"results": str(RESULTS / experiment), "runs": runs})
    else:
        print(f"{RESULTS / experiment}: {len(runs)} runs; commit it")


def verified_run(directory: Path, without_weights: bool) -> dict[str, Any]:
    """Return what is published of a run; InputError where a file does not match its digest."""
    result = read_object(directory / RESULT, "run_key", "variant", "seed", "weights_sha256")
    job = read_object(directory / JOB, "run_key", "data")
    weights = directory / WEIGHTS
    if not result["run_key"] == job["run_key"] == directory.name:
        raise InputError(f"{directory} is not the run of its name: its result.json names run '{result['run_key']}'")
    if not weights.is_file() and not without_weights:
        raise InputError(f"{weights} is missing, so its digest cannot be verified: copy it here or --without-weights")
    if weights.is_file() and sha256_file(weights) != result["weights_sha256"]:
        raise InputError(f"{weights} does not match the sha256 in result.json: train run {directory.name} again")
    environment = read_json(directory / ENVIRONMENT)
    return {
        "run_key": directory.name,
        "variant": result["variant"],
        "data": job["data"],
        "seed": result["seed"],
        "weights_sha256": result["weights_sha256"],
        "weights_verified": weights.is_file(),
        "commit": environment.get("git_commit"),
        "environment": {name: value for name, value in environment.items() if name not in NOT_PUBLISHED},
    }
