"""The only door to MLflow for runs: what each run was, what it found, and what came of it.

One MLflow experiment stands for one of ours. In it, a child run is one (variant, seed), found by the tag ``run_key``;
its parent is one variant on one data version, found by ``variant_key``, so that seeds trained later join it; one
more run, tagged ``report``, holds the experiment's report. Runs are named by explicit ids: no active run, no autolog.
Models go through tracking/registry.py.

MLflow keeps what happened and decides nothing: delete its database, and ``record`` writes the finished runs of
runs/ again. A process that tracks a run holds a lock while it lives. The kernel frees the lock however the process
dies, and by that ``reconcile`` knows which RUNNING runs nobody trains any more.

The database is sqlite:///mlflow.db in the project's folder with mlartifacts/ beside it, or MLFLOW_TRACKING_URI.
MLflow is imported on first use: its import takes a second, and not every stage tracks.
"""

import contextlib
import csv
import json
import logging
import math
import os
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import InputError
from storage.files import content_key, read_json, write_json, write_text
from storage.locks import file_lock
from storage.prepared import DESCRIPTION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

DATABASE = Path("mlflow.db")
ARTIFACTS = Path("mlartifacts")
LOCKS = Path(".locks")
MAXIMUM_METRICS = 25
METRICS_A_BATCH = 1000
# What differs between the seeds of one variant, or only says where a run lies.
NOT_OF_THE_VARIANT = {"seed", "run_key", "run_directory", "prepared"}
# Of result.json: what is no figure of merit, or is logged by epoch already.
NO_METRICS = {"seed", "validation"}
TIMING_METRICS = ("seconds", "samples_per_second")
LATENCY_METRICS = ("one_by_one", "in_one_batch")
# A parent's figures, named so that the mean comes first: MLflow's comparison draws the first metric.
INTERVAL = {"mean": "mean", "low": "mean_low", "high": "mean_high"}
SEEDS = "variant.seeds"
# What the evaluation calls the score that training maximises.
SCORES = {"single-label": "accuracy", "multi-label": "macro_auroc"}
ORIGIN = "origin.json"
RUN_FILES = ("job.json", "result.json", "timing.json", "environment.json", "log.txt")
REFUSED = re.compile(r"[^\w./: -]")


def tracking_uri(root: Path = Path()) -> str:
    """MLFLOW_TRACKING_URI if the user has set it, else the sqlite database in ``root``, absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root / DATABASE).resolve()}"


def open_tracking(root: Path = Path()) -> "Tracking":
    """Connect to MLflow; a database that is not there is made, once, whichever process comes first.

    InputError when the server does not answer or the database is of another MLflow.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # What goes well is told on stderr, as if something had gone wrong.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow.store.db.utils", "mlflow.pyfunc", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    uri = tracking_uri(root)
    if uri.startswith(("http://", "https://")):
        _refuse_silent_server(uri)
    with file_lock(root / LOCKS / "mlflow.lock"):
        if uri == f"sqlite:///{(root / DATABASE).resolve()}":
            _create_database(root)
        try:
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
        except (MlflowException, SQLAlchemyError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise InputError(
                f"MLflow cannot open {uri}: {reason}. Move that file away: finished runs are written anew"
            ) from None
    return Tracking(client, uri, root)


def _refuse_silent_server(uri: str) -> None:
    # MLflow itself would try for minutes before it gave up.
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=15).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"MLFLOW_TRACKING_URI={uri} does not answer ({reason}): start that server or unset the variable"
        ) from None


def _create_database(root: Path) -> None:
    """Make the database under another name and rename it: a migration that is killed leaves nothing behind."""
    if (root / DATABASE).exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    working = (root / f".{DATABASE}.{uuid.uuid4().hex}").resolve()
    try:
        store = SqlAlchemyStore(f"sqlite:///{working}", (root / ARTIFACTS).resolve().as_uri())
        store.engine.dispose()
        os.replace(working, root / DATABASE)
    finally:
        working.unlink(missing_ok=True)


class Holds:
    """The runs that this process tracks now: the lock of each, and the thread that took it."""

    def __init__(self) -> None:
        self.locks: dict[Path, tuple[int, contextlib.ExitStack]] = {}

    def take(self, path: Path) -> None:
        """Take the lock of a run, waiting while another process or thread tracks it; ours stays ours."""
        owner, _ = self.locks.get(path, (None, None))
        if owner == threading.get_ident():
            return
        stack = contextlib.ExitStack()
        stack.enter_context(file_lock(path))
        self.locks[path] = (threading.get_ident(), stack)

    def release(self, path: Path) -> None:
        _, stack = self.locks.pop(path, (None, None))
        if stack:
            stack.close()


HOLDS = Holds()


class Tracking:
    """A connection to MLflow. Made by ``open_tracking``; may be shared by threads."""

    def __init__(self, client: "MlflowClient", uri: str, root: Path) -> None:
        self.client = client
        self.uri = uri
        self.root = root.resolve()
        self.logged_steps: dict[str, dict[str, set[int]]] = {}

    # One run

    def start(self, job: Mapping[str, Any], about: Mapping[str, Any]) -> str:
        """Find or create the run of ``job`` and return its id, RUNNING and held by this process.

        ``about`` becomes tags (nested names are joined by dots): commit, data digests, Prefect's run, GPU, torch and
        the like; it is kept with the run, for the day that MLflow's database is lost. A run that was broken off goes
        on as the same run.
        """
        origin = Path(job["run_directory"]) / ORIGIN
        if about:
            write_json(origin, about)
        else:
            about = _read_if_there(origin)
        experiment_id = self.experiment(job["experiment"])
        HOLDS.take(self._lock_of(experiment_id, job["run_key"]))
        parent_id = self.parent(job)
        with self._changing():
            run = self._find(experiment_id, "run_key", job["run_key"])
            if run is None:
                tags = {"run_key": job["run_key"], "mlflow.parentRunId": parent_id, "folder": self._folder()}
                run = self.client.create_run(experiment_id, run_name=f"{job['variant']}-seed-{job['seed']}", tags=tags)
            description = read_json(Path(job["prepared"]) / DESCRIPTION)
            parameters = {**_parameters(job, description), "seed": str(job["seed"])}
            tags = {**_flat(about), "folder": self._folder(), "seed": str(job["seed"]), "task": description["task"]}
            self._describe(run, parameters, tags)
            self._log_data(run, job, description)
            if run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
        return run.info.run_id

    def log_epochs(self, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Log each number of each row (a mapping with ``epoch``, 1 for the first) at the step of its epoch.

        A step that is there already is left alone, so the whole history may be given again after a resume.
        """
        self._log_metrics(run_id, ((key, int(row["epoch"]), row[key]) for row in rows for key in row if key != "epoch"))

    def finish(self, run_id: str, run_directory: Path, evaluation_directory: Path | None = None) -> None:
        """Log what runs/RUN_KEY/ holds of a finished run, mark it FINISHED and renew its parent's figures.

        Run it again with ``evaluation_directory`` (with metrics.json) when the evaluation is there.
        """
        run_directory = Path(run_directory)
        result = read_json(run_directory / "result.json")
        with contextlib.suppress(FileNotFoundError), open(run_directory / "history.csv", encoding="utf-8") as file:
            self.log_epochs(run_id, csv.DictReader(file))
        run = self.client.get_run(run_id)
        figures = dict(_numbers({key: value for key, value in result.items() if key not in NO_METRICS}))
        score = f"validation.{SCORES[run.data.tags['task']]}"
        # Until the evaluation says what it is, on the CPU and so perhaps a hair's breadth from here.
        if score not in run.data.metrics:
            figures[score] = result["validation"]["score"]
        timing = _read_if_there(run_directory / "timing.json")
        figures |= {name: timing[name] for name in TIMING_METRICS if name in timing}
        if evaluation_directory is not None:
            figures |= dict(_numbers(read_json(Path(evaluation_directory) / "metrics.json")))
            latency = _read_if_there(Path(evaluation_directory) / "latency.json")
            figures |= {f"latency.{name}": latency[name] for name in LATENCY_METRICS if name in latency}
        about = _read_if_there(run_directory / "environment.json")
        with self._changing():
            self._rewrite(run_id, figures)
            self._describe(run, {}, _flat({**about, "kernels": result.get("kernels")}))
        if run.info.status != "FINISHED":
            if "ended_by" in run.data.tags:
                self.client.delete_tag(run_id, "ended_by")
            for name in RUN_FILES:
                if (run_directory / name).is_file():
                    self.client.log_artifact(run_id, str(run_directory / name))
            self.client.set_terminated(run_id, "FINISHED")
        self._release(run)
        self.update_parent(run.data.tags["mlflow.parentRunId"])

    def fail(self, run_id: str, status: str = "FAILED", message: str = "") -> None:
        """Give a run that ended without a result its final status: FAILED, or KILLED where somebody stopped it."""
        self.client.set_tag(run_id, "ended_by", message[:5000])
        self.client.set_terminated(run_id, status)
        self._release(self.client.get_run(run_id))

    def record(
        self,
        run_directory: Path,
        evaluation_directory: Path | None = None,
        job: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a run that is finished in runs/ to MLflow unless it is there; return its id.

        ``job`` names the experiment that it belongs to; default: the one that trained it. Two processes at once
        write it once: the second waits, and finds it.
        """
        run_directory = Path(run_directory)
        job = job or read_json(run_directory / "job.json")
        experiment_id = self.experiment(job["experiment"])
        lock = self._lock_of(experiment_id, job["run_key"])
        HOLDS.take(lock)
        try:
            run = self._find(experiment_id, "run_key", job["run_key"])
            finished = run is not None and run.info.status == "FINISHED"
            run_id = run.info.run_id if finished else self.start(job, {})
            self.finish(run_id, run_directory, evaluation_directory)
        finally:
            HOLDS.release(lock)
        return run_id

    def reconcile(self, runs_root: Path) -> dict[str, str]:
        """Settle the runs that are RUNNING and that no process of this folder holds; return {run id: status}.

        FINISHED where runs/ has the result, else KILLED. Runs that were started from another folder, or on another
        machine that tracks on the same server, are left to it.
        """
        settled = {}
        wanted = f"attributes.status = 'RUNNING' AND tags.folder = '{self._folder()}'"
        for run in self._search([one.experiment_id for one in self.client.search_experiments()], wanted):
            run_id, run_key = run.info.run_id, run.data.tags["run_key"]
            with file_lock(self._lock_of(run.info.experiment_id, run_key), blocking=False) as free:
                # Between the search and the lock its process may have ended it itself.
                if not free or self.client.get_run(run_id).info.status != "RUNNING":
                    continue
                run_directory = Path(runs_root) / run_key
                if (run_directory / "result.json").is_file():
                    self.finish(run_id, run_directory)
                    settled[run_id] = "FINISHED"
                else:
                    self.fail(run_id, "KILLED", "the process was gone; run again to go on from its last epoch")
                    settled[run_id] = "KILLED"
        return settled

    # One variant, one experiment

    def experiment(self, name: str) -> str:
        """The id of MLflow's experiment ``name``, made when it is not there."""
        with self._changing():
            found = self.client.get_experiment_by_name(name)
            if found is None:
                # Only our own database puts its artifacts beside itself: a server has a place for them.
                ours = self.uri.startswith("sqlite:")
                location = (self.root / ARTIFACTS / name).as_uri() if ours else None
                return self.client.create_experiment(name, artifact_location=location)
        if found.lifecycle_stage != "active":
            raise InputError(
                f"experiment '{name}' was deleted in MLflow ({self.uri}): restore it there "
                f"(mlflow experiments restore -x {found.experiment_id}) or remove it for good (mlflow gc)"
            )
        return found.experiment_id

    def parent(self, job: Mapping[str, Any]) -> str:
        """The id of the run that stands for the variant of ``job`` on its data version, made when it is not there."""
        description = read_json(Path(job["prepared"]) / DESCRIPTION)
        inputs = {key: value for key, value in job.items() if key not in NOT_OF_THE_VARIANT}
        key = content_key({**inputs, "prepared": description})
        experiment_id = self.experiment(job["experiment"])
        with self._changing():
            run = self._find_or_create(experiment_id, "variant_key", key, job["variant"])
            self._describe(run, _parameters(job, description), {})
            self._log_data(run, job, description)
        return run.info.run_id

    def parents(self, experiment: str) -> dict[str, str]:
        """The id of each variant's run in an experiment, the newest where it has several data versions or settings."""
        runs = self._search([self.experiment(experiment)], "tags.variant_key != ''")
        newest_last = sorted(runs, key=lambda run: run.info.start_time)
        return {run.data.params["variant"]: run.info.run_id for run in newest_last}

    def update_parent(self, parent_id: str) -> None:
        """Write mean and 95 % interval over the finished seeds of each final metric, and how many they are.

        Student's t interval of the mean; a single seed has none.
        """
        with self._changing():
            parent = self.client.get_run(parent_id)
            wanted = f"tags.mlflow.parentRunId = '{parent_id}' AND attributes.status = 'FINISHED'"
            children = self._search([parent.info.experiment_id], wanted)
            self._rewrite(parent_id, _mean_and_interval([run.data.metrics for run in children]))

    def report(self, experiment: str, files: Iterable[Path], tags: Mapping[str, Any] | None = None) -> str:
        """Keep the report of an experiment, its pictures and tables with a run of its own; return that run's id."""
        experiment_id = self.experiment(experiment)
        with self._changing():
            run = self._find_or_create(experiment_id, "report", experiment, f"{experiment}-report")
            self._describe(run, {}, _flat(tags or {}))
        for file in files:
            self.client.log_artifact(run.info.run_id, str(file))
        return run.info.run_id

    # What the methods above are made of

    def _changing(self) -> contextlib.AbstractContextManager[bool]:
        """Only one process at a time looks for a run and makes it, or reads figures and rewrites them. Never nested."""
        return file_lock(self.root / LOCKS / "mlflow.lock")

    def _folder(self) -> str:
        """A name of this folder that no other folder or machine has: whose locks tell whether a run is alive."""
        path = self.root / LOCKS / "folder"
        if not path.is_file():
            write_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    def _lock_of(self, experiment_id: str, run_key: str) -> Path:
        return self.root / LOCKS / "tracked" / f"{experiment_id}-{run_key}.lock"

    def _release(self, run: "Run") -> None:
        HOLDS.release(self._lock_of(run.info.experiment_id, run.data.tags["run_key"]))

    def _search(self, experiment_ids: list[str], wanted: str) -> list["Run"]:
        runs, token = [], None
        while True:
            page = self.client.search_runs(experiment_ids, wanted, max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    def _find(self, experiment_id: str, tag: str, value: str) -> "Run | None":
        found = self._search([experiment_id], f"tags.{tag} = '{value}'")
        return found[0] if found else None

    def _find_or_create(self, experiment_id: str, tag: str, value: str, name: str) -> "Run":
        """A run that no process works on, FINISHED from the start. Call it inside ``_changing``."""
        run = self._find(experiment_id, tag, value)
        if run is None:
            run = self.client.create_run(experiment_id, run_name=name, tags={tag: value})
        if run.info.status == "RUNNING":
            self.client.set_terminated(run.info.run_id, "FINISHED")
        return run

    def _describe(self, run: "Run", parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log the parameters that are not there yet and set the tags; whichever half was broken off is completed."""
        from mlflow.entities import Param, RunTag

        missing = [Param(key, value) for key, value in parameters.items() if key not in run.data.params]
        changed = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
        for start in range(0, max(len(missing), len(changed)), 100):
            stop = start + 100
            self.client.log_batch(run.info.run_id, params=missing[start:stop], tags=changed[start:stop])

    def _log_data(self, run: "Run", job: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        """The data that the run read, as MLflow shows it: name, digest (at most 36 characters), place and counts."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if run.inputs and run.inputs.dataset_inputs:
            return
        source = {"raw": f"data/{job['data']}", "prepared": job["prepared"], "version": description["data_version"]}
        profile = {"classes": description["classes"], "splits": description["splits"]}
        dataset = Dataset(
            name=job["data"],
            digest=description["data_version"][:36],
            source_type="dvc",
            source=json.dumps(source),
            schema=json.dumps({name: [one["dtype"], one["shape"]] for name, one in description["arrays"].items()}),
            profile=json.dumps(profile),
        )
        self.client.log_inputs(run.info.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _rewrite(self, run_id: str, figures: Mapping[str, float]) -> None:
        """Make ``figures`` the latest values: one that is another than before is logged at the step after the last."""
        latest = self.client.get_run(run_id).data.metrics
        changed = {key: value for key, value in figures.items() if latest.get(key) != value}
        last = {
            key: max(metric.step for metric in self.client.get_metric_history(run_id, key))
            for key in changed
            if key in latest
        }
        self._log_metrics(run_id, ((key, last.get(key, -1) + 1, value) for key, value in changed.items()))

    def _log_metrics(self, run_id: str, figures: Iterable[tuple[str, int, Any]]) -> None:
        """Log (name, step, value) where the step has no value yet. At most 25 names; the rest are named in a tag."""
        from mlflow.entities import Metric

        known = self.logged_steps.setdefault(run_id, {})
        if not known:
            for key in self.client.get_run(run_id).data.metrics:
                known[key] = {metric.step for metric in self.client.get_metric_history(run_id, key)}
        now = int(time.time() * 1000)
        new, left_out = [], set()
        for key, step, value in figures:
            value = _number(value)
            if value is None or step in known.get(key, ()):
                continue
            if key not in known and len(known) == MAXIMUM_METRICS:
                left_out.add(key)
                continue
            known.setdefault(key, set()).add(step)
            new.append(Metric(key, value, now, step))
        for start in range(0, len(new), METRICS_A_BATCH):
            self.client.log_batch(run_id, metrics=new[start : start + METRICS_A_BATCH])
        if left_out:
            self.client.set_tag(run_id, "metrics_left_out", ", ".join(sorted(left_out)))


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested names joined by dots, values as text; what is None is left out, and what MLflow takes in no name is _."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[REFUSED.sub("_", f"{prefix}{key}")] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _parameters(job: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, str]:
    """What a variant is told, flattened; a seed is not of the variant."""
    names = ("variant", "model", "data", "network", "training")
    return _flat({**{name: job[name] for name in names}, "preprocessing": description["settings"]})


def _number(value: Any) -> float | None:
    """A finite number, also from the text of a CSV; None for what is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a result, and of the mappings in it with names joined by a dot; counts of rows are no metric."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = ((f"{key}.{name}", one) for name, one in value.items() if name != "rows")
            yield from ((name, one) for name, one in inner if isinstance(one, int | float))
        elif isinstance(value, int | float):
            yield key, value


def _mean_and_interval(runs: list[Mapping[str, float]]) -> dict[str, float]:
    """NAME.mean, .mean_low, .mean_high of each metric of a split that all have, and ``variant.seeds``; {} of none."""
    from evaluation.statistics import mean_interval

    shared = set.intersection(*(set(run) for run in runs)) if runs else set()
    figures: dict[str, float] = {}
    for name in sorted(name for name in shared if name.startswith(("test.", "validation."))):
        interval = mean_interval([run[name] for run in runs])
        for end in INTERVAL:
            value = getattr(interval, end)
            if value is not None:
                figures[f"{name}.{INTERVAL[end]}"] = value
    return {**figures, SEEDS: float(len(runs))} if figures else {}
