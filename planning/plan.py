"""Plans: an experiment, params.yaml, overrides, environment and data versions, resolved once into what will be done.

A command, a deployment's flow or a DVC stage makes a plan where it begins and passes it down; nothing below reads the
files again. The plan is saved with the report (plan.json). Jobs are made of it once the prepared arrays exist, because
their digests are in the runs' keys.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kinds
import models
from evaluation.metrics import comparison_metrics, higher_is_better
from planning import keys
from planning.environment import Environment, read_environment
from planning.experiment import Design, Experiment, VariantSettings, load_experiment, networks
from planning.manifest import read_manifest
from planning.schema import SEEDS
from planning.validation import read
from preprocessing.manifest import MANIFEST_PATH, DataSetEntry, Manifest
from preprocessing.prepare import prepared_key
from storage.errors import InputError, refuse_unknown
from storage.files import content_key, read_json, read_object
from storage.prepared import DESCRIPTION
from storage.run_folder import JOB, RunFolder
from storage.settings import from_json, to_json
from training.settings import Settings as TrainingSettings

# Settings of preprocessing that choose rows. Variants of one data set agree in them, so that they are comparable.
ROW_SETTINGS = ("rows_per_class",)


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
        """The report's folder. A partial plan leaves the experiment's own report as it is."""
        return f"{self.name}-part" if self.partial else self.name

    @property
    def report_directory(self) -> Path:
        return self.environment.reports / self.report_name

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
        value = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        for name in ("variants", "bases"):
            value[name] = {one: dict(vars(variant)) for one, variant in getattr(self, name).items()}
        value["environment"] = self.environment.to_json()
        return _plain(value)

    def record(self) -> dict[str, Any]:
        """Return what is kept beside results (plan.json): equal plans give equal records, wherever they are made."""
        left_out = {"environment"} | ({"search", "bases"} if self.search is None else set())
        return {**{name: value for name, value in self.to_json().items() if name not in left_out}, "key": self.key}

    def key_parts(self) -> dict[str, Any]:
        """Return what decides the evidence, part by part ("variant han"), so that a difference can be named."""
        settings = ("model", "data", "preprocessing", "network", "training")
        variants = {
            f"variant {name}": {one: vars(variant)[one] for one in settings} for name, variant in self.variants.items()
        }
        versions = {f"data {name}": about and about["version"] for name, about in self.data.items()}
        rule = {"equivalence_margin": self.equivalence_margin, "alpha": self.alpha, "evaluate_on": self.evaluate_on}
        decided_by = ("treatment", "control", "reference", "metric", "equivalence_margin")
        comparisons = [{key: one[key] for key in decided_by if key in one} for one in self.comparisons]
        return _plain({**variants, **versions, "seeds": self.seeds, "comparisons": comparisons, "rule": rule})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Plan":
        """Return the plan that ``to_json`` made ``value`` of; no file and no variable is read."""
        values = {one.name: value[one.name] for one in dataclasses.fields(cls)}
        for name in ("variants", "bases"):
            values[name] = {one: Variant(**variant) for one, variant in value[name].items()}
        for name in ("seeds", "comparisons", "overrides"):
            values[name] = tuple(values[name])
        return cls(**{**values, "environment": Environment.from_json(value["environment"])})

    def with_data(self, manifest_path: Path = MANIFEST_PATH) -> "Plan":
        """Return the plan with the versions of data sets that were ingested since it was made, and checked with them.

        Versions that it has already stay. InputError for a data set that is still missing.
        """
        manifest = Manifest.load(manifest_path)
        new = {name: _about(manifest.entry(name)) for name, about in self.data.items() if about is None}

        def known(variants: Mapping[str, Variant]) -> dict[str, Variant]:
            return {
                name: _with_prepared_key(variant, new[variant.data]["kind"], manifest_path)
                if variant.data in new
                else variant
                for name, variant in variants.items()
            }

        plan = dataclasses.replace(
            self, variants=known(self.variants), bases=known(self.bases), data={**self.data, **new}
        )
        _check(plan, manifest.datasets)
        return plan

    def select_data(self, names: Iterable[str]) -> "Plan":
        """Return the plan with the variants alone that read the data sets ``names``."""
        names = list(names)
        refuse_unknown(names, self.data, f"the data sets of experiment '{self.name}'")
        kept = {name: variant for name, variant in self.variants.items() if variant.data in names}
        data = {name: about for name, about in self.data.items() if name in names}
        return dataclasses.replace(self, variants=kept, data=data, comparisons=(), trials={}, partial=True)

    def preparations(self) -> dict[str, dict[str, Any]]:
        """Return what is to be prepared, by prepared key: data set, settings, folder, and which processes do it.

        InputError for a data set that is not ingested yet.
        """
        found = {}
        workers = {"processes": self.environment.preprocessing, "scheduler": self.environment.dask_scheduler}
        for variant in self.variants.values():
            if variant.prepared_key is None:
                Manifest.load().entry(variant.data)  # says how to ingest it
                raise InputError(f"data set '{variant.data}' was ingested after this plan was made: make it again")
            directory = self.environment.prepared / variant.prepared_key
            found[variant.prepared_key] = {
                "data": variant.data,
                "settings": dict(variant.preprocessing),
                "key": variant.prepared_key,
                "directory": str(directory),
                "workers": workers,
            }
        return found

    def jobs(self, prepared: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the complete job of each (seed, variant); ``prepared`` maps prepared keys to folders.

        InputError where arrays are not prepared yet.
        """
        folders = {key: about["directory"] for key, about in self.preparations().items()} | dict(prepared or {})
        descriptions = {key: read_object(Path(folder) / DESCRIPTION, "arrays") for key, folder in folders.items()}
        return [
            self._job(variant, seed, folders[key], descriptions[key])
            for seed in self.seeds
            for variant in self.variants.values()
            if (key := variant.prepared_key)
        ]

    def unfinished(self, prepared: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the jobs of the runs that are not trained."""
        return [job for job in self.jobs(prepared) if not RunFolder(Path(job["run_directory"])).finished]

    def known_jobs(self) -> list[dict[str, Any]]:
        """Return the jobs of the variants whose arrays are prepared; the keys of the others are not known yet."""
        known = {
            name: variant
            for name, variant in self.variants.items()
            if variant.prepared_key and (self.environment.prepared / variant.prepared_key / DESCRIPTION).is_file()
        }
        return dataclasses.replace(self, variants=known).jobs()

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return by variant the parts of its runs' keys, without seed and machine.

        ``data`` is None where the arrays are not prepared; ``prepared_key`` where the data set is not ingested.
        """
        found = {}
        for name, variant in self.variants.items():
            network, training = variant.settings()
            description = self.environment.prepared / (variant.prepared_key or "") / DESCRIPTION
            data = keys.data_digest(read_json(description)) if description.is_file() else ""
            source = keys.source(variant.model, self._kind(variant), network, training)
            parts = keys.key_parts(variant.model, network, training, 0, data, {}, source)
            del parts["seed"], parts["machine"]
            found[name] = {**parts, "data": data or None, "prepared_key": variant.prepared_key}
        return found

    def _kind(self, variant: Variant) -> str | None:
        about = self.data[variant.data]
        return about["kind"] if about else models.kind(variant.model)

    def _job(self, variant: Variant, seed: int, prepared: str, description: Mapping[str, Any]) -> dict[str, Any]:
        network, training = variant.settings()
        processes = self.environment.processes_per_run
        machine = keys.job_machine(self.machine, training, processes)
        source = keys.source(variant.model, description["kind"], network, training)
        data = keys.data_digest(description)
        parts = keys.key_parts(variant.model, network, training, seed, data, machine, source)
        run_key = keys.run_key(parts)
        return {
            "run_key": run_key,
            "key_parts": parts,
            "experiment": self.name,
            "variant": variant.name,
            "model": variant.model,
            "data": variant.data,
            "seed": seed,
            "network": dict(variant.network),
            "training": dict(variant.training),
            "machine": machine,
            "source": source,
            "prepared": prepared,
            "run_directory": str(self.environment.runs / run_key),
            "runs_per_gpu": self.environment.runs_per_gpu,
            "processes": processes,
        }


def job_settings(job: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the settings of the network and of training that a job has, as their dataclasses, checked."""
    where = Path(job["run_directory"]) / JOB
    network = read(models.settings_class(job["model"]), job["network"], f"{where}: network")
    return network, read(TrainingSettings, job["training"], f"{where}: training")


def make_plan(
    experiment: str = "default",
    variants: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    overrides: Iterable[str] = (),
    root: Path = Path(),
    environment: Environment | None = None,
) -> Plan:
    """Resolve and check an experiment, or some of its variants and seeds, before anything is started.

    overrides: SECTION.SETTING=VALUE for all these variants, or variants.NAME.SECTION.SETTING=VALUE for one; sections
    are preprocessing, network and training, values are YAML.
    InputError, one line, for a wrong name or value, for a model and data that do not fit, and for a wrong variable.
    """
    environment = environment or read_environment()
    names = None if variants is None else list(dict.fromkeys(variants))
    overrides = tuple(overrides)
    whole = load_experiment(experiment, root, names, overrides)
    chosen = _select(whole, names, seeds)
    manifest_path = root / MANIFEST_PATH
    known = read_manifest(manifest_path).datasets
    resolved = {}
    for name, settings in chosen.variants.items():
        with _naming(f"experiment '{experiment}', variant '{name}'"):
            kind = known[settings.data].kind if settings.data in known else None
            resolved[name] = _resolve(name, settings, kind, manifest_path)
    used = dict.fromkeys(variant.data for variant in resolved.values())
    plan = Plan(
        **chosen.design(),
        variants=resolved,
        overrides=overrides,
        partial=bool(overrides)
        or (list(chosen.variants), set(chosen.seeds)) != (list(whole.variants), set(whole.seeds)),
        data={name: _about(known[name]) if name in known else None for name in used},
        machine=keys.target_machine(environment),
        environment=environment,
        bases=resolved if chosen.search else {},
    )
    _check(plan, known)
    if plan.search is None:
        return plan
    from planning.search import with_known_trials  # It imports this module.

    return with_known_trials(plan)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Begin an InputError that is raised in the block with ``where``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _plain(value: Any) -> Any:
    """``value`` as JSON values, copied."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _about(entry: DataSetEntry) -> dict[str, str]:
    return {"version": entry.version, "kind": entry.kind, "task": entry.task}


def _select(experiment: Experiment, names: list[str] | None, seeds: Iterable[int] | None) -> Experiment:
    """The experiment with these variants and seeds alone; comparisons that lose a side are left out."""
    where = f"experiment '{experiment.name}'"
    chosen = list(experiment.variants) if names is None else names
    refuse_unknown(chosen, experiment.variants, f"the variants of {where}")
    numbers = experiment.seeds if seeds is None else tuple(seeds)
    if not chosen or not numbers:
        raise InputError(f"{where} needs at least one variant and one seed: name some")
    for seed in numbers:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise InputError(f"seed {seed!r} of {where} is not a whole number from 0 up and below 2^63: change it")
        if numbers.count(seed) > 1:
            raise InputError(f"{where} has seed {seed} twice: name each seed once")
    kept = {name: settings for name, settings in experiment.variants.items() if name in chosen}
    left = {name: [one for one in trials if one in kept] for name, trials in experiment.trials.items()}
    return dataclasses.replace(
        experiment,
        variants=kept,
        seeds=numbers,
        comparisons=tuple(one for one in experiment.comparisons if set(networks(one)) <= set(kept)),
        trials={name: trials for name, trials in left.items() if trials},
    )


def _resolve(name: str, settings: VariantSettings, kind: str | None, manifest_path: Path) -> Variant:
    """Check the settings of a variant and fill in their defaults. ``kind`` is None for data that is not ingested."""
    network = read(models.settings_class(settings.model), settings.network, "network")
    training = read(TrainingSettings, settings.training, "training")
    variant = Variant(
        name=name,
        model=settings.model,
        data=settings.data,
        preprocessing=settings.preprocessing,
        network=to_json(network),
        training=to_json(training),
        prepared_key=None,
    )
    if kind is not None:
        return _with_prepared_key(variant, kind, manifest_path)
    # The kind that the model reads, if it reads one alone, is the data's until the data says it itself.
    kind = models.kind(settings.model)
    return variant if kind is None else _with_preprocessing(variant, kind)


def _with_preprocessing(variant: Variant, kind: str) -> Variant:
    typed = read(kinds.load(kinds.kind(kind).settings), variant.preprocessing, f"preprocessing.{variant.data}")
    return dataclasses.replace(variant, preprocessing=to_json(typed))


def _with_prepared_key(variant: Variant, kind: str, manifest_path: Path) -> Variant:
    variant = _with_preprocessing(variant, kind)
    key = prepared_key(variant.data, variant.preprocessing, manifest_path)
    return dataclasses.replace(variant, prepared_key=key)


def _check(plan: Plan, known: Mapping[str, DataSetEntry]) -> None:
    """Refuse a model and data that do not fit, variants that read other rows, and comparisons of what there is not."""
    from models.layers.embedding import refuse_missing_vectors  # torch takes a second to import

    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, variant in plan.variants.items():
        about = plan.data[variant.data]
        with _naming(f"experiment '{plan.name}', variant '{name}'"):
            if about:
                models.refuse_other_kind(variant.model, variant.data, about["kind"])
            prepared_vectors = bool(variant.preprocessing.get("word_vectors"))
            refuse_missing_vectors(variant.network.get("word_vectors", "random"), variant.data, prepared_vectors)
            choice = {key: variant.preprocessing.get(key) for key in ROW_SETTINGS}
            first, of_first = rows.setdefault(variant.data, (name, choice))
            if choice != of_first:
                raise InputError(f"reads other rows of {variant.data} than '{first}' does: give both the same {choice}")
    for comparison in plan.comparisons:
        data = next(plan.variants[name].data for name in networks(comparison))
        about = plan.data[data]
        if about:
            where = f"experiment '{plan.name}', comparison '{comparison['name']}' on {data}"
            sides = networks(comparison)
            if "reference" not in comparison:
                sides = [comparison["treatment"], comparison["control"]]
            refuse_unknown(
                sides, (*plan.variants, *(baseline.name for baseline in kinds.kind(about["kind"]).baselines)), where
            )
            metrics = comparison_metrics(about["task"], known[data].classes)
            refuse_unknown([comparison["metric"]], metrics, f"{where}, metric")
            reference = comparison.get("reference", 0.0)
            if reference > 1 and higher_is_better(comparison["metric"]):
                raise InputError(
                    f"{where}: reference is {reference:g}, but {comparison['metric']} is at most 1: "
                    f"write {reference / 100:g} for {reference:g} %"
                )
