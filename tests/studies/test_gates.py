"""What gates do: memory of a unit and the share a closed reset gate leaves, by hand; and the evidence of the study."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import models
from batches import collation
from evaluation.statistics import mean_interval
from evaluation.verdicts import INCONCLUSIVE, REFUTED, SUPPORTED
from models.layers.cells import BidirectionalRecurrence, Recurrence
from storage.errors import command
from studies import gate_measures, gates
from studies.gates import DEBUG
from studies.jacobians import DTYPE
from studies.plots import PHRASE, PLOTS, in_one_sentence, in_sentences

CPU = torch.device("cpu")
# Called here and not by the study, which expects it on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.fixture(scope="module")
def evidence(runs, prepared, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "gates"
    gates.study(DEBUG, runs, prepared, place, CPU)
    return place


def constant_gates(reset: float, update: tuple[float, ...]) -> Recurrence:
    """A GRU of one input whose gates do not depend on anything, whose candidate is tanh(x), with no way from unit to
    unit."""
    layer = Recurrence(1, len(update)).to(DTYPE).requires_grad_(False)
    units = layer.units
    for parameter in layer.parameters():
        parameter.zero_()
    layer.weight_ih_l0[2 * units :] = 1
    layer.bias_ih_l0[:units] = math.log(reset / (1 - reset))
    layer.bias_ih_l0[units : 2 * units] = torch.tensor([math.log(z / (1 - z)) for z in update])
    return layer


def test_the_memory_of_a_unit_is_the_sum_of_its_derivatives_by_its_past():
    """With constant z and no way back through the candidate, dh_T/dh_{T-k} is z^k."""
    found = gate_measures.memory(constant_gates(0.3, (0.9, 0.2)), torch.randn(4, 7, 1, dtype=DTYPE), back=3)
    assert found == pytest.approx([0.9 + 0.81 + 0.729, 0.2 + 0.04 + 0.008])


def test_a_closed_reset_gate_leaves_what_the_update_gate_keeps():
    """Of h_2 = z h_1 + (1 - z) tanh(x_2), where h_1 = (1 - z) tanh(x_1)."""
    x = torch.tensor([[[0.5], [-1.0]]], dtype=DTYPE)
    old, new = 0.8 * 0.2 * math.tanh(0.5), 0.2 * math.tanh(1.0)
    found = gate_measures.old_share_without_reset(constant_gates(0.3, (0.8,)), x)
    assert found == pytest.approx(old / (old + new))


def test_gates_of_ragged_documents_are_those_of_the_for_loop(runs, prepared):
    network = models.load(runs[0], prepared.description)
    rows = np.array([3, 0, 5])
    with torch.no_grad():
        found = gate_measures.read(network, *collation.inputs(prepared, rows, ragged=True))
        tokens, word_counts, sentence_counts = collation.inputs(prepared, rows)
        loop = BidirectionalRecurrence(8, 4)
        loop.load_state_dict(network.word_gru.state_dict())
        counts = word_counts.flatten()
        expected = loop.gates(network.embedding(tokens.flatten(0, 1)), counts)
        real = torch.arange(tokens.shape[2]) < counts.unsqueeze(-1)
        for gate in gate_measures.GATES:
            torch.testing.assert_close(getattr(found["words"], gate), getattr(expected, gate)[real])
        loop = BidirectionalRecurrence(8, 4)
        loop.load_state_dict(network.sentence_gru.state_dict())
        vectors, _ = network.read_sentences(tokens.flatten(0, 1), counts)
        expected = loop.gates(vectors.unflatten(0, word_counts.shape), sentence_counts)
        real = torch.arange(tokens.shape[1]) < sentence_counts.unsqueeze(-1)
        torch.testing.assert_close(found["sentences"].reset, expected.reset[real])


def test_the_distribution_counts_every_word_once_and_asks_for_some(runs, prepared):
    network = models.load(runs[0], prepared.description)
    found = gate_measures.distribution(network, prepared, [2, 9])
    every, where = [], []
    with torch.no_grad():
        for row in range(len(prepared.labels)):
            given = collation.inputs(prepared, np.array([row]), ragged=True)
            of_words = gate_measures.read(network, *given)["words"].reset
            every.append(of_words)
            where.append(given[0][: len(of_words)])
    every, where = torch.cat(every).double(), torch.cat(where)
    histogram = found.of["words", "reset"]
    assert histogram.counts.shape == (8, gate_measures.BINS)
    assert (histogram.counts.sum(dim=1) == len(prepared.arrays["tokens"])).all()
    assert histogram.means == pytest.approx(every.mean(dim=0).numpy(), abs=1e-6)
    assert histogram.shares.sum() == pytest.approx(1)
    expected = [every.mean(), every[where == 2].mean(), every[where == 9].mean()]
    assert found.at_words["reset"] == pytest.approx([float(one) for one in expected], abs=1e-6)


def test_sequences_are_the_first_steps_of_long_enough_sentences(runs, prepared):
    network = models.load(runs[0], prepared.description)
    found = gate_measures.drawn_sequences(network, prepared, "words", 5, 6)
    assert found.shape == (5, 6, 8) and found.dtype == DTYPE
    lengths = np.asarray(prepared.arrays["word_counts"]).reshape(-1)
    firsts = (np.cumsum(lengths) - lengths)[lengths >= 6]
    beginnings = network.embedding.weight[torch.from_numpy(prepared.arrays["tokens"][firsts])].detach().to(DTYPE)
    assert all((beginnings == one[0]).all(dim=1).any() for one in found)
    assert gate_measures.drawn_sequences(network, prepared, "sentences", 5, 3).shape == (5, 3, 8)


def test_the_phrase_is_found_behind_each_plot():
    for plot in PLOTS:
        words, begins = in_one_sentence(plot)
        assert words[begins : begins + len(PHRASE)] == list(PHRASE) and "but" not in words[:begins]
        assert words[begins - 1] == "," and len(in_sentences(plot)) == len(plot) + 1
        assert all(word == word.lower() for word in words)


def test_the_trace_is_usual_before_and_itself_at_the_phrase(evidence):
    table = pd.read_csv(evidence / "trace.csv")
    one = table[(table["seed"] == 0)]
    first = one[(one["level"] == "words") & (one["text"] == 0)]
    words, begins = in_one_sentence(PLOTS[0])
    assert first["word"].to_list() == words
    assert gates.usual(one, "words", "reset")[0] == pytest.approx(first["reset"].iloc[3:begins].mean())
    assert gates.at_phrase(one, "words", "update", 0)[0] == first["update"].iloc[begins]
    apart = one[(one["level"] == "sentences") & (one["text"] == 0)]
    assert gates.usual(one, "sentences", "reset")[0] == pytest.approx(apart["reset"].iloc[1:-1].mean())
    assert gates.at_phrase(one, "sentences", "reset", 0)[0] == apart["reset"].iloc[-1]


def test_a_correlation_decides_where_all_of_its_interval_lies_beyond_the_bound():
    far, near = mean_interval([0.3, 0.32, 0.28]), mean_interval([0.3, 0.0, 0.1])
    assert gates.decided(far, 0.03, 0.1) == SUPPORTED
    assert gates.decided(gates.mirrored(far), 0.03, 0.1) == REFUTED
    assert gates.decided(far, 0.06, 0.1) == gates.decided(near, 0.03, 0.1) == INCONCLUSIVE


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, runs, text_directory, tmp_path, monkeypatch, capsys):
    given = ["--debug", "--to", str(tmp_path), "--prepared", str(text_directory), "--runs", *map(str, runs)]
    monkeypatch.setattr(sys, "argv", ["studies.gates", *given])
    with pytest.raises(SystemExit, match="0"):
        command(gates.main)()
    assert "A reset gate of 0 forgets all of the state" in capsys.readouterr().out
    again = tmp_path / "gates" / "small"
    tables = ["histograms.csv", "phrase.csv", "trace.csv", "units.csv"]
    assert sorted(path.name for path in again.iterdir()) == [
        "figure.png",
        *tables[:1],
        tables[1],
        "results.json",
        *tables[2:],
    ]
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_what_is_said_follows_from_the_tables(evidence):
    said, units = json.loads((evidence / "results.json").read_text()), pd.read_csv(evidence / "units.csv")
    assert set(units.groupby(["seed", "level", "direction"]).size()) == {4}
    words = units[units["level"] == "words"]
    expected = [
        np.mean([spearmanr(one["reset"], one["memory"]).statistic for _, one in mine.groupby("direction")])
        for _, mine in words.groupby("seed")
    ]
    assert said["claims"][1]["measured"]["by_seed"] == pytest.approx(expected)
    assert said["claims"][2]["measured"]["by_seed"] == pytest.approx(expected)
    # Two seeds cannot decide what many must.
    assert {one["verdict"] for one in said["claims"][1:]} == {INCONCLUSIVE}
    phrase = pd.read_csv(evidence / "phrase.csv")
    but = phrase[(phrase["word"] == "but") & (phrase["gate"] == "reset")]
    assert said["claims"][3]["measured"]["differences"] == pytest.approx((-but["above_usual"]).to_list(), abs=1e-5)


def test_networks_without_two_levels_are_refused(flat_run, text_directory, tmp_path, monkeypatch, capsys):
    given = ["--debug", "--to", str(tmp_path), "--prepared", str(text_directory), "--runs", str(flat_run)]
    monkeypatch.setattr(sys, "argv", ["studies.gates", *given])
    with pytest.raises(SystemExit, match="2"):
        command(gates.main)()
    assert "not hierarchical GRUs" in capsys.readouterr().err


@pytest.mark.parametrize(("cell", "is_read"), [("gru", True), ("rnn", False), ("minimal", False), ("gru-relu", False)])
def test_the_gates_of_a_gru_alone_are_read(cell, is_read):
    description = {"name": "few", "vocabulary_size": 9, "classes": ["a", "b"], "kind": "text"}
    network = models.build("han", {"embedding_dim": 4, "hidden_size": 3, "cell": cell}, description)
    assert gate_measures.readable(network) is is_read
