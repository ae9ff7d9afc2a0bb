"""A text data set by a tokenizer of its own, as the arrays that reread/preprocessing/documents.py makes of words.

A document is one sentence of tokens, with those that the tokenizer adds (``[CLS]``). It is truncated at the quantile
``length_quantile.words`` of the training split. prepared.json has ``tokenizer``: ``size``, the ids ``padding`` and
``unknown`` (null where there is none), and the ``sha256`` of the file. Memory holds the tokens of all documents, at 4
bytes each.
"""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reread.preprocessing.lengths import LengthHistogram, write_lengths
from reread.preprocessing.manifest import check_corpus, encode_labels
from reread.preprocessing.raw_text import DOCUMENTS, Document, TextDataSet
from reread.preprocessing.rows import choose_documents, refuse_one_class
from reread.preprocessing.tokenizer import FILE, PACKAGE, Tokenizer
from reread.storage.errors import InputError
from reread.storage.files import content_key, sha256_file, write_json
from reread.storage.numeric import numeric_digest
from reread.storage.prepared import SPLITS

if TYPE_CHECKING:
    from reread.preprocessing.tokenizer import WithTokenizer

BATCH = 1024  # documents
SHOWN_DOCUMENTS = 40


def key(of_words: str, settings: "WithTokenizer") -> str:
    """Return the name of the folder of arrays by a tokenizer; ``of_words``: by the words of the same data set."""
    return content_key(
        {
            "words": of_words,
            "tokenizer": settings.tokenizer.sha256,
            "source": numeric_digest(["reread.preprocessing.tokenised"]),
            "library": _version(),
        }
    )


def _version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"tokenizer needs the package '{PACKAGE}', which is not installed here: install it") from None


def prepare(data: TextDataSet, settings: "WithTokenizer", working: Path) -> dict[str, Any]:
    """Write the arrays and files that reread/preprocessing/documents.py writes, and tokenizer.json, into ``working``;
    return their entries for prepared.json."""
    path = Path(settings.tokenizer.path)
    where = f"preprocessing.{data.name}.tokenizer"
    if not path.is_file():
        raise InputError(f"{where}: {path} is missing: give the path of a tokenizer.json")
    if sha256_file(path) != settings.tokenizer.sha256:
        raise InputError(f"{where}: {path} has another sha256 than the setting ({settings.tokenizer.sha256[:12]}…)")
    shutil.copyfile(path, working / FILE)
    tokenizer = Tokenizer(working / FILE)

    rows, labels, ids, tokens = [], [], [], []
    of_split: list[int] = []
    for batch in _batches(_documents(data, settings)):
        tokens += tokenizer.encode([document.text for _, document in batch])
        for row, document in batch:
            rows.append(row)
            ids.append(document.id)
            labels.append(document.labels)
            of_split.append(SPLITS.index(document.split))
    split = np.array(of_split, np.uint8)
    encoded = encode_labels(labels, data.entry.task, len(data.entry.classes))
    if settings.rows_per_class is None:
        check_corpus(encoded, data.entry, data.directory / DOCUMENTS)
        refuse_one_class(data.name, {labels[row] for row in np.flatnonzero(split == 0)})
    for name, numbers in zip(ids, tokens, strict=True):
        if not len(numbers):
            raise InputError(f"data set '{data.name}': document '{name}' has no token: remove it or give it a text")

    order = np.argsort(split, kind="stable")
    training = LengthHistogram(len(tokens[row]) for row in np.flatnonzero(split == 0))
    one_sentence = LengthHistogram({1: training.total()})
    kept = training.quantile(settings.length_quantile.words)
    counts = np.array([min(kept, len(tokens[row])) for row in order], np.int32)
    arrays = {
        "tokens": np.concatenate([tokens[row][:kept] for row in order]),
        "word_counts": counts[:, None],
        "sentence_counts": np.ones(len(order), np.int32),
        "labels": encoded[order],
        "raw_indices": np.array(rows, np.int64)[order],
    }
    for name, array in arrays.items():
        np.save(working / f"{name}.npy", array, allow_pickle=False)
    stops = np.cumsum(np.bincount(split, minlength=len(SPLITS))).tolist()
    splits = {name: [start, stop] for name, start, stop in zip(SPLITS, [0, *stops], stops, strict=False)}
    write_json(working / "vocabulary.json", tokenizer.vocabulary)
    write_lengths(training, one_sentence, kept, 1, f"{data.name}: tokens in the training split", working)
    shown = range(splits["test"][0], min(splits["test"][1], splits["test"][0] + SHOWN_DOCUMENTS))
    words = {row: [tokenizer.vocabulary[token] for token in tokens[order[row]][:kept]] for row in shown}
    write_json(
        working / "example_documents.json",
        [{"row": row, "id": ids[order[row]], "words": [words[row]]} for row in shown],
    )
    whole = np.array([len(tokens[row]) for row in order])
    return {
        "splits": splits,
        "vocabulary_size": len(tokenizer.vocabulary),
        "tokenizer": {**tokenizer.about, "sha256": settings.tokenizer.sha256},
        "lengths": {
            "words": {"quantile": settings.length_quantile.words, "kept": kept, "longest": training.longest},
            "sentences": {"quantile": settings.length_quantile.sentences, "kept": 1, "longest": 1},
        },
        "cut": {name: _cut(whole[slice(*place)], counts[slice(*place)]) for name, place in splits.items()},
    }


def _documents(data: TextDataSet, settings: "WithTokenizer") -> Iterator[tuple[int, Document]]:
    """Yield the documents that are prepared, with their numbers in the file."""
    chosen = None
    if settings.rows_per_class is not None:
        with tempfile.TemporaryDirectory() as folder:
            chosen = set(choose_documents(data, settings.rows_per_class, Path(folder)).tolist())
    for row, document in enumerate(data.documents()):
        if chosen is None or row in chosen:
            yield row, document


def _batches(documents: Iterator[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    while batch := list(islice(documents, BATCH)):
        yield batch


def _cut(whole: np.ndarray, kept: np.ndarray) -> dict[str, int | float]:
    """Count what truncation removes of a split's documents; int [rows] tokens of each before and after it."""
    cut, dropped = int((kept < whole).sum()), int((whole - kept).sum())
    return {
        "documents": len(whole),
        "documents_cut": cut,
        "words": int(whole.sum()),
        "words_dropped": dropped,
        "documents_cut_share": round(cut / max(1, len(whole)), 6),
        "words_kept_share": round(1 - dropped / max(1, int(whole.sum())), 6),
    }
