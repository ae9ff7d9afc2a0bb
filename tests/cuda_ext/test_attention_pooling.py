"""Attention pooling on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from cuda_ext import attention_pooling as module
from cuda_ext import library
from cuda_ext.attention_pooling import attention_pooling, attention_pooling_ragged
from models.layers.attention import Attention

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


LENGTHS = torch.tensor([6, 0, 3, 1])


def inputs(dtype=torch.float64, width=5, units=3, parameters=None):
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 6, width), (units, width), (units,), (units,)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [tensors[0].to(dtype), *(tensor.to(parameters or dtype) for tensor in tensors[1:])]


def asking(tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def packed(states, lengths=LENGTHS):
    return states[torch.arange(states.shape[1]) < lengths.unsqueeze(-1)], F.pad(lengths.cumsum(0), (1, 0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_the_network_s_own_layer(dtype):
    layer = Attention(5).to(dtype)
    states = inputs(dtype)[0]
    own = states.clone().requires_grad_()
    parameters = (layer.projection.weight, layer.projection.bias, layer.context_vector)
    expected = layer(states.requires_grad_(), LENGTHS)
    results = attention_pooling(own, LENGTHS, *parameters)
    torch.testing.assert_close(results, expected)
    loss, same = ((pooled.sin().sum() + weights.square().sum()) for pooled, weights in (expected, results))
    torch.testing.assert_close(
        torch.autograd.grad(same, (own, *parameters)), torch.autograd.grad(loss, (states, *parameters))
    )


def test_padding_is_never_read_and_an_empty_row_gives_zeros():
    states, *parameters = inputs()
    real = (torch.arange(6) < LENGTHS.unsqueeze(-1)).unsqueeze(-1)
    hidden = asking([states.masked_fill(~real, float("nan")), *parameters])
    pooled, weights = attention_pooling(hidden[0], LENGTHS, *hidden[1:])
    torch.testing.assert_close(pooled, attention_pooling(states, LENGTHS, *parameters)[0])
    assert not pooled[1].any() and not weights[1].any() and not weights[2, 3:].any()
    torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 0.0, 1.0, 1.0]).double())
    gradients = torch.autograd.grad(pooled.sum(), hidden)
    assert torch.equal(gradients[0] * ~real, torch.zeros_like(states))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_ragged_and_padded_agree(dtype):
    tensors = asking(inputs(dtype))
    tolerance = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 0.1 if dtype.itemsize == 2 else 1e-12}
    states, offsets = packed(tensors[0].detach())
    states.requires_grad_()
    results = attention_pooling_ragged(states, offsets, *tensors[1:])
    expected = attention_pooling(tensors[0], LENGTHS, *tensors[1:])
    assert [result.dtype for result in results] == [result.dtype for result in expected]
    torch.testing.assert_close(results[0], expected[0], **tolerance)
    torch.testing.assert_close(results[1], packed(expected[1].unsqueeze(-1))[0].squeeze(-1), **tolerance)
    ours = torch.autograd.grad([results[0].sum(), results[1].square().sum()], (states, *tensors[1:]))
    theirs = torch.autograd.grad([expected[0].sum(), expected[1].square().sum()], tensors)
    torch.testing.assert_close(ours, (packed(theirs[0])[0], *theirs[1:]), **tolerance)


def test_half_precision_adds_up_a_sequence_s_states_in_float32():
    """Of 4,000 equal states the sum in half precision would stop growing."""
    states, vector = torch.ones(4000, 2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)
    pooled, _ = attention_pooling_ragged(states, torch.tensor([0, 4000]), torch.eye(2).bfloat16(), vector, vector)
    torch.testing.assert_close(pooled, torch.ones(1, 2).bfloat16(), rtol=0.01, atol=0)


def test_lengths_beyond_the_tensor_and_rows_of_no_sequence():
    states, *parameters = inputs()
    within = attention_pooling(states, torch.tensor([6, 0, 3, 1]), *parameters)
    torch.testing.assert_close(attention_pooling(states, torch.tensor([99, -5, 3, 1]), *parameters), within)
    rows = states.flatten(0, 1).requires_grad_()
    pooled, weights = attention_pooling_ragged(rows, torch.tensor([2, 2, 9]), *parameters)
    assert not pooled[0].any() and not weights[:2].any() and not weights[9:].any()
    gradient = torch.autograd.grad(pooled.sum(), rows)[0]
    assert not gradient[:2].any() and not gradient[9:].any() and gradient[2:9].any()


def test_sizes_of_nothing():
    _, *parameters = inputs()
    for shape in [(0, 6, 5), (3, 0, 5), (0, 0, 5)]:
        states = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        pooled, weights = attention_pooling(states, torch.zeros(shape[0], dtype=torch.int64), *parameters)
        assert (pooled.shape, weights.shape) == ((shape[0], 5), shape[:2])
        assert not pooled.any()
        pooled.sum().backward()
    pooled, weights = attention_pooling_ragged(torch.ones(0, 5).double(), torch.tensor([0]), *parameters)
    assert (pooled.shape, weights.shape) == ((0, 5), (0,))


def test_gradients_match_finite_differences():
    tensors = asking(inputs())
    assert torch.autograd.gradcheck(lambda states, *p: attention_pooling(states, LENGTHS, *p), tensors)
    states, offsets = packed(tensors[0].detach())
    assert torch.autograd.gradcheck(
        lambda states, *p: attention_pooling_ragged(states, offsets, *p), (states.requires_grad_(), *tensors[1:])
    )


def test_there_is_no_second_gradient():
    tensors = asking(inputs())
    pooled, _ = attention_pooling(tensors[0], LENGTHS, *tensors[1:])
    (first,) = torch.autograd.grad(pooled.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_operation_keeps_pytorch_s_rules(dtype):
    tensors = asking(inputs(dtype))
    states, offsets = packed(tensors[0].detach())
    torch.library.opcheck(torch.ops.reread_kernels.attention_pooling, (tensors[0], LENGTHS, False, *tensors[1:]))
    torch.library.opcheck(torch.ops.reread_kernels.attention_pooling, (states, offsets.int(), True, *tensors[1:]))


def test_weights_that_are_not_used_bring_no_gradient(monkeypatch):
    """Neither eagerly nor compiled: a tensor of zeros would be made and read for nothing."""
    came = []
    run = attention_pooling.__globals__["reference_backward"]

    def watched(gradient, weights_gradient, *others):
        came.append(weights_gradient)
        return run(gradient, weights_gradient, *others)

    monkeypatch.setitem(attention_pooling.__globals__, "reference_backward", watched)
    tensors = asking(inputs())
    attention_pooling(tensors[0], LENGTHS, *tensors[1:])[0].sum().backward()
    expected = tensors[0].grad.clone()
    tensors[0].grad = None
    compiled = torch.compile(lambda *given: attention_pooling(*given)[0], backend="aot_eager", fullgraph=True)
    compiled(tensors[0], LENGTHS, *tensors[1:]).sum().backward()
    torch.testing.assert_close(tensors[0].grad, expected)
    assert came == [None, None]


def test_half_precision_takes_float32_parameters_and_returns_float32_weights():
    tensors = asking(inputs(torch.bfloat16, parameters=torch.float32))
    pooled, weights = attention_pooling(tensors[0], LENGTHS, *tensors[1:])
    assert (pooled.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    gradients = torch.autograd.grad(pooled.sum(), tensors)
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16, *[torch.float32] * 3]


def test_autocast_casts_the_states_as_the_layer_does():
    layer = Attention(5)
    states = inputs(torch.float32)[0].requires_grad_()
    parameters = (layer.projection.weight, layer.projection.bias, layer.context_vector)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled, weights = attention_pooling(states, LENGTHS, *parameters)
        expected = layer(states, LENGTHS)
    assert (pooled.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(
        (pooled.float(), weights), (expected[0].float(), expected[1].float()), rtol=0.02, atol=0.02
    )
    pooled.sum().backward()
    assert states.grad.dtype == layer.context_vector.grad.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = (parameters[0].double(), *(parameter.half() for parameter in parameters[1:]))
        assert attention_pooling(states, LENGTHS, *mixed)[0].dtype == torch.bfloat16
        assert attention_pooling(*(inputs()[:1]), LENGTHS, *inputs()[1:])[0].dtype == torch.float64


def test_what_it_does_not_take_is_refused_with_what_came():
    states, *parameters = inputs(torch.float32)
    weight, bias, context = parameters
    with pytest.raises(
        ValueError, match="attention_pooling takes tensors on one device, got states on meta, lengths on"
    ):
        attention_pooling(states.to("meta"), LENGTHS, *parameters)
    with pytest.raises(ValueError, match="takes states of float64, .*, got torch.int64"):
        attention_pooling(states.long(), LENGTHS, *parameters)
    with pytest.raises(ValueError, match=r"of the dtype of states, .*, got torch.float64, .* beside torch.float32"):
        attention_pooling(states, LENGTHS, weight.double(), bias, context)
    with pytest.raises(ValueError, match="int32 or int64, got torch.float32"):
        attention_pooling(states, LENGTHS.float(), *parameters)
    with pytest.raises(ValueError, match=r"states \[N, T, D\] and lengths \[N\], .*, got states \(4, 30\)"):
        attention_pooling(states.flatten(1), LENGTHS, *parameters)
    with pytest.raises(ValueError, match=r"attention_pooling_ragged takes states \[M, D\] .* got states \(4, 6, 5\)"):
        attention_pooling_ragged(states, LENGTHS, *parameters)
    with pytest.raises(ValueError, match=r"weight \[A, D\], .*, got .* weight \(5, 3\)"):
        attention_pooling(states, LENGTHS, weight.t(), bias, context)
    with pytest.raises(ValueError, match=r"one length per row, .*, got .* lengths \(3,\)"):
        attention_pooling(states, LENGTHS[:3], *parameters)
    with pytest.raises(ValueError, match="an offset more than there are sequences"):
        attention_pooling_ragged(states[0], LENGTHS[:0], *parameters)
    with pytest.raises(ValueError, match=r"A and D of at least 1, got states \(4, 6, 0\)"):
        attention_pooling(states[..., :0], LENGTHS, weight[:, :0], bias, context)


def test_the_reference_warns_once_and_strict_mode_refuses_it():
    states, *parameters = inputs()
    with pytest.warns(library.ReferenceWarning, match="attention_pooling runs its reference in PyTorch"):
        attention_pooling(states, LENGTHS, *parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention_pooling(states, LENGTHS, *parameters)
    library.strict(True)
    with pytest.raises(library.KernelError, match="attention_pooling has no kernel to run"):
        attention_pooling(states, LENGTHS, *parameters)


@pytest.mark.parametrize(
    ("dtype", "width", "variant"),
    [
        (torch.float16, 100, "attention_pooling of half precision to 104 wide"),
        (torch.bfloat16, 128, "attention_pooling of half precision to 128 wide"),
        (torch.float32, 64, "attention_pooling of float32 to 64 wide"),
        (torch.float32, 129, None),
        (torch.float64, 3, None),
    ],
)
def test_the_gpu_s_shared_memory_decides_by_dtype_and_width(monkeypatch, dtype, width, variant):
    asked = []
    monkeypatch.setattr(module, "kernel", lambda *arguments: asked.append(arguments))
    states, weight = torch.zeros(2, 3, width, dtype=dtype), torch.zeros(width, width, dtype=dtype)
    vector = torch.zeros(width, dtype=dtype)
    pooled, _ = attention_pooling(states, torch.tensor([1, 3]), weight, vector, vector)
    assert pooled.shape == (2, width)
    ((name, like, *given),) = asked
    assert name == "attention_pooling" and like is states and (given or [None]) == [variant]
    assert variant is None or variant in library.SHARED_MEMORY
