"""Who does the jobs of preprocessing: this process, several processes of this machine, or Dask's workers.

REREAD_PREPROCESSING  a number of processes (1 is this one alone), or `dask`; by default as many as there are cores
DASK_SCHEDULER_ADDRESS  the scheduler of a cluster, and then Dask is the default; without it `dask` starts a local
                        cluster. Its workers see this project's folder under the same path and run the same source.

Results come in the order of the jobs and are the same whoever did them, so nothing of this enters a key. Each process
has one thread. It is started when there is more than one job, and ends with us, however we end: a process of ours
reads its jobs from a pipe, which breaks.

python -m preprocessing.workers    does jobs: a line of JSON each on stdin, and a line of JSON back
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from preprocessing.blocks import STEPS, Job, Run, Step
from storage.errors import InputError, PassingError
from storage.source import ROOT, source_digests

VARIABLE = "REREAD_PREPROCESSING"
ADDRESS_VARIABLE = "DASK_SCHEDULER_ADDRESS"
DASK = "dask"
SECONDS_TO_CONNECT = 10
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_NUM_THREADS"), "1")


def choice() -> int | str:
    """The number of processes, or DASK, as the environment asks. InputError for anything else."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return DASK if os.environ.get(ADDRESS_VARIABLE) else len(os.sched_getaffinity(0))
    if given == DASK:
        return DASK
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"{VARIABLE}={given} is neither a number of processes from 1 up nor '{DASK}': change it")
    return int(given)


@contextlib.contextmanager
def open_workers(jobs: int, directory: Path) -> Iterator[Run]:
    """Yield a function that does the jobs of one step after another; no more than ``jobs`` at once make sense.

    ``directory`` is a temporary folder for what the workers keep. InputError where the environment asks for what
    there is not, or a job was refused; PassingError where a worker died.
    """
    chosen = choice()
    if chosen == DASK:
        with _dask(directory) as run:
            yield run
    elif min(chosen, jobs) <= 1:
        yield map
    else:
        with _processes(min(chosen, jobs)) as run:
            yield run


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Run]:
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": search_path}
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    processes = []

    def do(step: Step, job: Job) -> Any:
        process = idle.get()
        try:
            answer = _ask(process, {"step": step.__name__, "job": job})
        finally:
            idle.put(process)
        if "refused" in answer:
            raise InputError(answer["refused"])
        return answer["result"]

    def run(step: Step, jobs: Iterable[Job]) -> Iterator[Any]:
        # A few more than there are processes, so that none waits for us, and no more, so that jobs are made late.
        waiting = deque()
        for job in jobs:
            waiting.append(threads.submit(do, step, job))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    threads = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            command = [sys.executable, "-m", "preprocessing.workers"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
            )
            processes.append(process)
            idle.put(process)
        yield run
    finally:
        for process in processes:
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _ask(process: subprocess.Popen, question: dict[str, Any]) -> dict[str, Any]:
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if answer.endswith("\n"):
        return json.loads(answer)
    code = process.wait()
    if code >= 0:
        raise RuntimeError(f"a process that prepares data failed with exit code {code}; its traceback stands above")
    raise PassingError(
        f"a process that prepares data was killed by {signal.Signals(-code).name}, perhaps for want of memory: "
        f"nothing was published, and {VARIABLE}=1 needs the least"
    )


def serve() -> None:
    """Do the jobs that come on stdin, until it ends."""
    # An interrupt at the terminal reaches all of us: the one who gave the jobs sees to the rest.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"result": STEPS[question["step"]](question["job"])}
        except InputError as error:
            answer = {"refused": str(error)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            # Who asked is gone. Nothing is left to be flushed at exit, or to be said.
            os._exit(1)


@contextlib.contextmanager
def _dask(directory: Path) -> Iterator[Run]:
    # Here, since only who asks for Dask needs it, and it is slow to import.
    import dask
    from dask import bag
    from distributed import KilledWorker

    # What Dask keeps goes before the rest of the folder is published.
    with tempfile.TemporaryDirectory(dir=directory) as scratch, _dask_client(Path(scratch)) as client:

        def run(step: Step, jobs: Iterable[Job]) -> Iterator[Any]:
            # A partition a block, and every partition's result is small: the arrays lie in files. Blocks are done in
            # their order, which Dask would turn round, so that the first are added up while others are read.
            with dask.annotate(priority=lambda key: -key[1]):
                partitions = bag.from_sequence(list(jobs), partition_size=1).map(step)
            try:
                for partition in client.compute(partitions.to_delayed(optimize_graph=False)):
                    yield from partition.result()
            except KilledWorker as error:
                raise PassingError(
                    f"Dask's workers died again and again at the same block ({error.task}), perhaps for want of "
                    "memory: nothing was published"
                ) from None

        yield run


@contextlib.contextmanager
def _dask_client(directory: Path) -> Iterator[Any]:
    """Yield a client of the cluster that DASK_SCHEDULER_ADDRESS names, whose workers are ready, or of a local one."""
    import dask
    from distributed import Client, LocalCluster

    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        settings = {
            "distributed.worker.daemon": True,
            "distributed.nanny.pre-spawn-environ": ONE_THREAD,
            "distributed.worker.profile.enabled": False,
        }
        with dask.config.set(settings), contextlib.ExitStack() as stack:
            with _main_unseen():
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=len(os.sched_getaffinity(0)),
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address=None,
                        local_directory=str(directory),
                    )
                )
            yield stack.enter_context(Client(cluster))
        return
    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{ADDRESS_VARIABLE}={address}: no scheduler answers there ({error or type(error).__name__}): start it, "
            f"correct the address or unset {ADDRESS_VARIABLE}"
        ) from None
    with client:
        _check_workers(client, address, directory)
        yield client


@contextlib.contextmanager
def _main_unseen() -> Iterator[None]:
    """Keep from the processes that multiprocessing starts which command this is: each would import all of it first."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _check_workers(client: Any, address: str, directory: Path) -> None:
    """Refuse a cluster without workers, and workers of another source or without our files: bytes would differ."""
    try:
        client.wait_for_workers(1, timeout=SECONDS_TO_CONNECT)
    except TimeoutError:
        raise InputError(f"{ADDRESS_VARIABLE}={address}: the scheduler has no worker: start some") from None
    mine = what_a_worker_has(str(directory.resolve()))
    try:
        theirs = client.run(what_a_worker_has, str(directory.resolve()))
    except Exception as error:
        raise InputError(
            f"{ADDRESS_VARIABLE}={address}: its workers cannot run this project ({type(error).__name__}: {error}): "
            "start them in its folder, with its environment"
        ) from None
    for worker, has in theirs.items():
        for what, value in mine.items():
            if has[what] != value:
                raise InputError(
                    f"{ADDRESS_VARIABLE}={address}: the worker {worker} has not the same {what}: it needs this "
                    "project's folder under the same path, and its environment"
                )


def what_a_worker_has(directory: str) -> dict[str, Any]:
    """What must be the same wherever a job is done: the files, the source and the tokeniser."""
    from preprocessing.documents import LIBRARIES

    return {
        "files": Path(directory).is_dir(),
        "source": source_digests(["preprocessing.blocks"]),
        "libraries": LIBRARIES,
    }


if __name__ == "__main__":
    serve()
