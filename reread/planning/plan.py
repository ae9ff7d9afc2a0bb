"""Plans: all that an experiment will do, every setting resolved (reread/planning/resolve.py).

A command, a deployment's flow or a DVC stage makes a plan where it begins and passes it down; nothing below reads the
files again. The plan is saved with the report (plan.json). Jobs are made of it once the prepared arrays exist, because
their digests are in the runs' keys.
"""

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

import models
from reread.planning import keys
from reread.planning.environment import Environment, variable
from reread.planning.experiment import Design
from reread.planning.published import published_runs, restore
from reread.planning.validation import read
from reread.preprocessing.folds import Fold, folds_of
from reread.preprocessing.folds import key as fold_key
from reread.preprocessing.manifest import Manifest
from reread.preprocessing.settings import FOLD
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import content_key, read_json, read_object
from reread.storage.job import Job
from reread.storage.prepared import DESCRIPTION
from reread.storage.settings import from_json
from reread.training.settings import Settings as TrainingSettings

# The plan beside a report and beside published results.
PLAN = "plan.json"
# Parts of a design that few experiments have: the records and keys of the others do without them.
OPTIONAL = ("metric", "withhold_untuned", "second_look", "folds")
# Of a comparison what its verdict is decided by.
DECIDED_BY = ("treatment", "control", "reference", "metric", "equivalence_margin")


@dataclass(frozen=True)
class Variant:
    """A network as one experiment trains it, every setting resolved.

    ``prepared_key`` names the folder of its arrays; None where the data set is not ingested yet.
    """

    name: str
    model: str
    data: str
    preprocessing: Mapping[str, Any]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    prepared_key: str | None

    def settings(self) -> tuple[Any, Any]:
        """Return the settings of the network and of training as their dataclasses."""
        network = from_json(models.settings_class(self.model), self.network)
        return network, from_json(TrainingSettings, self.training)


@dataclass(frozen=True, kw_only=True)
class Plan(Design):
    """A resolved experiment: all that will be prepared, trained, evaluated and compared, and the folders.

    data: of each data set its version, kind and task; None where it is not ingested yet. partial: variants or seeds
    were selected, or settings overridden. bases: of a plan that searches, the variants that its trials begin from.
    """

    variants: Mapping[str, Variant]
    overrides: tuple[str, ...]
    partial: bool
    data: Mapping[str, Mapping[str, str] | None]
    machine: Mapping[str, Any]
    environment: Environment = field(repr=False)
    bases: Mapping[str, Variant] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The key of what decides the evidence: settings, seeds, comparisons and data, on whichever machine."""
        return content_key(self.key_parts())

    @property
    def report_name(self) -> str:
        """The report's folder: NAME or, of a partial plan, NAME-part-DIGEST, a folder for each selection.

        DIGEST is of the variants (of a search: those that its trials begin from), seeds and overrides.
        """
        if not self.partial:
            return self.name
        selection = [sorted(self.bases or self.variants), sorted(self.seeds), self.overrides]
        return f"{self.name}-part-{content_key(selection)[:8]}"

    @property
    def report_directory(self) -> Path:
        return self.environment.reports / self.report_name

    @property
    def command(self) -> str:
        """The command that runs it with its overrides."""
        overrides = [word for override in self.overrides for word in ("--set", override)]
        return shlex.join(["reread", "run", "--experiment", self.name, *overrides])

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are evaluated."""
        return ("validation", "test") if self.evaluate_on == "test" else ("validation",)

    @property
    def targets_remote_machine(self) -> bool:
        """Return whether jobs are made for another machine; then none is trained here."""
        return self.environment.machine is not None and self.machine != keys.this_machine()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        plain: dict[str, Any] = to_jsonable_python(self)
        return plain

    def record(self) -> dict[str, Any]:
        """Return what is kept beside results (plan.json): equal plans give equal records, wherever they are made."""
        left_out = {"environment", "machine"} | ({"search", "bases"} if self.search is None else set())
        left_out |= {name for name in OPTIONAL if not getattr(self, name)}
        return {**{name: value for name, value in self.to_json().items() if name not in left_out}, "key": self.key}

    def key_parts(self) -> dict[str, Any]:
        """Return what decides the evidence, part by part ("variant han"), so that a difference can be named."""
        settings = ("model", "data", "preprocessing", "network", "training")
        variants = {
            f"variant {name}": {setting: vars(variant)[setting] for setting in settings}
            for name, variant in self.variants.items()
        }
        versions = {f"data {name}": about and about["version"] for name, about in self.data.items()}
        rule = {"equivalence_margin": self.equivalence_margin, "alpha": self.alpha, "evaluate_on": self.evaluate_on}
        rule |= {name: value for name in OPTIONAL if (value := getattr(self, name))}
        comparisons = [
            {key: comparison[key] for key in DECIDED_BY if key in comparison} for comparison in self.comparisons
        ]
        design = {**variants, **versions, "seeds": self.seeds, "comparisons": comparisons, "rule": rule}
        plain: dict[str, Any] = to_jsonable_python(design)
        return plain

    def select_data(self, names: Iterable[str]) -> "Plan":
        """Return the plan with the variants alone that read the data sets ``names``."""
        names = list(names)
        refuse_unknown(names, self.data, f"the data sets of experiment '{self.name}'")
        kept = {name: variant for name, variant in self.variants.items() if variant.data in names}
        data = {name: about for name, about in self.data.items() if name in names}
        return dataclasses.replace(self, variants=kept, data=data, comparisons=(), trials={}, partial=True)

    def without_published(self) -> "Plan":
        """Return the plan for which no run of results/ counts as finished."""
        return dataclasses.replace(self, environment=self.environment.model_copy(update={"published": False}))

    def preparations(self) -> dict[str, dict[str, Any]]:
        """Return what is to be prepared, by prepared key: data set, settings, folder, and which processes do it.

        InputError for a data set that is not ingested yet.
        """
        preparations: dict[str, dict[str, Any]] = {}
        workers = {"processes": self.environment.preprocessing, "scheduler": self.environment.dask_scheduler}
        for variant in self.variants.values():
            if variant.prepared_key is None:
                Manifest.load().entry(variant.data)  # says how to ingest it
                raise InputError(f"data set '{variant.data}' was ingested after this plan was made: make it again")
            for key, fold in self.arrays_of(variant.prepared_key).items():
                preparations[key] = {
                    "data": variant.data,
                    "settings": {**variant.preprocessing, **({FOLD: dataclasses.asdict(fold)} if fold else {})},
                    "key": key,
                    "directory": str(self.environment.prepared / key),
                    "workers": workers,
                }
        return preparations

    def folds_of(self, seed: int) -> list[Fold | None]:
        """Return the runs of a variant on a seed: one for each fold, or one by the data's own split (None)."""
        return [None] if self.folds is None else [*folds_of(self.folds, seed)]

    def arrays_of(self, prepared_key: str) -> dict[str, Fold | None]:
        """Return the folds of all seeds by the keys of their arrays; ``prepared_key``: by the data's own split."""
        folds = (fold for seed in self.seeds for fold in self.folds_of(seed))
        return {arrays_key(prepared_key, fold): fold for fold in folds}

    def jobs(self, prepared: Mapping[str, str] | None = None) -> list[Job]:
        """Return the job of each (seed, variant), and fold; ``prepared`` maps prepared keys to folders.

        A run that is not in runs/ and is published in results/ is restored from there (reread/planning/published.py):
        its job names the machine and the code that trained it. InputError where arrays are not prepared yet.
        """
        jobs = []
        for here, there, record in self._with_published(prepared):
            taken = record and (there.source or self.environment.published == "older")
            if taken:
                restore(there, self.name, record)
            jobs.append(there if taken else here)
        return jobs

    def of_older_code(self, prepared: Mapping[str, str] | None = None) -> list[str]:
        """Return the line that counts the runs which only older code is known to have trained, if there are any."""
        older = sum(bool(record) and not there.source for _, there, record in self._with_published(prepared))
        name, runs = variable("published"), "1 run is" if older == 1 else f"{older} runs are"
        if not older:
            return []
        if self.environment.published == "older":
            return [f"{runs} published of older code, and taken as published ({name}=older)"]
        return [f"{runs} published of older code, and not taken: {name}=older takes what is published"]

    def _with_published(self, prepared: Mapping[str, str] | None) -> Iterator[tuple[Job, Job, dict[str, Any]]]:
        """Yield each job; the job of the published run that has its settings, data and seed; and that run's record.

        The second one has no ``source`` where older code trained the run. It is the first one, and the record is
        empty, where the run is finished in runs/ or none is published.
        """
        folders = {key: about["directory"] for key, about in self.preparations().items()} | dict(prepared or {})
        descriptions = {key: read_object(Path(folder) / DESCRIPTION, "arrays") for key, folder in folders.items()}
        published = published_runs(self.name) if self.environment.published else {}
        of_settings = {content_key(keys.without_code(run["key_parts"])): run for run in published.values()}
        machines = {content_key(run["key_parts"]["machine"]): run["key_parts"]["machine"] for run in published.values()}

        def find(here: Job, job_for: Callable[[Mapping[str, Any], int], Job]) -> tuple[Job, dict[str, Any]]:
            for machine in () if here.run.finished else machines.values():
                there = job_for(machine, machine["world_size"])
                if there.run_key in published:
                    return there, published[there.run_key]
                if record := of_settings.get(content_key(keys.without_code(there.key_parts))):
                    key, parts = record["run_key"], record["key_parts"]
                    folder = self.environment.runs / key
                    return dataclasses.replace(
                        there, run_key=key, key_parts=parts, source={}, run_directory=folder
                    ), record
            return here, {}

        for seed in self.seeds:
            for variant in self.variants.values():
                for fold in self.folds_of(seed):
                    if variant.prepared_key:
                        key = arrays_key(variant.prepared_key, fold)
                        job_for = partial(self._job, variant, seed, fold, folders[key], descriptions[key])
                        here = job_for(self.machine, self.environment.processes_per_run)
                        yield here, *find(here, job_for)

    def unfinished(self, prepared: Mapping[str, str] | None = None) -> list[Job]:
        """Return the jobs of the runs that are not trained."""
        return [job for job in self.jobs(prepared) if not job.run.finished]

    def known(self) -> "Plan":
        """Return the plan with the variants alone whose arrays are prepared: the keys of the others are not known."""
        known = {
            name: variant
            for name, variant in self.variants.items()
            if variant.prepared_key
            and all(
                (self.environment.prepared / key / DESCRIPTION).is_file()
                for key in self.arrays_of(variant.prepared_key)
            )
        }
        return dataclasses.replace(self, variants=known)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return by variant the parts of its runs' keys, without seed and machine.

        ``data`` is None where the arrays are not prepared; ``prepared_key`` where the data set is not ingested.
        """
        parts_of = {}
        for name, variant in self.variants.items():
            network, training = variant.settings()
            description = self.environment.prepared / (variant.prepared_key or "") / DESCRIPTION
            data = keys.data_digest(read_json(description)) if description.is_file() else ""
            source = keys.source(variant.model, self._kind(variant), network, training)
            parts = keys.key_parts(variant.model, network, training, 0, data, {}, source)
            del parts["seed"], parts["machine"]
            parts_of[name] = {**parts, "data": data or None, "prepared_key": variant.prepared_key}
        return parts_of

    def _kind(self, variant: Variant) -> str | None:
        about = self.data[variant.data]
        return about["kind"] if about else models.kind(variant.model)

    def _job(
        self,
        variant: Variant,
        seed: int,
        fold: Fold | None,
        prepared: str,
        description: Mapping[str, Any],
        machine: Mapping[str, Any],
        processes: int,
    ) -> Job:
        network, training = variant.settings()
        machine = keys.job_machine(machine, training, processes)
        source = keys.source(variant.model, description["kind"], network, training)
        data = keys.data_digest(description)
        parts = keys.key_parts(variant.model, network, training, seed, data, machine, source)
        run_key = content_key(parts)
        return Job(
            run_key=run_key,
            key_parts=parts,
            experiment=self.name,
            variant=variant.name,
            model=variant.model,
            data=variant.data,
            seed=seed,
            fold=fold.number if fold else None,
            folds=fold.count if fold else None,
            network=variant.network,
            training=variant.training,
            machine=machine,
            source=source,
            prepared=Path(prepared),
            run_directory=self.environment.runs / run_key,
            runs_per_gpu=self.environment.runs_per_gpu,
            processes=processes,
        )


def arrays_key(prepared_key: str, fold: Fold | None) -> str:
    """Return the prepared key of a fold; ``prepared_key`` is that by the data's own split."""
    return prepared_key if fold is None else fold_key(prepared_key, fold)


def job_settings(job: Job) -> tuple[Any, Any]:
    """Return the settings of the network and of training that a job has, as their dataclasses, checked."""
    network = read(models.settings_class(job.model), job.network, f"{job.file}: network")
    return network, read(TrainingSettings, job.training, f"{job.file}: training")
