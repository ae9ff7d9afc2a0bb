"""Batches of an epoch: each way of loading against collation on request, shares, and augmentation of training alone."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from reread.batches import augmentations, order
from reread.batches.batches import Batches, Loader
from reread.batches.collation import inputs, labels, sizes
from reread.batches.text import ALIGNMENT
from reread.storage.errors import InputError

CPU = torch.device("cpu")
WAYS = ("resident", "prefetched", "collated")
FLIP = [{"name": "flip"}]


def several_labels(prepared):
    several = np.random.default_rng(0).integers(0, 2, (len(prepared.labels), 3)).astype(np.uint8)
    return dataclasses.replace(
        prepared,
        description=prepared.description | {"task": "multi-label"},
        arrays={**prepared.arrays, "labels": several},
    )


def assert_equal(tensors, expected):
    for tensor, other in zip(tensors, expected, strict=True):
        assert tensor.dtype == other.dtype and tensor.shape == other.shape
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["padded", "ragged", "several labels", "images"])
@pytest.mark.parametrize("rows", [np.arange(16), np.array([13, 2, 7, 5, 3, 11])], ids=["all", "some"])
def test_each_way_of_loading_gives_what_collation_gives(way, kind, rows, text, images):
    prepared = {"images": images, "several labels": several_labels(text)}.get(kind, text)
    ragged = kind == "ragged"
    loader = Loader(prepared, rows, CPU, ragged, way)
    for epoch in (1, 2):
        chosen = order.batches(rows, sizes(prepared, rows), 3, 0, epoch)
        for share, (given, target) in zip(chosen, loader.load(chosen), strict=True):
            assert_equal(given, inputs(prepared, share, ragged=ragged))
            assert_equal([target], [labels(prepared, share)])
        # As in serving, where no row has a label.
        bare = dataclasses.replace(prepared, arrays={k: v for k, v in prepared.arrays.items() if k != "labels"})
        unlabelled = Loader(bare, rows, CPU, ragged, way, labelled=False)
        for share, (given, target) in zip(chosen, unlabelled.load(chosen), strict=True):
            assert_equal(given, inputs(prepared, share, ragged=ragged))
            assert target is None


@pytest.mark.parametrize("ragged", [False, True])
def test_an_epoch_that_is_laid_out_in_several_parts_is_the_same(ragged, text, monkeypatch):
    rows = np.arange(24)
    chosen = order.batches(rows, sizes(text, rows), 2, 0, 1)
    whole = list(Loader(text, rows, CPU, ragged, "resident").load(chosen))
    # Some parts of one batch, which is longer than a part may be.
    monkeypatch.setattr("reread.batches.text.LAYOUT_WORDS", 30)
    parts = list(Loader(text, rows, CPU, ragged, "resident").load(chosen))
    for (given, target), (expected, other) in zip(parts, whole, strict=True):
        assert_equal([*given, target], [*expected, other])


def test_ragged_batches_of_a_layout_are_aligned_and_contiguous(text):
    rows = np.arange(24)
    chosen = order.batches(rows, sizes(text, rows), 3, 0, 1)
    end = 0
    for (tokens, word_counts, _), _ in Loader(text, rows, CPU, True, "resident").load(chosen):
        assert tokens.storage_offset() % ALIGNMENT == word_counts.storage_offset() % ALIGNMENT == 0
        assert tokens.is_contiguous() and word_counts.is_contiguous()
        assert end <= tokens.storage_offset() < end + ALIGNMENT, "no more room than alignment takes"
        end = tokens.storage_offset() + tokens.numel()


def test_a_split_is_resident_on_a_gpu_where_it_takes_a_share_of_the_free_memory(text, monkeypatch):
    loader = Loader(text, np.arange(24), CPU, True)
    assert loader.way == "collated"
    needed = loader.collator.resident_bytes(np.arange(24))
    # Its words and counts, and the indices of their layout.
    assert needed > text.arrays["tokens"].nbytes + text.arrays["word_counts"].nbytes
    loader.device = torch.device("cuda")
    for free, way in ((4 * needed, "resident"), (4 * needed - 4, "prefetched")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert loader._choose(np.arange(24)) == way


def test_an_epoch_is_a_function_of_seed_and_epoch(images):
    def epoch(seed, number):
        made = Batches(images, images.rows("train"), CPU, 3, seed, augmentation=FLIP)
        return [(batch.inputs[0], batch.target) for batch in made.epoch(number)]

    def same(first, second):
        pairs = [pair for both in zip(first, second, strict=True) for pair in zip(*both, strict=True)]
        return all(torch.equal(tensor, other) for tensor, other in pairs)

    expected = epoch(5, 2)
    assert len(expected) == len(Batches(images, images.rows("train"), CPU, 3)) == 3
    # As it is after a restart, where epoch 1 was not drawn in this process.
    made = Batches(images, images.rows("train"), CPU, 3, 5, augmentation=FLIP)
    list(made.epoch(1))
    assert same([(batch.inputs[0], batch.target) for batch in made.epoch(2)], expected)
    assert not same(epoch(5, 1), expected) and not same(epoch(4, 2), expected)


@pytest.mark.parametrize("augmentation", [[], FLIP], ids=["as it is", "augmented"])
def test_shares_of_several_processes_are_the_batches_of_one(images, augmentation):
    def batches_of(rank, world_size):
        made = Batches(
            images, images.rows("train"), CPU, 4, 1, augmentation=augmentation, rank=rank, world_size=world_size
        )
        return list(made.epoch(3))

    shares = [batches_of(rank, 3) for rank in range(3)]
    for whole, *parts in zip(batches_of(0, 1), *shares, strict=True):
        assert whole.rows == whole.global_rows == len(whole.target) == sum(part.rows for part in parts)
        for rank, part in enumerate(parts):
            assert part.global_rows == whole.rows and part.rows == len(part.target)
            assert torch.equal(part.inputs[0], whole.inputs[0][rank::3])
            assert torch.equal(part.target, whole.target[rank::3])


def test_a_batch_without_a_row_for_each_process_is_refused(images):
    Batches(images, images.rows("train"), CPU, 4, world_size=4)
    with pytest.raises(InputError, match="batch_size is 4.*5 processes"):
        Batches(images, images.rows("train"), CPU, 4, world_size=5)


def test_training_is_augmented_and_prediction_is_not(images):
    from reread.batches.inference import Predictor

    always = [{"name": "flip", "probability": 1.0}]
    rows = images.rows("train")
    plain, mirrored = (
        [batch.inputs[0] for batch in Batches(images, rows, CPU, 4, augmentation=given).epoch(1)]
        for given in ([], always)
    )
    for pixels, other in zip(plain, mirrored, strict=True):
        assert torch.equal(pixels.flip(3), other) and not torch.equal(pixels, other)
    seen = []

    class Network(torch.nn.Module):
        def forward(self, given):
            seen.append(given)
            return given.flatten(1)[:, :4]

    Predictor(images, rows, CPU)(Network())
    assert torch.equal(seen[0], inputs(images, rows)[0])


def test_an_augmentation_by_row_finds_each_row_among_others(images):
    """Beside one that draws: in two epochs, whose batches differ, every image is shown once each way."""
    both = [{"name": "alternating_flip"}, {"name": "flip", "probability": 0.0}]
    rows = images.rows("train")[::2]
    made = Batches(images, rows, CPU, 4, augmentation=both)
    shown = [image.numpy().tobytes() for epoch in (1, 2) for batch in made.epoch(epoch) for image in batch.inputs[0]]
    (plain,) = inputs(images, rows)
    assert sorted(shown) == sorted(image.numpy().tobytes() for way in (plain, plain.flip(3)) for image in way)


def test_augmentation_of_text_and_unknown_names_are_refused(text):
    with pytest.raises(InputError, match="flip"):
        Batches(text, text.rows("train"), CPU, 4, augmentation=FLIP)
    with pytest.raises(InputError, match="shift"):
        augmentations.build([{"name": "shfit"}], "image")
    with pytest.raises(InputError, match="probability"):
        augmentations.build([{"name": "flip", "chance": 1.0}], "image")


def test_a_prefetched_epoch_that_is_abandoned_ends_its_thread(text):
    rows = text.rows("train")
    loaded = Loader(text, rows, CPU, False, "prefetched").load(order.batches(rows, sizes(text, rows), 1, 0, 1))
    next(loaded)
    loaded.close()
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]
