"""Draw the charts of the pages from the evidence in cuda_ext/results/ and results/.

    python docs/pictures.py            # draw docs/kernels.png, docs/kernels/*.png and docs/results/batch-size.png
    python docs/pictures.py --check    # change nothing; exit with code 1 where a chart is of other evidence

kernels.png has the claims on time with their ratios. The chart of an operation has a line for each case of its table:
the times of the kernel and of its best peer as multiples of the floor, the least time that the GPU's memory and
arithmetic allow. batch-size.png has the error by batch size for each method of the experiment lars-batches. Axes are
logarithmic. A chart's file has the digest of what it shows.
"""

import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.tables import batch_scores, reported, timing_claims  # noqa: E402
from reread.evaluation.pictures import BLUE, GREY, ORANGE, SKY, VERMILLION, picture  # noqa: E402
from reread.storage.files import content_key  # noqa: E402

# The convolution's simpler variants are timed beside its best one, which is no peer: they are left out.
OWN = "register"
WIDTH = 7.5
# The name of the digest in a file.
EVIDENCE = "evidence"
# Beyond this ratio, numbers between the powers of ten would touch.
WIDE = 1000
INCHES_A_LINE = 0.17
COLOURS = {
    "supported": BLUE,
    "different": SKY,
    "equivalent": GREY,
    "inconclusive": ORANGE,
    "refuted": VERMILLION,
}


def charts() -> dict[Path, tuple[Callable[[Any, Path], None], Any]]:
    """Return each chart's place, what draws it there, and what it shows."""
    drawings: dict[Path, tuple[Callable[[Any, Path], None], Any]] = {
        ROOT / "docs/kernels.png": (draw_claims, timing_claims()),
        ROOT / "docs/results/batch-size.png": (draw_batches, batch_scores()),
    }
    for page in sorted((ROOT / "docs/kernels").glob("*.md")):
        try:
            drawings[page.with_suffix(".png")] = draw_cases, reported(page.stem)
        except KeyError:  # not measured
            continue
    return drawings


def draw_claims(claims: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw each claim's ratio with its interval; a small line marks its margin."""
    with picture(path, WIDTH, 0.36 * len(claims) + 0.7, {EVIDENCE: content_key(claims)}) as figure:
        axes = figure.subplots()
        texts = [textwrap.fill(claim["claim"], 62) for claim in claims]
        for place, claim in lines(axes, texts, claims):
            ratio, colour = claim["ratio"], COLOURS[claim["verdict"]]
            axes.hlines(place, ratio["low"], ratio["high"], color=colour, linewidth=2)
            axes.scatter(ratio["mean"], place, color=colour, s=22, zorder=3)
            axes.vlines(ratio["margin"], place - 0.3, place + 0.3, color=GREY, linewidth=1)
        for verdict, colour in COLOURS.items():
            if any(claim["verdict"] == verdict for claim in claims):
                axes.scatter([], [], color=colour, s=22, label=verdict)
        axes.legend(loc="lower right", fontsize=8)
        axes.set_xlabel("times as fast as the peer\n(the small line: the margin that a claim must pass)")


def draw_cases(report: dict[str, Any], path: Path) -> None:
    """Draw the cases of one operation's report."""
    environment = report["environment"]
    cases = [case for case in report["results"] if case["best_peer"] != OWN]
    with picture(path, WIDTH, INCHES_A_LINE * len(cases) + 0.9, {EVIDENCE: content_key(report)}) as figure:
        axes = figure.subplots()
        names = [", ".join([*case["kernel"].split()[1:], case["shape"], case["dtype"]]) for case in cases]
        for place, case in lines(axes, names, cases):
            own, peer = (
                time / case["floor_ms"] for time in (case["median_ms"], case["peers"][case["best_peer"]]["median_ms"])
            )
            axes.hlines(place, own, peer, color=GREY, linewidth=0.6, zorder=1)
            axes.scatter(peer, place, color=VERMILLION, marker="D", s=14, zorder=2)
            axes.scatter(own, place, color=BLUE, s=18, zorder=3)
        if axes.get_xlim()[1] > WIDE:
            axes.xaxis.set_major_locator(LogLocator())
        axes.scatter([], [], color=BLUE, s=18, label="reread")
        axes.scatter([], [], color=VERMILLION, marker="D", s=14, label="best peer")
        figure.legend(loc="outside upper right", ncols=2, fontsize=8)
        axes.set_title(f"{environment['gpu']}, torch {environment['torch']}, {report['date']}", fontsize=8)
        axes.set_xlabel("time over the floor; 1 is as fast as this GPU can be")


def draw_batches(scores: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Draw the error of each method by batch size, with its interval over seeds."""
    with picture(path, 6.5, 4, {EVIDENCE: content_key(scores)}) as figure:
        axes = figure.subplots()
        for number, (method, by_batch) in enumerate(scores.items()):
            colour = (BLUE, ORANGE, VERMILLION, SKY)[number]
            # Intervals of several methods at one batch size are drawn side by side.
            places = [place + 0.06 * (number - 1.5) for place in range(len(by_batch))]
            mean, low, high = (
                [100 * (1 - score[key]) for score in by_batch.values()] for key in ("mean", "high", "low")
            )
            axes.vlines(places, low, high, color=colour, linewidth=2)
            axes.plot(places, mean, "o-", color=colour, markersize=4, label=method)
            axes.set_xticks(range(len(by_batch)), [f"{batch:,}" for batch in by_batch])
        axes.set(xlabel="batch size", ylabel="error, test split (%)", yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.legend(fontsize=8)


def lines(axes: Axes, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Give the axes a line for each row, the first on top; return the place of each."""
    places = range(len(rows) - 1, -1, -1)
    axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(list(places), names, fontsize=7.5)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    return list(zip(places, rows, strict=True))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/pictures.py [--check]", file=sys.stderr)
        return 2
    differing = 0
    for path, (draw, shown) in charts().items():
        if not arguments:
            draw(shown, path)
        elif evidence(path) != content_key(shown):
            print(f"{path.relative_to(ROOT)} is not of today's evidence: run `python docs/pictures.py`")
            differing += 1
    return int(differing > 0)


def evidence(path: Path) -> str | None:
    """Return the digest of what a chart shows, None where there is no such chart."""
    if not path.is_file():
        return None
    with Image.open(path) as image:
        return image.info.get(EVIDENCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
