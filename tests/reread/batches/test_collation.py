"""Rows as a network's inputs and labels."""

import dataclasses

import numpy as np
import pytest
import torch

from reread.batches import collation
from reread.batches.text import concatenate, powers_of_two


def test_a_batch_is_cut_to_its_longest_document_and_sentence(text):
    rows = np.flatnonzero(text.arrays["sentence_counts"] <= 2)
    assert collation.sizes(text, rows).tolist() == text.arrays["word_counts"][rows].sum(axis=1).tolist()
    tokens, word_counts, sentence_counts = collation.inputs(text, rows)
    assert tokens.shape == (len(rows), sentence_counts.max(), word_counts.max())
    assert tokens.dtype == word_counts.dtype == sentence_counts.dtype == torch.int32
    for row, place in zip(rows, range(len(rows)), strict=True):
        for sentence in range(tokens.shape[1]):
            count = text.arrays["word_counts"][row, sentence]
            start = text.arrays["word_counts"][:row].sum() + text.arrays["word_counts"][row, :sentence].sum()
            expected = np.append(text.arrays["tokens"][start : start + count], [0] * (tokens.shape[2] - count))
            assert tokens[place, sentence].tolist() == expected.tolist()
            assert word_counts[place, sentence] == count


def test_images_are_normalised_with_the_training_split_s_mean_and_deviation(images):
    (batch,) = collation.inputs(images, np.array([3, 1]))
    expected = (images.arrays["images"][[3, 1]].transpose(0, 3, 1, 2) / 255 - 0.5) / 0.3
    np.testing.assert_allclose(batch.numpy(), expected, atol=1e-6)


def test_labels_are_class_numbers_or_a_row_of_zeros_and_ones(images):
    target = collation.labels(images, np.array([2, 0]))
    assert target.dtype == torch.int64 and target.tolist() == images.labels[[2, 0]].tolist()
    several = np.array([[1, 0], [1, 1]], np.uint8)
    multi = dataclasses.replace(
        images, description=images.description | {"task": "multi-label"}, arrays={"labels": several}
    )
    target = collation.labels(multi, np.array([1, 0]))
    assert target.dtype == torch.float32 and target.tolist() == [[1, 1], [1, 0]]


def test_ragged_text_is_the_same_words_in_one_of_few_lengths(text):
    tokens, word_counts, sentence_counts = collation.inputs(text, np.array([3, 0, 7]), ragged=True)
    padded, cut_counts, counts = collation.inputs(text, np.array([3, 0, 7]))
    words = padded[torch.arange(padded.shape[2]) < cut_counts[..., None]]
    assert tokens[: len(words)].tolist() == words.tolist()
    assert not tokens[len(words) :].any()
    assert sentence_counts.tolist() == counts.tolist()
    assert word_counts.shape == (3, 5) and word_counts[:, : cut_counts.shape[1]].tolist() == cut_counts.tolist()


def test_ragged_counts_are_cut_to_the_longest_document_up_to_a_power_of_two(text):
    counts = text.arrays["sentence_counts"]
    for longest, columns in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 5)):
        rows = np.flatnonzero(counts <= longest)
        assert counts[rows].max() == longest
        _, word_counts, _ = collation.inputs(text, rows, ragged=True)
        assert word_counts.tolist() == text.arrays["word_counts"][rows, :columns].tolist()


def test_the_lengths_of_ragged_text_are_few_and_not_much_too_long():
    lengths = [len(concatenate([np.ones(count, np.int32)])) for count in range(3001)]
    assert lengths[0] == 1
    assert all(count <= length <= max(1, count * 9 / 8) for count, length in enumerate(lengths))
    assert len(set(lengths[1024:2048])) == 8 + 1


def test_powers_of_two_are_the_next_ones():
    assert powers_of_two(np.arange(1, 18)).tolist() == [1, 2, 4, 4, *[8] * 4, *[16] * 8, 32]


class Network(torch.nn.Module):
    def __init__(self, reads_ragged: bool | None) -> None:
        super().__init__()
        if reads_ragged is not None:
            self.reads_ragged = reads_ragged


@pytest.mark.parametrize("reads_ragged", [None, False, True])
def test_a_network_reads_ragged_text_on_a_gpu_where_it_says_so(reads_ragged):
    network = Network(reads_ragged)
    assert collation.reads_ragged(network, torch.device("cuda")) is bool(reads_ragged)
    assert not collation.reads_ragged(network, torch.device("cpu"))
