"""The example of unsupervised translation: aligned words, noise, the network, and a small run of its claim."""

from functools import partial

import numpy as np
import pytest
import torch

from examples import unsupervised_translation as unsupervised
from reread.storage.source import ROOT
from tests.examples.claims import items_of, refused, run_example, run_small_claim

run = partial(run_example, unsupervised)


def chains(seed, names, rows=1200):
    """Sentences of 6 words, each of which chooses among a few next ones; names: of the words, in one fixed order."""
    rng, law = np.random.default_rng(seed), np.random.default_rng(99)
    following = law.dirichlet(np.full(len(names), 0.05), size=len(names))
    sentences = []
    for _ in range(rows):
        row = [int(rng.integers(len(names)))]
        while len(row) < 6:
            row.append(int(rng.choice(len(names), p=following[row[-1]])))
        sentences.append([names[at] for at in row])
    return sentences


def names(prefix, seed):
    return [f"{prefix}{at}" for at in np.random.default_rng(seed).permutation(30)]


@pytest.fixture
def corpus(tmp_path):
    """A folder with the six files: two languages that differ in nothing but their words."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for seed, (split, rows) in enumerate({"train": 1200, "val": 30, "test_2016_flickr": 40}.items()):
        for language, words in (("de", names("d", 1)), ("en", names("e", 2))):
            lines = [" ".join(sentence) + "\n" for sentence in chains(seed, words, rows)]
            (folder / f"{split}.lc.norm.tok.{language}").write_text("".join(lines))
    return folder


def test_relations_are_deviations_from_independent_words():
    # Numbers 4, 5 and 6 are words: "4 5 6" and "4 5".
    numbers = np.array([[4, 5, 6], [4, 5, 0]])
    relations = unsupervised.relations(numbers, size=7, contexts=2)
    assert relations.shape == (5, 3, 2)
    # Next after: 5 follows 4 twice, and 6 follows 5 once; 6 is no context word.
    after = np.array([[0, 2], [0, 0], [0, 0]])
    expected = after.sum(1, keepdims=True) * after.sum(0) / after.sum()
    deviation = (after - expected) / np.sqrt(expected + 1)
    assert relations[1] == pytest.approx(np.sign(deviation) * np.log1p(abs(deviation)))
    assert unsupervised.relations(numbers[1:, :2], size=7, contexts=2).shape == (5, 3, 2)
    # In the same sentence: 4 with 5 twice, 6 with both once. The diagonal is 0.
    same = np.array([[0, 2], [2, 0], [1, 1]])
    expected = same.sum(1, keepdims=True) * same.sum(0) / same.sum()
    deviation = (same - expected) / np.sqrt(expected + 1)
    assert relations[0] == pytest.approx(np.sign(deviation) * np.log1p(abs(deviation)))


def test_matching_recovers_a_permutation_from_relations():
    rng = np.random.default_rng(0)
    ours, order = rng.normal(size=(2, 40, 40)), rng.permutation(40)
    theirs = ours[:, order][:, :, order] + rng.normal(0, 0.1, (2, 40, 40))
    start = np.ones((40, 40)) + 0.1 * rng.random((40, 40))
    partners = unsupervised.match(ours, theirs, start)
    assert (order[partners] == np.arange(40)).all()


def test_csls_takes_from_words_that_are_near_to_all():
    similarity = np.full((20, 20), 0.1) + 0.5 * np.eye(20)
    similarity[:, 3] = 0.7  # A hub.
    assert (similarity.argmax(1) == 3).all()
    assert (unsupervised.csls(similarity).argmax(1)[:3] == [0, 1, 2]).all()


def test_words_of_two_languages_are_aligned_without_pairs():
    texts = [chains(10, names("d", 1), 4000), chains(11, names("e", 2), 4000)]
    vocabularies = [unsupervised.Vocabulary(text) for text in texts]
    corpora = [vocabulary.encode(text) for vocabulary, text in zip(vocabularies, texts, strict=True)]
    sizes = [len(vocabulary.words) for vocabulary in vocabularies]
    vectors, nearest = unsupervised.aligned_vectors(corpora, sizes, 16)
    known = dict(zip(names("d", 1), names("e", 2), strict=True))
    partners = [vocabularies[1].words[number] for number in nearest[0][4:]]
    assert [known[word] for word in vocabularies[0].words[4:]] == partners
    # Specials have partners of their own, and vectors of 0; words have vectors of length 1, near to their partners'.
    assert nearest[0][:4].tolist() == nearest[1][:4].tolist() == [0, 1, 2, 3]
    assert not vectors[0][:4].any() and np.linalg.norm(vectors[0][4:], axis=1) == pytest.approx(1)
    assert ((vectors[0][4:] @ vectors[1][4:].T).argmax(1) + 4 == nearest[0][4:]).mean() > 0.9


def test_noise_keeps_words_within_their_window_and_leaves_out_a_tenth():
    rng = np.random.default_rng(0)
    words = np.tile(np.arange(1, 21), (2000, 1))
    words[:1000, 10:] = 0
    kept = 0
    for row, lines in ((10, words[:1000]), (20, words[1000:])):
        noisy = unsupervised.noisy(lines, rng)
        counts = (noisy > 0).sum(1)
        kept += counts.sum()
        assert (counts >= 1).all() and all(len(set(line[line > 0])) == (line > 0).sum() for line in noisy)
        assert all((line[(line > 0).sum() :] == 0).all() and line.max() <= row for line in noisy)
    assert kept / 30_000 == pytest.approx(0.9, abs=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsupervised, "DROP", 0)
        noisy = unsupervised.noisy(words[1000:], rng)
    moved = abs(noisy - np.arange(1, 21))
    assert moved.max() == 3 and (np.sort(noisy, axis=1) == np.arange(1, 21)).all()


def test_a_sentence_of_one_word_keeps_it():
    assert (unsupervised.noisy(np.full((500, 1), 7), np.random.default_rng(0)) == 7).all()


def network(width=16, size=12):
    torch.manual_seed(0)
    return unsupervised.Translator([torch.randn(size, width), torch.randn(size + 2, width)])


def test_padding_changes_no_loss_and_no_translation():
    translator = network().eval()
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    wider = torch.nn.functional.pad(source, (0, 3)), torch.nn.functional.pad(target, (0, 2))
    assert translator.loss(*wider, (0, 1)).item() == pytest.approx(
        translator.loss(source, target, (0, 1)).item(), rel=1e-5
    )
    short, long = translator.translate(source, 0)[0].tolist(), translator.translate(wider[0], 0)[0].tolist()
    assert [word for word in short if word] == [word for word in long if word][: len(short)]


def test_the_decoder_reads_no_word_that_is_to_come():
    translator = network().eval()
    encoded = translator.encode(torch.tensor([[5, 6]]), 0)
    words = torch.tensor([[1, 5, 6, 7]])
    changed = torch.tensor([[1, 5, 9, 9]])
    scores, others = translator.decode(words, 1, encoded)[0], translator.decode(changed, 1, encoded)[0]
    assert scores.shape == (1, 4, 14)
    assert torch.equal(scores[:, :2], others[:, :2]) and not torch.equal(scores[:, 2], others[:, 2])


def test_steps_of_the_decoder_are_those_of_a_whole_sentence():
    translator = network().eval()
    encoded, words, states = translator.encode(torch.tensor([[5, 6]]), 0), torch.tensor([[1, 5, 6, 7]]), None
    whole = translator.decode(words, 1, encoded)[0]
    for place in range(4):
        scores, states = translator.decode(words[:, place : place + 1], 1, encoded, states, place)
        torch.testing.assert_close(scores[:, 0], whole[:, place])


def test_a_translation_has_a_word_and_none_that_is_unknown():
    translator = network()
    with torch.no_grad():
        translator.biases[1][[0, 1, 3]] = 50.0
        translator.biases[1][2] = 40.0
    words = translator.translate(torch.tensor([[5, 6, 7], [8, 0, 0]]), 0)
    assert words.shape == (2, 2) and (words[:, 0] > 3).all() and not words[:, 1].any()


def test_batches_have_each_row_once_and_similar_lengths():
    lengths = np.random.default_rng(0).integers(3, 13, size=1000)
    parts = unsupervised.batches(lengths, np.random.default_rng(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000)) and max(map(len, parts)) <= 64
    assert max(lengths[part].max() - lengths[part].min() for part in parts) <= 2


def test_word_by_word_finds_the_words_and_a_network_the_sentences(corpus, tmp_path):
    options = ("--data", corpus, "--width", 16, "--words", 6)
    run(*options, "--out", tmp_path / "words", "--iterations", 0)
    rows = items_of(tmp_path / "words")
    known = dict(zip(names("d", 1), names("e", 2), strict=True))
    sources = [line.split() for line in (corpus / "test_2016_flickr.lc.norm.tok.de").read_text().splitlines()]
    assert [row["reference"] for row in rows] == [" ".join(known[word] for word in words) for words in sources]
    words = [pair for row in rows for pair in zip(row["prediction"].split(), row["reference"].split(), strict=True)]
    assert np.mean([ours == theirs for ours, theirs in words]) > 0.8
    translations = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(*options, "--out", tmp_path / name, "--iterations", 1, "--epochs", 1, "--seed", seed)
        translations.append(items_of(tmp_path / name))
    assert translations[0] == translations[1] != translations[2]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--seed", "-1"], "--seed, --iterations and --sentences are at least 0"),
        (["--width", "33"], "--width is even"),
        (["--supervised", "--no-denoising"], "--supervised has no denoising"),
        (["--supervised", "--iterations", "0"], "--iterations of at least 1"),
        (["--words", "2"], "no sentence of at most 2 words"),
        (["--sentences", "20"], "raise --sentences"),
        (["--width", "64"], "lower --width"),
        (["--device", "nonsense"], "device"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(corpus, tmp_path, capsys, options, fault):
    assert fault in refused(
        capsys, unsupervised, "--data", corpus, "--out", tmp_path / "out", "--width", "16", *options
    )
    assert not (tmp_path / "out").exists()


def test_files_that_are_missing_or_differ_in_length_are_refused(corpus, tmp_path, capsys):
    with open(corpus / "val.lc.norm.tok.en", "a") as file:
        file.write("e1\n")
    said = refused(capsys, unsupervised, "--data", corpus, "--out", tmp_path / "out", "--validation")
    assert "val has 30 German and 31 English lines" in said
    said = refused(capsys, unsupervised, "--data", tmp_path, "--out", tmp_path / "out")
    assert "train.lc.norm.tok.de cannot be read" in said


def test_training_sentences_that_are_all_too_long_are_refused(corpus, tmp_path, capsys):
    for language, word in (("de", "d1"), ("en", "e1")):
        with open(corpus / f"val.lc.norm.tok.{language}", "a") as file:
            file.write(f"{word}\n")
    options = ("--data", corpus, "--out", tmp_path / "out", "--validation", "--words", 5, "--width", 16)
    assert "no sentence of at most 5 words" in refused(capsys, unsupervised, *options)


@pytest.mark.mirror
def test_the_archive_has_the_pairs_of_the_page(mirror):
    archive = mirror / "multi30k"
    counts = {split: [len(side) for side in unsupervised.read(archive, split)] for split in ("train", "val")}
    assert counts == {"train": [29_000] * 2, "val": [1014] * 2}
    test = unsupervised.short(unsupervised.read(archive, unsupervised.TEST), 12)
    assert [len(side) for side in test] == [490, 490]


@pytest.mark.mirror
def test_a_small_run_of_the_claim_is_judged_over_seeds_and_sentences(mirror, tmp_path):
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives/multi30k").symlink_to(mirror / "multi30k")
    claim = ROOT / "examples/unsupervised_translation.yaml"
    document = run_small_claim(claim, tmp_path, "--sentences 2000 --epochs 1", "back-translation")
    (judged,) = document["claims"]
    assert judged["metric"] == "bleu" and judged["analyses"] == ["over seeds", "over seeds and items"]
    assert all(0 <= score < 30 for side in judged["scores"].values() for score in side)
