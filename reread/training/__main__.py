"""Train networks, each with one seed, one after the other:  python -m reread.training JOB.json [JOB.json ...] [--events
                                                             [FD]]

A list of many, six at a time on one GPU:  python -m reread.training @jobs.txt --at-once 6 --runs-per-gpu 6
Runs that had too little memory beside others are trained again by half as many processes, down to one.

Several processes train each network together:  torchrun --nproc-per-node 2 --max-restarts 3 -m reread.training JOB.json
With --max-restarts they start again from the last checkpoint when one of them dies; bad input is not tried again.

A finished run (it has a result.json) is skipped; an interrupted one resumes after its last complete epoch. When one of
several fails, the others are still trained. Exit code 0: all finished; 2: bad input or a non-finite loss, one line on
stderr for each; 1: a failure of another kind among them; 130 and 143: stopped by Ctrl-C and SIGTERM, can be resumed.
"""

import argparse
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import models
from reread.runtime.garbage import collect_less
from reread.storage.errors import InputError, OutOfMemory, command, printable
from reread.storage.files import below, read_json
from reread.storage.locks import is_held, run_lock
from reread.storage.numeric import difference, numeric_source
from reread.storage.registry import registry
from reread.storage.run_folder import RunFolder
from reread.storage.settings import members
from reread.storage.source import NoModule
from reread.training.processes import SINGLE_PROCESS, Processes
from reread.training.progress import Progress
from reread.training.rendezvous import joined
from reread.training.settings import TrainingJob

SECONDS_FOR_RANK_0 = 5.0
# Of a message from the launcher, a path.
MOST_BYTES = 65536
# The exit code of one of the processes of --at-once that a run left for want of memory: with fewer it may fit.
CROWDED = 3


@command
def main(arguments: list[str] | None = None) -> int:
    collect_less()
    parser = argparse.ArgumentParser(
        prog="python -m reread.training",
        description="Train networks, each with one seed, one after the other.",
        fromfile_prefix_chars="@",
    )
    parser.add_argument(
        "jobs", type=Path, nargs="*", metavar="JOB", help="a job file (JSON); @FILE: a list, one per line"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="train by N processes (%(default)s)")
    parser.add_argument("--skip-locked", action="store_true", help="leave out a run that another process trains now")
    parser.add_argument(
        "--events", type=int, nargs="?", const=1, metavar="FD", help="write one JSON object per line to FD (default: 1)"
    )
    parser.add_argument("--locked", action="store_true", help="the launcher holds the run's lock")
    parser.add_argument("--runs-per-gpu", type=int, metavar="N", help="let N runs share a GPU; default: the job's")
    parser.add_argument("--no-wait", action="store_true", help="end where another process trains the run")
    parser.add_argument("--serve", type=int, metavar="FD", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.jobs and options.serve is None:
        raise InputError("no job file is given: name one, as `python -m reread.training JOB.json`")
    if options.runs_per_gpu is not None and options.runs_per_gpu < 1:
        raise InputError(f"--runs-per-gpu is {options.runs_per_gpu}: give a whole number from 1 up")
    if options.at_once < 1:
        raise InputError(f"--at-once is {options.at_once}: give a whole number from 1 up")
    processes = Processes.of_environment()
    if not processes.is_distributed:
        exit_at_signals()
    if options.at_once > 1:
        return train_at_once(options.jobs, options.at_once, options.runs_per_gpu)
    if options.serve is not None:
        return serve(options.serve)
    with joined(processes), contextlib.ExitStack() as stack:
        # The others have nothing to report: a signal ends them, also while they wait for each other inside torch.
        if processes.main:
            exit_at_signals()
        events = None
        if options.events is not None and processes.main:
            events = stack.enter_context(open_events(options.events, processes))
        codes = [
            attempt(
                path, events, options.locked, processes, options.runs_per_gpu, not options.no_wait, options.skip_locked
            )
            for path in options.jobs
            if not (options.skip_locked and trains_elsewhere(path))
        ]
    return CROWDED if CROWDED in codes else min((code for code in codes if code), default=0)


def exit_at_signals() -> None:
    """Let Ctrl-C and SIGTERM raise SystemExit with 128 plus the signal's number, the exit code of a shell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def train_at_once(jobs: list[Path], count: int, runs_per_gpu: int | None) -> int:
    """Train jobs by several processes, each of which begins at another place of the list, and return an exit code.

    A process trains each run of the list that is not finished and that no other one trains then. While some lack memory
    beside others, what is not finished is trained again by half as many processes.
    """
    while True:
        codes = train_by(jobs, count, runs_per_gpu)
        jobs = [path for path in jobs if not is_finished(path)]
        if count == 1 or CROWDED not in codes or not jobs:
            # A process that was ended by a signal has a negative code.
            codes = [InputError.exit_code if code == CROWDED else code for code in codes]
            return min((code if code > 0 else 1 for code in codes if code), default=0)
        count = min(count // 2, len(jobs))
        print(f"some runs had too little memory beside others: {len(jobs)} are left, {count} at once", file=sys.stderr)


def train_by(jobs: list[Path], count: int, runs_per_gpu: int | None) -> list[int]:
    """Start ``count`` processes that train the jobs, and return their exit codes."""
    command = [sys.executable, "-m", "reread.training", "--skip-locked"]
    if runs_per_gpu is not None:
        command += ["--runs-per-gpu", str(runs_per_gpu)]
    count = min(count, len(jobs))
    starts = [len(jobs) * number // count for number in range(count)]
    processes = [subprocess.Popen([*command, *map(str, jobs[start:] + jobs[:start])]) for start in starts]
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()


def is_finished(path: Path) -> bool:
    """Return whether the run of a job is finished; False for a job that cannot be read."""
    try:
        return RunFolder(TrainingJob.read(path).run_directory).finished
    except InputError:
        return False


def trains_elsewhere(path: Path) -> bool:
    """Return whether another process holds the lock of a job's run; False for a job that cannot be read."""
    try:
        return is_held(run_lock(TrainingJob.read(path).run_directory))
    except InputError:
        return False


def serve(descriptor: int) -> int:
    """Train the jobs that a launcher sends over the socket ``descriptor`` (reread/training/launcher.py), until it
    closes it.

    A message is the path of a job file, with the open files of its events, its log and, where the launcher holds it,
    the run's lock. The answer is one byte, the exit code. After a job that failed the process ends.
    """
    import reread.training.run  # noqa: F401 (torch is imported while the launcher is not waiting)

    with socket.socket(fileno=descriptor) as line:
        while True:
            message, files, _, _ = socket.recv_fds(line, MOST_BYTES, 3)
            if not message:
                return 0
            events, log, *lock = files
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(log, stream.fileno())
            os.close(log)
            with open(events, "w", encoding="utf-8") as stream:
                code = attempt(Path(os.fsdecode(message)), stream, bool(lock), SINGLE_PROCESS)
            for file in lock:
                os.close(file)
            line.send(bytes([code]))
            if code:
                return code


def open_events(descriptor: int, processes: Processes) -> TextIO:
    """Open the stream of events. torchrun, the parent of several processes, keeps descriptors above 2 to itself."""
    if processes.is_distributed and descriptor > 2:
        return open(f"/proc/{os.getppid()}/fd/{descriptor}", "w", encoding="utf-8")
    return open(descriptor, "w", encoding="utf-8", closefd=descriptor > 2)


def attempt(
    path: Path,
    events: TextIO | None,
    locked: bool,
    processes: Processes,
    runs_per_gpu: int | None = None,
    wait: bool = True,
    shares: bool = False,
) -> int:
    """Train the job of a file and return the exit code; a failure is printed on stderr.

    shares: other processes use the GPU, so that one without enough memory may have it later (CROWDED).

    One of several processes exits at its first failure, upon which torchrun ends the others, and starts all again if
    it may. At bad input torchrun itself is ended: the same would be refused again.
    """
    code = 0
    try:
        train(path, events, locked, processes, runs_per_gpu, wait)
    except InputError as error:
        if processes.main:
            print(f"error: {printable(error)}", file=sys.stderr, flush=True)
        code = CROWDED if shares and isinstance(error, OutOfMemory) else 2
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        free_memory()
    if code and processes.is_distributed:
        if code == InputError.exit_code and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
            end_torchrun(processes)
        sys.exit(code)
    return code


def end_torchrun(processes: Processes) -> None:
    """End torchrun, so that it starts nothing again. Rank 0, which reports the reason, comes first."""
    if not processes.main:
        time.sleep(SECONDS_FOR_RANK_0)
    os.kill(os.getppid(), signal.SIGTERM)


def train(
    path: Path,
    events: TextIO | None,
    locked: bool,
    processes: Processes,
    runs_per_gpu: int | None = None,
    wait: bool = True,
) -> None:
    job = TrainingJob.read(path)
    refuse_foreign_folder(path, job.run_directory)
    if runs_per_gpu is not None:
        job = replace(job, runs_per_gpu=runs_per_gpu)
    given = read_json(path)
    progress = Progress(job, events, quiet=not processes.main)
    folder = RunFolder(job.run_directory)
    try:
        result = processes.run_on_rank_zero(lambda: folder.result if folder.finished and not folder.damage() else None)
        if result is None:
            if models.is_outside(job.model):
                models.settings_class(job.model)  # says where its package is missing
            refuse_other_sources(path, given)
            from reread.training.run import (
                run,  # torch takes two seconds to import, and a finished run does not need it
            )

            refuse_wrong_settings(path, job)
            if processes.main:
                warn_of_another_machine(path, given)
            result = run(job, given, progress, locked, processes, wait)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        progress.failed("stopped by a signal; run the same command again to resume", code)
        raise
    except InputError as error:
        progress.failed(str(error), 2)
        raise
    except Exception as error:
        progress.failed(f"{type(error).__name__}: {error}", 1)
        raise
    progress.finished(result)


def refuse_wrong_settings(path: Path, job: TrainingJob) -> None:
    """Raise InputError for a value of a job that cannot be, before anything is written."""
    for name, value, least in (("seed", job.seed, 0), ("runs_per_gpu", job.runs_per_gpu, 1)):
        if type(value) is not int or value < least:
            raise InputError(f"{path}: '{name}' is {value!r}: give a whole number from {least} up")
    try:
        for settings in (job.training, models.settings(job.model, job.network)):
            refuse_wrong_members(settings)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def refuse_wrong_members(settings: Any) -> None:
    """Raise InputError for a member of a registry that there is not, and for its settings."""
    for package, member in members(settings):
        refuse_wrong_members(registry(package).resolve(member)[1])


def refuse_other_sources(path: Path, given: dict[str, Any]) -> None:
    """Raise InputError where the source here computes something else than the source that the job's key names.

    The source of kernels counts where the job was made for a machine that runs them.
    """
    source = given.get("source")
    if source is None:
        return
    of_kernels = str((given.get("machine") or {}).get("kernels")).startswith("extension")
    try:
        here = numeric_source(source["modules"])
        same = here.digest == source["digest"] and (not of_kernels or here.kernels == source["kernels"])
    except (KeyError, NoModule) as error:
        raise InputError(
            f"{path}: its 'source' names no modules of this project ({error}): write the job again"
        ) from None
    if same:
        return
    then, now = source.get("files", {}), dict(here.files)
    if of_kernels:
        then, now = {**then, **source.get("kernels", {})}, {**now, **here.kernels}
    named = difference(then, now)
    raise InputError(
        f"{path} was made by other source code than this ({named}): use the source that it was made by, or write "
        "the job again where it came from (`reread jobs`)"
    )


def warn_of_another_machine(path: Path, given: dict[str, Any]) -> None:
    """Warn where the job was made for another machine: the weights may differ from those that its key names."""
    from reread.training.machine import machine

    meant, here = given.get("machine"), machine()
    if meant is None or not (names := [name for name in here if meant.get(name) != here[name]]):
        return
    said = ", ".join(f"{name} {meant.get(name)} and not {here.get(name)}" for name in names)
    print(f"warning: {path} was made for another machine ({said})", file=sys.stderr, flush=True)


def refuse_foreign_folder(path: Path, run_directory: Path) -> None:
    """Raise InputError where a job, which may come from elsewhere, trains outside of its own folder and of this one."""
    for folder in (path.absolute().parent, Path.cwd()):
        with contextlib.suppress(InputError):
            below(folder, run_directory.absolute(), "")
            return
    raise InputError(
        f"{path}: run_directory is '{run_directory}', outside of the job's folder and of {Path.cwd()}: write the job "
        "again (`reread jobs`)"
    )


def free_memory() -> None:
    """Release the GPU memory of a job: other processes may share the GPU, and the next job starts with all of it."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
