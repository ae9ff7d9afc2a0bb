"""The device of a job: half precision where there is a GPU, and one job a GPU."""

import contextlib

import pytest
import torch

from storage.errors import InputError
from storage.locks import file_lock
from training import device
from training.settings import Settings

CPU = torch.device("cpu")


def test_half_precision_is_off_on_the_cpu_and_refused_when_asked_for():
    assert device.mixed_precision(Settings(), CPU) is None
    assert device.mixed_precision(Settings(amp="off"), torch.device("cuda", 0)) is None
    with pytest.raises(InputError, match="amp is float16, and there is no GPU"):
        device.mixed_precision(Settings(amp="float16"), CPU)


def test_without_a_gpu_a_job_has_the_cpu(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with device.acquire_device() as claimed:
        assert claimed == CPU
    assert not any(tmp_path.iterdir())


class Gpu:
    def __init__(self, uuid):
        self.uuid = uuid


def test_jobs_take_free_gpus_one_each_by_their_uuid(monkeypatch, tmp_path):
    """The locks alone are real here: what a machine with two GPUs would say is put in its place."""
    taken = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu(f"uuid-{index}"))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    with device.acquire_device() as first, device.acquire_device() as second:
        assert (first.index, second.index) == (0, 1)
        with file_lock(device.LOCKS / "gpu-uuid-0.lock", blocking=False) as free:
            assert not free
    with file_lock(device.LOCKS / "gpu-uuid-0.lock", blocking=False) as free:
        assert free
    assert taken == [0, 1]


def test_a_job_waits_while_every_gpu_is_taken(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu("only"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    other = device.acquire_device()
    other.__enter__()
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            other.__exit__(None, None, None)

    monkeypatch.setattr(device.time, "sleep", sleep)
    with device.acquire_device() as claimed:
        assert claimed.index == 0
    assert len(waits) == 2
    assert capsys.readouterr().err.count("waiting") == 1


def test_several_jobs_may_share_each_gpu_and_spread_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REREAD_RUNS_A_GPU", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu(f"uuid-{index}"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    with contextlib.ExitStack() as held:
        claimed = [held.enter_context(device.acquire_device()).index for _ in range(4)]
        assert claimed == [0, 1, 0, 1]
        for name in ("gpu-uuid-0.lock", "gpu-uuid-1.lock", "gpu-uuid-0-1.lock", "gpu-uuid-1-1.lock"):
            with file_lock(device.LOCKS / name, blocking=False) as free:
                assert not free
        # All four are taken: a fifth waits.
        monkeypatch.setattr(device.time, "sleep", stop)
        with pytest.raises(TimeoutError), device.acquire_device():
            pass


def stop(seconds):
    raise TimeoutError


@pytest.mark.parametrize("given", ["0", "two", "-1", ""])
def test_a_wrong_number_of_runs_a_gpu_is_refused(monkeypatch, tmp_path, given):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REREAD_RUNS_A_GPU", given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match=f"REREAD_RUNS_A_GPU={given} is not a number of runs"), device.acquire_device():
        pass
    assert not any(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_named_in_the_environment():
    with device.acquire_device() as claimed:
        found = device.environment(claimed)
    assert found["gpu"] and found["cuda"] and found["driver"]
