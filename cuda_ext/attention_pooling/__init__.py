"""Attention pooling: a trained context vector weighs the steps of a sequence, and their weighted sum is its vector.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, section 2.2:
u_t = tanh(W h_t + b), alpha_t = exp(u_t . u_w) / sum over t of exp(u_t . u_w), s = sum over t of alpha_t h_t.

The kernels are in kernels.cuh: each pass reads the states once and skips padding.

Shape legend: N sequences, T steps of the longest, M steps of all, D width of the states, A units of the projection.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_ext.library import kernel
from cuda_ext.operation import define, in_autocast, parameters_in_autocast

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Up to this width there are kernels, which keep an index of the real steps for the backward pass.
WIDEST_FOR_MATRIX_UNITS = 128
# The kernels are compiled for these widths.
WIDTHS = (64, 104, WIDEST_FOR_MATRIX_UNITS)


def attention_pooling(
    states: Tensor, lengths: Tensor, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor]:
    """Pool padded sequences: returns (pooled [N, D], weights [N, T]).

    - ``states``: [N, T, D], float64, float32, float16 or bfloat16.
    - ``lengths``: int32 or int64 [N]; taken as 0 below 0, as T above T. Of row n the first lengths[n] steps are real;
      the steps after them are never read and get a gradient of 0.
    - ``weight``, ``bias``, ``context``: the projection's weight [A, D] and bias [A], and the context vector [A], in the
      dtype of states, or all three in float32 beside states of half precision, to which the products round them.

    D and A up to 128 have kernels, if the GPU has the shared memory (library.SHARED_MEMORY); wider ones, and float64,
    are computed by PyTorch's operations.
    pooled has the dtype of states. weights are float32 (float64 for float64), sum to 1 over the real steps and are 0 at
    padding. A sequence of length 0 gives zeros. Both results have gradients with respect to states, weight, bias and
    context, but no second ones.
    Under autocast, states and parameters of another half precision are cast to autocast's dtype; float32 parameters
    stay as they are.
    Raises ValueError, naming what came, for anything else.

    >>> states, lengths = torch.arange(12.0).view(2, 3, 2), torch.tensor([3, 1])
    >>> weight, bias, context = torch.eye(2), torch.zeros(2), torch.zeros(2)
    >>> pooled, weights = attention_pooling(states, lengths, weight, bias, context)
    >>> pooled
    tensor([[2., 3.],
            [6., 7.]])
    >>> weights
    tensor([[0.3333, 0.3333, 0.3333],
            [1.0000, 0.0000, 0.0000]])
    """
    pooled, weights, _ = torch.ops.reread_kernels.attention_pooling(states, lengths, False, weight, bias, context)
    return pooled, weights


def attention_pooling_ragged(
    states: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor]:
    """Pool sequences that are stored one after the other: returns (pooled [N, D], weights [M]).

    - ``states``: [M, D]; sequence n is its rows offsets[n] to offsets[n + 1] - 1.
    - ``offsets``: int32 or int64 [N + 1], not decreasing, within 0 and M; steps of no sequence get weights and
      gradients of 0.

    All else as for ``attention_pooling``.

    >>> states, offsets = torch.arange(12.0).view(6, 2), torch.tensor([0, 4, 6])
    >>> weight, bias, context = torch.eye(2), torch.zeros(2), torch.zeros(2)
    >>> pooled, weights = attention_pooling_ragged(states, offsets, weight, bias, context)
    >>> pooled
    tensor([[ 3.,  4.],
            [ 9., 10.]])
    >>> weights
    tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.5000, 0.5000])
    """
    pooled, weights, _ = torch.ops.reread_kernels.attention_pooling(states, offsets, True, weight, bias, context)
    return pooled, weights


def reference(
    states: Tensor, bounds: Tensor, ragged: bool, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals ``models.layers.attention.Attention`` of these parameters, with softmax in float32 as under autocast.

    The third result is the kernels' index of real steps, which is empty on a CPU and zero here.
    """
    rows, owner, sequences = _rows(states, bounds, ragged)
    scores = torch.tanh(F.linear(rows, weight.to(rows.dtype), bias.to(rows.dtype))) @ context.to(rows.dtype)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if ragged:
        largest = _of_sequences("max", scores, bounds)
        powers = (scores - largest[owner]).exp()
        sums = _of_sequences("sum", powers, bounds)
        weights = (powers / sums[owner]).masked_fill(owner == sequences, 0)
        parts = weights.to(rows.dtype).unsqueeze(-1) * rows
        pooled = _of_sequences("sum", parts.to(weights.dtype), bounds)[:sequences].to(rows.dtype)
    else:
        weights = scores.masked_fill(~owner, torch.finfo(scores.dtype).min).softmax(dim=-1) * owner
        pooled = (weights.to(rows.dtype).unsqueeze(1) @ rows).squeeze(1)
    return pooled, weights, _index(states, weight, zero=True)


def reference_backward(
    gradient: Tensor,
    weights_gradient: Tensor | None,
    states: Tensor,
    bounds: Tensor,
    ragged: bool,
    weight: Tensor,
    bias: Tensor,
    context: Tensor,
    pooled: Tensor,
    weights: Tensor,
    index: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals what autograd makes of ``reference``: gradients of states, weight, bias and context."""
    rows, owner, _ = _rows(states, bounds, ragged)
    wide = weights.dtype
    u = torch.tanh(F.linear(rows, weight.to(rows.dtype), bias.to(rows.dtype)))
    if ragged:
        own = torch.cat([gradient, gradient.new_zeros(1, gradient.shape[-1])])[owner]
        of_weights = (rows * own).sum(-1, dtype=wide)
    else:
        own = gradient.unsqueeze(1)
        of_weights = (rows @ gradient.unsqueeze(-1)).squeeze(-1).to(wide)
    if weights_gradient is not None:
        of_weights = of_weights + weights_gradient.masked_fill(weights == 0, 0)
    # Softmax: each weight's gradient less their mean under the weights.
    if ragged:
        mean = _of_sequences("sum", weights * of_weights, bounds)[owner]
    else:
        mean = (weights * of_weights).sum(-1, keepdim=True)
    of_scores = (weights * (of_weights - mean)).to(rows.dtype)
    slopes = of_scores.unsqueeze(-1) * context.to(rows.dtype) * (1 - u * u)
    of_states = torch.addcmul(slopes @ weight.to(rows.dtype), weights.to(rows.dtype).unsqueeze(-1), own)
    slopes, u, of_scores = slopes.flatten(0, -2), u.flatten(0, -2), of_scores.flatten()
    return (
        of_states,
        (slopes.t() @ rows.flatten(0, -2)).to(weight.dtype),
        slopes.sum(0).to(weight.dtype),
        (u.t() @ of_scores).to(weight.dtype),
    )


def _rows(states: Tensor, bounds: Tensor, ragged: bool) -> tuple[Tensor, Tensor, int]:
    """States with zeros at what is not real, the number of sequences, and between the two what is real.

    That is, for ragged states, each row's sequence, N if it has none, and a mask [N, T] for padded ones.
    """
    if ragged:
        owner = torch.searchsorted(
            bounds, torch.arange(len(states), device=states.device, dtype=bounds.dtype), right=True
        )
        sequences = len(bounds) - 1
        owner = (owner - 1).masked_fill(owner == 0, sequences)
        return states.masked_fill((owner == sequences).unsqueeze(-1), 0), owner, sequences
    real = torch.arange(states.shape[1], device=states.device) < bounds.unsqueeze(-1)
    return states.masked_fill(~real.unsqueeze(-1), 0), real, len(states)


def _of_sequences(how: str, x: Tensor, offsets: Tensor) -> Tensor:
    """The sums or the largest of each sequence's rows of x [M, ...], and a row of zeros behind them.

    In the order of the rows, without atomic additions; unsafe, since checking the offsets would wait for the GPU.
    """
    reduced = x.new_zeros(len(offsets), *x.shape[1:])
    if len(offsets) > 1 and len(x):
        bounds = offsets.clamp(0, len(x))
        reduced[:-1] = torch.segment_reduce(x, how, offsets=bounds, unsafe=True)
    return reduced


def _has_kernel(states: Tensor, weight: Tensor) -> bool:
    return states.dtype != torch.float64 and max(weight.shape) <= WIDEST_FOR_MATRIX_UNITS


def _kernel(name: str, states: Tensor, weight: Tensor) -> Callable[..., Any] | None:
    """The compiled operation, or None where PyTorch's operations run.

    They do for float64, for wide states, and on GPUs with too little shared memory for this dtype and width.
    """
    if not _has_kernel(states, weight):
        kernel(name, states)
        return None
    widest = next(width for width in WIDTHS if max(weight.shape) <= width)
    dtype = "float32" if states.dtype == torch.float32 else "half precision"
    return kernel(name, states, f"attention_pooling of {dtype} to {widest} wide")


def _index(states: Tensor, weight: Tensor, zero: bool = False) -> Tensor:
    """Room for the kernels' index: where the real steps begin and end, and which they are."""
    used = states.is_cuda and _has_kernel(states, weight)
    size = 2 + states.shape[:-1].numel() if used else 0
    return (states.new_zeros if zero else states.new_empty)(size, dtype=torch.int32)


def check(states: Tensor, bounds: Tensor, ragged: bool, weight: Tensor, bias: Tensor, context: Tensor) -> None:
    """Refuse what the kernels do not take."""
    name = "attention_pooling_ragged" if ragged else "attention_pooling"
    tensors = {
        "states": states,
        "offsets" if ragged else "lengths": bounds,
        "weight": weight,
        "bias": bias,
        "context": context,
    }
    if len({tensor.device for tensor in tensors.values()}) > 1:
        came = ", ".join(f"{key} on {tensor.device}" for key, tensor in tensors.items())
        raise ValueError(f"{name} takes tensors on one device, got {came}")
    if states.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"{name} takes states of {known}, got {states.dtype}")
    half = states.dtype in (torch.float16, torch.bfloat16)
    dtypes = {weight.dtype, bias.dtype, context.dtype}
    if dtypes != {states.dtype} and not (half and dtypes == {torch.float32}):
        raise ValueError(
            f"{name} takes weight, bias and context of the dtype of states, or of float32 beside half precision, got "
            f"{weight.dtype}, {bias.dtype} and {context.dtype} beside {states.dtype}"
        )
    if bounds.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} takes lengths or offsets of int32 or int64, got {bounds.dtype}")
    shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in tensors.items())
    if states.dim() != (2 if ragged else 3) or any(tensor.dim() != 1 for tensor in (bounds, bias, context)):
        wanted = "[M, D] and offsets [N + 1]" if ragged else "[N, T, D] and lengths [N]"
        raise ValueError(f"{name} takes states {wanted}, weight [A, D], bias [A] and context [A], got {shapes}")
    if (
        weight.dim() != 2
        or (len(weight), states.shape[-1]) != (len(bias), weight.shape[1])
        or len(bias) != len(context)
    ):
        raise ValueError(f"{name} takes weight [A, D], bias [A] and context [A] of states [..., D], got {shapes}")
    if (len(bounds) < 1) if ragged else (len(bounds) != len(states)):
        raise ValueError(f"{name} takes one length per row, or an offset more than there are sequences, got {shapes}")
    if min(weight.shape) < 1:
        raise ValueError(f"{name} takes A and D of at least 1, got {shapes}")


def _run(
    states: Tensor, bounds: Tensor, ragged: bool, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    check(states, bounds, ragged, weight, bias, context)
    run = _kernel("attention_pooling", states, weight) or reference
    return run(states, bounds, ragged, weight, bias, context)


def _shape(
    states: Tensor, bounds: Tensor, ragged: bool, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    check(states, bounds, ragged, weight, bias, context)
    sequences = len(bounds) - 1 if ragged else len(states)
    wide = torch.float64 if states.dtype == torch.float64 else torch.float32
    return (
        states.new_empty(sequences, states.shape[-1]),
        states.new_empty(states.shape[:-1], dtype=wide),
        _index(states, weight),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    states, bounds, ragged, weight, bias, context = inputs
    pooled, weights, index = output
    ctx.ragged = ragged
    ctx.save_for_backward(states, bounds, weight, bias, context, pooled, weights, index)
    # Weights that nothing was made of get None for a gradient and not a tensor of zeros.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, weights_gradient: Tensor | None, _: None) -> tuple[Any, ...]:
    states, bounds, weight, bias, context, pooled, weights, index = ctx.saved_tensors
    if gradient is None:
        gradient = torch.zeros_like(pooled)
    of_states, of_weight, of_bias, of_context = torch.ops.reread_kernels.attention_pooling_backward(
        gradient, weights_gradient, states, bounds, ctx.ragged, weight, bias, context, pooled, weights, index
    )
    return of_states, None, None, of_weight, of_bias, of_context


def _run_backward(
    gradient: Tensor,
    weights_gradient: Tensor | None,
    states: Tensor,
    bounds: Tensor,
    ragged: bool,
    weight: Tensor,
    *others: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run = _kernel("attention_pooling_backward", states, weight) or reference_backward
    return run(gradient, weights_gradient, states, bounds, ragged, weight, *others)


def _shape_backward(
    gradient: Tensor,
    weights_gradient: Tensor | None,
    states: Tensor,
    bounds: Tensor,
    ragged: bool,
    weight: Tensor,
    bias: Tensor,
    context: Tensor,
    pooled: Tensor,
    weights: Tensor,
    index: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (states, weight, bias, context)
    )


def _no_second_gradient(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("attention_pooling has no second derivative: call its backward pass without create_graph=True")


def _cast(
    device: str, states: Tensor, bounds: Tensor, ragged: bool, weight: Tensor, bias: Tensor, context: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Autocast: states as a linear layer casts them; the kernels round float32 parameters themselves."""
    (states,) = in_autocast(device, states)
    parameters = parameters_in_autocast(states, weight, bias, context)
    return torch.ops.reread_kernels.attention_pooling(states, bounds, ragged, *parameters)


define(
    "attention_pooling(Tensor states, Tensor bounds, bool ragged, Tensor weight, Tensor bias, Tensor context)"
    " -> (Tensor, Tensor, Tensor)",
    _run,
    _shape,
    backward=_backward,
    setup_context=_setup_context,
    autocast=_cast,
)
define(
    "attention_pooling_backward(Tensor gradient, Tensor? weights_gradient, Tensor states, Tensor bounds, bool ragged, "
    "Tensor weight, Tensor bias, Tensor context, Tensor pooled, Tensor weights, Tensor index)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _shape_backward,
    backward=_no_second_gradient,
)
