"""A recurrent layer that recalls, at the end of a sequence, the symbols of its beginning (reread/kinds/symbols.py).

Each step reads the symbol, one of A inputs, an input that marks a symbol to be remembered, and one that asks. Scores
are those of A symbols at each of P positions, in the order of the data's outputs.

Shape legend: n rows, T steps, A symbols of the alphabet, P positions, H units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from cuda_ext.gru import MOST_UNITS, gru
from models.layers.cells import Name, Recurrence
from reread.storage.settings import Range

KIND = "symbols"


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    hidden_size: units of the recurrent layer; cell: of models/layers/cells.py.
    """

    hidden_size: Annotated[int, Range(1, 4096)] = 32
    cell: Name = "gru"


DEBUG = Settings(hidden_size=4)


class SymbolRecall(nn.Module):
    uses_kernels = True
    features: Tensor

    def __init__(self, settings: Settings, alphabet: int, positions: int) -> None:
        super().__init__()
        self.positions = positions
        self.recurrence = Recurrence(alphabet + 2, settings.hidden_size, settings.cell)
        self.classifier = nn.Linear(settings.hidden_size, alphabet)
        self.register_buffer("features", code_features(alphabet), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes uint8 [n, T] -> logits float [n, P A]."""
        lengths = (codes > 0).sum(dim=1)
        states = self.states(self.features[codes.long()], lengths)
        asked = lengths.unsqueeze(1) - self.positions + torch.arange(self.positions, device=codes.device)
        at_requests = states.gather(1, asked.unsqueeze(-1).expand(-1, -1, states.shape[2]))
        return self.classifier(at_requests).flatten(1)

    def states(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x float [n, T, A + 2] -> states [n, T, H]."""
        if x.is_cuda and self.recurrence.units <= MOST_UNITS:
            return gru(x, lengths, self.recurrence.as_gru(), rectified=self.recurrence.cell == "gru-relu")[0]
        return self.recurrence(x)


def code_features(alphabet: int) -> Tensor:
    """Return the inputs of each code, float32 [2 A + 2, A + 2]: its symbol, whether it is marked, whether it asks."""
    features = torch.zeros(2 * alphabet + 2, alphabet + 2)
    symbols = torch.eye(alphabet)
    features[1 : alphabet + 1, :alphabet] = symbols
    features[alphabet + 1 : 2 * alphabet + 1, :alphabet] = symbols
    features[alphabet + 1 : 2 * alphabet + 1, alphabet] = 1
    features[2 * alphabet + 1, alphabet + 1] = 1
    return features


def build(settings: Settings, description: Mapping[str, Any]) -> SymbolRecall:
    return SymbolRecall(settings, description["alphabet"], description["positions"])
