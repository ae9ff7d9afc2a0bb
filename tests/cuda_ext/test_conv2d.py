"""2D convolution on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F

from cuda_ext import library
from cuda_ext.conv2d import DTYPES, KERNELS, PADDINGS, SIZES, check, conv2d, reference

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_its_formula(images, weight, padding):
    """The sum of the definition, one tap at a time, in float64."""
    size = weight.shape[-1]
    height, width = images.shape[-2:]
    mode = "constant" if padding == "zeros" else padding
    padded = F.pad(images.double().reshape(-1, 1, height, width), (size // 2,) * 4, mode=mode)
    taps = weight.double().reshape(size, size)
    result = sum(taps[i, j] * padded[..., i : i + height, j : j + width] for i in range(size) for j in range(size))
    return result.reshape(images.shape)


@quiet
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_sum_of_its_definition(size, padding):
    images, weight = random(2, 19, 23), random(size, size, seed=1)
    torch.testing.assert_close(conv2d(images, weight, padding), by_its_formula(images, weight, padding))


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_against_float64_is_rounding(dtype):
    images, weight = random(2, 1, 40, 33, dtype=dtype), random(1, 1, 7, 7, dtype=dtype, seed=1)
    result, exact = conv2d(images, weight), by_its_formula(images, weight, "zeros")
    assert result.dtype == dtype
    assert (result.double() - exact).norm() <= LARGEST_ERROR[dtype] * exact.norm()
    assert torch.equal(result, reference(images, weight, "zeros"))


@quiet
def test_shapes_and_strides_are_followed_and_the_result_is_contiguous():
    images, weight = random(3, 1, 10, 12), random(1, 1, 3, 3, seed=1)
    expected = conv2d(images, weight)
    for given in (images.to(memory_format=torch.channels_last), images.transpose(2, 3).contiguous().transpose(2, 3)):
        assert torch.equal(conv2d(given, weight), expected)
        assert conv2d(given, weight).is_contiguous()
    assert torch.equal(conv2d(images[:, 0], weight[0, 0]), expected[:, 0])
    assert torch.equal(conv2d(images[:, 0], weight[0, 0].t().contiguous().t()), expected[:, 0])


@quiet
@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 5), (2, 5, 0), (0, 1, 4, 4)])
def test_empty_images_give_empty_results_and_a_filter_s_gradient_of_zeros(shape):
    images, weight = random(*shape).requires_grad_(), random(3, 3).requires_grad_()
    for padding in ("zeros", "replicate"):
        result = conv2d(images, weight, padding)
        assert result.shape == images.shape
        to_images, to_weight = torch.autograd.grad(result.sum(), (images, weight))
        assert to_images.shape == images.shape
        assert torch.equal(to_weight, torch.zeros(3, 3, dtype=torch.float64))


@quiet
def test_images_smaller_than_the_filter():
    images, weight = random(2, 1, 2), random(9, 9, seed=1)
    for padding in ("zeros", "replicate"):
        torch.testing.assert_close(conv2d(images, weight, padding), by_its_formula(images, weight, padding))


@quiet
@pytest.mark.parametrize(
    ("dtype", "padding"), [(torch.float64, "zeros"), (torch.float32, "reflect"), (torch.bfloat16, "replicate")]
)
def test_the_operations_keep_pytorch_s_rules(dtype, padding):
    images, weight = random(2, 4, 5, dtype=dtype).requires_grad_(), random(3, 3, dtype=dtype).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.conv2d, (images, weight, padding, "auto"))
    torch.library.opcheck(
        torch.ops.reread_kernels.conv2d, (images.detach()[:, None].mT, weight.detach(), padding, "tiled")
    )
    other = random(2, 4, 5, dtype=dtype).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.conv2d_filter_gradient, (images, other, 3, padding))


@quiet
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("shape", "size"), [((2, 4, 3), 3), ((1, 1, 3, 4), 5)])
def test_gradients_match_finite_differences(shape, size, padding):
    weight_shape = (size, size) if len(shape) == 3 else (1, 1, size, size)
    inputs = random(*shape).requires_grad_(), random(*weight_shape, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: conv2d(x, w, padding), inputs)
    assert torch.autograd.gradgradcheck(lambda x, w: conv2d(x, w, padding), inputs)


@quiet
def test_autocast_casts_as_for_pytorch_s_convolution_and_gradients_keep_their_dtype():
    images, weight = random(1, 6, 7, dtype=torch.float32), random(3, 3, dtype=torch.float32, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = conv2d(images.requires_grad_(), weight.requires_grad_())
        assert conv2d(images.double(), weight.double()).dtype == torch.float64
    assert torch.equal(result, conv2d(images.bfloat16(), weight.bfloat16()))
    result.float().sum().backward()
    assert (images.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)


@quiet
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((random(4, 4), random(3, 3)), r"\[N, H, W\] or \[N, 1, H, W\], got \(4, 4\)"),
        ((random(1, 2, 4, 4), random(3, 3)), r"got \(1, 2, 4, 4\)"),
        ((random(1, 4, 4), random(4, 4)), r"k odd from 3 to 31, got \(4, 4\)"),
        ((random(1, 4, 4), random(3, 5)), r"k odd from 3 to 31, got \(3, 5\)"),
        ((random(1, 4, 4), random(1, 1)), r"k odd from 3 to 31, got \(1, 1\)"),
        ((random(1, 4, 4), random(33, 33)), r"k odd from 3 to 31, got \(33, 33\)"),
        ((random(1, 4, 4), random(2, 1, 3, 3)), r"k odd from 3 to 31, got \(2, 1, 3, 3\)"),
        ((random(1, 4, 4), random(3, 3).float()), "one dtype of .*, got torch.float64 and torch.float32"),
        ((random(1, 4, 4).long(), random(3, 3).long()), "one dtype of .*, got torch.int64 and torch.int64"),
        ((random(1, 4, 4), random(3, 3), "same"), "padding is zeros, reflect, replicate, got 'same'"),
        ((random(1, 4, 4), random(3, 3), "zeros", "fast"), "kernel is auto, .*, got 'fast'"),
        ((random(1, 4, 4), random(3, 3), "zeros", "register"), "'register' takes no float64"),
        ((random(1, 4, 4), random(3, 3), "zeros", "fft"), "'fft' takes no float64"),
        ((random(1, 4, 4), random(5, 5), "zeros", "matrix"), "'matrix' takes .*, got torch.float64"),
        ((random(1, 4, 4).half(), random(3, 3).half(), "zeros", "matrix"), r"filters of 5 to 17, got .* \(3, 3\)"),
        ((random(1, 4, 4).half(), random(19, 19).half(), "zeros", "matrix"), r"filters of 5 to 17, got .* \(19, 19\)"),
        ((random(1, 2, 9), random(5, 5), "reflect"), r"more than 2 rows and columns, got \(1, 2, 9\)"),
        ((random(1, 4, 4), random(3, 3).to("meta")), "one device, got cpu and meta"),
    ],
)
def test_what_it_does_not_take_is_refused_with_what_came(arguments, message):
    with pytest.raises(ValueError, match=message):
        conv2d(*arguments)


def test_what_no_kernel_could_index_is_refused():
    with pytest.raises(ValueError, match="strided tensors, got layouts torch.strided and torch.sparse_coo"):
        check(random(1, 4, 4), random(3, 3).to_sparse(), "zeros", "auto")
    with pytest.raises(ValueError, match=r"at most 2\^30 rows and columns, got \(1, 1, 2147483648\)"):
        check(torch.empty(1, 1, 2**31, device="meta"), torch.empty(3, 3, device="meta"), "zeros", "auto")


@quiet
def test_the_filter_s_gradient_refuses_what_does_not_fit():
    images = random(1, 4, 4)
    gradient = torch.ops.reread_kernels.conv2d_filter_gradient
    with pytest.raises(ValueError, match=r"of one shape on one device, got \(1, 4, 4\) on cpu and \(1, 4, 5\) on cpu"):
        gradient(images, random(1, 4, 5), 3, "zeros")
    with pytest.raises(ValueError, match="odd from 3 to 31, got 4"):
        gradient(images, images, 4, "zeros")
    with pytest.raises(ValueError, match="one dtype of .*, got torch.float64 and torch.float32"):
        gradient(images, images.float(), 3, "zeros")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_reference_warns_by_name_and_strict_mode_refuses_it(kernel):
    dtype = torch.bfloat16 if kernel == "matrix" else torch.float32
    images, weight = random(1, 4, 4, dtype=dtype), random(5, 5, dtype=dtype)
    with pytest.warns(library.ReferenceWarning, match="conv2d runs its reference in PyTorch: the tensors are on the"):
        conv2d(images, weight, kernel=kernel)
    library.strict(True)
    with pytest.raises(library.KernelError, match="conv2d has no kernel to run .*: the tensors are on the cpu"):
        conv2d(images, weight, kernel=kernel)
