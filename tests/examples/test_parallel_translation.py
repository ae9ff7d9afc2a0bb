"""The example of translation in parallel: alignment, copies, what a decoder may read, and a small run of its claim."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch

from examples import parallel_translation as parallel
from reread.goals.sequence import GOAL
from reread.storage.source import ROOT
from tests.examples.claims import items_of, refused, run_example, run_small_claim

# English and German of a language without grammar: "big" is two words there, and "please" none.
WORDS = {"a": "ein", "man": "mann", "dog": "hund", "sees": "sieht", "big": "sehr gross", "please": "", "house": "haus"}


def sentences(rng, rows: int) -> tuple[list[list[str]], list[list[str]]]:
    source = [rng.choice(list(WORDS), size=rng.integers(2, 7)).tolist() + ["."] for _ in range(rows)]
    return source, [" ".join(WORDS.get(word, word) for word in words).split() for words in source]


@pytest.fixture
def corpus(tmp_path):
    """A folder with the six files, of an invented language."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, rows in ((parallel.TRAIN, 200), (parallel.VALIDATION, 20), (parallel.TEST, 30)):
        for language, side in zip(("en", "de"), sentences(np.random.default_rng(rows), rows), strict=True):
            text = "".join(" ".join(words) + "\n" for words in side)
            (folder / f"{split}.lc.norm.tok.{language}").write_text(text)
    return folder


run = partial(run_example, parallel)


def test_the_alignment_finds_the_words_of_a_known_dictionary():
    source, target = sentences(np.random.default_rng(0), 300)
    english, german = parallel.Vocabulary(source), parallel.Vocabulary(target)
    numbers = english.encode(source), german.encode(target)
    aligned = parallel.align(*numbers)
    fertility = parallel.fertilities(aligned, numbers[0].shape[1])
    assert ((aligned == -1) == (numbers[1] == parallel.PAD)).all()
    assert (fertility.sum(1) == (numbers[1] > 0).sum(1)).all()
    expected = np.zeros_like(fertility)
    for row, words in enumerate(source):
        expected[row, : len(words)] = [len(WORDS.get(word, word).split()) for word in words]
    assert (fertility == expected).mean() > 0.9  # A word without a translation, and repeated ones, leave some open.


def test_a_fertility_of_2_copies_a_word_twice_and_0_leaves_it_out():
    place, there = parallel.copies(torch.tensor([[1, 2, 0, 1], [0, 0, 3, 0]]))
    assert place[0].tolist() == [0, 1, 1, 3] and place[1, :3].tolist() == [2, 2, 2]
    assert there.tolist() == [[True] * 4, [True] * 3 + [False]]


def test_even_copies_go_from_the_first_word_to_the_last():
    place, there = parallel.spread(torch.tensor([4, 2]), torch.tensor([4, 6]))
    assert place[0, :4].tolist() == [0, 1, 2, 3] and place[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert there.sum(1).tolist() == [4, 6]


@pytest.fixture
def network():
    torch.manual_seed(0)
    return parallel.Translator(sources=20, targets=30, longest=12, width=16, layers=2).eval()


def test_the_teacher_reads_no_word_that_comes_later(network):
    source, target = torch.randint(4, 20, (3, 5)), torch.randint(4, 30, (3, 6))
    changed = target.clone()
    changed[:, 3] = 4 + (target[:, 3] - 3) % 26
    with torch.no_grad():
        first, second = network.teach(source, target), network.teach(source, changed)
    # The score of place p is of the words before p.
    assert torch.equal(first[:, :4], second[:, :4]) and not torch.allclose(first[:, 4:], second[:, 4:])


def test_word_by_word_the_teacher_writes_what_its_scores_say(network):
    source = torch.randint(4, 20, (4, 5))
    source[0, 3:] = parallel.PAD
    with torch.no_grad():
        written = network.by_word(source)
        scores = network.teach(source, written[:, :-1])
    begun = (written == parallel.END).cumsum(1) - (written == parallel.END).int() == 0
    assert written.shape[1] <= 12 and torch.equal(scores.argmax(2)[begun], written[begun])
    assert (written[~begun] == parallel.PAD).all()


def test_padding_of_a_batch_changes_no_translation(network):
    short, long = torch.randint(4, 20, (1, 3)), torch.randint(4, 20, (1, 7))
    both = torch.cat([torch.nn.functional.pad(short, (0, 4)), long])
    student = parallel.Student(network, uniform=False)
    with torch.no_grad():
        assert parallel.finished(network.by_word(both))[0].tolist()[:7] == parallel.finished(network.by_word(short))[
            0
        ].tolist()[:7] + [0] * max(0, 7 - network.by_word(short).shape[1])
        alone, together = student.translate(short)[0], student.translate(both)[0]
    assert together[: len(alone)].tolist() == alone.tolist() and not together[len(alone) :].any()


def test_the_likelihood_is_the_product_over_the_words_and_the_end(network):
    source, words = torch.randint(4, 20, (2, 4)), torch.tensor([[5, 6, 0], [7, 8, 9]])
    with torch.no_grad():
        likelihoods = parallel.likelihood(network, source, words)
        scores = network.teach(source, words).log_softmax(2)
    assert likelihoods[0].item() == pytest.approx(float(scores[0, 0, 5] + scores[0, 1, 6] + scores[0, 2, parallel.END]))
    assert likelihoods[1].item() == pytest.approx(
        float(scores[1, 0, 7] + scores[1, 1, 8] + scores[1, 2, 9] + scores[1, 3, parallel.END])
    )


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ((), 0.55),
        (("--targets", "references", "--samples", 3), 0.55),
        (("--teacher",), 0.45),
        # Even copies do not say which word a place is of.
        (("--copies", "uniform"), 0.9),
    ],
)
def test_each_arm_learns_an_invented_language(corpus, tmp_path, options, most):
    run("--data", corpus, "--out", tmp_path / "out", "--width", 32, "--epochs", 30, *options)
    rows = items_of(tmp_path / "out")
    assert [int(row["item"]) for row in rows] == list(range(30)) and all(float(row["seconds"]) > 0 for row in rows)
    texts = [[row[name] for row in rows] for name in ("prediction", "reference")]
    assert GOAL.metric("word_error_rate").value(*GOAL.from_texts(*texts)) < most


def test_equal_seeds_write_equal_words(corpus, tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("--data", corpus, "--out", tmp_path / folder, "--width", 16, "--epochs", 2, "--seed", seed, "--samples", 2)
    a, b, c = ([row["prediction"] for row in items_of(tmp_path / folder)] for folder in "abc")
    assert a == b != c


def test_validation_reads_no_test_sentence(corpus, tmp_path):
    for language in ("en", "de"):
        (corpus / f"{parallel.TEST}.lc.norm.tok.{language}").unlink()
    run("--data", corpus, "--out", tmp_path / "out", "--width", 16, "--epochs", 1, "--validation")
    assert len(items_of(tmp_path / "out")) == 20


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--width", "30"], "--width divides by 4"),
        (["--epochs", "0"], "--epochs 1"),
        (["--words", "1"], "no sentence of at most 1 words: raise --words"),
        (["--data", "missing"], "cannot be read"),
        (["--copies", "twice"], "invalid choice"),
        (["--device", "abacus"], "abacus"),
        (["--samples", "2", "--teacher"], "leave out --teacher"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(corpus, tmp_path, capsys, options, fault):
    assert fault in refused(capsys, parallel, "--data", corpus, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_files_of_different_length_are_refused(corpus, tmp_path, capsys):
    path = corpus / f"{parallel.TRAIN}.lc.norm.tok.de"
    path.write_text(path.read_text().partition("\n")[2])
    said = refused(capsys, parallel, "--data", corpus, "--out", tmp_path / "out")
    assert "train has 200 English and 199 German lines" in said


@pytest.mark.mirror
def test_the_data_have_the_sentences_that_the_page_says(mirror):
    counts = [len(parallel.read(mirror / "multi30k", split, 10)[0]) for split in (parallel.TRAIN, parallel.TEST)]
    assert counts == [7056, 261]


def test_a_small_run_of_the_claim_is_judged_over_seeds_and_sentences(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "archives/multi30k")
    claim = ROOT / "examples/parallel_translation.yaml"
    document = run_small_claim(claim, tmp_path, "--width 16 --epochs 2", "teacher", "speed")
    assert [claim["metric"] for claim in document["claims"]] == ["bleu", "seconds"]
    assert all(claim["items"] == 30 and len(claim["analyses"]) == 2 for claim in document["claims"])
