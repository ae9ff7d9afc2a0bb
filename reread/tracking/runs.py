"""The only door to MLflow for runs: parameters, metrics, reports.

Each of our experiments is one MLflow experiment. In it, a child run is one (variant, seed), found by the tag
``run_key`` and the variant's name. Its parent is one variant on one data version, found by ``variant_key``, so that
seeds trained later join it. One more run, tagged ``report``, holds the experiment's report. Code names runs by explicit
ids: no active run, no autolog. Models go through reread/tracking/registry.py.

MLflow is a log and decides nothing. ``record`` writes it from a run's folder, and may be called at any time and again:
as epochs end, at the end, after the evaluation, and after an outage or a deleted database.
"""

import contextlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TextIO

from reread.goals import goal
from reread.storage.digests import DIGESTS
from reread.storage.errors import InputError
from reread.storage.files import below, content_key, read_json, write_text
from reread.storage.job import Job
from reread.storage.locks import file_lock
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import ENVIRONMENT, HISTORY, JOB, LOG, METRICS, RESULT, TIMING, RunFolder
from reread.tracking import descriptions
from reread.tracking.addresses import ARTIFACTS
from reread.tracking.connection import LOCKS, connect, tracking_uri
from reread.tracking.descriptions import NOTE, ROLE, SEED
from reread.tracking.figures import (
    betas,
    environment_tags,
    finite,
    flat,
    mean_and_interval,
    run_figures,
    variant_parameters,
)
from reread.tracking.pages import run_page, server_of
from reread.tracking.times import Times, now, written
from reread.tracking.views import views

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from reread.planning.plan import Plan

MAXIMUM_METRICS = 25
METRICS_PER_BATCH = 1000
# What differs between the seeds of one variant, or only locates a run.
NOT_OF_THE_VARIANT = {"seed", "fold", "run_key", "key_parts", "run_directory", "prepared"}
# The tag of the run that holds an experiment's report.
REPORT = "report"
ORIGIN = "origin.json"
RUN_FILES = (JOB, RESULT, TIMING, ENVIRONMENT, LOG)
# A metric: its name, step, value, and time in milliseconds since 1970.
Figure = tuple[str, int, Any, int]
# How a run without a result ended where nobody wrote it down.
GONE = ("KILLED", "the process was gone; run again to resume it")


def run_name(job: Job) -> str:
    """Return the name of a job's run: han-seed-0, or han-seed-0-fold-2."""
    return "-".join([job.variant, *(word for pair in seed_and_fold(job).items() for word in pair)])


def seed_and_fold(job: Job) -> dict[str, str]:
    """Return the seed of a job and, of cross-validation, its fold, as parameters and tags."""
    return {"seed": str(job.seed), **({} if job.fold is None else {"fold": str(job.fold)})}


def by_seed(runs: Iterable["Run"]) -> list[Mapping[str, float]]:
    """Return the metrics of runs, those of the folds of one seed as their mean."""
    groups: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        tags = run.data.tags
        groups.setdefault(tags["seed"] if "fold" in tags else run.info.run_id, []).append(run.data.metrics)
    return [
        {name: fmean(metrics[name] for metrics in group) for name in set.intersection(*map(set, group))}
        for group in groups.values()
    ]


def open_tracking(root: Path = Path()) -> "Tracking":
    """Connect to MLflow (``connect``); Unavailable as there."""
    return Tracking(connect(root), tracking_uri(root), root)


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


class Tracking:
    """A connection to MLflow, which remembers the ids of experiments and parents. Made by ``open_tracking``."""

    def __init__(self, client: "MlflowClient", uri: str, root: Path) -> None:
        self.client = client
        self.uri = uri
        self.root = root.resolve()
        self.logged_steps: dict[str, dict[str, set[int]]] = {}
        self.experiment_ids: dict[str, str] = {}
        self.parent_ids: dict[str, str] = {}
        # Of experiments as their files are.
        self.plans: dict[str, Plan] = {}
        # Of runs that were recorded, until ``update_parents``.
        self.stale_parents: set[str] = set()
        # The runs that train, by experiment, variant and key.
        self.live_ids: dict[tuple[str, str, str], str] = {}

    # One run

    def record(self, job: Job, evaluation_directory: Path | None = None, live: bool = False) -> str:
        """Find or create the run of ``job``, bring it up to what its folder has, and return its id.

        Only what MLflow lacks is written. Beside epochs, result and files the folder has times.json, when they came
        about and how the run ended, and origin.json, who made it: names and values that become tags, nested ones joined
        by dots. evaluation_directory: an evaluation of the run. live: a process trains it, so that it is RUNNING; else
        it is FINISHED where it has a result, and has ended as times.json says, or KILLED, where it has none.
        """
        name = (job.experiment, job.variant, job.run_key)
        folder, times = job.run, Times.read(job.run_directory)
        result = {} if live else folder.result
        began, ended = times.span(folder, bool(result))
        epochs = _epochs(folder, times, ended, bool(result))
        if live and name in self.live_ids:
            self.log_metrics(self.live_ids[name], epochs)
            return self.live_ids[name]
        description = read_json(job.prepared / DESCRIPTION)
        experiment_id, parent_id = self.experiment(job.experiment), self.parent(job, began)
        with file_lock(self.root / LOCKS / "recorded" / f"{experiment_id}-{job.run_key}.lock"):
            run = self._find_run(experiment_id, job)
            tags: dict[str, str] = {}
            if not (result and run and run.info.status == "FINISHED"):
                origin = job.run_directory / ORIGIN
                about = read_json(origin) if origin.is_file() else {}
                tags = {
                    **descriptions.origin(descriptions.command_of(job, seed=True), about),
                    NOTE: descriptions.seed_note(job),
                    **flat(about),
                    "run_key": job.run_key,
                    "mlflow.parentRunId": parent_id,
                    "folder": self._workspace_id(),
                    **seed_and_fold(job),
                    **({} if self.is_trial(job) else {ROLE: SEED}),
                    "task": description["task"],
                }
            if result:
                known = {**run.data.tags, **tags} if run else tags
                tags |= flat(environment_tags(known, folder) | {"kernels": result.get("kernels")})
            if run is None:
                run = self.client.create_run(experiment_id, start_time=began, run_name=run_name(job), tags=tags)
                self.logged_steps[run.info.run_id] = {}
            self._log_params_and_tags(run, {**variant_parameters(job, description), **seed_and_fold(job)}, tags)
            self._log_dataset(run, job, description)
            figures: list[Figure] = []
            if result:
                latest = run_figures(folder, description["task"], run.data.metrics, evaluation_directory)
                measured = written(evaluation_directory / METRICS) if evaluation_directory else ended
                figures = [*self._latest(run, latest, measured), *((*beta, ended) for beta in betas(result))]
            self.log_metrics(run.info.run_id, [*epochs, *figures])
            self._set_status(run, folder, "RUNNING" if live else "FINISHED" if result else "", times, ended)
        if result:
            self.stale_parents.add(run.data.tags["mlflow.parentRunId"])
        run_id: str = run.info.run_id
        self.live_ids.pop(name, None)
        if live:
            self.live_ids[name] = run_id
        return run_id

    def _set_status(self, run: "Run", folder: RunFolder, status: str, times: Times, ended: int) -> None:
        """Set the status of a run that is RUNNING, FINISHED with its files, or ended as its times say."""
        run_id = run.info.run_id
        if status == run.info.status:
            return
        if status == "RUNNING":
            self.client.update_run(run_id, status=status)
            return
        if status == "FINISHED":
            if "ended_by" in run.data.tags:
                self.client.delete_tag(run_id, "ended_by")
            self._log_files(run_id, [folder.directory / name for name in RUN_FILES])
        else:
            status, message = (times.status, times.message) if times.status else GONE
            self.client.set_tag(run_id, "ended_by", message[:5000])
        # No run ends before it began, also where the clock was set back in between.
        self.client.set_terminated(run_id, status, max(ended, run.info.start_time))

    def _log_files(self, run_id: str, files: Iterable[Path]) -> None:
        """Log the files that exist as artifacts, by one request; InputError for a link that leads out of its folder."""
        with tempfile.TemporaryDirectory() as folder:
            for file in files:
                if file.is_file():
                    shutil.copy2(below(file.parent, file.name, "remove the link"), folder)
            self.client.log_artifacts(run_id, folder)

    def update_parents(self) -> None:
        """Update the parents of the finished runs that were recorded since the last time."""
        for parent_id in [*self.stale_parents]:
            self.update_parent(parent_id)
            self.stale_parents.discard(parent_id)

    def recorded(self, experiment: str) -> set[tuple[str, str]]:
        """Return (variant, run key) of an experiment's runs that are FINISHED."""
        experiment_id = self._existing(experiment)
        if experiment_id is None:
            return set()
        runs = self._search([experiment_id], "attributes.status = 'FINISHED' and tags.run_key != ''")
        return {(run.data.params["variant"], run.data.tags["run_key"]) for run in runs}

    def running(self) -> dict[str, dict[str, Any]]:
        """Return the key, experiment and variant of the RUNNING runs by id; one that was killed at once has no variant.

        Runs of another folder or machine that tracks on this server are left out.
        """
        names = {experiment.experiment_id: experiment.name for experiment in self.client.search_experiments()}
        runs = self._search([*names], f"attributes.status = 'RUNNING' AND tags.folder = '{self._workspace_id()}'")
        return {
            run.info.run_id: {"run": run.data.tags["run_key"], "experiment": names[run.info.experiment_id]}
            | {name: value for name, value in run.data.params.items() if name == "variant"}
            for run in runs
        }

    def close(self, run_id: str, folder: RunFolder) -> str:
        """Close a run that no process trains, where it is RUNNING; return its status."""
        run = self.client.get_run(run_id)
        if run.info.status == "RUNNING":
            self._set_status(run, folder, "FINISHED" if folder.finished else "", Times(), now())
        status: str = self.client.get_run(run_id).info.status
        return status

    # One variant, one experiment

    def experiment(self, name: str) -> str:
        """Return the id of MLflow's experiment ``name``; create a missing one."""
        if name in self.experiment_ids:
            return self.experiment_ids[name]
        with self._locked():
            experiment_id = self._existing(name)
            if experiment_id is None:
                # Only our own database keeps its artifacts beside itself. A server has a place for them.
                ours = self.uri.startswith("sqlite:")
                location = (self.root / ARTIFACTS / name).as_uri() if ours else None
                experiment_id = self.client.create_experiment(name, artifact_location=location)
        self.experiment_ids[name] = experiment_id
        return experiment_id

    def _existing(self, name: str) -> str | None:
        """Return the id of MLflow's experiment ``name``, None where there is none; InputError for a deleted one."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return None
        if experiment.lifecycle_stage != "active":
            raise InputError(
                f"experiment '{name}' was deleted in MLflow ({self.uri}): restore it there "
                f"(mlflow experiments restore -x {experiment.experiment_id}) or remove it for good (mlflow gc)"
            )
        experiment_id: str = experiment.experiment_id
        return experiment_id

    def parent(self, job: Job, began: int | None = None) -> str:
        """Return the id of the parent run of ``job``: its variant on its data version. Create a missing one."""
        description = read_json(job.prepared / DESCRIPTION)
        inputs = {key: value for key, value in job.to_json().items() if key not in NOT_OF_THE_VARIANT}
        # Each fold has arrays of its own, and all of a variant have the same settings.
        about = ("name", "kind", "task", "classes", "settings", "data_version")
        prepared = {name: description[name] for name in about} if job.fold is not None else description
        key = content_key({**inputs, "prepared": prepared})
        if key in self.parent_ids:
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
            self.log_metrics(parent_id, self._latest(parent, mean_and_interval(by_seed(children)), now()))
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
        choices_and_metrics: tuple[Mapping[str, Any], Mapping[str, float]],
        description: Mapping[str, Any],
    ) -> str:
        """Log a baseline's ``choices_and_metrics`` to a run of its own, one per experiment; return its id.

        description: prepared.json of the rows that it was fitted on.
        """
        experiment_id = self.experiment(experiment)
        chosen, metrics = choices_and_metrics
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
            self.log_metrics(run_id, self._latest(run, {**shown, **metrics}, now()))
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
            self.log_metrics(run_id, self._latest(run, metrics, now()))
        self._log_files(run_id, files)
        return run_id

    def report(self, directory: Path) -> str:
        """Log an experiment's report, the folder with its name, to a run of its own; return that run's id.

        The experiment's and its variants' pages show its results.
        """
        self.update_parents()
        experiment, results = directory.name, descriptions.Results(directory)
        experiment_id = self.experiment(experiment)
        with self._locked():
            run = self._find_or_create(experiment_id, REPORT, experiment, f"{experiment}-report")
            about = descriptions.origin(f"reread run --experiment {experiment}")
            verdicts = {f"verdict.{verdict['name']}": verdict["verdict"] for verdict in results.verdicts}
            self._log_params_and_tags(run, {}, {**flat(verdicts), **about})
        self._describe(experiment, run, results)
        run_id: str = run.info.run_id
        self._log_files(run_id, (path for path in sorted(directory.iterdir()) if path.name != DIGESTS))
        return run_id

    def find(self, experiment: str, tag: str, value: str) -> "Run | None":
        """Return the run of an experiment with this tag; None where there is none."""
        in_mlflow = self.client.get_experiment_by_name(experiment)
        return self._find(in_mlflow.experiment_id, tag, value) if in_mlflow else None

    def log_metrics(self, run_id: str, figures: Iterable[Figure]) -> None:
        """Log figures where the step has no value yet. At most 25 names; a tag lists the others."""
        from mlflow.entities import Metric

        known = self.logged_steps.get(run_id)
        if known is None:
            metrics = self.client.get_run(run_id).data.metrics
            known = {key: {metric.step for metric in self.client.get_metric_history(run_id, key)} for key in metrics}
        new, left_out = [], set()
        for key, step, value, time in figures:
            value = finite(value)
            if value is None or step in known.get(key, ()):
                continue
            if key not in known and len(known) == MAXIMUM_METRICS:
                left_out.add(key)
                continue
            known.setdefault(key, set()).add(step)
            new.append(Metric(key, value, time, step))
        # If a batch fails, the server knows which steps it has: they are read again.
        self.logged_steps.pop(run_id, None)
        for start in range(0, len(new), METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=new[start : start + METRICS_PER_BATCH])
        self.logged_steps[run_id] = known
        if left_out:
            self.client.set_tag(run_id, "metrics_left_out", ", ".join(sorted(left_out)))

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

    def _search(self, experiment_ids: list[str], wanted: str) -> list["Run"]:
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(experiment_ids, wanted, max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    def is_trial(self, job: Job) -> bool:
        """Return whether a job has other settings or data than its variant in the experiment's file, as by `--set`.

        Of a variant or an experiment that is not there nothing else is known: then it is none.
        """
        from reread.planning.plan import job_settings
        from reread.planning.resolve import make_plan

        try:
            if job.experiment not in self.plans:
                self.plans[job.experiment] = make_plan(job.experiment, root=self.root)
            plan = self.plans[job.experiment]
            variant = plan.variants.get(job.variant)
            if variant is None:
                return False
            settings, key = (variant.model, variant.data, *variant.settings()), variant.prepared_key
            return (job.model, job.data, *job_settings(job)) != settings or (
                key is not None and job.prepared.name not in plan.arrays_of(key)
            )
        except InputError:
            return False

    def _find_run(self, experiment_id: str, job: Job) -> "Run | None":
        """Find the run of a job. A variant that was renamed has the same keys: its runs are logged under each name."""
        runs = self._search([experiment_id], f"tags.run_key = '{job.run_key}'")
        return next((run for run in runs if run.data.params.get("variant", job.variant) == job.variant), None)

    def _find(self, experiment_id: str, tag: str, value: str) -> "Run | None":
        runs = self._search([experiment_id], f"tags.{tag} = '{value}'")
        return runs[0] if runs else None

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
            schema=json.dumps(
                {name: [array["dtype"], array["shape"]] for name, array in description["arrays"].items()}
            ),
            profile=json.dumps(profile),
        )
        self.client.log_inputs(run.info.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _latest(self, run: "Run", figures: Mapping[str, float], time: int) -> list[Figure]:
        """Return each of ``figures`` that has changed at the step after its last: it becomes the latest value."""
        latest = run.data.metrics
        changed = {key: value for key, value in figures.items() if latest.get(key) != value}
        last = {
            key: max(metric.step for metric in self.client.get_metric_history(run.info.run_id, key))
            for key in changed
            if key in latest
        }
        return [(key, last.get(key, -1) + 1, value, time) for key, value in changed.items()]


def _epochs(folder: RunFolder, times: Times, time: int, finished: bool) -> list[Figure]:
    """Return the numbers of the epochs in a run's folder; those without a time of their own have ``time``."""
    rows: list[dict[str, float]] = []
    if (folder.directory / HISTORY).is_file():
        try:
            rows = folder.history()
        except InputError:
            # Of a run that is restored the digest is that of the whole history: it is logged at the end.
            if finished:
                raise
    return [
        (name, int(row["epoch"]), value, times.epochs.get(str(int(row["epoch"])), time))
        for row in rows
        for name, value in row.items()
        if name != "epoch"
    ]
