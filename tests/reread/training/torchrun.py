"""Several processes under torchrun, for tests of the CPU and of GPUs."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from reread.storage.source import ROOT

TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TORCHRUN = (*TWO, "-m", "reread.training")
ELASTIC = (*TWO, "--max-restarts", "2", "-m", "reread.training")


def start(job, *command, gpus=""):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpus}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *command, str(job), "--events"], cwd=job.parent, env=environment, text=True, **streams
    )


def finish(process):
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in output.splitlines()]


def directory(job):
    return Path(json.loads(job.read_text())["run_directory"])


def history(job):
    with open(directory(job) / "history.csv") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def workers(process):
    """The processes that torchrun has started, by rank (Linux)."""
    by_rank = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            ranks = [int(variable.removeprefix(b"RANK=")) for variable in variables if variable.startswith(b"RANK=")]
            if int(parent) == process.pid and ranks:
                by_rank[ranks[0]] = int(entry.name)
    return by_rank


def wait_for(process, name, epoch):
    """Read events until one of that name and epoch, or of a later one; return its epoch."""
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == name and event["epoch"] >= epoch:
            return event["epoch"]
    raise AssertionError(process.stderr.read())


def twins(write_job, data, *model, **entries):
    """Two jobs of one run key in folders of their own: one to train whole, and one to kill."""
    jobs = [write_job(data, name, *model, run_key="same", **entries) for name in ("whole", "killed")]
    for job in jobs:
        given = json.loads(job.read_text())
        job.write_text(json.dumps(given | {"run_directory": f"{given['run_directory']}-{job.stem}"}))
    return jobs


def train_with_kills(job, gpus=""):
    """Train a job whose rank 1 is killed, upon which torchrun starts all again, and then torchrun; train it to its end.

    Return the events of the last launch.
    """
    process = start(job, *ELASTIC, gpus=gpus)
    wait_for(process, "epoch", 2)
    os.kill(workers(process)[1], signal.SIGKILL)
    resumed = wait_for(process, "started", 2)
    started = workers(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in started.values()):
        assert time.monotonic() < deadline, "a process outlived torchrun"
        time.sleep(0.05)
    assert len(started) == 2 and not (directory(job) / "result.json").exists()
    events = finish(start(job, *TORCHRUN, gpus=gpus))
    assert events[0]["event"] == "started" and events[0]["epoch"] >= resumed
    return events
