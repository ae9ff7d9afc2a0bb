"""The use of each part of a GRU, where symbols are to be remembered over growing lags.

Asks of every cell of models/layers/cells.py what the post "Understanding GRUs" (December 2018) says or leaves open:
does a gated network remember where the plain one does not; why is there a reset gate when there is an update gate;
what is lost with one gate for both; does tanh "just perform better" than ReLU in the candidate.

The task is that of reread/kinds/symbols.py: four marked symbols, then ``lag`` distractors, then four requests, at which
the four are to be recalled in order. Recall is the share of them that is right; chance gives one in eight.
experiments/copying.yaml trains every cell at every lag. Its test predictions are read here.

Named before the networks were trained: the lag that is judged, the recall that counts as solved, and the margin (the
experiment's). The GRU is compared with each other cell by the rule of reread/verdicts/rule.py, with sequences as items
and Holm's correction over all comparisons.

Writes results.json, recall.csv and figure.png. reread/studies/copying_gates.py reads the gates of the same networks.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

from reread.evaluation.pictures import picture
from reread.storage.arrays import Float32Array, Float64Array
from reread.storage.errors import InputError
from reread.storage.job import Job
from reread.storage.ledger import read_ledger
from reread.storage.prepared import open_prepared
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.load_runs import EvaluatedExperiment
from reread.verdicts.reads import earlier_reads
from reread.verdicts.rule import NETWORKS, Comparison
from reread.verdicts.statistics import mean_interval

EXPERIMENT = "copying"
VARIANT = None
MODEL = "symbol_recall"
SENTENCES = {
    "rnn": "this vanilla RNN structure is too simple to capture that [...] Gated recurrent unit solves the problem",
    "no-update": "the update controls how much information is remembered from old state",
    "no-reset": "why do we need the reset gate at all now that we have the update gate?",
    "minimal": "why do we need the reset gate at all now that we have the update gate? (one gate for both)",
    "gru-relu": "In theory tanh can also be RElu, but in practice it just performs better.",
}
# The split whose rows are read.
SPLIT = "test"
# A cell and a lag.
Part = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """primary_lag: the lag that is judged; solved: the recall above which a lag counts as solved."""

    primary_lag: Annotated[int, Range(1)] = 100
    solved: Annotated[float, Range(0, 1)] = 0.9


DEBUG = Settings(primary_lag=3)


def row_recall(probabilities: Float32Array, labels: np.ndarray, positions: int) -> Float64Array:
    """Return the share of positions whose most probable symbol is right, float64 [rows], of float32 and uint8
    [rows, classes]."""
    guess, truth = (one.reshape(len(one), positions, -1).argmax(axis=2) for one in (probabilities, labels))
    shares: Float64Array = (guess == truth).mean(axis=1)
    return shares


def parts_of(source: EvaluatedExperiment) -> dict[Part, list[Job]]:
    """Return the jobs of each cell and lag, in the order of seeds, by rising lag.

    InputError for another model, and where two variants have the same cell and lag.
    """
    found: dict[Part, list[Job]] = {}
    variants: dict[Part, str] = {}
    for job in source.jobs:
        if job.model != MODEL:
            raise InputError(f"variant '{job.variant}' is a {job.model}: give an experiment of {MODEL}")
        part = (job.network["cell"], source.plan.variants[job.variant].preprocessing["lag"])
        if variants.setdefault(part, job.variant) != job.variant:
            raise InputError(f"variants '{variants[part]}' and '{job.variant}' have the same cell and lag")
        found.setdefault(part, []).append(job)
    return dict(sorted(found.items(), key=lambda one: one[0][1]))


def recall_on_test(source: EvaluatedExperiment, jobs: list[Job]) -> Float64Array:
    """Return the recall of each test sequence by each seed, float64 [seeds, sequences]."""
    prepared = open_prepared(jobs[0].prepared)
    labels, positions = prepared.labels[prepared.rows(SPLIT)], prepared.description["positions"]
    return np.stack([row_recall(source.probabilities(job, SPLIT), labels, positions) for job in jobs])


def judged(settings: Settings, source: EvaluatedExperiment, found: dict[Part, Float64Array]) -> list[dict[str, Any]]:
    """Judge the GRU against each other cell at the primary lag."""
    at_lag = {cell: one for (cell, lag), one in found.items() if lag == settings.primary_lag}
    gru = at_lag.pop("gru")
    comparisons = [
        Comparison(
            name=f"gru-{other}",
            claim=f"A GRU recalls more than {other} over a lag of {settings.primary_lag}",
            source=SENTENCES[other],
            treatment="gru",
            control=other,
            metric="recall",
        )
        for other in at_lag
    ]
    reads = earlier_reads(read_ledger(), source.plan.record(), source.data, ())
    measured = [
        dataclasses.replace(study_io.measured_items(source.plan.seeds, gru, other, NETWORKS), reads=reads)
        for other in at_lag.values()
    ]
    return study_io.judged(comparisons, measured, source.plan.equivalence_margin, source.plan.alpha)


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Measure recall from the predictions of each run, and judge; InputError where the GRU was not trained at the
    primary lag, or the test split was not evaluated."""
    parts = parts_of(source)
    if ("gru", settings.primary_lag) not in parts or SPLIT not in source.plan.splits:
        raise InputError(
            f"experiment '{source.plan.name}' has no gru evaluated on test at lag {settings.primary_lag}: "
            "set --option primary_lag"
        )
    found = {part: recall_on_test(source, jobs) for part, jobs in parts.items()}
    rows = [
        (cell, lag, job.seed, job.training["learning_rate"], float(one.mean()))
        for (cell, lag), jobs in parts.items()
        for job, one in zip(jobs, found[cell, lag], strict=True)
    ]
    spans: dict[str, dict[str, Any]] = {}
    solved: dict[str, list[int]] = {}
    for (cell, lag), one in found.items():
        span = mean_interval(one.mean(axis=1).tolist())
        spans.setdefault(cell, {})[str(lag)] = study_io.interval(span)
        solved.setdefault(cell, []).extend([lag] * span.above(settings.solved))
    results = {
        "settings": dataclasses.asdict(settings),
        **study_io.rule(source.plan.equivalence_margin, source.plan.alpha),
        "claims": judged(settings, source, found),
        "recall": spans,
        "solved": solved,
    }
    return study_io.Findings(
        results, {"recall": pd.DataFrame(rows, columns=["cell", "lag", "seed", "learning_rate", "recall"])}
    )


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from recall.csv: mean recall of each cell over seeds with its interval, by lag."""
    table = pd.read_csv(folder / "recall.csv")
    with picture(path, 5.6, 3.6) as figure:
        axes = figure.subplots()
        lags = sorted(set(table["lag"]))
        for cell, mine in table.groupby("cell", sort=False):
            found = [mean_interval(mine[mine["lag"] == lag]["recall"].to_list()) for lag in lags]
            colour = study_io.CELL_COLOURS[cell]
            study_io.shade(axes, lags, found, colour)
            axes.plot(lags, [one.mean for one in found], "o-", color=colour, markersize=4, label=cell)
        axes.set(xscale="log", xlabel="lag", ylabel="symbols recalled", ylim=(0, 1.02))
        axes.set_xticks(lags, [str(lag) for lag in lags])
        axes.minorticks_off()
        axes.set_title("copy and remember")
        axes.legend(fontsize=7)
