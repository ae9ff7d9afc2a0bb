"""Accuracy by batch size, for each method of training.

You, Gitman and Ginsburg (Large Batch Training of Convolutional Networks, arXiv 1708.03888, 2017) say that LARS with
warm-up keeps accuracy at large batches, where SGD with linear scaling loses it; Nado et al. (arXiv 2102.06356, 2021)
that a tuned Nesterov momentum does as well. An experiment such as experiments/lars.yaml has one variant per method and
batch size, named METHOD-BATCH, each with its own tuned learning rate and all with equal epochs. Its report compares
some of them; this study puts all of them in one figure, and checks the accuracies that were set as goals beforehand:
the lower end of the interval over seeds must reach them.

Writes results.json, accuracy.csv (one row per method and batch size) and figure.png.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch

from evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, picture
from evaluation.statistics import mean_interval
from storage.errors import InputError
from storage.settings import Range
from studies import study_io
from studies.load_runs import EvaluatedExperiment

EXPERIMENT = "lars"
VARIANT = None
METRIC = "accuracy"
COLOURS = (BLUE, ORANGE, VERMILLION, SKY, GREY, INK)


@dataclass(frozen=True)
class Settings:
    """method: whose accuracy has goals: ``large`` at a batch of 8192, ``largest`` at 16384."""

    method: str = "lars"
    large: Annotated[float, Range(0, 1)] = 0.935
    largest: Annotated[float, Range(0, 1)] = 0.92


DEBUG = Settings()
GOALS = {"large": 8192, "largest": 16384}


def methods_of(source: EvaluatedExperiment) -> dict[str, tuple[str, int]]:
    """Return the method and the batch size of each variant.

    InputError for a variant whose name is not METHOD-BATCH with its own batch_size, and where one is another network or
    has other epochs than the first.
    """
    found: dict[str, tuple[str, int]] = {}
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
        found[name] = method, int(batch)
    return found


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Put the accuracies in one table; the verdicts are those of the experiment's report, and of the goals."""
    split = source.plan.splits[-1]
    rows = []
    for name, (method, batch) in methods_of(source).items():
        training = source.plan.variants[name].training
        span = mean_interval(source.scores(name, split, METRIC))
        rows.append(
            {
                "method": method,
                "batch": batch,
                "learning_rate": training["learning_rate"],
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
        "claims": [*study_io.claims(source.verdicts), *goals(settings, rows)],
    }
    return study_io.Findings(results, {"accuracy": table})


def goals(settings: Settings, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge the goals whose batch size the experiment has: reached, missed, or not settled by the interval."""
    found = []
    for name, batch in GOALS.items():
        goal = getattr(settings, name)
        for row in rows:
            if (row["method"], row["batch"]) == (settings.method, batch):
                says = f"{row['mean']:.4f}, interval {interval(row)}, goal {goal:.4f}, {row['n']} seeds"
                claim = f"{settings.method} reaches {goal:.1%} at a batch of {batch}."
                measured = {key: row[key] for key in ("mean", "low", "high", "n")}
                found.append(
                    {
                        "sentence": "set before the experiment ran",
                        "claim": claim,
                        "verdict": verdict(row, goal),
                        "says": says,
                        "measured": measured,
                    }
                )
    return found


def verdict(row: Mapping[str, Any], goal: float) -> str:
    if row["low"] is None or row["low"] < goal <= row["high"]:
        return "inconclusive"
    return "supported" if row["low"] >= goal else "refuted"


def interval(row: Mapping[str, Any]) -> str:
    return "unknown" if row["low"] is None else f"[{row['low']:.4f}, {row['high']:.4f}]"


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from accuracy.csv: a line for each method, with its intervals over seeds."""
    found = pd.read_csv(folder / "accuracy.csv")
    batches = sorted(found["batch"].unique())
    with picture(path, 6.5, 4) as figure:
        axes = figure.subplots()
        for number, (method, mine) in enumerate(found.groupby("method", sort=True)):
            colour = COLOURS[number % len(COLOURS)]
            # Intervals of several methods at one batch size are drawn side by side.
            places = [batches.index(batch) + 0.06 * (number - 1.5) for batch in mine["batch"]]
            if mine["low"].notna().all():
                axes.vlines(places, mine["low"], mine["high"], color=colour, linewidth=2)
            axes.plot(places, mine["mean"], "o-", color=colour, markersize=4, label=method)
        axes.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
        axes.set(xlabel="batch size", ylabel=f"accuracy, {found['split'].iloc[0]} split")
        axes.legend(fontsize=8)
