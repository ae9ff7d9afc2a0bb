"""At which quantile to cut: ``python -m studies.quantiles --prepared FOLDER ...``, folders prepared at quantiles of 1.

The post "Hierarchical attention network for document classification" (December 2018) cuts long sentences and documents,
pads short ones, and says of the length that one can look at the distribution in the training data and choose it by a
quantile. No measurement of which was found. Here texts are cut at several, the same for words and sentences (with
--alone also each alone, the other at .95), and networks of Yang et al.'s size are trained on each: accuracy, the share
of the text that is kept, the time of a training step and its memory.

The learning rate is tuned for each cut on validation, by as many trainings for each, on seeds of their own. The test
split is read by the best epoch of each seed, after everything has been chosen. The rules, written before any result:

    The knee is chosen on validation. The best cut is that of the highest mean accuracy; a cut's loss is, seed by seed,
    the best cut's accuracy minus its own. The knee is the smallest quantile whose mean loss is below the smallest
    effect, 0.01, and whose 95 % t interval over seeds excludes a loss as large.
    On test, "texts that are whole are read better than cut ones" is judged for each quantile against 1.0 by the rule of
    evaluation/verdicts.py, with Holm over the quantiles of a data set: five pairs need 8 seeds.

What padding costs is timed at each cut in five ways (studies/padding.py), alone on the device, before anything is
trained.

Writes results.json, cuts.csv (the table, the knee marked), runs.csv, tuning.csv, steps.csv and figure.png. What is
finished is kept in .cache/: a study that was stopped goes on. --workers N trains N networks at a time on one device;
the same command started again beside it takes the next free GPU and shares the work. Times do not repeat to the byte.
"""

import argparse
import dataclasses
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cuda_ext import library
from evaluation.bootstrap import mean_of, two_way_of
from evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, picture
from evaluation.statistics import mean_interval
from evaluation.verdicts import RULE, Comparison, Measured, judge
from models import settings as network_settings
from storage.errors import InputError, command
from studies import evidence
from studies.cuts import DEBUG, KEPT, Corpus, Cut, Plan, Run, Trained, Trainer
from studies.padding import WAYS, Steps
from training.device import acquire_device, configure

NAME = "quantiles"
SMALLEST_EFFECT = 0.01
ALPHA = 0.05
KNEE = (
    "the smallest quantile whose mean loss of validation accuracy against the best is below the smallest effect, and "
    "whose 95 % t interval over seeds excludes a loss as large"
)
POST = "过长的句子被剪掉，过短的句子被补足。具体的长度选取可以看训练数据中长度的分布，用 qunatile 选择。"
WAY_COLOURS = dict(zip(WAYS, (BLUE, SKY, ORANGE, VERMILLION, INK), strict=True))
Runs = list[tuple[Run, Trained]]


def knee(accuracy: Mapping[float, Sequence[float]], smallest_effect: float = SMALLEST_EFFECT) -> tuple[float, float]:
    """The knee and the best quantile, from each quantile's validation accuracies by seed, in one order of seeds."""
    best = max(sorted(accuracy), key=lambda one: np.mean(accuracy[one]))
    for one in sorted(accuracy):
        loss = mean_interval((np.array(accuracy[best]) - np.array(accuracy[one])).tolist())
        if loss.mean < smallest_effect and loss.below(smallest_effect):
            return one, best
    return best, best


def by_cut(runs: Runs) -> dict[Cut, list[Trained]]:
    """What the seeds of each cut came to, in the order of seeds."""
    found: dict[Cut, list[Trained]] = {}
    for run, trained in sorted(runs, key=lambda one: (one[0].cut, one[0].seed)):
        found.setdefault(run.cut, []).append(trained)
    return found


def judged(name: str, plan: Plan, found: Mapping[Cut, list[Trained]]) -> list[dict[str, Any]]:
    """Each quantile against the largest one, on test: items are documents."""
    *cuts, whole = [Cut(one, one) for one in sorted(plan.quantiles)]
    pairs = [
        Comparison(
            name=f"{name}-{one.words:g}",
            claim=f"{name}: texts cut at quantile {whole.words:g} are classified better than at {one.words:g}",
            source=POST,
            treatment=f"q = {whole.words:g}",
            control=f"q = {one.words:g}",
            metric="accuracy",
        )
        for one in cuts
    ]
    measured = []
    for one in cuts:
        tests = [
            (mine.test.astype(float), its.test.astype(float))
            for mine, its in zip(found[whole], found[one], strict=True)
        ]
        both = two_way_of([(mean_of(mine), mean_of(its)) for mine, its in tests], len(tests[0][0]))
        perfect = [cut for cut in (whole, one) if all(trained.test.all() for trained in found[cut])]
        flags = [f"q = {cut.words:g} scores exactly 1 on every seed." for cut in perfect]
        differences = [float(mine.mean() - its.mean()) for mine, its in tests]
        measured.append(Measured(list(range(plan.seeds)), differences, both, flags))
    return [
        {
            "sentence": POST,
            "claim": verdict.comparison.claim,
            "verdict": verdict.verdict,
            "says": verdict.sentence,
            "measured": verdict.as_dict(),
        }
        for verdict in judge(pairs, measured, SMALLEST_EFFECT, ALPHA)
    ]


def cut_table(corpus: Corpus, plan: Plan, rates: Mapping[Cut, float], runs: Runs, steps: Mapping[Cut, list[Steps]]):
    """One row a cut, DataFrame: lengths, shares, accuracies with their intervals, the project's step, the knee."""
    found = by_cut(runs)
    chosen, best = knee({one: [t.validation for t in found[Cut(one, one)]] for one in plan.quantiles})
    rows = []
    for one in plan.cuts:
        sentences, words = corpus.kept(one)
        own = next(way for way in steps[one] if way.way == "project").as_row()
        together = one.words == one.sentences and one.words in plan.quantiles
        row = {
            "data": corpus.name,
            "words": one.words,
            "sentences": one.sentences,
            "together": together,
            "kept_words": words,
            "kept_sentences": sentences,
            **corpus.shares(one),
            "rate": rates[one],
        }
        for split in ("validation", "test"):
            values = [t.validation if split == "validation" else float(t.test.mean()) for t in found[one]]
            span = mean_interval(values)
            row |= {f"{split}_accuracy": span.mean, f"{split}_low": span.low, f"{split}_high": span.high}
        row |= {name: own[name] for name in ("median_ms", "documents_a_second", "peak_memory_gib")}
        rows.append(row | {"knee": together and one.words == chosen, "best": together and one.words == best})
    return pd.DataFrame(rows)


def study(
    plan: Plan, directories: Sequence[Path], place: Path, device: torch.device, kept: Path = KEPT, workers: int = 1
) -> dict[str, Any]:
    """Time, tune, train, test, judge and write the evidence to ``place``; returns results.json's content."""
    corpora = [Corpus(directory, plan.rows) for directory in directories]
    names = [corpus.name for corpus in corpora]
    if len(set(names)) < len(names):
        raise InputError(f"{', '.join(names)}: give each data set once")
    machine = evidence.computed_on(device)
    trainers = [Trainer(plan, corpus, device, machine, kept) for corpus in corpora]
    timed = [{one: trainer.steps(one) for one in plan.cuts} for trainer in trainers]
    # Their work is found where it is kept; what one leaves undone is done here.
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=help_with, args=(plan, list(directories), str(device), kept), daemon=True)
        for _ in range(workers - 1)
    ]
    for other in others:
        other.start()
    claims, tables, knees = [], {"cuts": [], "runs": [], "tuning": [], "steps": []}, {}
    for trainer, steps in zip(trainers, timed, strict=True):
        rates, trials = trainer.tuned()
        runs = trainer.tested(rates)
        corpus = trainer.corpus
        cuts = cut_table(corpus, plan, rates, runs, steps)
        knees[corpus.name] = {name: float(cuts[cuts[name]]["words"].iloc[0]) for name in ("knee", "best")}
        claims += judged(corpus.name, plan, by_cut(runs))
        tables["cuts"].append(cuts)
        tables["runs"].append(run_table(corpus, runs))
        tables["tuning"].append(run_table(corpus, trials))
        tables["steps"].append(step_table(corpus, steps))
    for other in others:
        other.join()
    results = {
        "plan": {
            **dataclasses.asdict(plan),
            "network": dict(plan.network),
            "training": dataclasses.asdict(plan.settings),
        },
        "computed_on": machine | {"kernels": library.kernels(device)},
        "rule": RULE,
        "rule_of_the_knee": KNEE,
        "smallest_effect": SMALLEST_EFFECT,
        "knees": knees,
        "claims": claims,
    }
    evidence.publish(place, results, {name: pd.concat(parts) for name, parts in tables.items()}, draw_figure)
    return results


def help_with(plan: Plan, directories: Sequence[Path], device: str, kept: Path) -> None:
    """Another process of the study: trains what is free."""
    configure(plan.settings)
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    for directory in directories:
        trainer = Trainer(plan, Corpus(directory, plan.rows), where, evidence.computed_on(where), kept)
        trainer.tested(trainer.tuned()[0])


def run_table(corpus: Corpus, runs: Runs) -> pd.DataFrame:
    rows = [
        {
            "data": corpus.name,
            "words": run.cut.words,
            "sentences": run.cut.sentences,
            "rate": run.rate,
            "seed": run.seed,
            "validation_accuracy": trained.validation,
            "test_accuracy": None if trained.test is None else float(trained.test.mean()),
            "epochs": trained.epochs,
            "best_epoch": trained.best_epoch,
        }
        for run, trained in runs
    ]
    return pd.DataFrame(rows)


def step_table(corpus: Corpus, steps: Mapping[Cut, list[Steps]]) -> pd.DataFrame:
    rows = [
        {"data": corpus.name, "words": one.words, "sentences": one.sentences} | way.as_row()
        for one, ways in steps.items()
        for way in ways
    ]
    return pd.DataFrame(rows)


def markdown(cuts: pd.DataFrame) -> str:
    """The table of the cuts as it is printed, the knee marked."""
    lines = [
        "| data | quantile | words x sentences kept | text kept | validation | test | step, ms | GiB |",
        f"|{'---|' * 8}",
    ]
    for row in cuts.itertuples():
        name = f"{row.words:g}" if row.together else f"{row.words:g}, {row.sentences:g}"
        name = f"**{name}**, the knee" if row.knee else name
        test = f"{row.test_accuracy:.4f}"
        if not np.isnan(row.test_low):
            test += f" [{row.test_low:.4f}, {row.test_high:.4f}]"
        memory = "" if pd.isna(row.peak_memory_gib) else f"{row.peak_memory_gib:.2f}"
        lines.append(
            f"| {row.data} | {name} | {row.kept_words:,} x {row.kept_sentences:,} | {row.train_words_kept:.1%} "
            f"| {row.validation_accuracy:.4f} | {test} | {row.median_ms:.2f} | {memory} |"
        )
    return "\n".join(lines)


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from cuts.csv and steps.csv: a row of panels a data set."""
    cuts, steps = pd.read_csv(folder / "cuts.csv"), pd.read_csv(folder / "steps.csv")
    names = list(dict.fromkeys(cuts["data"]))
    with picture(path, 12, 0.5 + 3 * len(names)) as figure:
        for row, (name, grid) in enumerate(zip(names, panels_of(figure, len(names)), strict=True)):
            mine = cuts[cuts["data"] == name]
            quantiles = sorted(set(mine[mine["together"]]["words"]))
            accuracy_panel(grid[0], mine, quantiles)
            share_panel(grid[1], mine[mine["together"]])
            own = steps[(steps["data"] == name) & (steps["words"] == steps["sentences"])]
            own = own[own["words"].isin(quantiles)]
            way_panel(grid[2], own, "documents_a_second", quantiles)
            way_panel(grid[3], own, "padding", quantiles)
            grid[0].set_ylabel(f"{name}\naccuracy")
            grid[1].set_ylabel("share")
            grid[2].set(yscale="log", ylabel="documents a second")
            grid[3].set(ylim=(0, 1), ylabel="padding of what is read")
            for axes in grid:
                axes.set_xticks(range(len(quantiles)), [f"{one:g}" for one in quantiles])
                axes.set_xlabel("quantile" if row == len(names) - 1 else "")
            if row == 0:
                for axes, title in zip(
                    grid, ("accuracy", "what is kept", "a step of training", "padding"), strict=True
                ):
                    axes.set_title(title)
                for axes in grid[:2]:
                    axes.legend(fontsize=7, frameon=True, facecolor="white", edgecolor="none", framealpha=0.85)
                handles, labels = grid[2].get_legend_handles_labels()
                figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)


def panels_of(figure: Figure, rows: int) -> np.ndarray:
    return figure.subplots(rows, 4, squeeze=False)


def accuracy_panel(axes: Axes, found: pd.DataFrame, quantiles: list[float]) -> None:
    """Both splits with their intervals over seeds, the knee marked; words and sentences alone where that was cut."""
    together = found[found["together"]].sort_values("words")
    places = np.arange(len(quantiles))
    for split, colour, shift in (("validation", SKY, -0.06), ("test", BLUE, 0.06)):
        low, high = together[f"{split}_low"], together[f"{split}_high"]
        if low.notna().all():
            axes.vlines(places + shift, low, high, color=colour, linewidth=2)
        axes.plot(places + shift, together[f"{split}_accuracy"], "o-", color=colour, markersize=4, label=split)
    for alone, other, style in (("words", "sentences", ":"), ("sentences", "words", "--")):
        mine = found[~found["together"]]
        mine = mine[mine[other] == mine[other].mode().max()].sort_values(alone) if len(mine) else mine
        if len(mine):
            where = [quantiles.index(one) for one in mine[alone]]
            axes.plot(where, mine["test_accuracy"], style, color=GREY, linewidth=1.2, label=f"test, {alone} alone")
    chosen = together["knee"].to_numpy().argmax()
    axes.axvline(chosen, color=ORANGE, linewidth=6, alpha=0.3, zorder=0, label="knee")


def share_panel(axes: Axes, found: pd.DataFrame) -> None:
    found = found.sort_values("words")
    for column, colour, label in (
        ("train_words_kept", BLUE, "words kept"),
        ("train_documents_whole", ORANGE, "documents whole"),
    ):
        axes.plot(range(len(found)), found[column], "o-", color=colour, markersize=4, label=label)
    axes.set_ylim(0, 1.02)


def way_panel(axes: Axes, found: pd.DataFrame, column: str, quantiles: list[float]) -> None:
    """One line a way; a way that was not timed at a quantile, because it does not fit, has no point there."""
    for way, colour in WAY_COLOURS.items():
        mine = found[found["way"] == way].set_index("words")[column].reindex(quantiles)
        axes.plot(range(len(quantiles)), mine, "o-", color=colour, markersize=4, linewidth=1.4, label=way)


def planned(arguments: argparse.Namespace) -> Plan:
    """The plan that the options ask for; InputError for what cannot be."""
    base = DEBUG if arguments.debug else Plan()
    given = {"seeds": arguments.seeds, "rates": arguments.rates, "timed": arguments.timed}
    plan = dataclasses.replace(
        base,
        alone=arguments.alone,
        network={**base.network, **mapping(arguments.network, "--network")},
        training={**base.training, **mapping(arguments.training, "--training")},
        **{name: tuple(value) if name == "rates" else value for name, value in given.items() if value is not None},
    )
    if plan.seeds < 1 or plan.timed < 1:
        raise InputError(f"--seeds {plan.seeds}, --timed {plan.timed}: give whole numbers of 1 or more")
    if arguments.workers < 1:
        raise InputError(f"--workers is {arguments.workers}: give 1 or more")
    network_settings("han", plan.network)
    for rate in plan.rates:
        dataclasses.replace(plan, training={**plan.training, "learning_rate": rate}).settings  # noqa: B018
    return plan


def mapping(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{option} {text!r} is not JSON ({error}): give an object, as {{}}") from None
    if not isinstance(found, dict):
        raise InputError(f"{option} {text!r} is no object: give settings with their values, as {{}}")
    return found


def main() -> None:
    parser = evidence.options(NAME, "At which quantile of lengths to cut texts, and what padding costs.")
    parser.add_argument("--prepared", type=Path, nargs="+", required=True, help="folders prepared at quantiles of 1")
    parser.add_argument("--alone", action="store_true", help="cut words and sentences also each alone")
    parser.add_argument("--seeds", type=int, help="trainings of each cut (8)")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to try; one is not tuned")
    parser.add_argument("--timed", type=int, help="batches whose steps are timed (30)")
    parser.add_argument("--network", default="{}", help="settings of the network that differ, JSON")
    parser.add_argument("--training", default="{}", help="settings of training that differ, JSON")
    parser.add_argument("--workers", type=int, default=1, help="networks that train at a time on the device")
    arguments = parser.parse_args()
    place = evidence.destination(arguments.to, NAME)
    plan = planned(arguments)
    with acquire_device() as device:
        configure(plan.settings)
        results = study(plan, arguments.prepared, place, device, workers=arguments.workers)
    print(markdown(pd.read_csv(place / "cuts.csv")))
    print(evidence.told(results, place))


if __name__ == "__main__":
    command(main)()
