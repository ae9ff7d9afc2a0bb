"""A text data set as arrays: vocabulary and lengths from the training split, then every document as numbers.

The file is read as a stream three times: for ids, labels and splits; for the training split's words and lengths; and
to write the arrays, which lie on disk, so that memory holds the vocabulary's counts and one document at a time.

Shape legend: N rows, S sentences a document, W words a sentence, K classes.
"""

import math
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from preprocessing.lengths import LengthHistogram, length_table, plot_lengths, quantile_table, write_table
from preprocessing.manifest import DOCUMENTS, TextDataSet, check_corpus, encode_labels
from preprocessing.rows import Rows, choose_rows
from preprocessing.settings import TextSettings
from preprocessing.text import keep, number, segment
from preprocessing.vocabulary import UNKNOWN_INDEX, build_vocabulary, count_words, word_index
from storage.errors import InputError
from storage.files import write_json
from storage.prepared import SPLITS

SHOWN_DOCUMENTS = 40

# What the arrays depend on beside the data and the settings: part of the key of a prepared data set.
SOURCES = ("documents", "lengths", "rows", "text", "vocabulary")
LIBRARIES = {"blingfire": version("blingfire")}


def write_documents(data: TextDataSet, settings: TextSettings, working: Path) -> dict[str, Any]:
    """Write the arrays and files of a text data set into ``working`` and return what prepared.json says of them.

    tokens.npy int32 [N, S, W], word_counts.npy int32 [N, S], sentence_counts.npy int32 [N], labels.npy int32 [N] or
    uint8 [N, K], source_rows.npy int64 [N] (each row's number in the data's file); vocabulary.json, quantiles.csv,
    lengths.csv, lengths.png, shown.json.
    """
    rows, labels = _rows_and_labels(data, settings)
    np.save(working / "labels.npy", labels, allow_pickle=False)
    np.save(working / "source_rows.npy", rows.source, allow_pickle=False)

    counts: Counter[str] = Counter()
    words, sentences = LengthHistogram(), LengthHistogram()
    for _, _, document in _segmented(data, rows, ("train",)):
        counts.update(count_words(document))
        words.update(map(len, document))
        sentences.update([len(document)])
    vocabulary = build_vocabulary(counts, settings.minimum_count)
    kept_words = words.quantile(settings.length_quantile.words)
    kept_sentences = sentences.quantile(settings.length_quantile.sentences)
    write_json(working / "vocabulary.json", vocabulary)
    write_table(quantile_table(words, sentences), working / "quantiles.csv")
    write_table(length_table(words, sentences), working / "lengths.csv")
    title = f"{data.name}: lengths in the training split"
    plot_lengths(words, sentences, kept_words, kept_sentences, title, working / "lengths.png")

    cut = _write_tokens(data, rows, word_index(vocabulary), kept_sentences, kept_words, working)
    quantiles = settings.length_quantile
    return {
        "splits": rows.splits,
        "vocabulary_size": len(vocabulary),
        "lengths": {
            "words": {"quantile": quantiles.words, "kept": kept_words, "longest": words.longest},
            "sentences": {"quantile": quantiles.sentences, "kept": kept_sentences, "longest": sentences.longest},
        },
        "cut": cut,
    }


def _rows_and_labels(data: TextDataSet, settings: TextSettings) -> tuple[Rows, np.ndarray]:
    ids, split, labels = [], [], []
    for document in data.documents():
        ids.append(document.id)
        split.append(SPLITS.index(document.split))
        labels.append(document.labels)
    encoded = encode_labels(labels, data.entry.task, len(data.entry.classes))
    check_corpus(encoded, data.entry, data.directory / DOCUMENTS)
    rows = choose_rows(data.name, np.array(split, np.uint8), labels, ids, settings.rows_per_class)
    return rows, encoded[rows.source]


def _segmented(data: TextDataSet, rows: Rows, splits: tuple[str, ...]) -> Iterator[tuple[int, str, list[list[str]]]]:
    """Yield (prepared row, id, sentences) of the documents of ``splits`` in the order of the file."""
    prepared_row = {source: row for row, source in enumerate(rows.source.tolist())}
    for source, document in enumerate(data.documents()):
        if source in prepared_row and document.split in splits:
            sentences = segment(document.text)
            if not sentences:
                raise InputError(
                    f"data set '{data.name}': document '{document.id}' has no word: remove it or give it a text"
                )
            yield prepared_row[source], document.id, sentences


def _write_tokens(
    data: TextDataSet, rows: Rows, index: dict[str, int], kept_sentences: int, kept_words: int, working: Path
) -> dict[str, dict[str, int | float]]:
    """Write tokens, word_counts, sentence_counts and shown.json; return what was cut in each split."""
    shape = (len(rows.source), kept_sentences, kept_words)
    _refuse_too_large(shape, f"preprocessing.{data.name}.length_quantile", working)
    arrays = {
        name: np.lib.format.open_memmap(working / f"{name}.npy", mode="w+", dtype=np.int32, shape=shape[:dimensions])
        for name, dimensions in (("tokens", 3), ("word_counts", 2), ("sentence_counts", 1))
    }
    start, stop = rows.splits["test"]
    shown_rows = range(start, min(stop, start + SHOWN_DOCUMENTS))
    shown = []
    tallies = {split: Counter() for split in SPLITS}
    for row, identity, sentences in _segmented(data, rows, SPLITS):
        tokens, word_counts = number(sentences, index, kept_sentences, kept_words)
        arrays["tokens"][row] = tokens
        arrays["word_counts"][row] = word_counts
        arrays["sentence_counts"][row] = np.count_nonzero(word_counts)
        _tally(tallies[rows.split_of(row)], sentences, tokens, word_counts)
        if row in shown_rows:
            shown.append({"row": row, "id": identity, "words": keep(sentences, kept_sentences, kept_words)})
    for array in arrays.values():
        array.flush()
    write_json(working / "shown.json", shown)
    return {split: _with_shares(tally) for split, tally in tallies.items()}


def _refuse_too_large(shape: tuple[int, int, int], setting: str, working: Path) -> None:
    """One endless sentence, kept by a quantile of 1, can ask for more than any disk has."""
    needed, free = 4 * math.prod(shape), shutil.disk_usage(working).free
    if needed > free:
        raise InputError(
            f"{setting}: tokens of {shape[0]:,} documents x {shape[1]:,} sentences x {shape[2]:,} words take "
            f"{needed / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free in {working.parent}: choose a lower quantile"
        )


def _tally(tally: Counter[str], sentences: list[list[str]], tokens: np.ndarray, word_counts: np.ndarray) -> None:
    words, kept_words = sum(map(len, sentences)), int(word_counts.sum())
    tally["documents"] += 1
    tally["documents_cut"] += kept_words < words
    tally["sentences"] += len(sentences)
    tally["sentences_dropped"] += len(sentences) - int(np.count_nonzero(word_counts))
    tally["words"] += words
    tally["words_dropped"] += words - kept_words
    tally["words_unknown"] += int(np.count_nonzero(tokens == UNKNOWN_INDEX))


def _with_shares(tally: Counter[str]) -> dict[str, int | float]:
    """Add to the counts of a split the shares that they make; words_unknown are a share of the words kept."""
    kept = tally["words"] - tally["words_dropped"]
    return dict(tally) | {
        "documents_cut_share": round(tally["documents_cut"] / tally["documents"], 6),
        "sentences_kept_share": round(1 - tally["sentences_dropped"] / tally["sentences"], 6),
        "words_kept_share": round(kept / tally["words"], 6),
        "words_unknown_share": round(tally["words_unknown"] / kept, 6),
    }
