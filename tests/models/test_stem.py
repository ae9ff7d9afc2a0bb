"""The 7x7 convolution of photographs: rearranged, it is PyTorch's, with its gradients of every order."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers import stem
from models.layers.stem import Stem, rearranged_convolution

# PyTorch's compiler uses what PyTorch deprecates.
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def rearranged(x, weight):
    return rearranged_convolution(x, weight, torch.float64)


def drawn(*shape, memory_format=torch.contiguous_format):
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(shape, dtype=torch.float64, generator=generator)
    return tensor.to(memory_format=memory_format).requires_grad_()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(2, 2), (8, 6), (6, 32)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_rearranged_it_is_pytorch_s_with_its_gradients(channels, size, memory_format):
    x, weight = (drawn(*shape, memory_format=memory_format) for shape in ((2, channels, *size), (5, channels, 7, 7)))
    expected = functional.conv2d(x, weight, stride=2, padding=3)
    result = rearranged(x, weight)
    gradient = torch.randn_like(expected)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    gradients, theirs = (torch.autograd.grad(y, (x, weight), gradient) for y in (result, expected))
    torch.testing.assert_close(gradients, theirs, rtol=1e-12, atol=1e-12)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_it_can_be_differentiated_twice():
    inputs = drawn(1, 3, 4, 6), drawn(2, 3, 7, 7)
    assert torch.autograd.gradcheck(rearranged, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(rearranged, inputs, fast_mode=True)


@compiler
def test_it_is_traced_whole_and_for_any_batch():
    class Network(nn.Module):
        def forward(self, x, weight):
            return rearranged(x, weight)

    x, weight = drawn(2, 3, 8, 6), drawn(5, 3, 7, 7)
    compiled = torch.compile(rearranged, fullgraph=True, backend="aot_eager")
    gradients, eager = (torch.autograd.grad(f(x, weight).square().sum(), (x, weight)) for f in (compiled, rearranged))
    torch.testing.assert_close(gradients, eager, rtol=1e-12, atol=1e-12)
    exported = torch.export.export(Network(), (x, weight), dynamic_shapes=({0: torch.export.Dim.AUTO}, None))
    x = drawn(4, 3, 8, 6)
    torch.testing.assert_close(exported.module()(x, weight), rearranged(x, weight), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [(8, 6), (7, 9)])
def test_on_a_cpu_it_is_pytorch_s_to_the_last_bit_and_by_name(size):
    torch.manual_seed(0)
    usual = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
    torch.manual_seed(0)
    ours = Stem(3, 8)
    assert list(ours.state_dict()) == ["weight"] and torch.equal(ours.weight, usual.weight)
    x = torch.randn(2, 3, *size)
    assert torch.equal(ours(x), usual(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), usual(x))


class OnGPU(Tensor):
    """A tensor of the CPU that is taken for one of a GPU."""

    is_cuda = True


@pytest.fixture
def calls(monkeypatch):
    """The dtypes of the calls of the rearranged form."""
    calls = []

    def recorded(x, weight, dtype):
        calls.append(dtype)
        return rearranged_convolution(x, weight, dtype)

    monkeypatch.setattr(stem, "rearranged_convolution", recorded)
    return calls


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, 3, 8, 6), torch.bfloat16, True),
        ((2, 1, 8, 6), torch.float16, True),
        ((2, 4, 8, 6), torch.bfloat16, True),
        ((2, 3, 8, 6), torch.float32, False),
        ((2, 3, 7, 6), torch.bfloat16, False),
        ((2, 3, 8, 5), torch.bfloat16, False),
        ((2, 8, 8, 6), torch.bfloat16, False),
        ((4, 4, 6), torch.bfloat16, False),
    ],
)
def test_few_channels_in_half_precision_on_a_gpu_are_rearranged(calls, shape, dtype, expected):
    layer, images = Stem(shape[-3], 5).to(dtype), torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(layer(images.as_subclass(OnGPU)).as_subclass(Tensor), layer(images))
    assert calls == [dtype] * expected


def test_autocast_gives_the_precision_but_for_float64(calls):
    layer, images = Stem(3, 5), torch.randn(2, 3, 8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(images.as_subclass(OnGPU)).as_subclass(Tensor)
        torch.testing.assert_close(result, layer(images))
        layer.double()(images.double().as_subclass(OnGPU))
    assert calls == [torch.bfloat16]


def test_images_of_other_channels_or_precision_are_refused_as_by_pytorch():
    """Zeros fill 3 channels and 4 to the same number: the shape of the filters would not tell."""
    layer = Stem(3, 5).bfloat16()
    for channels, dtype in ((4, torch.bfloat16), (3, torch.float16), (3, torch.float32)):
        with pytest.raises(RuntimeError):
            layer(torch.randn(2, channels, 8, 6, dtype=dtype).as_subclass(OnGPU))
