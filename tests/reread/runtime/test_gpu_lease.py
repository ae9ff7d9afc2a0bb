"""One job per GPU: the lease's locks, spreading and waiting."""

import contextlib
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
import torch

from reread.runtime import gpu_lease
from reread.storage.errors import InputError
from reread.storage.locks import file_lock
from reread.storage.source import ROOT

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def locks(monkeypatch, tmp_path):
    """A folder of locks of the test's own."""
    monkeypatch.setattr(gpu_lease, "LOCKS", tmp_path / "locks")
    return tmp_path / "locks"


def test_without_a_gpu_a_job_has_the_cpu(monkeypatch, locks):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with gpu_lease.acquire_gpu() as device:
        assert device == CPU
    assert not locks.exists()


class Gpu:
    def __init__(self, uuid):
        self.uuid = uuid


def test_jobs_take_free_gpus_one_each_by_their_uuid(monkeypatch):
    """The locks alone are real here: what a machine with two GPUs would say is put in its place."""
    taken = []
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


def test_a_job_waits_while_every_gpu_is_taken(monkeypatch, capsys):
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


def test_several_jobs_may_share_each_gpu_and_spread_first(monkeypatch):
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


# A process on a machine with two GPUs, whose locks are real.
LEASES = """
    import sys, torch
    from types import SimpleNamespace
    from reread.runtime import gpu_lease
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 2
    torch.cuda.set_device = lambda index: None
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(uuid=f"{sys.argv[1]}-{index}")
    with gpu_lease.acquire_gpu() as device:
        print(device.index, gpu_lease.LOCKS, flush=True)
        sys.stdin.read()
"""


def test_two_checkouts_of_a_user_have_a_gpu_each(tmp_path):
    name, indices = str(uuid.uuid4()), []
    with contextlib.ExitStack() as stack:
        for number, folder in enumerate(("one", "two")):
            (tmp_path / folder).mkdir()
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(LEASES), name], cwd=tmp_path / folder, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / folder)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.communicate)
            index, place = process.stdout.readline().split()
            stack.callback((Path(place) / f"gpu-{name}-{number}.lock").unlink)
            indices.append(int(index))
    assert indices == [0, 1]


def test_a_folder_of_another_s_is_not_used(monkeypatch, locks, tmp_path):
    gpu_lease.make_folder(locks)
    gpu_lease.make_folder(locks)
    assert locks.stat().st_mode & 0o777 == 0o700
    locks.chmod(0o777)
    with pytest.raises(InputError, match=locks.name):
        gpu_lease.make_folder(locks)
    locks.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: locks.stat().st_uid + 1)
    with pytest.raises(InputError, match=locks.name):
        gpu_lease.make_folder(locks)
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(locks)
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(InputError, match=name):
            gpu_lease.make_folder(tmp_path / name)
