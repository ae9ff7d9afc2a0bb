"""Several processes under torchrun, for tests of the CPU and of GPUs."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from storage.source import ROOT

TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TORCHRUN = (*TWO, "-m", "training")


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
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            ranks = [int(one.removeprefix(b"RANK=")) for one in variables if one.startswith(b"RANK=")]
            if int(parent) == process.pid and ranks:
                found[ranks[0]] = int(entry.name)
    return found


def kill_rank_after(process, epoch, rank):
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "epoch" and event["epoch"] == epoch:
            break
    os.kill(workers(process)[rank], signal.SIGKILL)
