"""Attention pooling's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch
import torch.nn.functional as F

from cuda_ext import library
from cuda_ext.attention_pooling import attention_pooling, attention_pooling_ragged
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
# Rows, steps, width, units: the kernels of three widths, PyTorch's operations, odd and misaligned rows, long rows.
SHAPES = [
    (37, 30, 100, 100),
    (64, 20, 100, 100),
    (1, 1, 1, 1),
    (9, 17, 3, 7),
    (300, 2, 66, 100),
    (400, 30, 100, 100),
    (300, 25, 64, 64),
    (300, 25, 128, 120),
    (11, 50, 64, 64),
    (7, 33, 101, 50),
    (5, 129, 104, 104),
    (6, 40, 128, 128),
    (8, 21, 5, 125),
    (5, 13, 200, 200),
    (2, 9, 130, 3),
    (2, 1500, 100, 100),
]


def inputs(rows, steps, width, units, dtype=torch.float32, parameters=None, full=False):
    """states, lengths, weight, bias, context, and the gradients of the two results; NaN at padding."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device="cuda")

    lengths = torch.randint(0, steps + 1, (rows,), generator=generator, device="cuda").clamp(min=steps if full else 0)
    lengths[0] = steps
    states = draw(rows, steps, width).masked_fill(~mask(lengths, steps).unsqueeze(-1), float("nan")).to(dtype)
    weight, bias, context = draw(units, width) * width**-0.5, draw(units) * 0.2, draw(units) * 2 * units**-0.5
    own = parameters or dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given = states, lengths, weight.to(own), bias.to(own), context.to(own)
    return [*given, draw(rows, width).to(dtype), draw(rows, steps).to(wide)]


def mask(lengths, steps):
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(-1)


def packed(states, lengths):
    return states[mask(lengths, states.shape[1])], F.pad(lengths.cumsum(0), (1, 0))


def everything(states, lengths, weight, bias, context, gradient, weights_gradient=None, function=attention_pooling):
    """Both results and all gradients."""
    asked = [tensor.detach().requires_grad_() for tensor in (states, weight, bias, context)]
    pooled, weights = function(asked[0], lengths, *asked[1:])
    results, gradients = [pooled], [gradient]
    if weights_gradient is not None:
        results, gradients = [pooled, weights], [gradient, weights_gradient]
    return pooled.detach(), weights.detach(), *torch.autograd.grad(results, asked, gradients)


def formula(states, lengths, weight, bias, context):
    """The formula in float64, written apart from the reference."""
    real = mask(lengths, states.shape[1])
    states = states.masked_fill(~real.unsqueeze(-1), 0)
    powers = ((states @ weight.t() + bias).tanh() @ context).exp() * real
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("nt,ntd->nd", weights, states), weights


def doubled(tensors):
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]


def test_the_library_is_what_runs():
    assert library.kernels(torch.device("cuda", 0)).startswith("extension ")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_error_of_results_and_gradients_against_float64(dtype, shape):
    given = inputs(*shape, dtype=dtype)
    results, exact = everything(*given), everything(*doubled(given), function=formula)
    errors = [rules.relative_error(a, b) for a, b in zip(results, exact, strict=True)]
    # One unit's softmax, or one row's step, can leave gradients that are rounding alone.
    if min(shape) > 2:
        assert max(errors) <= LARGEST_ERROR[dtype], errors
    assert max(errors[:2]) <= LARGEST_ERROR[dtype], errors
    padding = ~mask(given[1], shape[1])
    assert not results[1][padding].any() and not results[2][padding].any()
    assert not results[0][given[1] == 0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full", [False, True])
def test_the_error_on_many_rows(dtype, full):
    given = inputs(5120, 30, 100, 100, dtype=dtype, full=full)[:-1]
    errors = [
        rules.relative_error(a, b)
        for a, b in zip(everything(*given), everything(*doubled(given), function=formula), strict=True)
    ]
    assert max(errors) <= LARGEST_ERROR[dtype], errors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 30, 100, 100), (700, 30, 100, 100), (5, 150, 33, 17), (4, 9, 140, 20)], ids=str)
def test_ragged_and_padded_agree(dtype, shape):
    """Not to the bit: a small padded batch takes kernels of its own, a wide one PyTorch's operations."""
    states, lengths, *parameters, gradient, weights_gradient = inputs(*shape, dtype=dtype)
    real = mask(lengths, shape[1])
    expected = everything(states, lengths, *parameters, gradient, weights_gradient)
    expected = expected[0], expected[1][real], expected[2][real], *expected[3:]
    rows, offsets = packed(states, lengths)
    given = *parameters, gradient, weights_gradient[real]
    results = everything(rows, offsets, *given, function=attention_pooling_ragged)
    assert rules.relative_error(results, expected) <= 2 * LARGEST_ERROR[dtype]
    narrow = everything(rows, offsets.int(), *given, function=attention_pooling_ragged)
    assert all(torch.equal(a, b) for a, b in zip(results, narrow, strict=True))


@pytest.mark.parametrize("width", [100, 140])
def test_lengths_beyond_the_tensor_and_rows_of_no_sequence(width):
    states, lengths, *parameters, gradient, _ = inputs(6, 10, width, 20)
    states = states.nan_to_num()
    lengths = torch.tensor([99, -5, 3, 0, 2**40, 1], device="cuda")
    results = everything(states, lengths, *parameters, gradient)
    expected = everything(states, lengths.clamp(0, 10), *parameters, gradient)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    offsets = torch.tensor([2, 2, 9, 12, 12, 30, 41], device="cuda")
    rows = states.flatten(0, 1)
    results = everything(rows, offsets, *parameters, gradient, function=attention_pooling_ragged)
    same = everything(rows[2:41], offsets - 2, *parameters, gradient, function=attention_pooling_ragged)
    for a in results[1:3]:
        assert not a[:2].any() and not a[41:].any()
    own = results[0], results[1][2:41], results[2][2:41], *results[3:]
    if width <= 128:
        assert all(torch.equal(a, b) for a, b in zip(own, same, strict=True))
    else:
        # PyTorch's products of 60 rows and of 39 may round otherwise.
        assert rules.relative_error(own, same) <= LARGEST_ERROR[torch.float32]


@pytest.mark.parametrize("width", [100, 140])
def test_nothing_at_all_and_rows_of_length_0(width):
    for rows, steps in [(0, 6), (3, 0), (0, 0)]:
        states = torch.ones(rows, steps, width, device="cuda")
        lengths = torch.zeros(rows, dtype=torch.int32, device="cuda")
        parameters = inputs(1, 1, width, 7)[2:5]
        results = everything(states, lengths, *parameters, torch.ones(rows, width, device="cuda"))
        assert [tuple(a.shape) for a in results[:3]] == [(rows, width), (rows, steps), (rows, steps, width)]
        assert not any(a.any() for a in results)
    given = inputs(4, 6, width, 7)
    given[1].zero_()
    assert not any(a.any() for a in everything(given[0] * float("nan"), *given[1:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides_and_misaligned_views(dtype):
    states, lengths, weight, bias, context, gradient, _ = inputs(8, 12, 40, 24, dtype=dtype)
    expected = everything(states, lengths, weight, bias, context, gradient)
    flat = torch.cat([states.new_zeros(1), states.flatten()])[1:].view_as(states)
    views = [
        (states.transpose(0, 1).contiguous().transpose(0, 1), lengths, weight, gradient),
        (states, lengths.repeat_interleave(2)[::2], weight.t().contiguous().t(), gradient.t().contiguous().t()),
        (flat, lengths, weight, torch.cat([gradient.new_zeros(1), gradient.flatten()])[1:].view_as(gradient)),
    ]
    for a, b, c, d in views:
        results = everything(a, b, c, bias, context, d)
        assert all(torch.equal(x, y) for x, y in zip(results, expected, strict=True))
    summed = attention_pooling(states.requires_grad_(), lengths, weight, bias, context)[0].sum()
    ones = everything(states, lengths, weight, bias, context, torch.ones_like(gradient))[2]
    assert torch.equal(torch.autograd.grad(summed, states)[0], ones)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_takes_float32_parameters(dtype):
    given = inputs(40, 30, 100, 100, dtype=dtype, parameters=torch.float32)
    results, exact = everything(*given), everything(*doubled(given), function=formula)
    assert [a.dtype for a in results] == [dtype, torch.float32, dtype, *[torch.float32] * 3]
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[dtype]


def test_autocast_casts_the_states_and_leaves_the_parameters():
    given = inputs(40, 30, 100, 100)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        results = everything(*given[:5], given[5].bfloat16())
    expected = everything(given[0].bfloat16(), *given[1:5], given[5].bfloat16())
    assert [a.dtype for a in results] == [torch.bfloat16, *[torch.float32] * 5]
    assert torch.equal(results[2].bfloat16(), expected[2])
    assert all(
        torch.equal(a, b) for a, b in zip((*results[:2], *results[3:]), (*expected[:2], *expected[3:]), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_runs_give_the_same_bits_in_deterministic_mode(dtype):
    rules.fifty_runs_give_the_same_bits(everything, inputs(700, 30, 100, 100, dtype=dtype))


@pytest.mark.parametrize("huge", [1e30, float("inf")])
@pytest.mark.parametrize("shape", [(700, 7, 100, 100), (40, 7, 100, 100), (500, 9, 64, 50), (300, 20, 33, 17)], ids=str)
def test_a_huge_gradient_of_one_sequence_leaves_the_others_theirs(shape, huge):
    """Float's numbers are scaled together, 16 rows at a time, which may be of several sequences."""
    states, lengths, *parameters, gradient, _ = inputs(*shape)
    # Steps that were padding, and NaN, become real.
    states.nan_to_num_()
    lengths.clamp_(min=1)
    expected = everything(states, lengths, *parameters, gradient)[2]
    sequence = shape[0] // 2
    spoilt = gradient.clone()
    spoilt[sequence] = huge
    of_states = everything(states, lengths, *parameters, spoilt)[2]
    others = torch.arange(shape[0], device="cuda") != sequence
    assert rules.relative_error(of_states[others], expected[others]) <= LARGEST_ERROR[torch.float32]
    each = (of_states - expected).double().flatten(1).norm(dim=1) / expected.double().flatten(1).norm(dim=1).clamp(
        min=1e-30
    )
    assert each[others].max() <= 1e-3


@pytest.mark.parametrize("small", [1e-12, 1e-20])
def test_gradients_of_sequences_of_very_different_sizes_keep_their_digits(small):
    states, lengths, *parameters, gradient, _ = inputs(700, 7, 100, 100)
    states.nan_to_num_()
    lengths.clamp_(min=2)
    gradient[::2] *= small
    of_states = everything(states, lengths, *parameters, gradient)[2]
    exact = everything(*doubled([states, lengths, *parameters, gradient]), function=formula)[2]
    assert rules.relative_error(of_states[::2], exact[::2]) <= LARGEST_ERROR[torch.float32]


@pytest.mark.parametrize("width", [100, 140])
def test_a_cuda_graph_replays_it_on_new_values(width):
    given = inputs(70, 30, width, 100)
    rules.a_graph_replays_it_on_new_values(everything, given, torch.randn_like(given[0]))


def test_a_cuda_graph_replays_it_on_new_lengths():
    given = inputs(70, 30, 100, 100)
    given[0] = given[0].nan_to_num()

    def of_lengths(lengths, states, *others):
        return everything(states, lengths, *others)

    lengths = given.pop(1)
    rules.a_graph_replays_it_on_new_values(of_lengths, [lengths, *given], torch.randint_like(lengths, 0, 31))


def test_it_runs_on_the_current_stream():
    given = inputs(500, 30, 100, 100)
    rules.it_runs_on_the_current_stream(everything, given, torch.randn_like(given[0]))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients():
    given = inputs(40, 30, 100, 100, full=True)
    rules.torch_compile_takes_it_whole(attention_pooling, given[:5], 1e-6)
    rules.torch_compile_takes_it_whole(
        everything_traced, [tensor.requires_grad_() for tensor in given[:1]] + given[1:5], 1e-6
    )


def everything_traced(states, lengths, *parameters):
    pooled, weights = attention_pooling(states, lengths, *parameters)
    return pooled.square(), weights


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_under_autocast_with_gradients():
    torch._dynamo.reset()
    states, lengths, *parameters, gradient, _ = inputs(40, 30, 100, 100)
    states.nan_to_num_().requires_grad_()

    @torch.compile(fullgraph=True)
    def run(states, lengths, *parameters):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return attention_pooling(states, lengths, *parameters)[0]

    pooled = run(states, lengths, *parameters)
    assert pooled.dtype == torch.bfloat16
    with torch.autocast("cuda", dtype=torch.bfloat16):
        expected = attention_pooling(states, lengths, *parameters)[0]
    assert torch.equal(pooled, expected)
    ours, theirs = (torch.autograd.grad(x, states, gradient.bfloat16()) for x in (pooled, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operation_keeps_pytorch_s_rules(dtype):
    states, lengths, *parameters, _, _ = inputs(5, 6, 20, 12, dtype=dtype)
    asked = [tensor.requires_grad_() for tensor in (states.nan_to_num(), *parameters)]
    torch.library.opcheck(torch.ops.reread_kernels.attention_pooling, (asked[0], lengths, False, *asked[1:]))
    rows, offsets = packed(asked[0].detach(), lengths)
    torch.library.opcheck(
        torch.ops.reread_kernels.attention_pooling, (rows.requires_grad_(), offsets, True, *asked[1:])
    )


def test_gradients_match_finite_differences():
    states, lengths, *parameters, _, _ = inputs(3, 4, 5, 3, dtype=torch.float64)
    asked = [tensor.requires_grad_() for tensor in (states.nan_to_num(), *parameters)]
    assert torch.autograd.gradcheck(lambda states, *p: attention_pooling(states, lengths, *p), asked)


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 32 * 2**30:
        pytest.skip("needs 32 GiB of free GPU memory")
    rows, steps, width = 720_000, 30, 100
    states = torch.empty(rows, steps, width, dtype=torch.float16, device="cuda").normal_()
    lengths = torch.randint(0, steps + 1, (rows,), device="cuda")
    parameters = inputs(1, 1, width, width, dtype=torch.float16)[2:5]
    gradient = torch.randn(rows, width, device="cuda").half()
    results = everything(states, lengths, *parameters, gradient)
    for some in (slice(0, 50), slice(rows - 50, rows)):
        expected = everything(states[some], lengths[some], *parameters, gradient[some])
        assert rules.relative_error([a[some] for a in results[:3]], expected[:3]) <= LARGEST_ERROR[torch.float16]


def test_two_devices_are_refused_and_so_is_the_compiled_operation_called_wrongly():
    states, lengths, weight, bias, context, gradient, _ = inputs(4, 6, 5, 3)
    with pytest.raises(ValueError, match="one device, got states on cuda:0, lengths on cpu"):
        attention_pooling(states, lengths.cpu(), weight, bias, context)
    compiled = torch.ops.reread_kernels_compiled.attention_pooling
    with pytest.raises(RuntimeError, match=r"weight must be \[A, 5\]"):
        compiled(states, lengths, False, weight[:, :4], bias, context)
    with pytest.raises(RuntimeError, match="there must be a length a row"):
        compiled(states, lengths[:3], False, weight, bias, context)
    with pytest.raises(RuntimeError, match="3 dimensions, got 2"):
        compiled(states[0], lengths, False, weight, bias, context)
    with pytest.raises(RuntimeError, match="dtype of states"):
        compiled(states.half(), lengths, False, weight.double(), bias.double(), context.double())
    with pytest.raises(RuntimeError, match="int32 or int64"):
        compiled(states, lengths.float(), False, weight, bias, context)
    pooled, weights, index = compiled(states, lengths, False, weight, bias, context)
    backward = torch.ops.reread_kernels_compiled.attention_pooling_backward
    saved = (states, lengths, False, weight, bias, context)
    with pytest.raises(RuntimeError, match=r"pooled and its gradient must be \[4, 5\]"):
        backward(gradient[:3], None, *saved, pooled, weights, index)
    with pytest.raises(RuntimeError, match="must have 24 numbers"):
        backward(gradient, None, *saved, pooled, weights[:3], index)
    with pytest.raises(RuntimeError, match="index must be the forward pass's"):
        backward(gradient, None, *saved, pooled, weights, index[:3])
