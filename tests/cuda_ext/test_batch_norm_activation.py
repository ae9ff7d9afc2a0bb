"""Batch norm with its activation on the CPU: the reference behind the operation, its gradients, what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from cuda_ext.batch_norm_activation import ACTIVATIONS, batch_norm_activation

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
SHAPES = [(4, 3), (2, 5, 3, 4), (3, 1, 2), (2, 4, 3, 2, 2), (1, 7, 2, 1)]


def numbers(*shape, dtype=torch.float64, seed=0, low=None):
    generator = torch.Generator().manual_seed(seed)
    if low is not None:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + low).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def vectors(channels, dtype=torch.float64):
    """weight, bias, running mean, running variance."""
    return [
        numbers(channels, dtype=dtype, seed=1, low=0.5),
        numbers(channels, dtype=dtype, seed=2),
        numbers(channels, dtype=dtype, seed=3),
        numbers(channels, dtype=dtype, seed=4, low=0.5),
    ]


def plain(x, weight, bias, mean, variance, training, activation, beta=None, pooled=False):
    if pooled:
        return functional.avg_pool2d(plain(x, weight, bias, mean, variance, training, activation, beta), 2)
    z = functional.batch_norm(x, mean, variance, weight, bias, training, 0.1, 1e-5)
    if activation == "swish":
        return z * torch.sigmoid(z if beta is None else beta * z)
    return {"none": lambda z: z, "relu": functional.relu, "gelu": functional.gelu}[activation](z)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_batch_norm_and_the_activation_and_moves_the_running_statistics(shape, training, activation):
    x = numbers(*shape)
    weight, bias, mean, variance = vectors(shape[1])
    kept = mean.clone(), variance.clone()
    expected = plain(x, weight, bias, mean, variance, training, activation)
    result = batch_norm_activation(x, weight, bias, *kept, training=training, activation=activation)
    torch.testing.assert_close(result, expected)
    assert result.movedim(1, -1).is_contiguous()
    torch.testing.assert_close(kept, (mean, variance))


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 4, 5, 3), (3, 2, 2, 2)])
def test_pooled_it_is_the_average_of_each_2_x_2(shape):
    x = numbers(*shape)
    weight, bias, mean, variance = vectors(shape[1])
    options = {"training": True, "activation": "swish", "pooled": True}
    expected = plain(x, weight, bias, None, None, True, "swish", pooled=True)
    torch.testing.assert_close(batch_norm_activation(x, weight, bias, mean, variance, **options), expected)
    known = fused.batch_statistics(x)
    torch.testing.assert_close(
        batch_norm_activation(x, weight, bias, None, None, statistics=known, **options), expected
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x = numbers(8, 6, 5, 5, dtype=dtype)
    weight, bias, mean, variance = vectors(6, torch.float32)
    result = batch_norm_activation(x, weight, bias, mean, variance, training=True, activation="swish")
    assert result.dtype == dtype
    expected = plain(x.double(), weight.double(), bias.double(), None, None, True, "swish")
    assert (result.double() - expected).norm() <= torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_gradients_match_finite_differences(training, activation):
    weight, bias, mean, variance = vectors(3)
    beta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True) if activation == "swish" else None

    def run(x, weight, bias, beta, pooled=False):
        return batch_norm_activation(
            x, weight, bias, mean.clone(), variance.clone(),
            training=training, activation=activation, beta=beta, pooled=pooled,
        )  # fmt: skip

    assert torch.autograd.gradcheck(run, (numbers(3, 3, 2, 1).requires_grad_(), weight.requires_grad_(), bias, beta))
    assert torch.autograd.gradcheck(run, (numbers(4, 3), weight, bias.requires_grad_(), beta))
    assert torch.autograd.gradcheck(run, (numbers(2, 3, 3, 2).requires_grad_(), weight, bias, beta, True))


def test_beta_without_a_gradient_gets_none():
    weight, bias, mean, variance = vectors(3)
    x = numbers(4, 3).requires_grad_()
    batch_norm_activation(
        x, weight, bias, mean, variance, training=True, activation="swish", beta=torch.tensor(2.0).double()
    ).sum().backward()
    assert x.grad is not None


def test_activation_checkpointing_gives_the_same_gradients():
    x, weight, bias = (tensor.requires_grad_() for tensor in (torch.randn(4, 3, 2, 2), torch.rand(3), torch.rand(3)))

    def run(x):
        return batch_norm_activation(x, weight, bias, None, None, training=True, activation="swish")

    results = [run(x), torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)]
    of_plain, of_checkpoint = (torch.autograd.grad(y.square().sum(), (x, weight, bias)) for y in results)
    torch.testing.assert_close(of_plain, of_checkpoint, rtol=0, atol=0)


def test_without_running_statistics_it_always_takes_the_batch_s():
    x = numbers(4, 3, 2)
    weight, bias, _, _ = vectors(3)
    result = batch_norm_activation(x, weight, bias, None, None, training=False)
    torch.testing.assert_close(result, plain(x, weight, bias, None, None, True, "relu"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_operations_keep_pytorch_s_rules(dtype):
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    given = [tensor.requires_grad_() for tensor in vectors(4, computed)[:2]] + vectors(4, computed)[2:]
    beta = torch.ones((), dtype=computed, requires_grad=True)
    x = numbers(2, 8, 3, 2, dtype=dtype)[:, ::2]
    torch.library.opcheck(torch.ops.reread_kernels.batch_statistics, (x,))
    for options in ((beta, "swish", 1e-5, True, False), (None, "relu", 1e-5, False, True)):
        arguments = (x.requires_grad_(), *given, *options)
        y = torch.ops.reread_kernels.batch_norm_activation(*arguments).detach()
        detached = [item.detach() if isinstance(item, torch.Tensor) else item for item in arguments]
        torch.library.opcheck(torch.ops.reread_kernels.batch_norm_activation, arguments)
        torch.library.opcheck(torch.ops.reread_kernels.batch_norm_activation_backward, (y, *detached))


def test_empty_batches_give_empty_results_and_leave_the_running_statistics():
    weight, bias, mean, variance = vectors(3)
    kept = mean.clone(), variance.clone()
    x = numbers(0, 3, 2, 2).requires_grad_()
    result = batch_norm_activation(x, weight.requires_grad_(), bias, mean, variance, training=True)
    assert result.shape == (0, 3, 2, 2)
    result.sum().backward()
    assert x.grad.shape == x.shape and not weight.grad.any()
    assert torch.equal(mean, kept[0]) and torch.equal(variance, kept[1])


def test_autocast_leaves_the_dtype_of_x():
    weight, bias, mean, variance = vectors(3, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = numbers(4, 3, dtype=dtype)
            assert batch_norm_activation(x, weight, bias, mean, variance, training=True).dtype == dtype


def test_it_equals_the_module_over_several_batches():
    norm = nn.BatchNorm2d(5).double()
    mean, variance = torch.zeros(5).double(), torch.ones(5).double()
    for seed in range(3):
        x = numbers(4, 5, 3, 3, seed=seed)
        result = batch_norm_activation(
            x, norm.weight, norm.bias, mean, variance, training=True, momentum=norm.momentum, activation="none"
        )
        torch.testing.assert_close(result, norm(x))
    torch.testing.assert_close((mean, variance), (norm.running_mean, norm.running_var))


def test_the_parts_of_a_dense_block_add_up_to_the_backward_pass():
    """Two norms that read one x: their gradients, added and finished once, are the sum of both backward passes."""
    x, dys = numbers(6, 4), (numbers(6, 4, seed=5), numbers(6, 8, seed=6))
    mean, variance = fused.reference_statistics(x)
    total, slope, offset = torch.zeros_like(x), torch.zeros_like(mean), torch.zeros_like(mean)
    expected = 0
    for dy, seed in zip(dys, (7, 8), strict=True):
        weight, bias = numbers(4, seed=seed, low=0.5), numbers(4, seed=seed + 2)
        given = (weight, bias, mean, variance, torch.tensor(1.2).double(), ACTIVATIONS.index("swish"), 1e-5, True)
        dx, *whole = fused.reference_backward(dy, x, *given)
        expected = expected + dx
        parts = fused.reference_add_backward(dy, x, *given, total, slope, offset)
        torch.testing.assert_close(list(parts), whole)
    finished = fused.reference_centred_gradient(total, x, mean, slope, offset, 8)
    torch.testing.assert_close(finished[:, :4], expected)
    assert not finished[:, 4:].any()


def test_what_it_does_not_take_is_refused_with_what_came():
    x, (weight, bias, mean, variance) = numbers(4, 3), vectors(3)

    def run(x, weight, **options):
        return batch_norm_activation(x, weight, bias, mean, variance, **{"training": True, **options})

    with pytest.raises(ValueError, match="more than one value per channel in training, got \\(1, 3\\)"):
        run(x[:1], weight)
    with pytest.raises(ValueError, match="weight of shape \\(3,\\), got \\(2,\\)"):
        run(x, weight[:2])
    with pytest.raises(ValueError, match="scalar beta, got shape \\(3,\\)"):
        run(x, weight, activation="swish", beta=weight)
    with pytest.raises(ValueError, match="a running mean and a running variance, or neither"):
        batch_norm_activation(x, weight, bias, mean, None, training=True)
    with pytest.raises(ValueError, match="activation of none, relu, swish, gelu, got 'tanh'"):
        run(x, weight, activation="tanh")
    with pytest.raises(ValueError, match="x of float64, .*, got torch.int64"):
        run(x.long(), weight)
    with pytest.raises(ValueError, match="shape \\[N, C, ...\\] with channels, got \\(3,\\)"):
        run(x[0], weight)
    with pytest.raises(ValueError, match="pools x of \\[N, C, H, W\\] of 2 x 2 or more, got \\(4, 3\\)"):
        run(x, weight, pooled=True)
    with pytest.raises(ValueError, match="one device, got meta and cpu"):
        run(x.to("meta"), weight)


@pytest.mark.parametrize("activation", fused.ACTIVATIONS)
def test_a_gradient_passes_what_is_no_number_as_in_pytorch(activation):
    z = torch.tensor([float("nan"), -float("inf"), -0.0, 0.0, 1.0], requires_grad=True)
    number = fused.ACTIVATIONS.index(activation)
    (expected,) = torch.autograd.grad(fused.activated(z, None, number), z, torch.ones_like(z))
    gradient, _ = fused.activated_backward(torch.ones_like(z), z.detach(), None, number)
    torch.testing.assert_close(gradient, expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(4, 1, 5, 5), (1, 1, 1, 3), (4, 3, 5, 5)])
def test_rows_of_one_number_everywhere_are_copied_apart(shape):
    rows = fused.rows_of(torch.ones(()).expand(shape))
    assert rows.stride(0) >= rows.shape[1] and torch.equal(rows, torch.ones_like(rows))


def test_a_second_derivative_is_refused():
    x, (weight, bias, mean, variance) = numbers(4, 3).requires_grad_(), vectors(3)
    result = batch_norm_activation(x, weight, bias, mean, variance, training=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(result.sum(), x, create_graph=True)
