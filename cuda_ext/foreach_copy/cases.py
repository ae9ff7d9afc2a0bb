"""The copies' cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cuda_ext.adamw.cases import densenet
from cuda_ext.case import Case, begin, compiled
from cuda_ext.foreach_copy import foreach_copy, reference

Kind = tuple[tuple[int, ...], torch.dtype]
# What a training step of HAN copies: 64 documents of 20 sentences with 21,120 words, and its outcome.
BATCH: list[Kind] = [((21_120,), torch.int32), ((64, 20), torch.int32), ((64,), torch.int32), ((64,), torch.int64)]
OUTCOME: list[Kind] = [((), torch.float32), ((), torch.float64), ((), torch.float32)]


def bench_cases() -> Iterator[Case]:
    yield _case("a step's three numbers", OUTCOME)
    yield _case("a batch of HAN, 64 documents", BATCH)
    parameters = [(shape, torch.float32) for shape in densenet()]
    # To compile a copy of hundreds of tensors takes minutes.
    yield _case(f"DenseNet-121's {len(parameters)} tensors", parameters, compiles=False)


def _case(name: str, kinds: Sequence[Kind], compiles: bool = True) -> Case:
    one_by_one = _copies(reference)
    peers = {"PyTorch, one by one": one_by_one, "PyTorch, by dtype": _copies(_by_dtype)}
    size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in kinds)
    return Case(
        "foreach_copy",
        name,
        kinds[0][1],
        lambda: drawn(kinds),
        _copies(foreach_copy),
        peers | (compiled(one_by_one) if compiles else {}),
        one_by_one,
        2 * size,
    )


def _copies(copy: Callable[..., None]) -> Callable[..., tuple[Tensor, ...]]:
    """A function of what ``drawn`` returns: it runs ``copy(targets, sources)`` and returns the targets."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        targets, sources = halves(tensors)
        copy(targets, sources)
        return targets

    return run


def _by_dtype(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for dtype in {target.dtype for target in targets}:
        alike = [i for i, target in enumerate(targets) if target.dtype == dtype]
        torch._foreach_copy_([targets[i] for i in alike], [sources[i] for i in alike])


def drawn(kinds: Sequence[Kind], offset: int = 0) -> tuple[Tensor, ...]:
    """Targets of zeros, and sources: whole numbers from 1 on. All begin ``offset`` numbers into their memory."""
    tensors = []
    for shape, dtype in kinds:
        numbers = torch.arange(1 - offset, torch.Size(shape).numel() + 1, device="cuda").to(dtype)
        tensors.append(numbers[offset:].view(shape))
    return (*(tensor.new_zeros(tensor.numel() + offset)[offset:].view_as(tensor) for tensor in tensors), *tensors)


def halves(tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Targets and sources, of ``drawn``."""
    count = len(tensors) // 2
    return tuple(tensors[:count]), tuple(tensors[count:])


def exercise() -> None:
    """Run the kernel at sizes, counts and alignments that reach every branch, and compare."""
    many: list[Kind] = [((1 + i % 5,), torch.float32) for i in range(700)]
    odd: list[Kind] = [((0,), torch.int8), ((16_385,), torch.uint8), ((8192,), torch.float64), ((5, 3), torch.bool)]
    for kinds in (OUTCOME, BATCH, odd, many):
        for offset in (0, 1):
            begin("foreach_copy", len(kinds), offset)
            targets, sources = halves(drawn(kinds, offset))
            foreach_copy(targets, sources)
            if not all(
                torch.equal(target.cpu(), source.cpu()) for target, source in zip(targets, sources, strict=True)
            ):
                raise AssertionError(f"foreach_copy errs at {len(kinds)} tensors, offset {offset}")
