"""Draw a report of the kernels: ``python -m benchmarks.kernel_picture REPORT.json PICTURE.png``.

One panel per kernel and one line per case, in the order of the report's table. A line shows the time of the kernel and
of its best peer as multiples of the floor, the least time that the GPU's memory and arithmetic allow. The axis is
logarithmic. Kernels of the report that were removed since are left out.
"""

import argparse
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from cuda_ext.bench import KERNELS
from reread.evaluation.pictures import BLUE, GREY, VERMILLION, picture
from reread.storage.errors import InputError, command
from reread.storage.files import read_json

# The convolution's simpler variants are timed against its best variant, which is not a peer.
OWN = "register"
ROW = {"kernel", "median_ms", "floor_ms", "best_peer", "peers"}
WIDTH = 9.0
INCHES_A_LINE = 0.07
INCHES_A_PANEL = 0.45


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_picture", description="Draw a kernels' report.")
    parser.add_argument("report", type=Path, help="a JSON file of python -m cuda_ext.report or cuda_ext.bench")
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    arguments = parser.parse_args()
    report = read_json(arguments.report)
    rows = report.get("results") if isinstance(report, dict) else None
    if not rows or not all(row.keys() >= ROW for row in rows):
        raise InputError(f"{arguments.report} holds no results: give a report of `python -m cuda_ext.report`")
    # Named by its folder, and at times by its pass: "swish backward".
    rows = [row for row in rows if row["kernel"].split()[0] in KERNELS]
    if not rows:
        raise InputError(f"{arguments.report} has none of the kernels {', '.join(KERNELS)}: give a newer report")
    draw({**report, "results": rows}, arguments.picture)


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the figure of a report to ``path``."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for row in report["results"]:
        if row["best_peer"] == OWN:
            continue
        kernels.setdefault(row["kernel"], []).append(row)
    heights = [INCHES_A_PANEL + INCHES_A_LINE * len(rows) for rows in kernels.values()]
    with picture(path, WIDTH, sum(heights) + 0.5) as figure:
        title(figure, report)
        panels = figure.subplots(len(kernels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, (name, rows) in zip(panels[:, 0], kernels.items(), strict=True):
            panel(axes, name, rows)
        panels[0, 0].legend(loc="upper right", fontsize=8)
        panels[-1, 0].set_xlabel("time over the floor (logarithmic; 1 is as fast as this GPU can be)")


def title(figure: Figure, report: dict[str, Any]) -> None:
    environment = report["environment"]
    figure.suptitle(
        f"Kernels and their best peers on one {environment['gpu']}, torch {environment['torch']}", fontsize=11, x=0.5
    )


def panel(axes: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """Draw the cases of one kernel, the first on top."""
    places = range(len(rows) - 1, -1, -1)
    own = [row["median_ms"] / row["floor_ms"] for row in rows]
    peer = [row["peers"][row["best_peer"]]["median_ms"] / row["floor_ms"] for row in rows]
    axes.hlines(places, own, peer, color=GREY, linewidth=0.6, zorder=1)
    axes.scatter(peer, places, color=VERMILLION, marker="D", s=9, label="best peer", zorder=2)
    axes.scatter(own, places, color=BLUE, marker="o", s=12, label="reread", zorder=3)
    axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([])
    axes.set_ylim(-1, len(rows))
    axes.set_title(f"{name}, {len(rows)} cases", fontsize=9)


if __name__ == "__main__":
    command(main)()
