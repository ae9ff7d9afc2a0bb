"""The embedding's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.bench import relative_error
from cuda_ext.case import Case, begin, compiled, forward_and_backward_of
from cuda_ext.embedding import HALF, embedding

ROWS, WIDTH = 50_000, 200
# Words of 64 and of 1024 documents of 20 sentences of 3 to 30 words.
TOKENS = (21_120, 337_920)
# Rows, numbers a row, tokens: numbers of one, two and three digits, and many tokens of a row.
SMALL = ((1, 1, 3), (7, 5, 0), (40, 12, 700), (500, 8, 333), (70_000, 8, 4099), (50, 16, 70_001))
LARGEST_ERROR = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def bench_cases() -> Iterator[Case]:
    for dtype in (torch.float32, *HALF):
        for count in TOKENS:
            yield _case(count, dtype)


def _case(count: int, dtype: torch.dtype) -> Case:
    """Both passes: rows of a float32 table in ``dtype``, and the table's gradient."""

    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        table = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        return table, words(count), torch.randn(count, WIDTH, device="cuda", dtype=dtype)

    def ours(table: Tensor, tokens: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype, enabled=dtype in HALF):
            return embedding(table, tokens, padding=0)

    def plain(table: Tensor, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, table, padding_idx=0).to(dtype)

    def exact(table: Tensor, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, table, padding_idx=0)

    rounded = {name: forward_and_backward_of(peer) for name, peer in {"PyTorch": plain, **compiled(plain)}.items()}
    # The rows that are read, both copies of them, their numbers twice, and the table's gradient.
    moved = min(count, ROWS) * WIDTH * 4 + 2 * count * WIDTH * dtype.itemsize + 2 * count * 4 + ROWS * WIDTH * 4
    return Case(
        "embedding",
        f"{count} of {ROWS} x {WIDTH}, forward and backward",
        dtype,
        inputs,
        forward_and_backward_of(ours),
        rounded,
        forward_and_backward_of(exact),
        moved,
    )


def words(count: int, rows: int = ROWS, dtype: torch.dtype = torch.int32) -> Tensor:
    """Word numbers from 1 by Zipf's law, as text has them: number r is as frequent as 1 / r. Of one row: zeros."""
    if rows == 1 or count == 0:
        return torch.zeros(count, device="cuda", dtype=dtype)
    frequency = 1 / torch.arange(1, rows, device="cuda", dtype=torch.float32)
    return (torch.multinomial(frequency, count, replacement=True) + 1).to(dtype)


def exercise() -> None:
    """Run the kernels at widths, counts and dtypes that reach every branch, and compare with PyTorch."""
    for table_dtype, dtype in [(torch.float32, dtype) for dtype in LARGEST_ERROR] + [(half, half) for half in HALF]:
        for rows, width, count in [
            (1, 1, 3),
            (7, 5, 0),
            (40, 12, 700),
            (500, 8, 333),
            (70_000, 8, 4099),
            (50, 16, 70_001),
        ]:
            for index in (torch.int32, torch.int64):
                begin("embedding", table_dtype, dtype, rows, width, count, index)
                table = torch.randn(rows, width, device="cuda", dtype=table_dtype, requires_grad=True)
                tokens = words(count, rows, index)
                gradient = torch.randn(count, width, device="cuda", dtype=dtype)
                y = torch.ops.reread_kernels.embedding(table, tokens, 0, dtype)
                # On the CPU: the sanitizer would watch PyTorch's kernels too.
                wide = table.detach().double().cpu().requires_grad_()
                exact = functional.embedding(tokens.cpu(), wide, padding_idx=0)
                (to_table,) = torch.autograd.grad(y, table, gradient)
                (expected,) = torch.autograd.grad(exact, wide, gradient.double().cpu())
                for computed, other in ((y.cpu(), exact), (to_table.cpu(), expected)):
                    if computed.numel() and relative_error(computed, other) > LARGEST_ERROR[computed.dtype]:
                        raise AssertionError(f"embedding errs by {relative_error(computed, other)} at {tokens.shape}")
