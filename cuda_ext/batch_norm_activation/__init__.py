"""Batch norm and the activation behind it as one operation, f(weight (x - mean) / sqrt(variance + epsilon) + bias), in
training and in inference, with the parts that a dense block is made of.

The kernels are in batch_norm_activation.cu. They want channels-last, where the channels of a pixel are neighbours:
there a tensor is a matrix of rows, one a pixel, and channels, and so is a slice of its channels. The backward pass
keeps x alone; the normalised value and its activation are computed again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.grad
from torch import Tensor, nn

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ACTIVATIONS = ("none", "relu", "swish", "gelu")


def batch_norm_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    *,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    activation: str = "relu",
    beta: Tensor | None = None,
    pooled: bool = False,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the activation of the batch norm of ``x``, in its shape and dtype, with channels last in memory.

    - ``x``: [N, C, ...] of float64, float32, float16 or bfloat16; what is not channels-last (or a slice of the channels
      of such a tensor) is copied first.
    - ``weight``, ``bias``: [C].
    - ``running_mean``, ``running_variance``: [C], or None, which always takes the batch's.
    - ``training``: normalise by the batch's mean and variance, and move the running ones, which then follow
      ``nn.BatchNorm2d``: running + momentum (batch - running), the variance unbiased.
    - ``activation``: "none", "relu", "gelu", z times the normal distribution function of z, or "swish",
      z sigmoid(beta z).
    - ``beta``: a scalar tensor, which gets a gradient if it asks for one, or None, which is 1; only swish reads it.
    - ``pooled``: x is [N, C, H, W], and the result the average of each 2 x 2, [N, C, H // 2, W // 2], as
      ``nn.AvgPool2d(2)`` gives.
    - ``statistics``: the batch's mean and biased variance, if they are known: they are not computed again.

    The arithmetic is float32, float64 for float64. Under autocast x keeps its dtype, as in PyTorch's own.
    Raises ValueError, naming what came, for anything else.

    >>> x = torch.tensor([[1.0, 4.0], [3.0, 8.0]])
    >>> running_mean, running_variance = torch.zeros(2), torch.ones(2)
    >>> batch_norm_activation(x, torch.ones(2), torch.zeros(2), running_mean, running_variance, training=True)
    tensor([[0.0000, 0.0000],
            [1.0000, 1.0000]])
    >>> running_mean
    tensor([0.2000, 0.6000])
    """
    if not training and running_mean is not None and running_variance is not None:
        return normalise(x, weight, bias, running_mean, running_variance, beta, activation, epsilon, False, pooled)
    if (running_mean is None) != (running_variance is None):
        raise ValueError("batch_norm_activation takes a running mean and a running variance, or neither")
    rows = x.numel() // max(x.shape[1], 1) if x.ndim > 1 else 0
    if rows == 1:
        raise ValueError(f"batch norm takes more than one value per channel in training, got {tuple(x.shape)}")
    mean, variance = batch_statistics(x) if statistics is None else statistics
    y = normalise(x, weight, bias, mean, variance, beta, activation, epsilon, True, pooled)
    if training and rows and running_mean is not None and running_variance is not None:
        follow([running_mean], [running_variance], [mean], [variance], rows, momentum)
    return y


def normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    beta: Tensor | None,
    activation: str,
    epsilon: float,
    training: bool,
    pooled: bool = False,
) -> Tensor:
    """Batch norm by the given statistics, and the activation. ``training`` says that they are those of x itself, as
    ``batch_statistics`` gives them: then the gradient takes them as functions of x, and not as given numbers."""
    mean, variance, weight, bias = (_computed(x, tensor) for tensor in (mean, variance, weight, bias))
    beta = None if beta is None else _computed(x, beta)
    arguments = (weight, bias, mean, variance, beta, activation, epsilon, training, pooled)
    return torch.ops.reread_kernels.batch_norm_activation(x, *arguments)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [C] of each channel of x [N, C, ...], in float32 (float64 of float64); no gradient."""
    return torch.ops.reread_kernels.batch_statistics(x.detach())


@torch.no_grad()
def follow(
    running_means: list[Tensor],
    running_variances: list[Tensor],
    means: list[Tensor],
    variances: list[Tensor] | tuple[Tensor, ...],
    rows: int,
    momentum: float,
) -> None:
    """Move running statistics, several at once, towards those of a batch of ``rows`` values per channel."""
    variances = torch._foreach_mul(variances, rows / max(rows - 1, 1))
    running = [*running_means, *running_variances]
    batch = [new.to(old.dtype) for old, new in zip(running, [*means, *variances], strict=True)]
    torch._foreach_lerp_(running, batch, momentum)


def _computed_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _computed(x: Tensor, tensor: Tensor) -> Tensor:
    """In the dtype that is computed in."""
    return tensor.to(_computed_dtype(x))


def rows_of(x: Tensor) -> Tensor:
    """x [N, C, ...] as a matrix of rows and channels: a view where the channels are neighbours, else a copy."""
    rows = x.movedim(1, -1).flatten(0, -2)
    neighbours = rows.shape[1] <= 1 or rows.stride(1) == 1
    return rows if neighbours and rows.stride(0) >= rows.shape[1] else rows.contiguous()


def image_of(rows: Tensor, like: Tensor, pooled: bool = False) -> Tensor:
    """Rows and channels as [N, C, ...] again, of the N and ... of ``like``; the channels may be others."""
    return rows.unflatten(0, (like.shape[0], *_places(like, pooled))).movedim(-1, 1)


def _places(x: Tensor, pooled: bool) -> list[int]:
    """The result's ``...`` of x [N, C, ...]."""
    return [size // 2 if pooled else size for size in x.shape[2:]]


# What the kernels compute, in PyTorch, over matrices of rows and channels, named as in the library.


def activated(z: Tensor, beta: Tensor | None, activation: int) -> Tensor:
    """The activation of ``z``, by its number in ACTIVATIONS."""
    if ACTIVATIONS[activation] == "relu":
        return z.relu()
    if ACTIVATIONS[activation] == "swish":
        return z * torch.sigmoid(z if beta is None else beta * z)
    if ACTIVATIONS[activation] == "gelu":
        return nn.functional.gelu(z)
    return z


def activated_backward(dy: Tensor, z: Tensor, beta: Tensor | None, activation: int) -> tuple[Tensor, Tensor]:
    """Equals autograd's gradients of z and of beta [1] through ``activated``; the second is empty without beta."""
    to_beta = z.new_zeros(0 if beta is None else 1)
    if ACTIVATIONS[activation] == "relu":
        return torch.where(z <= 0, 0, dy), to_beta
    if ACTIVATIONS[activation] == "swish":
        gate = torch.sigmoid(z if beta is None else beta * z)
        rest = z * (1 - gate)
        if beta is not None:
            to_beta = (dy * z * gate * rest).sum().reshape(1)
        return dy * gate * (1 + (rest if beta is None else beta * rest)), to_beta
    if ACTIVATIONS[activation] == "gelu":
        return torch.ops.aten.gelu_backward(dy, z), to_beta
    return dy, to_beta


def reference_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Equals ``torch.var_mean(x, dim=0, correction=0)``, in float32 or float64."""
    if x.shape[0] == 0:
        return _computed(x, x.new_zeros(x.shape[1])), _computed(x, x.new_zeros(x.shape[1]))
    variance, mean = torch.var_mean(_computed(x, x), dim=0, correction=0)
    return mean, variance


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    beta: Tensor | None,
    activation: int,
    epsilon: float,
    columns: int,
    height: int = 0,
    width: int = 0,
) -> Tensor:
    """Equals the activation of ``F.batch_norm(x, mean, variance, weight, bias, False, 0, epsilon)``,
    with columns of zeros put to it; with a height and width, ``F.avg_pool2d(..., 2)`` of it."""
    z = activated((_computed(x, x) - mean) * (weight * (variance + epsilon).rsqrt()) + bias, beta, activation)
    if height:
        image = z.unflatten(0, (-1, height, width)).movedim(-1, 1)
        return rows_of(nn.functional.avg_pool2d(image, 2)).to(x.dtype)
    return nn.functional.pad(z.to(x.dtype), (0, columns - x.shape[1]))


def _reference_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    beta: Tensor | None,
    activation: int,
    epsilon: float,
    training: bool,
) -> tuple[Tensor, ...]:
    """s dz; the gradients of weight, bias and beta; slope and offset of the rest of dx (see the kernel)."""
    dz, centred = _computed(x, dy[:, : x.shape[1]]), _computed(x, x) - mean
    inverse = (variance + epsilon).rsqrt()
    z = centred * (weight * inverse) + bias
    dz, to_beta = activated_backward(dz, z, beta, activation)
    plain, product = dz.sum(dim=0), (dz * centred).sum(dim=0)
    share = -weight * inverse / x.shape[0] if training and x.shape[0] else torch.zeros_like(weight)
    return weight * inverse * dz, product * inverse, plain, to_beta, share * inverse.square() * product, share * plain


def reference_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, *others: Any, height: int = 0, width: int = 0
) -> tuple[Tensor, ...]:
    """Equals autograd's gradients of ``reference``, where training says so through the statistics too."""
    if height:
        quarter = dy.unflatten(0, (-1, height // 2, width // 2)) / 4
        spread = quarter.repeat_interleave(2, 1).repeat_interleave(2, 2)
        dy = nn.functional.pad(spread, (0, 0, 0, width % 2, 0, height % 2)).flatten(0, -2)
    given = _reference_gradients(dy, x, weight, bias, mean, *others)
    into, to_weight, to_bias, to_beta, slope, offset = given
    return (into + slope * (_computed(x, x) - mean) + offset).to(x.dtype), to_weight, to_bias, to_beta


def reference_add_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Equals ``reference_backward`` whose dx, but for slope (x - mean) + offset, is added to a gradient."""
    *given, gradient, slope, offset = arguments
    into, to_weight, to_bias, to_beta, to_slope, to_offset = _reference_gradients(*given)
    gradient.copy_(gradient + into)
    slope.add_(to_slope)
    offset.add_(to_offset)
    return to_weight, to_bias, to_beta


def reference_product(x: Tensor, w: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Equals ``reference(x) @ w.t()`` and, if asked for, ``reference_statistics`` of it, else two empty vectors."""
    *norm, statistics = given
    y = reference(x, *norm, w.shape[1]) @ w.t()  # type: ignore[call-arg]
    return y, *(reference_statistics(y) if statistics else (norm[0].new_empty(0), norm[0].new_empty(0)))


def reference_product_backward(
    dy: Tensor,
    y: Tensor | None,
    y_mean: Tensor | None,
    y_slope: Tensor | None,
    y_offset: Tensor | None,
    w: Tensor,
    x: Tensor,
    *given: Any,
) -> tuple[Tensor, ...]:
    """Return the gradients of w and of weight, bias and beta; add that of x as ``reference_add_backward`` does.

    With y, dy is without its part of slope and offset, as ``reference_centred_gradient`` has it.
    """
    if y is not None and y_mean is not None and y_slope is not None and y_offset is not None:
        dy = reference_centred_gradient(dy, y, y_mean, y_slope, y_offset, y.shape[1])
    to_w = _computed(x, dy).t() @ _computed(x, reference(x, *given[:7], x.shape[1]))  # type: ignore[call-arg]
    return to_w, *reference_add_backward(dy @ w, x, *given)


def reference_convolution(x: Tensor, filters: Tensor, *given: Any) -> None:
    """Write ``F.conv2d`` of the images ``reference(x)``, padded by 1, to y, as many outputs as y has columns.

    If asked for, also write ``reference_statistics`` of it. filters: [outputs, 3, 3, channels].
    """
    *norm, height, width, y, mean, variance, statistics = given
    images = _images(reference(x, *norm, x.shape[1]), height, width)  # type: ignore[call-arg]
    new = rows_of(nn.functional.conv2d(images, filters.movedim(-1, 1), padding=1))[:, : y.shape[1]]
    if statistics:
        reference_copy_with_statistics(new, y, mean, variance)
    else:
        y.copy_(new)


def reference_convolution_backward(dy: Tensor, filters: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Return the gradients of x but for slope (x - mean) + offset, the filters, weight, bias, beta; slope and offset.

    Of the filters as many outputs as the last argument says, in what is computed in.
    """
    *norm, training, height, width, outputs = given
    to = _images(dy, height, width)
    images = _images(reference(x, *norm, x.shape[1]), height, width)  # type: ignore[call-arg]
    to_activated = nn.grad.conv2d_input(images.shape, filters.movedim(-1, 1), to, padding=1)
    into, *others = _reference_gradients(rows_of(to_activated), x, *norm, training)  # type: ignore[call-arg]
    shape = (outputs, x.shape[1], 3, 3)
    to_filters = nn.grad.conv2d_weight(_computed(x, images), shape, _computed(x, to[:, :outputs]), padding=1)
    return into.to(x.dtype), to_filters.movedim(1, -1), *others


def _images(rows: Tensor, height: int, width: int) -> Tensor:
    return rows.unflatten(0, (-1, height, width)).movedim(-1, 1)


def reference_copy_with_statistics(x: Tensor, y: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Equals ``y.copy_(x)`` and ``reference_statistics(x)``."""
    y.copy_(x)
    for to, value in zip((mean, variance), reference_statistics(x), strict=True):
        to.copy_(value)


def reference_centred_gradient(
    gradient: Tensor, x: Tensor, mean: Tensor, slope: Tensor, offset: Tensor, columns: int
) -> Tensor:
    """Equals ``gradient + slope * (x - mean) + offset``, with columns of zeros put to it."""
    whole = (gradient + slope * (_computed(x, x) - mean) + offset).to(x.dtype)
    return nn.functional.pad(whole, (0, columns - x.shape[1]))


REFERENCES: dict[str, Callable[..., Any]] = {
    "batch_statistics": reference_statistics,
    "copy_with_statistics": reference_copy_with_statistics,
    "batch_norm_activation": reference,
    "batch_norm_activation_backward": reference_backward,
    "batch_norm_activation_add_backward": reference_add_backward,
    "centred_gradient": reference_centred_gradient,
    "dense_product": reference_product,
    "dense_product_backward": reference_product_backward,
    "dense_convolution": reference_convolution,
    "dense_convolution_backward": reference_convolution_backward,
}


def part(name: str, x: Tensor) -> Callable[..., Any]:
    """The kernel ``name`` of this folder for tensors like ``x``, or its reference, over rows and channels.

    What a network's own ``torch.autograd.Function`` is written with; it checks nothing that the host code does not.
    """
    return kernel(name, x) or REFERENCES[name]


def check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    beta: Tensor | None,
    activation: str,
    epsilon: float,
    training: bool,
    pooled: bool,
) -> None:
    """Refuse what the kernels do not take."""
    _check_input(x)
    for name, tensor in {"weight": weight, "bias": bias, "mean": mean, "variance": variance}.items():
        if tensor.shape != x.shape[1:2]:
            raise ValueError(
                f"batch_norm_activation takes {name} of shape {tuple(x.shape[1:2])}, got {tuple(tensor.shape)}"
            )
    if beta is not None and beta.shape != ():
        raise ValueError(f"batch_norm_activation takes a scalar beta, got shape {tuple(beta.shape)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"batch_norm_activation takes an activation of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if pooled and (x.ndim != 4 or min(x.shape[2:]) < 2):
        raise ValueError(f"batch_norm_activation pools x of [N, C, H, W] of 2 x 2 or more, got {tuple(x.shape)}")
    wanted = _computed_dtype(x)
    for tensor in (weight, bias, mean, variance, *([] if beta is None else [beta])):
        if tensor.device != x.device:
            raise ValueError(f"batch_norm_activation takes tensors on one device, got {x.device} and {tensor.device}")
        if tensor.dtype != wanted:
            raise ValueError(f"batch_norm_activation computes {x.dtype} in {wanted}, got a vector of {tensor.dtype}")


def _check_input(x: Tensor) -> None:
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"batch_norm_activation takes x of {known}, got {x.dtype}")
    if x.ndim < 2 or x.shape[1] == 0:
        raise ValueError(f"batch_norm_activation takes x of shape [N, C, ...] with channels, got {tuple(x.shape)}")
    if x.layout != torch.strided:
        raise ValueError(f"batch_norm_activation takes strided tensors, got layout {x.layout}")


def _last(x: Tensor, places: Sequence[int]) -> Tensor:
    """An empty tensor [N, C, *places] with channels last in memory."""
    return x.new_empty((x.shape[0], *places, x.shape[1])).movedim(-1, 1)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    _check_input(x)
    return part("batch_statistics", x)(rows_of(x))


def _statistics_shape(x: Tensor) -> tuple[Tensor, Tensor]:
    _check_input(x)
    mean = x.new_empty(x.shape[1], dtype=_computed_dtype(x))
    return mean, torch.empty_like(mean)


def _forward(x: Tensor, *given: Any) -> Tensor:
    check(x, *given)
    *vectors, beta, activation, epsilon, _, pooled = given
    vectors = [vector.contiguous() for vector in vectors]
    run, number = part("batch_norm_activation", x), ACTIVATIONS.index(activation)
    return image_of(run(rows_of(x), *vectors, beta, number, epsilon, x.shape[1], *_sides(x, pooled)), x, pooled)


def _forward_shape(x: Tensor, *given: Any) -> Tensor:
    check(x, *given)
    return _last(x, _places(x, given[-1]))


def _backward(dy: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check(x, *given)
    *vectors, beta, activation, epsilon, training, pooled = given
    shape = (*x.shape[:2], *_places(x, pooled))
    if dy.shape != shape or dy.dtype != x.dtype:
        raise ValueError(
            f"batch_norm_activation takes dy as y is, {shape} of {x.dtype}, got {tuple(dy.shape)} of {dy.dtype}"
        )
    vectors = [vector.contiguous() for vector in vectors]
    run, number = part("batch_norm_activation_backward", x), ACTIVATIONS.index(activation)
    height, width = _sides(x, pooled)
    dx, *gradients = run(rows_of(dy), rows_of(x), *vectors, beta, number, epsilon, training, height=height, width=width)
    return image_of(dx, x), *gradients


def _sides(x: Tensor, pooled: bool) -> tuple[int, int]:
    return (x.shape[2], x.shape[3]) if pooled else (0, 0)


def _backward_shape(dy: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check(x, *given)
    weight, bias, beta = given[0], given[1], given[4]
    return (
        _last(x, x.shape[2:]),
        torch.empty_like(weight),
        torch.empty_like(bias),
        weight.new_empty(int(beta is not None)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError("batch_norm_activation has no second derivative: leave out create_graph")
    saved = ctx.saved_tensors  # read once: activation checkpointing refuses a second time
    dx, to_weight, to_bias, to_beta = torch.ops.reread_kernels.batch_norm_activation_backward(dy, *saved, *ctx.options)
    to_beta = None if saved[5] is None else to_beta.reshape(())
    return dx, to_weight, to_bias, None, None, to_beta, None, None, None, None


_GIVEN = (
    "Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor? beta, str activation, float epsilon, "
    "bool training, bool pooled"
)
define("batch_statistics(Tensor x) -> (Tensor, Tensor)", _statistics, _statistics_shape)
define(
    f"batch_norm_activation_backward(Tensor dy, Tensor x, {_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_shape,
)
define(
    f"batch_norm_activation(Tensor x, {_GIVEN}) -> Tensor",
    _forward,
    _forward_shape,
    backward=_differentiate,
    setup_context=_save,
)
