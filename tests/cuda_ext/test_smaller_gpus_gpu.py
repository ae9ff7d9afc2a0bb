"""Kernels of GPUs with less shared memory per block, run by a limit on this one."""

import pytest
import torch

from cuda_ext import library
from cuda_ext.conv2d import conv2d
from tests.cuda_ext import rules
from tests.cuda_ext.test_attention_pooling_gpu import LARGEST_ERROR, doubled, everything, formula, inputs
from tests.cuda_ext.test_gru_gpu import batch, both_passes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Bytes of an A100, and of an A10, L4, RTX 4090 or RTX 5090.
A100, A10 = 166_912, 101_376


@pytest.fixture
def limit(monkeypatch):
    """Let a block have at most so many bytes of shared memory."""
    library.kernel("swish", torch.empty(0, device="cuda"))
    set_limit = torch.ops.reread_kernels_compiled.limit_shared_memory

    def to(allowed):
        set_limit(allowed)
        monkeypatch.setattr(library, "_shared_memory", lambda device: allowed)

    yield to
    set_limit(0)


@pytest.mark.parametrize("allowed", [A100, A10])
@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float16, 100), (torch.bfloat16, 97), (torch.float32, 64), (torch.float32, 50)]
)
def test_attention_of_han_s_width_has_its_kernel_everywhere(limit, allowed, dtype, width):
    given = inputs(700, 30, width, width, dtype=dtype)
    limit(allowed)
    results, exact = everything(*given), everything(*doubled(given), function=formula)
    assert max(rules.relative_error(a, b) for a, b in zip(results, exact, strict=True)) <= LARGEST_ERROR[dtype]
    rules.fifty_runs_give_the_same_bits(everything, given)


@pytest.mark.parametrize(("allowed", "width"), [(A100, 128), (A10, 100)])
def test_what_does_not_fit_runs_the_reference_and_says_so_once(limit, monkeypatch, allowed, width):
    given = inputs(50, 30, width, width)
    limit(allowed)
    monkeypatch.setattr(library, "_strict", False)
    with pytest.warns(library.ReferenceWarning) as said:
        results, again = (everything(*given) for _ in range(2))
    assert sorted(str(warning.message).split(" ")[0] for warning in said) == [
        "attention_pooling",
        "attention_pooling_backward",
    ]
    assert all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
    exact = everything(*doubled(given), function=formula)
    assert rules.relative_error(results, exact) <= LARGEST_ERROR[torch.float32]
    widest = next(size for size in (64, 104, 128) if width <= size)
    assert f"attention_pooling of float32 to {widest} wide" in library.kernels(torch.device("cuda", 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(70, 30, 200, 50, True), (40, 12, 20, 128, True), (2200, 8, 24, 112, True), (4400, 8, 24, 50, True)]
)
def test_the_gru_gives_the_same_bits_with_fewer_stages_and_without_bulk_copies(limit, shape, dtype):
    """The last two have more than 8,192 steps, whose products take the most shared memory."""
    x, lengths, _, ours = batch(*shape, dtype=dtype)
    x.requires_grad_()
    expected = both_passes(ours, x, lengths)
    limit(A10)
    assert all(torch.equal(a, b) for a, b in zip(both_passes(ours, x, lengths), expected, strict=True))


def test_convolution_by_transforms_takes_the_smaller_tiles(limit):
    images, weight = torch.randn(40, 300, 264, device="cuda"), torch.randn(31, 31, device="cuda")
    by_large_tiles = conv2d(images, weight, "reflect", "fft")
    expected = conv2d(images.double(), weight.double(), "reflect")
    limit(A10)
    results = conv2d(images, weight, "reflect", "fft")
    assert not torch.equal(results, by_large_tiles)
    assert rules.relative_error(results, expected) <= 1e-6
    rules.fifty_runs_give_the_same_bits(lambda x, w: conv2d(x, w, "zeros", "fft"), (images, weight))
