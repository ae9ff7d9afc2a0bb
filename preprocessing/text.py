"""A document as lower-cased words by sentence, and as numbers: what preparing a data set and a served model share.

Sentences and words come from Bling Fire (https://github.com/microsoft/BlingFire). Of six ways to find sentences it
alone is both right and quick, and none of them needs a model. Right of 20 hard cases (abbreviations, initials,
ellipses, quotations), and sentences a second on one core:

    Bling Fire           19    56,600
    pysbd                19     1,400
    syntok               18     6,300
    spaCy's sentencizer  15     9,000
    a regular expression 13   382,000
    punkt, trained here  10    29,100

What Bling Fire leaves open is settled here: a blank line ends a sentence, text is brought to Unicode's form NFC,
a lone surrogate (which has no UTF-8) reads as U+FFFD, and each Han ideograph or kana is a word, since their scripts
put no spaces. A run of more than 300 letters without a break is cut into words of 300 by Bling Fire itself.

Needs numpy and blingfire alone. Shape legend: S sentences a document, W words a sentence.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping

import blingfire
import numpy as np

from preprocessing.vocabulary import PADDING_INDEX, UNKNOWN_INDEX

# No piece given to Bling Fire is longer, in characters: that bounds its memory, and it counts bytes in 32 bits.
LONGEST_PIECE = 1_000_000

_BLANK_LINE = re.compile(r"\n\s*\n")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_WRITTEN_WITHOUT_SPACES = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f])")


def segment(text: str) -> list[list[str]]:
    """Return the document's sentences, each a list of its lower-cased words; an empty list where there is no word."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _LONE_SURROGATE.sub("\ufffd", text))
    sentences = []
    for piece in _pieces(text):
        for sentence in blingfire.text_to_sentences(piece).split("\n"):
            words = _words(sentence)
            if words:
                sentences.append(words)
    return sentences


def _pieces(text: str) -> Iterator[str]:
    """Yield the paragraphs of ``text``; one too long for Bling Fire is cut at a space, and there a sentence ends."""
    for paragraph in _BLANK_LINE.split(text):
        start = 0
        while len(paragraph) - start > LONGEST_PIECE:
            stop = paragraph.rfind(" ", start + 1, start + LONGEST_PIECE)
            stop = stop if stop > 0 else start + LONGEST_PIECE
            yield paragraph[start:stop]
            start = stop
        yield paragraph[start:]


def _words(sentence: str) -> list[str]:
    if not sentence.isascii():
        sentence = _WRITTEN_WITHOUT_SPACES.sub(r" \1 ", sentence)
    return blingfire.text_to_words(sentence).lower().split()


def keep(sentences: list[list[str]], kept_sentences: int, kept_words: int) -> list[list[str]]:
    """Return the first ``kept_sentences`` sentences, each cut to its first ``kept_words`` words."""
    return [words[:kept_words] for words in sentences[:kept_sentences]]


def number(
    sentences: list[list[str]], index: Mapping[str, int], kept_sentences: int, kept_words: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is kept of the sentences as numbers, padded.

    ``index`` gives each word of the vocabulary its number (``preprocessing.vocabulary.word_index``).

    Returns tokens int32 [S, W] and word_counts int32 [S], where S is ``kept_sentences`` and W ``kept_words``. The
    first sentence always has a word, so that a network has something to attend to: a document without words is
    one sentence of one unknown word.
    """
    tokens = np.full((kept_sentences, kept_words), PADDING_INDEX, np.int32)
    word_counts = np.zeros(kept_sentences, np.int32)
    for row, words in enumerate(keep(sentences, kept_sentences, kept_words)):
        tokens[row, : len(words)] = [index.get(word, UNKNOWN_INDEX) for word in words]
        word_counts[row] = len(words)
    if not sentences:
        tokens[0, 0] = UNKNOWN_INDEX
        word_counts[0] = 1
    return tokens, word_counts


def encode(text: str, index: Mapping[str, int], kept_sentences: int, kept_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return raw text as ``number`` does: the very numbers that preparing a data set writes for it."""
    return number(segment(text), index, kept_sentences, kept_words)
