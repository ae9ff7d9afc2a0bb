"""The learning rate of each step, by hand and beside torch's own schedulers."""

import math

import pytest
import torch

from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.training.schedules import REGISTRY, Schedule
from reread.training.settings import Settings

STEPS, EPOCHS = 5, 10


def rates(**schedule):
    made = Schedule(schedule, 0.1, EPOCHS)
    return [made(step, STEPS) for step in range(STEPS * EPOCHS)]


@pytest.mark.parametrize("name", [name for name in REGISTRY.available() if name != "one_cycle"])
def test_a_warm_up_is_a_line_to_the_peak(name):
    learning_rates = rates(name=name, warmup_epochs=2)
    assert learning_rates[:10] == pytest.approx([0.1 * (step + 1) / 11 for step in range(10)])
    assert learning_rates[10] == pytest.approx(0.1) == max(learning_rates)
    assert rates(name=name, warmup_epochs=0)[0] == 0.1


def test_cosine_falls_to_zero():
    learning_rates = rates(name="cosine", warmup_epochs=2)
    assert learning_rates[30] == pytest.approx(0.05)
    assert learning_rates[20] == pytest.approx(0.05 * (1 + math.cos(math.pi / 4)))
    assert learning_rates[10:] == sorted(learning_rates[10:], reverse=True)
    assert 0 < learning_rates[-1] < 0.001


def test_constant_stays():
    assert set(rates(name="constant", warmup_epochs=1)[5:]) == {0.1}


def test_step_multiplies_at_its_milestones():
    learning_rates = rates(name="step", warmup_epochs=0, milestones=(0.5, 0.75), gamma=0.1)
    milestones = [25, 38]  # shares of 50 steps
    expected = [0.1 * 0.1 ** sum(step >= milestone for milestone in milestones) for step in range(50)]
    assert learning_rates == pytest.approx(expected)


def test_polynomial_is_torch_s():
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.lr_scheduler.PolynomialLR(optimiser, STEPS * EPOCHS, power=2.0)
    assert rates(name="polynomial", warmup_epochs=0, power=2.0) == pytest.approx(follow(optimiser, theirs), abs=1e-9)


@pytest.mark.parametrize("rise", [0.1, 0.3, 0.5])
def test_one_cycle_is_torch_s(rise):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.1, STEPS * EPOCHS, pct_start=rise, anneal_strategy="linear", cycle_momentum=False
    )
    assert rates(name="one_cycle", rise=rise) == pytest.approx(follow(optimiser, theirs))


def test_one_cycle_without_room_for_a_rise_falls_from_the_peak():
    learning_rates = rates(name="one_cycle", rise=0.001)
    assert learning_rates == pytest.approx([0.1 + (4e-7 - 0.1) * step / 49 for step in range(50)])
    assert Schedule({"name": "one_cycle"}, 0.1, EPOCHS).warmup_epochs == 0


def follow(optimiser, scheduler):
    """The learning rate of each step by a scheduler of torch's."""
    learning_rates = []
    for _ in range(STEPS * EPOCHS):
        learning_rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return learning_rates


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"schedule": {"name": "cosine", "warmup_epochs": 2}, "max_epochs": 2}, "schedule.warmup_epochs"),
        ({"schedule": {"name": "step", "milestones": [0.75, 0.5]}}, "milestones"),
        ({"schedule": "cosin"}, "'cosine'"),
    ],
)
def test_nonsense_is_refused(settings, field):
    with pytest.raises(InputError, match=field):
        read(Settings, settings, "training")
