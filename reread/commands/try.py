"""Try networks and baselines on a data set.

reread try reviews
reread try reviews --dry-run          print what would train, for how long, and what it can show
reread try reviews --json             print metrics, verdicts and warnings; with --dry-run the estimate
reread try reviews --epochs 10 --seeds 8
reread try reviews --variant word-average         only this network, and the baselines
reread try reviews --variant han --variant mine   HAN and models/mine.py, beside what was tried before
reread try reviews --variant my_package.nets:TextCNN      a network of another package
reread try reviews --folds 5          few rows: no tuning, all rows are tested in turn

Tunes, trains and compares them, and registers the best. Writes experiments/NAME-tuning.yaml, and after tuning
experiments/NAME.yaml. Sizes and learning rates are chosen on the validation split by one other seed; the test split
is read only at the end. Where a choice is at the edge of what was tried, tuning goes on beyond it; what is left
open when its time is up gets no verdict. With --folds nothing is tuned and no model is registered: each network, as
params.yaml has it, is compared with a baseline, and the experiment is experiments/NAME-folds.yaml. Finished runs are
cached, and an interrupted one resumes from its last epoch: type the same command again.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from reread.commands.data_add import try_lock_of
from reread.commands.options import AsJson, completion, print_json, print_results, print_table, progress, results_of
from reread.goals import beyond_labels, metric_words
from reread.storage.errors import InputError
from reread.storage.locks import held_alone

if TYPE_CHECKING:
    from reread.planning.plan import Plan
    from tasks.estimate import Estimate

RUN_SECONDS = 5  # beside training: to import torch, to open the arrays, to write what is evaluated
WHOLE_SECONDS = 40  # Prefect's server, two reports
SHARE_NAMED = 0.9  # of a core, below which other work is named
LEAST_SHARE = 0.5  # of a core for starts, which take turns with the runs that train: a share is measured of one alone
LONG_SECONDS = 3600
FOLDS = 5  # that are suggested
FEW = 0.1  # a smallest difference that is all that an accuracy of 0.9 leaves
ROUNDS = 4  # in which tuning goes on
# Of the kinds of data that `reread predict` reads: what follows the name of the data set.
EXAMPLES = {"text": "'a text of yours'", "image": "IMAGE.png"}


@dataclass(frozen=True)
class Outlook:
    """The work of a try. files: the experiments that it writes; to_tune, to_compare: runs that are not finished;
    seconds: what these take here; further_seconds: how much longer tuning may go on; smallest_difference: what the
    test rows can show, None where the goal's metrics are no shares of rows."""

    files: list[str]
    to_tune: int
    to_compare: int
    seconds: float
    further_seconds: float
    smallest_difference: float | None


def known_data() -> list[str]:
    """The data sets of the manifest."""
    from reread.preprocessing.manifest import Manifest

    return sorted(Manifest.load().datasets)


def command(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="A data set.", autocompletion=completion(lambda _: known_data()))
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, metavar="N", help="Seeds per network; default: 6.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Most epochs per run; default: those of params.yaml, or more."),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", "-v", metavar="NAME", help="Only this network, beside those tried before; repeatable."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric that chooses and judges; default: accuracy, or tuned_micro_f1."),
    ] = None,
    minutes: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Minutes for tuning beyond the first grid; default: as all the rest."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cross-validate by this many folds, from 3 up, without tuning; for few rows."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and the time; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    with progress(as_json):
        outcome = try_networks(name, seeds, epochs, variants or (), metric, minutes, folds, dry_run)
    if as_json:
        print_json(asdict(outcome) if isinstance(outcome, Outlook) else results_of(outcome))
    elif not isinstance(outcome, Outlook):
        print_results(outcome)
        print(f"\nReport: {outcome / 'report.html'}")
        if folds is None:
            print_champion(name, outcome)
        else:
            print(f"No model is registered: `reread try {name}` trains one")


def try_networks(
    name: str,
    seeds: int | None = None,
    epochs: int | None = None,
    variants: Sequence[str] = (),
    metric: str | None = None,
    minutes: int | None = None,
    folds: int | None = None,
    dry_run: bool = False,
) -> Path | Outlook:
    """Tune (without ``folds``), train and compare networks and baselines on a data set; return the report's folder, on
    a dry run what would be done.

    Arguments are the command's options. InputError where another process tries networks on the data set.
    """
    from reread.planning.experiment import refuse_elsewhere
    from reread.planning.manifest import read_manifest

    refuse_elsewhere()
    entry = read_manifest().entry(name)  # before slow imports

    from reread.planning.entrance import undecidable
    from reread.planning.resolve import make_plan
    from reread.planning.trial import (
        as_chosen_before,
        experiment_of,
        folds_name,
        path_of,
        smallest_difference,
        tuned,
        tuning_of,
        with_folds,
        write_experiment,
    )
    from reread.planning.tuning import tuning_name
    from reread.preprocessing.ingest import outputs

    with contextlib.nullcontext() if dry_run else alone(name):
        if folds is None:
            tuning = tuning_of(name, entry, epochs, variants, metric)
            contents = {tuning_name(name): tuning, name: experiment_of(name, entry, tuning, seeds)}
        elif minutes:
            raise InputError("--minutes is for tuning, and with --folds nothing is tuned: leave one of them out")
        else:
            contents = {folds_name(name): with_folds(name, entry, folds, seeds, epochs, variants, metric)}
        expected = {**contents, name: as_chosen_before(contents[name], tuning)} if folds is None else contents
        plans = [make_plan(experiment, content=content) for experiment, content in expected.items()]
        print(f"{name}: {entry.kind}, {entry.task}, {outputs(entry)}, {entry.rows:,} rows")
        too_few_seeds = undecidable(plans[-1])
        for line in too_few_seeds:
            print(f"warning: {line}")
        files = [str(path_of(experiment)) for experiment in contents]
        print(f"{'would write' if dry_run else 'writes'} {', then '.join(files)}")
        to_tune, to_compare, seconds, further = print_estimate(name, plans, minutes, dry_run)
        rows = entry.splits["test"] if folds is None else entry.rows
        tested = "test rows" if folds is None else "rows, all tested in turn"
        least = None if beyond_labels(entry.task) else smallest_difference(rows)
        if least is not None:
            words = metric_words(contents[plans[-1].name]["metric"])
            by = "smallest detectable difference" + (" by enough seeds" if too_few_seeds else "")
            print(f"{by}: about {least:.3f} in {words}, from {rows:,} {tested}")
            if folds is None and least > FEW:
                print(f"these are too few: --folds {FOLDS} tests all {entry.rows:,} rows in turn")
        if dry_run:
            return Outlook(files, to_tune, to_compare, seconds, further, least)

        from reread.commands.servers import prefect_session

        with prefect_session():
            from flows.pipeline import pipeline

            if folds is None:
                tuning_plan, metrics = tune(tuning, plans[0], further)
                contents[name] = tuned(contents[name], tuning_plan, metrics)
            final = plans[-1].name
            write_experiment(final, contents[final])
            return Path(pipeline(final, plan=make_plan(final)))


def alone(name: str) -> contextlib.AbstractContextManager[object]:
    """Hold the lock of what is tried on a data set, whose experiments one process writes; InputError where another
    holds it."""
    return held_alone(
        try_lock_of(name),
        lambda by: (
            f"networks are tried on '{name}', or it is added or removed, by {by}: wait until that ends, then run again"
        ),
    )


def tune(tuning: dict[str, Any], plan: "Plan", seconds: float) -> tuple["Plan", Mapping[str, Any]]:
    """Tune until no choice is at an edge, or about ``seconds`` after the first round; return the plan and metrics.json.

    Each round is written to the tuning's experiment before it is trained.
    """
    from flows.pipeline import pipeline
    from reread.planning.resolve import make_plan
    from reread.planning.trial import widened, wider, write_experiment
    from reread.storage.files import read_json
    from tasks.board import duration
    from tasks.estimate import estimate

    began: float | None = None
    for number in range(ROUNDS + 1):
        write_experiment(plan.name, tuning)
        metrics = read_json(Path(pipeline(plan.name, plan=plan)) / "metrics.json")
        began = began or time.monotonic()
        more = wider(tuning, plan, metrics)
        if not more or number == ROUNDS:
            break
        jobs, workers = make_plan(plan.name, content=widened(tuning, more)).unfinished(), plan.environment.workers
        left = seconds - (time.monotonic() - began)
        about = estimate(jobs, workers)
        needed = dict(about.training)
        for job in jobs:
            needed[job.variant.partition("/")[0]] += RUN_SECONDS / workers + about.evaluation / len(jobs)
        fitting = {}
        for variant in sorted(more, key=lambda name: -best_score(metrics, name)):
            if needed.get(variant, 0.0) <= left:  # nothing is needed where an earlier `try` has finished them
                left -= needed.get(variant, 0.0)
                fitting[variant] = more[variant]
        if open_ := [variant for variant in more if variant not in fitting]:
            print(f"at the edge of what was tried, with no time to go on: {', '.join(open_)} (--minutes gives more)")
        if not fitting:
            break
        tuning = widened(tuning, fitting)
        plan = make_plan(plan.name, content=tuning)
        about_seconds = sum(needed.get(name, 0.0) for name in fitting)
        print(f"tuning goes on with {', '.join(fitting)}: {duration(about_seconds)} about")
    return plan, metrics


def best_score(metrics: Mapping[str, Any], variant: str) -> float:
    """Return the validation score of a variant's chosen trial."""
    about = metrics["tuned"][variant]
    return about["trials"][about["chosen"]] or 0.0


def print_estimate(
    name: str, plans: Sequence["Plan"], minutes: int | None, dry_run: bool
) -> tuple[int, int, float, float]:
    """Print how many runs of the experiments are left and about how long these take here; plans: that of the tuning, if
    there is one, and that which compares.

    Return the runs to tune, those to compare, their seconds, and for how many seconds tuning may go on: ``minutes``,
    or as long as all runs take, finished ones too. The data are prepared for the estimate; on a dry run, what is not
    there yet in a folder that is removed.
    """
    import os
    import tempfile

    from reread.storage.prepared import DESCRIPTION
    from tasks.board import duration
    from tasks.estimate import baseline_seconds, estimate, load
    from tasks.preprocess import prepared_in, preprocess

    with tempfile.TemporaryDirectory() as folder:
        prepared = {}
        preparations = {key: about for plan in plans for key, about in plan.preparations().items()}
        for key, about in preparations.items():
            there = (Path(about["directory"]) / DESCRIPTION).is_file()
            prepared[key] = str(prepared_in(Path(folder), about)) if dry_run and not there else preprocess.fn(about)
        *tunings, final = plans
        every = [job for plan in plans for job in plan.jobs(prepared)]
        jobs, workers = [job for job in every if not job.run.finished], final.environment.workers
        to_compare = sum(job.experiment == final.name for job in jobs)
        to_tune = len(jobs) - to_compare
        estimated = estimate(jobs, workers)
        first = estimate(every, workers) if len(every) > len(jobs) else estimated
        baselines = baseline_seconds(Path(next(iter(prepared.values())))) if jobs else 0.0
        # The tuning and the experiment fit the baselines of their own, on other splits; of cross-validation each fold.
        baselines *= len(plans) if final.folds is None else final.folds * len(final.seeds)

    def parts(about: "Estimate", runs: int) -> dict[str, float]:
        return {
            **about.training,
            "evaluation": about.evaluation,
            "baselines": baselines,  # timed beside the other work
            "starts, reports": (RUN_SECONDS * runs / workers + WHOLE_SECONDS) / max(about.share, LEAST_SHARE),
        }

    seconds_by_part = parts(estimated, len(jobs))
    seconds = sum(seconds_by_part.values())
    further = (sum(parts(first, len(every)).values()) if minutes is None else 60.0 * minutes) if tunings else 0.0
    of_folds = "" if final.folds is None else f" and {final.folds} folds"
    print(
        f"{len(jobs)} runs ({to_tune} to tune, {to_compare} of {len(final.seeds)} seeds{of_folds}): about "
        f"{duration(seconds)} on this machine as it is now, less where runs end early"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for part, its_seconds in seconds_by_part.items():
        table.add_row(Text(f"  {part}"), duration(its_seconds))
    print_table(table)
    cores = len(os.sched_getaffinity(0))
    if (average := load(cores)) is not None:
        print(f"warning: the load average is {average:.1f} on {cores} cores: other work makes this and the runs slower")
    if estimated.share < SHARE_NAMED:
        taken = f"{1 - estimated.share:.0%} of the CPU time that a run could use"
        print(f"other programs take {taken}: the times above allow for it")
    if further:
        print(f"then about {duration(further)} more at most, where a choice is at the edge of what was tried")
    if seconds > LONG_SECONDS:
        print(f"shorter: `reread try {name} --epochs N`, or --variant NAME for only one network, or a GPU")
    return to_tune, to_compare, seconds, further


def print_champion(name: str, report: Path) -> None:
    """Print the champion of the data set, and how to predict with it and serve it."""
    from reread import kinds
    from reread.evaluation.summary import champion_of
    from reread.preprocessing.manifest import Manifest
    from reread.storage.files import read_json
    from reread.tracking.registry import champion_tags

    metrics = read_json(report / "metrics.json")
    best, _ = champion_of(name, metrics)
    if best in kinds.baselines() and kinds.baselines()[best].serve is None:
        print(f"Champion: {best}, which cannot be served: `reread predict --data {name}` names the versions that can")
        return
    champion = champion_tags(name)
    metric = champion.get("validation.metric") or metrics["champions"][name]["metric"]
    score = float(champion["validation.score"])
    print(f"Champion: {champion['variant']}, validation {metric_words(metric)} {score:.4f}")
    if (kind := Manifest.load().entry(name).kind) in EXAMPLES:
        print(f"Predict:  reread predict --data {name} {EXAMPLES[kind]}")
    print(f"Serve:    reread serve model {name}")
