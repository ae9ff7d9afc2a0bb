"""Losses of logits."""

import pytest
import torch
from torch.nn import functional

from models import feeding


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_are_the_field_s_own(smoothing):
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.0]])
    spread = functional.one_hot(torch.tensor([0, 1]), 2) * (1 - smoothing) + smoothing / 2
    expected = -(spread * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(feeding.loss(logits, torch.tensor([0, 1]), smoothing), expected)
    several = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    soft = several * (1 - smoothing) + smoothing / 2
    p = torch.sigmoid(logits)
    expected = -(soft * p.log() + (1 - soft) * (1 - p).log()).mean()
    torch.testing.assert_close(feeding.loss(logits, several, smoothing), expected)
