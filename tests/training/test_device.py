"""How a job computes on its device: half precision where there is a GPU, and the record of the environment."""

import pytest
import torch

from storage.errors import InputError
from training import device
from training.settings import Settings

CPU = torch.device("cpu")


def test_half_precision_is_off_on_the_cpu_and_refused_when_asked_for():
    assert device.mixed_precision(Settings(), CPU) is None
    assert device.mixed_precision(Settings(amp="off"), torch.device("cuda", 0)) is None
    with pytest.raises(InputError, match="amp is float16, and there is no GPU"):
        device.mixed_precision(Settings(amp="float16"), CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_named_in_the_environment():
    with device.acquire_device() as gpu:
        found = device.environment(gpu)
    assert found["gpu"] and found["cuda"] and found["driver"]
