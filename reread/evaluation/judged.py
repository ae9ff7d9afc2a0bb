"""The page and the badge of verdict.json (reread.verdicts.document): self-contained, from the values in it alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from reread.evaluation.page import WORDS, render
from reread.evaluation.verdict_table import difference

# Of a plain badge: pixels per letter of 11 px text, and beside a text.
LETTER, BESIDE, HEIGHT = 6.6, 8, 20
LABEL_COLOUR = "#555b63"
COLOURS = {
    "supported": "#00694c",
    "refuted": "#a23c00",
    "equivalent": "#0b5a94",
    "different": "#74338a",
    "inconclusive": "#725400",
}
# A drawing's width and the room at both ends, in units of its own.
WIDTH, EDGE = 640.0, 30.0


def badge(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG that says the verdict of one claim, or counts those of several."""
    counts = Counter(claim["verdict"] for claim in claims)
    verdicts = [word for word in WORDS if word in counts]
    text = verdicts[0] if len(claims) == 1 else ", ".join(f"{counts[word]} {word}" for word in verdicts)
    colour = COLOURS[verdicts[0]] if len(verdicts) == 1 else LABEL_COLOUR
    label = "reread"
    left, right = (round(len(words) * LETTER + 2 * BESIDE) for words in (label, text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}: {escape(text)}"><title>{label}: {escape(text)}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="{HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{HEIGHT}" fill="{LABEL_COLOUR}"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 2 * BESIDE}">{label}</text>'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 2 * BESIDE}">{escape(text)}</text></g></svg>\n'
    )


def report_page(document: Mapping[str, Any]) -> str:
    """Return the page: each claim with its verdict, interval, scores and numbers, then the inputs and the rule."""
    drawings = [(interval_drawing(claim), scores_drawing(claim)) for claim in document["claims"]]
    return render("judged.html", document=document, drawings=drawings, words=WORDS, difference=difference)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """Return factor and offset that bring the values between the edges of a drawing."""
    low, high = min(values), max(values)
    factor = (WIDTH - 2 * EDGE) / ((high - low) or 1.0)
    return factor, EDGE - low * factor


def interval_drawing(claim: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the places of 0, of both margins, and of the difference with the ends of its interval."""
    interval, margin = claim["interval"], claim["equivalence_margin"]
    places = {"low": interval["low"], "high": interval["high"], "mean": interval["mean"]}
    places |= {"zero": 0.0, "less": -margin, "more": margin}
    factor, offset = scale([value for value in places.values() if value is not None])
    return {name: None if value is None else round(value * factor + offset, 1) for name, value in places.items()}


def scores_drawing(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return of both sides the name and the places of each score and of their mean."""
    sides = [(claim[side], claim["scores"][side]) for side in ("treatment", "control")]
    factor, offset = scale([score for _, scores in sides for score in scores])
    return [
        {
            "name": name,
            "scores": [round(score * factor + offset, 1) for score in scores],
            "mean": round(sum(scores) / len(scores) * factor + offset, 1),
        }
        for name, scores in sides
    ]
