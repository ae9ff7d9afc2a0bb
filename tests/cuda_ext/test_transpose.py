"""The transpose on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import pytest
import torch

from cuda_ext import library
from cuda_ext.transpose import DTYPES, KERNELS, check, reference, transpose

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
SHAPES = [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (5, 9), (33, 31)]


def matrix(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_transpose_and_contiguous(dtype, shape):
    x = matrix(*shape, dtype=dtype)
    for kernel in KERNELS:
        result = transpose(x, kernel)
        assert result.dtype == dtype and result.stride() == torch.empty(shape[::-1]).stride()
        assert torch.equal(result, x.t()) and torch.equal(result, reference(x))


@quiet
def test_strides_are_followed_and_the_result_is_never_a_view():
    x = matrix(6, 4)
    for given in (x.t(), x[:, ::2], x[:1], x[:, :1], x[:1].expand(6, 4)):
        result = transpose(given)
        assert torch.equal(result, given.t()) and result.is_contiguous()
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (0, 5)])
def test_the_operation_keeps_pytorch_s_rules(dtype, shape):
    x = matrix(*shape, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.transpose, (x.requires_grad_(), "padded"))
    torch.library.opcheck(torch.ops.reread_kernels.transpose, (x.detach().t(), "naive"))


@quiet
def test_gradients_match_finite_differences():
    x = matrix(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(transpose, (x,))
    assert torch.autograd.gradgradcheck(transpose, (x,))


@quiet
def test_autocast_changes_nothing():
    x = matrix(3, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(transpose(x), x.t())


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    x = matrix(2, 3)
    with pytest.raises(ValueError, match="kernel is naive, tiled, padded, got 'fast'"):
        transpose(x, "fast")
    with pytest.raises(ValueError, match=r"float64, float32, float16, bfloat16, got torch.int64"):
        transpose(x.long())
    with pytest.raises(ValueError, match=r"\[rows, columns\], got \(1, 2, 3\)"):
        transpose(x[None])
    with pytest.raises(ValueError, match="strided tensor, got layout torch.sparse_coo"):
        check(x.to_sparse(), "padded")


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(library.KernelError, match="transpose has no kernel to run"):
        transpose(matrix(2, 3))
