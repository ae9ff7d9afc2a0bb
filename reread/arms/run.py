"""One run of a command: locked, started from nothing, tried again, and finished by its last file.

A run whose command, or whose reread, was killed at any moment has no result.json, and so starts again.
"""

import contextlib
import contextvars
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TextIO

from reread.arms import supervisor
from reread.arms.jobs import SOURCE, Job
from reread.arms.revisions import ignore_in_git
from reread.arms.scores import FILES, read_scores, with_remedy
from reread.storage.errors import InputError
from reread.storage.files import remove_directory, sha256_file, write_json
from reread.storage.locks import file_lock, holder, run_lock
from reread.storage.run_folder import JOB, RESULT, TIMING

POLL_SECONDS = 0.2
LAST_LINES = 10
SIGKILL_EXIT = (-9, 137)

Say = Callable[[str], None]
RunJob = Callable[[Job, "Running", Say, bool], None]


class RunFailed(InputError):
    """A command that ended without scores. The message is one line: which, how, and where its log is."""


class RunStopped(InputError):
    """A run that was stopped with reread, or not started for that reason."""


class Running:
    """The commands that run now, with the variables that they see: ``stop`` ends them and lets no other start.

    first: the first job that has scores; those of the others are of the same kind and items.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.stopping = threading.Event()
        self.changing = threading.Lock()
        self.supervisors: set[subprocess.Popen[str]] = set()
        self.first: Job | None = None

    def stop(self) -> None:
        self.stopping.set()
        with self.changing:
            for process in self.supervisors:
                close(process)

    @contextlib.contextmanager
    def supervised(self, job: dict[str, Any], directory: Path, log: IO[str]) -> Iterator[subprocess.Popen[str]]:
        """Start the supervisor of a command, and end it with the block."""
        command = [sys.executable, "-P", supervisor.__file__, json.dumps(job)]
        process = subprocess.Popen(
            command, cwd=directory, env=self.environment, pass_fds=[job["lock"]], text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        with self.changing:
            self.supervisors.add(process)
            if self.stopping.is_set():
                close(process)
        try:
            yield process
        finally:
            with self.changing:
                self.supervisors.discard(process)
                close(process)
            process.wait()
            if process.stdout:
                process.stdout.close()


def close(process: subprocess.Popen[str]) -> None:
    """Close the pipe by which a supervisor knows that this process wants its command to run."""
    if process.stdin and not process.stdin.closed:
        process.stdin.close()


def run(job: Job, running: Running, say: Say, fresh: bool = False) -> None:
    """Run a job to its end, or leave it where it is finished; ``fresh``: run it again.

    RunFailed where the command fails as often as it may. Another process that runs it is waited for.
    """
    with locked(job, running, say) as lock:
        if fresh and job.directory.exists():
            remove_directory(job.directory)
        if job.finished:
            damage = job.damage()
            if damage is None:
                say(f"{job.name}: cached, {job.directory}")
                running.first = running.first or job
                return
            say(f"{job.name}: {damage}: it runs again")
            remove_directory(job.directory)
        job.refuse_changed()
        attempts = 1 + (job.settings.retries or 0)
        for number in range(1, attempts + 1):
            begun = time.monotonic()
            say(f"{job.name}: runs, its log: {job.log}")
            failure = attempt(job, running, lock, first=number == 1)
            if failure is None:
                job.refuse_changed()
                seconds = time.monotonic() - begun
                write_json(job.directory / TIMING, {"seconds": round(seconds, 3), "attempts": number})
                finish(job)
                running.first = running.first or job
                say(f"{job.name}: finished in {seconds:.0f} s, {job.directory}")
                return
            tail = "".join(f"\n    {line}" for line in last_lines(job.log))
            say(f"{job.name}: {failure}; the end of {job.log}:{tail or ' nothing'}")
            if number < attempts:
                say(f"{job.name}: tried again, {number} of {attempts - 1}")
    raise RunFailed(f"{job.name} {failure}; its log: {job.log}")


def run_all(
    jobs: Sequence[Job],
    environment: Mapping[str, str],
    workers: int,
    say: Say,
    fresh: bool = False,
    run_job: RunJob = run,
) -> None:
    """Run the jobs that are not finished, ``workers`` at a time; RunFailed when all have ended and one failed.

    Where two have failed and none is finished, no other is started: all lack the same, such as a metric of that name.

    environment: the variables that the commands see. run_job: called in place of ``run``, which it calls. An interrupt
    ends the commands that run, with all that they started, before it is raised again.
    """
    running = Running(environment)
    failed: dict[str, InputError] = {}

    def start(job: Job) -> bool:
        if len(failed) > 1 and not any(other.finished for other in jobs):
            return False
        try:
            run_job(job, running, say, fresh)
        except InputError as error:
            failed[job.key] = error
        return True

    ignore_in_git(jobs[0].runs.parent)
    with ThreadPoolExecutor(workers) as pool:
        # A thread is in the flow run of this one, if there is one.
        futures = [pool.submit(contextvars.copy_context().run, start, job) for job in jobs]
        try:
            left = [future.result() for future in futures].count(False)
        except BaseException:
            running.stop()
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        others = f"; {len(failed)} of {len(jobs)} runs failed" if len(failed) > 1 else ""
        others += f", and {left} were not started" if left else ""
        raise RunFailed(f"{next(failed[job.key] for job in jobs if job.key in failed)}{others}")


@contextlib.contextmanager
def locked(job: Job, running: Running, say: Say) -> Iterator[TextIO]:
    """Hold the lock of a run; say who else holds it, and wait unless everything is being stopped."""
    said = False
    while not running.stopping.is_set():
        with file_lock(run_lock(job.directory), blocking=False) as file:
            if file:
                yield file
                return
        if not said:
            say(f"{job.name} is being run by {holder(run_lock(job.directory))}: waiting until that ends")
            said = True
        running.stopping.wait(POLL_SECONDS)
    raise RunStopped(f"{job.name} was not started: everything is being stopped")


def attempt(job: Job, running: Running, lock: TextIO, first: bool) -> str | None:
    """Run the command once; return how it failed, or None where its scores can be read."""
    directory, kept = job.directory, bool(job.settings.resumes)
    directory.mkdir(parents=True, exist_ok=True)
    for left in (directory / SOURCE, *(() if kept else (job.out,))):
        if left.exists():
            shutil.rmtree(left)
    job.out.mkdir(exist_ok=True)
    write_json(directory / JOB, job.record())
    if job.revision is not None:
        job.revision.write(directory / SOURCE)
    if not job.folder.is_dir():
        raise InputError(f"{job.name}: its revision has no folder '{job.settings.folder}': correct `folder`")
    given = {
        "command": job.command,
        "folder": str(job.folder.resolve()),
        "seconds": job.settings.seconds,
        "gpu": bool(job.settings.gpu),
        "lock": lock.fileno(),
    }
    mode = "w" if first and not kept else "a"
    with open(job.log, mode, encoding="utf-8") as log, running.supervised(given, directory, log) as process:
        said = process.stdout.read() if process.stdout else ""
    if running.stopping.is_set():
        raise RunStopped(f"{job.name} was stopped; run again to start it anew")
    report = json.loads(said or "null")
    if failure := how_it_failed(report, job):
        return failure
    try:
        read_scores([running.first, job] if running.first else [job])
    except InputError as error:
        return f"ended without scores: {with_remedy(error, job, 'correct the claim or its command')}"
    return None


def how_it_failed(report: dict[str, Any] | None, job: Job) -> str | None:
    """Return in words how a command ended, from its supervisor's report; None where it ended well."""
    if report is None:
        return "ended because its supervisor did"
    if report["ended"] == supervisor.TIME:
        return f"passed its time limit of {job.settings.seconds:g} s"
    if report["code"] in SIGKILL_EXIT:
        return "was killed by SIGKILL (the kernel does that when memory runs out)"
    return f"ended with exit code {report['code']}" if report["code"] else None


def finish(job: Job) -> None:
    """Remove the copy of the revision and write result.json, by which the run is finished."""
    shutil.rmtree(job.directory / SOURCE, ignore_errors=True)
    digests = {name: sha256_file(job.out / name) for name in FILES if (job.out / name).is_file()}
    write_json(job.directory / RESULT, {"files": digests})


def last_lines(path: Path) -> list[str]:
    """Return the last lines of a log that have text."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-LAST_LINES:]
