"""The worth of attended words: what is removed, that a document never gets empty, and the evidence of the study."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import models
from models.objectives import to_probabilities
from reread.batches import collation
from reread.batches.subsets import select_rows
from reread.storage.errors import InputError
from reread.storage.run_folder import RunFolder, write_result
from reread.studies import deletion, study_io
from reread.studies.deletion import ATTENDED, DEBUG, GRADIENT, RANDOM, highest
from reread.studies.load_runs import trained_networks

CPU = torch.device("cpu")
# Called here and not by the study, which expects it on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.fixture(scope="module")
def evidence(source, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("studies") / "deletion"
    findings = deletion.study(DEBUG, source, CPU)
    study_io.publish(place, findings, study_io.provenance(source.keys()), deletion.draw_figure)
    return place


def test_the_highest_of_each_group_are_chosen_and_one_is_left():
    scores = np.array([0.1, 0.9, 0.5, 0.3, 0.3, 0.2, 7.0])
    sizes = np.array([3, 3, 1])
    assert highest(scores, sizes, 1).tolist() == [False, True, False, True, False, False, False]
    assert highest(scores, sizes, 2).tolist() == [False, True, True, True, True, False, False]
    assert highest(scores, sizes, 50).tolist() == [False, True, True, True, True, False, False]


def test_attention_and_gradients_are_the_networks_word_by_word(source, prepared):
    network = next(source.networks(CPU))[1]
    words, sentences = deletion.attention(network, prepared)
    gradients = deletion.gradient_times_input(network, prepared)
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
        whole = sum((gradient * vector).sum().item() for gradient, vector in zip(slope, vectors, strict=True))
        assert gradients[here].sum() == pytest.approx(whole, abs=1e-5)
        first += len(expected)
    counts = np.asarray(prepared.arrays["sentence_counts"])
    assert np.add.reduceat(sentences, np.cumsum(counts) - counts) == pytest.approx(np.ones(len(counts)), abs=1e-5)


def test_a_document_is_read_without_the_word_as_if_it_had_not_been_written(source, prepared):
    document = select_rows(prepared, np.array([0]))
    reader = deletion.Reader(next(source.networks(CPU))[1], document)
    scores = np.zeros(len(document.arrays["tokens"]))
    scores[3] = 1
    tokens, counts = document.arrays["tokens"], np.array(document.arrays["word_counts"])
    counts[0, 0] -= 1
    width = counts.max()
    padded = np.zeros((1, len(counts[0]), width), np.int32)
    rest = np.delete(tokens, 3)
    for number, count in enumerate(counts[0]):
        padded[0, number, :count], rest = rest[:count], rest[count:]
    given = (
        torch.from_numpy(padded),
        torch.from_numpy(counts),
        torch.from_numpy(np.array(document.arrays["sentence_counts"])),
    )
    with torch.no_grad():
        after = to_probabilities(reader.network.objective, reader.network(*given).numpy())[0, reader.predicted[0]]
    removal = reader.without_words([scores], 1)
    assert removal.fall[0] == pytest.approx(reader.before[0] - after, abs=1e-6)
    assert removal.removed == pytest.approx(1 / len(tokens))


def test_a_flat_network_with_attention_is_read_too(prepared):
    torch.manual_seed(0)
    network = models.build(
        "gru_flat", {"embedding_dim": 8, "hidden_size": 4, "pooling": "attention"}, prepared.description
    )
    words, sentences = deletion.attention(network.eval(), prepared)
    assert words.sum() == pytest.approx(len(prepared.labels), abs=1e-4)
    assert words[: prepared.first_words[1]].sum() == pytest.approx(sentences[:5].sum(), abs=1e-5)
    assert np.isfinite(deletion.gradient_times_input(network, prepared)).all()


def test_random_removals_are_averaged_over_draws(source, prepared):
    part = select_rows(prepared, np.arange(6))
    reader = deletion.Reader(next(source.networks(CPU))[1], part)
    generator = np.random.default_rng(0)
    draws = [generator.random(len(part.arrays["tokens"])) for _ in range(3)]
    falls = [reader.without_words([draw], 2).fall for draw in draws]
    assert reader.without_words(draws, 2).fall == pytest.approx(np.mean(falls, axis=0))


def test_it_runs_as_a_command_and_repeats_byte_for_byte(evidence, source, study, tmp_path):
    runs = [run.directory for run in source.runs.values()]
    assert "most attended words" in study("deletion", *runs, "--debug", "--to", tmp_path)
    again = tmp_path / "deletion" / "small"
    assert sorted(path.name for path in again.iterdir()) == ["deletion.csv", "figure.png", "results.json"]
    for path in again.iterdir():
        assert path.read_bytes() == (evidence / path.name).read_bytes(), path.name


def test_an_option_is_a_setting_of_the_study_and_json_is_what_is_written(source, study, tmp_path):
    runs = [run.directory for run in source.runs.values()]
    options = ["--option", "documents=5", "--option", "words=[1, 2, 3]"]
    printed = json.loads(study("deletion", *runs, "--debug", "--to", tmp_path, "--json", *options))
    assert printed["documents"] == 5 and printed["settings"]["words"] == [1, 2, 3]
    assert printed == json.loads((tmp_path / "deletion" / "small" / "results.json").read_text())
    assert printed["provenance"]["runs"] == {str(seed): run.key for seed, run in source.runs.items()}
    assert set(printed["provenance"]) == {"commit", "uncommitted_changes", "environment", "runs"}


def test_the_evidence_has_every_cell_and_the_claim_follows_from_it(evidence):
    written, table = json.loads((evidence / "results.json").read_text()), pd.read_csv(evidence / "deletion.csv")
    of_words = {("words", method, k) for method in (ATTENDED, GRADIENT, RANDOM) for k in (0, *DEBUG.words)}
    of_sentences = {("sentences", method, k) for method in (ATTENDED, RANDOM) for k in (0, *DEBUG.sentences)}
    assert set(table[["level", "method", "removed"]].itertuples(index=False, name=None)) == of_words | of_sentences
    assert set(table["documents"]) == {DEBUG.documents}
    assert (table[table["removed"] == 0]["fall"] == 0).all()
    wide = table[(table["level"] == "words") & (table["removed"] == DEBUG.primary_words)]
    wide = wide.pivot(index="seed", columns="method", values="fall")
    (claim,) = written["claims"]
    scores = claim["measured"]["scores"]
    assert scores["treatment"] == pytest.approx(wide[ATTENDED].to_list(), abs=1e-5)
    assert scores["control"] == pytest.approx(wide[RANDOM].to_list(), abs=1e-5)
    assert claim["measured"]["kind"] == "pairs"
    # Two seeds cannot decide.
    assert claim["verdict"] == "inconclusive" and "at least 6 seeds" in claim["says"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda runs, flat: [*runs, flat], "variant gru_flat"),
        (lambda runs, flat: [*runs, runs[0]], "seed 0"),
        (lambda runs, flat: [flat], "no attention"),
        (lambda runs, flat: [*runs, "--option", "documents=0"], "documents is 0"),
        (lambda runs, flat: [*runs, "--option", "document=5"], "'documents'"),
        (lambda runs, flat: [*runs, "--option", "documents"], "NAME=VALUE"),
        (lambda runs, flat: [*runs, "--option", "primary_words=3"], "primary_words is 3"),
        (lambda runs, flat: [*runs, "--variant", "han"], "--variant"),
    ],
)
def test_what_does_not_fit_is_refused(change, fault, source, flat_run, study, tmp_path):
    given = change([run.directory for run in source.runs.values()], flat_run.directory)
    assert fault in study("deletion", *given, "--debug", "--to", tmp_path, code=2)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_not_finished_is_refused(source, tmp_path):
    first = source.runs[0].directory
    shutil.copy(first / "job.json", tmp_path)
    with pytest.raises(InputError, match=f"{tmp_path}.*finished"):
        trained_networks([RunFolder(tmp_path)])


@pytest.mark.parametrize(("changed", "name"), [("weights_sha256", "weights_sha256"), ("network_source", "code of")])
def test_weights_and_source_of_a_run_are_checked(changed, name, source, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(source.runs[0].directory, directory)
    result = json.loads((directory / "result.json").read_text())
    write_result(directory, result | {changed: "0" * 64})
    with pytest.raises(InputError, match=name):
        deletion.study(DEBUG, trained_networks([RunFolder(directory)]), CPU)
