"""A network's logits of given rows.

Shape legend: n rows, K classes.
"""

import warnings

import numpy as np
import torch
from torch import nn

from batches.batches import Loader
from batches.collation import reads_ragged
from cuda_ext.library import ReferenceWarning
from models.objectives import scores
from storage.prepared import Prepared

BATCH_SIZE = 128


class Predictor:
    """Predicts the same rows whenever it is called, as validation does: a GPU keeps them in its memory.

    Rows are read in order of their size, so that a batch has little padding.
    """

    def __init__(
        self,
        prepared: Prepared,
        rows: np.ndarray,
        device: torch.device,
        ragged: bool = False,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        """rows: int [n], at least one; ragged: ``batches.collation.reads_ragged`` of the network."""
        self.rows = rows
        self.classes = len(prepared.classes)
        # A single batch is copied once, wherever it comes from.
        way = "collated" if len(rows) <= batch_size else None
        self.loader = Loader(prepared, rows, device, ragged, way, labelled=False)
        self.order = np.argsort(self.loader.collator.sizes(rows), kind="stable")
        ordered = rows[self.order]
        self.batches = [ordered[start : start + batch_size] for start in range(0, len(rows), batch_size)]

    @torch.no_grad()
    def __call__(self, network: nn.Module) -> np.ndarray:
        """Predict in evaluation mode: logits float32 [n, K] in the order of ``rows``; same input, same bytes.

        The network keeps its mode. The host waits for the device once, at the end.
        """
        training = network.training
        network.eval()
        with warnings.catch_warnings():
            if self.loader.device.type == "cpu":
                # References are what is meant to run on a CPU.
                warnings.simplefilter("ignore", ReferenceWarning)
            found = [scores(network(*inputs)).float() for inputs, _ in self.loader.load(self.batches)]
        network.train(training)
        logits = np.empty((len(self.rows), self.classes), np.float32)
        logits[self.order] = torch.cat(found).cpu().numpy()
        return logits


def predict(network: nn.Module, prepared: Prepared, rows: np.ndarray, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Predict ``rows`` (int [n]) on the network's device: logits float32 [n, K] in the order given."""
    device = next(network.parameters()).device
    return Predictor(prepared, rows, device, reads_ragged(network, device), batch_size)(network)
