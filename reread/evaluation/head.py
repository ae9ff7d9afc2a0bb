"""The head of a report, on its page and in the terminal: each claim's verdict, the recommendation, and warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

from reread.evaluation.page import number, seconds
from reread.evaluation.summary import champion_of
from reread.evaluation.trials import at_an_end
from reread.goals import metric_words


def recommendations(metrics: Mapping[str, Any], times: Mapping[str, Any] | None = None) -> list[str]:
    """Return for each data set a line on what to use: the network or baseline that is best on validation, and its cost.

    metrics: metrics.json. times: latency.json, by variant; a baseline is not timed. A grid has trials to choose from,
    and nothing to use.
    """
    if metrics.get("tuned"):
        return []
    return [_recommendation(data, metrics, times or {}) for data in metrics["champions"]]


def _recommendation(data: str, metrics: Mapping[str, Any], times: Mapping[str, Any]) -> str:
    name, mean = champion_of(data, metrics)
    metric, split = metrics["champions"][data]["metric"], metrics["evaluated_on"]
    baseline = metrics["baselines"].get(data, {}).get(name)
    text = (
        f"On {data} use {baseline['name'] if baseline else name}: {metric_words(metric)} {number(mean)} on validation"
    )
    if split == "test":
        of_test = baseline["test"][metric] if baseline else metrics["variants"][name]["test"][metric]["mean"]
        text += f", {number(of_test)} on test"
    cost = []
    if time := times.get(name):
        if time.get("training") is not None:
            cost.append(f"trained in {seconds(time['training'])} per seed")
        cost.append(f"{seconds(time['one_by_one'])} {time['unit'].removeprefix('seconds ')}")
    return f"{'; '.join([text, *cost])}."


def warnings_of(metrics: Mapping[str, Any], cautions: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the warnings of tuning: the ``cautions`` of variants and, of a tuning, choices at the end of a grid."""
    tuned = metrics.get("tuned", {})
    told = [choice["chosen"] for choice in tuned.values()] or list(cautions)
    lines = [line for name in told for line in cautions.get(name, ())]
    if metrics["evaluated_on"] == "validation":
        for name, choice in tuned.items():
            ends = at_an_end(choice)
            lines += [f"{name} is best with the {end} tried: try one beyond it." for end in ends]
    return lines
