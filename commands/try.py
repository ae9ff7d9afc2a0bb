"""Try networks and baselines on a data set.

reread try reviews
reread try reviews --dry-run          what it would train, how long that takes, and what it can show
reread try reviews --epochs 10 --seeds 8
reread try reviews --variant word-average         one network alone, and the baselines
reread try reviews --variant han --variant mine   HAN and models/mine.py

Tunes, trains and compares them, and registers the best. Writes experiments/NAME-tuning.yaml and experiments/NAME.yaml.
Sizes and learning rates are chosen on the validation split by one seed of its own; the test split is read at the end
alone. Finished runs are cached, and an interrupted one resumes from its last epoch: type the same command again.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.options import completion, plan_of, print_results

if TYPE_CHECKING:
    from planning.plan import Plan

FEWEST_SEEDS = 6  # with which one comparison can be decided
RUN_SECONDS = 6  # beside training: to import torch, to open the arrays, to evaluate
WHOLE_SECONDS = 45  # Prefect's server, the baselines, two reports
LONG_SECONDS = 3600


def known_data() -> list[str]:
    """The data sets of the manifest."""
    from preprocessing.manifest import Manifest

    return sorted(Manifest.load().datasets)


def command(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="A data set.", autocompletion=completion(lambda _: known_data()))
    ],
    seeds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Seeds of each network.")] = 6,
    epochs: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="At most so many epochs; default: params.yaml's.")
    ] = None,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", "-v", metavar="NAME", help="Only this network; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; train nothing.")] = False,
) -> None:
    from planning.manifest import read_manifest

    entry = read_manifest().entry(name)  # before slow imports

    from planning.trial import experiment_of, path_of, tuned, tuning_of, write_experiment
    from planning.tuning import tuning_name
    from storage.files import write_text

    first = experiment_of(name, entry, seeds, epochs, variants or ())
    print(f"{name}: {entry.kind}, {entry.task}, {len(entry.classes)} classes, {entry.rows:,} rows")
    if seeds < FEWEST_SEEDS:
        print(f"warning: fewer than {FEWEST_SEEDS} seeds decide nothing")
    before = {path: path.read_text(encoding="utf-8") if path.is_file() else None
              for path in map(path_of, (name, tuning_name(name)))}  # fmt: skip
    try:
        files = [write_experiment(name, first), write_experiment(tuning_name(name), tuning_of(name, first))]
        print(f"{'would write' if dry_run else 'wrote'} {files[1]}, then {files[0]}")
        tuning, final = plan_of(tuning_name(name)), plan_of(name)
        print_estimate(tuning, final)
        print_reach(entry.splits["test"], first["comparisons"][0]["metric"])
    finally:
        if dry_run:
            for file, content in before.items():
                write_text(file, content) if content is not None else file.unlink(missing_ok=True)
    if dry_run:
        return

    from commands.servers import prefect_session
    from flows.pipeline import pipeline
    from storage.files import read_json

    with prefect_session():
        report = Path(pipeline(tuning_name(name), plan=tuning.to_json()))
        write_experiment(name, tuned(first, tuning, read_json(report / "metrics.json")))
        report = Path(pipeline(name, plan=plan_of(name).to_json()))
    print_results(report)
    print_champion(name, entry.kind, report)


def print_estimate(tuning: "Plan", final: "Plan") -> None:
    """Prepare the data of both experiments, and print how many runs they have and how long these take here at most."""
    from tasks.board import duration
    from tasks.estimate import training_seconds
    from tasks.preprocess import preprocess

    preparations = {**tuning.preparations(), **final.preparations()}
    prepared = {key: preprocess.fn(about) for key, about in preparations.items()}
    to_tune, to_compare = tuning.jobs(prepared), final.jobs(prepared)
    jobs, workers = [*to_tune, *to_compare], final.environment.workers
    training = training_seconds(jobs, workers)
    whole = sum(training.values()) + RUN_SECONDS * len(jobs) / workers + WHOLE_SECONDS
    parts = ", ".join(f"{variant} {duration(seconds)}" for variant, seconds in training.items())
    print(
        f"{len(jobs)} runs ({len(to_tune)} to tune, {len(to_compare)} of {len(final.seeds)} seeds): at most about "
        f"{duration(whole)} on this machine; training: {parts}"
    )
    if whole > LONG_SECONDS:
        print(f"shorter: `reread try {final.name} --epochs N`, or --variant NAME for one network alone, or a GPU")


def print_reach(rows: int, metric: str) -> None:
    """Print which difference a test split of ``rows`` can show."""
    from evaluation.metric_names import metric_words
    from planning.trial import smallest_difference

    least = smallest_difference(rows)
    print(f"{rows:,} test rows can show a difference of about {least:.3f} or more in {metric_words(metric)}")


def print_champion(name: str, kind: str, report: Path) -> None:
    """Print the champion of the data set, and how to predict with it and serve it."""
    from evaluation.metric_names import metric_words
    from storage.files import read_json
    from tracking.registry import champion_tags

    champion = champion_tags(name)
    metric = read_json(report / "metrics.json")["champions"][name]["metric"]
    print(f"\nReport: {report / 'report.html'}")
    score = float(champion["validation.score"])
    print(f"Champion: {champion['variant']}, validation {metric_words(metric)} {score:.4f}")
    if kind == "text":
        print(f"Predict:  reread predict --data {name} 'a text of yours'")
    print(f"Serve:    reread serve model {name}")
