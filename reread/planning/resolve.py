"""Resolve an experiment, params.yaml, overrides, environment and data versions, once, into a plan."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import models
from models.objectives import DEFAULT
from reread import kinds
from reread.goals import bounds, goal, higher_is_better
from reread.planning import keys
from reread.planning.environment import Environment, read_environment
from reread.planning.experiment import Experiment, VariantSettings, load_experiment, networks, with_trials
from reread.planning.manifest import read_manifest
from reread.planning.plan import Plan, Variant
from reread.planning.schema import SEEDS
from reread.planning.search import with_known_trials
from reread.planning.validation import read
from reread.preprocessing.manifest import MANIFEST_PATH, DataSetEntry, Manifest
from reread.preprocessing.prepare import prepared_key
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.settings import to_json
from reread.training.settings import Settings as TrainingSettings

# Settings of preprocessing that choose rows. Variants of one data set agree in them, so that they are comparable.
ROW_SETTINGS = ("rows_per_class",)


def make_plan(
    experiment: str = "default",
    variants: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    overrides: Iterable[str] = (),
    root: Path = Path(),
    environment: Environment | None = None,
    content: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve and check an experiment, or some of its variants and seeds, before anything is started.

    overrides: SECTION.SETTING=VALUE for all these variants, or variants.NAME.SECTION.SETTING=VALUE for one; sections
    are preprocessing, network and training, values are YAML. content: stands in for the experiment's file.
    InputError, one line, for a wrong name or value, for a model and data that do not fit, and for a wrong variable.
    """
    environment = environment or read_environment()
    names = None if variants is None else list(variants)
    overrides = tuple(overrides)
    whole = load_experiment(experiment, root, names, overrides, content)
    chosen = _select(whole, names, seeds)
    _refuse_settings_of_some(chosen, overrides)
    manifest_path = root / MANIFEST_PATH
    known = read_manifest(manifest_path).datasets
    resolved = {}
    for name, settings in chosen.variants.items():
        with _naming(f"experiment '{experiment}', variant '{name}'"):
            about = _about(known[settings.data]) if settings.data in known else None
            resolved[name] = _resolve(name, settings, about, manifest_path)
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
    return with_known_trials(plan)


def with_data(plan: Plan, manifest_path: Path = MANIFEST_PATH) -> Plan:
    """Return the plan with the versions of data sets that were ingested since it was made, and checked with them.

    Versions that it has already stay. InputError for a data set that is still missing.
    """
    manifest = Manifest.load(manifest_path)
    new = {name: _about(manifest.entry(name)) for name, about in plan.data.items() if about is None}

    def known(variants: Mapping[str, Variant]) -> dict[str, Variant]:
        return {
            name: _with_data(variant, new[variant.data], manifest_path) if variant.data in new else variant
            for name, variant in variants.items()
        }

    resolved = dataclasses.replace(
        plan, variants=known(plan.variants), bases=known(plan.bases), data={**plan.data, **new}
    )
    _check(resolved, manifest.datasets)
    return resolved


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Begin an InputError that is raised in the block with ``where``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _about(entry: DataSetEntry) -> dict[str, str]:
    return {"version": entry.version, "kind": entry.kind, "task": entry.task}


def _select(experiment: Experiment, names: list[str] | None, seeds: Iterable[int] | None) -> Experiment:
    """The experiment with these variants and seeds alone; comparisons that lose a side are left out."""
    where = f"experiment '{experiment.name}'"
    chosen = list(experiment.variants) if names is None else with_trials(names, experiment.trials)
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
    left = {name: [trial for trial in trials if trial in kept] for name, trials in experiment.trials.items()}
    return dataclasses.replace(
        experiment,
        variants=kept,
        seeds=numbers,
        comparisons=tuple(
            comparison for comparison in experiment.comparisons if set(networks(comparison)) <= set(kept)
        ),
        trials={name: trials for name, trials in left.items() if trials},
    )


def _refuse_settings_of_some(experiment: Experiment, overrides: Iterable[str]) -> None:
    """Raise InputError for an override of a network's setting that only some of the variants have, naming those."""
    variant_of = {trial: name for name, trials in experiment.trials.items() for trial in trials}
    for override in overrides:
        section, *names = override.partition("=")[0].strip().split(".")
        if section != "network":
            continue
        having: dict[bool, list[str]] = {True: [], False: []}
        for name, settings in experiment.variants.items():
            with _naming(f"experiment '{experiment.name}', variant '{name}'"):
                known = {field.name for field in dataclasses.fields(models.settings_class(settings.model))}
            having[names[0] in known].append(variant_of.get(name, name))
        if all(having.values()):
            those = list(dict.fromkeys(having[True]))
            have = "has it: select it" if len(those) == 1 else "have it: select them"
            raise InputError(
                f"experiment '{experiment.name}', variant '{having[False][0]}': unknown name '{names[0]}' in network: "
                f"{' and '.join(those)} {have} by --variant"
            )


def _resolve(name: str, settings: VariantSettings, about: Mapping[str, str] | None, manifest_path: Path) -> Variant:
    """Check the settings of a variant and fill in their defaults. ``about`` is None for data that is not ingested."""
    network = read(models.settings_class(settings.model), settings.network, "network")
    training = read(TrainingSettings, settings.training, "training")
    variant = Variant(
        name=name,
        model=models.address(settings.model),
        data=settings.data,
        preprocessing=settings.preprocessing,
        network=to_json(network),
        training=to_json(training),
        prepared_key=None,
    )
    if about is not None:
        return _with_data(variant, about, manifest_path)
    # The kind that the model reads, if it reads one alone, is the data's until the data says it itself.
    kind = models.kind(settings.model)
    return variant if kind is None else _with_preprocessing(variant, kind)


def _with_objective(variant: Variant, task: str) -> Variant:
    """Return the variant with the objective of its data's goal in place of that of labels."""
    wanted = goal(task).objective
    if variant.training["objective"]["name"] != DEFAULT["name"] or wanted == DEFAULT["name"]:
        return variant
    objective = to_json(read(TrainingSettings, {"objective": {"name": wanted}}, "training"))["objective"]
    return dataclasses.replace(variant, training={**variant.training, "objective": objective})


def _with_preprocessing(variant: Variant, kind: str) -> Variant:
    typed = read(kinds.load(kinds.kind(kind).settings), variant.preprocessing, f"preprocessing.{variant.data}")
    return dataclasses.replace(variant, preprocessing=to_json(typed))


def _with_data(variant: Variant, about: Mapping[str, str], manifest_path: Path) -> Variant:
    """Return the variant with what its data decides: preprocessing, objective and the key of its arrays."""
    variant = _with_objective(_with_preprocessing(variant, about["kind"]), about["task"])
    key = prepared_key(variant.data, variant.preprocessing, manifest_path)
    return dataclasses.replace(variant, prepared_key=key)


def _refuse_folds(count: int, variant: Variant, known: Mapping[str, DataSetEntry]) -> None:
    """Raise InputError for rows that are chosen by the data's own split, and for more folds than rows."""
    for name in ROW_SETTINGS:
        if variant.preprocessing.get(name) is not None:
            raise InputError(f"preprocessing.{name} chooses rows of the data's own split: remove it, or 'folds'")
    if variant.data in known and count > known[variant.data].rows:
        raise InputError(f"folds is {count}, and {variant.data} has {known[variant.data].rows} rows: give fewer folds")


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
            if plan.folds is not None:
                _refuse_folds(plan.folds, variant, known)
            choice = {key: variant.preprocessing.get(key) for key in ROW_SETTINGS}
            first, of_first = rows.setdefault(variant.data, (name, choice))
            if choice != of_first:
                raise InputError(f"reads other rows of {variant.data} than '{first}' does: give both the same {choice}")
    for data, about in plan.data.items():
        if about and plan.metric is not None:
            allowed = [name for name in goal(about["task"]).names if higher_is_better(name)]
            refuse_unknown([plan.metric], allowed, f"experiment '{plan.name}', metric on {data}")
    for comparison in plan.comparisons:
        data = next(plan.variants[name].data for name in networks(comparison))
        about = plan.data[data]
        if about:
            where = f"experiment '{plan.name}', comparison '{comparison['name']}' on {data}"
            sides = networks(comparison)
            if "reference" not in comparison:
                sides = [comparison["treatment"], comparison["control"]]
            baselines = [baseline.name for baseline in kinds.baselines_of(about["kind"], about["task"])]
            refuse_unknown(sides, (*plan.variants, *baselines), where)
            metrics = goal(about["task"]).comparison_metrics(known[data].classes)
            refuse_unknown([comparison["metric"]], metrics, f"{where}, metric")
            least, most = bounds(comparison["metric"])
            margin = comparison.get("equivalence_margin") or plan.equivalence_margin
            if margin >= most - least:
                raise InputError(
                    f"{where}: equivalence_margin is {margin:g}, but {comparison['metric']} lies between {least:g} and "
                    f"{most:g}: give the smallest difference that matters"
                )
            if plan.folds is not None and goal(about["task"]).reads_validation(comparison["metric"]):
                raise InputError(
                    f"{where}: {comparison['metric']} has thresholds of the validation split, and of cross-validation "
                    "each row is a row of it: choose a metric without thresholds"
                )
            reference = comparison.get("reference", 0.0)
            if reference > most and higher_is_better(comparison["metric"]):
                raise InputError(
                    f"{where}: reference is {reference:g}, but {comparison['metric']} is at most {most:g}: "
                    f"write {reference / 100:g} for {reference:g} %"
                )
