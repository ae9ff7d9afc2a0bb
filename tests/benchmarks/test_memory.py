"""The plain networks beside which memory is measured compute what ours do, and checkpointing keeps fewer tensors."""

import pytest
import torch

from benchmarks.memory import Subject, of_modules

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
SUBJECTS = [
    Subject("densenet", {"depth": 16, "growth_rate": 4}, 4, 16),
    Subject("densenet_imagenet", {"depth": "13", "growth_rate": 4}, 2, 64),
    Subject("resnet18", {"width": 4}, 4, 16),
    Subject("preresnet", {"depth": 8, "width": 4}, 4, 16),
    Subject("fastnet", {"widths": [8, 8, 8]}, 4, 16),
]


def step(network, images):
    """Logits, gradients, and the bytes that the forward pass keeps for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network(images)
    logits.square().sum().backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.requires_grad]
    return logits.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.model)
def test_modules_compute_what_the_network_does_and_checkpointing_keeps_less(subject):
    torch.manual_seed(0)
    network = subject.build().double()
    images = torch.randn(subject.batch, 3, subject.pixels, subject.pixels, dtype=torch.float64)
    if subject.model == "fastnet":
        # Its whitening computes in float32.
        network, images = network.float(), images.float()
    peers = [of_modules(network, checkpointed) for checkpointed in (False, True)]
    logits, gradients, _ = step(network, images)
    kept = []
    for peer in peers:
        output, slopes, bytes_kept = step(peer, images)
        torch.testing.assert_close(output, logits)
        for slope, other in zip(slopes, gradients, strict=True):
            torch.testing.assert_close(slope, other)
        kept.append(bytes_kept)
    assert kept[1] < kept[0]
