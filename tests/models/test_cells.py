"""The for-loop cells: equal to PyTorch's own and to the post's equations, and what each variant leaves out."""

import warnings

import pytest
import torch
from torch import nn

from cuda_ext.gru import gru
from cuda_ext.library import ReferenceWarning
from models.layers import cells
from models.layers.cells import BidirectionalRecurrence, Recurrence
from models.layers.recurrent import BidirectionalGRU
from models.layers.sequences import real_steps

INPUTS, UNITS = 5, 7
# Sums of a few dozen float64 numbers near 1, in another order.
ROUNDING = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, INPUTS, generator=generator, dtype=torch.float64)
    return x, torch.tensor([9, 1, 4, 6])


def gradients(network, x, *rest, read=None):
    """Of a loss that weighs each state differently: with regard to the input and to each parameter.

    read: what gives the states, where it is not the network itself.
    """
    x = x.clone().requires_grad_()
    states = (read or network)(x, *rest)
    states = states[0] if isinstance(states, tuple) else states
    weights = torch.linspace(-1, 2, states.numel(), dtype=states.dtype).reshape(states.shape)
    (weights * states).sum().backward()
    return states, {"x": x.grad} | {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.parametrize(("cell", "peer"), [("gru", nn.GRU), ("rnn", nn.RNN)])
def test_equal_to_pytorch_in_float64_forward_and_gradients(cell, peer, batch):
    torch.manual_seed(3)
    theirs = peer(INPUTS, UNITS, batch_first=True)
    torch.manual_seed(3)
    ours = Recurrence(INPUTS, UNITS, cell)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), f"{name} is drawn otherwise"

    theirs, ours = theirs.double(), Recurrence(INPUTS, UNITS, cell).double()
    ours.load_state_dict(theirs.state_dict())
    expected, expected_gradients = gradients(theirs, batch[0])
    states, found_gradients = gradients(ours, batch[0])
    torch.testing.assert_close(states, expected, **ROUNDING)
    torch.testing.assert_close(found_gradients, expected_gradients, **ROUNDING)


def test_bidirectional_equals_the_layer_that_the_networks_use(batch):
    theirs, ours = BidirectionalGRU(INPUTS, UNITS).double(), BidirectionalRecurrence(INPUTS, UNITS).double()
    ours.load_state_dict(theirs.state_dict())
    expected, expected_gradients = gradients(theirs, *batch)
    states, found_gradients = gradients(ours, *batch)
    torch.testing.assert_close(states, expected, **ROUNDING)
    torch.testing.assert_close(found_gradients, expected_gradients, **ROUNDING)


def test_gates_are_those_of_the_equations(batch):
    """The equations as they are written, one row and one step at a time, of weights cut out of nn.GRU's rows."""
    x, _ = batch
    layer = nn.GRU(INPUTS, UNITS, batch_first=True).double()
    ours = Recurrence(INPUTS, UNITS).double()
    ours.load_state_dict(layer.state_dict())
    w_r, w_z, w_h = layer.weight_ih_l0.detach().chunk(3)
    u_r, u_z, u_h = layer.weight_hh_l0.detach().chunk(3)
    (b_r, b_z, b_h), (c_r, c_z, c_h) = layer.bias_ih_l0.detach().chunk(3), layer.bias_hh_l0.detach().chunk(3)
    gates = ours.gates(x)
    for row in range(len(x)):
        h = torch.zeros(UNITS, dtype=torch.float64)
        for step, x_t in enumerate(x[row]):
            z = 1 / (1 + torch.exp(-(w_z @ x_t + u_z @ h + b_z + c_z)))
            r = 1 / (1 + torch.exp(-(w_r @ x_t + u_r @ h + b_r + c_r)))
            candidate = torch.tanh(w_h @ x_t + b_h + r * (u_h @ h + c_h))
            h = z * h + (1 - z) * candidate
            for gate, expected in zip(gates, (r, z, candidate, h), strict=True):
                torch.testing.assert_close(gate[row, step], expected, **ROUNDING)


@pytest.mark.parametrize("cell", cells.NAMES)
def test_padding_is_zero_changes_nothing_and_gets_no_gradient(cell, batch):
    x, lengths = batch
    layer = BidirectionalRecurrence(INPUTS, UNITS, cell).double()
    real = real_steps(lengths, x.shape[1])
    other = torch.where(real.unsqueeze(-1), x, torch.full_like(x, 7.0))
    expected, _ = gradients(layer, x, lengths)
    states, found_gradients = gradients(layer, other, lengths)
    assert torch.equal(states, expected)
    assert not states[~real].any() and not found_gradients["x"][~real].any()
    assert torch.equal(layer.forwards(other, lengths), states[..., :UNITS])
    assert found_gradients["x"][real].any(dim=-1).all()
    gates = layer.gates(other, lengths)
    assert torch.equal(gates.state, states)
    for part in gates:
        assert part.shape == states.shape and not part[~real].any()


@pytest.mark.parametrize("cell", cells.NAMES)
def test_gradients_are_right_by_finite_differences(cell):
    torch.manual_seed(0)
    layer = Recurrence(2, 3, cell).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    names = list(dict(layer.named_parameters()))

    def states(x, state, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, None, state))

    assert torch.autograd.gradcheck(states, (x, state, *layer.parameters()))


def pressed(layer, gate, value):
    """The layer with one gate of its GRU pressed to 0 or 1 by its bias."""
    rows = layer.bias_ih_l0.data.chunk(3)[("reset", "update").index(gate)]
    rows.fill_(1000.0 if value else -1000.0)
    return layer


def kept_rows(layer, *parts):
    """The parameters of a GRU that a cell of only these parts has."""
    places = [("reset", "update", "candidate").index(part) for part in parts]
    return {name: torch.cat([value.chunk(3)[place] for place in places]) for name, value in layer.state_dict().items()}


@pytest.mark.parametrize(
    ("cell", "gates"),
    [("no-reset", {"reset": 1}), ("no-update", {"update": 0}), ("rnn", {"reset": 1, "update": 0})],
)
def test_a_variant_is_the_gru_with_that_gate_held(cell, gates, batch):
    """With both, "just a standard RNN", as the post says."""
    x, lengths = batch
    full = Recurrence(INPUTS, UNITS).double()
    variant = Recurrence(INPUTS, UNITS, cell).double()
    variant.load_state_dict(kept_rows(full, *cells.PARTS[cell]))
    for gate, value in gates.items():
        pressed(full, gate, value)
    torch.testing.assert_close(variant.gates(x, lengths), full.gates(x, lengths), **ROUNDING)


def test_with_update_gate_zero_nothing_is_carried_over_and_with_one_everything_is(batch):
    x, _ = batch
    gates = pressed(Recurrence(INPUTS, UNITS).double(), "update", 0).gates(x)
    assert torch.equal(gates.state, gates.candidate)
    first = torch.randn(4, UNITS, dtype=torch.float64)
    kept = pressed(Recurrence(INPUTS, UNITS).double(), "update", 1)(x, None, first)
    assert torch.equal(kept, first.unsqueeze(1).expand_as(kept))


def test_the_minimal_unit_has_one_gate_for_both(batch):
    """As Zhou et al. 2016 write it, with matrices side by side on [h, x], but for the gate, which stands after its."""
    x, _ = batch
    layer = Recurrence(INPUTS, UNITS, "minimal").double()
    w_f = torch.cat([layer.weight_hh_l0, layer.weight_ih_l0], dim=1).detach().chunk(2)[0]
    b_f = (layer.bias_hh_l0 + layer.bias_ih_l0).detach().chunk(2)[0]
    (_, w_h), (_, u_h) = layer.weight_ih_l0.detach().chunk(2), layer.weight_hh_l0.detach().chunk(2)
    (_, b_h), (_, c_h) = layer.bias_ih_l0.detach().chunk(2), layer.bias_hh_l0.detach().chunk(2)
    h = torch.zeros(4, UNITS, dtype=torch.float64)
    gates = layer.gates(x)
    for step in range(x.shape[1]):
        f = torch.sigmoid(torch.cat([h, x[:, step]], dim=1) @ w_f.T + b_f)
        candidate = torch.tanh(x[:, step] @ w_h.T + b_h + f * (h @ u_h.T + c_h))
        h = (1 - f) * h + f * candidate
        for gate, expected in zip(gates, (f, 1 - f, candidate, h), strict=True):
            torch.testing.assert_close(gate[:, step], expected, **ROUNDING)


@pytest.mark.parametrize("cell", cells.NAMES)
def test_the_gru_s_operation_reads_a_cell_as_the_loop_does(cell, batch):
    """Its reference, here; the kernel is asked in test_text_networks_gpu.py."""
    layer = BidirectionalRecurrence(INPUTS, UNITS, cell).double()
    expected, expected_gradients = gradients(layer, *batch)
    layer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)
        states, found_gradients = gradients(
            layer,
            *batch,
            read=lambda x, lengths: gru(
                x, lengths, layer.flat_parameters(), bidirectional=True, rectified=layer.rectified
            ),
        )
    torch.testing.assert_close(states, expected, **ROUNDING)
    torch.testing.assert_close(found_gradients, expected_gradients, **ROUNDING)


def test_relu_is_in_the_candidate_alone(batch):
    layer = Recurrence(INPUTS, UNITS, "gru-relu").double()
    other = Recurrence(INPUTS, UNITS).double()
    other.load_state_dict(layer.state_dict())
    gates, tanh = layer.gates(batch[0][:, :1]), other.gates(batch[0][:, :1])
    assert torch.equal(gates.reset, tanh.reset) and torch.equal(gates.update, tanh.update)
    torch.testing.assert_close(gates.candidate, torch.atanh(tanh.candidate).relu(), rtol=1e-9, atol=1e-12)
    assert (gates.candidate == 0).any() and (gates.candidate > 0).any()


@pytest.mark.parametrize("cell", cells.NAMES)
def test_runs_are_trained_together_by_vmap_as_they_are_alone(cell, batch):
    """Parameters of several layers on top of each other: what the studies train by."""
    layers = [Recurrence(INPUTS, UNITS, cell).double() for _ in range(3)]
    together, _ = torch.func.stack_module_state(layers)
    states = torch.func.vmap(lambda values: torch.func.functional_call(layers[0], values, (batch[0],)))(together)
    for state, layer in zip(states, layers, strict=True):
        torch.testing.assert_close(state, layer(batch[0]), **ROUNDING)


@pytest.mark.parametrize("cell", cells.NAMES)
def test_autocast_rounds_no_state(cell, batch):
    x, lengths = batch
    layer = BidirectionalRecurrence(INPUTS, UNITS, cell)
    with torch.autocast("cpu", torch.bfloat16):
        states = layer(x.float(), lengths)
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, layer(x.float(), lengths), rtol=0, atol=0)
