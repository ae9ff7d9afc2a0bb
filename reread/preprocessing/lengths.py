"""Lengths of sentences and documents, counted exactly, and the quantiles at which they are truncated.

A length is the number of words of a sentence or of sentences of a document. Histograms hold integers: those of shards
add up to that of the whole, and quantiles are exact.
"""

import csv
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reread.storage.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = {"words": "sentence", "sentences": "document"}  # what is counted: in what
TABLE_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

# Okabe and Ito's colours, distinct for colour-blind readers and in grey: kept is dark, truncated is light.
KEPT_COLOUR, CUT_COLOUR, INK = "#0072B2", "#E69F00", "#222222"
MOST_BARS = 500


class LengthHistogram(Counter[int]):
    """The number of items of each length. Histograms of parts add up by ``+=`` to that of the whole."""

    @classmethod
    def of(cls, lengths: np.ndarray) -> "LengthHistogram":
        """Return the histogram of an int array."""
        values, counts = np.unique(lengths, return_counts=True)
        return cls(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    @property
    def longest(self) -> int:
        return max(self)

    def longer_than(self, length: int) -> int:
        """Return the number of items longer than ``length``."""
        return sum(count for item_length, count in self.items() if item_length > length)

    def quantile(self, quantile: float) -> int:
        """Return the smallest length L such that at least ``quantile`` of the items have a length <= L, exactly.

        The quantile is read as a decimal: 0.55 is 55/100, not the nearest binary number, which would need one item in a
        hundred more. InputError unless it is in (0, 1]; ValueError where there are no items.
        """
        if not 0 < quantile <= 1:
            raise InputError(f"quantile is {quantile}: it must be above 0 and at most 1")
        needed = Fraction(str(quantile)) * self.total()
        reached = 0
        for length in sorted(self):
            reached += self[length]
            if reached >= needed:
                return length
        raise ValueError("a histogram without items has no quantile")


def write_lengths(
    words: LengthHistogram, sentences: LengthHistogram, kept_words: int, kept_sentences: int, title: str, folder: Path
) -> None:
    """Write both distributions into ``folder``, with the same bytes everywhere.

    quantiles.csv has the columns level (words, sentences), quantile and length; lengths.csv has level, length and
    count; lengths.png is that of ``plot_lengths``.
    """
    levels = dict(zip(LEVELS, (words, sentences), strict=True))
    tables: dict[tuple[str, str], list[tuple[str | int, ...]]] = {
        ("quantile", "length"): [
            (level, f"{quantile:g}", histogram.quantile(quantile))
            for level, histogram in levels.items()
            for quantile in TABLE_QUANTILES
        ],
        ("length", "count"): [
            (level, *item) for level, histogram in levels.items() for item in sorted(histogram.items())
        ],
    }
    for columns, rows in tables.items():
        with open(folder / f"{columns[0]}s.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("level", *columns), *rows])
    plot_lengths(words, sentences, kept_words, kept_sentences, title, folder / "lengths.png")


def plot_lengths(
    words: LengthHistogram, sentences: LengthHistogram, kept_words: int, kept_sentences: int, title: str, path: Path
) -> None:
    """Draw both distributions as a PNG, 1500 x 600 pixels; truncated lengths have another colour.

    The axis ends near the 99th percentile, or a little after the truncation; the title counts longer items. Equal
    histograms give equal bytes with one version of matplotlib.
    """
    # Imported here: it is slow, and only drawing needs it.
    import matplotlib
    from matplotlib.figure import Figure

    # The user's matplotlibrc must not change the picture.
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", "font.size": 11}):
        figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
        figure.suptitle(title, color=INK, fontsize=13)
        for axes, level, histogram, kept in zip(
            figure.subplots(1, 2), LEVELS, (words, sentences), (kept_words, kept_sentences), strict=True
        ):
            _draw(axes, level, histogram, kept)
        figure.savefig(path, format="png", metadata={"Software": None})


def _draw(axes: "Axes", level: str, histogram: LengthHistogram, kept: int) -> None:
    item = LEVELS[level]
    end = min(histogram.longest, max(histogram.quantile(0.99), math.ceil(1.25 * kept)), 4 * kept)
    width = math.ceil(end / MOST_BARS)
    # Bins start at the truncation in both directions, so that no bar has both kept and truncated lengths.
    first, last = -math.ceil(kept / width), max(0, math.ceil((end - kept) / width))
    edges = kept + 0.5 + width * np.arange(first, last + 1)
    lengths, counts = np.array(sorted(histogram.items())).T
    percent = 100 / histogram.total() * np.histogram(lengths, edges, weights=counts)[0]
    axes.stairs(percent[:-first], edges[: 1 - first], fill=True, color=KEPT_COLOUR)
    if last:
        axes.stairs(percent[-first:], edges[-first:], fill=True, color=CUT_COLOUR)

    longer = histogram.longer_than(kept)
    side = -1 if kept > 0.5 * end else 1  # on the side that has room
    axes.axvline(kept + 0.5, color=INK, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.annotate(
        f"cut at {kept:,}\n{longer / histogram.total():.1%} of {item}s\nare longer",
        (kept + 0.5, 1),
        xycoords=("data", "axes fraction"),
        xytext=(6 * side, -6),
        textcoords="offset points",
        horizontalalignment="right" if side < 0 else "left",
        verticalalignment="top",
        color=INK,
    )
    axes.set_ylim(0, 1.35 * percent.max())
    axes.set_xlim(0, max(end, kept) + 1)
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    beyond = histogram.longer_than(end)
    note = f" ({beyond:,} are longer than {end:,}, up to {histogram.longest:,})" if beyond else ""
    axes.set_title(f"{histogram.total():,} {item}s{note}", loc="left", fontsize=10, color=INK)
    axes.set_xlabel(f"length of a {item} ({level})")
    axes.set_ylabel(f"share of {item}s (%{f', {width} lengths a bar' if width > 1 else ''})")
    axes.spines[["top", "right"]].set_visible(False)
