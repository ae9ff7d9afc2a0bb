"""Recurrence and attention: invariant to padding, and equal to what PyTorch packs and Yang et al. print."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.layers.attention import Attention
from models.layers.recurrent import BidirectionalGRU
from models.layers.sequences import real_steps, reverse_by_length, segment_ids, sums_of_sequences


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 6, 3, generator=generator), torch.tensor([6, 1, 3, 5, 2])


def test_a_row_is_reversed_by_its_own_length():
    x = torch.arange(8.0).reshape(2, 4, 1)
    reversed_rows = reverse_by_length(x, torch.tensor([3, 0])).squeeze(-1)
    assert reversed_rows.tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]


def test_ragged_rows_know_their_sequence():
    words = torch.tensor([5, 6, 7, 8, 9, 4, 0, 0], dtype=torch.int32)
    offsets = torch.tensor([0, 2, 2, 5, 6])
    assert segment_ids(offsets, 8).tolist() == [0, 0, 2, 2, 2, 3, 3, 3]
    assert sums_of_sequences(words.float().unsqueeze(-1), offsets).flatten().tolist() == [11, 0, 24, 4]


def test_states_equal_those_of_a_packed_bidirectional_gru(batch):
    x, lengths = batch
    ours = BidirectionalGRU(3, 4)
    theirs = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    weights = {f"{name}": value for name, value in ours.forwards.state_dict().items()}
    weights |= {f"{name}_reverse": value for name, value in ours.backwards.state_dict().items()}
    theirs.load_state_dict(weights)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(ours(x, lengths), expected, rtol=0, atol=1e-6)


def test_padding_changes_no_state_and_gets_no_gradient(batch):
    x, lengths = batch
    layer = BidirectionalGRU(3, 4)
    other = torch.cat([x, torch.full((5, 4, 3), 9.0)], dim=1)
    other[~real_steps(lengths, 10)] = 7.0
    other.requires_grad_()
    states = layer(other, lengths)
    torch.testing.assert_close(states[:, :6], layer(x, lengths), rtol=0, atol=1e-6)
    assert not states[~real_steps(lengths, 10)].any()
    states.square().sum().backward()
    assert not other.grad[~real_steps(lengths, 10)].any()
    assert other.grad[real_steps(lengths, 10)].any(dim=-1).all()


def test_attention_sums_to_one_over_real_steps_and_is_zero_elsewhere(batch):
    x, lengths = batch
    vector, weights = Attention(3)(x, lengths)
    real = real_steps(lengths, 6)
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    assert (weights[real] > 0).all() and not weights[~real].any()
    torch.testing.assert_close(vector, (weights.unsqueeze(-1) * x).sum(1))


def test_attention_of_an_empty_row_is_zeros_with_finite_gradients(batch):
    x, lengths = batch
    x.requires_grad_()
    vector, weights = Attention(3)(x, lengths * torch.tensor([1, 0, 1, 1, 0]))
    assert not vector[[1, 4]].any() and not weights[[1, 4]].any()
    vector.square().sum().backward()
    assert torch.isfinite(x.grad).all() and not x.grad[[1, 4]].any()
