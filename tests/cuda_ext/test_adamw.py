"""AdamW on the CPU: the reference behind the operation beside torch.optim.AdamW, and what it refuses."""

import sys

import pytest
import torch

from cuda_ext.adamw import DTYPES, adamw

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
SHAPES = [(3,), (4, 5), ()]


def drawn(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    parameters, gradients = ([torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES] for _ in "pg")
    means, squares = ([torch.zeros_like(parameter) for parameter in parameters] for _ in "mv")
    return [parameters, gradients, means, squares, [torch.zeros(()) for _ in SHAPES]]


RATES, DECAYS = [0.1, 0.1, 0.02], [0.0, 0.3, 0.3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_torch_s_fused_adamw_of_groups(dtype):
    lists = drawn(dtype)
    theirs = [torch.nn.Parameter(parameter.clone()) for parameter in lists[0]]
    groups = [
        {"params": [parameter], "lr": rate, "weight_decay": decay}
        for parameter, rate, decay in zip(theirs, RATES, DECAYS, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, fused=True)
    for factor in (1.0, -0.5, 2.0):
        for parameter, gradient in zip(theirs, lists[1], strict=True):
            gradient.mul_(factor)
            parameter.grad = gradient.clone()
        adamw(*lists, RATES, DECAYS)
        optimiser.step()
    for i, parameter in enumerate(theirs):
        state = optimiser.state[parameter]
        for value, expected in zip(
            (lists[0][i], lists[2][i], lists[3][i], lists[4][i]),
            (parameter.detach(), state["exp_avg"], state["exp_avg_sq"], state["step"]),
            strict=True,
        ):
            assert torch.equal(value, expected)


def test_an_overflow_changes_nothing():
    lists = drawn()
    before = [[tensor.clone() for tensor in given] for given in lists]
    adamw(*lists, RATES, DECAYS, overflow=torch.tensor(1.0))
    norm, scale = torch.tensor(2.0), torch.tensor(4.0)
    adamw(*lists, RATES, DECAYS, norm=norm, largest_norm=1.0, scale=scale, overflow=torch.tensor(1.0))
    for given, old in zip(lists, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(given, old, strict=True))


def test_gradients_are_divided_by_the_scale():
    scaled, plain = drawn(), drawn()
    for gradient in scaled[1]:
        gradient.mul_(8)
    adamw(*scaled, RATES, DECAYS, scale=torch.tensor(8.0), overflow=torch.tensor(0.0))
    adamw(*plain, RATES, DECAYS)
    for given, expected in zip(scaled, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize("largest", [0.5, 100.0])
def test_gradients_count_as_if_clipped_and_stay(largest):
    clipped, plain, scaled = drawn(), drawn(), drawn()
    norm = torch.nn.utils.get_total_norm(plain[1])
    kept = [gradient.clone() for gradient in plain[1]]
    adamw(*plain, RATES, DECAYS, norm=norm, largest_norm=largest)
    assert all(torch.equal(a, b) for a, b in zip(plain[1], kept, strict=True))
    for tensor in clipped[1]:
        tensor.mul_((largest / (norm + 1e-6)).clamp(max=1))
    adamw(*clipped, RATES, DECAYS)
    # The norm is that of the gradients without their scale.
    for tensor in scaled[1]:
        tensor.mul_(8)
    adamw(*scaled, RATES, DECAYS, norm=norm, largest_norm=largest, scale=torch.tensor(8.0), overflow=torch.tensor(0.0))
    for i in (0, 2, 3):
        for a, b, c in zip(clipped[i], plain[i], scaled[i], strict=True):
            assert torch.equal(a, b) and torch.equal(a, c)


def test_the_operation_keeps_pytorch_s_rules():
    torch.library.opcheck(
        torch.ops.reread_kernels.adamw, (*drawn(), RATES, DECAYS, 0.9, 0.999, 1e-8, None, 0.0, None, None)
    )


def test_what_it_does_not_take_is_refused_with_what_came():
    lists = drawn()
    with pytest.raises(ValueError, match="means of as many parameters, got 2 and 3"):
        adamw(*lists[:2], lists[2][:2], *lists[3:], RATES, DECAYS)
    with pytest.raises(ValueError, match=r"squares of their parameter's shape.*got \(4, 5\) of .* for \(3,\)"):
        adamw(*lists[:3], [lists[3][1], *lists[3][1:]], lists[4], RATES, DECAYS)
    with pytest.raises(ValueError, match="all of float32, .*, got torch.float32 on cpu, torch.float64 on cpu"):
        adamw([*lists[0][:2], lists[0][2].double()], *lists[1:], RATES, DECAYS)


def test_an_error_of_the_kernel_is_raised(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sys.modules["cuda_ext.adamw"], "kernel", lambda *_: fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        adamw(*drawn(), RATES, DECAYS)


def test_no_parameters_are_nothing_to_do():
    adamw([], [], [], [], [], [], [])


def test_torch_compile_takes_it_whole():
    called, compiled = drawn(), drawn()
    torch._dynamo.reset()

    def step(lists):
        adamw(*lists, RATES, DECAYS)

    step(called)
    torch.compile(step, fullgraph=True, backend="aot_eager")(compiled)
    for given, expected in zip(compiled, called, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))
