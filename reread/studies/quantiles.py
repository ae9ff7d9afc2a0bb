"""At which quantile of the lengths to truncate texts.

The post "Hierarchical attention network for document classification" (December 2018) truncates long sentences and
documents, pads short ones, and says that the length can be chosen by a quantile of the distribution in the training
data. Which quantile it does not say. An experiment such as experiments/quantiles-imdb.yaml has one variant per
quantile, the same for words and sentences, each with its own tuned learning rate. Its report compares them on the test
split; this study puts accuracy beside the share of the text that is kept, and chooses the knee.

The rule of the knee, written before any result: it is chosen on validation. The best quantile has the highest mean
accuracy. A quantile's loss is, seed by seed, the accuracy of the best minus its own. The knee is the smallest quantile
whose mean loss is below the experiment's margin and whose 95 % t interval over seeds excludes a loss as large.

What padding costs in time is measured by benchmarks/padding.py.

Writes results.json, truncation.csv (one row per quantile, the knee marked) and figure.png.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from reread.evaluation.pictures import BLUE, ORANGE, SKY, VERMILLION, picture
from reread.storage.errors import InputError
from reread.storage.prepared import SPLITS
from reread.studies import study_io
from reread.studies.load_runs import EvaluatedExperiment
from reread.verdicts.statistics import mean_interval

EXPERIMENT = "quantiles-docstrings"
VARIANT = None
METRIC = "accuracy"
KNEE = (
    "the smallest quantile whose mean loss of validation accuracy against the best is below the margin, and whose 95 % "
    "t interval over seeds excludes a loss as large"
)


@dataclass(frozen=True)
class Settings:
    """This study has no settings: the experiment has them all."""


DEBUG = Settings()


def knee(accuracy: Mapping[float, Sequence[float]], margin: float) -> tuple[float, float]:
    """Return the knee and the best quantile of each quantile's validation accuracies, seeds in the same order."""
    best = max(sorted(accuracy), key=lambda candidate: np.mean(accuracy[candidate]))
    for quantile in sorted(accuracy):
        loss = mean_interval((np.array(accuracy[best]) - np.array(accuracy[quantile])).tolist())
        if loss.mean < margin and loss.below(margin):
            return quantile, best
    return best, best


def quantiles_of(source: EvaluatedExperiment) -> dict[str, float]:
    """Return each variant's quantile, in rising order.

    InputError unless variants differ in the quantile, the same for words and sentences, and the learning rate alone.
    """
    by_variant: dict[str, float] = {}
    first: dict[str, Any] | None = None
    for name, variant in source.plan.variants.items():
        preprocessing, training = dict(variant.preprocessing), dict(variant.training)
        quantiles = preprocessing.pop("length_quantile", None)
        if quantiles is None or quantiles["words"] != quantiles["sentences"]:
            raise InputError(f"variant '{name}' has no length_quantile that is the same for words and sentences")
        if quantiles["words"] in by_variant.values():
            raise InputError(f"variant '{name}' has the length_quantile of another variant: give each its own")
        by_variant[name] = quantiles["words"]
        del training["learning_rate"]
        rest = {
            "model": variant.model,
            "data": variant.data,
            "preprocessing": preprocessing,
            "network": dict(variant.network),
            "training": training,
        }
        first = first or rest
        for part, value in rest.items():
            if value != first[part]:
                raise InputError(
                    f"variant '{name}' has another {part} than '{next(iter(by_variant))}': "
                    "let variants differ in length_quantile and learning_rate alone"
                )
    return dict(sorted(by_variant.items(), key=lambda item: item[1]))


def kept(description: Mapping[str, Any]) -> dict[str, float]:
    """Return of each split the share of its words that is kept, of its documents that are whole, and of the places
    that are padding where every document is padded to the truncated lengths."""
    words, sentences = (description["lengths"][level]["kept"] for level in ("words", "sentences"))
    shares = {}
    for split in SPLITS:
        counts = description["cut"][split]
        places = counts["documents"] * words * sentences
        shares[f"{split}_words_kept"] = counts["words_kept_share"]
        shares[f"{split}_documents_whole"] = 1 - counts["documents_cut_share"]
        shares[f"{split}_padding"] = 1 - (counts["words"] - counts["words_dropped"]) / places
    return shares


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Choose the knee and put accuracies beside what is kept; the verdicts are those of the experiment's report."""
    quantiles = quantiles_of(source)
    accuracy = {quantile: source.scores(name, "validation", METRIC) for name, quantile in quantiles.items()}
    chosen, best = knee(accuracy, source.plan.equivalence_margin)
    rows = []
    for name, quantile in quantiles.items():
        description = source.descriptions[name]
        row = {
            "data": source.data,
            "variant": name,
            "quantile": quantile,
            "kept_words": description["lengths"]["words"]["kept"],
            "kept_sentences": description["lengths"]["sentences"]["kept"],
            **kept(description),
            "learning_rate": source.plan.variants[name].training["learning_rate"],
        }
        for split in source.plan.splits:
            span = mean_interval(source.scores(name, split, METRIC))
            row |= {f"{split}_accuracy": span.mean, f"{split}_low": span.low, f"{split}_high": span.high}
        rows.append(row | {"knee": quantile == chosen, "best": quantile == best})
    results = {
        "settings": asdict(settings),
        "data": source.data,
        "seeds": list(source.plan.seeds),
        **study_io.rule(source.plan.equivalence_margin, source.plan.alpha),
        "rule_of_the_knee": KNEE,
        "knee": chosen,
        "best": best,
        "claims": study_io.claims(source.verdicts),
    }
    return study_io.Findings(results, {"truncation": pd.DataFrame(rows)})


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from truncation.csv: accuracy, and what is kept."""
    table = pd.read_csv(folder / "truncation.csv")
    with picture(path, 9, 3.6) as figure:
        first, second = figure.subplots(1, 2)
        accuracy_panel(first, table)
        share_panel(second, table)
        for axes in (first, second):
            axes.set_xticks(range(len(table)), [f"{quantile:g}" for quantile in table["quantile"]])
            axes.set_xlabel("quantile")
        figure.suptitle(str(table["data"].iloc[0]))


def accuracy_panel(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the splits with their intervals over seeds, and mark the knee."""
    places = np.arange(len(table))
    for split, colour, shift in (("validation", SKY, -0.06), ("test", BLUE, 0.06)):
        if f"{split}_accuracy" not in table:
            continue
        low, high = table[f"{split}_low"], table[f"{split}_high"]
        if low.notna().all():
            axes.vlines(places + shift, low, high, color=colour, linewidth=2)
        axes.plot(places + shift, table[f"{split}_accuracy"], "o-", color=colour, markersize=4, label=split)
    axes.axvline(table["knee"].to_numpy().argmax(), color=ORANGE, linewidth=6, alpha=0.3, zorder=0, label="knee")
    axes.set_title("accuracy")
    axes.legend(fontsize=7)


def share_panel(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the shares of the training split that are kept, and that are padding."""
    for column, colour, label in (
        ("train_words_kept", BLUE, "words kept"),
        ("train_documents_whole", ORANGE, "documents whole"),
        ("train_padding", VERMILLION, "padding, if padded to the truncated lengths"),
    ):
        axes.plot(range(len(table)), table[column], "o-", color=colour, markersize=4, label=label)
    axes.set(ylim=(0, 1.02), title="shares")
    axes.legend(fontsize=7)
