"""Capsules on a GPU: a step replays from a CUDA graph, and is the CPU's within rounding."""

import copy

import pytest
import torch

import models
from models.objectives import make_objective
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.step import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
GPU = torch.device("cuda", 0)


def description(task="single-label"):
    arrays = {"images": {"shape": [100, 28, 28, 1]}}
    about = {"name": "m", "kind": "image", "task": task, "classes": list("0123456789"), "arrays": arrays}
    return about | {"mean": [0.1307], "deviation": [0.3081]}


def batch(task):
    torch.manual_seed(1)
    images, labels = torch.randn(16, 1, 28, 28), torch.randint(10, (16,))
    if task == "single-label":
        return images, labels
    return images, torch.eye(10)[labels].maximum(torch.eye(10)[(labels + 3) % 10])


def network(task, **settings):
    torch.manual_seed(0)
    return models.build("capsnet", settings, description(task))


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("gradient", ["votes", "all"])
def test_in_float32_loss_and_gradients_are_the_cpu_s(monkeypatch, task, gradient):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    built = network(task, routing_gradient=gradient)
    results = []
    for device in ("cpu", GPU):
        own, (images, target) = copy.deepcopy(built).to(device), (tensor.to(device) for tensor in batch(task))
        objective = make_objective(
            {"name": "margin", "labels_per_row": 2 if target.ndim == 2 else 1}, description(task)
        )
        loss = objective.loss(own, own(images), target, (images,))
        loss.backward()
        results.append(
            [loss.detach().cpu(), torch.cat([parameter.grad.cpu().flatten() for parameter in own.parameters()])]
        )
    for cpu, gpu in zip(*results, strict=True):
        assert float((cpu - gpu).norm() / cpu.norm()) < 1e-4


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_a_captured_step_gives_the_bits_of_one_that_is_called(task):
    target_labels = {"labels_per_row": 2} if task == "multi-label" else {}
    images, target = (tensor.to(GPU) for tensor in batch(task))
    ended = []
    for graphs in (True, False):
        built = network(task).to(GPU)
        objective = make_objective({"name": "margin", **target_labels}, description(task))
        settings = Settings(batch_size=16, max_grad_norm=0.0, cuda_graphs=graphs)
        step = Step(built, objective, make_optimiser(built, settings), settings, GPU)
        # The first is called, the second captured, the third replayed. A capture that fails would warn.
        losses = [float(step((images,), target, 1e-5).loss) for _ in range(3)]
        assert losses[2] < losses[0]
        ended.append((losses, torch.cat([parameter.detach().flatten() for parameter in built.parameters()])))
    assert ended[0][0] == ended[1][0] and torch.equal(ended[0][1], ended[1][1])
