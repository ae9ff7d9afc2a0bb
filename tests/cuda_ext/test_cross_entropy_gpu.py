"""Cross entropy's kernel on a GPU, in strict mode: the reference can not stand in for it."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.cross_entropy import MOST_CLASSES, MOST_SCORES, cross_entropy
from cuda_ext.cross_entropy.cases import LARGEST_ERROR, SMOOTHING, drawn
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]

WRONG = """
import sys
import torch
from cuda_ext import library
from cuda_ext.cross_entropy import cross_entropy
library.strict(True)
classes, target = map(int, sys.argv[1:])
targets = torch.tensor([1, 0, 2, target, 0], device="cuda")
loss = cross_entropy(torch.zeros(5, classes, device="cuda"), targets)
print("the loss is", loss.item())
"""


def both_passes(function, scores, targets, smoothing=SMOOTHING):
    scores = scores.detach().requires_grad_()
    loss = function(scores, targets, label_smoothing=smoothing)
    return loss.detach(), *torch.autograd.grad(loss, scores)


@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
@pytest.mark.parametrize(
    "size", [(1, 2), (64, 5), (130, 8), (3000, 8), (40, 9), (33, 32), (7, 33), (1300, 100), (8192, 20), (1024, 1024)]
)
def test_the_error_against_float64_is_rounding(size, smoothing):
    torch.manual_seed(0)
    scores, targets = drawn(*size)
    exact = both_passes(functional.cross_entropy, scores.double(), targets, smoothing)
    assert rules.relative_error(both_passes(cross_entropy, scores, targets, smoothing), exact) <= LARGEST_ERROR


def test_large_scores_neither_overflow_nor_vanish():
    scores, targets = drawn(64, 5)
    scores = scores.detach() * 1e4
    exact = both_passes(functional.cross_entropy, scores.double(), targets)
    assert rules.relative_error(both_passes(cross_entropy, scores, targets), exact) <= LARGEST_ERROR


@pytest.mark.parametrize("classes", [5, 40, 100])
def test_masked_classes_give_a_finite_loss_without_smoothing(classes):
    scores, targets = drawn(64, classes)
    with torch.no_grad():
        scores[torch.arange(64), (targets + 1) % classes] = -torch.inf
    exact = both_passes(functional.cross_entropy, scores.double(), targets, 0.0)
    assert all(part.isfinite().all() for part in exact)
    assert rules.relative_error(both_passes(cross_entropy, scores, targets, 0.0), exact) <= LARGEST_ERROR


@pytest.mark.parametrize("size", [(0, 5), (MOST_SCORES // 4 + 1, 4), (3, MOST_CLASSES + 1)])
def test_more_scores_and_none_take_pytorch_s(size):
    scores, targets = drawn(*size)
    results, expected = (
        both_passes(function, scores, targets) for function in (cross_entropy, functional.cross_entropy)
    )
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def ours(scores, targets):
    return both_passes(cross_entropy, scores, targets)


def test_scores_of_any_strides():
    scores, targets = drawn(64, 6)
    assert all(torch.equal(a, b) for a, b in zip(
        ours(scores.detach()[:, ::2], targets % 3), ours(scores.detach()[:, ::2].contiguous(), targets % 3), strict=True
    ))  # fmt: skip


def test_fifty_runs_give_the_same_bits():
    rules.fifty_runs_give_the_same_bits(ours, drawn(1300, 20))


def test_a_graph_replays_it_on_new_values():
    scores, targets = drawn(64, 5)
    rules.a_graph_replays_it_on_new_values(ours, (scores, targets), torch.randn_like(scores))


def test_it_runs_on_the_current_stream():
    scores, targets = drawn(64, 5)
    rules.it_runs_on_the_current_stream(ours, (scores, targets), torch.randn_like(scores))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    scores, targets = drawn(64, 5)
    rules.torch_compile_takes_it_whole(
        lambda x: cross_entropy(x, targets, SMOOTHING), (scores.detach(),), LARGEST_ERROR
    )


# A thread, eight and a warp for a row.
@pytest.mark.parametrize(("classes", "target"), [(5, 5), (10, 12), (100, -100)])
def test_a_target_that_is_no_class_stops_the_program_with_one_line(classes, target):
    line = f"cross_entropy: target {target} of row 3 is not one of {classes} classes"
    rules.it_stops_the_program(WRONG, (str(classes), str(target)), line)
