"""How a job computes on its device: half precision where there is a GPU, and the record of the environment."""

import pytest
import torch

from reread.storage.errors import InputError
from reread.training import device
from reread.training.machine import cpu, machine
from reread.training.settings import Settings

CPU = torch.device("cpu")


def test_half_precision_is_off_on_the_cpu_and_refused_when_asked_for():
    assert device.mixed_precision(Settings(), CPU) is None
    assert device.mixed_precision(Settings(amp="off"), torch.device("cuda", 0)) is None
    for amp in ("fp16", "tf32"):
        with pytest.raises(InputError, match=f"amp is {amp}, and there is no GPU"):
            device.mixed_precision(Settings(amp=amp), CPU)
    assert device.mixed_precision(Settings(amp="fp32"), CPU) is None
    assert device.mixed_precision(Settings(amp="fp16"), torch.device("cuda", 0)) is torch.float16


def test_each_precision_sets_how_float32_is_multiplied_and_the_next_job_sets_it_again():
    def products():
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = products()
    try:
        for amp, expected in {"fp32": (False, False), "tf32": (True, True), "auto": (False, True)}.items():
            device.set_float32_products(amp)
            assert products() == expected, amp
        # What PyTorch does by itself.
        assert products() == before
    finally:
        device.set_float32_products("auto")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_named_in_the_environment():
    with device.acquire_device() as gpu:
        environment = device.environment(gpu)
    assert environment["gpu"] and environment["cuda"] and environment["driver"]


def test_a_cpu_is_named_by_what_the_system_says_of_it(tmp_path):
    """Two CPUs of one instruction set give other last bits: their runs have other keys."""
    path, capability = tmp_path / "cpuinfo", torch.backends.cpu.get_cpu_capability()
    assert cpu(path) == capability
    path.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
        "processor\t: 1\nvendor_id\t: Other\n"
    )
    assert cpu(path) == f"{capability}, AuthenticAMD family 26 model 2"
    path.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert cpu(path) == f"{capability}, implementer 0x41 part 0xd40"


def test_visible_gpus_of_several_kinds_are_refused(monkeypatch):
    """A run may get any of them, and its key names one."""
    names = ["NVIDIA H100", "NVIDIA A100"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):
        machine()
