"""Gates: the memory of a unit and the share that a closed reset gate leaves, by hand; claims; and the evidence."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import models
from models.layers.cells import BidirectionalRecurrence, Recurrence
from reread.batches import collation
from reread.storage.errors import InputError
from reread.studies import gate_measures, gates, study_io
from reread.studies.gates import DEBUG
from reread.studies.jacobians import DTYPE
from reread.studies.load_runs import trained_networks
from reread.studies.movie_plots import PHRASE, PLOTS, in_one_sentence, in_sentences
from reread.verdicts.rule import EQUIVALENT, INCONCLUSIVE, REFUTED, SUPPORTED

CPU = torch.device("cpu")
# Called here and not by the study, which expects it on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.fixture(scope="module")
def evidence(source, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "gates"
    findings = gates.study(DEBUG, source, CPU)
    study_io.publish(place, findings, study_io.provenance(source.keys()), gates.draw_figure)
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
    memory = gate_measures.memory(constant_gates(0.3, (0.9, 0.2)), torch.randn(4, 7, 1, dtype=DTYPE), back=3)
    assert memory == pytest.approx([0.9 + 0.81 + 0.729, 0.2 + 0.04 + 0.008])


def test_a_closed_reset_gate_leaves_what_the_update_gate_keeps():
    """Of h_2 = z h_1 + (1 - z) tanh(x_2), where h_1 = (1 - z) tanh(x_1)."""
    x = torch.tensor([[[0.5], [-1.0]]], dtype=DTYPE)
    old, new = 0.8 * 0.2 * math.tanh(0.5), 0.2 * math.tanh(1.0)
    share = gate_measures.old_share_without_reset(constant_gates(0.3, (0.8,)), x)
    assert share == pytest.approx(old / (old + new))


def test_gates_of_ragged_documents_are_those_of_the_for_loop(source, prepared):
    _, network = next(source.networks(CPU))
    rows = np.array([3, 0, 5])
    with torch.no_grad():
        of_levels = gate_measures.read(network, *collation.inputs(prepared, rows, ragged=True))
        tokens, word_counts, sentence_counts = collation.inputs(prepared, rows)
        loop = BidirectionalRecurrence(8, 4)
        loop.load_state_dict(network.word_gru.state_dict())
        counts = word_counts.flatten()
        expected = loop.gates(network.embedding(tokens.flatten(0, 1)), counts)
        real = torch.arange(tokens.shape[2]) < counts.unsqueeze(-1)
        for gate in gate_measures.GATES:
            torch.testing.assert_close(getattr(of_levels["words"], gate), getattr(expected, gate)[real])
        loop = BidirectionalRecurrence(8, 4)
        loop.load_state_dict(network.sentence_gru.state_dict())
        vectors, _ = network.read_sentences(tokens.flatten(0, 1), counts)
        expected = loop.gates(vectors.unflatten(0, word_counts.shape), sentence_counts)
        real = torch.arange(tokens.shape[1]) < sentence_counts.unsqueeze(-1)
        torch.testing.assert_close(of_levels["sentences"].reset, expected.reset[real])


def test_the_distribution_counts_every_word_once_and_asks_for_some(source, prepared):
    _, network = next(source.networks(CPU))
    distribution = gate_measures.distribution(network, prepared, [2, 9])
    every, where = [], []
    with torch.no_grad():
        for row in range(len(prepared.labels)):
            given = collation.inputs(prepared, np.array([row]), ragged=True)
            of_words = gate_measures.read(network, *given)["words"].reset
            every.append(of_words)
            where.append(given[0][: len(of_words)])
    every, where = torch.cat(every).double(), torch.cat(where)
    histogram = distribution.of["words", "reset"]
    assert histogram.counts.shape == (8, gate_measures.BINS)
    assert (histogram.counts.sum(dim=1) == len(prepared.arrays["tokens"])).all()
    assert histogram.means == pytest.approx(every.mean(dim=0).numpy(), abs=1e-6)
    assert histogram.shares.sum() == pytest.approx(1)
    expected = [every.mean(), every[where == 2].mean(), every[where == 9].mean()]
    assert distribution.at_words["reset"] == pytest.approx([float(mean) for mean in expected], abs=1e-6)


def test_sequences_are_the_first_steps_of_long_enough_sentences(source, prepared):
    _, network = next(source.networks(CPU))
    sequences = gate_measures.drawn_sequences(network, prepared, "words", 5, 6)
    assert sequences.shape == (5, 6, 8) and sequences.dtype == DTYPE
    lengths = np.asarray(prepared.arrays["word_counts"]).reshape(-1)
    firsts = (np.cumsum(lengths) - lengths)[lengths >= 6]
    beginnings = network.embedding.weight[torch.from_numpy(prepared.arrays["tokens"][firsts])].detach().to(DTYPE)
    assert all((beginnings == sequence[0]).all(dim=1).any() for sequence in sequences)
    assert gate_measures.drawn_sequences(network, prepared, "sentences", 5, 3).shape == (5, 3, 8)


def test_the_phrase_is_found_behind_each_plot():
    for plot in PLOTS:
        words, begins = in_one_sentence(plot)
        assert words[begins : begins + len(PHRASE)] == list(PHRASE) and "but" not in words[:begins]
        assert words[begins - 1] == "," and len(in_sentences(plot)) == len(plot) + 1
        assert all(word == word.lower() for word in words)


def test_the_trace_is_usual_before_and_itself_at_the_phrase(evidence):
    table = pd.read_csv(evidence / "trace.csv")
    of_seed = table[(table["seed"] == 0)]
    first = of_seed[(of_seed["level"] == "words") & (of_seed["text"] == 0)]
    words, begins = in_one_sentence(PLOTS[0])
    assert first["word"].to_list() == words
    assert gates.usual(of_seed, "words", "reset")[0] == pytest.approx(first["reset"].iloc[3:begins].mean())
    assert gates.at_phrase(of_seed, "words", "update", 0)[0] == first["update"].iloc[begins]
    apart = of_seed[(of_seed["level"] == "sentences") & (of_seed["text"] == 0)]
    assert gates.usual(of_seed, "sentences", "reset")[0] == pytest.approx(apart["reset"].iloc[1:-1].mean())
    assert gates.at_phrase(of_seed, "sentences", "reset", 0)[0] == apart["reset"].iloc[-1]


def gates_found(seeds: int, correlation: float, old_share: float, generator: np.random.Generator) -> dict:
    """Networks with this correlation and old share, and a reset gate that falls by .2 at 'but'."""
    by_seed = {}
    for seed in range(seeds):
        order = np.arange(300)
        units = [
            pd.DataFrame(
                {
                    "level": "words",
                    "direction": direction,
                    "reset": correlation * order / 87 + generator.normal(size=300),
                    "update": order / 300,
                    "memory": order,
                }
            )
            for direction in ("forwards", "backwards")
        ]
        rows = [
            {"level": level, "text": text, "place": place, "of_phrase": place - 5, "word": "w", "update": 0.5}
            | {"reset": (0.5 if place < 5 else 0.3) + generator.normal(scale=0.01)}
            for level in gate_measures.LEVELS
            for text in range(len(PLOTS))
            for place in range(5 + len(PHRASE))
        ]
        share = {"words": old_share + generator.normal(scale=0.001)}
        by_seed[seed] = gates.Found(pd.concat(units), pd.DataFrame(), pd.DataFrame(rows), {}, share)
    return by_seed


def test_claims_are_judged_by_the_projects_rule_with_holm_over_all_four():
    def verdicts(seeds, correlation, old_share):
        claims = gates.judged(gates_found(seeds, correlation, old_share, np.random.default_rng(0)))
        return [claim["verdict"] for claim in claims], [claim["measured"]["holm_p"] for claim in claims]

    # A correlation of .35 and 8 seeds: p is 2^-7 for each claim, and Holm's procedure leaves each less than the next.
    outcomes, p = verdicts(8, 0.4, 0.6)
    assert outcomes == [REFUTED, SUPPORTED, REFUTED, SUPPORTED] and sorted(p) == pytest.approx(
        [2**-7 * k for k in (1, 2, 3, 4)]
    )
    # With 7 seeds p is 2^-6 and below .05 for each alone; four together cannot be decided.
    outcomes, p = verdicts(7, 0.4, 0.6)
    assert outcomes == [INCONCLUSIVE] * 4 and p == pytest.approx([4 * 2**-6] * 4)
    # The other way round, and nothing at all.
    assert verdicts(8, -0.4, 0.0)[0] == [SUPPORTED, REFUTED, SUPPORTED, SUPPORTED]
    assert verdicts(8, 0.0, 0.1)[0][:3] == [EQUIVALENT] * 3


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, source, study, tmp_path):
    printed = study("gates", *(run.directory for run in source.runs.values()), "--debug", "--to", tmp_path)
    assert "A reset gate of 0 forgets all of the state" in printed
    again = tmp_path / "gates" / "small"
    names = ["figure.png", "histograms.csv", "phrase.csv", "results.json", "trace.csv", "units.csv"]
    assert sorted(path.name for path in again.iterdir()) == names
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_what_is_said_follows_from_the_tables(evidence):
    written, units = json.loads((evidence / "results.json").read_text()), pd.read_csv(evidence / "units.csv")
    assert set(units.groupby(["seed", "level", "direction"]).size()) == {4}
    words = units[units["level"] == "words"]
    expected = [
        np.mean([spearmanr(half["reset"], half["memory"]).statistic for _, half in of_seed.groupby("direction")])
        for _, of_seed in words.groupby("seed")
    ]
    near_0, near_1, but_lower = (claim["measured"]["scores"] for claim in written["claims"][1:])
    assert near_0 == {"treatment": pytest.approx(expected), "control": [0.0]}
    assert near_1 == {"treatment": pytest.approx([-correlation for correlation in expected]), "control": [0.0]}
    # Two seeds cannot decide what many must.
    assert {claim["verdict"] for claim in written["claims"]} == {INCONCLUSIVE}
    phrase = pd.read_csv(evidence / "phrase.csv")
    but = phrase[(phrase["word"] == "but") & (phrase["gate"] == "reset")]
    fall = np.subtract(but_lower["treatment"], but_lower["control"])
    assert fall == pytest.approx((-but["above_usual"]).to_list(), abs=1e-5)


def test_texts_that_are_too_short_are_refused_with_the_options_that_fit(source):
    settings = dataclasses.replace(DEBUG, steps_of_words=99, steps_of_sentences=50, back_of_sentences=8)
    options = "--option steps_of_words=8 --option steps_of_sentences=5 --option back_of_sentences=4$"
    with pytest.raises(InputError, match=f"sentence has 8 of 99 words .* text has 5 of 50 sentences.*{options}"):
        gates.study(settings, source, CPU)


def test_networks_without_two_levels_are_refused(flat_run):
    with pytest.raises(InputError, match="seed 0 is no hierarchical GRU"):
        gates.study(DEBUG, trained_networks([flat_run]), CPU)


@pytest.mark.parametrize(("cell", "is_read"), [("gru", True), ("rnn", False), ("minimal", False), ("gru-relu", False)])
def test_the_gates_of_a_gru_alone_are_read(cell, is_read):
    description = {"name": "few", "vocabulary_size": 9, "classes": ["a", "b"], "kind": "text"}
    network = models.build("han", {"embedding_dim": 4, "hidden_size": 3, "cell": cell}, description)
    assert gate_measures.readable(network) is is_read
