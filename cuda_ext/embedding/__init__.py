"""Rows of a table by their numbers, as ``nn.Embedding``, rounded while they are copied.

Under autocast PyTorch copies the rows in float32 and rounds them in a second pass; their gradient is widened before it
is summed. Here the rows are copied once, in the dtype that autocast wants, and the gradient of the table is summed from
that of the rows in float32, in an order that repeats.

Shape legend: V rows of the table, E numbers a row, M tokens.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.branch import current_branch
from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALF = (torch.float16, torch.bfloat16)
INDICES = (torch.int32, torch.int64)
NONE = -1


def embedding(table: Tensor, tokens: Tensor, padding: int | None = None) -> Tensor:
    """Return row ``tokens[...]`` of ``table`` for each token: [..., E], contiguous.

    - ``table``: [V, E] of float64, float32, float16 or bfloat16.
    - ``tokens``: int32 or int64 of any shape, from 0 to V - 1; another stops the program, on a GPU as with
      ``nn.Embedding``.
    - ``padding``: a row, from 0 to V - 1, that gets no gradient; None or -1: none. ``nn.Embedding`` counts a negative
      row from the last: here -1 is no row, and a smaller one is refused.

    The result has the table's dtype; under autocast that of autocast, if the table is float32. The gradient of the
    table is in its own dtype, whole, summed in float32.
    Raises ValueError, naming what came, for anything else.

    >>> table = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    >>> y = embedding(table, torch.tensor([1, 0, 1]), padding=0)
    >>> y.detach()
    tensor([[1., 2.],
            [0., 0.],
            [1., 2.]])
    >>> y.sum().backward()
    >>> table.grad
    tensor([[0., 0.],
            [2., 2.]])
    """
    padding = NONE if padding is None else padding
    return torch.ops.reread_kernels.embedding(table, tokens, padding, table.dtype, _order(table, tokens, padding))


def _order(table: Tensor, tokens: Tensor, padding: int) -> Tensor | None:
    """The tokens by number, for the gradient of the table, where a second stream sorts them beside the forward pass."""
    beside = current_branch()
    if beside is None or not (table.is_cuda and table.requires_grad and torch.is_grad_enabled()):
        return None
    check(table, tokens, padding, table.dtype)
    return None if kernel("embedding_gradient", table) is None else beside(lambda: _sorted(tokens, len(table)))


def _sorted(tokens: Tensor, rows: int) -> Tensor:
    """int32 [2 M + 2 V]: the tokens by number, their places, and where each number begins and ends among them."""
    order: Tensor = torch.ops.reread_kernels_compiled.embedding_order(tokens.flatten().contiguous(), rows)
    return order


def reference(table: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Equals ``torch.nn.functional.embedding(tokens, table)`` in ``dtype``."""
    return functional.embedding(tokens, table).to(dtype)


def reference_gradient(gradient: Tensor, tokens: Tensor, rows: int, padding: int, dtype: torch.dtype) -> Tensor:
    """Equals autograd's gradient [rows, E] of the table, summed in float32 where the table has half precision."""
    wide = gradient.to(torch.promote_types(dtype, torch.float32))
    return torch.ops.aten.embedding_dense_backward(wide, tokens, rows, padding, False).to(dtype)


def check(table: Tensor, tokens: Tensor, padding: int, dtype: torch.dtype) -> None:
    """Refuse what the kernel does not take."""
    if table.ndim != 2 or table.dtype not in DTYPES:
        raise ValueError(f"embedding takes a table [V, E] of floating point, got {tuple(table.shape)} of {table.dtype}")
    if tokens.dtype not in INDICES:
        raise ValueError(f"embedding takes tokens of int32 or int64, got {tokens.dtype}")
    if table.device != tokens.device:
        raise ValueError(f"embedding takes table and tokens on one device, got {table.device} and {tokens.device}")
    if not NONE <= padding < max(len(table), 1):
        raise ValueError(f"embedding takes a padding row of the table's {len(table)} or None, got {padding}")
    if dtype != table.dtype and (table.dtype != torch.float32 or dtype not in HALF):
        raise ValueError(f"embedding rounds a table of float32 to half precision, not {table.dtype} to {dtype}")


def _run(table: Tensor, tokens: Tensor, padding: int, dtype: torch.dtype, order: Tensor | None = None) -> Tensor:
    check(table, tokens, padding, dtype)
    run = kernel("embedding", table)
    if run is None:
        return reference(table, tokens, dtype)
    y = _shape(table, tokens, padding, dtype)
    run(table.contiguous(), tokens.flatten().contiguous(), y.view(tokens.numel(), y.shape[-1]))
    return y


def _shape(table: Tensor, tokens: Tensor, padding: int, dtype: torch.dtype, order: Tensor | None = None) -> Tensor:
    check(table, tokens, padding, dtype)
    return table.new_empty(*tokens.shape, table.shape[1], dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, tokens, ctx.padding, _, order = inputs
    ctx.rows, ctx.dtype = len(table), table.dtype
    ctx.beside = None if order is None else current_branch()
    ctx.save_for_backward(tokens, order)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    tokens, order = ctx.saved_tensors
    if ctx.beside:
        ctx.beside.await_prepared()
    of_table = torch.ops.reread_kernels.embedding_gradient(gradient, tokens, ctx.rows, ctx.padding, ctx.dtype, order)
    return of_table, None, None, None, None


def _run_gradient(
    gradient: Tensor, tokens: Tensor, rows: int, padding: int, dtype: torch.dtype, order: Tensor | None = None
) -> Tensor:
    run = kernel("embedding_gradient", gradient)
    if run is None:
        return reference_gradient(gradient, tokens, rows, padding, dtype)
    of_table = _shape_gradient(gradient, tokens, rows, padding, dtype)
    width = gradient.shape[-1]
    order = _sorted(tokens, rows) if order is None else order
    run(gradient.reshape(tokens.numel(), width).contiguous(), order, padding, of_table)
    return of_table


def _shape_gradient(
    gradient: Tensor, tokens: Tensor, rows: int, padding: int, dtype: torch.dtype, order: Tensor | None = None
) -> Tensor:
    return gradient.new_empty(rows, gradient.shape[-1], dtype=dtype)


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gradient, tokens, _, ctx.padding, *_ = inputs
    ctx.dtype = gradient.dtype
    ctx.save_for_backward(tokens)


def _second(ctx: Any, of_table: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of a sum of rows is a row for each, and nothing for the padding."""
    (tokens,) = ctx.saved_tensors
    if ctx.padding != NONE:
        of_table = of_table.index_fill(0, torch.tensor([ctx.padding], device=tokens.device), 0)
    return torch.ops.reread_kernels.embedding(of_table, tokens, NONE, ctx.dtype), *(None,) * 5


def _cast(
    device: str, table: Tensor, tokens: Tensor, padding: int, dtype: torch.dtype, order: Tensor | None = None
) -> Tensor:
    """Autocast: a float32 table gives rows in autocast's dtype."""
    wanted = torch.get_autocast_dtype(device) if table.dtype == torch.float32 else dtype
    return torch.ops.reread_kernels.embedding(table, tokens, padding, wanted, order)


define(
    "embedding_gradient(Tensor gradient, Tensor tokens, int rows, int padding, ScalarType dtype, Tensor? order=None) "
    "-> Tensor",
    _run_gradient,
    _shape_gradient,
    backward=_second,
    setup_context=_setup_second,
)
define(
    "embedding(Tensor table, Tensor tokens, int padding, ScalarType dtype, Tensor? order=None) -> Tensor",
    _run,
    _shape,
    backward=_backward,
    setup_context=_setup_context,
    autocast=_cast,
)
