"""AdamW's kernels on a GPU, in strict mode: the reference can not stand in for them."""

import pytest
import torch
from torch import nn

from cuda_ext.adamw import adamw
from cuda_ext.adamw.cases import HAN, LARGEST_ERROR, by_group, drawn, lists_of, ours
from cuda_ext.bench import in_float64
from reread.training.optimisers import make_optimiser, set_learning_rate
from reread.training.settings import Settings
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# No number, less than a tile, a tile and more, several tiles; more tensors than a launch takes.
LISTS = [[(1,)], [(0,), (5, 3), ()], [(1024,), (1023,), (2500,), (64, 64)], [(1 + i % 5,) for i in range(1300)]]


@pytest.mark.parametrize("shapes", [*LISTS, HAN], ids=len)
def test_the_error_against_float64_is_rounding(shapes):
    torch.manual_seed(0)
    tensors = drawn(shapes)
    exact = by_group(*map(in_float64, tensors))
    results = ours(*tensors)
    for part in range(3):
        a, b = (
            torch.cat([tensor.flatten() for tensor in given[part * len(shapes) :][: len(shapes)]])
            for given in (results, exact)
        )
        assert rules.relative_error(a, b) <= LARGEST_ERROR
    assert all(step.item() == 11 for step in tensors[-len(shapes) :])


def of_copies(*tensors):
    """The operation on copies: its inputs stay."""
    return ours(*(tensor.clone() for tensor in tensors))


def test_fifty_runs_give_the_same_bits():
    rules.fifty_runs_give_the_same_bits(of_copies, drawn(LISTS[2]))


def test_a_graph_replays_it_on_new_values():
    tensors = drawn(LISTS[2])
    rules.a_graph_replays_it_on_new_values(of_copies, tensors, torch.randn_like(tensors[0]))


def test_it_runs_on_the_current_stream():
    tensors = drawn(LISTS[2])
    rules.it_runs_on_the_current_stream(of_copies, tensors, torch.randn_like(tensors[0]))


def test_strides_are_followed_and_must_be_alike():
    parameter = torch.randn(8, 16, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    tensors = [parameter, *(torch.rand_like(parameter) for _ in range(3)), torch.zeros((), device="cuda")]
    expected = of_copies(*(tensor.contiguous() for tensor in tensors))
    assert all(torch.equal(a, b) for a, b in zip(of_copies(*tensors), expected, strict=True))
    with pytest.raises(RuntimeError, match="equal sizes and strides"):
        ours(tensors[0], tensors[1].contiguous(), *tensors[2:])
    with pytest.raises(RuntimeError, match="without gaps"):
        ours(*(tensor[:, ::2] if tensor.ndim else tensor for tensor in tensors))


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_tensors_that_begin_anywhere(offset):
    tensors = drawn([(5000,)])
    shifted = [
        torch.empty(tensor.numel() + offset, device="cuda")[offset:].view_as(tensor).copy_(tensor) for tensor in tensors
    ]
    assert all(torch.equal(a, b) for a, b in zip(of_copies(*tensors), ours(*shifted), strict=True))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("largest", [0.5, 1e4])
def test_gradients_count_as_if_clipped_and_stay(largest, scaled):
    plain = drawn(LISTS[2])
    clipped = [tensor.clone() for tensor in plain]
    settings = [0.1] * len(LISTS[2]), [0.1] * len(LISTS[2])
    lists, others = lists_of(plain), lists_of(clipped)
    norm = torch.nn.utils.get_total_norm(lists[1])
    scale = torch.full((), 8.0, device="cuda") if scaled else None
    if scaled:
        torch._foreach_mul_(lists[1], scale)
    torch._foreach_mul_(others[1], (largest / (norm + 1e-6)).clamp(max=1))
    adamw(*others, *settings)
    adamw(*lists, *settings, norm=norm, largest_norm=largest, scale=scale)
    for i in (0, 2, 3):
        torch.testing.assert_close(lists[i], others[i], rtol=1e-5, atol=1e-6)
    assert rules.relative_error(torch.nn.utils.get_total_norm(lists[1]), norm) < 1e-6


def test_a_norm_that_is_not_a_number_shows():
    tensors = drawn(LISTS[0])
    adamw(*lists_of(tensors), [0.1], [0.1], norm=torch.full((), float("nan"), device="cuda"), largest_norm=1.0)
    assert tensors[0].isnan().all()


def test_an_overflow_changes_nothing():
    tensors = drawn(LISTS[2])
    before = [tensor.clone() for tensor in tensors]
    settings = [0.1] * len(LISTS[2]), [0.1] * len(LISTS[2])
    nonzero, zero = torch.ones((), device="cuda"), torch.zeros((), device="cuda")
    adamw(*lists_of(tensors), *settings, overflow=nonzero)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    adamw(*lists_of(tensors), *settings, overflow=zero)
    assert not torch.equal(tensors[0], before[0])


def test_it_is_torch_s_fused_adamw_to_a_few_units_of_the_last_place():
    """At the means, which round alike. The parameter's bias corrections are nearer to the exact ones than PyTorch's."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(100_000, device="cuda"))
    own = parameter.detach().clone()
    means, squares, step = torch.zeros_like(own), torch.zeros_like(own), torch.zeros((), device="cuda")
    optimiser = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1, fused=True)
    for _ in range(20):
        parameter.grad = torch.randn_like(own)
        adamw([own], [parameter.grad], [means], [squares], [step], [0.01], [0.1])
        optimiser.step()
    state = optimiser.state[parameter]
    torch.testing.assert_close(means, state["exp_avg"], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(squares, state["exp_avg_sq"], rtol=1e-6, atol=0)
    torch.testing.assert_close(own, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_float64_takes_the_reference():
    tensors = [in_float64(tensor) for tensor in drawn(LISTS[2])]
    tensors[-4:] = [step.float() for step in tensors[-4:]]
    copies = [tensor.clone() for tensor in tensors]
    assert all(torch.equal(a, b) for a, b in zip(ours(*tensors), by_group(*copies), strict=True))


def trained(optimiser, network, steps, scaler=None):
    generator = torch.Generator("cuda").manual_seed(1)
    for number in range(steps):
        set_learning_rate(optimiser, 0.01 / (1 + number))
        x = torch.randn(16, 7, device="cuda", generator=generator)
        network.zero_grad()
        loss = network(x).square().mean()
        if scaler is None:
            loss.backward()
            optimiser.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()


@pytest.mark.parametrize("scaled", [False, True])
def test_training_goes_on_with_torch_s_state_and_torch_with_this(scaled):
    """The same numbers, up to rounding, from either one's checkpoint; with a scaler too, which skips an overflow."""
    networks = []
    for first, second in ((True, False), (False, True), (False, False)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).cuda()
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**127) if scaled else None
        state = None
        for own in (first, second):
            optimiser = make_optimiser(network, Settings())
            if not own:
                optimiser = torch.optim.AdamW(optimiser.param_groups, fused=True)
            if state is not None:
                optimiser.load_state_dict(state)
            trained(optimiser, network, 5, scaler)
            state = optimiser.state_dict()
        networks.append((network, state))
    (own_first, state), (own_last, same), (theirs, expected) = networks
    for a, b, c in zip(own_first.parameters(), own_last.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(b, c, rtol=1e-5, atol=1e-6)
    for values, equal, wanted in zip(*(given["state"].values() for given in (state, same, expected)), strict=True):
        assert values.keys() == equal.keys() == wanted.keys()
        assert values["step"] == equal["step"] == wanted["step"]
