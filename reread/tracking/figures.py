"""Parameters, tags and metrics that MLflow keeps of a run, a variant and an evaluation, from their files."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reread.goals import goal
from reread.planning import space
from reread.storage.digests import require_intact
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.run_folder import LATENCY, METRICS, RunFolder, evaluate_again

# Entries of result.json that are no figure of merit, or are logged per epoch already.
NO_METRICS = {"seed", "validation", "betas"}
# The metric of learnt betas, whose step is the layer's number.
BETA = "beta"
TIMING_METRICS = ("seconds", "samples_per_second", "peak_memory_bytes")
LATENCY_METRICS = ("one_by_one", "in_one_batch")
# A parent's metrics, named so that the mean comes first: MLflow's comparison draws the first metric.
INTERVAL = {"mean": "mean", "low": "mean_low", "high": "mean_high"}
SEEDS = "variant.seeds"
REFUSED = re.compile(r"[^\w./: -]")


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Join nested names by dots and write values as text. Leave None out; replace what MLflow refuses in names by _."""
    return {
        REFUSED.sub("_", name): value if isinstance(value, str) else json.dumps(value)
        for name, value in space.flat(values).items()
        if value is not None
    }


def environment_tags(tags: Mapping[str, str], folder: RunFolder) -> dict[str, Any]:
    """Return a run's environment as tags; its commit once, under the name that it has in ``tags``."""
    environment = dict(folder.environment)
    of_git = {f"git.{name}": environment.pop(f"git_{name}", None) for name in ("commit", "dirty")}
    return environment | {name: value for name, value in of_git.items() if name not in tags}


def variant_parameters(job: Job, description: Mapping[str, Any]) -> dict[str, str]:
    """Return a variant's parameters, flattened, without the seed."""
    of_variant = ("variant", "model", "data", "network", "training", "folds")
    given = {name: value for name, value in job.to_json().items() if name in of_variant}
    return flat({**given, "preprocessing": description["settings"]})


def finite(value: Any) -> float | None:
    """Return a finite number as float, None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result and of the mappings in it, names joined by a dot, without counts of rows."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = ((f"{key}.{name}", part) for name, part in value.items() if name != "rows")
            yield from ((name, number) for name, number in inner if isinstance(number, int | float))
        elif isinstance(value, int | float):
            yield key, value


def run_figures(
    folder: RunFolder, task: str, known: Mapping[str, float], evaluation_directory: Path | None
) -> dict[str, float]:
    """Return the metrics of a finished run and of its evaluation; ``known`` are those that MLflow has."""
    result = folder.require_result()
    figures = dict(_numbers({key: value for key, value in result.items() if key not in NO_METRICS}))
    score = f"validation.{goal(task).names[0]}"
    # The evaluation replaces it: that runs on the CPU and may differ in the last digits.
    if score not in known:
        figures[score] = result["validation"]["score"]
    figures |= {name: folder.timing[name] for name in TIMING_METRICS if name in folder.timing}
    if evaluation_directory is not None:
        measured, again = Path(evaluation_directory), evaluate_again(Path(evaluation_directory))
        figures |= dict(_numbers(read_json(require_intact(measured / METRICS, again, required=True))))
        latency = read_json(require_intact(measured / LATENCY, again)) if (measured / LATENCY).is_file() else {}
        figures |= {f"latency.{name}": latency[name] for name in LATENCY_METRICS if name in latency}
    return figures


def betas(result: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    """Return the mean of each layer's learnt betas as a metric whose step is the layer's number."""
    layers = result.get("betas", {}).values()
    return [(BETA, number, sum(beta) / len(beta)) for number, beta in enumerate(layers, 1)]


def mean_and_interval(runs: list[Mapping[str, float]]) -> dict[str, float]:
    """Return NAME.mean, .mean_low, .mean_high of each split's metric that all runs have, and ``variant.seeds``."""
    from reread.goals import bounds
    from reread.verdicts.statistics import mean_interval

    shared = set.intersection(*(set(run) for run in runs)) if runs else set()
    figures: dict[str, float] = {}
    for name in sorted(name for name in shared if name.startswith(("test.", "validation."))):
        interval = mean_interval([run[name] for run in runs], bounds=bounds(name.partition(".")[2]))
        for end in INTERVAL:
            value = getattr(interval, end)
            if value is not None:
                figures[f"{name}.{INTERVAL[end]}"] = value
    return {**figures, SEEDS: float(len(runs))} if figures else {}
