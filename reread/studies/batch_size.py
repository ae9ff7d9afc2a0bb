"""Accuracy by batch size, for each method of training.

You, Gitman and Ginsburg (Large Batch Training of Convolutional Networks, arXiv 1708.03888, 2017) say that LARS with
warm-up keeps accuracy at large batches, where SGD with linear scaling loses it; Nado et al. (arXiv 2102.06356, 2021)
that a tuned Nesterov momentum does as well. An experiment such as experiments/lars-batches.yaml has one variant per
method and batch size, named METHOD-BATCH, each with its own learning rate and all with equal epochs. This study puts
all of them in one figure.

Writes results.json, accuracy.csv (one row per method and batch size) and figure.png.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from reread.evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, picture
from reread.storage.errors import InputError
from reread.studies import study_io
from reread.studies.load_runs import EvaluatedExperiment
from reread.verdicts.statistics import mean_interval

EXPERIMENT = "lars-batches"
VARIANT = None
COLOURS = (BLUE, ORANGE, VERMILLION, SKY, GREY, INK)


@dataclass(frozen=True)
class Settings:
    metric: str = "accuracy"


DEBUG = Settings()


def methods_of(source: EvaluatedExperiment) -> dict[str, tuple[str, int]]:
    """Return the method and the batch size of each variant.

    InputError for a variant whose name is not METHOD-BATCH with its own batch_size, and where one is another network or
    has other epochs than the first.
    """
    methods: dict[str, tuple[str, int]] = {}
    first: tuple[str, dict[str, Any]] | None = None
    for name, variant in source.plan.variants.items():
        method, _, batch = name.rpartition("-")
        if not method or batch != str(variant.training["batch_size"]):
            raise InputError(f"variant '{name}' has batch_size {variant.training['batch_size']}: name it METHOD-BATCH")
        shared = {"model": variant.model, "network": dict(variant.network), "epochs": variant.training["max_epochs"]}
        first = first or (name, shared)
        for part, value in shared.items():
            if value != first[1][part]:
                raise InputError(f"variant '{name}' has another {part} than '{first[0]}': give all the same")
        methods[name] = method, int(batch)
    return methods


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Put the scores in one table; the verdicts are those of the experiment's report."""
    split = source.plan.splits[-1]
    rows = []
    for name, (method, batch) in methods_of(source).items():
        training = source.plan.variants[name].training
        span = mean_interval(source.scores(name, split, settings.metric))
        rows.append(
            {
                "method": method,
                "batch": batch,
                "learning_rate": training["learning_rate"],
                "metric": settings.metric,
                "split": split,
                "mean": span.mean,
                "low": span.low,
                "high": span.high,
                "n": span.n,
            }
        )
    table = pd.DataFrame(rows).sort_values(["method", "batch"], kind="stable")
    results = {
        "settings": dataclasses.asdict(settings),
        "data": source.data,
        "seeds": list(source.plan.seeds),
        **study_io.rule(source.plan.equivalence_margin, source.plan.alpha),
        "claims": study_io.claims(source.verdicts),
    }
    return study_io.Findings(results, {"accuracy": table})


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from accuracy.csv: a line for each method, with its intervals over seeds.

    Of accuracy it shows the error by a logarithmic scale, so that one method that fails hides no difference of others.
    """
    table = pd.read_csv(folder / "accuracy.csv")
    batches = sorted(table["batch"].unique())
    label = f"{table['metric'].iloc[0]}, {table['split'].iloc[0]} split"
    errors = bool((table["metric"] == "accuracy").all())
    if errors:
        # An interval over a few seeds may reach above an accuracy of 1.
        means, highs, lows = (100 * (1 - table[name]).clip(lower=1e-4) for name in ("mean", "high", "low"))
        table = table.assign(mean=means, low=highs, high=lows)
        label = f"error, {table['split'].iloc[0]} split (%)"
    with picture(path, 6.5, 4) as figure:
        axes = figure.subplots()
        for number, (method, rows) in enumerate(table.groupby("method", sort=True)):
            colour = COLOURS[number % len(COLOURS)]
            # Intervals of several methods at one batch size are drawn side by side.
            places = [batches.index(batch) + 0.06 * (number - 1.5) for batch in rows["batch"]]
            if rows["low"].notna().all():
                axes.vlines(places, rows["low"], rows["high"], color=colour, linewidth=2)
            axes.plot(places, rows["mean"], "o-", color=colour, markersize=4, label=method)
        axes.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
        axes.set(xlabel="batch size", ylabel=label)
        if errors:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.legend(fontsize=8)
