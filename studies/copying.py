"""Copy and remember at growing lags: ``python -m studies.copying [--to FOLDER] [--debug]``.

Asks of every cell of models/layers/cells.py what the post "Understanding GRUs" (December 2018) says or leaves open:
does a gated network remember where the plain one does not; why is there a reset gate when there is an update gate;
what is lost with one gate for both; does tanh "just perform better" than ReLU in the candidate.

The task is the copying memory problem of Arjovsky, Shah and Bengio 2016, arXiv 1511.06464 (after Hochreiter and
Schmidhuber 1997), made harder by distractors: four marked symbols, then ``lag`` symbols of the same alphabet to be
passed over, then four requests, at which the four are to be said in order. Recall is the share of them that is right;
chance gives one in eight.

One training for each cell, lag and seed: AdamW without decay, the same batches for every cell, in which the lag is
drawn from 1 to the one that is tested, evenly in its logarithm, so that every cell can begin with what it can reach.
The learning rate is tuned for each cell and lag on validation sequences, by as many trainings for each, on seeds of
their own; the test sequences are read once. The runs of a cell and lag are trained together, on top of each other.

Writes results.json, recall.csv, tuning.csv, gradients.csv and figure.png. Twelve minutes on one core, or on a GPU when
there is one. What is finished is kept in .cache/: a study that was stopped goes on, and one that is started twice
shares the work.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from evaluation.bootstrap import mean_of, two_way_of
from evaluation.pictures import picture
from evaluation.statistics import mean_interval
from evaluation.verdicts import RULE, Comparison, Measured, judge
from models.layers.cells import Name
from storage.errors import command
from studies import evidence
from studies.copier import DEBUG, KEPT, TEST, Plan, Tested, all_tested, sequences
from studies.evidence import CELL_COLOURS
from studies.jacobians import jacobians, network_of, norms
from training.device import acquire_device, configure
from training.settings import Settings

NAME = "copying"
# Named before the tested seeds were trained: the recall that counts as solved, and the difference that would matter.
SOLVED = 0.9
SMALLEST_EFFECT = 0.05
ALPHA = 0.05
SENTENCES = {
    "rnn": "this vanilla RNN structure is too simple to capture that [...] Gated recurrent unit solves the problem",
    "no-update": "the update controls how much information is remembered from old state",
    "no-reset": "why do we need the reset gate at all now that we have the update gate?",
    "minimal": "why do we need the reset gate at all now that we have the update gate? (one gate for both)",
    "gru-relu": "In theory tanh can also be RElu, but in practice it just performs better.",
}


def gradients_after_training(plan: Plan, found: Sequence[Tested]) -> pd.DataFrame:
    """The spectral norm of dh_T/dh_t of the trained networks of the primary lag, on a test sequence up to its first
    request: cell, lag, distance, and the median with quartiles over seeds."""
    blocks = []
    for one in found:
        x, _ = sequences(plan, torch.Generator().manual_seed(TEST + one.lag), 1, one.lag)
        x = x[0, : plan.symbols + one.lag].double()
        values = [
            norms(jacobians(network_of(network.recurrence.double()), x, plan.units))["spectral"]
            for network in one.networks
        ]
        low, median, high = np.quantile(np.stack(values), [0.25, 0.5, 0.75], axis=0)
        blocks.append(
            pd.DataFrame(
                {
                    "cell": one.cell,
                    "lag": one.lag,
                    "distance": np.arange(len(median)),
                    "low_quartile": low,
                    "median": median,
                    "high_quartile": high,
                    "n": len(values),
                }
            )
        )
    return pd.concat(blocks, ignore_index=True)


@torch.no_grad()
def gates_after_training(plan: Plan, found: Sequence[Tested]) -> dict[str, Any]:
    """Mean gates of each trained network of the primary lag, over units and test sequences, while it is told symbols,
    while it passes over distractors, and while it answers: mean over seeds with its interval."""
    said = {}
    for one in found:
        x, _ = sequences(plan, torch.Generator().manual_seed(TEST + one.lag), plan.test_sequences, one.lag)
        spans = {
            "symbols": slice(0, plan.symbols),
            "distractors": slice(plan.symbols, plan.symbols + one.lag),
            "answers": slice(plan.symbols + one.lag, None),
        }
        gates = [network.recurrence.float().gates(x) for network in one.networks]
        said[one.cell] = {
            span: {
                gate: evidence.interval(mean_interval([float(getattr(seed, gate)[:, steps].mean()) for seed in gates]))
                for gate in ("reset", "update")
            }
            for span, steps in spans.items()
        }
    return said


def judged(plan: Plan, found: dict[tuple[Name, int], Tested]) -> list[dict[str, Any]]:
    """The GRU against each other cell at the primary lag, by the rule of evaluation.verdicts: the items are sequences,
    and an item's score is the share of its symbols that is right."""
    others = [cell for cell in plan.cells if cell != "gru"]
    pairs = [
        Comparison(
            name=f"gru-{other}",
            claim=f"A GRU recalls more than {other} over a lag of {plan.primary_lag}",
            source=SENTENCES[other],
            treatment="gru",
            control=other,
            metric="recall",
        )
        for other in others
    ]
    gru = found["gru", plan.primary_lag].recall
    measured = []
    for other in others:
        recall = found[other, plan.primary_lag].recall
        both = two_way_of([(mean_of(mine), mean_of(its)) for mine, its in zip(gru, recall, strict=True)], gru.shape[1])
        perfect = [name for name, one in (("gru", gru), (other, recall)) if (one == 1).all()]
        flags = [f"{name} scores exactly 1 on every seed." for name in perfect]
        differences = (gru.mean(axis=1) - recall.mean(axis=1)).tolist()
        measured.append(Measured(list(range(plan.seeds)), differences, both, flags))
    verdicts = judge(pairs, measured, SMALLEST_EFFECT, ALPHA)
    return [
        {
            "sentence": verdict.comparison.source,
            "claim": verdict.comparison.claim,
            "verdict": verdict.verdict,
            "says": verdict.sentence,
            "measured": verdict.as_dict(),
        }
        for verdict in verdicts
    ]


def solved(plan: Plan, table: pd.DataFrame) -> dict[str, list[int]]:
    """The lags that each cell solves: the interval of its mean recall over seeds lies above SOLVED."""
    found = {}
    for cell in plan.cells:
        mine = table[table["cell"] == cell]
        found[cell] = [
            lag for lag in plan.lags if mean_interval(mine[mine["lag"] == lag]["recall"].to_list()).above(SOLVED)
        ]
    return found


def study(plan: Plan, place: Path, device: torch.device, kept: Path = KEPT) -> dict[str, Any]:
    """Train, test, judge and write the evidence to ``place``; returns results.json's content."""
    machine = evidence.computed_on(device)
    tests = all_tested(plan, device, machine, kept)
    found = {(one.cell, one.lag): one for one in tests}
    primary = [found[cell, plan.primary_lag] for cell in plan.cells]
    recall = pd.DataFrame(
        [
            (one.cell, one.lag, seed, one.rate, float(one.recall[seed].mean()), one.skipped[seed])
            for one in tests
            for seed in range(plan.seeds)
        ],
        columns=["cell", "lag", "seed", "rate", "recall", "skipped_steps"],
    )
    means = {
        cell: {
            str(lag): evidence.interval(mean_interval(found[cell, lag].recall.mean(axis=1).tolist()))
            for lag in plan.lags
        }
        for cell in plan.cells
    }
    results = {
        "plan": dataclasses.asdict(plan),
        "computed_on": machine,
        "rule": RULE,
        "smallest_effect": SMALLEST_EFFECT,
        "claims": judged(plan, found),
        "recall": means,
        "solved": solved(plan, recall),
        "gates_after_training": gates_after_training(plan, primary),
    }
    tuning = pd.DataFrame(
        [(one.cell, one.lag, *trial) for one in tests for trial in one.trials],
        columns=["cell", "lag", "rate", "seed", "validation_recall"],
    )
    tables = {
        "recall": recall,
        "tuning": tuning,
        "gradients": gradients_after_training(plan, primary),
    }
    evidence.publish(place, results, tables, draw_figure)
    return results


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from recall.csv and gradients.csv."""
    recall, gradients = pd.read_csv(folder / "recall.csv"), pd.read_csv(folder / "gradients.csv")
    with picture(path, 10, 3.6) as figure:
        first, second = figure.subplots(1, 2)
        recall_panel(first, recall)
        gradient_panel(second, gradients)


def recall_panel(axes: Axes, table: pd.DataFrame) -> None:
    """Mean recall of each cell over seeds with its interval, by lag."""
    lags = sorted(set(table["lag"]))
    for cell, mine in table.groupby("cell", sort=False):
        found = [mean_interval(mine[mine["lag"] == lag]["recall"].to_list()) for lag in lags]
        colour, low, high = CELL_COLOURS[cell], [one.low for one in found], [one.high for one in found]
        axes.fill_between(lags, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(lags, [one.mean for one in found], "o-", color=colour, markersize=4, label=cell)
    axes.set(xscale="log", xlabel="lag", ylabel="symbols recalled", ylim=(0, 1.02))
    axes.set_xticks(lags, [str(lag) for lag in lags])
    axes.minorticks_off()
    axes.set_title("copy and remember")
    axes.legend(fontsize=7)


def gradient_panel(axes: Axes, table: pd.DataFrame) -> None:
    """The spectral norm of dh_T/dh_t after training: median and quartiles over seeds."""
    for cell, mine in table.groupby("cell", sort=False):
        axes.fill_between(
            mine["distance"],
            mine["low_quartile"],
            mine["high_quartile"],
            color=CELL_COLOURS[cell],
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(mine["distance"], mine["median"], color=CELL_COLOURS[cell], linewidth=1.6, label=cell)
    # What leaves the panel has vanished.
    axes.set(yscale="log", ylim=(1e-15, 1e5), xlabel="T − t", ylabel="spectral norm of dh$_T$/dh$_t$")
    axes.set_title(f"after training for a lag of {table['lag'].iloc[0]}")


def main() -> None:
    arguments = evidence.arguments(NAME, "What each part of a GRU is for, where symbols are to be remembered.")
    place = evidence.destination(arguments.to, NAME)
    with acquire_device() as device:
        configure(Settings())
        # Gradients that vanish become denormal numbers, with which a CPU is slow.
        torch.set_flush_denormal(True)
        print(evidence.told(study(DEBUG if arguments.debug else Plan(), place, device), place))


if __name__ == "__main__":
    command(main)()
