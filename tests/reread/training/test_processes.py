"""Several processes train one network as one process does: losses, weights, resuming, refusals."""

import json

import pytest
import torch
from safetensors.torch import load_file

from reread.runtime import gpu_lease
from reread.storage.errors import InputError
from reread.training.processes import SINGLE_PROCESS, Processes, with_shared_statistics
from tests.reread.training.outcome import outcome
from tests.reread.training.torchrun import TORCHRUN, directory, finish, history, start, train_with_kills, twins

HAN = {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.0}


def test_two_processes_give_the_losses_and_weights_of_one(write_job, text_directory, train_here):
    """64 rows in batches of at most 7 are batches of 6 and 7: a process has 3 or 4 rows of each."""
    settings = {
        "max_epochs": 3, "batch_size": 7, "ema_decay": 0.9, "max_grad_norm": 0.5, "adversarial_epsilon": 0.5,
        "optimizer": {"name": "sgd", "weight_decay": 0.01},
    }  # fmt: skip
    alone, together = (write_job(text_directory, name, network=HAN, training=settings) for name in ("one", "two"))
    train_here(alone)
    events = finish(start(together, *TORCHRUN))
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        "started",
        *["epoch"] * 3,
        "finished",
    ]
    for row, other in zip(history(alone), history(together), strict=True):
        assert other == pytest.approx(row, rel=2e-5)
    weights, others = (load_file(directory(job) / "best.safetensors") for job in (alone, together))
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-4, atol=1e-6)
    assert len((directory(together) / "log.txt").read_text().splitlines()) == 3
    assert json.loads((directory(together) / "environment.json").read_text())["processes"] == 2


def test_a_run_resumes_after_its_processes_were_killed(write_job, text_directory):
    settings = {"max_epochs": 20, "patience": 20}
    whole, killed = twins(write_job, text_directory, network=HAN | {"dropout": 0.3}, training=settings)
    finish(start(whole, *TORCHRUN))
    train_with_kills(killed)
    assert outcome(directory(killed)) == outcome(directory(whole))


def test_batch_norm_over_several_processes_needs_gpus(monkeypatch):
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2))
    assert with_shared_statistics(network, SINGLE_PROCESS) is network
    assert with_shared_statistics(network[:1], Processes(world_size=2))[0] is network[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="has batch norm"):
        with_shared_statistics(network, Processes(world_size=2))


def test_one_process_without_torchrun_s_variables(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Processes.of_environment() == SINGLE_PROCESS and SINGLE_PROCESS.main
    values = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 1}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    assert Processes.of_environment() == Processes(5, 8, 1, 4, 1)


class Gpu:
    def __init__(self, uuid):
        self.uuid = uuid


def test_gpus_are_held_all_or_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Gpu(f"uuid-{index}"))
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        # The one that is free is not kept while the others are not.
        with gpu_lease.acquire_gpus(1) as free:
            assert free == [2]
        if len(sleeps) == 2:
            other.__exit__(None, None, None)

    monkeypatch.setattr(gpu_lease.time, "sleep", sleep)
    other = gpu_lease.acquire_gpus(2)
    assert other.__enter__() == [0, 1]
    with gpu_lease.acquire_gpus(2) as held:
        assert held == [0, 1]
    assert len(sleeps) == 2
