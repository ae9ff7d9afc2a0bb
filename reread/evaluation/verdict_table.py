"""Verdicts in the terminal: a line per claim, and each with its numbers. Imports neither torch nor scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reread.evaluation.page import interval, number, p_value, signed
from reread.storage.errors import printable
from reread.verdicts.rule import DIFFERENT, EQUIVALENT, INCONCLUSIVE, REFUTED, SUPPORTED, digits_of

STYLES = {
    SUPPORTED: "bold green",
    REFUTED: "bold red",
    EQUIVALENT: "bold blue",
    DIFFERENT: "bold magenta",
    INCONCLUSIVE: "bold yellow",
}


def claims_table(verdicts: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the claims: each with its verdict, and its difference with the interval that decided it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("claim", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("difference", justify="right", no_wrap=True)
    for verdict in verdicts:
        claim, word = printable(verdict["claim"]), verdict["verdict"]
        table.add_row(Text(claim), Text(word, style=STYLES.get(word, "bold")), difference(verdict))
    return table


def difference(verdict: Mapping[str, Any], between: str = "\n") -> str:
    """Return the difference with its interval, or the ratio of a claim on ratios."""
    if ratio := verdict.get("ratio"):
        return f"×{number(ratio['mean'])}{between}{interval(ratio)}"
    ends, digits = verdict["interval"], digits_of(verdict["equivalence_margin"])
    return f"{signed(ends['mean'], digits)}{between}{interval(ends, digits, sign=True)}" if ends else "–"


def verdict_text(verdict: Mapping[str, Any]) -> Text:
    """Return one verdict: the word, the claim, and its numbers."""
    text = Text("\n")
    text.append(verdict["verdict"], style=STYLES.get(verdict["verdict"], "bold"))
    text.append(f"  {printable(verdict['claim'])}\n{printable(verdict['sentence'])}")
    if verdict["interval"] is not None:
        what = "ratio" if verdict.get("ratio") else "difference"
        shown = f"{difference(verdict, ' ')} at {verdict['interval_level']:.2%}"
        if verdict["interval"]["low"] is None:
            shown = f"{difference(verdict, ', ')} (too few seeds)"
        text.append(
            f"\n{what} {shown}, corrected p of a difference "
            f"{p_value(verdict['holm_p'])}, of equivalence {p_value(verdict['holm_equivalence_p'])}",
            style="dim",
        )
    return text
