"""One job per GPU: the lease's locks, spreading and waiting."""

import contextlib

import pytest
import torch

from runtime import gpu_lease
from storage.locks import file_lock

CPU = torch.device("cpu")


def test_without_a_gpu_a_job_has_the_cpu(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with gpu_lease.acquire_gpu() as device:
        assert device == CPU
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
    with gpu_lease.acquire_gpu() as first, gpu_lease.acquire_gpu() as second:
        assert (first.index, second.index) == (0, 1)
        with file_lock(gpu_lease.LOCKS / "gpu-uuid-0.lock", blocking=False) as free:
            assert not free
    with file_lock(gpu_lease.LOCKS / "gpu-uuid-0.lock", blocking=False) as free:
        assert free
    assert taken == [0, 1]


def test_a_job_waits_while_every_gpu_is_taken(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu("only"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    other = gpu_lease.acquire_gpu()
    other.__enter__()
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            other.__exit__(None, None, None)

    monkeypatch.setattr(gpu_lease.time, "sleep", sleep)
    with gpu_lease.acquire_gpu() as device:
        assert device.index == 0
    assert len(waits) == 2
    assert capsys.readouterr().err.count("waiting") == 1


def test_several_jobs_may_share_each_gpu_and_spread_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu(f"uuid-{index}"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    with contextlib.ExitStack() as held:
        claimed = [held.enter_context(gpu_lease.acquire_gpu(slots=2)).index for _ in range(4)]
        assert claimed == [0, 1, 0, 1]
        for name in ("gpu-uuid-0.lock", "gpu-uuid-1.lock", "gpu-uuid-0-1.lock", "gpu-uuid-1-1.lock"):
            with file_lock(gpu_lease.LOCKS / name, blocking=False) as free:
                assert not free
        # All four are taken: a fifth waits.
        monkeypatch.setattr(gpu_lease.time, "sleep", stop)
        with pytest.raises(TimeoutError), gpu_lease.acquire_gpu(slots=2):
            pass


def stop(seconds):
    raise TimeoutError
