"""HTML pages from reread/evaluation/templates: every value is escaped, nothing is fetched from anywhere.

A page may have scripts: files of reread/evaluation/templates, and VEGA, which draws charts. Its Content-Security-Policy
lets these run by their digests and nothing else, so that a value that slipped through the escaping would not.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from reread.evaluation import vega

TEMPLATES = Path(__file__).resolve().parent / "templates"
# Vega, Vega-Lite and vega-embed, from the package vl-convert.
VEGA = "vega"
MINUS = "\N{MINUS SIGN}"
NO_INTERVAL = "no interval"  # of too few seeds
NO_SPREAD = "no spread"  # of seeds with one value: they have no interval
# The class of style.css and the mark of each verdict.
WORDS = {
    "supported": ("holds", "✓"),
    "refuted": ("fails", "✗"),
    "equivalent": ("none", "≈"),
    "different": ("differs", "≠"),
    "inconclusive": ("open", "?"),
}


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many digits after the point, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def interval(value: Mapping[str, Any] | None, digits: int = 4, sign: bool = False) -> str:
    """The interval of a mapping with low and high: ``[0.1, 0.2]``; equal values and too few have none."""
    if value is None:
        return "–"
    if value["low"] is None:
        return NO_INTERVAL
    if value["low"] == value["high"]:
        return NO_SPREAD
    show = signed if sign else number
    return f"[{show(value['low'], digits)}, {show(value['high'], digits)}]"


def half_width(value: Mapping[str, Any]) -> str:
    """``± 0.0123``, both ends of an interval that ends at a bound, or nothing where there is no interval.

    Values that are all equal say nothing of their spread.
    """
    if value.get("low") is None:
        return ""
    if value["low"] == value["high"]:
        return NO_SPREAD
    below, above = value["mean"] - value["low"], value["high"] - value["mean"]
    if abs(above - below) > 1e-8:  # beyond the rounding of metrics.json
        return f"[{value['low']:.4f}, {value['high']:.4f}]"
    return f"± {(above + below) / 2:.4f}"


def p_value(value: float | None) -> str:
    """A p value; one that is 0 in floating point is below what can be computed."""
    if value is None:
        return "–"
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}" if value > 0 else "< 1e-300"


def seconds(value: float | None) -> str:
    """A time that reads well: microseconds to minutes."""
    if value is None:
        return "–"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 60:.1f} min"


def gibibytes(value: float | None) -> str:
    """An amount of memory given in bytes."""
    return "–" if value is None else f"{value / 2**30:.3g} GiB"


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def paragraphs(text: str) -> list[str | list[str]]:
    """The paragraphs of a text whose lines are wrapped; those that begin with "- " are lists."""
    blocks: list[str | list[str]] = []
    for part in re.split(r"\n\n|\n(?=- )", text.strip()):
        words = " ".join(part.split())
        if not words.startswith("- "):
            blocks.append(words)
        elif blocks and isinstance(blocks[-1], list):
            blocks[-1].append(words[2:])
        else:
            blocks.append([words[2:]])
    return blocks


def embedded(path: Path) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(Path(path).read_bytes()).decode()


def script(name: str) -> str:
    """Return the text of a script: VEGA, which defines ``vegaEmbed``, or a file of reread/evaluation/templates."""
    if name != VEGA:
        return (TEMPLATES / name).read_text(encoding="utf-8")
    # A script element ends at the first such tag, also inside a string.
    return vega.script().replace("</script", "<\\/script")


def allowed(scripts: Sequence[str]) -> str:
    """Return what a page's policy says of its scripts. Vega compiles the expressions of a chart."""
    digests = [base64.b64encode(hashlib.sha256(script(name).encode()).digest()).decode() for name in scripts]
    rules = [f"'sha256-{digest}'" for digest in digests] + ["'unsafe-eval'"] * (VEGA in scripts)
    return " ".join(rules) or "'none'"


@functools.cache
def templates() -> jinja2.Environment:
    """Return the environment that reads the templates, and keeps what it has compiled of them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (number, signed, interval, half_width, p_value, seconds, gibibytes, percent, paragraphs, embedded)
    environment.filters.update({function.__name__: function for function in filters})
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def render(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """The page of a template with its ``scripts``; a value that the template misses is an error."""
    texts = [markupsafe.Markup(f"<script>{script(name)}</script>") for name in scripts]
    return templates().get_template(template).render(scripts=texts, scripts_allowed=allowed(scripts), **values)
