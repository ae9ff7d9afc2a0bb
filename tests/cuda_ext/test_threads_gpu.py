"""Kernels called by several host threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cuda_ext.test_dense_block_gpu import given, trained

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
CALLS = 300


def test_threads_launch_one_kernel_with_different_shared_memory():
    """The size of the images decides how much a block of the 3 x 3 convolution stages."""
    small = given("fits", torch.bfloat16)
    large = [torch.randn(2, 24, 32, 64, device="cuda").to(small[0]).to(memory_format=torch.channels_last), *small[1:]]
    expected = [trained(*inputs) for inputs in (small, large)]

    def agrees(at):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            return all(torch.equal(trained(*(small, large)[at]), expected[at]) for _ in range(CALLS))

    torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(agrees, (0, 1))) == [True, True]
