"""The copying study: the task, trainings on top of each other, one reading of the test sequences, and the evidence."""

import dataclasses
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.statistics import mean_interval, sign_flip_p
from storage.source import ROOT
from studies import copier, copying
from studies.copier import DEBUG, Plan, Run, Together, best_rate, sequences

COMMITTED = Path(ROOT, "results", "studies", "copying")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def twice(tmp_path_factory) -> tuple[Path, Path]:
    """The study in its size for tests, from nothing, two times: called here, and as a command elsewhere."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    copying.study(DEBUG, here / "copying", CPU, kept=here / "kept")
    done = subprocess.run(
        [sys.executable, "-m", "studies.copying", "--debug", "--to", there],
        cwd=there,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"evidence: {there}/copying" in done.stdout
    return here / "copying", there / "copying"


def test_it_repeats_byte_for_byte(twice):
    one, two = twice
    names = sorted(path.name for path in one.iterdir())
    assert names == ["figure.png", "gradients.csv", "recall.csv", "results.json", "tuning.csv"]
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_what_is_finished_is_taken_up_and_what_is_not_is_made(twice, monkeypatch, tmp_path):
    one, _ = twice
    kept = one.parent / "kept"
    parts = sorted(path for path in kept.iterdir() if path.is_dir())
    assert len(parts) == len(DEBUG.cells) * len(DEBUG.lags)
    lost = parts[0].rename(tmp_path / "lost")
    made = []
    monkeypatch.setattr(copier, "tested", lambda *given, real=copier.tested: made.append(given) or real(*given))
    copying.study(DEBUG, tmp_path / "copying", CPU, kept=kept)
    assert len(made) == 1
    assert (parts[0] / "networks.safetensors").read_bytes() == (lost / "networks.safetensors").read_bytes()
    for path in one.iterdir():
        assert (tmp_path / "copying" / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_figure_is_drawn_from_the_data_files_alone(twice, tmp_path):
    one, _ = twice
    for name in ("recall.csv", "gradients.csv"):
        (tmp_path / name).write_bytes((one / name).read_bytes())
    copying.draw_figure(tmp_path, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (one / "figure.png").read_bytes()


def test_test_sequences_are_read_once_after_tuning_and_by_other_seeds(monkeypatch):
    read = []

    def recall(self, seed, count, lag, real=Together.recall):
        read.append((seed, count, {run.seed for run in self.runs}))
        return real(self, seed, count, lag)

    monkeypatch.setattr(Together, "recall", recall)
    copier.tested(DEBUG, "gru", 3, CPU)
    (first, validation, tuning), (second, test, seeds) = read
    assert (first, second) == (copier.VALIDATION, copier.TEST)
    assert (validation, test) == (DEBUG.validation_sequences, DEBUG.test_sequences)
    assert not tuning & seeds


def test_sequences_are_symbols_then_distractors_then_requests():
    plan = dataclasses.replace(DEBUG, symbols=2, alphabet=3)
    x, answer = sequences(plan, torch.Generator().manual_seed(0), 50, 4)
    assert x.shape == (50, 8, 5) and answer.shape == (50, 2)
    assert torch.equal(x[:, :2, :3].argmax(-1), answer)
    assert (x[:, :6, :3].sum(-1) == 1).all() and not x[:, 6:, :3].any()
    assert x[0, :, 3].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert x[0, :, 4].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    again, _ = sequences(plan, torch.Generator().manual_seed(0), 50, 4)
    assert torch.equal(x, again)


def test_runs_on_top_of_each_other_are_trained_as_each_alone():
    runs = [Run(0, 0.01), Run(1, 0.03), Run(2, 0.01)]
    together = Together(DEBUG, "gru", runs, CPU)
    together.train(3)
    for run, network in zip(runs, together.networks, strict=True):
        alone = Together(DEBUG, "gru", [run], CPU)
        alone.train(3)
        for name, value in alone.networks[0].state_dict().items():
            torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_gru_learns_to_remember():
    plan = dataclasses.replace(DEBUG, symbols=1, units=8, batch=16, steps=150, warmup=10)
    together = Together(plan, "gru", [Run(0, 0.03)], CPU)
    before = together.recall(copier.VALIDATION, 100, 5).mean()
    together.train(5)
    assert before < 0.6 and together.recall(copier.VALIDATION, 100, 5).mean() > 0.95


def test_a_gradient_that_is_not_finite_is_passed_over_and_counted():
    together = Together(DEBUG, "gru-relu", [Run(0, 0.01), Run(1, 0.01)], CPU)
    with torch.no_grad():
        layer = together.networks[0].recurrence
        layer.weight_hh_l0.fill_(1e30)
        for rows, bias in zip(layer.bias_ih_l0.chunk(3), (0.0, -1e3, 1e10), strict=True):
            rows.fill_(bias)
    together.train(3)
    assert together.skipped == [DEBUG.steps, 0]
    assert all(value.isfinite().all() for value in together.networks[0].state_dict().values())


def test_a_step_that_is_passed_over_leaves_the_weights_as_they_are(monkeypatch):
    """Also where earlier steps have given the optimiser a momentum."""
    together = Together(DEBUG, "gru", [Run(0, 0.01)], CPU)
    clip, weights = Together._clip, []

    def poisoned(self):
        if len(weights) == DEBUG.steps - 2:
            self.networks[0].recurrence.weight_hh_l0.grad[0, 0] = float("nan")
        clip(self)
        weights.append([parameter.detach().clone() for parameter in self.networks[0].parameters()])

    monkeypatch.setattr(Together, "_clip", poisoned)
    together.train(3)
    moved = [
        any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) for before, after in pairwise(weights)
    ]
    assert together.skipped == [1] and moved == [True] * (DEBUG.steps - 2) + [False]


def test_of_equal_rates_the_lowest_is_chosen():
    trials = [(0.1, 0, 0.5), (0.1, 1, 0.7), (0.01, 0, 0.6), (0.01, 1, 0.6), (0.001, 0, 0.9), (0.001, 1, 0.1)]
    assert best_rate(trials) == 0.01


def test_what_is_committed_is_what_the_code_says_and_follows_from_its_data():
    said = json.loads((COMMITTED / "results.json").read_text())
    assert said["plan"] == json.loads(json.dumps(dataclasses.asdict(Plan())))
    recall, tuning = pd.read_csv(COMMITTED / "recall.csv"), pd.read_csv(COMMITTED / "tuning.csv")
    trials = tuning.groupby(["cell", "lag"]).size()
    assert set(trials) == {len(Plan().rates) * Plan().tuning_seeds} and len(trials) == 6 * len(Plan().lags)
    for (cell, lag), mine in recall.groupby(["cell", "lag"]):
        assert list(mine["seed"]) == list(range(Plan().seeds))
        found, expected = said["recall"][cell][str(lag)], mean_interval(mine["recall"].to_list())
        assert (found["mean"], found["low"], found["n"]) == pytest.approx((expected.mean, expected.low, expected.n))
        own = tuning[(tuning["cell"] == cell) & (tuning["lag"] == lag)]
        rows = list(own[["rate", "seed", "validation_recall"]].itertuples(index=False, name=None))
        assert best_rate(rows) == mine["rate"].unique()
    wide = recall[recall["lag"] == Plan().primary_lag].pivot(index="seed", columns="cell", values="recall")
    for claim in said["claims"]:
        measured = claim["measured"]
        differences = (wide[measured["better"]] - wide[measured["worse"]]).to_numpy()
        assert np.allclose(differences, measured["differences"], atol=1e-5)
        assert measured["p"] == pytest.approx(sign_flip_p(measured["differences"]))
