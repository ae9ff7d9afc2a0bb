"""A network's logits of given rows.

Shape legend: n rows, K classes.
"""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from cuda_ext.graphs import Graphs
from cuda_ext.library import ReferenceWarning
from models.objectives import scores
from reread.batches import array
from reread.batches.batches import Loader, LoadingMode
from reread.batches.collation import KindCollator, make_collator, reads_ragged
from reread.storage.arrays import Float32Array, Int64Array
from reread.storage.prepared import Prepared

BATCH_SIZE = 128
# A GPU validates more rows at a time where they have one shape: at most this many rows and this many bytes.
MOST_ROWS, MOST_BYTES = 1024, 1 << 22


class Predictor:
    """Predicts the same rows whenever it is called, as validation does: a GPU keeps them in its memory.

    Rows are read in order of their size, so that a batch has little padding. On a GPU the forward pass can replay from
    CUDA graphs and compute in half precision.
    """

    def __init__(
        self,
        prepared: Prepared,
        rows: Int64Array,
        device: torch.device,
        ragged: bool = False,
        batch_size: int | None = None,
        half: torch.dtype | None = None,
        graphs: bool = False,
    ) -> None:
        """rows: int [n], at least one; ragged: ``reread.batches.collation.reads_ragged`` of the network.

        batch_size: by default ``most_rows``; half: the autocast dtype, None for float32; graphs: on a GPU, replay CUDA
        graphs.
        """
        self.rows = rows
        self.device = device
        self.half = half
        self.graphs = graphs and device.type == "cuda"
        self.classes = len(prepared.classes)
        batch_size = batch_size or most_rows(make_collator(prepared, device, ragged), rows, device)
        # A single batch that is read once is copied once either way.
        way: LoadingMode | None = "collated" if len(rows) <= batch_size and not self.graphs else None
        self.loader = Loader(prepared, rows, device, ragged, way, labelled=False)
        self.order = np.argsort(self.loader.collator.sizes(rows), kind="stable")
        ordered = rows[self.order]
        self.batches = [ordered[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        self._forward: tuple[nn.Module, Callable[..., Tensor]] | None = None

    @torch.no_grad()
    def __call__(self, network: nn.Module) -> Float32Array:
        """Predict in evaluation mode: logits float32 [n, K] in the order of ``rows``; same input, same bytes.

        The network keeps its mode. The host waits for the device once, at the end.
        """
        training = network.training
        network.eval()
        with warnings.catch_warnings():
            if self.loader.device.type == "cpu":
                # On a CPU, references are expected.
                warnings.simplefilter("ignore", ReferenceWarning)
            forward = self._forward_of(network)
            outputs = [forward(*inputs) for inputs, _ in self.loader.load(self.batches)]
        network.train(training)
        logits = np.empty((len(self.rows), self.classes), np.float32)
        logits[self.order] = torch.cat(outputs).cpu().numpy()
        return logits

    def _forward_of(self, network: nn.Module) -> Callable[..., Tensor]:
        """Return the forward pass: inputs -> logits float32 [n, K]. The graphs of the last network are cached."""
        if self._forward is None or self._forward[0] is not network:

            def forward(*inputs: Tensor) -> Tensor:
                # Cached casts would be allocated in the memory of a graph.
                with torch.autocast(self.device.type, self.half, enabled=self.half is not None, cache_enabled=False):
                    return scores(network(*inputs)).float()

            graphs = Graphs(forward, "this network's forward pass", self.device) if self.graphs else None
            # The next replay overwrites the result.
            self._forward = network, (lambda *inputs: graphs(*inputs).clone()) if graphs else forward
        return self._forward[1]


def most_rows(collator: KindCollator, rows: Int64Array, device: torch.device) -> int:
    """Return how many of ``rows`` validation reads at a time.

    That is BATCH_SIZE, and on a GPU more of rows of one shape: MOST_ROWS, or as many as have MOST_BYTES.
    """
    if device.type != "cuda" or not isinstance(collator, array.Collator):
        return BATCH_SIZE
    largest = min(MOST_ROWS, max(BATCH_SIZE, MOST_BYTES // collator.resident_bytes(rows[:1])))
    # Batches of one size need one graph.
    return -(-len(rows) // -(-len(rows) // largest))


def predict(network: nn.Module, prepared: Prepared, rows: Int64Array, batch_size: int = BATCH_SIZE) -> Float32Array:
    """Predict ``rows`` (int [n]) on the network's device: logits float32 [n, K] in the order given."""
    device = next(network.parameters()).device
    return Predictor(prepared, rows, device, reads_ragged(network, device), batch_size)(network)
