"""A gated recurrent unit for short sequences of many lengths, one layer, in one direction or both.

``module.GRU`` is ``nn.GRU`` of several layers made of it.

The GRU is the one of Cho et al. 2014, arXiv 1406.1078, in PyTorch's form (``torch.nn.GRU``):

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)      reset gate
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)      update gate
    m = W_hn h + b_hn
    n = tanh(W_in x + b_in + r m)                   candidate; relu in place of tanh if ``rectified``
    h' = (1 - z) n + z h

Only real steps are read, computed and given gradients. Inside, every batch is ragged: the M real steps of all sequences
one after another. ``gru_ragged`` takes it so; ``gru`` takes a padded batch and its lengths, and the
padding, which may be NaN, is never read.

Shape legend: N sequences, T steps, M real steps, I inputs, H units a direction, d directions, P units padded to a
multiple of 8.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cuda_ext.branch import Branch, branch, current_branch
from cuda_ext.library import kernel
from cuda_ext.operation import define, in_autocast, parameters_in_autocast

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# The recurrent weights of one direction must fit in the registers of one block.
MOST_UNITS = 128
# What is kept of each unit and step for the backward pass, in this order: n, r, z, m and the state before the step.
CANDIDATE, RESET, UPDATE = range(3)
KEPT = 5


def gru(
    x: Tensor,
    lengths: Tensor | None,
    parameters: Sequence[Tensor],
    bidirectional: bool = False,
    rectified: bool = False,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [N, T, I] -> the states [N, T, d H], zero at padding, and the last state of each sequence [d, N, H].

    - ``lengths``: int32 or int64 [N], each from 0 to T (what is outside is clamped), on x's device; None where every
      step is real.
    - ``parameters``: w_ih [3 H, I], w_hh [3 H, H], b_ih [3 H], b_hh [3 H], and the same again of the backward
      direction, as ``nn.GRU`` orders them; of x's dtype, or float32 with an x of half precision, and then rounded where
      they multiply. H is at most 128.
    - ``rectified``: n is relu of its sum, not tanh. Nothing bounds the states then, and those above 65504 overflow
      float16.
    - ``initial``: the first states [d, N, H] of x's dtype, with a gradient; None for zeros.

    The last state is that of step lengths[n] - 1, or in the backward direction of step 0; of an empty sequence the
    first state.
    The sums are kept in float32 (float64 for float64). float32 is multiplied in three products of half precision: of
    float16, scaled, where inputs and gradients are multiplied with weights and with one another, which holds 22 bits of
    a number or 38 below the largest of those scaled with it; of bfloat16, 16 bits, from step to step. States and
    gradients err by 1e-6 to 2e-6 in norm. Under autocast x takes its dtype, and parameters of float32 stay.
    float64 runs the reference on a GPU too: it serves to check gradients. There is no second derivative.
    Raises ValueError, naming what came, for anything else.

    >>> w_ih, w_hh, bias = torch.ones(6, 1), torch.zeros(6, 2), torch.zeros(6)
    >>> x, lengths = torch.ones(2, 3, 1), torch.tensor([3, 1])
    >>> states, last = gru(x, lengths, [w_ih, w_hh, bias, bias])
    >>> states[:, :, 0]
    tensor([[0.2048, 0.3546, 0.4640],
            [0.2048, 0.0000, 0.0000]])
    >>> last[0, :, 0]
    tensor([0.4640, 0.2048])
    """
    if lengths is None:
        if x.ndim != 3:
            raise ValueError(f"gru takes x of three dimensions [N, T, I], got {tuple(x.shape)}")
        lengths = torch.full((x.shape[0],), x.shape[1], dtype=torch.int32, device=x.device)
    return _apply("gru", 3, x, lengths, parameters, bidirectional, rectified, initial)[:2]


def gru_ragged(
    x: Tensor,
    offsets: Tensor,
    parameters: Sequence[Tensor],
    bidirectional: bool = False,
    rectified: bool = False,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [M, I], real steps alone -> their states [M, d H] and the last state of each sequence [d, N, H].

    - ``offsets``: int32 or int64 [N + 1], from 0 to at most M and never falling: sequence n is rows offsets[n] to
      offsets[n + 1]. Rows before offsets[0] and from offsets[N] on are of no sequence. They are not read, and their
      states and gradients are zero: a batch can keep its shape, as a CUDA graph wants, while its steps grow fewer.

    All else is as in ``gru``.

    >>> w_ih, w_hh, bias = torch.ones(6, 1), torch.zeros(6, 2), torch.zeros(6)
    >>> states, last = gru_ragged(torch.ones(4, 1), torch.tensor([0, 3, 4]), [w_ih, w_hh, bias, bias])
    >>> states[:, 0]
    tensor([0.2048, 0.3546, 0.4640, 0.2048])
    """
    return _apply("gru_ragged", 2, x, offsets, parameters, bidirectional, rectified, initial)[:2]


class Gates(NamedTuple):
    """Of each unit at each real step: [N, T, d H], zero at padding, or ragged [M, d H]."""

    update: Tensor
    reset: Tensor
    candidate: Tensor


def gates(
    x: Tensor, limits: Tensor, parameters: Sequence[Tensor], bidirectional: bool = False, rectified: bool = False
) -> Gates:
    """The gates and the candidate behind the states, for study; without gradients.

    - ``x``: [N, T, I] or [M, I].
    - ``limits``: the lengths of an x [N, T, I], or the offsets of an x [M, I].
    """
    outputs: Any
    with torch.no_grad():
        outputs = _apply("gates", x.ndim, x, limits, parameters, bidirectional, rectified, keep=True)
    states, _, kept, plan, source = outputs
    units = states.shape[-1] // kept.shape[1]
    by_gate = []
    row = torch.arange(len(kept), device=x.device)
    real = (row >= plan[-1, 1]) & (row < plan[-1, 2])
    for gate in (UPDATE, RESET, CANDIDATE):
        rows = kept[:, :, gate, :units].flatten(1).masked_fill(~real[:, None], 0)
        if x.ndim == 3:
            # After the real steps the source lists the padding.
            padded = torch.empty_like(rows)
            padded[source.long()] = rows
            rows = padded.view(states.shape)
        by_gate.append(rows)
    return Gates(*by_gate)


def _apply(
    name: str,
    dimensions: int,
    x: Tensor,
    limits: Tensor,
    parameters: Sequence[Tensor],
    bidirectional: bool,
    rectified: bool,
    initial: Tensor | None = None,
    keep: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if x.ndim != dimensions or dimensions not in (2, 3):
        wanted = {2: "two dimensions [M, I]", 3: "three dimensions [N, T, I]"}.get(
            dimensions, "two or three dimensions"
        )
        raise ValueError(f"{name} takes x of {wanted}, got {tuple(x.shape)}")
    if len(parameters) != 4 * (1 + bidirectional):
        raise ValueError(
            f"{name} takes four parameters a direction, {4 * (1 + bidirectional)} in all, got {len(parameters)}"
        )
    if keep is None:
        keep = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (x, initial, *parameters)
        )
    return torch.ops.reread_kernels.gru(
        x, limits, initial, keep, rectified, *parameters, *[None] * (8 - len(parameters))
    )


def check(x: Tensor, limits: Tensor, initial: Tensor | None, *given: Any) -> None:
    """Refuse what the kernel does not take. ``given``: the eight parameters, the last four None of one direction."""
    parameters = [tensor for tensor in given if tensor is not None]
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"gru takes x of {known}, got {x.dtype}")
    dtypes = {tensor.dtype for tensor in parameters}
    if dtypes != {x.dtype} and (dtypes != {torch.float32} or x.dtype == torch.float64):
        raise ValueError(
            f"gru takes parameters of x's dtype, or float32 with an x of half precision: got x of {x.dtype} and "
            f"parameters of {', '.join(sorted(map(str, dtypes)))}"
        )
    devices = {tensor.device for tensor in (x, limits, initial, *parameters) if tensor is not None}
    if len(devices) != 1:
        raise ValueError(f"gru takes all tensors on one device, got {', '.join(sorted(map(str, devices)))}")
    units, inputs = parameters[1].shape[-1], x.shape[-1]
    expected = [(3 * units, inputs), (3 * units, units), (3 * units,), (3 * units,)] * (len(parameters) // 4)
    if [tuple(tensor.shape) for tensor in parameters] != expected:
        raise ValueError(
            f"gru takes parameters of shapes [3 H, I], [3 H, H], [3 H], [3 H] a direction, with I = {inputs} as x has, "
            f"got {', '.join(str(tuple(tensor.shape)) for tensor in parameters)}"
        )
    if not 1 <= units <= MOST_UNITS or not inputs:
        raise ValueError(f"gru takes H from 1 to {MOST_UNITS}, got {units}, and at least one input, got {inputs}")
    if limits.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"gru takes lengths or offsets of int32 or int64, got {limits.dtype}")
    if x.ndim == 3 and limits.shape != x.shape[:1]:
        raise ValueError(f"gru takes one length a sequence, [{x.shape[0]}], got {tuple(limits.shape)}")
    if x.ndim == 2 and (limits.ndim != 1 or limits.numel() == 0):
        raise ValueError(f"gru_ragged takes offsets [N + 1], got {tuple(limits.shape)}")
    states = (len(parameters) // 4, _sequences(x, limits), units)
    if initial is not None and (initial.shape != states or initial.dtype != x.dtype):
        raise ValueError(
            f"gru takes first states [d, N, H] {states} of x's {x.dtype}, got {tuple(initial.shape)} of {initial.dtype}"
        )
    if math.prod(x.shape[:-1]) >= 2**31:
        raise ValueError(f"gru takes fewer than 2^31 steps, got {math.prod(x.shape[:-1])}")


def _sequences(x: Tensor, limits: Tensor) -> int:
    """N of lengths [N], or of offsets [N + 1] where x is ragged."""
    # A bool in place of the 1 is refused where shapes are symbols.
    return limits.shape[0] - 1 if x.ndim == 2 else limits.shape[0]


def _run(
    x: Tensor, limits: Tensor, initial: Tensor | None, keep: bool, rectified: bool, *given: Any
) -> tuple[Tensor, ...]:
    check(x, limits, initial, *given)
    run = reference if kernel("gru_forward", x) is None else _forward_on_gpu
    return run(x, limits, initial, keep, rectified, *given)


def _empty(x: Tensor, limits: Tensor, keep: bool, *given: Any) -> tuple[Tensor, ...]:
    """states, final, kept, plan and source, not filled."""
    directions, units = 1 + (given[4] is not None), given[1].shape[-1]
    sequences = _sequences(x, limits)
    rows = math.prod(x.shape[:-1])
    padded = -(-units // 8) * 8
    return (
        x.new_empty(*x.shape[:-1], directions * units),
        x.new_empty(directions, sequences, units),
        x.new_empty(rows if keep else 0, directions, KEPT, padded),
        limits.new_empty(sequences + 1, 4, dtype=torch.int32),
        limits.new_empty(rows if x.ndim == 3 else 0, dtype=torch.int32),
    )


def _shape(
    x: Tensor, limits: Tensor, initial: Tensor | None, keep: bool, rectified: bool, *given: Any
) -> tuple[Tensor, ...]:
    check(x, limits, initial, *given)
    return _empty(x, limits, keep, *given)


def _forward_on_gpu(
    x: Tensor, limits: Tensor, initial: Tensor | None, keep: bool, rectified: bool, *given: Any
) -> tuple[Tensor, ...]:
    kernels = torch.ops.reread_kernels_compiled
    states, final, kept, _, _ = _empty(x, limits, keep, *given)
    directions, sequences, _units = final.shape
    rows = math.prod(x.shape[:-1])
    steps = x.shape[1] if x.ndim == 3 else -1
    plan, source, weights, bias, recurrent = kernels.gru_prepare(x, limits, rows, steps, *given, sequences, False)
    if x.ndim == 2:
        kernels.gru_clear(plan, states)
    sums = kept if keep else x.new_empty(rows, directions, 3, kept.shape[3])
    x = _to_four(x)
    kernels.gru_project(x, plan, source, weights, bias, sums)
    initial = None if initial is None else initial.contiguous()
    kernels.gru_forward(sums, plan, recurrent, bias, initial, states, final, steps, keep, rectified)
    return states, final, kept, plan, source


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, limits, _, _, ctx.rectified, *given = inputs
    _, _, kept, plan, source = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, plan, source)
    beside = current_branch() if x.is_cuda else None
    ctx.beside = None if beside is None or kernel("gru_backward", x) is None else beside
    packed = ctx.beside(lambda: _packed_for_backward(x, plan, *given)) if ctx.beside else (None, None)
    ctx.save_for_backward(x, limits, kept, plan, source, *packed, *given)


def _backward(ctx: Any, of_states: Tensor | None, of_final: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    x, limits, kept, plan, source, weights, recurrent, *given = ctx.saved_tensors
    nothing = (None,) * (5 + len(given))
    if of_states is None and of_final is None:
        return nothing
    wanted = ctx.needs_input_grad
    # A derivative of the gradients is refused by the operation.
    if ctx.beside and not torch.is_grad_enabled():
        ctx.beside.await_prepared()
        gradients = _backward_on_gpu(
            ctx.beside, of_states, of_final, x, kept, plan, source, weights, recurrent, wanted[0], wanted[2],
            ctx.rectified, *given,
        )  # fmt: skip
    else:
        gradients = torch.ops.reread_kernels.gru_backward(
            of_states, of_final, x, limits, kept, plan, source, wanted[0], wanted[2], ctx.rectified, *given
        )
    every = (gradients[0], None, gradients[1], None, None, *gradients[2:], *(None,) * (10 - len(gradients)))
    return tuple(gradient if want else None for gradient, want in zip(every, wanted, strict=True))


def _run_backward(
    of_states: Tensor | None,
    of_final: Tensor | None,
    x: Tensor,
    limits: Tensor,
    kept: Tensor,
    plan: Tensor,
    source: Tensor,
    wants_x: bool,
    wants_initial: bool,
    rectified: bool,
    *given: Any,
) -> list[Tensor]:
    if len(kept) != math.prod(x.shape[:-1]):
        raise ValueError("gru has a backward pass only if it ran with keep=True: the gates were not kept")
    if kernel("gru_backward", x) is None:
        return reference_backward(of_states, of_final, x, limits, kept, wants_x, wants_initial, rectified, *given)
    packed = _packed_for_backward(x, plan, *given)
    with branch(x.device) as beside:
        return _backward_on_gpu(
            beside, of_states, of_final, x, kept, plan, source, *packed, wants_x, wants_initial, rectified, *given
        )


def _packed_for_backward(x: Tensor, plan: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """Input weights and recurrent weights as the backward pass multiplies them."""
    prepare = torch.ops.reread_kernels_compiled.gru_prepare
    _, _, weights, _, recurrent = prepare(x, None, 0, 0, *given, len(plan) - 1, True)
    return weights, recurrent


def _backward_on_gpu(
    beside: Branch,
    of_states: Tensor | None,
    of_final: Tensor | None,
    x: Tensor,
    kept: Tensor,
    plan: Tensor,
    source: Tensor,
    weights: Tensor,
    recurrent: Tensor,
    wants_x: bool,
    wants_initial: bool,
    rectified: bool,
    *given: Any,
) -> list[Any]:
    """The gradients of x, of the first states and of the parameters; the last as ``beside`` hands them to autograd."""
    kernels = torch.ops.reread_kernels_compiled
    inputs = x.shape[-1]
    x = _to_four(x)
    of_states = None if of_states is None else of_states.contiguous()
    of_final = None if of_final is None else of_final.contiguous()
    units = given[1].shape[1]
    gradients = torch.empty_like(kept[:, :, 1:], memory_format=torch.contiguous_format)
    of_initial = x.new_empty(kept.shape[1], len(plan) - 1, units) if wants_initial else None
    kernels.gru_backward(kept, plan, recurrent, of_states, of_final, units, rectified, gradients, of_initial)
    of_parameters = beside(lambda: kernels.gru_correlate(x, plan, source, gradients, kept, given[0]))
    of_x = torch.empty_like(x) if wants_x else x.new_empty(0)
    if wants_x:
        kernels.gru_project_back(gradients, plan, source, weights, of_x)
        of_x = of_x[..., :inputs].contiguous()
    of_initial = x.new_empty(0) if of_initial is None else of_initial
    parameters = [tensor for tensor in given if tensor is not None]
    return [of_x, of_initial, *beside.gradients(parameters, of_parameters)]


def _to_four(x: Tensor) -> Tensor:
    """x as the kernels read it: contiguous, from a multiple of 16 bytes, of 4 inputs or a multiple."""
    if x.shape[-1] % 4:
        return nn.functional.pad(x, (0, -x.shape[-1] % 4))
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _shape_backward(of_states: Tensor | None, of_final: Tensor | None, x: Tensor, *others: Any) -> list[Tensor]:
    limits, kept, _, _, wants_x, wants_initial, _, *given = others
    states = (kept.shape[1], _sequences(x, limits), given[1].shape[1])
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format) if wants_x else x.new_empty(0),
        x.new_empty(states if wants_initial else 0),
        *(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in given if tensor is not None),
    ]


class _InStep(NamedTuple):
    """How the reference goes: step after step, at each the sequences that still run, the longest first.

    counts: how many sequences run at each step. rows, compact [d, M]: the place of each of these steps in x and among
    the real steps. order [N]: the sequences by falling length. plan, source: as the kernels make them.
    """

    counts: list[int]
    rows: Tensor
    compact: Tensor
    order: Tensor
    plan: Tensor
    source: Tensor


def _in_step(x: Tensor, limits: Tensor, directions: int) -> _InStep:
    if x.ndim == 3:
        lengths = limits.long().clamp(0, x.shape[1])
        first = lengths.cumsum(0) - lengths
        start = torch.arange(len(limits), device=x.device) * x.shape[1]
        ends = limits.new_zeros(2)
        ends[1] = lengths.sum()
    else:
        bounds = limits.long().clamp(0, x.shape[0])
        first = start = bounds[:-1]
        lengths = (bounds[1:] - first).clamp(min=0)
        ends = torch.stack([bounds[0], bounds[-1]])
    order = lengths.argsort(descending=True, stable=True)
    first, start, lengths = first[order], start[order], lengths[order]
    running = torch.arange(int(lengths[0]) if len(lengths) else 0, device=x.device)[:, None] < lengths
    step, sequence = running.nonzero().unbind(1)
    in_time = torch.stack([step, lengths[sequence] - 1 - step][:directions])
    plan = torch.stack([order, first, lengths, start], 1)
    plan = torch.cat([plan, nn.functional.pad(ends, (1, 1))[None]]).int()
    source = plan.new_empty(0)
    if x.ndim == 3:
        real = torch.arange(x.shape[1], device=x.device) < limits[:, None]
        source = torch.cat([mask.flatten().nonzero().flatten() for mask in (real, ~real)]).int()
    return _InStep(running.sum(1).tolist(), start[sequence] + in_time, first[sequence] + in_time, order, plan, source)


def _stacked(given: Sequence[Tensor | None], dtype: torch.dtype, narrow: torch.dtype) -> list[Tensor]:
    """w_ih [d, 3 H, I], w_hh [d, 3 H, H], b_ih, b_hh [d, 1, 3 H], in ``dtype``; weights as rounded to ``narrow``."""
    w_ih, w_hh, b_ih, b_hh = (
        torch.stack([tensor for tensor in (given[i], given[i + 4]) if tensor is not None]) for i in range(4)
    )
    return [w_ih.to(narrow).to(dtype), w_hh.to(narrow).to(dtype), b_ih.to(dtype)[:, None], b_hh.to(dtype)[:, None]]


def reference(
    x: Tensor, limits: Tensor, initial: Tensor | None, keep: bool, rectified: bool, *given: Any
) -> tuple[Tensor, ...]:
    """Equals ``torch.nn.GRU`` on a packed sequence (with relu for its tanh if ``rectified``); what the backward pass
    needs of each step is kept."""
    states, final, kept, _, _ = _empty(x, limits, keep, *given)
    directions, sequences, units = final.shape
    dtype = torch.promote_types(torch.float32, x.dtype)
    w_ih, w_hh, b_ih, b_hh = _stacked(given, dtype, x.dtype)
    at = _in_step(x, limits, directions)
    sums = torch.baddbmm(b_ih, x.reshape(-1, x.shape[-1])[at.rows].to(dtype), w_ih.mT)
    h = x.new_zeros(directions, sequences, units, dtype=dtype) if initial is None else initial[:, at.order].to(dtype)
    squash = torch.relu if rectified else torch.tanh
    of_steps, gates_of_steps, done = [], [], 0
    for count in at.counts:
        of_input, before = sums[:, done : done + count], h[:, :count]
        of_state = torch.baddbmm(b_hh, before, w_hh.mT)
        r, z = torch.sigmoid(of_input[..., : 2 * units] + of_state[..., : 2 * units]).chunk(2, dim=-1)
        m = of_state[..., 2 * units :]
        n = squash(torch.addcmul(of_input[..., 2 * units :], r, m))
        after = torch.lerp(n, before, z)
        of_steps.append(after)
        if keep:
            gates_of_steps.append(torch.stack([n, r, z, m, before], dim=2))
        h = after if count == sequences else torch.cat([after, h[:, count:]], dim=1)
        done += count
    final[:, at.order] = h.to(x.dtype)
    states.zero_()
    kept.zero_()
    for direction in range(directions if done else 0):
        of_direction = states.view(-1, directions, units)[:, direction]
        of_direction[at.rows[direction]] = torch.cat(of_steps, dim=1)[direction].to(x.dtype)
        if keep:
            kept[at.compact[direction], direction, :, :units] = torch.cat(gates_of_steps, dim=1)[direction].to(x.dtype)
    return states, final, kept, at.plan, at.source


def reference_backward(
    of_states: Tensor | None,
    of_final: Tensor | None,
    x: Tensor,
    limits: Tensor,
    kept: Tensor,
    wants_x: bool,
    wants_initial: bool,
    rectified: bool,
    *given: Any,
) -> list[Tensor]:
    """Equals autograd through what ``reference`` equals."""
    directions, units, inputs = kept.shape[1], given[1].shape[1], x.shape[-1]
    dtype = torch.promote_types(torch.float32, x.dtype)
    w_ih, w_hh, _, _ = _stacked(given, dtype, x.dtype)
    at = _in_step(x, limits, directions)
    both = range(directions)

    n, r, z, m, before = torch.stack([kept[at.compact[d], d, :, :units] for d in both]).to(dtype).unbind(2)
    above = None
    if of_states is not None:
        of_rows = of_states.reshape(-1, directions, units)
        above = torch.stack([of_rows[at.rows[d], d] for d in both]).to(dtype)
    carried = w_hh.new_zeros(directions, len(at.order), units) if of_final is None else of_final[:, at.order].to(dtype)
    # What each sum's gradient is, over that of the state (of m: over that of n's sum).
    of_n = (1 - z) * ((n > 0) if rectified else 1 - n * n)
    of_r = of_n * m * r * (1 - r)
    of_z = (before - n) * z * (1 - z)
    of_m = of_n * r
    factors = torch.stack([of_r, of_z, of_m, of_n], dim=2)
    of_sums = torch.empty_like(factors)
    done = sum(at.counts)
    for count in reversed(at.counts):
        now = slice(done - count, done)
        state = carried[:, :count] if above is None else carried[:, :count] + above[:, now]
        torch.mul(factors[:, now], state.unsqueeze(2), out=of_sums[:, now])
        passed = torch.baddbmm(state * z[:, now], of_sums[:, now, :3].flatten(2), w_hh)
        carried = passed if count == carried.shape[1] else torch.cat([passed, carried[:, count:]], dim=1)
        done -= count
    of_state = of_sums[:, :, :3].flatten(2)
    of_input = of_sums[:, :, [0, 1, 3]].flatten(2)
    flat = x.reshape(-1, inputs)
    of_w_ih = of_input.mT @ flat[at.rows].to(dtype)
    of_w_hh = of_state.mT @ before
    gradients = []
    for d in both:
        gradients += [of_w_ih[d], of_w_hh[d], of_input[d].sum(0), of_state[d].sum(0)]
    of_x = x.new_zeros(0)
    if wants_x:
        of_x = torch.zeros_like(flat, dtype=dtype)
        for d in both:
            of_x[at.rows[d]] += of_input[d] @ w_ih[d]
        of_x = of_x.to(x.dtype).view(x.shape)
    of_initial = x.new_zeros(0)
    if wants_initial:
        of_initial = torch.empty_like(carried, dtype=x.dtype)
        of_initial[:, at.order] = carried.to(x.dtype)
    return [of_x, of_initial, *(gradient.to(given[0].dtype) for gradient in gradients)]


def _cast(
    device: str, x: Tensor, limits: Tensor, initial: Tensor | None, keep: bool, rectified: bool, *given: Any
) -> tuple[Tensor, ...]:
    """Autocast: x and the first states take its dtype, and so do parameters of other dtypes than float32."""
    x, initial = in_autocast(device, x, initial)
    return torch.ops.reread_kernels.gru(x, limits, initial, keep, rectified, *parameters_in_autocast(x, *given))


define(
    "gru(Tensor x, Tensor limits, Tensor? initial, bool keep, bool rectified, "
    "Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, "
    "Tensor? w_ih_reverse, Tensor? w_hh_reverse, Tensor? b_ih_reverse, Tensor? b_hh_reverse) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run,
    _shape,
    backward=_backward,
    setup_context=_setup_context,
    autocast=_cast,
)
define(
    "gru_backward(Tensor? of_states, Tensor? of_final, Tensor x, Tensor limits, Tensor kept, "
    "Tensor plan, Tensor source, bool wants_x, bool wants_initial, bool rectified, "
    "Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, "
    "Tensor? w_ih_reverse, Tensor? w_hh_reverse, Tensor? b_ih_reverse, Tensor? b_hh_reverse) -> Tensor[]",
    _run_backward,
    _shape_backward,
)

from cuda_ext.gru import second_derivative  # noqa: E402, F401
