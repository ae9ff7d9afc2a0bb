"""Journals: what is logged while MLflow is away waits in a file beside the run, and is sent once.

RUNS/.journals/NAME.jsonl   one entry per line: {"time": milliseconds since 1970, "what": one of ENTRIES, its arguments}

NAME is the key of a run, or ``report-EXPERIMENT``. A journal exists only while something waits. Its entries are sent in
their order, and it is removed when MLflow has all of them. Each entry leaves MLflow as it is where MLflow has it
already: runs are found by their key, and steps that are logged are skipped. A journal that was sent in part, by a
process that was killed, is therefore sent again as a whole.

``TrackedRun`` and ``Tracker`` never raise an error of MLflow. They report an outage in one line, write to the journal,
and try again after a minute. ``settle`` sends all journals; flows call it when they start and end, and so does
``reread reconcile``.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reread.planning.environment import read_environment
from reread.storage.errors import InputError
from reread.storage.files import below, read_json
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.storage.prepared import open_prepared
from reread.tracking.connection import Unavailable, tracking_uri
from reread.tracking.run_locks import RUN_LOCKS
from reread.tracking.runs import HAPPENED, Tracking, open_tracking

FOLDER = ".journals"
SECONDS_BETWEEN_ATTEMPTS = 60.0
# The methods of Sender that an entry may name.
ENTRIES = ("start", "epochs", "finish", "fail", "record", "report", "model", "baseline")

Entry = dict[str, Any]
Report = Callable[[str], None]


def entry(what: str, **arguments: Any) -> Entry:
    """Return an entry of now."""
    return {"time": int(time.time() * 1000), "what": what, **arguments}


@dataclass(frozen=True)
class Journal:
    """The entries that wait under one name."""

    path: Path

    @classmethod
    def of_run(cls, run_directory: Path) -> "Journal":
        run_directory = Path(run_directory)
        return cls(run_directory.parent / FOLDER / f"{run_directory.name}.jsonl")

    @classmethod
    def of_report(cls, runs: Path, experiment: str) -> "Journal":
        return cls(Path(runs) / FOLDER / f"report-{experiment}.jsonl")

    @property
    def waits(self) -> bool:
        """Whether it has entries."""
        return self.path.is_file()

    @property
    def run_directory(self) -> Path:
        """The folder of the run whose journal this is."""
        return self.path.parent.parent / self.path.stem

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries, flushed to disk."""
        text = "".join(f"{json.dumps(one)}\n" for one in entries)
        with file_lock(self._lock), open(self.path, "a+b") as file:
            # A disk that was full may have cut the last line.
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                text = f"\n{text}"
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Entry]:
        """Return the entries; lines that were cut are left out."""
        found = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                one = json.loads(line)
                if isinstance(one, dict) and one.get("what") in ENTRIES:
                    found.append(one)
        return found

    def send(self, sender: "Sender") -> None:
        """Send all entries and remove the journal; it is kept where one cannot be sent."""
        with file_lock(self._lock):
            entries = self.read() if self.waits else []
            for one in entries:
                refuse_foreign_files(one, self.path.parent.parent, sender.tracking.root)
            for one in entries:
                sender.send(one)
            self.path.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f".{self.path.stem}.lock")


def refuse_foreign_files(one: Entry, runs: Path, root: Path) -> None:
    """Raise InputError for an entry with a file outside of ``runs``, the prepared arrays and the reports.

    What a journal names becomes an artifact, and a folder of runs may come from elsewhere. root: the project's folder.
    """
    environment = read_environment()
    folders = {
        **dict.fromkeys(("run_directory", "evaluation_directory", "directory"), runs),
        "prepared": root / environment.prepared,
        "files": root / environment.reports,
    }
    for about in (one, one.get("job", {})):
        for name in folders.keys() & about.keys():
            for file in [about[name]] if name != "files" else about[name]:
                if file is not None:
                    below(folders[name], Path(file).absolute(), f"'{name}' of an entry '{one['what']}'")


@dataclass
class Sender:
    """Sends entries to MLflow, each with its own time.

    ``epochs``, ``finish`` and ``fail`` belong to the run that was started last.
    """

    tracking: Tracking
    job: Job | None = None
    run_id: str = ""

    def send(self, one: Mapping[str, Any]) -> Any:
        """Send an entry and return what its method does; an error of MLflow is raised."""
        arguments = {name: value for name, value in one.items() if name not in ("time", "what")}
        token = HAPPENED.set(one["time"])
        try:
            return getattr(self, one["what"])(**arguments)
        finally:
            HAPPENED.reset(token)

    def start(self, job: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.job = Job.from_json(job)
        self.run_id = self.tracking.start(self.job, about)

    def epochs(self, rows: list[Mapping[str, Any]]) -> None:
        self.tracking.log_epochs(self.run_id, rows)

    def finish(self) -> None:
        assert self.job is not None, "a run that was not started"
        self.tracking.finish(self.run_id, self.job.run_directory)

    def fail(self, status: str, message: str) -> None:
        self.tracking.fail(self.run_id, status, message)

    def record(self, run_directory: str, evaluation_directory: str | None, job: Mapping[str, Any]) -> str:
        evaluation = Path(evaluation_directory) if evaluation_directory else None
        return self.tracking.record(Path(run_directory), evaluation, Job.from_json(job))

    def report(self, experiment: str, files: list[str], tags: Mapping[str, Any]) -> None:
        self.tracking.report(experiment, [Path(file) for file in files if Path(file).is_file()], tags)

    def model(
        self,
        run_directory: str,
        evaluation_directory: str,
        job: Mapping[str, Any],
        champion: bool,
        score: tuple[str, float] | None = None,
    ) -> None:
        """Register the network of a run, as the champion of its data where it is that."""
        from reread.tracking.registry import log_model, set_champion

        run_id = self.record(run_directory, evaluation_directory, job)
        version = log_model(self.tracking, run_id, Path(run_directory), Path(evaluation_directory), score)
        if champion:
            set_champion(self.tracking, job["data"], version, job["experiment"])

    def baseline(
        self,
        experiment: str,
        name: str,
        directory: str,
        prepared: str,
        champion: bool,
        metric: str | None = None,
    ) -> None:
        """Register a fitted baseline, as the champion of its data where it is that."""
        from reread.evaluation.baselines import Baseline
        from reread.tracking.registry import log_baseline, set_champion

        values, data = read_json(Path(directory) / "baseline.json"), open_prepared(Path(prepared))
        fitted = Baseline(**values, probabilities={}, directory=Path(directory))
        version = log_baseline(self.tracking, experiment, name, fitted, data, metric)
        if champion:
            set_champion(self.tracking, data.description["name"], version, experiment)


class Outages:
    """Until when this process leaves an MLflow alone that failed, by its address."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self.lock = threading.Lock()

    def away(self, uri: str) -> bool:
        return time.monotonic() < self.until.get(uri, 0.0)

    def begin(self, uri: str) -> bool:
        """Leave MLflow alone for a minute; return whether this is the first failure since it last answered."""
        with self.lock:
            first = uri not in self.until
            self.until[uri] = time.monotonic() + SECONDS_BETWEEN_ATTEMPTS
            return first

    def end(self, uri: str) -> None:
        with self.lock:
            self.until.pop(uri, None)


OUTAGES = Outages()


class Tracker:
    """Logs entries to MLflow or, while it is away, to journals. Never raises an error of MLflow.

    report: takes a line of text, one per outage in a process. strict: raise the InputError of an entry that MLflow or
    the registry refuses, as of an experiment that was deleted; else it waits in the journal too.
    """

    def __init__(self, report: Report, root: Path = Path(), strict: bool = True) -> None:
        self.say, self.root, self.strict = report, root, strict
        self.sender: Sender | None = None
        self.unwritable = False

    def record(self, run_directory: Path, evaluation_directory: Path | None, job: Job) -> str | None:
        """Log a finished run as ``Tracking.record`` does; return its id, None where it waits."""
        evaluation = str(evaluation_directory) if evaluation_directory else None
        one = entry("record", run_directory=str(run_directory), evaluation_directory=evaluation, job=job.to_json())
        answer: str | None = self.log(Journal.of_run(run_directory), [one])
        return answer

    def report(self, runs: Path, experiment: str, files: Iterable[Path], tags: Mapping[str, Any]) -> None:
        """Log an experiment's report as ``Tracking.report`` does; its journal is in ``runs``."""
        one = entry("report", experiment=experiment, files=[str(file) for file in files], tags=dict(tags))
        self.log(Journal.of_report(runs, experiment), [one])

    def model(
        self,
        run_directory: Path,
        evaluation_directory: Path,
        job: Job,
        champion: bool,
        score: tuple[str, float] | None = None,
    ) -> None:
        """Register the network of a finished run as a model, and as the champion of its data.

        score: as of ``registry.log_model``.
        """
        folders = {"run_directory": str(run_directory), "evaluation_directory": str(evaluation_directory)}
        one = entry("model", **folders, job=job.to_json(), champion=champion, score=score)
        self.log(Journal.of_run(run_directory), [one])

    def baseline(
        self,
        runs: Path,
        experiment: str,
        name: str,
        directory: Path,
        prepared: Path,
        champion: bool,
        metric: str | None = None,
    ) -> None:
        """Register a fitted baseline, kept in ``directory``, of the data in ``prepared``, after the report."""
        folders = {"directory": str(directory), "prepared": str(prepared)}
        one = entry("baseline", experiment=experiment, name=name, **folders, champion=champion, metric=metric)
        self.log(Journal.of_report(runs, experiment), [one])

    def log(self, journal: Journal, entries: list[Entry], header: Entry | None = None) -> Any:
        """Send entries, after those that wait. Where that fails write them to the journal, which begins with
        ``header``. Return what the last entry's method does; None where it was sent by the journal or waits."""
        uri = tracking_uri(self.root)
        appended, answer = False, None
        try:
            if OUTAGES.away(uri):
                self._keep(journal, entries, header)
                return None
            sender = self.sender or Sender(open_tracking(self.root))
            if journal.waits:
                self._keep(journal, entries, header)
                appended = True
                journal.send(sender)
            else:
                for one in [header, *entries] if header and not sender.run_id else entries:
                    answer = sender.send(one)
        except Exception as error:  # whatever MLflow, its database or its server raise
            # Connected again by the next attempt, which first asks a server whether it is there.
            self.sender = None
            if self.strict and isinstance(error, InputError) and not isinstance(error, Unavailable):
                raise
            if not appended:
                self._keep(journal, entries, header)
            if OUTAGES.begin(uri):
                self.say(
                    f"MLflow cannot log ({_reason(error)}): the work goes on, and what is logged waits in "
                    f"{journal.path.parent} until the next start or `reread reconcile`"
                )
        else:
            self.sender = sender
            OUTAGES.end(uri)
        return answer

    def _keep(self, journal: Journal, entries: list[Entry], header: Entry | None) -> None:
        try:
            journal.append([*([header] if header and not journal.waits else []), *entries])
        except (OSError, TypeError, ValueError) as error:
            if not self.unwritable:
                self.say(f"{journal.path} cannot be written ({error}): MLflow gets the run when it is evaluated")
            self.unwritable = True


class TrackedRun(Tracker):
    """Tracks the training of one job, from its start on.

    job: a resolved job; about: tags, as ``Tracking.start`` takes them.
    """

    def __init__(self, job: Job, about: Mapping[str, Any], report: Report, root: Path = Path()) -> None:
        super().__init__(report, root, strict=False)
        self.journal = Journal.of_run(job.run_directory)
        self.started = entry("start", job=job.to_json(), about=dict(about))
        self.log(self.journal, [self.started])

    def log_epoch(self, row: Mapping[str, Any]) -> None:
        """Log one epoch, a mapping with ``epoch`` and numbers by name."""
        self._log(entry("epochs", rows=[dict(row)]))

    def finish(self) -> None:
        """Log the finished run as a whole."""
        self._end(entry("finish"))

    def fail(self, status: str, message: str) -> None:
        """Set the final status of a run without a result."""
        self._end(entry("fail", status=status, message=message))

    def _log(self, one: Entry) -> None:
        self.log(self.journal, [one], header=self.started)

    def _end(self, one: Entry) -> None:
        self._log(one)
        # Where MLflow failed the lock is still held, and ``reconcile`` must find the run unlocked.
        RUN_LOCKS.release_run(self.started["job"]["run_key"])


@dataclass
class Settled:
    """What was put right: ``sent``, journals by name; ``closed``, the status of runs by their id.

    left: why a journal was not sent, by its path.
    """

    sent: list[str] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def waiting(runs: Path) -> list[Journal]:
    """Return the journals in ``runs``. Reports come after the runs: they begin with a letter that no key has."""
    return [Journal(path) for path in sorted((Path(runs) / FOLDER).glob("*.jsonl"))]


def reconcile(runs: Path, root: Path = Path()) -> Settled:
    """Send the journals of ``runs``, and close the runs in MLflow that no process trains.

    The journal of a run that a process trains is left to that process. InputError where MLflow does not answer.
    """
    runs = Path(runs)
    tracking = open_tracking(root)
    settled = Settled()
    for journal in waiting(runs):
        path = journal.path
        with file_lock(run_lock(journal.run_directory), blocking=False) as free:
            if not free:
                continue
            sender = Sender(tracking)
            try:
                journal.send(sender)
                settled.sent.append(path.stem)
            except Exception as error:  # of this journal's entries alone, if MLflow still answers
                open_tracking(root)
                reason = error if isinstance(error, InputError) else _reason(error)
                settled.left[str(path)] = f"{path} cannot be sent ({reason}): remove it where that cannot be mended"
            finally:
                if sender.job:
                    RUN_LOCKS.release_run(sender.job.run_key)
    settled.closed = tracking.reconcile(runs)
    OUTAGES.end(tracking_uri(root))
    return settled


def settle(runs: Path, report: Report, root: Path = Path()) -> None:
    """Do as ``reconcile`` does when work starts or ends; report an error of MLflow in one line in place of raising."""
    try:
        settled = reconcile(runs, root)
    except Exception as error:
        if OUTAGES.begin(tracking_uri(root)):
            report(
                f"MLflow does not answer ({_reason(error)}): the work goes on, and what is logged waits in "
                f"{Path(runs) / FOLDER}"
            )
        return
    if settled.sent:
        report(f"MLflow: sent what waited of {len(settled.sent)} runs and reports")
    for line in settled.left.values():
        report(f"MLflow: {line}")


def _reason(error: Exception) -> str:
    """Return an error of MLflow, whose own messages have many lines, as half a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
