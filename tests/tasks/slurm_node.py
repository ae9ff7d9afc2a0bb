"""A Slurm cluster of one node, this machine, for tests: Debian's daemons with files and ports of their own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers import free_port

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch")


def missing() -> str | None:
    """Return why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "only root starts Slurm's daemons"
    os.environ["PATH"] += f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{absent[0]} is not installed: apt-get install slurm-wlm munge" if absent else None


@contextlib.contextmanager
def slurm_node(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons for the block and yield the environment variables by which Slurm's commands reach them."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    configuration = folder / "slurm.conf"
    ports = {name: free_port() for name in ("controller", "node")}
    host = socket.gethostname().partition(".")[0]
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, **ports))
    munge = {name: str(folder / f"munge.{name}") for name in ("socket", "key", "log", "pid", "seed")}
    subprocess.run(["mungekey", "--create", f"--keyfile={munge['key']}"], check=True)
    daemons = [
        # --force: as root, and below a folder that is not root's alone.
        ["munged", "--foreground", "--force", f"--socket={munge['socket']}", f"--key-file={munge['key']}"]
        + [f"--log-file={munge['log']}", f"--pid-file={munge['pid']}", f"--seed-file={munge['seed']}"],
        ["slurmctld", "-D", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration)],
    ]
    variables = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        for command in daemons:
            log = stack.enter_context(open(folder / f"{command[0]}.out", "w"))
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
            stack.callback(stop, process)
            if command[0] == "munged":
                wait_until(lambda: Path(munge["socket"]).exists(), folder)
        wait_until(lambda: node_state(variables) == "idle", folder)
        yield variables


def node_state(variables: dict[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%t"]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True).stdout.strip()


def wait_until(condition, folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.out")))
        assert time.monotonic() < deadline, f"Slurm does not start:\n{logs}"
        time.sleep(0.1)


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
