"""Write the results of an experiment to results/NAME.

reread publish imdb
reread publish imdb --without-weights      runs came back from another machine without their weights
reread publish imdb --so-far      some seeds are missing, as after `reread evaluate --so-far`

Writes what is committed: metrics.json, verdicts.json, plan.json, the tables (CSV) and differences.png of the report,
runs.json with each run's key and its parts, seed, digests of its weights and arrays, environment and commit, items.npz
with what each run predicted (reread/evaluation/items.py), files.json.xz with its history, metrics and times, and
summary.json, the few figures that `dvc metrics` shows. What is published of a run that was not trained here stays as it
is.

DVC gets a stage for the experiment (results/experiments.yaml). Refuses a report of a selection, of other settings than
today's, one that is damaged, runs whose files do not match their digests, and a setting that the published tuning did
not choose, unless `tuning: {kept: {VARIANT: why}}` gives a reason.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from reread.commands.options import EXPERIMENTS, AsJson, plan_of, print_json
from reread.evaluation.items import ITEMS, open_items
from reread.planning.experiment import EXPERIMENTS as EXPERIMENTS_FOLDER
from reread.planning.experiment import load_experiment
from reread.planning.runs import RESULTS, run_records
from reread.planning.schema import read_yaml
from reread.planning.tuning import refuse_untuned
from reread.storage.digests import Damaged, refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.files import published_directory, read_object, write_json, write_text
from reread.storage.run_folder import FILES, read_files
from reread.verdicts.verify import RUNS

LISTED = """# The experiments that results/dvc.yaml has a stage of; `reread publish NAME` adds one.
# of: the file whose variants or comparisons an experiment takes, or params.
"""
RECORDS = ("metrics.json", "verdicts.json", "plan.json")
EVIDENCE = (ITEMS, FILES)
SUMMARY = "summary.json"
DIGITS = 4


def command(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="An evaluated experiment.", autocompletion=EXPERIMENTS)
    ],
    without_weights: Annotated[
        bool, typer.Option("--without-weights", help="Accept runs whose weights are on another machine.")
    ] = False,
    so_far: Annotated[bool, typer.Option("--so-far", help="Publish what there is, though seeds are missing.")] = False,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment)
    if plan.folds is not None:
        raise InputError(
            f"experiment '{experiment}' is cross-validated, and results/ keep one run of a variant and seed: "
            f"the report in {plan.report_directory} has its verdicts"
        )
    refuse_untuned(plan)
    report = plan.report_directory
    again = f"run `reread run --experiment {experiment}`"
    for name in RECORDS:
        if not (report / name).is_file():
            raise InputError(f"{report / name} is missing: {again}")
    try:
        refuse_damaged_folder(report)
    except Damaged as error:
        raise InputError(f"{error}: {again}") from None
    record, metrics = (
        read_object(report / "plan.json", "key", "partial"),
        read_object(report / "metrics.json", "variants"),
    )
    if record["partial"] or record["key"] != plan.key:
        what = "a selection or override" if record["partial"] else "other settings or data than today's"
        raise InputError(f"{report} is the report of {what}: {again}")
    folders = {
        (name, int(seed)): plan.environment.runs / about["run_key"]
        for name, variant in metrics["variants"].items()
        for seed, about in variant["seeds"].items()
    }
    planned = {(name, seed) for name in plan.variants for seed in plan.seeds}
    if not folders or not set(folders) <= planned or (set(folders) < planned and not so_far):
        raise InputError(
            f"{report / 'metrics.json'} does not have every variant and seed of the experiment: {again}, or publish "
            "what there is with --so-far"
        )
    runs = run_records(folders, without_weights)
    with published_directory(RESULTS / experiment, replace=True) as folder:
        for name in (*RECORDS, *EVIDENCE, *(path.name for path in report.glob("*.csv")), "differences.png"):
            if (report / name).is_file():
                shutil.copy2(report / name, folder / name)
        keep_bytes(RESULTS / experiment, folder)
        write_json(folder / RUNS, runs)
        verdicts = read_object(report / "verdicts.json", "verdicts")["verdicts"]
        write_json(folder / SUMMARY, summary(metrics, verdicts, runs, load_experiment(experiment).summary))
    if experiment != "default":  # dvc.yaml has the stages of the default one
        add_to_dvc(experiment)
    if as_json:
        print_json({"results": str(RESULTS / experiment), "runs": runs})
    else:
        print(f"{RESULTS / experiment}: {len(runs)} runs; commit it")


def keep_bytes(before: Path, folder: Path) -> None:
    """Keep the compressed files of ``before`` where they hold the same: other libraries compress to other bytes."""
    if not all((results / name).is_file() for results in (before, folder) for name in EVIDENCE):
        return
    if read_files(before / FILES) == read_files(folder / FILES):
        shutil.copy2(before / FILES, folder / FILES)
    old, new = open_items(before), open_items(folder)
    if old and new and old.equals(new):
        shutil.copy2(before / ITEMS, folder / ITEMS)


def summary(
    metrics: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    trial: str | None = None,
) -> dict[str, Any]:
    """Return what ``dvc metrics`` shows: each variant's mean score by data set, the verdicts, and the kind of machine.

    A difference between two machines is thus a line of its own, beside the figures that it explains. trial: of a grid,
    the one that is shown of each variant; None for the best on validation.
    """
    scores: dict[str, dict[str, float | None]] = {}
    tuned = metrics.get("tuned", {})
    shown = {choice["chosen"] if trial is None else f"{name}/{trial}": name for name, choice in tuned.items()}
    for variant, about in metrics["variants"].items():
        name = shown.get(variant, "") if shown else variant
        if not name:
            continue
        mean = about[metrics["evaluated_on"]][about["score"]]["mean"]
        scores.setdefault(about["data"], {})[name] = None if mean is None else round(mean, DIGITS)
    environments = [run["environment"] for run in runs]
    machines = {
        f"{about.get('gpu') or about.get('cpu_capability')}, torch {about.get('torch')}" for about in environments
    }
    return {
        **scores,
        "verdict": {verdict["name"]: verdict["verdict"] for verdict in verdicts},
        "machine": " and ".join(sorted(machines)),
    }


def add_to_dvc(experiment: str) -> None:
    """Add an experiment to the list for which results/dvc.yaml has a stage."""
    path = RESULTS / "experiments.yaml"
    listed = read_yaml(path)["experiments"] if path.is_file() else {}
    listed[experiment] = {"of": depends_on(experiment)}
    write_text(path, LISTED + yaml.safe_dump({"experiments": dict(sorted(listed.items()))}, default_flow_style=None))


def depends_on(experiment: str) -> str:
    """Return the file, without .yaml, whose variants or comparisons an experiment takes; params where it takes none."""
    given = read_yaml(EXPERIMENTS_FOLDER / f"{experiment}.yaml")
    others = [value for key in ("tunes", "variants_of", "comparisons") if isinstance(value := given.get(key), str)]
    return str(EXPERIMENTS_FOLDER / others[0]) if others else "params"
