"""The error that the benchmark prints and the tests bound."""

import math

import torch

from cuda_ext.bench import relative_error


def test_the_error_is_that_of_the_worst_result_and_nan_never_passes():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert math.isclose(relative_error((exact, exact + torch.tensor([0.0, 0.5])), (exact, exact)), 0.1)
    assert relative_error((exact, exact * torch.nan), (exact, exact)) == math.inf
    assert relative_error((exact * torch.nan, exact), (exact, exact)) == math.inf
