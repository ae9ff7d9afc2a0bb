"""MLflow is written from what folders have: the run's as it trains and ends, the report's with its models.

RUNS/.unrecorded/KEY-DIGEST.json    {"run": KEY, "experiment", "variant", "evaluation": its key or null}
RUNS/.unrecorded/report-NAME.json   {"report": NAME, "models": [...], "baselines": [...]}, as of ``record_report``

A file names what MLflow could not take, and is removed when MLflow has it. It says where to look, not what to log.
Recording writes what MLflow lacks, so it may be repeated, and may end half-way.

``Tracker`` never raises an error of MLflow. It reports an outage in one line, and tries again after a minute.
``reconcile`` records what waits; flows call it when they start and end, and so does `reread reconcile`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from reread.planning.environment import Environment
from reread.storage.errors import InputError
from reread.storage.files import below, content_key, read_json, read_object, write_json
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.storage.prepared import DESCRIPTION, open_prepared
from reread.storage.run_folder import EVALUATION, RESULT, RunFolder
from reread.tracking.connection import Unavailable, refuse_silent_server, tracking_uri
from reread.tracking.runs import Tracking, open_tracking

FOLDER = ".unrecorded"
SECONDS_BETWEEN_ATTEMPTS = 60.0
BASELINES = "baselines"

Say = Callable[[str], None]
Answer = TypeVar("Answer")
# Until when this process leaves an MLflow alone that failed, by its address.
AWAY: dict[str, float] = {}


def leave_alone(uri: str, error: Exception, runs: Path, say: Say) -> None:
    """Leave MLflow alone for a minute; say why where this is the first failure since it last answered."""
    first = uri not in AWAY
    AWAY[uri] = time.monotonic() + SECONDS_BETWEEN_ATTEMPTS
    if first:
        say(
            f"MLflow cannot log ({_reason(error)}): the work goes on, and what waits in {runs} is logged at the "
            "next start or by `reread reconcile`"
        )


class Tracker(contextlib.AbstractContextManager["Tracker"]):
    """Records runs and reports in MLflow, and parents when the block ends. Never raises an error of MLflow.

    say: takes a line of text, one per outage in a process. strict: raise the InputError of what MLflow or the registry
    refuses, as of an experiment that was deleted; else that waits, too.
    """

    def __init__(self, say: Say, strict: bool = True) -> None:
        self.say, self.strict = say, strict
        self.tracking: Tracking | None = None
        self.failed = False

    def __exit__(self, *_: object) -> None:
        # Whatever MLflow raises: a parent is updated with its next run, too.
        with contextlib.suppress(Exception):
            if self.tracking and not self.failed:
                self.tracking.update_parents()

    def record(self, job: Job, evaluation_directory: Path | None = None, live: bool = False) -> str | None:
        """Record a run as ``Tracking.record`` does; return its id, None where MLflow fails."""
        key, runs = job.run_directory.name, job.run_directory.parent
        evaluation = evaluation_directory.name if evaluation_directory else None
        about = {"run": key, "experiment": job.experiment, "variant": job.variant, "evaluation": evaluation}
        file = runs / FOLDER / f"{key}-{content_key(about)}.json"
        return self._try(file, about, lambda tracking: tracking.record(job, evaluation_directory, live))

    def report(self, about: Mapping[str, Any], environment: Environment) -> None:
        """Record a report as ``record_report`` does."""
        file = environment.runs / FOLDER / f"report-{about['report']}.json"
        self._try(file, about, lambda tracking: record_report(tracking, about, environment))

    def _try(self, file: Path, about: Mapping[str, Any], record: Callable[[Tracking], Answer]) -> Answer | None:
        """Return what ``record`` does and remove ``file``; write it, with ``about``, where MLflow fails."""
        uri = tracking_uri()
        try:
            if time.monotonic() < AWAY.get(uri, 0.0):
                self._keep(file, about)
                return None
            if self.tracking is None:
                self.tracking = open_tracking()
            elif self.failed:
                refuse_silent_server(uri)
            answer = record(self.tracking)
        except Exception as error:  # whatever MLflow, its database or its server raise
            self.failed = True
            if self.strict and isinstance(error, InputError) and not isinstance(error, Unavailable):
                raise
            self._keep(file, about)
            leave_alone(uri, error, file.parent.parent, self.say)
            return None
        self.failed = False
        AWAY.pop(uri, None)
        file.unlink(missing_ok=True)
        return answer

    def _keep(self, file: Path, about: Mapping[str, Any]) -> None:
        # On a disk without room `reread reconcile` finds the run by its result.
        with contextlib.suppress(OSError):
            if "report" in about or not file.is_file():
                write_json(file, about)


@dataclass
class Settled:
    """Result of ``reconcile``: ``recorded``, names of runs and reports; ``closed``, the status of runs by their id.

    left: why something was not recorded, by its file or folder.
    """

    recorded: list[str] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def unrecorded(runs: Path) -> list[Path]:
    """Return the files of what waits for MLflow; reports come after the runs."""
    return sorted((runs / FOLDER).glob("*.json"))


def reconcile(environment: Environment, root: Path = Path(), everything: bool = False) -> Settled:
    """Record what waits, and close the runs in MLflow that no process trains.

    A run that a process trains is left to that process. everything: also record the finished runs that MLflow does not
    have for another reason. InputError where MLflow does not answer.
    """
    tracking, settled = open_tracking(root), Settled()
    for run_id, about in tracking.running().items():
        directory = environment.runs / about["run"]
        with file_lock(run_lock(directory), blocking=False) as free:
            if free:
                # Of a folder or arrays that are gone nothing can be logged.
                with contextlib.suppress(InputError):
                    _record(tracking, about, environment)
                settled.closed[run_id] = tracking.close(run_id, RunFolder(directory))
    for path in chain(unrecorded(environment.runs), _missing(tracking, environment) if everything else ()):
        with _settling(settled, path, root):
            about = {"run": path.name} if path.is_dir() else read_object(path)
            directory = _inside(environment.runs, about.get("run", FOLDER))
            with file_lock(run_lock(directory), blocking=False) as free:
                # A run whose folder was removed has nothing to be recorded.
                if free and directory.is_dir():
                    _record(tracking, about, environment)
                    settled.recorded.append(about.get("run", path.stem))
                if free and path.is_file():
                    path.unlink()
    tracking.update_parents()
    AWAY.pop(tracking_uri(root), None)
    return settled


def settle(environment: Environment, say: Say) -> None:
    """Do as ``reconcile`` does when work starts or ends; say an error of MLflow in one line in place of raising."""
    try:
        settled = reconcile(environment)
    except Exception as error:
        leave_alone(tracking_uri(), error, environment.runs, say)
        return
    if settled.recorded:
        say(f"MLflow: recorded {len(settled.recorded)} runs and reports that waited")
    for line in settled.left.values():
        say(f"MLflow: {line}")


def record_report(tracking: Tracking, about: Mapping[str, Any], environment: Environment) -> None:
    """Log an experiment's report, register its models and baselines, and let the champions of its data be that.

    about: ``report``, the experiment; ``models``, each with ``run`` and ``evaluation`` (keys), ``variant``, ``score``
    as of ``registry.log_model``, and ``champion``; ``baselines``, each with ``name``, ``directory`` and ``prepared``
    (keys), ``metric`` as of ``registry.log_baseline``, and ``champion``.
    """
    from reread.evaluation.baselines import Baseline
    from reread.tracking.registry import log_baseline, log_model, set_champion

    experiment = about["report"]
    tracking.report(_inside(environment.reports, experiment))
    for model in about["models"]:
        job, evaluation = _job_of({**model, "experiment": experiment}, environment)
        run_id = tracking.record(job, evaluation)
        version = log_model(tracking, run_id, job.run_directory, evaluation, model["score"])
        if model["champion"]:
            set_champion(tracking, job.data, version, experiment)
    for baseline in about["baselines"]:
        directory = _inside(environment.runs / BASELINES, baseline["directory"])
        prepared = open_prepared(_inside(environment.prepared, baseline["prepared"]))
        fitted = Baseline(**read_json(directory / "baseline.json"), probabilities={}, directory=directory)
        version = log_baseline(tracking, experiment, baseline["name"], fitted, prepared, baseline["metric"])
        if baseline["champion"]:
            set_champion(tracking, prepared.description["name"], version, experiment)


def _record(tracking: Tracking, about: Mapping[str, Any], environment: Environment) -> None:
    """Record the run or the report that ``about`` names.

    What is recorded is shown to others, and folders may come from elsewhere: InputError where a job's arrays are not
    among the prepared ones.
    """
    for run in about["models"] if "report" in about else [about]:
        job, _ = _job_of(run, environment)
        below(environment.prepared, job.prepared.absolute(), f"{job.file} names it")
    if "report" in about:
        record_report(tracking, about, environment)
    else:
        tracking.record(*_job_of(about, environment))


def _job_of(about: Mapping[str, Any], environment: Environment) -> tuple[Job, Path | None]:
    """Return the job of a run under the names that ``about`` gives it, and its evaluation; InputError where a key is no
    name of a folder in runs."""
    directory = _inside(environment.runs, about["run"])
    names = {name: about[name] for name in ("experiment", "variant") if name in about}
    job = replace(Job.read(RunFolder(directory)), run_directory=directory, **names)
    evaluation = about.get("evaluation")
    return job, _inside(directory / EVALUATION, evaluation) if evaluation else None


def _inside(folder: Path, name: str) -> Path:
    return below(folder, name, "it is what is to be recorded in MLflow")


def _missing(tracking: Tracking, environment: Environment) -> Iterator[Path]:
    """Yield the folders of the finished runs that MLflow does not have, without those that no plan made, whose arrays
    are gone, or whose experiment was deleted there."""
    known: dict[str, set[tuple[str, str]]] = {}
    for result in sorted(environment.runs.glob(f"[!.]*/{RESULT}")):
        with contextlib.suppress(InputError):
            job = Job.read(RunFolder(result.parent))
            if job.experiment not in known:
                known[job.experiment] = tracking.recorded(job.experiment)
            if (job.variant, job.run_key) not in known[job.experiment] and (job.prepared / DESCRIPTION).is_file():
                yield result.parent


@contextlib.contextmanager
def _settling(settled: Settled, path: Path, root: Path) -> Iterator[None]:
    """Note in ``settled`` the error of the block, which is that of one folder alone if MLflow still answers."""
    try:
        yield
    except Exception as error:
        open_tracking(root)
        reason = error if isinstance(error, InputError) else _reason(error)
        mend = "" if path.is_dir() else ": remove that file where it cannot be mended"
        settled.left[str(path)] = f"{path} cannot be recorded ({reason}){mend}"


def _reason(error: Exception) -> str:
    """Return an error of MLflow, whose own messages have many lines, as half a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
