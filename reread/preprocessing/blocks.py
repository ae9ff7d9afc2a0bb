"""A corpus block by block: any process can read and number a block, and later write its rows.

A block is a run of whole lines of documents.jsonl. ``read_block`` segments its texts and saves words as the block's own
numbers in a temporary folder. The counts of all blocks then give the vocabulary, and ``write_block`` writes the block's
rows into the arrays. Each text is segmented once, and memory holds one block per process. The result does not depend
on which process handles which block, or in which order.

A job is a dictionary of JSON values with absolute paths.
Shape legend: S sentences per document has at most, K classes; of one block: D documents, T words, M of them kept.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from reread.batches.subsets import segment_arange
from reread.preprocessing.manifest import DataSetEntry, encode_labels
from reread.preprocessing.raw_text import parse_document
from reread.preprocessing.text import SENTENCE_END, find_words, keep, mark_sentences
from reread.preprocessing.vocabulary import UNKNOWN_INDEX
from reread.storage.errors import InputError
from reread.storage.files import published_directory, read_json
from reread.storage.prepared import SPLITS

Job = dict[str, Any]
Step = Callable[[Job], Any]
# Like ``map``: runs a step on each job and yields the results in the order of the jobs.
Run = Callable[[Step, Iterable[Job]], Iterator[Any]]

# Larger blocks are tokenised faster because more chunks repeat, but need more memory.
BLOCK_BYTES = 8 << 20
WRITTEN_AT_A_TIME = 4 << 20  # bytes of word_counts
SHOWN_DOCUMENTS = 40


def split_into_blocks(path: Path) -> list[dict[str, int]]:
    """Divide a file of lines into blocks: number, first byte, byte after the last, and number of the first line.

    A block ends with the line that reaches BLOCK_BYTES.
    """
    blocks: list[dict[str, int]] = []
    start, line = 0, 1
    with open(path, "rb") as file:
        while content := file.read(BLOCK_BYTES):
            content += file.readline()
            stop = start + len(content)
            blocks.append({"number": len(blocks), "start": start, "stop": stop, "first_line": line})
            start, line = stop, line + content.count(b"\n")
    return blocks


@dataclass(frozen=True)
class Block:
    """A block's documents as numbers, in the narrowest integer types that hold them.

    numbers            uint [T], the index in ``words`` of every word of the block
    sentence_lengths   uint [sentences], in words
    sentence_counts    uint [D]
    split              uint8 [D]: 0 train, 1 validation, 2 test
    labels             int32 [D] (single-label) or uint8 [D, K] (multi-label)
    raw_indices        int64 [D], each document's number in the data's file
    training_counts    int64 [distinct words], how often each occurs in the training split
    words              the block's distinct words
    shown              the ids of its first SHOWN_DOCUMENTS documents of the test split
    """

    numbers: np.ndarray
    sentence_lengths: np.ndarray
    sentence_counts: np.ndarray
    split: np.ndarray
    labels: np.ndarray
    raw_indices: np.ndarray
    training_counts: np.ndarray
    words: list[str]
    shown: list[str]

    def save(self, directory: Path) -> None:
        """Write a file per field. A folder that another process published first, for the same job, is kept."""
        with published_directory(directory) as working:
            for name, value in vars(self).items():
                if isinstance(value, np.ndarray):
                    np.save(working / f"{name}.npy", value, allow_pickle=False)
            (working / "words.txt").write_text("\n".join(self.words), encoding="utf-8", newline="\n")
            (working / "example_documents.json").write_text(json.dumps(self.shown), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path, words: bool = True) -> "Block":
        """Open a block that ``save`` wrote. Arrays are memory-mapped; words are read only if ``words``."""
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in directory.glob("*.npy")}
        read = (directory / "words.txt").read_text(encoding="utf-8").split() if words else []
        return cls(**arrays, words=read, shown=read_json(directory / "example_documents.json"))


def read_block(job: Job) -> None:
    """Read, segment and count the documents of one block, and save them as a Block in ``job["found"]``.

    InputError for a line that is not a document, and for a document without a word.
    """
    entry = DataSetEntry.from_json(job["entry"], job["where"])
    chosen = None if job["chosen"] is None else set(np.load(job["chosen"], allow_pickle=False).tolist())
    with open(job["documents"], "rb") as file:
        file.seek(job["start"])
        lines = io.BytesIO(file.read(job["stop"] - job["start"]))
    texts, ids, labels, splits, raw_indices = [], [], [], [], []
    for line_number, line in enumerate(lines, job["first_line"]):
        if chosen is None or line_number - 1 in chosen:
            document = parse_document(line, entry, f"{job['where']}, line {line_number}")
            texts.append(mark_sentences(document.text))
            ids.append(document.id)
            labels.append(document.labels)
            splits.append(SPLITS.index(document.split))
            raw_indices.append(line_number - 1)

    words, numbers, sentence_lengths, sentence_counts = number_words(texts)
    if not sentence_counts.all():
        wordless = ids[np.flatnonzero(sentence_counts == 0)[0]]
        raise InputError(f"data set '{job['name']}': document '{wordless}' has no word: remove it or give it a text")
    split = np.array(splits, np.uint8)
    in_training = np.repeat(np.repeat(split == SPLITS.index("train"), sentence_counts), sentence_lengths)
    Block(
        numbers=_narrow(numbers),
        sentence_lengths=_narrow(sentence_lengths),
        sentence_counts=_narrow(sentence_counts),
        split=split,
        labels=encode_labels(labels, entry.task, len(entry.classes)),
        raw_indices=np.array(raw_indices, np.int64),
        training_counts=np.bincount(numbers[in_training], minlength=len(words)),
        words=words,
        shown=[ids[row] for row in np.flatnonzero(split == SPLITS.index("test"))[:SHOWN_DOCUMENTS]],
    ).save(Path(job["found"]))


def number_words(texts: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Number the words of texts that ``mark_sentences`` made.

    Return the distinct words; the index of each word of the texts among them, int32 [T]; the number of words of each
    non-empty sentence, int64 [sentences]; and the number of these sentences in each text, int64 [D].
    """
    chunks_of_texts = _split(texts)
    stops_of_texts = chunks_of_texts.offsets.to_numpy()[1:]
    chunk_numbers, chunks = _distinct(chunks_of_texts.flatten())
    # Each distinct chunk is read once.
    stops_of_chunks = np.cumsum(pyarrow.compute.binary_length(chunks).to_numpy() + 1)
    joined_words, starts = find_words(_join(chunks))
    word_numbers, words = _distinct(_split(joined_words).flatten())
    words_of_chunks = pyarrow.ListArray.from_arrays(
        np.append(0, np.searchsorted(starts, stops_of_chunks)).astype(np.int32), pyarrow.array(word_numbers)
    )
    numbers = words_of_chunks.take(pyarrow.array(chunk_numbers)).flatten().to_numpy()

    stops = np.cumsum(np.diff(words_of_chunks.offsets.to_numpy())[chunk_numbers])
    ends = np.flatnonzero(chunk_numbers == pyarrow.compute.index(chunks, SENTENCE_END).as_py())
    lengths = np.diff(stops[ends], prepend=0)
    text_of_sentence = np.searchsorted(stops_of_texts, ends, side="right")
    sentence_counts = np.bincount(text_of_sentence[lengths > 0], minlength=len(texts))
    return words.to_pylist(), numbers, lengths[lengths > 0], sentence_counts


def _split(texts: Sequence[str]) -> pyarrow.LargeListArray:
    """Split each text at its spaces."""
    return pyarrow.compute.ascii_split_whitespace(pyarrow.array(texts, pyarrow.large_string()))


def _join(strings: pyarrow.Array) -> bytes:
    """Join the strings with spaces, in UTF-8."""
    all_of_them = pyarrow.ListArray.from_arrays(np.array([0, len(strings)], np.int32), strings)
    return pyarrow.compute.binary_join(all_of_them, pyarrow.scalar(" ", strings.type))[0].as_buffer().to_pybytes()


def _distinct(strings: pyarrow.Array) -> tuple[np.ndarray, pyarrow.Array]:
    """Return the index of each string among the distinct ones, int32, and the distinct ones in order of occurrence."""
    encoded = strings.dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def write_block(job: Job) -> dict[str, Any]:
    """Write the rows of a block into the arrays of ``job["arrays"]``; return tallies and example documents.

    job["found"]        the Block's folder
    job["vocabulary"]   path of int32 [distinct words]: the vocabulary's number of each of the block's words
    job["first_rows"]   the row of the block's first document in each split
    job["first_words"]  the index in ``tokens`` of its first word in each split
    job["kept"]         how many sentences of a document are kept, and how many words of a sentence
    job["shown_end"]    the row after the last example document

    Return {"tallies": for each split what its documents have and lose, "shown": [{"row", "id", "words"}, ...]}.
    """
    first_shown = job["first_rows"][SPLITS.index("test")]
    block = Block.load(Path(job["found"]), words=first_shown < job["shown_end"])
    vocabulary = np.load(job["vocabulary"], allow_pickle=False)
    arrays, next_rows, next_words = Path(job["arrays"]), list(job["first_rows"]), list(job["first_words"])
    tallies: list[Counter[str]] = [Counter() for _ in SPLITS]
    first_sentence = first_word = 0
    step = max(1, WRITTEN_AT_A_TIME // (4 * job["kept"][0]))
    for start in range(0, len(block.split), step):
        documents = slice(start, start + step)
        sentence_counts = block.sentence_counts[documents].astype(np.int64)
        sentences = slice(first_sentence, first_sentence := first_sentence + int(sentence_counts.sum()))
        lengths = block.sentence_lengths[sentences].astype(np.int64)
        words = slice(first_word, first_word := first_word + int(lengths.sum()))
        tokens, word_counts = truncate(vocabulary[block.numbers[words]], lengths, sentence_counts, *job["kept"])
        split, split_of_words = block.split[documents], np.repeat(block.split[documents], word_counts.sum(axis=1))
        columns = {
            "word_counts": word_counts,
            "sentence_counts": np.count_nonzero(word_counts, axis=1).astype(np.int32),
            "labels": block.labels[documents],
            "raw_indices": block.raw_indices[documents],
        }
        document_words = np.add.reduceat(lengths, np.cumsum(sentence_counts) - sentence_counts)
        for number, tally in enumerate(tallies):
            where = split == number
            if where.any():
                for name, column in columns.items():
                    write_rows(arrays / f"{name}.npy", next_rows[number], column[where])
                next_rows[number] += int(where.sum())
                kept = tokens[split_of_words == number]
                write_rows(arrays / "tokens.npy", next_words[number], kept)
                next_words[number] += len(kept)
                tally.update(tally_of(sentence_counts[where], document_words[where], kept, word_counts[where]))
    in_test = np.flatnonzero(block.split == SPLITS.index("test"))
    shown = [
        {"row": row, "id": block.shown[place], "words": keep(words_of(block, in_test[place]), *job["kept"])}
        for place, row in enumerate(range(first_shown, min(job["shown_end"], first_shown + len(block.shown))))
    ]
    return {"tallies": dict(zip(SPLITS, tallies, strict=True)), "shown": shown}


def words_of(block: Block, document: int) -> list[list[str]]:
    """Return the sentences of one document of a block, each a list of words, as ``reread.preprocessing.text.segment``
    does."""
    first = int(block.sentence_counts[:document].sum(dtype=np.int64))
    lengths = block.sentence_lengths[first : first + int(block.sentence_counts[document])].astype(np.int64)
    start = int(block.sentence_lengths[:first].sum(dtype=np.int64))
    words = [block.words[number] for number in block.numbers[start : start + lengths.sum()]]
    stops = np.cumsum(lengths).tolist()
    return [words[stop - length : stop] for stop, length in zip(stops, lengths.tolist(), strict=True)]


def truncate(
    words: np.ndarray, lengths: np.ndarray, sentence_counts: np.ndarray, kept_sentences: int, kept_words: int
) -> tuple[np.ndarray, np.ndarray]:
    """Truncate documents, as ``reread.preprocessing.text.number`` does with one.

    words            int32 [T], the words of all documents as numbers
    lengths          int64 [sentences], the words of each sentence, one or more
    sentence_counts  int64 [D], the sentences of each document, one or more

    Return tokens int32 [M], the kept words one after the other, and word_counts int32 [D, S], S being
    ``kept_sentences``.
    """
    kept = kept_lengths(lengths, sentence_counts, kept_sentences, kept_words)
    tokens = words[np.repeat(np.tile((True, False), len(kept)), np.stack((kept, lengths - kept), axis=1).reshape(-1))]
    word_counts = np.zeros((len(sentence_counts), kept_sentences), np.int32)
    word_counts[np.arange(kept_sentences) < sentence_counts[:, None]] = kept[kept > 0]
    return tokens, word_counts


def kept_lengths(lengths: np.ndarray, sentence_counts: np.ndarray, kept_sentences: int, kept_words: int) -> np.ndarray:
    """Return how many words of each sentence are kept, int64 [sentences]; arguments as for ``truncate``."""
    return np.where(segment_arange(sentence_counts) < kept_sentences, np.minimum(lengths, kept_words), 0)


def count_kept(block: Block, kept_sentences: int, kept_words: int) -> list[int]:
    """Return how many words of a block are kept in each split."""
    lengths, sentence_counts = block.sentence_lengths.astype(np.int64), block.sentence_counts.astype(np.int64)
    kept = kept_lengths(lengths, sentence_counts, kept_sentences, kept_words)
    split = np.repeat(block.split, sentence_counts)
    return [int(kept[split == number].sum()) for number in range(len(SPLITS))]


def tally_of(
    sentence_counts: np.ndarray, document_words: np.ndarray, tokens: np.ndarray, word_counts: np.ndarray
) -> dict[str, int]:
    """Count what documents have and what truncation removes; ``words_unknown`` counts kept words, of ``tokens``."""
    tally = {
        "documents": len(word_counts),
        "documents_cut": np.count_nonzero(word_counts.sum(axis=1) < document_words),
        "sentences": sentence_counts.sum(),
        "sentences_dropped": sentence_counts.sum() - np.count_nonzero(word_counts),
        "words": document_words.sum(),
        "words_dropped": document_words.sum() - len(tokens),
        "words_unknown": np.count_nonzero(tokens == UNKNOWN_INDEX),
    }
    return {name: int(count) for name, count in tally.items()}


def write_rows(path: Path, first: int, rows: np.ndarray) -> None:
    """Write ``rows`` into the .npy file ``path`` from row ``first`` on; other processes may write other rows.

    Not by a memory map: its pages would count as this process's memory, and a full disk would kill the process.
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    with open(path, "r+b") as file:
        file.seek(array.offset + first * array.strides[0])
        file.write(np.ascontiguousarray(rows, array.dtype).data)


def _narrow(integers: np.ndarray) -> np.ndarray:
    """Convert integers to the narrowest unsigned type that holds them."""
    return integers.astype(np.min_scalar_type(int(integers.max(initial=0))))
