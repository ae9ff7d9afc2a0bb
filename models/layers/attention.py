"""Additive attention with a trained context vector.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, section 2.2:
u_t = tanh(W h_t + b), alpha_t = exp(u_t . u_w) / sum over t of exp(u_t . u_w), s = sum over t of alpha_t h_t.
"""

import torch
from torch import Tensor, nn

from cuda_ext.attention_pooling import WIDEST_FOR_MATRIX_UNITS, attention_pooling, attention_pooling_ragged
from models.layers.sequences import real_steps


class Attention(nn.Module):
    """Weighs the steps of a sequence and sums them into one vector."""

    uses_kernels = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width)
        self.context_vector = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.context_vector, std=width**-0.5)

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """states float [N, T, D], lengths int [N] -> (sum float [N, D], weights float [N, T]).

        The weights are 0 at padding and sum to 1 over the real steps; a row of length 0 gives zeros.
        """
        if states.is_cuda and states.shape[-1] <= WIDEST_FOR_MATRIX_UNITS:
            return attention_pooling(states, lengths, *self.flat_parameters())
        scores = torch.tanh(self.projection(states)) @ self.context_vector
        real = real_steps(lengths, states.shape[1])
        # The lowest finite number instead of -inf: a row with no real step would otherwise be 0/0.
        weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(dim=-1) * real
        return (weights.unsqueeze(1).to(states.dtype) @ states).squeeze(1), weights

    def read_ragged(self, states: Tensor, offsets: Tensor) -> Tensor:
        """states float [M, D], sequence n in rows offsets[n] to offsets[n + 1] (int [N + 1]) -> sums float [N, D]."""
        return attention_pooling_ragged(states, offsets, *self.flat_parameters())[0]

    def flat_parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.projection.weight, self.projection.bias, self.context_vector
