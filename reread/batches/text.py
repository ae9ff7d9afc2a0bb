"""Collation of documents: padded for a CPU, ragged or padded on a GPU.

    padded   tokens int32 [n, S, W], word_counts int32 [n, S], sentence_counts int32 [n], truncated to the longest
             document and sentence of the batch. Networks ignore padding, so truncation changes no output.
    ragged   tokens int32 [M], the words of the batch one after the other and then zeros up to a round length, and
             counts as above. S is a power of two or all that the data set has. Batches then have few shapes, as CUDA
             graphs need.

Shape legend: n rows of a batch, S sentences per document, W words per sentence, M words of a batch, N resident rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reread.batches.collation import upload
from reread.storage.arrays import Int32Array, Int64Array
from reread.storage.prepared import Prepared

# Words that are laid out at a time: an epoch of most data sets. The indices of one layout take 16 bytes per word.
LAYOUT_WORDS = 1 << 24
# Each batch of a layout begins at a multiple of this many int32 values: 128 bytes, as a fresh allocation would.
ALIGNMENT = 32


class Collator:
    """Collates rows of a prepared text for ``device``."""

    def __init__(self, prepared: Prepared, device: torch.device, ragged: bool) -> None:
        self.prepared = prepared
        self.device = device
        self.ragged = ragged

    def sizes(self, rows: Int64Array) -> Int64Array:
        """Return the number of words of each row, int64 [n]."""
        return self.prepared.first_words[rows + 1] - self.prepared.first_words[rows]

    def collate(self, rows: Int64Array) -> tuple[Tensor, ...]:
        """Collate ``rows`` (int [n]) on the CPU: tokens, word_counts, sentence_counts."""
        sentence_counts = self.prepared.arrays["sentence_counts"][rows]
        longest = int(sentence_counts.max())
        if self.ragged:
            longest = 1 << (longest - 1).bit_length()
        word_counts = self.prepared.arrays["word_counts"][rows, :longest]
        documents = self._documents(rows)
        tokens = concatenate(documents) if self.ragged else pad(documents, word_counts)
        return tuple(torch.from_numpy(array) for array in (tokens, word_counts, sentence_counts))

    def finish(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return collated tensors, copied to the device, as the network's inputs."""
        return tensors

    def resident_bytes(self, rows: Int64Array) -> int:
        """Return the device memory in bytes that ``resident`` takes for ``rows``, with its layouts."""
        first, stop = int(rows.min()), int(rows.max()) + 1
        first_words = self.prepared.first_words
        words = int(first_words[stop] - first_words[first])
        counts: int = (stop - first) * (self.prepared.arrays["word_counts"].shape[1] + 1)
        return 4 * (words + counts) + 24 * min(words + counts, LAYOUT_WORDS)

    def resident(self, rows: Int64Array) -> "ResidentText":
        """Copy the documents of ``rows`` to the device."""
        return ResidentText(self.prepared, rows, self.device, self.ragged)

    def _documents(self, rows: Int64Array) -> list[Int32Array]:
        """Return the words of each row, int32 [its words]: views of the prepared array."""
        # Slices of a plain array are much faster to make than slices of numpy's memmap.
        tokens, first_words = np.asarray(self.prepared.arrays["tokens"]), self.prepared.first_words
        bounds = zip(first_words[rows].tolist(), first_words[rows + 1].tolist(), strict=True)
        return [tokens[first:stop] for first, stop in bounds]


class ResidentText:
    """Documents on a device, from which an epoch's batches are gathered without work of the host per batch."""

    def __init__(self, prepared: Prepared, rows: Int64Array, device: torch.device, ragged: bool) -> None:
        """Copy all rows from the first to the last of ``rows``."""
        self.ragged = ragged
        self.first, stop = int(rows.min()), int(rows.max()) + 1
        first_words = prepared.first_words[self.first : stop + 1]
        tokens = np.asarray(prepared.arrays["tokens"])[first_words[0] : first_words[-1]]
        self.first_words: Int64Array = first_words - first_words[0]
        word_counts = np.array(prepared.arrays["word_counts"][self.first : stop])
        self.columns = word_counts.shape[1]
        self.sentence_counts = np.array(prepared.arrays["sentence_counts"][self.first : stop])
        self.longest_sentences = word_counts.max(axis=1)
        # Both end with a zero, from which padding is read.
        self.device_tokens = torch.from_numpy(np.append(tokens, np.int32(0))).to(device)
        self.device_word_counts = torch.from_numpy(np.append(word_counts, np.int32(0))).to(device)
        self.device_sentence_counts = torch.from_numpy(self.sentence_counts).to(device)
        self.device_first_words = torch.from_numpy(self.first_words).to(device)

    def batches(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the tensors of each of ``batches`` (rows, int [n]), equal to those that ``Collator.collate`` gives."""
        sizes = [int(self._words(rows - self.first).sum()) for rows in batches]
        begin = words = 0
        for end, size in enumerate(sizes):
            if words and words + size > LAYOUT_WORDS:
                yield from self._layout(batches[begin:end])
                begin, words = end, 0
            words += size
        if len(batches) > begin:
            yield from self._layout(batches[begin:])

    def _words(self, rows: Int64Array) -> Int64Array:
        return self.first_words[rows + 1] - self.first_words[rows]

    def _layout(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        order = np.concatenate(batches) - self.first
        counts = np.array([len(rows) for rows in batches])
        begins = np.cumsum(counts) - counts
        device_order = upload(order, self.device_tokens.device)
        sentence_counts = self.device_sentence_counts.index_select(0, device_order).split(counts.tolist())
        sentences = np.maximum.reduceat(self.sentence_counts[order], begins)
        if not self.ragged:
            words = np.maximum.reduceat(self.longest_sentences[order], begins).tolist()
            rows = device_order.split(counts.tolist())
            for index, longest in enumerate(sentences.tolist()):
                yield *self._padded(rows[index], longest, words[index]), sentence_counts[index]
            return
        columns = np.minimum(powers_of_two(sentences), self.columns)
        words = self._words(order)
        round_words = round_lengths(np.add.reduceat(words, begins))
        tokens = _gather(self.device_tokens, self.first_words[order], words, begins, round_words)
        starts, lengths = order * self.columns, np.repeat(columns, counts)
        word_counts = _gather(self.device_word_counts, starts, lengths, begins, counts * columns)
        for index, shape in enumerate(zip(counts.tolist(), columns.tolist(), strict=True)):
            yield tokens[index], word_counts[index].view(shape), sentence_counts[index]

    def _padded(self, rows: Tensor, sentences: int, words: int) -> tuple[Tensor, Tensor]:
        """rows int64 [n] -> tokens int32 [n, sentences, words], word_counts int32 [n, sentences]."""
        all_counts = self.device_word_counts[:-1].view(-1, self.columns).index_select(0, rows)
        word_counts = all_counts[:, :sentences].contiguous()
        starts = self.device_first_words.index_select(0, rows).unsqueeze(1) + word_counts.cumsum(1) - word_counts
        word = torch.arange(words, device=rows.device)
        places = torch.where(word < word_counts.unsqueeze(2), starts.unsqueeze(2) + word, len(self.device_tokens) - 1)
        return self.device_tokens.index_select(0, places.flatten()).view(places.shape), word_counts


def _gather(
    source: Tensor,
    starts: Int64Array,
    lengths: Int64Array,
    begins: Int64Array,
    sizes: Int64Array,
) -> list[Tensor]:
    """Gather segments of ``source`` into one tensor for each batch, each filled up with zeros.

    source [L], whose last item is 0; starts and lengths int [segments]; begins int [batches], each batch's first
    segment; sizes int [batches], the length of each batch's tensor.
    """
    rooms = -(-sizes // ALIGNMENT) * ALIGNMENT
    # The padding of a batch is a segment that begins at the last item and reads nothing else.
    ends = np.append(begins[1:], len(starts))
    rests = rooms - np.add.reduceat(lengths, begins)
    starts, lengths = np.insert(starts, ends, len(source) - 1), np.insert(lengths, ends, rests)
    shifts = upload(starts - (np.cumsum(lengths) - lengths), source.device)
    total = int(rooms.sum())
    # With output_size the host does not wait for the device.
    places = torch.repeat_interleave(shifts, upload(lengths, source.device), output_size=total)
    places.add_(torch.arange(total, device=source.device)).clamp_(max=len(source) - 1)
    gathered = source.index_select(0, places).split(rooms.tolist())
    return [room[:size] for room, size in zip(gathered, sizes.tolist(), strict=True)]


def pad(documents: Sequence[Int32Array], word_counts: Int32Array) -> Int32Array:
    """Pad ``documents``, whose sentences have ``word_counts`` int32 [n, S] words -> int32 [n, S, W]."""
    words, longest = torch.from_numpy(np.concatenate(documents)), int(word_counts.max())
    counts = torch.from_numpy(word_counts).flatten().long()
    # The distance from a word's place among all words to its place in the padded array: the same for a sentence.
    shifts = torch.arange(len(counts)) * longest - (counts.cumsum(0) - counts)
    places = torch.repeat_interleave(shifts, counts, output_size=len(words)).add_(torch.arange(len(words)))
    tokens = torch.zeros(len(counts) * longest, dtype=torch.int32).scatter_(0, places, words)
    return tokens.numpy().reshape(*word_counts.shape, longest)


def concatenate(documents: Sequence[Int32Array]) -> Int32Array:
    """Concatenate ``documents``, each int32 [its words], and fill up with zeros to a round length, int32 [M]."""
    words = sum(map(len, documents))
    tokens = np.zeros(int(round_lengths(np.array([words]))[0]), np.int32)
    np.concatenate(documents, out=tokens[:words])
    return tokens


def round_lengths(words: Int64Array) -> Int64Array:
    """Round int [n] up to a multiple of a sixteenth of the next power of two, at least 1.

    That is at most an eighth more, and eight lengths between a power of two and the next.
    """
    # frexp's exponent is the number of bits.
    step: Int64Array = 1 << np.maximum(np.frexp(words)[1].astype(np.int64) - 4, 0)
    return np.maximum(-(-words // step) * step, step)


def powers_of_two(counts: Int64Array) -> Int64Array:
    """Return the next power of two of each of int [n], at least 1."""
    return 1 << np.frexp(counts - 1)[1].astype(np.int64)
