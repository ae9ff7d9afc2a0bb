"""The trials of a tuning: the best one of each variant on validation, and whether it is at an edge of the grid."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

# "learning_rate=0.01" of "han/learning_rate=0.01,cell=gru".
NUMBER_OF_A_TRIAL = re.compile(r"(?<=[/,])([\w.]+)=([-+\d.e]*\d)(?=,|$)")


def tuned(trials: Mapping[str, Sequence[str]], variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each variant of the grid its best trial on validation, and the mean score of every trial."""
    choices = {}
    for name, names in trials.items():
        measured = {trial: variants[trial] for trial in names if trial in variants}
        scores = {trial: about["validation"][about["score"]]["mean"] for trial, about in measured.items()}
        if scores:
            choices[name] = {"chosen": best_variant(list(scores), variants), "trials": scores}
    return choices


def best_variant(names: Sequence[str], variants: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the name with the best mean validation score; ties: fewer parameters, then the name."""
    scores = {name: variants[name]["validation"][variants[name]["score"]]["mean"] for name in names}
    return _best(scores, variants)


def best_baseline(baselines: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    """Return the name of the baseline with the best validation score; ties as of ``best_variant``."""
    return _best({name: baseline["validation"][metric] for name, baseline in baselines.items()}, baselines)


def _best(scores: Mapping[str, float | None], about: Mapping[str, Mapping[str, Any]]) -> str:
    def rank(name: str) -> tuple[float, int, str]:
        score = scores[name]
        return (math.inf if score is None else -score, about[name]["parameters"], name)

    return min(scores, key=rank)


def at_an_end(choice: Mapping[str, Any]) -> list[str]:
    """Return which numbers of the chosen trial of ``tuned`` are the lowest or the highest that were tried, of at least
    three: "highest learning_rate"."""
    tried = {name: dict(NUMBER_OF_A_TRIAL.findall(name)) for name in choice["trials"]}
    ends = []
    for setting, value in tried[choice["chosen"]].items():
        values = sorted({float(numbers[setting]) for numbers in tried.values() if setting in numbers})
        if len(values) > 2 and float(value) in (values[0], values[-1]):
            ends.append(f"{'lowest' if float(value) == values[0] else 'highest'} {setting}")
    return ends
