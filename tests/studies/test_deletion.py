"""What attended words are worth: what is removed, that a document never gets empty, and the evidence of the study."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import models
from batches import collation
from batches.subsets import select_rows
from models.objectives import to_probabilities
from storage.errors import command
from studies import deletion, trained
from studies.deletion import ATTENDED, DEBUG, GRADIENT, RANDOM, highest

CPU = torch.device("cpu")
# Called here and not by the study, which expects it on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.fixture(scope="module")
def evidence(runs, prepared, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "deletion"
    deletion.study(DEBUG, runs, prepared, place, CPU)
    return place


def test_the_highest_of_each_group_are_chosen_and_one_is_left():
    scores = np.array([0.1, 0.9, 0.5, 0.3, 0.3, 0.2, 7.0])
    sizes = np.array([3, 3, 1])
    assert highest(scores, sizes, 1).tolist() == [False, True, False, True, False, False, False]
    assert highest(scores, sizes, 2).tolist() == [False, True, True, True, True, False, False]
    assert highest(scores, sizes, 50).tolist() == [False, True, True, True, True, False, False]


def test_attention_and_gradients_are_the_networks_word_by_word(runs, prepared):
    network = models.load(runs[0], prepared.description)
    words, sentences = trained.attention(network, prepared)
    gradients = trained.gradient_times_input(network, prepared)
    first = 0
    for row in range(5):
        given = collation.inputs(prepared, np.array([row]))
        vectors = []
        handle = network.embedding.register_forward_hook(
            lambda module, given, out, vectors=vectors: vectors.append(out)
        )
        logits, of_words, of_sentences = network.attend(*given)
        handle.remove()
        expected = [
            (of_words[0, s, w] * of_sentences[0, s]).item()
            for s in range(given[2].item())
            for w in range(given[1][0, s].item())
        ]
        here = slice(first, first + len(expected))
        assert words[here] == pytest.approx(expected, abs=1e-6)
        assert sum(expected) == pytest.approx(1, abs=1e-5)
        # To first order the highest logit changes by as much when every vector is scaled.
        slope = torch.autograd.grad(logits.max(), vectors)
        whole = sum((one * vector).sum().item() for one, vector in zip(slope, vectors, strict=True))
        assert gradients[here].sum() == pytest.approx(whole, abs=1e-5)
        first += len(expected)
    counts = np.asarray(prepared.arrays["sentence_counts"])
    assert np.add.reduceat(sentences, np.cumsum(counts) - counts) == pytest.approx(np.ones(len(counts)), abs=1e-5)


def test_a_document_is_read_without_the_word_as_if_it_had_not_been_written(runs, prepared):
    one = select_rows(prepared, np.array([0]))
    reader = deletion.Reader(models.load(runs[0], prepared.description), one)
    scores = np.zeros(len(one.arrays["tokens"]))
    scores[3] = 1
    tokens, counts = one.arrays["tokens"], np.array(one.arrays["word_counts"])
    counts[0, 0] -= 1
    width = counts.max()
    padded = np.zeros((1, len(counts[0]), width), np.int32)
    rest = np.delete(tokens, 3)
    for number, count in enumerate(counts[0]):
        padded[0, number, :count], rest = rest[:count], rest[count:]
    given = (
        torch.from_numpy(padded),
        torch.from_numpy(counts),
        torch.from_numpy(np.array(one.arrays["sentence_counts"])),
    )
    with torch.no_grad():
        after = to_probabilities(reader.network.objective, reader.network(*given).numpy())[0, reader.predicted[0]]
    found = reader.without_words([scores], 1)
    assert found.fall[0] == pytest.approx(reader.before[0] - after, abs=1e-6)
    assert found.removed == pytest.approx(1 / len(tokens))


def test_a_flat_network_with_attention_is_read_too(prepared):
    torch.manual_seed(0)
    network = models.build(
        "gru_flat", {"embedding_dim": 8, "hidden_size": 4, "pooling": "attention"}, prepared.description
    )
    words, sentences = trained.attention(network.eval(), prepared)
    assert words.sum() == pytest.approx(len(prepared.labels), abs=1e-4)
    assert words[: prepared.first_words[1]].sum() == pytest.approx(sentences[:5].sum(), abs=1e-5)
    assert np.isfinite(trained.gradient_times_input(network, prepared)).all()


def test_random_removals_are_averaged_over_draws(runs, prepared):
    part = select_rows(prepared, np.arange(6))
    reader = deletion.Reader(models.load(runs[0], prepared.description), part)
    generator = np.random.default_rng(0)
    draws = [generator.random(len(part.arrays["tokens"])) for _ in range(3)]
    each = [reader.without_words([one], 2).fall for one in draws]
    assert reader.without_words(draws, 2).fall == pytest.approx(np.mean(each, axis=0))


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, runs, text_directory, tmp_path, monkeypatch, capsys):
    given = ["--debug", "--to", str(tmp_path), "--prepared", str(text_directory), "--runs", *map(str, runs)]
    monkeypatch.setattr(sys, "argv", ["studies.deletion", *given])
    with pytest.raises(SystemExit, match="0"):
        command(deletion.main)()
    assert "most attended words" in capsys.readouterr().out
    again = tmp_path / "deletion" / "small"
    assert sorted(path.name for path in again.iterdir()) == ["deletion.csv", "figure.png", "results.json"]
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_the_evidence_has_every_cell_and_the_claim_follows_from_it(evidence):
    said, table = json.loads((evidence / "results.json").read_text()), pd.read_csv(evidence / "deletion.csv")
    of_words = {("words", method, k) for method in (ATTENDED, GRADIENT, RANDOM) for k in (0, *DEBUG.words)}
    of_sentences = {("sentences", method, k) for method in (ATTENDED, RANDOM) for k in (0, *DEBUG.sentences)}
    assert set(table[["level", "method", "removed"]].itertuples(index=False, name=None)) == of_words | of_sentences
    assert set(table["documents"]) == {DEBUG.documents}
    assert (table[table["removed"] == 0]["fall"] == 0).all()
    wide = table[(table["level"] == "words") & (table["removed"] == DEBUG.primary_words)]
    wide = wide.pivot(index="seed", columns="method", values="fall")
    (claim,) = said["claims"]
    assert claim["measured"]["differences"] == pytest.approx((wide[ATTENDED] - wide[RANDOM]).to_list(), abs=1e-5)
    # Two seeds cannot decide.
    assert claim["verdict"] == "inconclusive" and "at least 6 seeds" in claim["says"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda runs, flat: [*runs, flat], "is of variant gru_flat"),
        (lambda runs, flat: [*runs, runs[0]], "has seed 0, as another run"),
        (lambda runs, flat: [flat], "gives no attention"),
        (lambda runs, flat: [runs[0].parent], "has no result.json"),
        (lambda runs, flat: [runs[0], "--documents", "0"], "--documents is 0: give 1 or more"),
    ],
)
def test_runs_that_do_not_fit_are_refused(change, said, runs, flat_run, text_directory, tmp_path, monkeypatch, capsys):
    given = change(runs, flat_run)
    options = ["--debug", "--to", str(tmp_path), "--prepared", str(text_directory), "--runs", *map(str, given)]
    monkeypatch.setattr(sys, "argv", ["studies.deletion", *options])
    with pytest.raises(SystemExit, match="2"):
        command(deletion.main)()
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
    assert not list(tmp_path.iterdir())
