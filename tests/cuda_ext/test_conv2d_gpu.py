"""2D convolution's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch
import torch.nn.functional as F

from cuda_ext.conv2d import (
    DTYPES,
    HALVES,
    KERNELS,
    LARGEST_BY_MATRIX,
    PADDINGS,
    SIZES,
    SMALLEST_BY_FFT,
    SMALLEST_BY_MATRIX,
    by_matrix,
    conv2d,
)
from tests.cuda_ext.rules import (
    a_graph_replays_it_on_new_values,
    fifty_runs_give_the_same_bits,
    it_runs_on_the_current_stream,
    relative_error,
    torch_compile_takes_it_whole,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Half precision: rounding of the result, once. float32: of 961 products and their sum.
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}
# Pairs of tiles that give each multiprocessor of a GPU one: from 19 on `fft` then takes tiles of 128 x 128.
MANY = 200
# Whole packs, rows that begin between packs, less than a filter, one row, one column, more than a strip, many images.
SHAPES = [
    (2, 67, 64), (1, 33, 1000), (3, 40, 513), (1, 300, 264), (2, 31, 32), (1, 16, 17), (2, 1, 520), (1, 90, 1),
    (MANY, 17, 40),
]  # fmt: skip
# Each filter with the tiles that `fft` has for it: their side, and how many copies of an image choose it.
TILES = [*((size, 64, 1) for size in SIZES), *((size, 128, MANY) for size in SIZES if size >= 19)]


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def exact(images, weight, padding):
    """By PyTorch, in float64."""
    size = weight.shape[-1]
    pictures = images.double().reshape(-1, 1, *images.shape[-2:])
    padded = F.pad(pictures, (size // 2,) * 4, mode="constant" if padding == "zeros" else padding)
    return F.conv2d(padded, weight.double().reshape(1, 1, size, size)).reshape(images.shape)


def kernels(dtype, size):
    """The kernels that take it."""
    without = {"register", "fft"} if dtype == torch.float64 else set()
    if not by_matrix(dtype, size):
        without.add("matrix")
    return [kernel for kernel in KERNELS if kernel not in without]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_error_against_float64_is_rounding(size, dtype, padding):
    for shape in SHAPES:
        if padding == "reflect" and min(shape[1:]) <= size // 2:
            continue
        images, weight = random(*shape, dtype=dtype), random(size, size, dtype=dtype, seed=1)
        expected = exact(images, weight, padding)
        for kernel in kernels(dtype, size):
            result = conv2d(images, weight, padding, kernel)
            assert result.dtype == dtype and result.is_contiguous()
            assert relative_error(result, expected) <= LARGEST_ERROR[dtype], (shape, kernel)


@pytest.mark.parametrize(("size", "tile", "copies"), TILES)
def test_tiles_of_transforms_meet_without_a_gap(size, tile, copies):
    """Images of one result less and more than tiles, an odd number of tiles, and pairs of tiles inside the image."""
    side = tile - size + 1
    weight = random(size, size, seed=1)
    shapes = [
        (2, side - 1, side + 1), (1, side, side), (1, side + 1, 2 * side - 1), (3, 2 * side + 1, 8), (1, 300, 640),
    ]  # fmt: skip
    for shape in shapes:
        images = random(*shape)
        for padding in PADDINGS:
            if padding == "reflect" and min(shape[1:]) <= size // 2:
                continue
            results = conv2d(images.repeat(copies, 1, 1), weight, padding, "fft")
            expected = exact(images, weight, padding).repeat(copies, 1, 1)
            assert relative_error(results, expected) <= LARGEST_ERROR[torch.float32], shape


@pytest.mark.parametrize(("size", "copies"), [(13, 1), (31, 1), (31, MANY)])
def test_a_transform_reads_images_that_were_written_right_before(size, copies):
    """Its kernel starts while the filter is transformed, but not before the images are written."""
    weight, given = random(size, size, seed=1), [random(1, 300, 264, seed=seed).repeat(copies, 1, 1) for seed in (2, 3)]
    expected = [conv2d(images, weight, kernel="fft") for images in given]
    images = torch.empty_like(given[0])
    for _ in range(50):
        for new, result in zip(given, expected, strict=True):
            images.copy_(new)
            assert torch.equal(conv2d(images, weight, kernel="fft"), result)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_filter_and_dtype_decide_between_kernels_and_so_does_the_flipped_filter(dtype):
    if dtype in HALVES:
        chosen = (
            (SMALLEST_BY_MATRIX - 2, "register"),
            (SMALLEST_BY_MATRIX, "matrix"),
            (LARGEST_BY_MATRIX, "matrix"),
            (LARGEST_BY_MATRIX + 2, "fft"),
        )
    else:
        chosen = ((SMALLEST_BY_FFT - 2, "register"), (SMALLEST_BY_FFT, "fft"))
    for size, kernel in chosen:
        images, weight = random(2, 150, 264, dtype=dtype).requires_grad_(), random(size, size, dtype=dtype, seed=1)
        back = random(2, 150, 264, dtype=dtype)
        result = conv2d(images, weight)
        assert torch.equal(result, conv2d(images, weight, kernel=kernel))
        others = [name for name in ("register", "fft") if name != kernel]
        assert not any(torch.equal(result, conv2d(images, weight, kernel=other)) for other in others)
        (gradient,) = torch.autograd.grad(result, images, back)
        assert torch.equal(gradient, conv2d(back, weight.flip(0, 1), kernel=kernel))


@pytest.mark.parametrize(("tile", "copies"), [(64, 1), (128, MANY)])
def test_nan_in_a_tile_reaches_no_other_pair_of_tiles(tile, copies):
    images, weight = random(1, 400, 800).repeat(copies, 1, 1), random(31, 31, seed=1)
    expected = conv2d(images, weight, kernel="fft")
    images[0, 5, 5] = float("nan")
    results = conv2d(images, weight, kernel="fft")
    assert results[0, :21, :21].isnan().all()
    assert torch.equal(results[0, tile:], expected[0, tile:])
    assert torch.equal(results[0, :, 2 * tile :], expected[0, :, 2 * tile :])
    assert torch.equal(results[1:], expected[1:])


@pytest.mark.parametrize("copies", [1, MANY])
def test_a_spectrum_and_results_that_begin_as_nan_are_written_whole(copies):
    images, weight = random(2, 150, 264).repeat(copies, 1, 1), random(31, 31, seed=1)
    expected = conv2d(images, weight, kernel="fft")
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="cuda").isnan().all()
        results = conv2d(images, weight, kernel="fft")
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(results, expected)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("size", [3, 9, 31])
def test_every_element_is_written_and_nothing_else(size, dtype):
    """Nothing that an image holds reaches the results of its neighbours, NaN included."""
    images, weight = random(3, 50, 136, dtype=dtype), random(size, size, dtype=dtype, seed=1)
    for kernel in kernels(dtype, size):
        expected = conv2d(images, weight, "reflect", kernel)
        poisoned = images.clone()
        poisoned[0] = poisoned[2] = float("nan")
        result = conv2d(poisoned, weight, "reflect", kernel)
        assert torch.equal(result[1], expected[1])
        assert result[0].isnan().all() and result[2].isnan().all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [5, 9, 17])
def test_what_is_not_finite_stays_within_the_filters_reach_in_products(size, dtype):
    for width in (512, 299):
        images, weight = random(2, 70, width, dtype=dtype), random(size, size, dtype=dtype, seed=1)
        images[0, 30, 0] = images[0, 9, 131] = float("inf")
        images[1, 69, width - 1] = float("nan")
        for padding in PADDINGS:
            results, expected = conv2d(images, weight, padding, "matrix"), exact(images, weight, padding)
            finite = expected.isfinite()
            assert torch.equal(results.isfinite(), finite)
            assert relative_error(results[finite], expected[finite]) <= LARGEST_ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_shapes_strides_and_misaligned_views(dtype):
    images, weight = random(3, 1, 40, 136, dtype=dtype), random(1, 1, 5, 5, dtype=dtype, seed=1)
    for kernel in kernels(dtype, 5):
        expected = conv2d(images, weight, "zeros", kernel)
        assert expected.shape == images.shape
        swapped = images.transpose(2, 3).contiguous().transpose(2, 3)
        for given in (images.to(memory_format=torch.channels_last), swapped):
            result = conv2d(given, weight, "zeros", kernel)
            assert torch.equal(result, expected) and result.is_contiguous()
        assert torch.equal(conv2d(images[:, 0], weight[0, 0], "zeros", kernel), expected[:, 0])
        for offset in (1, 2, 3):
            moved = torch.empty(images.numel() + offset, device="cuda", dtype=dtype)[offset:].view(images.shape)
            moved.copy_(images)
            assert torch.equal(conv2d(moved, weight, "zeros", kernel), expected)


@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_empty_images_give_empty_results_and_a_filter_s_gradient_of_zeros(shape):
    for dtype in DTYPES[1:]:
        images, weight = random(*shape, dtype=dtype), random(3, 3, dtype=dtype)
        for kernel in kernels(dtype, 3):
            assert conv2d(images, weight, "zeros", kernel).shape == images.shape
    images, weight = random(*shape).requires_grad_(), random(3, 3).requires_grad_()
    result = conv2d(images, weight)
    assert torch.equal(torch.autograd.grad(result.sum(), weight)[0], torch.zeros(3, 3, device="cuda"))


@pytest.mark.parametrize("shape", [(512, 2**22 + 2**19, 1), (9, 2**14, 2**14), (1, 2**18 + 11, 2**13)])
def test_more_than_2_to_the_31_elements(shape):
    """Many columns of one pixel, many images, and one long one."""
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of free GPU memory")
    images, weight = torch.empty(shape, device="cuda", dtype=torch.bfloat16), random(5, 5, dtype=torch.bfloat16)
    for image in images:
        image.normal_()
    for kernel in ("register", "matrix", "tiled"):
        result = conv2d(images, weight, "zeros", kernel)
        # The last rows of the last image, whose indices are the largest, and the first rows of the first.
        last = exact(images[-1:, -66:], weight, "zeros")[:, 2:]
        assert relative_error(result[-1:, -64:], last) <= LARGEST_ERROR[torch.bfloat16]
        first = exact(images[:1, :66], weight, "zeros")[:, :-2]
        assert relative_error(result[:1, :64], first) <= LARGEST_ERROR[torch.bfloat16]
        del result


@pytest.mark.parametrize(
    ("kernel", "size", "count", "dtype"),
    [
        *((kernel, size, 2, torch.float32) for size in (3, 15, 31) for kernel in kernels(torch.float32, size)),
        ("fft", 31, MANY, torch.float32),
        *(("matrix", size, 2, dtype) for size in (5, 17) for dtype in HALVES),
    ],
)
def test_the_rules_of_a_kernel(kernel, size, count, dtype):
    shape = count, 300, 264
    images, changed = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=2)
    weight = random(size, size, dtype=dtype, seed=1)

    def run(x, w):
        return conv2d(x, w, "reflect", kernel)

    fifty_runs_give_the_same_bits(run, (images, weight))
    if kernel != "constant":  # No graph can capture it.
        a_graph_replays_it_on_new_values(run, (images.clone(), weight), changed)
    it_runs_on_the_current_stream(run, (images.clone(), weight), changed)


@pytest.mark.parametrize("size", [3, 9, 17])
def test_gradients_are_the_same_in_every_run_and_in_a_graph(size):
    images, weight = random(2, 130, 264).requires_grad_(), random(size, size, seed=1).requires_grad_()
    back, changed = random(2, 130, 264, seed=2), random(2, 130, 264, seed=3)

    def gradients(x, w, g):
        return torch.autograd.grad(conv2d(x, w, "reflect"), (x, w), g)

    fifty_runs_give_the_same_bits(gradients, (images, weight, back))
    a_graph_replays_it_on_new_values(gradients, (images, weight, back), changed)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 9, 31])
def test_gradients_against_float64(size, dtype, padding):
    limit = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for shape in [(2, 67, 64), (1, 150, 1030), (3, 40, 513)]:
        inputs = [random(*shape, dtype=dtype, seed=0), random(size, size, dtype=dtype, seed=1)]
        back = random(*shape, dtype=dtype, seed=2)
        gradients = torch.autograd.grad(conv2d(*(t.requires_grad_() for t in inputs), padding), inputs, back)
        wide = [t.detach().double().requires_grad_() for t in inputs]
        padded = F.pad(wide[0][:, None], (size // 2,) * 4, mode="constant" if padding == "zeros" else padding)
        expected = torch.autograd.grad(F.conv2d(padded, wide[1][None, None])[:, 0], wide, back.double())
        assert relative_error(gradients, expected) <= limit, shape


@pytest.mark.parametrize("padding", PADDINGS)
def test_gradients_match_finite_differences(padding):
    inputs = [t.requires_grad_() for t in (random(2, 5, 4, dtype=torch.float64), random(3, 3, dtype=torch.float64))]
    assert torch.autograd.gradcheck(lambda x, w: conv2d(x, w, padding), inputs)
    assert torch.autograd.gradgradcheck(lambda x, w: conv2d(x, w, padding), inputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", ["zeros", "reflect"])
def test_torch_compile_takes_it_whole_with_its_gradients(padding):
    images, weight, back = random(2, 33, 64), random(5, 5, seed=1), random(2, 33, 64, seed=2)
    torch_compile_takes_it_whole(lambda x, w: conv2d(x, w, padding), (images, weight), 1e-6)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: conv2d(x * 2, w, padding).sin(), fullgraph=True)
    inputs = images.requires_grad_(), weight.requires_grad_()
    gradients = torch.autograd.grad(compiled(*inputs), inputs, back)
    expected = torch.autograd.grad(conv2d(inputs[0] * 2, weight, padding).sin(), inputs, back)
    assert relative_error(gradients, expected) <= 1e-5


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_under_autocast():
    torch._dynamo.reset()
    images, weight = random(2, 20, 24), random(3, 3, seed=1)

    @torch.compile(fullgraph=True)
    def run(x, w):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return conv2d(x, w)

    assert torch.equal(run(images, weight), conv2d(images.bfloat16(), weight.bfloat16()))


def test_autocast_casts_as_for_pytorch_s_convolution_and_gradients_keep_their_dtype():
    images, weight = random(2, 20, 24).requires_grad_(), random(3, 3, seed=1).requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        result = conv2d(images, weight)
    assert torch.equal(result, conv2d(images.half(), weight.half()))
    result.float().sum().backward()
    assert (images.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "padding"), [(torch.float64, "zeros"), (torch.float32, "reflect"), (torch.bfloat16, "replicate")]
)
def test_the_operations_keep_pytorch_s_rules(dtype, padding):
    images, weight = random(2, 6, 8, dtype=dtype).requires_grad_(), random(3, 3, dtype=dtype).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.conv2d, (images, weight, padding, "auto"))
    torch.library.opcheck(
        torch.ops.reread_kernels.conv2d, (images.detach()[:, None].mT, weight.detach(), padding, "tiled")
    )
    other = random(2, 6, 8, dtype=dtype).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.conv2d_filter_gradient, (images, other, 3, padding))


def test_filters_in_constant_memory_do_not_mix_between_streams():
    images = random(1, 1024, 1024)
    weights = [random(9, 9, seed=seed) for seed in range(8)]
    expected = [conv2d(images, weight, "zeros", "vanilla") for weight in weights]
    streams = [torch.cuda.Stream() for _ in weights]
    torch.cuda.synchronize()
    for _ in range(10):
        results = []
        for stream, weight in zip(streams, weights, strict=True):
            with torch.cuda.stream(stream):
                results.append(conv2d(images, weight, "zeros", "constant"))
        torch.cuda.synchronize()
        for result, other in zip(results, expected, strict=True):
            torch.testing.assert_close(result, other)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_cannot_capture_the_filter_in_constant_memory_and_later_calls_are_right():
    images, weight = random(1, 512, 512), random(5, 5)
    expected = conv2d(images, weight, "zeros", "vanilla")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="'constant' cannot be captured in a CUDA graph"), torch.cuda.graph(graph):
        conv2d(images, weight, "zeros", "constant")
    torch.cuda.synchronize()
    torch.testing.assert_close(conv2d(images, weight, "zeros", "constant"), expected)


def test_two_devices_are_refused_and_so_are_the_compiled_operations_called_wrongly():
    images, weight = random(2, 6, 8), random(3, 3)
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        conv2d(images, weight.cpu())
    forward, gradient = (
        torch.ops.reread_kernels_compiled.conv2d,
        torch.ops.reread_kernels_compiled.conv2d_filter_gradient,
    )
    for arguments, message in [
        ((images, weight.double(), 0, 0), "one dtype"),
        ((images.int(), weight.int(), 0, 0), "dtype must be"),
        ((images[0], weight, 0, 0), "2 and 2 dimensions"),
        ((images, weight[:2], 0, 0), "got 2 x 3"),
        ((images, weight, 3, 0), "no such padding or kernel, got 3 and 0"),
        ((images, weight, 0, 6), "no such padding or kernel, got 0 and 6"),
        ((images[:, :1], weight, 1, 0), "larger than k / 2, got 1 x 8"),
        ((images.double(), weight.double(), 0, 3), "dtype must be float32, float16 or bfloat16"),
        ((images.double(), weight.double(), 0, 4), "dtype must be float32, float16 or bfloat16"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            forward(*arguments)
    for arguments, message in [
        ((images, images.double(), 3, 0), "one dtype"),
        ((images.int(), images.int(), 3, 0), "dtype must be"),
        ((images, images[:, :5], 3, 0), "got 6 and 5 in dimension 1"),
        ((images, images, 4, 0), "no such size or padding, got 4 and 0"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            gradient(*arguments)
