"""Gates and gradients of the trained networks of the copying task: does training make a gate that preserves a gradient?

The networks are those of experiments/copying.yaml at one lag, whose report judges what they recall. Their weights are
read here, so the runs must be on this machine. Gates and gradients are computed on test sequences, on the CPU in
float64. What the networks of every lag recall stands beside them, as the experiment measured it.

Writes results.json, recall.csv, gradients.csv and figure.png.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

import models
from models.symbol_recall import SymbolRecall
from reread.evaluation.pictures import picture
from reread.goals import bounds
from reread.storage.errors import InputError
from reread.storage.job import Job
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.jacobians import jacobians, network_of, norms
from reread.studies.load_runs import EvaluatedExperiment
from reread.verdicts.statistics import mean_interval

EXPERIMENT = "copying"
VARIANT = None
MODEL = "symbol_recall"
METRIC = "recall"
# The split whose rows are read.
SPLIT = "test"
# A cell and a lag.
Part = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """lag: the lag whose networks are read."""

    lag: Annotated[int, Range(1)] = 100


DEBUG = Settings(lag=3)


def parts_of(source: EvaluatedExperiment) -> dict[Part, list[Job]]:
    """Return the jobs of each cell and lag, in the order of seeds, by rising lag.

    InputError for another model, and where two variants have the same cell and lag.
    """
    jobs: dict[Part, list[Job]] = {}
    variants: dict[Part, str] = {}
    for job in source.jobs:
        if job.model != MODEL:
            raise InputError(f"variant '{job.variant}' is a {job.model}: give an experiment of {MODEL}")
        part = (job.network["cell"], source.plan.variants[job.variant].preprocessing["lag"])
        if variants.setdefault(part, job.variant) != job.variant:
            raise InputError(f"variants '{variants[part]}' and '{job.variant}' have the same cell and lag")
        jobs.setdefault(part, []).append(job)
    return dict(sorted(jobs.items(), key=lambda item: item[0][1]))


def recall(source: EvaluatedExperiment, parts: dict[Part, list[Job]]) -> pd.DataFrame:
    """Return the recall that the experiment measured of each seed: cell, lag, seed, recall."""
    rows = [
        (cell, lag, seed, score)
        for (cell, lag), jobs in parts.items()
        for seed, score in zip(source.plan.seeds, source.scores(jobs[0].variant, SPLIT, METRIC), strict=True)
    ]
    return pd.DataFrame(rows, columns=["cell", "lag", "seed", METRIC])


def gradients_after_training(cell: str, lag: int, networks: list[SymbolRecall], prepared: Prepared) -> pd.DataFrame:
    """The spectral norm of dh_T/dh_t on the first test sequence up to its first request: cell, lag, distance, and the
    median with quartiles over seeds."""
    codes = codes_of_test(prepared)[:1, : prepared.description["positions"] + lag]
    values = [
        norms(jacobians(network_of(model.recurrence), model.features[codes][0], model.recurrence.units))["spectral"]
        for model in networks
    ]
    low, median, high = np.quantile(np.stack(values), [0.25, 0.5, 0.75], axis=0)
    rows = {"distance": np.arange(len(median)), "low_quartile": low, "median": median, "high_quartile": high}
    return pd.DataFrame({"cell": cell, "lag": lag, **rows, "n": len(values)})


@torch.no_grad()
def gates_after_training(lag: int, networks: list[SymbolRecall], prepared: Prepared) -> dict[str, Any]:
    """The mean gates over units and test sequences at symbols, distractors and requests: mean over seeds with its
    interval."""
    codes, positions = codes_of_test(prepared), prepared.description["positions"]
    spans = {
        "symbols": slice(0, positions),
        "distractors": slice(positions, positions + lag),
        "requests": slice(positions + lag, None),
    }
    gates = [network.recurrence.gates(network.features[codes]) for network in networks]
    return {
        span: {
            gate: asdict(mean_interval([float(getattr(seed, gate)[:, steps].mean()) for seed in gates]))
            for gate in ("reset", "update")
        }
        for span, steps in spans.items()
    }


def codes_of_test(prepared: Prepared) -> torch.Tensor:
    """The codes of the test split, int64 [rows, T]."""
    return torch.from_numpy(np.asarray(prepared.arrays["codes"][prepared.rows(SPLIT)])).long()


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Read the gates and gradients of each cell on the CPU; InputError where none was trained at the lag."""
    parts = parts_of(source)
    at_lag = {cell: jobs for (cell, lag), jobs in parts.items() if lag == settings.lag}
    if not at_lag:
        raise InputError(f"experiment '{source.plan.name}' has no cell at lag {settings.lag}: set --option lag")
    # Gradients that vanish become denormal numbers, with which a CPU is slow.
    torch.set_flush_denormal(True)
    gates, gradients = {}, []
    for cell, jobs in at_lag.items():
        prepared = open_prepared(jobs[0].prepared)
        networks: list[Any] = [models.load(job.run_directory, prepared.description).double() for job in jobs]
        gates[cell] = gates_after_training(settings.lag, networks, prepared)
        gradients.append(gradients_after_training(cell, settings.lag, networks, prepared))
    results = {"settings": asdict(settings), "gates_after_training": gates}
    tables = {"recall": recall(source, parts), "gradients": pd.concat(gradients, ignore_index=True)}
    return study_io.Findings(results, tables)


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from recall.csv and gradients.csv."""
    with picture(path, 9, 3.6) as figure:
        left, right = figure.subplots(1, 2)
        draw_recall(left, pd.read_csv(folder / "recall.csv"))
        draw_gradients(right, pd.read_csv(folder / "gradients.csv"))


def draw_recall(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the mean recall of each cell over seeds with its interval, by lag."""
    lags = sorted(set(table["lag"]))
    for cell, rows in table.groupby("cell", sort=False):
        spans = [mean_interval(rows[rows["lag"] == lag][METRIC].to_list(), bounds=bounds(METRIC)) for lag in lags]
        colour = study_io.CELL_COLOURS[cell]
        study_io.shade(axes, lags, spans, colour)
        axes.plot(lags, [span.mean for span in spans], "o-", color=colour, markersize=4, label=cell)
    axes.set(xscale="log", xlabel="lag", ylabel="symbols recalled", ylim=(0, 1.02), title="recall by lag")
    axes.set_xticks(lags, [str(lag) for lag in lags])
    axes.minorticks_off()
    axes.legend(fontsize=7)


def draw_gradients(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the spectral norm of dh_T/dh_t, median and quartiles over seeds."""
    for cell, rows in table.groupby("cell", sort=False):
        colour = study_io.CELL_COLOURS[cell]
        axes.fill_between(
            rows["distance"], rows["low_quartile"], rows["high_quartile"], color=colour, alpha=0.18, linewidth=0
        )
        axes.plot(rows["distance"], rows["median"], color=colour, linewidth=1.6, label=cell)
    # What leaves the panel has vanished.
    axes.set(yscale="log", ylim=(1e-15, 1e5), xlabel="T − t", ylabel="spectral norm of dh$_T$/dh$_t$")
    axes.set_title(f"gradient after training for a lag of {table['lag'].iloc[0]}")
