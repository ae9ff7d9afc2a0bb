"""Copies of many tensors on a GPU, in strict mode: the reference can not stand in for the kernel."""

import pytest
import torch

from cuda_ext.foreach_copy import foreach_copy
from cuda_ext.foreach_copy.cases import BATCH, OUTCOME, drawn, halves
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Every dtype's size, no number, a tile and a byte more, and more tensors than a launch takes.
ODD = [((0,), torch.int8), ((16_385,), torch.uint8), ((5, 3), torch.bool), ((300, 7), torch.float16)]
MANY = [((1 + i % 5,), torch.float32) for i in range(1300)]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("kinds", [OUTCOME, BATCH, ODD, MANY], ids=len)
def test_every_byte_is_copied_and_none_beside_it(kinds, offset):
    targets, sources = halves(drawn(kinds, offset))
    beside = [torch.full((target.numel() + offset + 9,), 1, dtype=target.dtype, device="cuda") for target in targets]
    inside = [
        memory[offset : offset + target.numel()].view_as(target) for memory, target in zip(beside, targets, strict=True)
    ]
    foreach_copy(inside, sources)
    for memory, target, source in zip(beside, inside, sources, strict=True):
        assert torch.equal(target, source)
        assert memory[:offset].eq(1).all() and memory[offset + target.numel() :].eq(1).all()


def test_strides_dtypes_and_devices_that_differ_are_copied_too():
    images = torch.randn(2, 8, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    sources = [images, images, images[:, ::2], images.double(), images.cpu()]
    targets = [torch.zeros_like(images) for _ in sources]
    targets[1], targets[2] = torch.zeros(2, 8, 5, 5, device="cuda"), targets[2][:, ::2]
    foreach_copy(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.to(target.device, target.dtype))


def copies(*sources):
    targets = [torch.zeros_like(source) for source in sources]
    foreach_copy(targets, sources)
    return tuple(targets)


def test_a_graph_replays_it_on_new_values():
    _, sources = halves(drawn(OUTCOME))
    rules.a_graph_replays_it_on_new_values(copies, list(sources), torch.rand_like(sources[0]))


def test_it_runs_on_the_current_stream():
    _, sources = halves(drawn([((5000,), torch.float32), ((3,), torch.int64)]))
    rules.it_runs_on_the_current_stream(copies, list(sources), torch.rand_like(sources[0]))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    rules.torch_compile_takes_it_whole(copies, [torch.randn(3, device="cuda"), torch.randn(2, 2, device="cuda")], 0)
