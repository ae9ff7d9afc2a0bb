"""A text data set as arrays: vocabulary and lengths from the training split, then every document as numbers.

The file is read once, as a stream of blocks (reread/preprocessing/blocks.py), and each text is segmented once. Counts
of words and of lengths are exact integers, added up in the order of the file. Memory holds one block per process, the
vocabulary's counts up to a limit, and a few numbers per block.

Shape legend: N rows, M words of all rows that are kept, S sentences per document has at most, K classes, V words of the
vocabulary, D numbers of a word vector.
"""

import math
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from reread import goals
from reread.kinds.text import Settings as TextSettings
from reread.kinds.text import WordVectors
from reread.preprocessing import tokenised, tokenizer
from reread.preprocessing.blocks import (
    BLOCK_BYTES,
    SHOWN_DOCUMENTS,
    Block,
    Job,
    Run,
    count_kept,
    read_block,
    split_into_blocks,
    write_block,
)
from reread.preprocessing.lengths import LengthHistogram, write_lengths
from reread.preprocessing.raw_text import DOCUMENTS, TextDataSet
from reread.preprocessing.rows import Census, choose_documents
from reread.preprocessing.vocabulary import UNKNOWN_INDEX, WordCounts, build_vocabulary, word_index
from reread.preprocessing.word_vectors import train_word_vectors
from reread.preprocessing.workers import open_workers
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.prepared import SPLITS

LIBRARIES = ("blingfire", "pyarrow")  # they find the words


def libraries(settings: TextSettings) -> tuple[str, ...]:
    """Return the names of the libraries on whose version the arrays depend."""
    return LIBRARIES if settings.word_vectors is None else (*LIBRARIES, "gensim")


def prepare(data: TextDataSet, settings: TextSettings, working: Path) -> dict[str, Any]:
    """Write the arrays as ``write_documents`` does, in as many processes as reread/preprocessing/workers.py chooses.

    A tokenizer of its own runs in this process (reread/preprocessing/tokenised.py).
    """
    if tokenizer.asked(settings):
        return tokenised.prepare(data, settings, working)
    with open_workers(count_blocks(data), working) as run:
        return write_documents(data, settings, working, run)


def count_blocks(data: TextDataSet) -> int:
    """Return about how many blocks the data set's file has: no more processes can share the work."""
    return math.ceil((data.directory / DOCUMENTS).stat().st_size / BLOCK_BYTES)


def write_documents(data: TextDataSet, settings: TextSettings, working: Path, run: Run = map) -> dict[str, Any]:
    """Write the arrays and files of a text data set into ``working`` and return their entries for prepared.json.

    tokens.npy int32 [M], word_counts.npy int32 [N, S], sentence_counts.npy int32 [N], labels.npy int32 [N] or
    uint8 [N, K], raw_indices.npy int64 [N] (each row's number in the data's file); vocabulary.json, quantiles.csv,
    lengths.csv, lengths.png, example_documents.json; where the settings ask for them word_vectors.npy float32 [V, D].

    ``run`` is like ``map``: it may run jobs in this process, in others or on other machines
    (reread/preprocessing/workers.py). The bytes do not depend on it.
    """
    temporary = (working / "blocks").resolve()
    temporary.mkdir()
    totals = _read(data, settings, temporary, run)
    splits, first_rows = _place(totals.rows)
    vocabulary = build_vocabulary(totals.counts.at_least(settings.min_count))
    quantiles = settings.length_quantile
    kept_words = totals.words.quantile(quantiles.words)
    kept_sentences = totals.sentences.quantile(quantiles.sentences)
    write_json(working / "vocabulary.json", vocabulary)
    title = f"{data.name}: lengths in the training split"
    write_lengths(totals.words, totals.sentences, kept_words, kept_sentences, title, working)

    kept = (kept_sentences, kept_words)
    directories = [temporary / str(number) for number in range(len(totals.rows))]
    places, first_words = _place([count_kept(Block.load(directory, words=False), *kept) for directory in directories])
    _make_arrays(data, splits["test"][1], places["test"][1], kept_sentences, working)
    cut: dict[str, Counter[str]]
    shown: list[Any]
    cut, shown = {split: Counter() for split in SPLITS}, []
    start, stop = splits["test"]
    shown_end = min(stop, start + SHOWN_DOCUMENTS)
    jobs = _writing_jobs(first_rows, first_words, word_index(vocabulary), kept, shown_end, temporary)
    for written in run(write_block, jobs):
        shown += written["shown"]
        for split, tally in written["tallies"].items():
            cut[split].update(tally)
    write_json(working / "example_documents.json", shown)
    shutil.rmtree(temporary)
    if settings.word_vectors is not None:
        _add_word_vectors(working, splits["train"][1], len(vocabulary), settings.word_vectors)
    return {
        "splits": splits,
        "vocabulary_size": len(vocabulary),
        "lengths": {
            "words": {"quantile": quantiles.words, "kept": kept_words, "longest": totals.words.longest},
            "sentences": {"quantile": quantiles.sentences, "kept": kept_sentences, "longest": totals.sentences.longest},
        },
        "cut": {split: _with_shares(tally) for split, tally in cut.items()},
    }


class _Found:
    """The sums over all blocks. ``rows``: of each block, its documents in each split."""

    def __init__(self, directory: Path) -> None:
        self.counts = WordCounts(directory)
        self.words, self.sentences = LengthHistogram(), LengthHistogram()
        self.rows: list[list[int]] = []
        self.census = Census()

    def add(self, block: Block) -> None:
        self.rows.append(np.bincount(block.split, minlength=len(SPLITS)).tolist())
        self.counts.add(block.words, block.training_counts.tolist())
        in_training = block.split == SPLITS.index("train")
        labels = block.labels[:, None] if block.labels.ndim == 1 else block.labels
        self.census.add(
            len(labels), np.unique(labels).tolist(), map(tuple, np.unique(labels[in_training], axis=0).tolist())
        )
        self.sentences += LengthHistogram.of(block.sentence_counts[in_training])
        self.words += LengthHistogram.of(block.sentence_lengths[np.repeat(in_training, block.sentence_counts)])


def _read(data: TextDataSet, settings: TextSettings, temporary: Path, run: Run) -> _Found:
    """Read all blocks and add up their counts in the order of the file."""
    documents, chosen = data.directory / DOCUMENTS, None
    if settings.rows_per_class is not None:
        chosen = temporary / "chosen.npy"
        np.save(chosen, choose_documents(data, settings.rows_per_class, temporary), allow_pickle=False)
    jobs: list[Job] = [
        {
            **block,
            "name": data.name,
            "entry": data.entry.to_json(),
            "documents": str(documents.resolve()),
            "where": str(documents),
            "chosen": None if chosen is None else str(chosen),
            "found": str(temporary / str(block["number"])),
        }
        for block in split_into_blocks(documents)
    ]
    totals = _Found(temporary)
    for job, _ in zip(jobs, run(read_block, jobs), strict=True):
        totals.add(Block.load(Path(job["found"])))
    if chosen is None:
        totals.census.check(data)
    return totals


def _place(counts_of_blocks: list[list[int]]) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Assign places to rows or words, given how many each block has in each split: by split, then in the file's order.

    Return [first, stop] of each split, and for each block its first place in each split.
    """
    counts = np.array(counts_of_blocks, np.int64)
    stops = np.cumsum(counts.sum(axis=0))
    starts = stops - counts.sum(axis=0)
    splits = {split: [int(start), int(stop)] for split, start, stop in zip(SPLITS, starts, stops, strict=True)}
    return splits, (starts + np.cumsum(counts, axis=0) - counts).tolist()


def _make_arrays(data: TextDataSet, rows: int, words: int, kept_sentences: int, working: Path) -> None:
    """Create the files of the arrays; the blocks' rows are written into them."""
    _refuse_too_large(rows, words, kept_sentences, f"preprocessing.{data.name}.length_quantile", working)
    several = data.entry.task == "multi-label"
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "tokens": (np.int32, (words,)),
        "word_counts": (np.int32, (rows, kept_sentences)),
        "sentence_counts": (np.int32, (rows,)),
        "labels": (np.uint8, (rows, len(data.entry.classes))) if several else (np.int32, (rows,)),
        "raw_indices": (np.int64, (rows,)),
    }
    if goals.beyond_labels(data.entry.task):
        shapes["labels"] = goals.target_form(data.entry.task, rows, len(data.entry.classes))
    for name, (dtype, shape) in shapes.items():
        np.lib.format.open_memmap(working / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def _writing_jobs(
    first_rows: list[list[int]],
    first_words: list[list[int]],
    index: dict[str, int],
    kept: tuple[int, int],
    shown_end: int,
    temporary: Path,
) -> Iterator[Job]:
    """Yield a job per block. Words are looked up here, so that only this process holds the whole vocabulary."""
    for number, (rows, words) in enumerate(zip(first_rows, first_words, strict=True)):
        directory, vocabulary = temporary / str(number), temporary / f"{number}.npy"
        words_of_block = Block.load(directory).words
        numbers = map(index.get, words_of_block, repeat(UNKNOWN_INDEX))
        np.save(vocabulary, np.fromiter(numbers, np.int32, len(words_of_block)), allow_pickle=False)
        yield {
            "found": str(directory),
            "vocabulary": str(vocabulary),
            "first_rows": rows,
            "first_words": words,
            "kept": kept,
            "shown_end": shown_end,
            "arrays": str(temporary.parent),
        }


def _add_word_vectors(working: Path, training_rows: int, vocabulary_size: int, settings: WordVectors) -> None:
    """Train word vectors on the training split, whose rows come first."""
    tokens, word_counts = (np.load(working / f"{name}.npy", mmap_mode="r") for name in ("tokens", "word_counts"))
    word_counts = word_counts[:training_rows]
    words = tokens[: word_counts.sum(dtype=np.int64)]
    vectors = train_word_vectors(words, word_counts, vocabulary_size, settings)
    np.save(working / "word_vectors.npy", vectors, allow_pickle=False)


def _refuse_too_large(rows: int, words: int, kept_sentences: int, setting: str, working: Path) -> None:
    """Raise InputError where the arrays would not fit on the disk: a quantile of 1 keeps the longest sentence whole."""
    needed, free = 4 * (words + rows * kept_sentences), shutil.disk_usage(working).free
    if needed > free:
        raise InputError(
            f"{setting}: {words:,} words, and counts of {rows:,} documents x {kept_sentences:,} sentences, take "
            f"{needed / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free in {working.parent}: choose a lower quantile"
        )


def _with_shares(tally: Counter[str]) -> dict[str, int | float]:
    """Add shares to the counts of a split; words_unknown_share is a share of the words kept."""
    kept = tally["words"] - tally["words_dropped"]
    return dict(tally) | {
        "documents_cut_share": round(tally["documents_cut"] / tally["documents"], 6),
        "sentences_kept_share": round(1 - tally["sentences_dropped"] / tally["sentences"], 6),
        "words_kept_share": round(kept / tally["words"], 6),
        "words_unknown_share": round(tally["words_unknown"] / kept, 6),
    }
