"""Vector addition on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import subprocess
import sys
import warnings

import pytest
import torch

from cuda_ext import library
from cuda_ext.vector_add import DTYPES, reference, vector_add

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def pair(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (5, 9, 11)])
def test_it_is_the_sum(dtype, shape):
    x, y = pair(*shape, dtype=dtype)
    result = vector_add(x, y)
    assert result.dtype == dtype
    assert torch.equal(result, x + y)
    assert torch.equal(result, reference(x, y))


@quiet
def test_strides_are_followed_and_the_result_is_contiguous():
    x, y = pair(6, 4)
    for a, b in [(x.t(), y.t()), (x[:, ::2], y[:, 1::2]), (x[:1].expand(6, 4), y)]:
        assert torch.equal(vector_add(a, b), a + b)
        assert vector_add(a, b).is_contiguous()


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operation_keeps_pytorch_s_rules(dtype):
    x, y = pair(4, 5, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.vector_add, (x.requires_grad_(), y.requires_grad_()))
    torch.library.opcheck(torch.ops.reread_kernels.vector_add, (x.detach().t(), y.detach().t()))


@quiet
def test_gradients_match_finite_differences():
    x, y = pair(3, 4)
    inputs = (x.requires_grad_(), y.t().contiguous().t().requires_grad_())
    assert torch.autograd.gradcheck(vector_add, inputs)
    assert torch.autograd.gradgradcheck(vector_add, inputs)


@quiet
def test_autocast_promotes_and_gradients_keep_their_dtype():
    x, y = pair(5, dtype=torch.float32)
    narrow = y.to(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = vector_add(x.requires_grad_(), narrow)
    assert result.dtype == torch.float32
    assert torch.equal(result, x + narrow)
    result.sum().backward()
    assert (x.grad.dtype, narrow.grad.dtype) == (torch.float32, torch.bfloat16)


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    x, y = pair(4)
    with pytest.raises(ValueError, match=r"one shape, got \(4,\) and \(3,\)"):
        vector_add(x, y[:3])
    with pytest.raises(ValueError, match=r"one dtype of .*, got torch.float64 and torch.float32"):
        vector_add(x, y.float())
    with pytest.raises(ValueError, match=r"one dtype of .*, got torch.int64 and torch.int64"):
        vector_add(x.long(), y.long())
    with pytest.raises(ValueError, match="one device, got cpu and meta"):
        vector_add(x, y.to("meta"))


def test_the_reference_warns_once_by_name():
    x, y = pair(4)
    with pytest.warns(
        library.ReferenceWarning, match="vector_add runs its reference in PyTorch: the tensors are on the"
    ):
        vector_add(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector_add(x, y)
    assert library.kernels(x.device).startswith("reference (the tensors are on the cpu")


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(library.KernelError, match=r"vector_add has no kernel to run .*: the tensors are on the cpu"):
        vector_add(*pair(4))


def test_importing_the_package_loads_and_registers_nothing():
    code = "import sys, cuda_ext; print([n for n in sys.modules if n.startswith('cuda_ext.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
