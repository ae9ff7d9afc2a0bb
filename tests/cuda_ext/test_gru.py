"""The GRU on the CPU: the reference behind the operation against nn.GRU, its gradients, and what it refuses."""

import pytest
import torch
from torch import nn

from cuda_ext import library
from cuda_ext.gru import DTYPES, gates, gru, gru_ragged
from cuda_ext.gru.module import GRU
from tests.cuda_ext.rules import relative_error

# Rounding of the result; half precision is computed in float32.
LARGEST_ERROR = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def batch(sequences, steps, inputs, units, bidirectional=True, dtype=torch.float64):
    """x with NaN in its padding, lengths from 1 to ``steps``, and an nn.GRU and a GRU of the same parameters."""
    torch.manual_seed(0)
    theirs = nn.GRU(inputs, units, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)
    theirs.load_state_dict({name: tensor.to(dtype) for name, tensor in theirs.state_dict().items()})
    ours = GRU(inputs, units, batch_first=True, bidirectional=bidirectional).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    lengths = torch.randint(1, steps + 1, (sequences,))
    x = torch.randn(sequences, steps, inputs).to(dtype)
    return x.masked_fill(padding(x, lengths), torch.nan), lengths, theirs, ours


def detached(tensors):
    return tuple(tensor.detach() for tensor in tensors)


def padding(x, lengths):
    return (torch.arange(x.shape[1]) >= lengths[:, None])[..., None]


def packed(theirs, x, lengths):
    whole = nn.utils.rnn.pack_padded_sequence(x.nan_to_num(), lengths, batch_first=True, enforce_sorted=False)
    states, final = theirs(whole)
    return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0], final


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7, 6, 4, True), (9, 4, 3, 13, False), (12, 6, 10, 50, True), (1, 1, 1, 1, True)])
def test_it_is_nn_gru_on_a_packed_sequence_in_both_passes(shape, dtype):
    x, lengths, theirs, ours = batch(*shape, dtype=dtype)
    x.requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    results, exact = ours(x, lengths=lengths), packed(theirs, exact_x, lengths)
    assert relative_error(detached(results), detached(exact)) <= LARGEST_ERROR[dtype]
    above = [torch.randn_like(tensor) for tensor in results]
    gradients = torch.autograd.grad(results, [x, *ours.parameters()], above)
    above = [tensor.double() for tensor in above]
    expected = torch.autograd.grad(exact, [exact_x, *theirs.parameters()], above)
    assert relative_error(gradients, expected) <= LARGEST_ERROR[dtype]
    hidden = padding(x, lengths)
    assert not results[0][hidden.expand_as(results[0])].any()
    assert not gradients[0][hidden.expand_as(x)].any()


@quiet
def test_without_lengths_every_step_is_real():
    x, _, theirs, ours = batch(4, 6, 5, 3)
    x = x.nan_to_num()
    for result, exact in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(result, exact)


@quiet
def test_rows_behind_the_last_offset_are_of_no_sequence():
    _, _, _, ours = batch(1, 1, 4, 6)
    offsets = torch.tensor([0, 3, 3, 8])
    x = torch.randn(8, 4, dtype=torch.float64)
    longer = torch.cat([x, x.new_full((5, 4), torch.nan)]).requires_grad_()
    x.requires_grad_()
    results, expected = ours(longer, offsets=offsets), ours(x, offsets=offsets)
    assert torch.equal(results[0][:8], expected[0]) and not results[0][8:].any()
    assert torch.equal(results[1], expected[1])
    gradients = torch.autograd.grad(results[0][:8].sum(), [longer, *ours.parameters()])
    of_x, *of_parameters = torch.autograd.grad(expected[0].sum(), [x, *ours.parameters()])
    assert torch.equal(gradients[0][:8], of_x) and not gradients[0][8:].any()
    torch.testing.assert_close(gradients[1:], tuple(of_parameters), rtol=0, atol=0)


@quiet
def test_rows_before_the_first_offset_are_of_no_sequence():
    _, _, _, ours = batch(1, 1, 4, 6)
    offsets = torch.tensor([0, 3, 3, 8])
    x = torch.randn(8, 4, dtype=torch.float64)
    longer = torch.cat([x.new_full((5, 4), torch.nan), x]).requires_grad_()
    x.requires_grad_()
    results, expected = ours(longer, offsets=offsets + 5), ours(x, offsets=offsets)
    assert torch.equal(results[0][5:], expected[0]) and not results[0][:5].any()
    assert torch.equal(results[1], expected[1])
    gradients = torch.autograd.grad(results[0][5:].sum(), [longer, *ours.parameters()])
    of_x, *of_parameters = torch.autograd.grad(expected[0].sum(), [x, *ours.parameters()])
    assert torch.equal(gradients[0][5:], of_x) and not gradients[0][:5].any()
    torch.testing.assert_close(gradients[1:], tuple(of_parameters), rtol=0, atol=0)
    parameters = list(ours.parameters())
    both = (gates(rows, limits, parameters, True) for rows, limits in ((longer, offsets + 5), (x, offsets)))
    for a, b in zip(*both, strict=True):
        assert torch.equal(a[5:], b) and not a[:5].any()


@quiet
def test_a_ragged_batch_gives_the_same_as_a_padded_one():
    x, lengths, _, ours = batch(7, 5, 4, 6)
    lengths[2] = 0
    real = ~padding(x, lengths)[..., 0]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    states, final = ours(x, lengths=lengths)
    ragged, last = ours(x[real], offsets=offsets.int())
    assert torch.equal(ragged, states[real])
    assert torch.equal(last, final)
    assert not final[:, 2].any()


@quiet
def test_a_gradient_of_either_result_alone():
    x, lengths, theirs, ours = batch(6, 5, 4, 6)
    for i in (0, 1):
        x, exact_x = x.detach().requires_grad_(), x.detach().requires_grad_()
        gradients = torch.autograd.grad(ours(x, lengths=lengths)[i].square().sum(), [x, *ours.parameters()])
        exact = packed(theirs, exact_x, lengths)[i].square().sum()
        assert relative_error(gradients, torch.autograd.grad(exact, [exact_x, *theirs.parameters()])) < 1e-13


@quiet
def test_only_what_asks_gets_a_gradient_and_without_one_nothing_is_kept():
    x, lengths, _, ours = batch(3, 4, 5, 6)
    x = x.nan_to_num()
    ours.bias_hh_l0.requires_grad_(False)
    ours(x, lengths=lengths)[0].sum().backward()
    assert ours.bias_hh_l0.grad is None
    assert ours.weight_hh_l0.grad is not None
    parameters = [parameter.detach() for parameter in ours.parameters()]
    states, _, kept, _, _ = torch.ops.reread_kernels.gru(x, lengths, None, False, False, *parameters)
    assert len(kept) == 0
    assert torch.equal(states, gru(x, lengths, list(ours.parameters()), bidirectional=True)[0])


@quiet
@pytest.mark.parametrize("rectified", [False, True])
def test_gates_are_those_that_make_the_states(rectified):
    x, lengths, _, ours = batch(5, 6, 4, 3)
    parameters = list(ours.parameters())
    update, reset, candidate = gates(x, lengths, parameters, True, rectified)
    states, _ = gru(x, lengths, parameters, True, rectified)
    assert bool((candidate < 0).any()) is not rectified
    before = torch.cat([torch.zeros(5, 1, 3), states[:, :-1, :3]], dim=1)
    forwards = (1 - update[..., :3]) * candidate[..., :3] + update[..., :3] * before
    real = ~padding(x, lengths)
    torch.testing.assert_close(forwards * real, states[..., :3])
    first = torch.sigmoid(x[:, 0] @ ours.weight_ih_l0[:3].T + ours.bias_ih_l0[:3] + ours.bias_hh_l0[:3])
    torch.testing.assert_close(reset[:, 0, :3], first)
    assert not any(gate[~real.expand_as(gate)].any() for gate in (update, reset, candidate))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ragged = gates(x[real[..., 0]], offsets, parameters, True, rectified)
    assert all(torch.equal(a, b[real[..., 0]]) for a, b in zip(ragged, (update, reset, candidate), strict=True))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_state_dict_loads_both_ways_and_a_seed_gives_the_same_parameters(bidirectional):
    torch.manual_seed(3)
    theirs = nn.GRU(5, 4, batch_first=True, bidirectional=bidirectional)
    torch.manual_seed(3)
    ours = GRU(5, 4, batch_first=True, bidirectional=bidirectional)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


@quiet
@pytest.mark.parametrize("lengths", [[3, 0, 1], [0, 0, 0], [-4, 9, 3]])
def test_lengths_outside_the_batch_are_clamped(lengths):
    x, _, _, ours = batch(3, 3, 4, 5)
    x = x.nan_to_num()
    inside = torch.tensor(lengths).clamp(0, 3)
    for result, expected in zip(ours(x, lengths=torch.tensor(lengths)), ours(x, lengths=inside), strict=True):
        assert torch.equal(result, expected)
    assert not ours(x, lengths=torch.tensor(lengths))[1][:, inside == 0].any()


@quiet
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4)])
def test_a_batch_of_nothing(shape):
    _, _, _, ours = batch(2, 3, 4, 5)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    states, final = ours(x)
    assert states.shape == (*shape[:2], 10)
    assert final.shape == (2, shape[0], 5)
    (states.sum() + final.sum()).backward()
    assert not any(parameter.grad.any() for parameter in ours.parameters())
    states, final = ours(x.detach().flatten(0, 1), offsets=torch.zeros(1, dtype=torch.long))
    assert (states.shape, final.shape) == ((0, 10), (2, 0, 5))


@quiet
@pytest.mark.parametrize("rectified", [False, True])
def test_the_operation_keeps_pytorch_s_rules(rectified):
    x, lengths, _, ours = batch(3, 4, 5, 6, dtype=torch.bfloat16)
    x = x.nan_to_num().requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.gru, (x, lengths, None, True, rectified, *ours.parameters()))
    first = torch.randn(2, 3, 6, dtype=torch.bfloat16, requires_grad=True)
    torch.library.opcheck(torch.ops.reread_kernels.gru, (x, lengths, first, True, rectified, *ours.parameters()))
    one_way = [parameter.detach() for parameter in ours.parameters()][:4]
    offsets = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    rows = x.detach().flatten(0, 1)[:9]
    torch.library.opcheck(torch.ops.reread_kernels.gru, (rows, offsets, None, False, rectified, *one_way, *[None] * 4))


@quiet
def test_a_backward_pass_without_the_gates_is_refused():
    x, lengths, _, ours = batch(3, 4, 5, 6)
    states = torch.ops.reread_kernels.gru(x, lengths, None, False, False, *ours.parameters())[0]
    with pytest.raises(ValueError, match="keep=True"):
        states.sum().backward()


@quiet
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_match_finite_differences(bidirectional, rectified):
    x, _, _, ours = batch(3, 4, 2, 3, bidirectional)
    x = x.nan_to_num().requires_grad_()
    lengths = torch.tensor([2, 4, 0])

    def run(x, *parameters):
        return gru(x, lengths, parameters, bidirectional, rectified)

    def run_ragged(x, *parameters):
        return gru_ragged(x.flatten(0, 1), torch.tensor([0, 5, 5, 12]), parameters, bidirectional, rectified)

    assert torch.autograd.gradcheck(run, (x, *ours.parameters()))
    assert torch.autograd.gradcheck(run_ragged, (x, *ours.parameters()))


@quiet
def test_a_second_derivative_is_refused_and_the_first_is_the_same_with_its_graph():
    x, lengths, _, ours = batch(3, 4, 5, 6)
    wanted = [x.requires_grad_(), *ours.parameters()]
    with_graph = torch.autograd.grad(ours(x, lengths=lengths)[0].sum(), wanted, create_graph=True)
    without = torch.autograd.grad(ours(x, lengths=lengths)[0].sum(), wanted)
    for a, b in zip(with_graph, without, strict=True):
        assert torch.equal(a, b)
    for first in with_graph:
        with pytest.raises(RuntimeError, match="gru has no second derivative"):
            torch.autograd.grad(first.sum(), wanted, allow_unused=True, retain_graph=True)


@quiet
def test_autocast_gives_x_its_dtype_and_parameters_keep_theirs():
    x, lengths, _, ours = batch(4, 5, 6, 7, dtype=torch.float32)
    x = x.nan_to_num().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, final = ours(x, lengths=lengths)
    assert (states.dtype, final.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(states, ours(x.bfloat16(), lengths=lengths)[0])
    states.sum().backward()
    assert x.grad.dtype == ours.weight_hh_l0.grad.dtype == torch.float32
    double = ours.double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert double(x.double(), lengths=lengths)[0].dtype == torch.float64


@quiet
def test_torch_compile_takes_it_whole():
    x, lengths, _, ours = batch(4, 5, 6, 7)
    x = x.nan_to_num().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: ours(x * 2, lengths=lengths)[0].sin(), fullgraph=True, backend="aot_eager")
    expected = ours(x * 2, lengths=lengths)[0].sin()
    result = compiled(x)
    torch.testing.assert_close(result, expected)
    gradients = [torch.autograd.grad(y.sum(), [x, *ours.parameters()]) for y in (result, expected)]
    torch.testing.assert_close(*gradients)


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    x, lengths, _, ours = batch(4, 5, 6, 7)
    parameters = list(ours.parameters())
    with pytest.raises(ValueError, match=r"three dimensions \[N, T, I\], got \(5, 6\)"):
        gru(x[0], None, parameters, bidirectional=True)
    with pytest.raises(ValueError, match=r"gru_ragged takes x of two dimensions \[M, I\], got \(4, 5, 6\)"):
        gru_ragged(x, lengths, parameters, bidirectional=True)
    with pytest.raises(ValueError, match="four parameters a direction, 4 in all, got 8"):
        gru(x, lengths, parameters)
    with pytest.raises(ValueError, match=r"got x of torch.float32 and parameters of torch.float64"):
        gru(x.float(), lengths, parameters, bidirectional=True)
    with pytest.raises(ValueError, match=r"takes x of float64, .*, got torch.int64"):
        gru(x.long(), lengths, parameters, bidirectional=True)
    with pytest.raises(ValueError, match=r"with I = 5 as x has, got \(21, 6\)"):
        gru(x[..., :5], lengths, parameters, bidirectional=True)
    with pytest.raises(ValueError, match="one device, got cpu, meta"):
        gru(x.to("meta"), lengths, parameters, bidirectional=True)
    with pytest.raises(ValueError, match="of int32 or int64, got torch.float32"):
        gru(x, lengths.float(), parameters, bidirectional=True)
    with pytest.raises(ValueError, match=r"one length a sequence, \[4\], got \(3,\)"):
        gru(x, lengths[:3], parameters, bidirectional=True)
    with pytest.raises(ValueError, match=r"offsets \[N \+ 1\], got \(0,\)"):
        gru_ragged(x[0], lengths[:0], parameters, bidirectional=True)
    wide = nn.GRU(6, 129, dtype=torch.float64)
    with pytest.raises(ValueError, match="H from 1 to 128, got 129"):
        gru(x, lengths, list(wide.parameters()))


def test_the_reference_warns_once_by_name_and_strict_mode_refuses_it():
    x, lengths, _, ours = batch(2, 3, 4, 5)
    with pytest.warns(library.ReferenceWarning, match="gru_forward runs its reference in PyTorch: the tensors are on"):
        ours(x, lengths=lengths)
    library.strict(True)
    with pytest.raises(library.KernelError, match=r"gru_forward has no kernel to run .*: the tensors are on the cpu"):
        ours(x, lengths=lengths)
