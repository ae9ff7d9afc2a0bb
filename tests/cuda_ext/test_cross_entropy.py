"""Cross entropy on the CPU: the reference behind the operation, its gradient, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.cross_entropy import DTYPES, cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def drawn(rows=6, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(rows, classes, generator=generator, dtype=dtype, requires_grad=True)
    return scores, torch.randint(classes, (rows,), generator=generator)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_it_is_torch_s_with_its_gradient(dtype, smoothing):
    scores, targets = drawn(dtype=dtype)
    own_loss, expected = (
        f(scores, targets, label_smoothing=smoothing) for f in (cross_entropy, functional.cross_entropy)
    )
    assert torch.equal(own_loss, expected)
    slopes = (torch.autograd.grad(loss, scores, torch.tensor(3.0, dtype=dtype))[0] for loss in (own_loss, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("target", [-100, -1, 4])
def test_a_target_outside_of_the_classes_is_an_error_and_none_is_left_out(target):
    scores, targets = drawn(6, 4)
    targets[2] = target
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        cross_entropy(scores, targets)


def test_gradients_match_finite_differences_and_have_none_themselves():
    scores, targets = drawn()
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, targets, 0.1), (scores,))
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(cross_entropy(scores, targets), scores, create_graph=True)


def test_the_operation_keeps_pytorch_s_rules():
    torch.library.opcheck(torch.ops.reread_kernels.cross_entropy, (*drawn(dtype=torch.float32), 0.1))


def test_what_it_does_not_take_is_refused_with_what_came():
    scores, targets = drawn(6, 4)
    for given, match in [
        ((scores.half(), targets), "got torch.float16 and torch.int64"),
        ((scores, targets.int()), "got torch.float64 and torch.int32"),
        ((scores, targets[:5]), r"got \(6, 4\) and \(5,\)"),
        ((scores[0], targets), r"got \(4,\) and \(6,\)"),
        ((scores[:, :0], targets), r"got \(6, 0\) and \(6,\)"),
        ((scores, targets.to("meta")), "got cpu and meta"),
        ((scores, targets, 1.5), "from 0 to 1, got 1.5"),
    ]:
        with pytest.raises(ValueError, match=match):
            cross_entropy(*given)
