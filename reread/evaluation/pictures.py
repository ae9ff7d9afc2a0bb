"""The style of pictures that matplotlib draws. The same figures give the same bytes.

Colours: Okabe and Ito 2008, "Color Universal Design", which colour-blind readers and prints in grey distinguish.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#6B7280"
ORANGE, SKY = "#E69F00", "#56B4E9"
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


@contextmanager
def picture(path: Path, width: float, height: float, about: Mapping[str, str] | None = None) -> Iterator[Figure]:
    """A figure of so many inches in the house style, written as PNG without date or version when the block ends.

    about: texts that the file holds beside the pixels.
    """
    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=DPI, metadata={"Software": None, **(about or {})})
