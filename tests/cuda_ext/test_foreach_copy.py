"""Copies of many tensors on the CPU: the reference behind the operation, and what it refuses."""

import pytest
import torch

from cuda_ext.foreach_copy import foreach_copy

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def test_each_tensor_is_copied_whatever_its_dtype_and_strides():
    sources = [torch.randn(3), torch.randn(4, 5).mT, torch.tensor(7), torch.randn(2, 2, dtype=torch.float64)]
    targets = [torch.zeros(3), torch.zeros(5, 4), torch.tensor(0), torch.zeros(2, 2)]
    foreach_copy(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.to(target.dtype))


def test_no_tensors_are_no_copies():
    foreach_copy([], [])


def test_the_operation_keeps_pytorch_s_rules():
    lists = [torch.zeros(3), torch.zeros(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    torch.library.opcheck(torch.ops.reread_kernels.foreach_copy, lists)


def test_what_it_does_not_take_is_refused_with_what_came():
    target = torch.zeros(2)
    with pytest.raises(ValueError, match="as many targets as sources, got 1 and 2"):
        foreach_copy([target], [torch.ones(2), torch.ones(2)])
    with pytest.raises(ValueError, match="as many targets as sources, got 0 and 1"):
        foreach_copy([], [torch.ones(2)])
    with pytest.raises(ValueError, match=r"source's shape, got \(2,\) for \(\)"):
        foreach_copy([target], [torch.tensor(1.0)])
    assert torch.equal(target, torch.zeros(2))


def test_torch_compile_takes_it_whole():
    torch._dynamo.reset()

    def copied(x, y):
        targets = [torch.zeros_like(x), torch.zeros_like(y)]
        foreach_copy(targets, [x, y])
        return targets[0] * 2, targets[1] * 2

    x, y = torch.randn(3), torch.randn(2, 2)
    results = torch.compile(copied, fullgraph=True, backend="aot_eager")(x, y)
    assert torch.equal(results[0], x * 2) and torch.equal(results[1], y * 2)
