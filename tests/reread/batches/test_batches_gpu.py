"""Batches on a GPU: equal to those that a CPU collates, and loaded without waiting for the GPU."""

import contextlib
import warnings

import numpy as np
import pytest
import torch

from reread.batches import collation, order
from reread.batches.augmentations import build, make_generator
from reread.batches.batches import Batches, Loader
from reread.batches.inference import BATCH_SIZE, Predictor, most_rows, predict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def deterministic():
    """As training asks for it: an operation that has no repeatable kernel is refused."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def no_waiting():
    """An operation for which the host waits for the GPU raises a RuntimeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("way", ["resident", "prefetched", "collated", None])
@pytest.mark.parametrize("kind", ["padded", "ragged", "images"])
def test_each_way_of_loading_gives_what_a_cpu_collates(way, kind, text, images):
    prepared, ragged = images if kind == "images" else text, kind == "ragged"
    rows = np.arange(16)
    loader = Loader(prepared, rows, GPU, ragged, way)
    assert loader.way == (way or "resident")
    for epoch in (1, 2):
        chosen = order.batches(rows, collation.sizes(prepared, rows), 3, 0, epoch)
        for share, (given, target) in zip(chosen, loader.load(chosen), strict=True):
            for tensor, other in zip(given, collation.inputs(prepared, share, ragged=ragged), strict=True):
                assert tensor.is_cuda and tensor.dtype == other.dtype and tensor.shape == other.shape
                if kind == "images":
                    # A GPU's division may round otherwise than a CPU's.
                    torch.testing.assert_close(tensor.cpu(), other)
                else:
                    assert torch.equal(tensor.cpu(), other)
            assert target.is_cuda and torch.equal(target.cpu(), collation.labels(prepared, share))
    if kind == "images":
        (given,), _ = next(iter(loader.load([rows])))
        assert torch.equal(given, collation.inputs(prepared, rows, GPU)[0])


@pytest.mark.parametrize("kind", ["padded", "ragged", "images"])
def test_resident_batches_never_wait(kind, text, images):
    prepared = images if kind == "images" else text
    augmentation = [{"name": "shift", "pixels": 1}, {"name": "flip"}, {"name": "cutout", "size": 3}]
    made = Batches(
        prepared,
        prepared.rows("train"),
        GPU,
        2,
        ragged=kind == "ragged",
        augmentation=augmentation if kind == "images" else [],
    )
    list(made.epoch(1))
    # The second epoch, and the third, which is laid out at its end.
    with no_waiting():
        assert len(list(made.epoch(2))) == len(made)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "flip"},
        {"name": "shift"},
        {"name": "shift", "padding": "darkest"},
        {"name": "cutout", "size": 3},
        {"name": "overlay"},
    ],
)
def test_an_augmentation_is_drawn_on_the_gpu_and_repeats(settings):
    images, target = torch.randn(64, 3, 8, 8, device=GPU), torch.eye(4, device=GPU).repeat(16, 1)
    apply = build([settings], "image")
    first, again, other = (apply(images, target, make_generator(0, epoch, GPU))[0] for epoch in (1, 1, 2))
    assert first.is_cuda and torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["padded", "ragged", "images"])
def test_an_epoch_that_was_laid_out_ahead_is_the_one_that_is_asked_for(kind, text, images):
    prepared = images if kind == "images" else text
    augmentation = [{"name": "flip"}] if kind == "images" else []

    def made():
        return Batches(prepared, prepared.rows("train"), GPU, 3, ragged=kind == "ragged", augmentation=augmentation)

    ahead = made()
    for epoch in (1, 2, 5, 6, 1):
        for batch, other in zip(ahead.epoch(epoch), made().epoch(epoch), strict=True):
            assert torch.equal(batch.target, other.target)
            assert all(torch.equal(tensor, same) for tensor, same in zip(batch.inputs, other.inputs, strict=True))


def test_validation_replays_from_graphs_and_follows_the_weights(images):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)).to(GPU)
    rows = np.arange(16)
    graphed, called = (Predictor(images, rows, GPU, batch_size=5, graphs=graphs) for graphs in (True, False))
    for _ in range(4):
        assert graphed(network).tobytes() == called(network).tobytes()
        with torch.no_grad():
            network[2].weight.add_(1)
    half = Predictor(images, rows, GPU, half=torch.bfloat16, graphs=True)
    for _ in range(3):
        logits = half(network)
        assert logits.dtype == np.float32 and logits.tobytes() != called(network).tobytes()
        np.testing.assert_allclose(logits, called(network), rtol=0.1, atol=0.5)


def test_more_images_than_documents_are_validated_at_a_time(text, images):
    for prepared, ragged, expected in ((images, False, len(images.rows("train"))), (text, True, BATCH_SIZE)):
        collator = collation.make_collator(prepared, GPU, ragged)
        assert most_rows(collator, prepared.rows("train"), GPU) == expected
        assert most_rows(collator, prepared.rows("train"), torch.device("cpu")) == BATCH_SIZE
    collator = collation.make_collator(images, GPU)
    assert most_rows(collator, np.arange(5000), GPU) == 1000


def test_predictions_of_a_resident_split_repeat_byte_for_byte(images):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)).to(GPU)
    rows = np.arange(16)[::-1]
    predictor = Predictor(images, rows, GPU, batch_size=5)
    assert predictor.loader.way == "resident"
    logits = predictor(network)
    assert logits.tobytes() == predictor(network).tobytes() == predict(network, images, rows, 5).tobytes()
    np.testing.assert_allclose(logits, predict(network.cpu(), images, rows, 5), atol=1e-4)
