"""Mean and maximum: what they give, their weights, their gradients, and the same for padded and ragged sequences."""

import pytest
import torch

from models.layers.attention import Attention
from models.layers.pooling import Max, Mean, pooling

LENGTHS = torch.tensor([6, 0, 3, 5, 1])


@pytest.fixture
def states():
    """Of few values, so that maxima are shared; NaN in the padding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 3, (5, 6, 4), generator=generator).double()
    x[torch.arange(6) >= LENGTHS.unsqueeze(-1)] = torch.nan
    return x.requires_grad_()


def ragged(states):
    real = torch.arange(6) < LENGTHS.unsqueeze(-1)
    behind = torch.full((3, 4), torch.nan, dtype=states.dtype)
    return torch.cat([states[real], behind]), torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0))


def test_the_three_are_known_by_name():
    kinds = {name: type(pooling(name, 4)) for name in ("attention", "mean", "max")}
    assert kinds == {"attention": Attention, "mean": Mean, "max": Max}


@pytest.mark.parametrize(("layer", "reduced"), [(Mean(), torch.mean), (Max(), torch.amax)])
def test_each_row_s_real_steps_are_pooled_and_an_empty_row_gives_zeros(states, layer, reduced):
    vectors, weights = layer(states, LENGTHS)
    for vector, row, of_row, length in zip(vectors, states, weights, LENGTHS.tolist(), strict=True):
        expected = reduced(row[:length], dim=0) if length else torch.zeros(4, dtype=row.dtype)
        torch.testing.assert_close(vector, expected)
        assert not of_row[length:].any() and (length == 0 or of_row.sum().item() == pytest.approx(1))
    of_ragged = layer.read_ragged(*ragged(states))
    torch.testing.assert_close(of_ragged, vectors)


def test_weights_of_the_mean_are_even_and_those_of_the_maximum_its_share_of_the_units():
    states = torch.tensor([[[1.0, 5.0, 0.0, 2.0], [3.0, 5.0, -1.0, 1.0], [9.0, 9.0, 9.0, 9.0]]])
    length = torch.tensor([2])
    assert Mean()(states, length)[1].tolist() == [[0.5, 0.5, 0.0]]
    # The first step has the maximum of the last two units, the second of the first, and they share that of the second.
    assert Max()(states, length)[1].tolist() == [[(0.5 + 1 + 1) / 4, (1 + 0.5) / 4, 0.0]]


@pytest.mark.parametrize("layer", [Mean(), Max()])
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_are_those_of_the_weighted_sum_and_none_goes_to_padding(states, layer, sign):
    above = sign * torch.arange(1.0, 21).reshape(5, 4).double()
    gradients = []
    for vectors in (layer(states, LENGTHS)[0], layer.read_ragged(*ragged(states))):
        states.grad = None
        (vectors * above).sum().backward()
        gradients.append(states.grad)
    for gradient in gradients:
        assert not gradient[torch.arange(6) >= LENGTHS.unsqueeze(-1)].any()
        # All that comes from above arrives, shared between equal steps.
        torch.testing.assert_close(gradient.sum(dim=1), above * (LENGTHS > 0).unsqueeze(-1))
    torch.testing.assert_close(gradients[1], gradients[0])
    for row, gradient in zip(states.detach(), gradients[0], strict=True):
        if isinstance(layer, Max) and not row[0].isnan().any():
            largest = row.nan_to_num(-9).amax(dim=0)
            assert not gradient[row != largest].any()


@pytest.mark.parametrize("layer", [Mean(), Max()])
def test_half_precision_is_pooled_in_float32(layer):
    states = torch.linspace(-1, 1, 600).reshape(1, 300, 2).bfloat16()
    padded, _ = layer(states, torch.tensor([300]))
    of_ragged = layer.read_ragged(states[0], torch.tensor([0, 300]))
    assert padded.dtype == of_ragged.dtype == torch.float32
    torch.testing.assert_close(of_ragged, padded)
