"""Batch norm with its activation on a GPU, in strict mode: its reference can not stand in for the kernels."""

import pytest
import torch
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from cuda_ext import library
from cuda_ext.batch_norm_activation import ACTIVATIONS, DTYPES, batch_norm_activation, batch_statistics
from tests.cuda_ext.rules import (
    a_graph_replays_it_on_new_values,
    fifty_runs_give_the_same_bits,
    it_runs_on_the_current_stream,
    relative_error,
    torch_compile_takes_it_whole,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, generator=generator, device="cuda").to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x


def vectors(channels, dtype=torch.float32):
    """weight, bias, mean, variance, beta, in what x of ``dtype`` is computed in."""
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    generator = torch.Generator("cuda").manual_seed(1)
    weight, bias, mean, variance = torch.rand(4, channels, generator=generator, device="cuda", dtype=computed) + 0.5
    return weight, bias - 1, mean - 1, variance, torch.tensor(1.3, device="cuda", dtype=computed)


def both(x, weight, bias, mean, variance, beta, activation, training, pooled=False, seed=5):
    """y and the gradients of x, weight, bias and, of swish, beta; by the operation, and in float64 by PyTorch's own."""
    results = []
    dy = None
    for exact in (False, True):
        copies = [tensor.detach().double() if exact else tensor.detach() for tensor in (x, weight, bias, beta)]
        a, w, b, s = (tensor.requires_grad_() for tensor in copies)
        if exact:
            z = functional.batch_norm(a, mean.double().clone(), variance.double().clone(), w, b, training, 0.1, 1e-5)
            activated = {"none": z, "relu": z.relu(), "swish": z * torch.sigmoid(s * z), "gelu": functional.gelu(z)}
            y = activated[activation]
            y = functional.avg_pool2d(y, 2) if pooled else y
        else:
            options = {"training": training, "activation": activation, "beta": s, "pooled": pooled}
            y = batch_norm_activation(a, w, b, mean.clone(), variance.clone(), **options)
            # Beta's gradient, a sum over all numbers, would cancel with a dy of mean zero.
            dy = numbers(*y.shape, dtype=y.dtype, seed=seed) + (activation == "swish")
        wanted = [a, w, b] + ([s] if activation == "swish" else [])
        results.append((y.detach(), *torch.autograd.grad(y, wanted, dy.to(y.dtype))))
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_the_error_against_float64_is_rounding(training, activation, dtype):
    """Channels that fill a lane of 16 bytes, that fill half of one, and that do not; more than a block has threads."""
    for shape in [(5, 8, 7, 9), (3, 12, 4, 5), (2, 7, 3, 3), (40, 33), (9, 3000), (64, 48, 20, 20), (2, 1, 5)]:
        x = numbers(*shape, dtype=dtype) + (100 if dtype in (torch.float32, torch.float64) else 1)
        results, exact = both(x, *vectors(shape[1], dtype), activation, training)
        room = 100 if dtype in (torch.float32, torch.float64) else 1  # of x's own digits, a hundredth is the spread
        # A relu at 0 flips with the last digit.
        if activation == "relu" and dtype != torch.float64:
            assert relative_error(results[0], exact[0]) <= room * LARGEST_ERROR[dtype]
        else:
            assert relative_error(results, exact) <= room * LARGEST_ERROR[dtype], shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fp32_to_1e_5_and_the_rest_to_their_digits_where_the_mean_is_near_zero(activation, dtype):
    for training, pooled in ((True, False), (False, False), (True, True), (False, True)):
        for shape in [(6, 16, 12, 10), (3, 12, 5, 7)]:
            results, exact = both(numbers(*shape, dtype=dtype), *vectors(shape[1], dtype), activation, training, pooled)
            errors = [relative_error(a, b) for a, b in zip(results, exact, strict=True)]
            assert max(errors) <= LARGEST_ERROR[dtype], (training, pooled, shape, errors)


def test_statistics_of_a_large_batch_keep_their_digits():
    x = numbers(64, 40, 100, 100) * 0.01 + 30
    mean, variance = batch_statistics(x)
    exact = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    assert relative_error((variance, mean), exact) <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_channels_misaligned_views_and_other_strides(dtype):
    whole = numbers(3, 48, 6, 5, dtype=dtype)
    views = [
        whole[:, :12], whole[:, 12:24], whole[:, 8:], whole[:, 1:34], whole[:, ::2], whole[:, :5], whole[:, 16:28],
        whole.contiguous(), whole.transpose(2, 3), whole[:, :, 1:4, ::2], whole[:1].expand(3, 48, 6, 5), whole[:, 7:8],
    ]  # fmt: skip
    for view in views:
        given = vectors(view.shape[1], dtype)
        results, exact = both(view, *given, "swish", True)
        errors = [relative_error(a, b) for a, b in zip(results, exact, strict=True)]
        assert max(errors) <= LARGEST_ERROR[dtype], (view.shape, errors)


@pytest.mark.parametrize("shape", [(4, 1, 5, 5), (4, 3, 5, 5)])
def test_one_number_everywhere_is_read_with_its_strides(shape):
    x = numbers(*shape)
    constant = torch.ones((), device="cuda").expand(shape)
    options = (*vectors(shape[1])[:4], None, "none", 1e-5, True, False)
    operations = torch.ops.reread_kernels
    for dy, given in ((constant, x), (x, constant)):
        computed, expected = (
            operations.batch_norm_activation_backward(a, b, *options)
            for a, b in ((dy, given), (dy.clone(), given.clone()))
        )
        assert all(map(torch.equal, computed, expected))


def test_parts_of_a_dense_block_equal_their_references():
    """Beside the channels nothing changes, and padded columns are zero."""
    device = torch.device("cuda")
    for dtype in DTYPES:
        computed = torch.float64 if dtype == torch.float64 else torch.float32
        for channels, columns in ((12, 16), (24, 24), (36, 40), (5, 8)):
            whole, dy = numbers(300, 64, dtype=dtype), numbers(300, columns, dtype=dtype, seed=2) + 1
            x, given = whole[:, :channels], vectors(channels, dtype)
            arguments = (*given, 2, 1e-5)
            y = fused.part("batch_norm_activation", x)(x, *arguments, columns, 0, 0)
            assert not y[:, channels:].any()
            assert relative_error(y, fused.reference(x, *arguments, columns)) <= LARGEST_ERROR[dtype]
            results = []
            for add in (fused.part("batch_norm_activation_add_backward", x), fused.reference_add_backward):
                total = numbers(300, 64, dtype=dtype, seed=3)
                slope, offset = torch.ones(2, channels, device=device, dtype=computed)
                gradients = add(dy, x, *arguments, True, total[:, :channels], slope, offset)
                results.append((*gradients, total, slope, offset))
            errors = [relative_error(a, b) for a, b in zip(*results, strict=True)]
            assert max(errors) <= LARGEST_ERROR[dtype], errors
            assert torch.equal(results[0][3][:, channels:], results[1][3][:, channels:])
            total, slope, offset = results[0][3:]
            finish = (total[:, :channels], x, given[2], slope, offset, columns)
            centred = fused.part("centred_gradient", x)(*finish)
            assert relative_error(centred, fused.reference_centred_gradient(*finish)) <= LARGEST_ERROR[dtype]
            copied = torch.zeros(300, 64, device=device, dtype=dtype)
            mean, variance = torch.zeros(2, channels, device=device, dtype=computed)
            fused.part("copy_with_statistics", x)(x, copied[:, 4 : 4 + channels], mean, variance)
            assert torch.equal(copied[:, 4 : 4 + channels], x) and copied.count_nonzero() == x.count_nonzero()
            assert relative_error((mean, variance), fused.reference_statistics(x)) <= 1e-5


# Rows and channels that fill no tile, outputs of each kind of block, more chunks than a pipeline holds.
PRODUCTS = [
    (300, 48, 36, 40), (128, 128, 256, 256), (77, 24, 64, 96), (5000, 16, 300, 320), (40000, 128, 100, 128),
    (1, 8, 1, 8), (129, 192, 1000, 1024), (70000, 64, 24, 24), (513, 56, 129, 136),
]  # fmt: skip


def product_inputs(dtype, rows, outputs, channels, stride):
    x = numbers(rows, stride, dtype=dtype)[:, :channels]
    w = functional.pad(numbers(outputs, channels, dtype=dtype, seed=2), (0, -channels % 8)) / channels**0.5
    return x, numbers(rows, outputs, dtype=dtype, seed=1), w


def in_float64(items):
    return [item.double() if isinstance(item, torch.Tensor) else item for item in items]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_products_of_a_dense_layer_equal_their_references(activation, dtype):
    like = torch.empty(0, device="cuda", dtype=dtype)
    product, back = (fused.part(f"dense_product{name}", like) for name in ("", "_backward"))
    for rows, outputs, channels, stride in PRODUCTS:
        x, dy, w = product_inputs(dtype, rows, outputs, channels, stride)
        norm = (*vectors(channels), ACTIVATIONS.index(activation), 1e-5)
        where = (rows, outputs, channels)
        # The operands are rounded to half precision before they are multiplied.
        room = 3 * LARGEST_ERROR[dtype]

        exact = fused.reference_product(*in_float64((x, w, *norm)), True)
        results = product(x, w, *norm, True)
        assert relative_error(results[0], exact[0]) <= room, where
        if rows > 1:
            # Of what was stored, they are exact to float32.
            assert relative_error(results[1:], fused.reference_statistics(results[0].double())) <= 1e-4, where
        without = product(x, w, *norm, False)
        assert torch.equal(without[0], results[0]) and without[1].numel() == without[2].numel() == 0

        for behind in ((None,) * 4, (numbers(rows, outputs, dtype=dtype, seed=4), *vectors(outputs)[:3])):
            if outputs > 64:
                break
            total = numbers(rows, stride, dtype=dtype, seed=3)
            into = (total, *torch.ones(2, channels, device="cuda"))
            beside = total[:, channels:].clone()
            exact_into = in_float64(tensor.clone() for tensor in into)
            given, exact_given = (
                (dy, *behind, w, x, *norm, True, totals[0][:, :channels], *totals[1:]) for totals in (into, exact_into)
            )
            exact = fused.reference_product_backward(*in_float64(exact_given))
            gradients = back(*given)
            for a, b in zip((*gradients, total[:, :channels]), (*exact, exact_into[0][:, :channels]), strict=True):
                # A sum over the outputs alone may cancel: its error is one of its terms.
                terms = float(dy.norm() * w.norm()) if b.numel() == 1 else 0.0
                assert float((a - b).norm()) <= room * max(terms, float(b.norm())), where
            # Of one row dx is what cancels.
            if rows > 1:
                assert max(relative_error(a, b) for a, b in zip(into[1:], exact_into[1:], strict=True)) <= room, where
            assert torch.equal(total[:, channels:], beside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("row", [0, 1, 8_192, 24_576, -1])
def test_a_large_outlier_does_not_ruin_batch_norm_s_variance(row, dtype):
    """A sum of squares that begins at such a value loses the others' digits: sums begin at the middle one of three."""
    rows, far = 49_152, 3e4
    x = numbers(rows, 24, dtype=dtype)
    x[row, ::2] = far
    mean, variance = batch_statistics(x)
    exact = torch.var_mean(x.double(), dim=0, correction=0)
    assert relative_error((variance, mean), exact) <= 1e-6
    if row == 0:
        # In float32, from the first row on: what this test must be able to refuse.
        naive = x.float() - x[0].float()
        assert relative_error(naive.square().mean(0) - naive.mean(0).square(), exact[0]) > 1e-4
    others = [channel for channel in range(24) if channel % 2]
    assert relative_error(variance[others], exact[0][others]) <= 1e-6
    assert relative_error(without_one(x, row, variance), without_one(x, row, exact[0])) <= 0.02


def without_one(x, row, variance):
    """The share of the variance that a row leaves: its own share is known."""
    return variance.double() - (x[row].double() - x.double().mean(0)) ** 2 / (len(x) - 1)


@pytest.mark.parametrize("row", [0, 3, 6])
def test_one_row_far_from_the_others_leaves_a_product_s_variance(row):
    x, _, w = product_inputs(torch.bfloat16, 300_000, 48, 100, 104)
    x[row] = 3000
    w = w.abs()
    norm = (torch.ones(100, device="cuda"), *torch.zeros(2, 100, device="cuda"), torch.ones(100, device="cuda"), None)
    y, mean, variance = fused.part("dense_product", x)(x, w, *norm, ACTIVATIONS.index("relu"), 1e-5, True)
    exact = torch.var_mean(y.double(), dim=0, correction=0)
    assert relative_error((variance, mean), exact) <= 1e-6
    assert relative_error(without_one(y, row, variance), without_one(y, row, exact[0])) <= 2e-3


def test_the_products_of_a_dense_layer_give_the_same_bits_in_fifty_runs():
    x, dy, w = product_inputs(torch.bfloat16, 30_000, 48, 100, 104)
    norm = (*vectors(100), 2, 1e-5)

    def run(x, dy, w):
        product = fused.part("dense_product", x)(x, w, *norm, True)
        gradient = torch.zeros(len(x), 104, device="cuda", dtype=x.dtype)
        into = (gradient[:, :100], *torch.zeros(2, 100, device="cuda"))
        back = fused.part("dense_product_backward", x)(dy, None, None, None, None, w, x, *norm, True, *into)
        return *product, *back, *into

    fifty_runs_give_the_same_bits(run, (x, dy, w))


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    rows = 2**26 + 3
    x = torch.randn(rows, 33, device="cuda", dtype=torch.bfloat16)
    given = vectors(33)
    y = batch_norm_activation(x, *given[:2], None, None, training=True, activation="swish")
    mean, variance = batch_statistics(x)
    exact = torch.var_mean(x[:, 5].double(), correction=0)
    assert relative_error((variance[5], mean[5] + 1), (exact[0], exact[1] + 1)) <= 1e-5
    last = fused.reference(x[-100:], *given[:2], mean, variance, None, 2, 1e-5, 33)
    assert relative_error(y[-100:], last) <= LARGEST_ERROR[torch.bfloat16]


def operation(x, weight, bias, beta):
    return batch_norm_activation(x, weight, bias, None, None, training=True, activation="swish", beta=beta)


def both_passes(x, weight, bias, beta):
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias, beta)]
    y = operation(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, torch.cos(x)))


def inputs(*shape):
    weight, bias, _, _, beta = vectors(shape[1])
    return numbers(*shape), weight, bias, beta


def test_fifty_runs_give_the_same_bits():
    fifty_runs_give_the_same_bits(both_passes, inputs(32, 40, 30, 30))


def test_a_cuda_graph_replays_it_on_new_values():
    given = inputs(16, 24, 9, 9)
    a_graph_replays_it_on_new_values(both_passes, given, numbers(16, 24, 9, 9, seed=9))


def test_it_runs_on_the_current_stream():
    it_runs_on_the_current_stream(both_passes, inputs(64, 64, 16, 16), numbers(64, 64, 16, 16, seed=9))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients():
    given = inputs(8, 12, 5, 5)
    torch_compile_takes_it_whole(operation, given, 1e-6)
    torch._dynamo.reset()
    leaves = [tensor.requires_grad_() for tensor in given]
    dy = numbers(8, 12, 5, 5, seed=4)
    compiled = torch.compile(operation, fullgraph=True)(*leaves)
    gradients, expected = (torch.autograd.grad(y, leaves, dy) for y in (compiled, operation(*leaves)))
    assert relative_error(gradients, expected) <= 1e-6


def test_running_statistics_follow_pytorch_s_module_also_in_a_graph():
    norm = torch.nn.BatchNorm2d(24).cuda()
    mean, variance = torch.zeros(24, device="cuda"), torch.ones(24, device="cuda")
    x = numbers(16, 24, 9, 9)

    def step():
        return batch_norm_activation(x, norm.weight, norm.bias, mean, variance, training=True, activation="none")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    norm(x)
    for seed in (1, 2):
        x.copy_(numbers(16, 24, 9, 9, seed=seed) + seed)
        graph.replay()
        norm(x)
    assert relative_error((mean, variance), (norm.running_mean, norm.running_var)) <= 1e-6


def test_autocast_leaves_the_dtype_of_x():
    x, weight, bias, beta = inputs(4, 8, 3, 3)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert operation(x, weight, bias, beta).dtype == torch.float32
        assert operation(x.bfloat16(), weight, bias, beta).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operation_keeps_pytorch_s_rules(dtype):
    x, given = numbers(3, 8, 4, 4, dtype=dtype), vectors(8, dtype)
    torch.library.opcheck(torch.ops.reread_kernels.batch_statistics, (x,))
    leaves = [tensor.requires_grad_() for tensor in (x, *given[:2])]
    for pooled in (False, True):
        arguments = (*leaves, *given[2:], "swish", 1e-5, True, pooled)
        torch.library.opcheck(torch.ops.reread_kernels.batch_norm_activation, arguments)


def test_gradients_match_finite_differences():
    weight, bias, _, _, beta = (tensor.requires_grad_() for tensor in vectors(3, torch.float64))
    x = numbers(3, 3, 4, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(operation, (x, weight, bias, beta))


def test_empty_batches():
    x, weight, bias, beta = inputs(4, 8, 3, 3)
    leaf = x[:0].requires_grad_()
    y = operation(leaf, weight.requires_grad_(), bias, beta)
    assert y.shape == (0, 8, 3, 3)
    y.sum().backward()
    assert not weight.grad.any()


def test_the_compiled_operations_called_wrongly_refuse():
    library.kernel("batch_norm_activation", torch.empty(0, device="cuda"))
    compiled = torch.ops.reread_kernels_compiled
    x, given = numbers(6, 8), vectors(8)
    with pytest.raises(RuntimeError, match="mean must be contiguous, 8 numbers, got 7"):
        compiled.batch_norm_activation(x, *given[:2], given[2][:7], *given[3:], 1, 1e-5, 8, 0, 0)
    with pytest.raises(RuntimeError, match="columns must be the 8 channels and at most 64 more, got 7"):
        compiled.batch_norm_activation(x, *given, 1, 1e-5, 7, 0, 0)
    with pytest.raises(RuntimeError, match="6 rows are no images of 2 x 2"):
        compiled.batch_norm_activation(x, *given, 1, 1e-5, 8, 2, 2)
    with pytest.raises(RuntimeError, match="dy must be as large as x"):
        compiled.batch_norm_activation_backward(x[:5], x, *given, 1, 1e-5, True, 0, 0)
    with pytest.raises(RuntimeError, match="another dtype"):
        compiled.batch_norm_activation_backward(x.half(), x, *given, 1, 1e-5, True, 0, 0)
    with pytest.raises(RuntimeError, match="channels of x must be neighbours"):
        compiled.batch_statistics(numbers(6, 8).t())
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled.batch_statistics(x.int())
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        operation(x, given[0].cpu(), given[1], given[4])
