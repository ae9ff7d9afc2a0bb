"""Predictions in the order asked for."""

import dataclasses

import numpy as np
import pytest
import torch

import models
from reread.batches import collation, inference
from reread.batches.inference import Predictor, most_rows, predict


@pytest.mark.parametrize("model", ["han", "densenet"])
def test_predictions_come_in_the_order_asked_and_repeat_byte_for_byte(model, text, images):
    prepared = images if model == "densenet" else text
    network = models.build(model, dataclasses.asdict(models.debug(model)), prepared.description).train()
    rows = prepared.rows("train")[::-1]
    logits = predict(network, prepared, rows, batch_size=5)
    assert logits.dtype == np.float32 and logits.shape == (len(rows), len(prepared.classes))
    assert network.training
    predictor = Predictor(prepared, rows, torch.device("cpu"), batch_size=5)
    assert logits.tobytes() == predictor(network).tobytes() == predictor(network).tobytes()
    network.eval()
    with torch.no_grad():
        for place, row in enumerate(rows):
            alone = network(*collation.inputs(prepared, np.array([row])))
            np.testing.assert_allclose(logits[place], alone[0].numpy(), atol=1e-6)


def test_a_gpu_reads_more_images_at_a_time_in_batches_of_one_size(images, text, monkeypatch):
    monkeypatch.setattr(inference, "BATCH_SIZE", 4)
    monkeypatch.setattr(inference, "MOST_ROWS", 10)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    collator, rows = collation.make_collator(images), np.arange(16)
    assert most_rows(collator, rows, cpu) == most_rows(collation.make_collator(text), rows, gpu) == 4
    row_bytes = collator.resident_bytes(rows[:1])
    # Memory has room for so many rows of 16 or of 9: as few batches as can be, of 6, 6 and 4, then 8 and 8, 3 and 3.
    for room, count, expected in ((6, 16, 6), (100, 16, 8), (1, 9, 3)):
        monkeypatch.setattr(inference, "MOST_BYTES", room * row_bytes)
        assert most_rows(collator, rows[:count], gpu) == expected
