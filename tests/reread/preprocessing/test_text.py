import random
import subprocess
import sys

import blingfire
import numpy as np
import pytest

from reread.preprocessing import text as texts
from reread.preprocessing.text import LONGEST_PIECE, find_words, keep, number, segment
from reread.preprocessing.vocabulary import word_index

INDEX = word_index(["<pad>", "<unk>", "a", "cat", "sat", "."])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A cat sat. It left!", [["a", "cat", "sat", "."], ["it", "left", "!"]]),
        ("Dr. Smith paid 3.14 dollars, e.g. to J. Doe.", 1),
        ("Heading\n\nA line that\ngoes on.", [["heading"], ["a", "line", "that", "goes", "on", "."]]),
        ("windows\r\n\r\nbreaks", [["windows"], ["breaks"]]),
        ("<unk> <pad>", [["<", "unk", ">", "<", "pad", ">"]]),
        ("self.forward(x_1)", [["self", ".", "forward", "(", "x_1", ")"]]),
        ("STRASSE Straße ΟΔΟΣ", [["strasse", "straße", "οδος"]]),
        ("今天天气很好。明天呢?", [list("今天天气很好。"), list("明天呢?")]),
        ("これは文です。", [list("これは文です。")]),
        ("한국어 단어", [["한국어", "단어"]]),
        ("zero\x00byte and\x07bell", [["zero", "byte", "and", "bell"]]),
        ("\ufeffmark", [["mark"]]),
        ("😀😀", [["😀", "😀"]]),
    ],
)
def test_segment(text, sentences):
    segmented = segment(text)
    assert len(segmented) == sentences if isinstance(sentences, int) else segmented == sentences


@pytest.mark.parametrize("text", ["", " ", "\n\n\t", "\u200b\xa0", "\x00"])
def test_a_text_without_words_has_no_sentence_and_is_one_unknown_word_as_numbers(text):
    assert segment(text) == []
    tokens, word_counts = number(segment(text), INDEX, kept_sentences=2, kept_words=3)
    assert tokens.dtype == word_counts.dtype == np.int32
    assert tokens.tolist() == [1]
    assert word_counts.tolist() == [1, 0]


def test_one_letter_written_two_ways_is_one_word():
    assert segment("caf\u00e9") == segment("cafe\u0301") == [["caf\u00e9"]]


def test_a_lone_surrogate_reads_as_the_replacement_character():
    assert segment("a \ud800 b") == segment("a \ufffd b")


def test_a_run_of_letters_without_end_is_cut_into_words():
    assert [len(word) for word in segment("x" * 700)[0]] == [300, 300, 100]


def test_a_million_words():
    words = ["alpha", "Beta", "gamma.", "Delta"]
    text = " ".join(words[number % 4] for number in range(1_000_000))
    sentences = segment(text)
    assert sum(map(len, sentences)) == 1_250_000  # a stop is a word of its own
    assert sentences[1] == ["delta", "alpha", "beta", "gamma", "."]
    tokens, word_counts = number(sentences, INDEX, 3, 4)
    assert tokens.shape == (12,)
    assert word_counts.tolist() == [4, 4, 4]


@pytest.mark.parametrize("unit", ["word ", "x", "字"])
def test_no_letter_is_lost_where_a_long_paragraph_is_cut_in_pieces(unit):
    text = unit * (2 * LONGEST_PIECE // len(unit) + 7)
    assert "".join(word for sentence in segment(text) for word in sentence) == text.replace(" ", "")


def test_any_text_is_segmented_without_a_lost_letter():
    generator = random.Random(0)
    alphabets = ["abz .?!\n\"'", "äÖßéçñ. ", "字语。！ a", "абвё. ", "\x00\x01\x7f\x85\u2028 a.", "عربي ؟ a"]
    for _ in range(300):
        text = "".join(generator.choices(generator.choice(alphabets), k=generator.randint(0, 200)))
        sentences = segment(text)
        assert all(words and all(words) for words in sentences)
        letters = "".join(character for character in text.lower() if character.isalpha())
        assert "".join(c for words in sentences for word in words for c in word if c.isalpha()) == letters


def test_words_are_those_that_bling_fire_finds_sentence_by_sentence():
    """Reading distinct chunks by themselves is a short cut, which must lead to the same place."""
    generator = random.Random(1)
    abbreviations = "e.g. (i.e.) U.S. \"U.K.\" 'p.s.' A.B.C.' Ph.D. No. etc. т.д."
    tokens = f"{abbreviations} ... 3. 1.2. $5 x@y.z can't rock'n' -- ½ ™ ? ! the A\n"
    for _ in range(3000):
        text = " ".join(generator.choices(tokens.split(" "), k=generator.randint(0, 20)))
        by_sentence = [
            blingfire.text_to_words(sentence).lower().split()
            for sentence in blingfire.text_to_sentences(text).split("\n")
        ]
        assert segment(text) == [words for words in by_sentence if words]


def test_words_and_their_places_are_the_same_however_many_chunks_are_read_at_a_time(monkeypatch):
    content = "It isn't in the U.S. \u200b (e.g. caf\u00e9) \u4eca 3.14 U.S. can't".encode()
    (words,), starts = find_words(content)
    assert words == "it is n't in the u.s. ( e.g. caf\u00e9 ) \u4eca 3.14 u.s. ca n't"
    for word, start in zip(words.split(), starts, strict=True):
        assert content[start:].decode().lower().startswith(word)
    monkeypatch.setattr(texts, "LONGEST_PIECE", 1)
    pieces, places = find_words(content)
    assert len(pieces) > 1 and " ".join(pieces) == words
    np.testing.assert_array_equal(places, starts)
    assert find_words(b"")[0] == find_words(b" \x03 ")[0] == []


def test_number_cuts_and_marks_the_unknown():
    sentences = [["a", "cat", "sat", "."], ["dog"], ["a"]]
    tokens, word_counts = number(sentences, INDEX, kept_sentences=2, kept_words=3)
    assert tokens.dtype == word_counts.dtype == np.int32
    assert tokens.tolist() == [2, 3, 4, 1]
    assert word_counts.tolist() == [3, 1]
    assert keep(sentences, 2, 3) == [["a", "cat", "sat"], ["dog"]]
    longer, counts = number(sentences, INDEX, kept_sentences=4, kept_words=5)
    assert longer.tolist() == [2, 3, 4, 5, 1, 2]
    assert counts.tolist() == [4, 1, 1, 0]


def test_a_served_model_needs_no_more_than_numpy_and_blingfire():
    code = (
        "import sys; import reread.preprocessing.text;"
        "print([name for name in ('torch', 'pandas', 'prefect', 'mlflow', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
