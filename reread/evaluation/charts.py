"""The charts of the report as Vega-Lite specifications, from the tables of reread.evaluation.tables and
reread.evaluation.by_class.

reread/evaluation/templates/charts/NAME.json is a chart without its data. A colour in it is "@NAME", a custom property
--chart-NAME of style.css: the page fills in its light or dark value, ``png`` the light one.

Colours: Okabe and Ito 2008, "Color Universal Design", which colour-blind readers and prints in grey distinguish.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reread.evaluation.page import TEMPLATES
from reread.goals import metric_words

Chart = dict[str, Any]

# The largest loss over the least, beyond which their scale is logarithmic.
WIDE = 30
MOST_TICKS = 6
# Confusions of more classes than this are drawn of the worst ten; the others are one column.
MOST_CLASSES, WORST = 14, 10
OTHERS = "all others"
RECALL, SPECIFICITY = "recall", "specificity"
# Of more letters than this, names of classes take the place of a panel. Width in pixels.
LONG_NAME, WIDE_PANEL = 8, 300
# Fewer answers than this say little of a share.
FEWEST_IN_BIN = 20
PNG_SCALE = 2


@functools.cache
def _template(name: str) -> str:
    return (TEMPLATES / "charts" / f"{name}.json").read_text(encoding="utf-8")


def chart(name: str, rows: pd.DataFrame | Sequence[Mapping[str, Any]]) -> Chart:
    """Return the chart ``name`` of ``rows``; numbers that are not finite are null."""
    spec = json.loads(_template(name))
    table = pd.DataFrame(rows)
    values = table.astype(object).where(table.notna(), None).to_dict("records")
    spec["data"]["values"] = [
        {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in values
    ]
    if "facet" in spec:  # panels in the order of the rows
        field = spec["facet"]["field"]
        spec["facet"]["sort"] = list(dict.fromkeys(row[field] for row in values))
    return spec


def png(spec: Chart, path: Path) -> None:
    """Draw a chart on white."""
    import vl_convert

    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    colours = dict(reversed(re.findall(r"--chart-([\w-]+): (#\w+);", css)))  # the first, light ones
    filled = re.sub(r'"@([\w-]+)"', lambda match: f'"{colours[match[1]]}"', json.dumps(spec))
    config = {"background": "white", "padding": 12, "axis": {"gridColor": "#EEF1F5"}, "view": {"stroke": None}}
    path.write_bytes(vl_convert.vegalite_to_png(filled, scale=PNG_SCALE, config=config))


def curves(table: pd.DataFrame) -> Chart:
    """Return the learning curves of curves.csv: each seed, the medians over seeds, and the gap between them.

    Both losses are the one that training minimises. Where validation has another one, it is a line of its own, and
    there is no gap: the two cannot be compared. A median is drawn as far as half of the seeds went.
    """
    if "validation_comparable_loss" not in table:  # published by older code
        table = table.assign(validation_comparable_loss=np.nan)
    parts = []
    for name, of_variant in table.groupby("variant", sort=False):
        same = of_variant["validation_comparable_loss"].notna().all()
        held_out = "validation_comparable_loss" if same else "validation_loss"
        titles = {"training_loss": "training", held_out: "validation" if same else "validation, another loss"}
        medians = {}
        for column, title in titles.items():
            seeds = of_variant[["variant", "seed", "epoch"]].assign(part="seed", split=title, loss=of_variant[column])
            wide = of_variant.pivot(index="epoch", columns="seed", values=column)
            medians[title] = wide[wide.notna().mean(axis=1) >= 0.5].median(axis=1)
            parts += [seeds, _median(name, title, medians[title])]
        if same:
            gap = medians["validation"] - medians["training"]
            parts[-1] = parts[-1].assign(
                gap=gap.to_numpy(), low=medians["training"].to_numpy(), high=medians["validation"].to_numpy()
            )
    rows = pd.concat(parts, ignore_index=True)
    drawing = chart("curves", rows)
    drawing["spec"]["encoding"]["x"]["axis"]["values"] = whole_numbers(int(table["epoch"].max()))
    drawn = set(rows["split"])
    for layer in drawing["spec"]["layer"]:
        if "color" in layer["encoding"]:
            scale = layer["encoding"]["color"]["scale"]
            shown = [pair for pair in zip(scale["domain"], scale["range"], strict=True) if pair[0] in drawn]
            scale["domain"], scale["range"] = map(list, zip(*shown, strict=True))
    losses = table[["training_loss", "validation_loss"]].to_numpy(float)
    if np.nanmax(losses) > WIDE * np.nanmin(losses) > 0:
        for layer in drawing["spec"]["layer"]:
            layer["encoding"]["y"] |= {"scale": {"type": "log"}, "title": "loss (logarithmic)"}
    return drawing


def whole_numbers(most: int) -> list[int]:
    """Return the ticks of an axis of epochs: at most MOST_TICKS multiples of 1, 2 or 5 times a power of ten."""
    step = next(
        candidate
        for candidate in itertools.count(1)
        if most <= candidate * MOST_TICKS and str(candidate).rstrip("0") in ("1", "2", "5")
    )
    return list(range(step, most + 1, step))


def _median(variant: Any, split: str, median: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(
        {"variant": variant, "epoch": median.index, "part": "median", "split": split, "loss": median.to_numpy()}
    )


def scores(rows: Sequence[Mapping[str, Any]], title: str) -> Chart:
    """Return each seed's score with the mean and interval: rows with variant, part (mean, seed or baseline), score."""
    spec = chart("scores", spread(rows, "variant"))
    spec["layer"][0]["encoding"]["x"]["title"] = title
    return spec


def differences(table: pd.DataFrame) -> Chart:
    """Return each comparison's differences by seed, their mean with the decision's interval, and the margin."""
    metric = table["metric"].map(metric_words).str.replace(" at ", "|at ")  # "|" breaks the line
    table = table.assign(pair=table["treatment"] + "|− " + table["control"] + "|" + metric)
    seeds = table[["comparison", "pair", "treatment", "control", "metric", "seed", "difference"]].assign(part="seed")
    seeds = pd.DataFrame(spread(seeds.to_dict("records"), "comparison"))
    first = table.drop_duplicates("comparison")
    means = first.assign(
        part="mean", difference=first["mean"],
        margin_low=-first["equivalence_margin"], margin_high=first["equivalence_margin"],
    ).drop(columns=["seed", "mean"])  # fmt: skip
    spec = chart("differences", pd.concat([means, seeds], ignore_index=True))
    ends = sorted({table["confidence"].min(), table["confidence"].max()})
    confidence = " to ".join(f"{100 * level:.4g} %" for level in ends)
    spec["title"] |= {
        "text": [f"blue: the interval that decides ({confidence})"],
        "subtitle": "grey: each seed of the treatment, band: equivalence margin",
    }
    return spec


def spread(rows: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the rows with a ``jitter`` in [-1, 1] for seeds, so that equal ones can be told apart."""
    numbers: dict[Any, int] = {}
    jittered = []
    for row in rows:
        jitter = 0.0
        if row["part"] == "seed":
            number = numbers[row[key]] = numbers.get(row[key], -1) + 1
            jitter = 0.8 * (2 * math.modf(number * 0.618034)[0] - 1)
        jittered.append({**row, "jitter": jitter})
    return jittered


def calibration(table: pd.DataFrame) -> Chart:
    """Return the reliability diagrams of calibration.csv, with the calibration error in each title."""
    filled = table[table["count"] > 0].copy()
    totals = filled.groupby("variant", sort=False)["count"].transform("sum")
    filled["share"] = filled["count"] / totals
    distance = (filled["share"] * (filled["confidence"] - filled["accuracy"]).abs()).groupby(filled["variant"]).sum()
    filled["variant"] = [f"{name}|ECE {distance[name]:.3f}" for name in filled["variant"]]
    return chart("calibration", filled.drop(columns=["data", "low", "high"], errors="ignore"))


def confusion(table: pd.DataFrame) -> Chart:
    """Return the shares of each class predicted as each class, of confusion.csv; of many classes the worst ten.

    Of several labels: for each label its recall and its specificity; a label that no row has is without a recall.
    """
    if table["label"].astype(bool).any():
        return _found_labels(table)
    shown = predicted = list(dict.fromkeys(table["actual"]))
    if len(shown) > MOST_CLASSES:
        shown = worst_classes(table)
        predicted = [*shown, OTHERS]
        table = table[table["actual"].isin(shown)].copy()
        table["predicted"] = table["predicted"].where(table["predicted"].isin(shown), OTHERS)
        table = table.groupby(["variant", "actual", "predicted"], sort=False)["count"].sum().reset_index()
    totals = table.groupby(["variant", "actual"], sort=False)["count"].transform("sum")
    columns = ["variant", "actual", "predicted", "count"]
    return matrix(table[columns].assign(share=table["count"] / totals.clip(lower=1)), shown, predicted)


def matrix(shares: pd.DataFrame, actual: Sequence[str], predicted: Sequence[str]) -> Chart:
    """Return the chart of confusions with its rows and columns in these orders; long names leave room for two."""
    spec = chart("confusion", shares)
    if max(map(len, actual), default=0) > LONG_NAME:
        spec["columns"] = 2
        spec["spec"]["width"] = WIDE_PANEL
    spec["spec"]["encoding"]["y"]["sort"], spec["spec"]["encoding"]["x"]["sort"] = list(actual), list(predicted)
    return spec


def worst_classes(table: pd.DataFrame) -> list[str]:
    """Return the ten classes whose rows are most often predicted wrongly, all variants and seeds together."""
    right = table[table["actual"] == table["predicted"]].groupby("actual")["count"].sum()
    totals = table.groupby("actual")["count"].sum()
    shares = (right / totals[totals > 0]).dropna().sort_values(kind="stable")
    return list(shares.index[:WORST])


def _found_labels(table: pd.DataFrame) -> Chart:
    keys = ["variant", "label", "actual"]
    right = table[table["actual"] == table["predicted"]]
    totals = table.groupby(keys, sort=False)["count"].sum().loc[pd.MultiIndex.from_frame(right[keys])].to_numpy()
    shown = pd.DataFrame(
        {
            "variant": right["variant"], "actual": right["label"], "count": right["count"],
            "predicted": right["actual"].map({"yes": RECALL, "no": SPECIFICITY}),
            "share": right["count"] / totals.clip(min=1),
        }
    ).loc[totals > 0]  # fmt: skip
    labels = list(dict.fromkeys(shown["actual"]))
    if len(labels) > MOST_CLASSES:
        recall = shown[shown["predicted"] == RECALL].groupby("actual", sort=False)["share"].mean()
        shown = shown[shown["actual"].isin(recall.sort_values(kind="stable").index[:WORST])]
    spec = matrix(shown, list(dict.fromkeys(shown["actual"])), [RECALL, SPECIFICITY])
    spec["spec"]["layer"][1].pop("transform")  # which leaves small shares without a number
    spec["spec"]["encoding"]["y"]["title"], spec["spec"]["encoding"]["x"]["title"] = "label", None
    return spec


def betas(table: pd.DataFrame) -> Chart:
    """Return the learnt betas of betas.csv by layer."""
    return chart("betas", table.drop(columns="data").assign(part="seed"))


def roc(table: pd.DataFrame) -> Chart:
    """Return the ROC curves of roc.csv, a panel per class."""
    return chart("roc", table.drop(columns="data"))


def class_calibration(table: pd.DataFrame) -> Chart:
    """Return the share that came true at each probability of class-calibration.csv, a panel per class."""
    return chart("class-calibration", table[table["count"] >= FEWEST_IN_BIN].drop(columns=["data", "low", "high"]))
