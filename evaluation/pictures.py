"""The pictures of the report, drawn from evaluation.tables. The same table gives the same bytes.

Colours: Okabe and Ito 2008, "Color Universal Design", which colour-blind readers and prints in grey distinguish.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#6B7280"
ORANGE, SKY = "#E69F00", "#56B4E9"
GREEN, PURPLE = "#009E73", "#CC79A7"
INK, RULE_LINE = "#1F2933", "#D5DAE1"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": RULE_LINE,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#EEF1F5",
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "svg.hashsalt": "reread",
}
DPI = 150
WIDE = 30  # the largest loss over the least: beyond it their scale is logarithmic
COLUMNS = 3
# Of each class a small panel.
CLASS_COLUMNS, CLASS_SIDE = 5, 2.1
# Fewer answers than this say little of a share.
FEWEST_IN_BIN = 20
# A confusion matrix of more classes than this has no room for its numbers.
MOST_CLASSES_WITH_NUMBERS = 12
MOST_CLASSES_WITH_NAMES = 30


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches in the house style, written as PNG without date or version when the block ends."""
    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=DPI, metadata={"Software": None})


def panels(figure: Figure, names: list[str], **keywords: Any) -> dict[str, Axes]:
    """One panel a variant, three a row."""
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    axes = figure.subplots(rows, columns, squeeze=False, **keywords).ravel()
    for unused in axes[len(names) :]:
        unused.set_axis_off()
    return dict(zip(names, axes, strict=False))


def rows_of(names: list[str]) -> int:
    return math.ceil(len(names) / COLUMNS)


def learning_curves(table: pd.DataFrame, path: Path) -> None:
    """Training and validation loss by epoch of each variant: each seed thin, the median thick, the gap shaded.

    Both are the loss of training. Of runs of older code the validation loss without label smoothing is drawn, dotted,
    and no gap: the two cannot be compared.

    The median is drawn as far as half of the seeds went. Where losses fall by more than a factor of WIDE the scale is
    logarithmic: on a linear one the first epochs would leave a line at the bottom of all others.
    """
    names = list(dict.fromkeys(table["variant"]))
    if "validation_comparable_loss" not in table:  # published by older code
        table = table.assign(validation_comparable_loss=np.nan)
    comparable = table["validation_comparable_loss"]
    losses = np.stack([table["training_loss"], comparable.where(comparable.notna(), table["validation_loss"])])
    logarithmic = losses.max() > WIDE * losses.min() > 0
    with picture(path, 10, 0.5 + 2.9 * rows_of(names)) as figure:
        for name, axes in panels(figure, names, sharey=True).items():
            mine = table[table["variant"] == name]
            drawn = {}
            same = mine["validation_comparable_loss"].notna().all()
            validation = "validation_comparable_loss" if same else "validation_loss"
            for column, colour, title in (
                ("training_loss", BLUE, "training"),
                (validation, VERMILLION, "validation" if same else "validation, another loss"),
            ):
                wide = mine.pivot(index="epoch", columns="seed", values=column)
                axes.plot(wide.index, wide.to_numpy(), color=colour, linewidth=0.6, alpha=0.35)
                median = wide[wide.notna().mean(axis=1) >= 0.5].median(axis=1)
                dotted = ":" if column == "validation_loss" else "-"
                axes.plot(median.index, median, color=colour, linewidth=2.2, linestyle=dotted, label=title)
                drawn[column] = median
            if same:
                axes.fill_between(
                    drawn["training_loss"].index,
                    drawn["training_loss"],
                    drawn[validation],
                    color=ORANGE,
                    alpha=0.22,
                    linewidth=0,
                    label="gap",
                )
            axes.set_title(name)
            axes.set_xlabel("epoch")
            if logarithmic:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.locator_params(axis="x", integer=True)
        first = figure.axes[0]
        first.legend(loc="upper right")
        first.set_ylabel("loss (nats, logarithmic)" if logarithmic else "loss (nats)")


def reliability(table: pd.DataFrame, path: Path) -> None:
    """Accuracy against confidence of each variant, all seeds together, with the number of predictions per bin."""
    names = list(dict.fromkeys(table["variant"]))
    with picture(path, 10, 0.6 + 3.6 * rows_of(names)) as figure:
        columns = min(COLUMNS, len(names))
        grid = figure.add_gridspec(2 * rows_of(names), columns, height_ratios=[4, 1] * rows_of(names))
        for number, name in enumerate(names):
            mine = table[table["variant"] == name]
            filled = mine[mine["count"] > 0]
            width = float(mine["high"].iloc[0] - mine["low"].iloc[0])
            row, column = divmod(number, columns)
            axes = figure.add_subplot(grid[2 * row, column])
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="perfect")
            axes.bar(
                filled["low"], filled["accuracy"], width, align="edge", color=SKY, edgecolor="white", label="accuracy"
            )
            axes.plot(
                filled["confidence"], filled["accuracy"], "o", color=BLUE, markersize=4, label="at mean confidence"
            )
            error = (filled["count"] * (filled["confidence"] - filled["accuracy"]).abs()).sum() / filled["count"].sum()
            axes.set_title(name)
            behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
            note = f"ECE of all seeds together {error:.3f}"
            axes.text(0.96, 0.05, note, transform=axes.transAxes, ha="right", color=INK, bbox=behind)
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            axes.tick_params(labelbottom=False)
            counts = figure.add_subplot(grid[2 * row + 1, column], sharex=axes)
            counts.bar(mine["low"], mine["count"] / mine["count"].sum(), width, align="edge", color=GREY)
            counts.set(xlabel="confidence")
            counts.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
            if column == 0:
                axes.set_ylabel("accuracy")
                counts.set_ylabel("share")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)


def roc_by_class(table: pd.DataFrame, path: Path) -> None:
    """Draw the ROC curves of all variants, a panel per class."""
    with class_panels(table, path, "false positive rate", "true positive rate") as drawn:
        for axes, mine, colour, name in drawn:
            axes.plot(mine["false_positive_rate"], mine["true_positive_rate"], color=colour, linewidth=1.3, label=name)


def calibration_by_class(table: pd.DataFrame, path: Path) -> None:
    """Draw the share that came true at each probability of all variants, a panel per class."""
    with class_panels(table, path, "probability", "share that has it") as drawn:
        for axes, mine, colour, name in drawn:
            mine = mine[mine["count"] >= FEWEST_IN_BIN]
            axes.plot(mine["confidence"], mine["share"], "o-", color=colour, linewidth=1.1, markersize=2.8, label=name)


@contextmanager
def class_panels(
    table: pd.DataFrame, path: Path, across: str, up: str
) -> Iterator[Iterator[tuple[Axes, pd.DataFrame, str, str]]]:
    """A square panel per class with its diagonal; yields (axes, rows of the table, colour, variant) to draw."""
    classes, variants = (list(dict.fromkeys(table[column])) for column in ("label", "variant"))
    columns = min(CLASS_COLUMNS, len(classes))
    rows = math.ceil(len(classes) / columns)
    colours = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GREY)
    with picture(path, 0.4 + CLASS_SIDE * columns, 0.8 + CLASS_SIDE * rows) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for unused in grid[len(classes) :]:
            unused.set_axis_off()

        def drawn() -> Iterator[tuple[Axes, pd.DataFrame, str, str]]:
            for place, (label, axes) in enumerate(zip(classes, grid, strict=False)):
                axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
                axes.set(xlim=(0, 1), ylim=(0, 1.02), box_aspect=1, xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
                axes.set_title(str(label).replace("_", " "), size=9)
                axes.tick_params(labelsize=7, labelbottom=place + columns >= len(classes))
                for number, name in enumerate(variants):
                    mine = table[(table["label"] == label) & (table["variant"] == name)]
                    yield axes, mine, colours[number % len(colours)], str(name)

        yield drawn()
        figure.supxlabel(across, size=9)
        figure.supylabel(up, size=9)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=min(4, len(variants)))


def confusion_matrices(table: pd.DataFrame, path: Path) -> None:
    """Draw for the rows of each class the percentage predicted as each class, all seeds together.

    Of several labels: for each label the share found where it is there, and passed over where it is not.
    """
    names = list(dict.fromkeys(table["variant"]))
    several = bool(table["label"].astype(bool).any())
    classes = list(dict.fromkeys(table["label" if several else "actual"]))
    size = 3.4 if len(classes) <= MOST_CLASSES_WITH_NUMBERS else 3.8
    with picture(path, 10, 0.3 + size * rows_of(names)) as figure:
        for number, (name, axes) in enumerate(panels(figure, names).items()):
            mine = table[table["variant"] == name]
            if several:
                right = mine[mine["actual"] == mine["predicted"]].pivot(index="label", columns="actual", values="count")
                every = mine.groupby(["label", "actual"])["count"].sum().unstack()
                counts, totals = right.loc[classes, ["yes", "no"]].to_numpy(), every.loc[classes, ["yes", "no"]]
                shares = counts / np.maximum(totals.to_numpy(), 1)
                columns = ["found", "passed over"]
            else:
                counts = (
                    mine.pivot(index="actual", columns="predicted", values="count").loc[classes, classes].to_numpy()
                )
                shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
                columns = classes
            axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto" if several else "equal")
            axes.grid(False)
            axes.set_title(name)
            if len(classes) <= MOST_CLASSES_WITH_NUMBERS:
                for (row, column), share in np.ndenumerate(shares):
                    if round(100 * share) >= 1:
                        colour = "white" if share > 0.55 else INK
                        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=colour, size=7)
            if len(classes) <= MOST_CLASSES_WITH_NAMES:
                turned = 0 if max(map(len, columns)) <= 2 or several else 45
                axes.set_xticks(
                    range(len(columns)), columns, rotation=turned, ha="right" if turned else "center", size=7
                )
                axes.set_yticks(range(len(classes)), classes, size=7)
            axes.tick_params(length=0)
            axes.set_xlabel("" if several else "predicted")
            if number % COLUMNS == 0:
                axes.set_ylabel("label" if several else "actual")


def betas(table: pd.DataFrame, path: Path) -> None:
    """Draw the learnt betas by layer: each seed thin, their median thick, and where Swish is without a learnt one.

    Where layers have a beta for each channel, lines are their means, and all channels lie in the shaded range.
    """
    names = list(dict.fromkeys(table["variant"]))
    with picture(path, 10, 0.5 + 2.9 * rows_of(names)) as figure:
        for name, axes in panels(figure, names, sharey=True).items():
            mine = table[table["variant"] == name]
            wide = mine.pivot(index="layer", columns="seed", values="beta")
            axes.axhline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="1, where it begins")
            of_layers = mine.groupby("layer")
            low, high = of_layers["low"].min(), of_layers["high"].max()
            if (mine["low"] < mine["high"]).any():
                axes.fill_between(low.index, low, high, color=SKY, alpha=0.3, linewidth=0, label="channels")
            axes.plot(wide.index, wide.to_numpy(), color=BLUE, linewidth=0.6, alpha=0.35)
            axes.plot(wide.index, wide.median(axis=1), color=BLUE, linewidth=2.2, label="median of the seeds")
            axes.set_title(name)
            axes.set_xlabel("layer")
            axes.locator_params(axis="x", integer=True)
        figure.axes[0].legend(loc="best")
        figure.axes[0].set_ylabel("beta")


def paired_differences(table: pd.DataFrame, path: Path) -> None:
    """Draw each comparison's differences by seed, their mean with both intervals, and the equivalence margin."""
    names = list(dict.fromkeys(table["comparison"]))
    confidence = f"{100 * table['confidence'].iloc[0]:g} %"
    methods = " or ".join(dict.fromkeys(table["method"]))
    with picture(path, 10, 1.5 + 0.95 * len(names)) as figure:
        axes = figure.subplots()
        axes.axvline(0, color=GREY, linewidth=1)
        for number, name in enumerate(names):
            mine = table[table["comparison"] == name].iloc
            place = len(names) - 1 - number
            first = mine[0]
            legend = number == 0
            margin = float(first["equivalence_margin"])
            axes.fill_between(
                [-margin, margin], place - 0.45, place + 0.45, color="#EEF1F5", linewidth=0,
                label="equivalence margin" if legend else None,
            )  # fmt: skip
            if not math.isnan(first["low"]):
                axes.plot(
                    [first["low"], first["high"]], [place, place], color=BLUE, linewidth=4,
                    solid_capstyle="butt", label=f"{confidence} over seeds ({methods})" if legend else None,
                )  # fmt: skip
            axes.plot(
                [first["items_low"], first["items_high"]], [place - 0.16] * 2, color=VERMILLION, linewidth=2.5,
                solid_capstyle="butt", label=f"{confidence} over seeds and items" if legend else None,
            )  # fmt: skip
            seeds = mine[:]
            # Equal differences are stacked.
            above = 0.2 + 0.09 * seeds.groupby(seeds["difference"].round(9)).cumcount()
            axes.plot(
                seeds["difference"], place + above, "o", color=GREY, markersize=4.5, alpha=0.75,
                markeredgewidth=0, label="each seed" if legend else None,
            )  # fmt: skip
            axes.plot(
                [first["mean"]], [place], "D", color="white", markeredgecolor=BLUE, markeredgewidth=1.6, markersize=6,
                label="mean" if legend else None,
            )  # fmt: skip
        axes.set_yticks(range(len(names)), [wrapped(table, name) for name in reversed(names)])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("difference (positive favours the claim)")
        figure.legend(loc="outside upper left", ncols=3)


def wrapped(table: pd.DataFrame, name: str) -> str:
    first = table[table["comparison"] == name].iloc[0]
    return f"{first['treatment']} − {first['control']}\n{first['metric'].replace('_', ' ')}"
