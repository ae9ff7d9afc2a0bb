"""A document as lower-cased words by sentence, and as numbers: used to prepare data sets and by served models.

Sentences and words come from Bling Fire (https://github.com/microsoft/BlingFire), the most accurate and the second
fastest of six tokenisers without a trained model. 20 hard cases are abbreviations, initials, ellipses and quotations:

    tokeniser            right of 20    sentences per second on one core
    Bling Fire           19    56,600
    pysbd                19     1,400
    syntok               18     6,300
    spaCy's sentencizer  15     9,000
    a regular expression 13   382,000
    punkt, trained here  10    29,100

Rules beside Bling Fire's own: a blank line ends a sentence; text is normalised to NFC; a lone surrogate (which UTF-8
cannot encode) becomes U+FFFD; each Han ideograph or kana is a word, because these scripts use no spaces. Bling Fire
splits a run of more than 300 letters into words of 300.

No word contains a space. So a chunk (the text between two spaces) has the same words everywhere, and each distinct
chunk of many texts is tokenised once.

Needs only numpy and blingfire. Shape legend: M kept words of a document, S sentences it can have at most.
"""

import ctypes
import re
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import pairwise

import blingfire
import numpy as np

from reread.preprocessing.vocabulary import UNKNOWN_INDEX

# The longest piece, in characters, that Bling Fire splits into sentences; pieces for words are little longer in bytes.
# The bound limits its memory, and its byte offsets have 32 bits.
LONGEST_PIECE = 1_000_000
# The chunk that follows each sentence. In a text this character is a space, as it is to Bling Fire.
SENTENCE_END = "\x03"

# The longest piece has four bytes a character, and its sentences take no more than twice as many.
_BUFFERS = [ctypes.c_char * (1 << power) for power in range(24)]

_BLANK_LINE = re.compile(r"\n\s*\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WRITTEN_WITHOUT_SPACES = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f])")
# To Bling Fire "U.S." is one word in a sentence, and "U.S" and "." at its end, also before a closing quotation mark.
_ABBREVIATION_AT_THE_END = re.compile(r"""(\.(?<=[^\W\d_]\.)[^\W\d_])(\.(?:[^\S\n]|["'])*)$""", re.MULTILINE)


def segment(text: str) -> list[list[str]]:
    """Return the document's sentences, each a list of lower-cased words; an empty list where there is no word."""
    content = mark_sentences(text).encode()
    joined_words, starts = find_words(content)
    words = " ".join(joined_words).split()
    stops = np.searchsorted(starts, np.flatnonzero(np.frombuffer(content, np.uint8) == ord(SENTENCE_END)))
    return [words[start:stop] for start, stop in pairwise((0, *stops.tolist())) if start < stop]


def mark_sentences(text: str) -> str:
    """Return the text with the chunk SENTENCE_END after each sentence; splitting at ASCII spaces gives its chunks."""
    if SENTENCE_END in text:
        text = text.replace(SENTENCE_END, " ")
    if not text.isascii():
        text = unicodedata.normalize("NFC", _SURROGATE.sub("\ufffd", text))
    lines = "\n".join(map(_sentences, _pieces(text)))
    if not lines.isascii():
        lines = _WRITTEN_WITHOUT_SPACES.sub(r" \1 ", lines)
    lines = _ABBREVIATION_AT_THE_END.sub(r"\1 \2", lines)
    return f"{lines}\n".replace("\n", f" {SENTENCE_END} ")


def find_words(content: bytes) -> tuple[list[str], np.ndarray]:
    """Find the words of UTF-8 text in which only sentences are marked, or of chunks joined by spaces.

    Return the lower-cased words, many in one string separated by spaces (one string per word would take longer than the
    tokeniser), and the byte at which each word starts, int64 [words].
    """
    words, starts, start = [], [np.zeros(0, np.int64)], 0
    while start < len(content):
        stop = content.find(b" ", start + LONGEST_PIECE) + 1 or len(content)
        joined, places = _words(content[start:stop])
        if joined:
            words.append(joined.lower())
            starts.append(start + places)
        start = stop
    return words, np.concatenate(starts)


def _words(content: bytes) -> tuple[str, np.ndarray]:
    """Return what blingfire.text_to_words does, and the byte at which each word starts, int64 [words]."""
    # "U.S." is another word at the very end of what Bling Fire reads, so that something must stand there.
    content += f" {SENTENCE_END}".encode()
    # A word has a byte or more, and something after it.
    words, starts = np.empty(2 * len(content), np.uint8), np.empty(2 * len(content), np.int32)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (words, starts)]
    length = blingfire.blingfire.TextToWordsWithOffsets(content, len(content), *addresses, None, len(words))
    # A zero byte ends the text.
    joined = words[: max(length - 1, 0)].tobytes()
    return joined.decode(), starts[: joined.count(b" ") + 1 if joined else 0].astype(np.int64)


def _sentences(piece: str) -> str:
    """Return blingfire.text_to_sentences of a piece, a sentence a line, in three quarters of its time.

    It makes a ctypes type for each length of text, which is slow: powers of two are few, and stay.
    """
    content = piece.encode()
    buffer = _BUFFERS[(2 * len(content)).bit_length()]()
    length = blingfire.blingfire.TextToSentences(content, len(content), buffer, len(buffer))
    return buffer.value.decode() if 0 <= length <= len(buffer) else ""


def _pieces(text: str) -> Iterator[str]:
    """Yield the paragraphs of ``text``; a longer one than LONGEST_PIECE is split at a space, where a sentence ends."""
    # Most texts are one line, which the expression need not read.
    for paragraph in _BLANK_LINE.split(text) if "\n" in text else (text,):
        start = 0
        while len(paragraph) - start > LONGEST_PIECE:
            stop = paragraph.rfind(" ", start + 1, start + LONGEST_PIECE)
            stop = stop if stop > 0 else start + LONGEST_PIECE
            yield paragraph[start:stop]
            start = stop
        yield paragraph[start:]


def keep(sentences: list[list[str]], kept_sentences: int, kept_words: int) -> list[list[str]]:
    """Return the first ``kept_sentences`` sentences, each cut to its first ``kept_words`` words."""
    return [words[:kept_words] for words in sentences[:kept_sentences]]


def number(
    sentences: list[list[str]], index: Mapping[str, int], kept_sentences: int, kept_words: int
) -> tuple[np.ndarray, np.ndarray]:
    """Truncate the sentences and return their words as numbers.

    ``index`` gives each word of the vocabulary its number (``reread.preprocessing.vocabulary.word_index``).

    Return tokens int32 [M], the kept words one after the other, and word_counts int32 [S], 0 after the last sentence,
    S being ``kept_sentences``. A document without words becomes one sentence of one unknown word, so that a network has
    something to attend to.
    """
    word_counts = np.zeros(kept_sentences, np.int32)
    if not sentences:
        word_counts[0] = 1
        return np.array([UNKNOWN_INDEX], np.int32), word_counts
    kept = keep(sentences, kept_sentences, kept_words)
    word_counts[: len(kept)] = list(map(len, kept))
    return np.array([index.get(word, UNKNOWN_INDEX) for words in kept for word in words], np.int32), word_counts
