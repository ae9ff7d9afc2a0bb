"""Predictions in the order asked for."""

import dataclasses

import numpy as np
import pytest
import torch

import models
from batches import collation
from batches.inference import Predictor, predict


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
