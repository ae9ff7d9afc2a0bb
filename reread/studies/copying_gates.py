"""Gates and gradients of the trained networks of the copying task: does training make a gate that preserves a gradient?

The networks are those of experiments/copying.yaml at one lag, and reread/studies/copying.py judges what they recall.
Their weights are read here, so the runs must be on this machine. Gates and gradients are computed on test sequences, on
the CPU in float64.

Writes results.json, gradients.csv and figure.png.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

import models
from models.symbol_recall import SymbolRecall
from reread.evaluation.pictures import picture
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.copying import SPLIT, parts_of
from reread.studies.jacobians import jacobians, network_of, norms
from reread.studies.load_runs import EvaluatedExperiment
from reread.verdicts.statistics import mean_interval

EXPERIMENT = "copying"
VARIANT = None


@dataclass(frozen=True)
class Settings:
    """lag: the lag whose networks are read."""

    lag: Annotated[int, Range(1)] = 100


DEBUG = Settings(lag=3)


def gradients_after_training(cell: str, lag: int, networks: list[SymbolRecall], prepared: Prepared) -> pd.DataFrame:
    """The spectral norm of dh_T/dh_t on the first test sequence up to its first request: cell, lag, distance, and the
    median with quartiles over seeds."""
    codes = codes_of_test(prepared)[:1, : prepared.description["positions"] + lag]
    values = [
        norms(jacobians(network_of(one.recurrence), one.features[codes][0], one.recurrence.units))["spectral"]
        for one in networks
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
    gates = [one.recurrence.gates(one.features[codes]) for one in networks]
    return {
        span: {
            gate: study_io.interval(mean_interval([float(getattr(seed, gate)[:, steps].mean()) for seed in gates]))
            for gate in ("reset", "update")
        }
        for span, steps in spans.items()
    }


def codes_of_test(prepared: Prepared) -> torch.Tensor:
    """The codes of the test split, int64 [rows, T]."""
    return torch.from_numpy(np.asarray(prepared.arrays["codes"][prepared.rows(SPLIT)])).long()


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Read the gates and gradients of each cell on the CPU; InputError where none was trained at the lag."""
    at_lag = {cell: jobs for (cell, lag), jobs in parts_of(source).items() if lag == settings.lag}
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
    results = {"settings": dataclasses.asdict(settings), "gates_after_training": gates}
    return study_io.Findings(results, {"gradients": pd.concat(gradients, ignore_index=True)})


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from gradients.csv: the spectral norm of dh_T/dh_t, median and quartiles over seeds."""
    table = pd.read_csv(folder / "gradients.csv")
    with picture(path, 5.6, 3.6) as figure:
        axes = figure.subplots()
        for cell, mine in table.groupby("cell", sort=False):
            axes.fill_between(
                mine["distance"],
                mine["low_quartile"],
                mine["high_quartile"],
                color=study_io.CELL_COLOURS[cell],
                alpha=0.18,
                linewidth=0,
            )
            axes.plot(mine["distance"], mine["median"], color=study_io.CELL_COLOURS[cell], linewidth=1.6, label=cell)
        # What leaves the panel has vanished.
        axes.set(yscale="log", ylim=(1e-15, 1e5), xlabel="T − t", ylabel="spectral norm of dh$_T$/dh$_t$")
        axes.set_title(f"after training for a lag of {table['lag'].iloc[0]}")
        axes.legend(fontsize=7)
