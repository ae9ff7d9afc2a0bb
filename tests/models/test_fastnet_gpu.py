"""fastnet on a GPU: by the kernel and by PyTorch's modules its norms without a scale give the same gradients, and its
step is captured in every precision."""

import copy

import pytest
import torch
from torch.nn import functional

import models
from cuda_ext import library
from models.layers.fusing import by_modules
from models.objectives import make_objective
from reread.batches.augmentations import Rows, alternating_flip, shrink
from reread.runtime.determinism import set_determinism
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.step import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
DESCRIPTION = {
    "name": "pictures",
    "kind": "image",
    "task": "single-label",
    "classes": list(range(10)),
    "arrays": {"images": {"shape": [100, 32, 32, 3]}},
}


def drawn(**settings):
    torch.manual_seed(0)
    network = models.build("fastnet", {"widths": [16, 32, 32], **settings}, DESCRIPTION).cuda()
    images = torch.randn(64, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    return network, images, torch.arange(64, device="cuda") % 10


@pytest.mark.parametrize("activation", ["gelu", "relu", "swish", "swish_beta"])
@pytest.mark.parametrize("convolutions", [2, 3])
def test_kernels_and_modules_agree(activation, convolutions, monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    network, images, target = drawn(activation={"name": activation}, convolutions=convolutions)
    results = []
    for modules in (False, True):
        own = copy.deepcopy(network)
        with by_modules(modules):
            loss = functional.cross_entropy(own(images), target)
            loss.backward()
        gradients = [parameter.grad.flatten() for parameter in own.parameters() if parameter.requires_grad]
        results.append(torch.cat([loss.detach()[None], *gradients]).double())
    assert float((results[0] - results[1]).norm() / results[1].norm()) < (0.02 if activation == "relu" else 1e-3)


def test_weights_of_half_precision_whiten_in_float32(monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    network, images, _ = drawn()
    whitening = network.bfloat16().whitening
    expected = functional.conv2d(images.double(), whitening.weight.double(), whitening.bias.double()).bfloat16()
    torch.testing.assert_close(whitening(images), expected)


@pytest.mark.parametrize("amp", ["fp32", "bf16", "fp16"])
def test_a_captured_step_learns_in_every_precision(amp):
    network, images, target = drawn()
    settings = Settings(optimizer={"name": "sgd"}, learning_rate=0.2, amp=amp, deterministic=False)
    objective = make_objective(settings.objective, DESCRIPTION)
    device = torch.device("cuda", torch.cuda.current_device())
    step = Step(network.train(), objective, make_optimiser(network, settings), settings, device)
    losses = [step((images,), target, 0.2).loss.item() for _ in range(40)]
    assert step.graphed and not step._graphs.failed
    assert losses[-1] < 0.7 * losses[0]


def test_in_deterministic_mode_training_repeats_bit_for_bit(request):
    set_determinism(True)
    request.addfinalizer(lambda: set_determinism(False))
    ends = []
    for _ in range(2):
        network, images, target = drawn()
        settings = Settings(optimizer={"name": "sgd"}, learning_rate=0.2, amp="bf16")
        device = torch.device("cuda", torch.cuda.current_device())
        objective = make_objective(settings.objective, DESCRIPTION)
        step = Step(network.train(), objective, make_optimiser(network, settings), settings, device)
        for _ in range(20):
            step((images,), target, 0.2)
        ends.append([parameter.detach().clone() for parameter in network.parameters()])
    assert all(map(torch.equal, *ends))


def test_augmentations_by_row_are_those_of_the_cpu():
    images = torch.randn(500, 3, 32, 32)
    rows = torch.arange(40_000, 40_500)
    here = alternating_flip.apply(images, Rows(rows, 3, 1), alternating_flip.Settings())
    there = alternating_flip.apply(images.cuda(), Rows(rows.cuda(), 3, 1), alternating_flip.Settings())
    assert torch.equal(there.cpu(), here)
    small = shrink.apply(images.cuda(), Rows(rows.cuda(), 3, 1), shrink.Settings())
    torch.testing.assert_close(
        small.cpu(), shrink.apply(images, Rows(rows, 3, 1), shrink.Settings()), rtol=1e-4, atol=1e-4
    )
