"""The gradient norm on the CPU: the reference behind the operation, and what it refuses."""

import pytest
import torch

from cuda_ext.gradient_norm import DTYPES, gradient_norm

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_norm_of_all_numbers(dtype):
    tensors = [torch.randn(shape, dtype=dtype) for shape in [(3,), (4, 5), (), (0,)]]
    norm = gradient_norm(tensors)
    assert norm.dtype == dtype and norm.shape == ()
    torch.testing.assert_close(norm, torch.cat([tensor.flatten() for tensor in tensors]).norm())


def test_the_operation_keeps_pytorch_s_rules():
    torch.library.opcheck(torch.ops.reread_kernels.gradient_norm, ([torch.randn(3), torch.randn(2, 2)],))


def test_it_asks_for_no_gradient():
    assert not gradient_norm([torch.ones(3, requires_grad=True)]).requires_grad


def test_what_it_does_not_take_is_refused_with_what_came():
    with pytest.raises(ValueError, match="at least one tensor"):
        gradient_norm([])
    with pytest.raises(ValueError, match="got torch.float32 on cpu, torch.float64 on cpu"):
        gradient_norm([torch.ones(1), torch.ones(1, dtype=torch.float64)])
    with pytest.raises(ValueError, match="got torch.float16 on cpu"):
        gradient_norm([torch.ones(1, dtype=torch.float16)])


def test_torch_compile_takes_it_whole():
    torch._dynamo.reset()
    tensors = [torch.randn(3), torch.randn(2, 2)]
    compiled = torch.compile(lambda *given: gradient_norm(given) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors), gradient_norm(tensors) * 2)
