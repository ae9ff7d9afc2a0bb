"""The GRU's kernels on a GPU, in strict mode: its reference can not stand in for them."""

import pytest
import torch
from torch import nn

from cuda_ext import library
from cuda_ext.gru import DTYPES, gates, gru
from cuda_ext.gru.module import GRU
from models.layers.cells import Recurrence
from models.layers.sequences import reverse_by_length
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Of states and of gradients, in norm over many numbers. What float32 has, 1e-6 to 2e-6, and to 5e-6 in a bias's
# gradient whose terms cancel, is of the recurrent products, of two bfloat16 each: 16 to 17 bits.
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
HALF = (torch.float16, torch.bfloat16)


class RectifiedGRU(GRU):
    """With relu for tanh: the operation has it, the module, which is nn.GRU, has not."""

    def forward(self, x, lengths):
        return gru(x, lengths, list(self.parameters()), self.bidirectional, rectified=True)


class RectifiedLoop(nn.Module):
    """The same by a loop over the steps, of parameters in the same order."""

    def __init__(self, inputs, units):
        super().__init__()
        self.forwards, self.backwards = (Recurrence(inputs, units, "gru-relu") for _ in range(2))

    def forward(self, x, lengths):
        forwards = self.forwards(x, lengths)
        backwards = reverse_by_length(self.backwards(reverse_by_length(x, lengths), lengths), lengths)
        # States at padding are 0, and so is the last one of a sequence without steps.
        last = forwards[torch.arange(len(x)), (lengths - 1).clamp(min=0)]
        return torch.cat([forwards, backwards], dim=-1), torch.stack([last, backwards[:, 0]])


def batch(sequences, steps, inputs, units, bidirectional=True, dtype=torch.float32, of_parameters=None, kind=GRU):
    """x with NaN in its padding, lengths from 0 to ``steps``, and an nn.GRU and a GRU (or ``kind``) of the same
    parameters."""
    torch.manual_seed(0)
    of_parameters = of_parameters or dtype
    theirs = nn.GRU(inputs, units, batch_first=True, bidirectional=bidirectional, dtype=torch.float64).cuda()
    theirs.load_state_dict({name: tensor.to(of_parameters) for name, tensor in theirs.state_dict().items()})
    ours = kind(inputs, units, batch_first=True, bidirectional=bidirectional).to("cuda", of_parameters)
    ours.load_state_dict(theirs.state_dict())
    lengths = torch.randint(0, steps + 1, (sequences,), device="cuda")
    x = torch.randn(sequences, steps, inputs, device="cuda").to(dtype)
    return x.masked_fill(padding(x, lengths), torch.nan), lengths, theirs, ours


def padding(x, lengths):
    return (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]


def exactly(theirs, x, lengths):
    """nn.GRU in float64 on each row's real steps alone, and on a row without any the initial state, 0."""
    whole = nn.utils.rnn.pack_padded_sequence(
        x.nan_to_num(), lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False
    )
    states, final = theirs(whole)
    states = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]
    some = lengths > 0
    return states * some[:, None, None], final * some[:, None]


def both_passes(module, x, lengths, dtype=None, scale=1.0):
    """``dtype``: what the gradients from above are rounded to; the same for two that are to be compared."""
    results = exactly(module, x, lengths) if type(module) is nn.GRU else module(x, lengths=lengths)
    # Any numbers, of no generator, as a graph may be capturing this. Of squares: in cos(0.7 i) a bias's gradient
    # cancels to less than what half precision rounds off its terms, in cuDNN as here.
    places = [torch.arange(y.numel(), device="cuda", dtype=torch.float64).view(y.shape) for y in results]
    above = [place.square().mul(0.7).cos().mul(scale).float().to(dtype or x.dtype).to(x.dtype) for place in places]
    gradients = torch.autograd.grad(results, [x, *module.parameters()], above)
    return *(result.detach() for result in results), *gradients


def test_the_library_is_what_runs():
    assert library.kernels(torch.device("cuda", 0)).startswith("extension ")


SHAPES = [
    (5, 7, 6, 4, True),
    (33, 9, 10, 50, True),
    (70, 30, 200, 50, True),
    (17, 5, 3, 13, False),
    (16, 6, 33, 64, True),
    (40, 12, 20, 100, True),
    (21, 4, 7, 112, False),
    (300, 6, 8, 128, True),
    (130, 5, 113, 65, True),
    (30, 6, 12, 20, True),
    (2200, 5, 8, 50, True),
    (33, 7, 300, 56, False),
    (9, 4, 800, 20, True),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_against_float64_is_rounding_in_both_passes(shape, dtype):
    x, lengths, theirs, ours = batch(*shape, dtype=dtype)
    results = both_passes(ours, x.requires_grad_(), lengths)
    exact = both_passes(theirs, x.detach().double().requires_grad_(), lengths, dtype)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[dtype]
    hidden = padding(x, lengths)
    assert not results[0][hidden.expand_as(results[0])].any()
    assert not results[2][hidden.expand_as(x)].any()


# The products scale what they split.
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e4, 1e15])
@pytest.mark.parametrize("shape", [(40, 12, 20, 100, True), (400, 30, 33, 50, True)])
def test_gradients_of_any_size_keep_their_bits(shape, scale):
    x, lengths, theirs, ours = batch(*shape)
    results = both_passes(ours, x.requires_grad_(), lengths, scale=scale)
    exact = both_passes(theirs, x.detach().double().requires_grad_(), lengths, torch.float32, scale)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[torch.float32]


def test_inputs_of_different_sizes_keep_their_bits():
    x, lengths, theirs, ours = batch(100, 12, 64, 50)
    sizes = torch.logspace(-2, 2, 64, device="cuda")
    with torch.no_grad():
        ours.weight_ih_l0.div_(sizes)
        ours.weight_ih_l0_reverse.div_(sizes)
    theirs.load_state_dict(ours.state_dict())
    results = both_passes(ours, (x * sizes).requires_grad_(), lengths)
    exact = both_passes(theirs, (x * sizes).double().requires_grad_(), lengths, torch.float32)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7, 6, 4), (70, 30, 200, 50), (40, 12, 20, 100), (300, 6, 8, 128)])
def test_a_rectified_candidate_s_error_is_rounding_in_both_passes(shape, dtype):
    """A gradient jumps where a candidate's sum is rounded to the other side of 0. So the first input, 1 or -1, makes
    each sum 2 or -2, and all else a tenth of it."""
    sequences, steps, inputs, units = shape
    torch.manual_seed(0)
    theirs, ours = (
        RectifiedLoop(inputs, units),
        RectifiedGRU(inputs, units, batch_first=True, bidirectional=True).to("cuda", dtype),
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter[2 * units :] *= 0.2
        for direction in (theirs.forwards, theirs.backwards):
            direction.weight_ih_l0[2 * units :, 0] = torch.tensor([2.0, -2.0]).repeat(units // 2)
        for own, parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
            parameter.copy_(own.copy_(parameter))
    x, lengths = torch.randn(sequences, steps, inputs), torch.randint(0, steps + 1, (sequences,))
    x[..., 0] = x[..., 0].sign()
    x, lengths = x.to("cuda", dtype), lengths.cuda()
    results = both_passes(ours, x.requires_grad_(), lengths)
    exact = both_passes(theirs.to("cuda", torch.float64), x.detach().double().requires_grad_(), lengths, dtype)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[dtype]
    candidate = gates(x, lengths, list(ours.parameters()), bidirectional=True, rectified=True).candidate
    assert (candidate == 0).any() and (candidate > 1).any() and not ((candidate > 0) & (candidate < 0.1)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_unit_of_one_input(dtype):
    x, lengths, theirs, ours = batch(1, 40, 1, 1, dtype=dtype)
    results = both_passes(ours, x.requires_grad_(), lengths)
    exact = both_passes(theirs, x.detach().double().requires_grad_(), lengths, dtype)
    # The rounding of one weight, which no other evens out.
    assert rules.relative_error(results, exact) <= 10 * LARGEST_ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_and_ragged_batches_give_the_same_bits(dtype):
    x, lengths, _, ours = batch(75, 11, 24, 50, dtype=dtype)
    real = ~padding(x, lengths)[..., 0]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    states, final = ours(x.requires_grad_(), lengths=lengths)
    rows = x.detach()[real].requires_grad_()
    ragged, last = ours(rows, offsets=offsets)
    assert torch.equal(ragged, states[real])
    assert torch.equal(last, final)
    (padded_gradient,) = torch.autograd.grad(states.sum(), x)
    (gradient,) = torch.autograd.grad(ragged.sum(), rows)
    assert torch.equal(gradient, padded_gradient[real])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_behind_the_last_offset_are_of_no_sequence(dtype):
    _, _, _, ours = batch(1, 1, 20, 50, dtype=dtype)
    lengths = torch.randint(0, 31, (300,), device="cuda")
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    real = int(offsets[-1])
    x = torch.randn(real, 20, device="cuda").to(dtype)
    longer = torch.cat([x, x.new_full((700, 20), torch.nan)]).requires_grad_()
    x.requires_grad_()
    results, expected = ours(longer, offsets=offsets), ours(x, offsets=offsets)
    assert torch.equal(results[0][:real], expected[0]) and not results[0][real:].any()
    assert torch.equal(results[1], expected[1])
    above = torch.randn_like(expected[0])
    behind = torch.cat([above, above.new_full((700, 100), torch.nan)])
    of_longer, *of_parameters = torch.autograd.grad(results[0], [longer, *ours.parameters()], behind)
    of_x, *of_the_same = torch.autograd.grad(expected[0], [x, *ours.parameters()], above)
    assert torch.equal(of_longer[:real], of_x) and not of_longer[real:].any()
    # Shared out among the blocks by the length of the whole batch: the same numbers, summed in another order.
    assert rules.relative_error(of_parameters, of_the_same) <= LARGEST_ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [1, 40, 700])
def test_rows_before_the_first_offset_are_of_no_sequence(before, dtype):
    """Memory that nobody wrote holds NaN here: the allocator is given a tensor of them back first."""
    _, _, _, ours = batch(1, 1, 20, 50, dtype=dtype)
    lengths = torch.randint(0, 31, (300,), device="cuda")
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    x = torch.randn(int(offsets[-1]), 20, device="cuda").to(dtype)
    later = torch.cat([x.new_full((before, 20), torch.nan), x]).requires_grad_()
    x.requires_grad_()
    torch.full((2**26,), torch.nan, device="cuda")
    results, expected = ours(later, offsets=offsets + before), ours(x, offsets=offsets)
    assert torch.equal(results[0][before:], expected[0]) and not results[0][:before].any()
    assert torch.equal(results[1], expected[1])
    above = torch.randn_like(expected[0])
    with_more = torch.cat([above.new_full((before, 100), torch.nan), above])
    of_later, *of_parameters = torch.autograd.grad(results[0], [later, *ours.parameters()], with_more)
    of_x, *of_the_same = torch.autograd.grad(expected[0], [x, *ours.parameters()], above)
    assert torch.equal(of_later[before:], of_x) and not of_later[:before].any()
    assert rules.relative_error(of_parameters, of_the_same) <= LARGEST_ERROR[dtype]
    later_gates, expected = (
        gates(rows, limits, list(ours.parameters()), bidirectional=True)
        for rows, limits in ((later, offsets + before), (x, offsets))
    )
    assert all(torch.equal(a[before:], b) and not a[:before].any() for a, b in zip(later_gates, expected, strict=True))


@pytest.mark.parametrize("dtype", HALF)
def test_parameters_in_float32_beside_half_precision(dtype):
    x, lengths, theirs, ours = batch(50, 8, 24, 50, dtype=dtype, of_parameters=torch.float32)
    results = both_passes(ours, x.requires_grad_(), lengths)
    exact = both_passes(theirs, x.detach().double().requires_grad_(), lengths, dtype)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[dtype]
    assert {gradient.dtype for gradient in results[3:]} == {torch.float32}
    with torch.autocast("cuda", dtype=dtype):
        states, _ = ours(x.detach().float(), lengths=lengths)
    assert torch.equal(states, results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides_and_misaligned_views(dtype):
    x, lengths, _, ours = batch(20, 6, 24, 50, dtype=dtype)
    x = x.nan_to_num()
    expected = both_passes(ours, x.clone().requires_grad_(), lengths)
    shifted = torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for view in (shifted, turned):
        results = both_passes(ours, view.requires_grad_(), lengths)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    states, _ = ours(x, lengths=lengths)
    above = torch.randn(states.numel() + 1, device="cuda").to(dtype)[1:].view(states.shape)
    gradients = torch.autograd.grad(states, ours.parameters(), above, retain_graph=True)
    again = torch.autograd.grad(states, ours.parameters(), above.clone(), retain_graph=True)
    expanded = torch.autograd.grad(states.sum(), ours.parameters())
    assert all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    assert all(gradient.isfinite().all() for gradient in expanded)


def test_long_sequences_are_sorted_by_bins():
    x, lengths, theirs, ours = batch(40, 5000, 3, 8)
    lengths[3] = 5000
    x = torch.randn_like(x)
    with torch.no_grad():
        results, exact = ours(x, lengths=lengths), exactly(theirs, x.double(), lengths)
    assert rules.relative_error(results, exact) < 1e-5


@pytest.mark.parametrize("sequences", [1, 31, 2500, 20000])
@pytest.mark.parametrize("steps", [7, 3000])
def test_the_plan_lists_sequences_by_falling_length_in_their_own_order(sequences, steps):
    """Where there are more lengths than bins, a bin holds neighbouring lengths."""
    x, _, _, ours = batch(1, 1, 5, 6)
    lengths = torch.randint(0, steps + 1, (sequences,), device="cuda")
    longest = int(lengths.max().clamp(min=1))
    bins = longest - lengths if longest < 256 else (longest - lengths) * 255 // longest
    order = bins.argsort(stable=True)
    parameters = [*ours.parameters()]
    library.kernel("gru_forward", x)
    rows, offsets = int(lengths.sum()), nn.functional.pad(lengths.cumsum(0), (1, 0))
    for limits, size in ((lengths, sequences * steps), (offsets + 3, rows + 3)):
        padded = limits is lengths
        given = x, limits, size, steps if padded else -1, *parameters, sequences, False
        plan, source, *_ = torch.ops.reread_kernels_compiled.gru_prepare(*given)
        plan, first = plan.long(), offsets[:-1] + (0 if padded else 3)
        assert torch.equal(plan[:-1, 0], order)
        assert torch.equal(plan[:-1, 1], first[order]) and torch.equal(plan[:-1, 2], lengths[order])
        assert plan[-1].tolist() == ([0, 0, rows, 0] if padded else [0, 3, rows + 3, 0])
        if padded:
            real = torch.arange(steps, device="cuda") < lengths[:, None]
            assert torch.equal(source.long(), torch.cat([m.flatten().nonzero().flatten() for m in (real, ~real)]))


@pytest.mark.parametrize("sequences", [2500, 20000])
def test_more_sequences_than_threads_that_sort_them(sequences):
    x, lengths, theirs, ours = batch(sequences, 7, 5, 6)
    with torch.no_grad():
        results, exact = ours(x, lengths=lengths), exactly(theirs, x.double(), lengths)
    assert rules.relative_error(results, exact) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES[:3], *SHAPES[5:8], SHAPES[-1]])
def test_first_states_and_their_gradients(shape, dtype):
    """Also of sequences without steps, which end in them."""
    x, lengths, theirs, ours = batch(*shape, dtype=dtype)
    sequences, _, _, units, both = shape
    lengths.clamp_(min=1)
    first = torch.randn(1 + both, sequences, units, device="cuda").to(dtype)
    results, gradients = [], []
    for module, rows, states in ((ours, x.nan_to_num(), first), (theirs, x.double().nan_to_num(), first.double())):
        rows, states = rows.requires_grad_(), states.requires_grad_()
        if module is ours:
            outputs = ours(rows, states, lengths=lengths)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
            outputs, last = theirs(packed, states)
            outputs = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0], last
        above = [
            torch.arange(y.numel(), device="cuda").double().square().cos().view(y.shape).to(dtype) for y in outputs
        ]
        asked = [rows, states, *module.parameters()]
        gradients.append(
            torch.autograd.grad(outputs, asked, [a.to(y.dtype) for a, y in zip(above, outputs, strict=True)])
        )
        results.append([y.detach() for y in outputs])
    assert rules.relative_error(results[0], results[1]) <= LARGEST_ERROR[dtype]
    assert rules.relative_error(gradients[0], gradients[1]) <= LARGEST_ERROR[dtype]
    lengths[0] = 0
    states = first.detach().requires_grad_()
    last = ours(x.nan_to_num(), states, lengths=lengths)[1]
    assert torch.equal(last[:, 0], first[:, 0])
    of_first = torch.autograd.grad(last[:, 0].sum(), states)[0]
    assert (of_first[:, 0] == 1).all() and not of_first[:, 1:].any()


def test_first_states_of_zeros_change_no_bit():
    x, lengths, _, ours = batch(70, 30, 200, 50)
    zeros = torch.zeros(2, 70, 50, device="cuda")
    for a, b in zip(ours(x, lengths=lengths), ours(x, zeros, lengths=lengths), strict=True):
        assert torch.equal(a, b)


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    sequences, steps = 2**17, 72
    ours = GRU(3, 128, batch_first=True, bidirectional=True).cuda().bfloat16()
    x = torch.randn(sequences, steps, 3, device="cuda", dtype=torch.bfloat16)
    lengths = torch.full((sequences,), steps, device="cuda")
    with torch.no_grad():
        states, final = ours(x, lengths=lengths)
        assert states.numel() > 2**31
        few = ours(x[-64:], lengths=lengths[-64:])
    assert torch.equal(states[-64:], few[0])
    assert torch.equal(final[:, -64:], few[1])


@pytest.mark.parametrize("kind", [GRU, RectifiedGRU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_runs_give_the_same_bits_in_deterministic_mode(dtype, kind):
    x, lengths, _, ours = batch(200, 12, 24, 50, dtype=dtype, kind=kind)
    rules.fifty_runs_give_the_same_bits(lambda x: both_passes(ours, x, lengths), (x.requires_grad_(),))


@pytest.mark.parametrize("kind", [GRU, RectifiedGRU])
def test_a_cuda_graph_replays_it_on_new_values_and_new_lengths(kind):
    x, lengths, _, ours = batch(100, 9, 16, 50, kind=kind)
    x, changed = x.nan_to_num(), torch.randn_like(x)
    rules.a_graph_replays_it_on_new_values(lambda x: ours(x, lengths=lengths), (x,), changed)
    rules.a_graph_replays_it_on_new_values(lambda lengths: ours(x, lengths=lengths), (lengths,), lengths.flip(0) // 2)
    given = x.clone().requires_grad_()
    rules.a_graph_replays_it_on_new_values(lambda x: both_passes(ours, x, lengths), (given,), changed)
    rules.a_graph_replays_it_on_new_values(lambda lengths: both_passes(ours, given, lengths), (lengths,), lengths // 2)


def test_it_runs_on_the_current_stream():
    x, lengths, _, ours = batch(100, 9, 16, 50)
    x = x.nan_to_num()
    rules.it_runs_on_the_current_stream(lambda x: ours(x, lengths=lengths), (x,), torch.randn_like(x))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients():
    x, lengths, _, ours = batch(30, 9, 16, 50)
    x = x.nan_to_num()
    rules.torch_compile_takes_it_whole(lambda x: ours(x, lengths=lengths), (x,), 1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: ours(x * 2, lengths=lengths)[0].sin(), fullgraph=True)
    given = [x.requires_grad_(), *ours.parameters()]
    gradients = torch.autograd.grad(compiled(x).sum(), given)
    expected = torch.autograd.grad(ours(x * 2, lengths=lengths)[0].sin().sum(), given)
    assert rules.relative_error(gradients, expected) < 1e-5


def test_a_batch_of_nothing():
    _, _, _, ours = batch(2, 3, 4, 5)
    for shape in ((0, 3, 4), (3, 0, 4)):
        x = torch.zeros(shape, device="cuda", requires_grad=True)
        states, final = ours(x)
        assert (states.shape, final.shape) == ((*shape[:2], 10), (2, shape[0], 5))
        gradients = torch.autograd.grad(states.sum() + final.sum(), [x, *ours.parameters()])
        assert not any(gradient.any() for gradient in gradients)
    states, final = ours(x[0], offsets=torch.zeros(1, dtype=torch.long, device="cuda"))
    assert (states.shape, final.shape) == ((0, 10), (2, 0, 5))


def test_lengths_outside_the_batch_are_clamped():
    x, _, _, ours = batch(20, 3, 4, 5)
    lengths = torch.randint(-5, 9, (20,), device="cuda")
    x = torch.randn_like(x)
    for result, expected in zip(ours(x, lengths=lengths), ours(x, lengths=lengths.clamp(0, 3)), strict=True):
        assert torch.equal(result, expected)
    offsets = torch.tensor([-3, 10, 4, 99, 60], device="cuda")
    assert all(y.isfinite().all() for y in ours(x.flatten(0, 1), offsets=offsets)[1:])


def test_gates_are_those_of_float64():
    x, lengths, theirs, ours = batch(40, 6, 12, 50)
    own_gates = gates(x, lengths, list(ours.parameters()), bidirectional=True)
    exact = gates(x.double(), lengths, list(theirs.parameters()), bidirectional=True)
    assert rules.relative_error(own_gates, exact) < 1e-5
    assert not any(gate[padding(x, lengths).expand_as(gate)].any() for gate in own_gates)


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_operation_keeps_pytorch_s_rules(dtype, rectified):
    x, lengths, _, ours = batch(3, 4, 5, 6, dtype=dtype)
    # The gates of padding are not written, so that two calls differ there.
    x, lengths = x.nan_to_num().requires_grad_(), torch.full_like(lengths, x.shape[1])
    torch.library.opcheck(
        torch.ops.reread_kernels.gru,
        (x, lengths, None, True, rectified, *ours.parameters()),
    )
    first = torch.randn(2, 3, 6, device="cuda").to(dtype).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.gru, (x, lengths, first, True, rectified, *ours.parameters()))


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_match_finite_differences(bidirectional, rectified):
    x, lengths, _, ours = batch(3, 4, 2, 3, bidirectional, dtype=torch.float64)
    x = x.nan_to_num().requires_grad_()

    def run(x, *parameters):
        return gru(x, lengths, parameters, bidirectional, rectified)

    assert torch.autograd.gradcheck(run, (x, *ours.parameters()))


def test_two_devices_are_refused_and_so_are_the_compiled_operations_called_wrongly():
    x, lengths, _, ours = batch(4, 5, 6, 7)
    with pytest.raises(ValueError, match="one device, got cpu, cuda:0"):
        ours(x, lengths=lengths.cpu())
    compiled = torch.ops.reread_kernels_compiled
    given = [*ours.parameters()]
    with pytest.raises(RuntimeError, match="4 sequences of 5 steps are not 21 rows"):
        compiled.gru_prepare(x, lengths, 21, 5, *given, 4, False)
    with pytest.raises(RuntimeError, match="int32 or int64"):
        compiled.gru_prepare(x, lengths.float(), 20, 5, *given, 4, False)
    with pytest.raises(RuntimeError, match="parameter 3 differs in device, dtype or size"):
        compiled.gru_prepare(x, lengths, 20, 5, *given[:3], given[3][:3], None, None, None, None, 4, False)
    plan, source, weights, bias, recurrent = compiled.gru_prepare(x, lengths, 20, 5, *given, 4, False)
    sums = x.new_empty(20, 2, 4, 8)
    with pytest.raises(RuntimeError, match="do not fit together"):
        compiled.gru_forward(sums, plan[:3], recurrent, bias, None, x, x.new_empty(2, 4, 7), 5, False, False)
    with pytest.raises(RuntimeError, match="dtype must be float32, float16 or bfloat16"):
        compiled.gru_prepare(x.double(), lengths, 20, 5, *[parameter.double() for parameter in given], 4, False)
    with pytest.raises(RuntimeError, match="do not fit"):
        compiled.gru_project(x, plan, source, weights[8:], bias, sums)


def test_what_a_compiled_operation_gets_from_another_is_checked_again():
    """Each tensor in another dtype and on the CPU, but the first one named, beside which the others must be."""
    x, lengths, _, ours = batch(4, 5, 8, 7)
    x, compiled, parameters = x.nan_to_num(), torch.ops.reread_kernels_compiled, [*ours.parameters()]
    library.kernel("gru_forward", x)
    plan, source, weights, bias, recurrent = compiled.gru_prepare(x, lengths, 20, 5, *parameters, 4, False)
    _, _, turned, _, recurrent_turned = compiled.gru_prepare(x, None, 0, 0, *parameters, 4, True)
    sums, kept, gradients = (x.new_zeros(20, 2, slots, 8) for slots in (3, 5, 4))
    states, last = x.new_zeros(4, 5, 14), x.new_zeros(2, 4, 7)
    calls = {
        "gru_clear": ("rows", plan, states.flatten(0, 1)),
        "gru_project": ("x", x, plan, source, weights, bias, sums),
        "gru_forward": ("gates", sums, plan, recurrent, bias, last, states, last.clone(), 5, False, False),
        "gru_backward": ("gates", kept, plan, recurrent_turned, states, last, 7, False, gradients, last.clone()),
        "gru_project_back": ("of_x", gradients, plan, source, turned, x.clone()),
        "gru_correlate": ("x", x, plan, source, gradients, kept, parameters[0]),
    }
    refused = 0
    for name, (beside, *given) in calls.items():
        run = getattr(compiled, name)
        run(*given)
        for place, argument in enumerate(run.default._schema.arguments):
            tensor = given[place]
            if not isinstance(tensor, torch.Tensor) or argument.name in (beside, "w_ih"):
                continue
            wide = tensor.double() if tensor.is_floating_point() else tensor.long()
            for other, got in ((wide, str(wide.dtype).removeprefix("torch.")), (tensor.cpu(), "another device")):
                with pytest.raises(RuntimeError, match=f"{name}: {argument.name} must be .* on cuda:0, got .*{got}"):
                    run(*given[:place], other, *given[place + 1 :])
                refused += 1
    assert refused == 2 * (1 + 5 + 6 + 6 + 4 + 4)
    with pytest.raises(RuntimeError, match="gru_prepare: x must be on a GPU"):
        compiled.gru_prepare(x.cpu(), lengths, 20, 5, *parameters, 4, False)
