"""The result of an experiment in the terminal: the claims and what to use, then tables of variants and details."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reread.evaluation.head import recommendations
from reread.evaluation.page import half_width, number
from reread.evaluation.summary import champion_of
from reread.evaluation.trials import at_an_end
from reread.evaluation.verdict_table import claims_table, verdict_text
from reread.goals import goal, higher_is_better, metric_title, metric_words

# The report has the others.
MOST_METRICS = 4
LEAST_NAME = 12  # letters of a variant's name before it is broken


def terminal_table(
    metrics: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    times: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> RenderableType:
    """Return what rich prints: metrics is metrics.json, times latency.json, the others lists of verdicts.json."""
    parts: list[RenderableType] = [claims_table(verdicts)] if verdicts else []
    parts += [Text(line, style="bold") for line in recommendations(metrics, times)]
    parts += [Text(f"Caution: {line}", style="yellow") for line in warnings]
    for data in dict.fromkeys(variant["data"] for variant in metrics["variants"].values()):
        parts.append(data_table(metrics, data))
    by = " or ".join(
        metric_words(score) for score in dict.fromkeys(variant["score"] for variant in metrics["variants"].values())
    )
    unregistered = "; validation only: no model is registered" if metrics["evaluated_on"] == "validation" else ""
    parts.append(Text(f"★ champion: the best mean {by} on the validation split{unregistered}", style="dim"))
    for name, choice in metrics.get("tuned", {}).items():
        score = number(choice["trials"][choice["chosen"]])
        line = Text(f"{name}: the best of {len(choice['trials'])} trials is {choice['chosen']}, {score}")
        if ends := at_an_end(choice):
            line.append(f" (the {' and the '.join(ends)} tried)", style="yellow")
        parts.append(line)
    for verdict in verdicts:
        parts.append(verdict_text(verdict))
    return Group(*parts)


def data_table(metrics: Mapping[str, Any], data: str) -> Table:
    """Return the table of one data set: its variants, then its baselines."""
    split = metrics["evaluated_on"]
    variants = {name: variant for name, variant in metrics["variants"].items() if variant["data"] == data}
    first = next(iter(variants.values()))
    names = list(dict.fromkeys([first["score"], *goal(first["task"]).shown_names]))[:MOST_METRICS]
    folds = metrics.get("folds")
    where = f"all rows by the {split} splits of {folds} folds" if folds else f"{split} split"
    title = f"{data}, {where}: mean and 95 % interval over seeds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("variant", overflow="fold", min_width=min(LEAST_NAME, max(map(len, variants))))
    titles = [metric_title(name) + ("" if higher_is_better(name) else " ↓") for name in names]
    for heading in (*titles, "seeds", "parameters"):
        # A heading is broken between words, and figures are whole at any width.
        least = max(len("± 0.0000"), *map(len, heading.split()))
        table.add_column(heading, justify="right", min_width=min(least, len(heading)))
    champion, _ = champion_of(data, metrics)
    for name, variant in variants.items():
        label = Text(name)
        if name == champion:
            label.append(" ★", style="bold")
        if variant["still_improving_seeds"]:
            label.append(" still improving", style="yellow")
        cells = [f"{number(variant[split][metric]['mean'])}\n{half_width(variant[split][metric])}" for metric in names]
        table.add_row(label, *cells, str(variant["n"]), f"{variant['parameters']:,}")
    for key, baseline in metrics["baselines"].get(data, {}).items():
        cells = [number(baseline[split][metric]) for metric in names]
        table.add_row(
            Text(f"{key} (baseline)" + (" ★" if key == champion else "")),
            *cells,
            "–",
            f"{baseline['parameters']:,}",
            style="dim",
        )
    return table
