"""The processes that prepare data: this one, several of this machine, or Dask's workers.

Results come in the order of the jobs and do not depend on the number or place of the processes, so no key depends on
them. Each process has one thread.
"""

import contextlib
import importlib.metadata
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow

from reread.preprocessing.blocks import Job, Run, Step
from reread.storage.errors import InputError, TransientError
from reread.storage.source import source_digests

DASK = "dask"
SECONDS_TO_CONNECT = 10
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Workers:
    """Which processes prepare data.

    processes  a number (1 is this process alone), or DASK; None: DASK with a scheduler, else one process per core
    scheduler  the address of a Dask cluster's scheduler; None: DASK starts a local cluster. Workers of a cluster need
               this project's folder under the same path, and its environment
    """

    processes: int | str | None = None
    scheduler: str | None = None

    @property
    def chosen(self) -> int | str:
        """The number of processes, or DASK."""
        return self.processes or (DASK if self.scheduler else len(os.sched_getaffinity(0)))


_WORKERS: ContextVar[Workers] = ContextVar("workers")


@contextlib.contextmanager
def use_workers(workers: Workers) -> Iterator[None]:
    """Prepare data with ``workers`` within the block; they change no byte, and so no key."""
    token = _WORKERS.set(workers)
    try:
        yield
    finally:
        _WORKERS.reset(token)


@contextlib.contextmanager
def open_workers(jobs: int, directory: Path) -> Iterator[Run]:
    """Yield a function ``run(step, jobs)`` that yields the results of the jobs; at most ``jobs`` processes are started.

    ``directory`` is a temporary folder for the workers' files. InputError where the chosen workers are not
    available, or a job was refused; TransientError where a worker died.
    """
    chosen = _WORKERS.get(Workers()).chosen
    if isinstance(chosen, str):
        with _dask(directory) as run:
            yield run
    elif min(chosen, jobs) <= 1:
        yield map
    else:
        with _processes(min(chosen, jobs)) as run:
            yield run


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Run]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker) as pool:

        def run(step: Step, jobs: Iterable[Job]) -> Iterator[Any]:
            # Few more jobs than processes are submitted: each is made just before a process needs it.
            waiting: deque[Future[Any]] = deque()
            try:
                for job in jobs:
                    waiting.append(pool.submit(step, job))
                    if len(waiting) > 2 * count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool:
                raise TransientError(
                    "a process that prepares data died, perhaps for want of memory: nothing was published, and "
                    "one process (REREAD_PREPROCESSING=1) needs the least"
                ) from None

        try:
            yield run
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Prepare a process of the pool: one thread, Ctrl-C left to the parent, and an end when the parent is killed."""
    pyarrow.set_cpu_count(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


@contextlib.contextmanager
def _dask(directory: Path) -> Iterator[Run]:
    # Imported here: it is slow, and needed only where Dask is chosen.
    import dask
    from dask import bag
    from distributed import KilledWorker

    # Dask's files are removed before the folder is published.
    with tempfile.TemporaryDirectory(dir=directory) as scratch, _dask_client(Path(scratch)) as client:

        def run(step: Step, jobs: Iterable[Job]) -> Iterator[Any]:
            # One partition per block. Results are small: the arrays are in files. The priority keeps the blocks' order,
            # which Dask would reverse, so that the first are added up while others are read.
            with dask.annotate(priority=lambda key: -key[1]):
                partitions = bag.from_sequence(list(jobs), partition_size=1).map(step)
            try:
                for partition in client.compute(partitions.to_delayed(optimize_graph=False)):
                    yield from partition.result()
            except KilledWorker as error:
                raise TransientError(
                    f"Dask's workers died again and again at the same block ({error.task}), perhaps for want of "
                    "memory: nothing was published"
                ) from None

        yield run


@contextlib.contextmanager
def _dask_client(directory: Path) -> Iterator[Any]:
    """Yield a client of the chosen scheduler's cluster, whose workers are ready, or of a local one."""
    import dask
    from distributed import Client, LocalCluster

    address = _WORKERS.get(Workers()).scheduler
    if not address:
        settings = {
            "distributed.worker.daemon": True,
            "distributed.nanny.pre-spawn-environ": ONE_THREAD,
            "distributed.worker.profile.enabled": False,
        }
        with dask.config.set(settings), contextlib.ExitStack() as stack:
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
            f"the scheduler {address}: no scheduler answers there ({error or type(error).__name__}): start it, "
            "correct its address or leave it out"
        ) from None
    with client:
        _check_workers(client, address, directory)
        yield client


def _check_workers(client: Any, address: str, directory: Path) -> None:
    """Raise InputError for a cluster without workers, and for workers with another source or without our files."""
    try:
        client.wait_for_workers(1, timeout=SECONDS_TO_CONNECT)
    except TimeoutError:
        raise InputError(f"the scheduler {address} has no worker: start some") from None
    expected = worker_environment(str(directory.resolve()))
    try:
        environments = client.run(worker_environment, str(directory.resolve()))
    except Exception as error:
        raise InputError(
            f"the scheduler {address}: its workers cannot run this project ({type(error).__name__}: {error}): "
            "start them in its folder, with its environment"
        ) from None
    for worker, environment in environments.items():
        for what, value in expected.items():
            if environment[what] != value:
                raise InputError(
                    f"the scheduler {address}: the worker {worker} has other {what}: it needs this "
                    "project's folder under the same path, and its environment"
                )


def worker_environment(directory: str) -> dict[str, Any]:
    """Return what must be equal in every process that shares the work: files, source and tokeniser."""
    from reread.preprocessing.documents import LIBRARIES

    return {
        "files": Path(directory).is_dir(),
        "source": source_digests(["reread.preprocessing.blocks"]),
        "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
    }
