"""Raw text as a network reads it: what preparing a data set does to documents, for the few of a request.

Shape legend: n documents.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from reread.kinds import Reading
from reread.preprocessing import tokenizer
from reread.preprocessing.text import keep, number, segment
from reread.preprocessing.vocabulary import UNKNOWN_INDEX, word_index
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import Prepared

# Read at a time: this many documents, or fewer with this many characters.
DOCUMENTS_PER_PART = 1024
CHARACTERS_PER_PART = 10_000_000


class TextReader:
    """Reads a request's documents with the vocabulary and the lengths of the training split.

    Its columns: ``words_read`` and ``words_unknown`` int64, the kept words and those of them that are not in the
    vocabulary; ``cut`` bool, whether a document was longer than what is kept of it.
    """

    FILES = ("vocabulary.json",)
    OPTIONAL = {tokenizer.FILE: tokenizer.PACKAGE}
    PACKAGES = ("blingfire",)
    PARAMETERS = {"attention": True}

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.index = word_index(read_json(folder / "vocabulary.json"))
        self.kept_sentences, self.kept_words = (
            description["lengths"][level]["kept"] for level in ("sentences", "words")
        )
        self.tokenizer = tokenizer.Tokenizer(folder / tokenizer.FILE) if "tokenizer" in description else None

    @staticmethod
    def model_input(values: Any, description: Mapping[str, Any]) -> Any:
        """Return texts, or a table's column ``text``, as a DataFrame with that column."""
        import pandas

        if isinstance(values, pandas.DataFrame) and "text" in values:
            values = values["text"]
        if isinstance(values, str | bytes):
            raise InputError("give the documents as a list: one text by itself would be read letter by letter")
        if isinstance(values, pandas.DataFrame | Mapping | Set) or not isinstance(values, Iterable):
            raise InputError(f"give the documents as a list of texts, not as {type(values).__name__}")
        return pandas.DataFrame({"text": list(values)}, dtype=object)

    @staticmethod
    def example(prepared: Prepared, count: int) -> list[str]:
        """Return the first ``count`` documents of the test split."""
        shown = read_json(prepared.directory / "example_documents.json")[:count]
        return [". ".join(" ".join(words) for words in document["words"]) for document in shown]

    @staticmethod
    def limits(description: Mapping[str, Any]) -> list[str]:
        """Return what the network does not read."""
        sentences, words = (description["lengths"][level]["kept"] for level in ("sentences", "words"))
        if "tokenizer" in description:
            return [f"Reads the first {words} tokens of a document."]
        return [
            f"Reads the first {sentences} sentences of a document and the first {words} words of each.",
            f"Knows {description['vocabulary_size']:,} words; any other is one unknown word to it.",
        ]

    def check(self, model_input: Any) -> list[str]:
        """Return the column ``text``; ValueError names the first row that is not text."""
        import pandas

        if not isinstance(model_input, pandas.DataFrame) or "text" not in model_input:
            raise ValueError("there is no column 'text': send a table with one, a document per row")
        texts = model_input["text"].tolist()
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                null = pandas.api.types.is_scalar(text) and pandas.isna(text)
                kind = "null" if null else f"of type {type(text).__name__}"
                raise ValueError(f"row {row} of the column 'text' is {kind}: send text, '' for an empty document")
        return texts

    def parts(self, rows: Sequence[str]) -> Iterator[list[str]]:
        """Yield the texts in order, DOCUMENTS_PER_PART at a time, or as many as CHARACTERS_PER_PART allows."""
        part: list[str]
        part, characters = [], 0
        for text in rows:
            if part and (len(part) == DOCUMENTS_PER_PART or characters + len(text) > CHARACTERS_PER_PART):
                yield part
                part, characters = [], 0
            part.append(text)
            characters += len(text)
        if part:
            yield part

    def blank(self) -> list[str]:
        """Return one empty document."""
        return [""]

    def sentences(self, text: str) -> list[list[str]]:
        """Return the words of a text by sentence, or its tokens as one sentence."""
        if self.tokenizer is None:
            return segment(text)
        (tokens,) = self.tokenizer.encode([text])
        return [[self.tokenizer.vocabulary[token] for token in tokens]] if len(tokens) else []

    def read(self, rows: Sequence[str]) -> Reading:
        """Read one or more raw texts. Only what is kept of a document stays in memory, however long it is."""
        words, tokens, word_counts, unknown, cut = [], [], [], [], []
        for text in rows:
            sentences = self.sentences(text)
            kept = keep(sentences, self.kept_sentences, self.kept_words)
            numbers, counts = number(kept, self.index, self.kept_sentences, self.kept_words)
            words.append(kept)
            tokens.append(numbers)
            word_counts.append(counts)
            # In the arrays a document without words is one unknown word.
            unknown.append(np.count_nonzero(numbers == UNKNOWN_INDEX) if kept else 0)
            cut.append(sum(map(len, sentences)) > sum(map(len, kept)))
        counts = np.stack(word_counts)
        return Reading(
            arrays={
                "tokens": np.concatenate(tokens),
                "word_counts": counts,
                "sentence_counts": (counts > 0).sum(axis=1, dtype=np.int32),
            },
            columns={
                "words_read": np.array([sum(map(len, kept)) for kept in words], np.int64),
                "words_unknown": np.array(unknown, np.int64),
                "cut": np.array(cut, bool),
            },
            words=words,
        )
