"""The only door to MLflow for runs: parameters, metrics, reports.

Each of our experiments is one MLflow experiment. In it, a child run is one (variant, seed), found by the tag
``run_key`` and the variant's name. Its parent is one variant on one data version, found by ``variant_key``, so that
seeds trained later join it. One more run, tagged ``report``, holds the experiment's report. Code names runs by explicit
ids: no active run, no autolog. Models go through reread/tracking/registry.py.

MLflow is a log and decides nothing. If its database is deleted, ``record`` writes the finished runs of runs/ again. A
process that tracks a run holds a lock, which the kernel frees however the process dies. From free locks ``reconcile``
knows which RUNNING runs nobody trains any more.

Tracking never stops training: what MLflow cannot take waits in reread/tracking/journal.py.
"""

import contextlib
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TextIO

from reread.goals import goal
from reread.storage.errors import InputError
from reread.storage.files import below, content_key, read_json, write_json, write_text
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import (
    ENVIRONMENT,
    HISTORY,
    JOB,
    LOG,
    RESULT,
    TIMING,
    RunFolder,
)
from reread.tracking import descriptions
from reread.tracking.addresses import ARTIFACTS
from reread.tracking.connection import LOCKS, connect, refuse_silent_server, tracking_uri
from reread.tracking.descriptions import NOTE, ROLE, SEED
from reread.tracking.figures import (
    began_and_ended,
    betas,
    environment_tags,
    finite,
    flat,
    mean_and_interval,
    read_if_exists,
    run_figures,
    variant_parameters,
)
from reread.tracking.pages import run_page, server_of
from reread.tracking.run_locks import RUN_LOCKS
from reread.tracking.views import views

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MAXIMUM_METRICS = 25
METRICS_PER_BATCH = 1000
# What differs between the seeds of one variant, or only locates a run.
NOT_OF_THE_VARIANT = {"seed", "fold", "run_key", "key_parts", "run_directory", "prepared"}
# The tag of the run that holds an experiment's report.
REPORT = "report"
ORIGIN = "origin.json"
RUN_FILES = (JOB, RESULT, TIMING, ENVIRONMENT, LOG)


def run_name(job: Job) -> str:
    """Return the name of a job's run: han-seed-0, or han-seed-0-fold-2."""
    return "-".join([job.variant, *(word for pair in seed_and_fold(job).items() for word in pair)])


def seed_and_fold(job: Job) -> dict[str, str]:
    """Return the seed of a job and, of cross-validation, its fold, as parameters and tags."""
    return {"seed": str(job.seed), **({} if job.fold is None else {"fold": str(job.fold)})}


def by_seed(runs: Iterable["Run"]) -> list[Mapping[str, float]]:
    """Return the metrics of runs, those of the folds of one seed as their mean."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        tags = run.data.tags
        found.setdefault(tags["seed"] if "fold" in tags else run.info.run_id, []).append(run.data.metrics)
    return [
        {name: fmean(one[name] for one in each) for name in set.intersection(*map(set, each))}
        for each in found.values()
    ]


def open_tracking(root: Path = Path()) -> "Tracking":
    """Connect to MLflow (``connect``), or return the connection of ``shared_connection``; Unavailable as there."""
    uri = tracking_uri(root)
    shared = (Shared.connections or {}).get((uri, root.resolve()))
    if shared is not None:
        refuse_silent_server(uri)
        return shared
    tracking = Tracking(connect(root), uri, root)
    if Shared.connections is not None:
        Shared.connections[uri, tracking.root] = tracking
        tracking.stale_parents = set()
    return tracking


class Shared:
    """The connections within ``shared_connection``, by address and folder; None outside of it."""

    connections: "dict[tuple[str, Path], Tracking] | None" = None


@contextlib.contextmanager
def shared_connection() -> Iterator[None]:
    """Let ``open_tracking`` return one connection within the block, and update parents once, at its end.

    The connection remembers the ids of experiments and parents. A parent that cannot be updated is updated with its
    next run.
    """
    if Shared.connections is not None:
        yield
        return
    Shared.connections = {}
    try:
        yield
    finally:
        opened, Shared.connections = Shared.connections, None
        for tracking in opened.values():
            stale, tracking.stale_parents = tracking.stale_parents or (), None
            for parent_id in stale:
                # whatever MLflow, its database or its server raise
                with contextlib.suppress(Exception):
                    tracking.update_parent(parent_id)


def report_page(experiment: str, root: Path = Path()) -> str | None:
    """Return the page of an experiment's report; None where MLflow has none or does not answer."""
    from mlflow.exceptions import MlflowException

    try:
        tracking = open_tracking(root)
        run = tracking.find(experiment, REPORT, experiment)
    except (InputError, MlflowException):
        return None
    if run is None:
        return None
    return run_page(server_of(tracking.uri), run.info.experiment_id, run.info.run_id, descriptions.PAGE)


# When that happened which is logged now, in milliseconds since 1970; None: now. Each thread has its own.
HAPPENED: ContextVar[int | None] = ContextVar("happened", default=None)


def logged_at() -> int:
    """Return the time of what is logged, in milliseconds since 1970."""
    return HAPPENED.get() or int(time.time() * 1000)


class Tracking:
    """A connection to MLflow. Made by ``open_tracking``; may be shared by threads."""

    def __init__(self, client: "MlflowClient", uri: str, root: Path) -> None:
        self.client = client
        self.uri = uri
        self.root = root.resolve()
        self.logged_steps: dict[str, dict[str, set[int]]] = {}
        self.experiment_ids: dict[str, str] = {}
        self.parent_ids: dict[str, str] = {}
        # Parents to update later, of a connection that is shared.
        self.stale_parents: set[str] | None = None

    # One run

    def start(self, job: Job, about: Mapping[str, Any], began: int | None = None) -> str:
        """Find or create the run of ``job`` and return its id, RUNNING and locked by this process.

        ``about`` becomes tags (nested names are joined by dots): commit, data digests, Prefect's run, GPU, torch. It is
        also written to origin.json in the run's folder, in case MLflow's database is lost. An interrupted run resumes
        as the same MLflow run. ``began``: when a run that is logged afterwards began, in milliseconds since 1970.
        """
        origin = job.run_directory / ORIGIN
        if about:
            write_json(origin, about)
        else:
            about = read_if_exists(origin)
        experiment_id = self.experiment(job.experiment)
        RUN_LOCKS.acquire(self._run_lock(experiment_id, job.run_key))
        parent_id = self.parent(job, began)
        with self._locked():
            run = self._find_run(experiment_id, job)
            if run is None:
                tags = {"run_key": job.run_key, "mlflow.parentRunId": parent_id, "folder": self._workspace_id()}
                run = self.client.create_run(
                    experiment_id, start_time=began or logged_at(), run_name=run_name(job), tags=tags
                )
            description = read_json(job.prepared / DESCRIPTION)
            parameters = {**variant_parameters(job, description), **seed_and_fold(job)}
            tags = {
                **descriptions.origin(descriptions.command_of(job, seed=True), about),
                NOTE: descriptions.seed_note(job),
                **flat(about),
                "folder": self._workspace_id(),
                **seed_and_fold(job),
                ROLE: SEED,
                "task": description["task"],
            }
            self._log_params_and_tags(run, parameters, tags)
            self._log_dataset(run, job, description)
            run_id: str = run.info.run_id
            if run.info.status != "RUNNING":
                self.client.update_run(run_id, status="RUNNING")
        return run_id

    def log_epochs(self, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Log each number of each row (a mapping with ``epoch``, 1 for the first) at the step of its epoch.

        A step that is logged already is skipped, so the whole history may be passed again after a resume.
        """
        self._log_metrics(run_id, ((key, int(row["epoch"]), row[key]) for row in rows for key in row if key != "epoch"))

    def finish(
        self, run_id: str, run_directory: Path, evaluation_directory: Path | None = None, ended: int | None = None
    ) -> None:
        """Log the files of a finished run, all epochs included, mark it FINISHED and update its parent's metrics.

        Call it again with ``evaluation_directory`` (which has metrics.json) after the evaluation. ``ended``: when the
        run ended, in milliseconds since 1970; default: now.
        """
        folder = RunFolder(Path(run_directory))
        result = folder.require_result()
        if (folder.directory / HISTORY).is_file():
            self.log_epochs(run_id, folder.history())
        run = self.client.get_run(run_id)
        figures = run_figures(folder, run.data.tags["task"], run.data.metrics, evaluation_directory)
        with self._locked():
            self._log_latest(run_id, figures)
            self._log_metrics(run_id, betas(result))
            software = environment_tags(run.data.tags, folder) | {"kernels": result.get("kernels")}
            self._log_params_and_tags(run, {}, flat(software))
        if run.info.status != "FINISHED":
            if "ended_by" in run.data.tags:
                self.client.delete_tag(run_id, "ended_by")
            self._log_files(run_id, [folder.directory / name for name in RUN_FILES])
            self._terminate(run, "FINISHED", ended)
        self._release(run)
        self._parent_changed(run.data.tags["mlflow.parentRunId"])

    def fail(self, run_id: str, status: str = "FAILED", message: str = "") -> None:
        """Set the final status of a run without a result: FAILED, or KILLED where it was stopped from outside."""
        self.client.set_tag(run_id, "ended_by", message[:5000])
        run = self.client.get_run(run_id)
        self._terminate(run, status)
        self._release(run)

    def record(
        self,
        run_directory: Path,
        evaluation_directory: Path | None = None,
        job: Job | None = None,
    ) -> str:
        """Write a run that is finished in runs/ to MLflow, where it is missing or incomplete; return its id.

        ``job`` names the experiment that it belongs to; the default is the one that trained it. When two processes
        record a run at once, the second waits and finds it.
        """
        run_directory = Path(run_directory)
        job = job or Job.read(RunFolder(run_directory))
        experiment_id = self.experiment(job.experiment)
        lock = self._run_lock(experiment_id, job.run_key)
        RUN_LOCKS.acquire(lock)
        try:
            run = self._find_run(experiment_id, job)
            if run is None:
                return self._record_new(run_directory, evaluation_directory, job, experiment_id)
            began, ended = began_and_ended(run_directory)
            run_id = run.info.run_id if run.info.status == "FINISHED" else self.start(job, {}, began)
            self.finish(run_id, run_directory, evaluation_directory, ended)
        finally:
            RUN_LOCKS.release(lock)
        return run_id

    def _record_new(self, run_directory: Path, evaluation_directory: Path | None, job: Job, experiment_id: str) -> str:
        """Write a finished run that MLflow does not have, by as few requests as there can be; return its id."""
        folder = RunFolder(run_directory)
        began, ended = began_and_ended(run_directory)
        result, parent_id = folder.require_result(), self.parent(job, began)
        description = read_json(job.prepared / DESCRIPTION)
        about = read_if_exists(run_directory / ORIGIN)
        tags = {
            **descriptions.origin(descriptions.command_of(job, seed=True), about),
            NOTE: descriptions.seed_note(job),
            **flat(about),
            "run_key": job.run_key,
            "mlflow.parentRunId": parent_id,
            "folder": self._workspace_id(),
            **seed_and_fold(job),
            ROLE: SEED,
            "task": description["task"],
        }
        tags |= flat(environment_tags(tags, folder) | {"kernels": result.get("kernels")})
        with self._locked():
            run = self.client.create_run(experiment_id, start_time=began, run_name=run_name(job), tags=tags)
            run_id: str = run.info.run_id
            self._log_params_and_tags(run, {**variant_parameters(job, description), **seed_and_fold(job)}, {})
            self._log_dataset(run, job, description)
            self.logged_steps[run_id] = {}
            figures = run_figures(folder, description["task"], {}, evaluation_directory)
            epochs = folder.history() if (run_directory / HISTORY).is_file() else []
            self._log_metrics(
                run_id,
                [
                    *((key, int(row["epoch"]), row[key]) for row in epochs for key in row if key != "epoch"),
                    *((key, 0, value) for key, value in figures.items()),
                    *betas(result),
                ],
            )
        self._log_files(run_id, [run_directory / name for name in RUN_FILES])
        self.client.set_terminated(run_id, "FINISHED", ended)
        self._parent_changed(parent_id)
        return run_id

    def _log_files(self, run_id: str, files: Iterable[Path]) -> None:
        """Log the files that exist as artifacts, by one request; InputError for a link that leads out of its folder."""
        with tempfile.TemporaryDirectory() as folder:
            for file in files:
                if file.is_file():
                    shutil.copy2(below(file.parent, file.name, "remove the link"), folder)
            self.client.log_artifacts(run_id, folder)

    def _parent_changed(self, parent_id: str) -> None:
        """Update a parent, or, of a connection that is shared, note that it is to be updated."""
        if self.stale_parents is None:
            self.update_parent(parent_id)
        else:
            self.stale_parents.add(parent_id)

    def update_stale_parent(self, parent_id: str) -> None:
        """Update a parent that a shared connection was to update at its end: its metrics are needed now."""
        if self.stale_parents and parent_id in self.stale_parents:
            self.stale_parents.discard(parent_id)
            self.update_parent(parent_id)

    def recorded(self, experiment: str) -> set[tuple[str, str]]:
        """Return (variant, run key) of an experiment's runs that are FINISHED."""
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            return set()
        runs = self._search([found.experiment_id], "attributes.status = 'FINISHED' and tags.run_key != ''")
        return {(run.data.params["variant"], run.data.tags["run_key"]) for run in runs}

    def reconcile(self, runs_root: Path) -> dict[str, str]:
        """Set the final status of RUNNING runs that no process of this folder trains; return {run id: status}.

        FINISHED where runs/ has the result, else KILLED. A run is live while a process holds the lock of its tracking
        or that of its folder: one that resumed while MLflow was away holds the latter alone. Runs that were started
        from another folder, or on another machine that tracks on the same server, are left alone.
        """
        settled = {}
        wanted = f"attributes.status = 'RUNNING' AND tags.folder = '{self._workspace_id()}'"
        for run in self._search([one.experiment_id for one in self.client.search_experiments()], wanted):
            run_id, run_key = run.info.run_id, run.data.tags["run_key"]
            run_directory = Path(runs_root) / run_key
            tracked = self._run_lock(run.info.experiment_id, run_key)
            with file_lock(run_lock(run_directory), blocking=False) as free, file_lock(tracked, blocking=False) as also:
                # Its own process may have ended it between the search and the lock.
                if not (free and also) or self.client.get_run(run_id).info.status != "RUNNING":
                    continue
                folder = RunFolder(run_directory)
                if folder.finished:
                    self.finish(run_id, run_directory)
                    settled[run_id] = "FINISHED"
                else:
                    # What the process had not logged when it ended.
                    with contextlib.suppress(InputError):
                        self.log_epochs(run_id, folder.history())
                    self.fail(run_id, "KILLED", "the process was gone; run again to resume it")
                    settled[run_id] = "KILLED"
        return settled

    # One variant, one experiment

    def experiment(self, name: str) -> str:
        """Return the id of MLflow's experiment ``name``; create a missing one."""
        if self.stale_parents is not None and name in self.experiment_ids:
            return self.experiment_ids[name]
        with self._locked():
            found = self.client.get_experiment_by_name(name)
            if found is None:
                # Only our own database keeps its artifacts beside itself. A server has a place for them.
                ours = self.uri.startswith("sqlite:")
                location = (self.root / ARTIFACTS / name).as_uri() if ours else None
                self.experiment_ids[name] = self.client.create_experiment(name, artifact_location=location)
                return self.experiment_ids[name]
        if found.lifecycle_stage != "active":
            raise InputError(
                f"experiment '{name}' was deleted in MLflow ({self.uri}): restore it there "
                f"(mlflow experiments restore -x {found.experiment_id}) or remove it for good (mlflow gc)"
            )
        self.experiment_ids[name] = found.experiment_id
        return found.experiment_id

    def parent(self, job: Job, began: int | None = None) -> str:
        """Return the id of the parent run of ``job``: its variant on its data version. Create a missing one."""
        description = read_json(job.prepared / DESCRIPTION)
        inputs = {key: value for key, value in job.to_json().items() if key not in NOT_OF_THE_VARIANT}
        # Each fold has arrays of its own, and all of a variant have the same settings.
        about = ("name", "kind", "task", "classes", "settings", "data_version")
        prepared = {name: description[name] for name in about} if job.fold is not None else description
        key = content_key({**inputs, "prepared": prepared})
        if self.stale_parents is not None and key in self.parent_ids:
            return self.parent_ids[key]
        experiment_id = self.experiment(job.experiment)
        with self._locked():
            run = self._find_or_create(experiment_id, "variant_key", key, job.variant, began)
            source = descriptions.origin(descriptions.command_of(job, seed=False))
            self._log_params_and_tags(run, variant_parameters(job, description), source)
            self._log_dataset(run, job, description)
        self.parent_ids[key] = run.info.run_id
        return self.parent_ids[key]

    def parents(self, experiment: str) -> dict[str, str]:
        """Return the id of the parent run of each variant in an experiment's report."""
        runs = self._search([self.experiment(experiment)], f"tags.{ROLE} = 'variant'")
        return {run.data.params["variant"]: run.info.run_id for run in runs}

    def update_parent(self, parent_id: str) -> None:
        """Log the mean and 95 % interval of each final metric over the finished seeds, and their number.

        Of cross-validation a seed has the mean of its folds.

        The interval is Student's t of the mean; a single seed has none.
        """
        with self._locked():
            parent = self.client.get_run(parent_id)
            wanted = f"tags.mlflow.parentRunId = '{parent_id}' AND attributes.status = 'FINISHED'"
            children = self._search([parent.info.experiment_id], wanted)
            self._log_latest(parent_id, mean_and_interval(by_seed(children)))
            # A variant takes as long as its seeds together, however many train at a time or on different days.
            took = sum(run.info.end_time - run.info.start_time for run in children)
            end = parent.info.start_time + took
            if end != parent.info.end_time:
                self.client.set_terminated(parent_id, "FINISHED", end)

    def baseline(
        self,
        experiment: str,
        data: str,
        name: str,
        found: tuple[Mapping[str, Any], Mapping[str, float]],
        description: Mapping[str, Any],
    ) -> str:
        """Log a baseline's choices and metrics (``found``) to a run of its own, one per experiment; return its id.

        description: prepared.json of the rows that it was fitted on.
        """
        experiment_id = self.experiment(experiment)
        chosen, metrics = found
        # Another version of the data is another run: a parameter of MLflow's never changes.
        key = content_key({"data": description["data_version"], "name": name, "chosen": chosen})
        with self._locked():
            run = self._find_or_create(experiment_id, "baseline_key", key, f"{name} on {data}")
            source = descriptions.origin(f"reread evaluate --experiment {experiment}")
            # Registered baselines are those of experiments that read the test split.
            metric = f"test.{goal(description['task']).names[0]}"
            score = metrics.get(metric)
            tags = {"baseline": name, **source, **descriptions.baseline_tags(score)}
            self._log_params_and_tags(run, flat({"variant": name, "data": data, **chosen}), tags)
            # Sorted among the variants, which have a mean over seeds.
            shown = {} if score is None else {f"{metric}.mean": score}
            run_id: str = run.info.run_id
            self._log_latest(run_id, {**shown, **metrics})
        return run_id

    def command(
        self, experiment: str, job: Mapping[str, Any], metrics: Mapping[str, float], files: Iterable[Path]
    ) -> str:
        """Log a finished run of a command (``reread claim``) to a run of its own, found by its key; return its id.

        job: arm, seed, key, and what else becomes parameters. metrics: its scores. files: its log and what it ran.
        """
        experiment_id = self.experiment(experiment)
        with self._locked():
            run = self._find_or_create(experiment_id, "command_key", job["key"], f"{job['arm']}-seed-{job['seed']}")
            self._log_params_and_tags(run, flat(job), {"seed": str(job["seed"]), ROLE: SEED})
            run_id: str = run.info.run_id
            self._log_latest(run_id, metrics)
        self._log_files(run_id, files)
        return run_id

    def report(self, experiment: str, files: Iterable[Path], tags: Mapping[str, Any] | None = None) -> str:
        """Log an experiment's report with its figures and tables to a run of its own; return that run's id.

        Where its results are among ``files``, the experiment's and its variants' pages show them.
        """
        experiment_id, files = self.experiment(experiment), list(files)
        results = descriptions.Results.of(files)
        with self._locked():
            run = self._find_or_create(experiment_id, REPORT, experiment, f"{experiment}-report")
            about = descriptions.origin(f"reread run --experiment {experiment}")
            self._log_params_and_tags(run, {}, {**flat(tags or {}), **about})
        if results is not None:
            self._describe(experiment, run, results)
        run_id: str = run.info.run_id
        for file in files:
            self.client.log_artifact(run_id, str(file))
        return run_id

    def find(self, experiment: str, tag: str, value: str) -> "Run | None":
        """Return the run of an experiment with this tag; None where there is none."""
        found = self.client.get_experiment_by_name(experiment)
        return self._find(found.experiment_id, tag, value) if found else None

    # Private parts

    def _describe(self, experiment: str, report: "Run", results: descriptions.Results) -> None:
        """Show the results on the pages of the experiment, its variants and its report."""
        experiment_id, run_id = report.info.experiment_id, report.info.run_id
        link = f"[Report]({run_page('', experiment_id, run_id, descriptions.PAGE)})"
        note = results.note(link)
        for key, value in {NOTE: note, **views(results.split, results.scores)}.items():
            self.client.set_experiment_tag(experiment_id, key, value)
        self._log_params_and_tags(report, {}, {NOTE: note})
        variants = self._show_runs_of_report(experiment_id, results.runs)
        for variant, parent_id in variants.items():
            tags = results.variant_tags(variant, f"{link}{results.model_link(variant)}")
            self._log_params_and_tags(self.client.get_run(parent_id), {}, tags)

    def _show_runs_of_report(self, experiment_id: str, runs: Collection[tuple[str, str]]) -> dict[str, str]:
        """Show the runs of the report and those that train, and hide those of earlier settings and names; return the id
        of each variant's parent. A baseline is shown again when it is logged. ``runs``: (variant, run key) of each."""
        seeds = self._search([experiment_id], "tags.run_key != ''")
        shown = [run for run in seeds if (run.data.params["variant"], run.data.tags["run_key"]) in runs]
        parents = {run.data.params["variant"]: run.data.tags["mlflow.parentRunId"] for run in shown}
        for run in shown:
            self._log_params_and_tags(run, {}, {ROLE: SEED})
        kept = {*parents.values(), *(run.info.run_id for run in shown)}
        for run in self._search([experiment_id], f"tags.{ROLE} != ''"):
            if run.info.run_id not in kept and run.info.status != "RUNNING":
                self.client.delete_tag(run.info.run_id, ROLE)
        return parents

    def _locked(self) -> contextlib.AbstractContextManager[TextIO | None]:
        """Lock MLflow for one process: to find or create a run, or to read metrics and replace them. Never nested."""
        return file_lock(self.root / LOCKS / "mlflow.lock")

    def _workspace_id(self) -> str:
        """Return this folder's unique id. Only processes of this folder can see by its locks which runs live."""
        path = self.root / LOCKS / "folder"
        if not path.is_file():
            with file_lock(path.with_suffix(".lock")):
                if not path.is_file():
                    write_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    def _run_lock(self, experiment_id: str, run_key: str) -> Path:
        return self.root / LOCKS / "tracked" / f"{experiment_id}-{run_key}.lock"

    def _terminate(self, run: "Run", status: str, ended: int | None = None) -> None:
        """Set the final status; no run ends before it began, also where the clock was set back in between."""
        self.client.set_terminated(run.info.run_id, status, max(ended or logged_at(), run.info.start_time))

    def _release(self, run: "Run") -> None:
        RUN_LOCKS.release(self._run_lock(run.info.experiment_id, run.data.tags["run_key"]))

    def _search(self, experiment_ids: list[str], wanted: str) -> list["Run"]:
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(experiment_ids, wanted, max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    def _find_run(self, experiment_id: str, job: Job) -> "Run | None":
        """Find the run of a job. A variant that was renamed has the same keys: its runs are logged under each name."""
        found = self._search([experiment_id], f"tags.run_key = '{job.run_key}'")
        return next((run for run in found if run.data.params.get("variant", job.variant) == job.variant), None)

    def _find(self, experiment_id: str, tag: str, value: str) -> "Run | None":
        found = self._search([experiment_id], f"tags.{tag} = '{value}'")
        return found[0] if found else None

    def _find_or_create(self, experiment_id: str, tag: str, value: str, name: str, began: int | None = None) -> "Run":
        """Find or create a run that no process trains, FINISHED from the start. Call it inside ``_locked``."""
        run = self._find(experiment_id, tag, value)
        if run is None:
            run = self.client.create_run(experiment_id, start_time=began, run_name=name, tags={tag: value})
        if run.info.status == "RUNNING":
            self.client.set_terminated(run.info.run_id, "FINISHED", run.info.start_time)
        return run

    def _log_params_and_tags(self, run: "Run", parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log missing parameters and set changed tags."""
        from mlflow.entities import Param, RunTag

        missing = [Param(key, value) for key, value in parameters.items() if key not in run.data.params]
        changed = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
        for start in range(0, max(len(missing), len(changed)), 100):
            stop = start + 100
            self.client.log_batch(run.info.run_id, params=missing[start:stop], tags=changed[start:stop])

    def _log_dataset(self, run: "Run", job: Job, description: Mapping[str, Any]) -> None:
        """Log the run's data set as MLflow shows it: name, digest (at most 36 characters), source and counts."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if run.inputs and run.inputs.dataset_inputs:
            return
        source = {"raw": f"data/{job.data}", "prepared": str(job.prepared), "version": description["data_version"]}
        profile = {"classes": description["classes"], "splits": description["splits"]}
        dataset = Dataset(
            name=job.data,
            digest=description["data_version"][:36],
            source_type="dvc",
            source=json.dumps(source),
            schema=json.dumps({name: [one["dtype"], one["shape"]] for name, one in description["arrays"].items()}),
            profile=json.dumps(profile),
        )
        self.client.log_inputs(run.info.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _log_latest(self, run_id: str, figures: Mapping[str, float]) -> None:
        """Make ``figures`` the latest values: log each changed one at the step after its last."""
        latest = self.client.get_run(run_id).data.metrics
        changed = {key: value for key, value in figures.items() if latest.get(key) != value}
        last = {
            key: max(metric.step for metric in self.client.get_metric_history(run_id, key))
            for key in changed
            if key in latest
        }
        self._log_metrics(run_id, ((key, last.get(key, -1) + 1, value) for key, value in changed.items()))

    def _log_metrics(self, run_id: str, figures: Iterable[tuple[str, int, Any]]) -> None:
        """Log (name, step, value) where the step has no value yet. At most 25 names; a tag lists the others."""
        from mlflow.entities import Metric

        known = self.logged_steps.get(run_id)
        if known is None:
            metrics = self.client.get_run(run_id).data.metrics
            known = {key: {metric.step for metric in self.client.get_metric_history(run_id, key)} for key in metrics}
        now = logged_at()
        new, left_out = [], set()
        for key, step, value in figures:
            value = finite(value)
            if value is None or step in known.get(key, ()):
                continue
            if key not in known and len(known) == MAXIMUM_METRICS:
                left_out.add(key)
                continue
            known.setdefault(key, set()).add(step)
            new.append(Metric(key, value, now, step))
        # If a batch fails, the server knows which steps it has: they are read again.
        self.logged_steps.pop(run_id, None)
        for start in range(0, len(new), METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=new[start : start + METRICS_PER_BATCH])
        self.logged_steps[run_id] = known
        if left_out:
            self.client.set_tag(run_id, "metrics_left_out", ", ".join(sorted(left_out)))
