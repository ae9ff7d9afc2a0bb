"""Experiments: params.yaml with experiments/NAME.yaml over it, merged to what each variant sets.

The later of these wins, setting by setting:

params.yaml                   preprocessing.DATA, training, models.MODEL
parameters (experiment)       the same names: what differs from params.yaml
models.MODEL                  network, and what differs in training, of all variants with that model
defaults (experiment)         what all variants share: model, data, preprocessing, network, training
variants.NAME                 what differs in one variant
grid                          each variant becomes one of every combination of the grid's values, or of its own grid's
overrides                     training.learning_rate=0.02, or variants.NAME.training.learning_rate=0.02

By ``grid: {training: {learning_rate: [0.01, 0.02]}, preprocessing: {length_quantile: {words: [0.9, 0.95]}}}`` the
variant han becomes han/learning_rate=0.01,length_quantile.words=0.9 and three more. A list of grids gives the
trials of each of them.

``network: {size: NAME}`` stands for the settings of a size that the network's file names (SIZES); those beside it win.
A mapping that names another member of a registry ({name: sgd}) replaces the old one and is not merged into it.
By ``search: {trials: 20, space: {training: {learning_rate: {low: 0.001, high: 0.1, log: true}}}}`` a variant becomes
trials that a sampler proposes from the validation scores of those before (reread/planning/search.py).
An experiment of ``variants_of`` another names some of its variants, and takes them with its parameters and defaults.
An experiment that ``tunes`` another takes its variants, parameters, defaults and metric, and reads validation. Under
``variants`` it may give some of them a grid or a space of their own.
``comparisons: OTHER`` takes those comparisons of experiment OTHER of which both sides are here.
"""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import models
from reread import kinds
from reread.planning.schema import (
    ComparisonGroup,
    Control,
    ExperimentFile,
    OwnGrid,
    Parameters,
    Text,
    parse_yaml,
    read_yaml,
)
from reread.planning.space import axes, nested
from reread.planning.validation import validate
from reread.preprocessing.folds import FEWEST
from reread.preprocessing.manifest import MANIFEST_PATH, Manifest
from reread.preprocessing.sources import SOURCES
from reread.storage.errors import InputError, nearest, refuse_unknown
from reread.verdicts.seeds import refuse_further_seeds

PARAMETERS_FILE = Path("params.yaml")
EXPERIMENTS = Path("experiments")
SECTIONS = ("preprocessing", "network", "training")
# Of the grids of an experiment: each takes some hundredths of a second to resolve, and minutes to train.
MOST_TRIALS = 1000


@dataclass(frozen=True)
class VariantSettings:
    """The settings of one variant in the files; defaults of the code are not filled in yet."""

    model: str
    data: str
    preprocessing: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Design:
    """The question of an experiment and the rule that judges it; the same in its files and in a plan.

    ``metric`` chooses trials, each variant's best seed and champions on validation; None: the first of the data's task.
    ``withhold_untuned``: no verdict on a side that was still learning, or whose settings are at the edge of its tuning.
    ``second_look``: how many seeds of each variant the experiment may grow to; None where it may not.
    ``trials`` maps each variant that a grid or a search was applied to, to the variants that it became. ``search`` has
    the settings of the search, and the space of each variant under ``spaces``; None where there is none. ``folds``: of
    cross-validation, of which each seed is a repetition; None where the data's own split is used.
    """

    name: str
    title: str
    seeds: tuple[int, ...]
    comparisons: tuple[Mapping[str, Any], ...]
    equivalence_margin: float
    alpha: float
    evaluate_on: str
    tuning: Mapping[str, Any]
    trials: Mapping[str, list[str]]
    search: Mapping[str, Any] | None = None
    metric: str | None = None
    withhold_untuned: bool = False
    second_look: int | None = None
    folds: int | None = None

    @property
    def alpha_of_a_look(self) -> float:
        """The alpha of this look: half of it where a second look was declared (RULE)."""
        return self.alpha if self.second_look is None else self.alpha / 2

    def design(self) -> dict[str, Any]:
        """Return the fields of a design, by name."""
        return {member.name: getattr(self, member.name) for member in dataclasses.fields(Design)}


@dataclass(frozen=True, kw_only=True)
class Experiment(Design):
    """One experiment as its files have it, with the settings of each variant merged.

    summary: the trial of a grid that summary.json shows; None for the best. margin_given: whether its file sets the
    equivalence margin.
    """

    variants: dict[str, VariantSettings]
    margin_given: bool
    summary: str | None = None

    @property
    def data_sets(self) -> list[str]:
        """The names of the data sets that its variants read, sorted."""
        return sorted({variant.data for variant in self.variants.values()})


def experiments(root: Path = Path()) -> list[str]:
    """Return the names of the experiments."""
    return sorted(path.stem for path in (root / EXPERIMENTS).glob("*.yaml"))


def networks(comparison: Mapping[str, Any]) -> list[str]:
    """Return the sides of a comparison that are variants; a baseline and a published figure are none."""
    sides = ("treatment", "control") if comparison.get("reference") is None else ("treatment",)
    return [comparison[side] for side in sides if comparison[side] not in kinds.baselines()]


def with_trials(names: Iterable[str], trials: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names, each once; that of a variant which a grid was applied to stands for all its trials."""
    return list(dict.fromkeys(trial for name in names for trial in trials.get(name, (name,))))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``over`` on it: mappings are merged, all else and another member of a registry replaced."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and "name" in old and isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            replaced = "name" in value and value["name"] != old.get("name", value["name"])
            result[key] = copy.deepcopy(dict(value)) if replaced else merged(old, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def load_experiment(
    name: str,
    root: Path = Path(),
    variants: Iterable[str] | None = None,
    overrides: Iterable[str] = (),
    content: Mapping[str, Any] | None = None,
) -> Experiment:
    """Read experiments/NAME.yaml over params.yaml, and check names and types; the settings' values are not checked.

    ``variants`` are those that ``overrides`` without a variant's name apply to (``with_trials``); all are returned.
    ``content`` stands in for the file, which need not be there.
    InputError names the file, the place in it, and the nearest right name.
    """
    path = EXPERIMENTS / f"{name}.yaml"
    if content is None:
        _known(name, root, f"no experiment {name!r} in {EXPERIMENTS}/")
        content = read_yaml(root / path)
    given = _with_parts_of_others(dict(content), path, root)
    file: ExperimentFile = validate(ExperimentFile, given, str(path))
    written = read_parameters(root)
    refuse_unknown(file.parameters, Parameters.model_fields, f"{path}: parameters")
    whole = merged(_with_sizes(written, str(PARAMETERS_FILE)), _with_sizes(file.parameters, f"{path}: parameters"))
    parameters: Parameters = validate(Parameters, whole, f"{PARAMETERS_FILE} with {path}")
    sections = {
        key: value.model_dump(exclude_unset=True, exclude={"grid", "space"}) for key, value in file.variants.items()
    }
    defaults = file.defaults.model_dump(exclude_unset=True)
    trials: dict[str, dict[str, Any]] = {}
    for key, value in file.variants.items():
        grid = _grid(file.grid, f"{path}: grid") if value.grid is None else _grid(value.grid, f"{path}: {key}.grid")
        if of_grid := {f"{key}/{values}": settings for values, settings in grid}:
            trials[key] = of_grid
    _refuse_many(sum(map(len, trials.values())), str(path))
    names = [trial for key in sections for trial in trials.get(key, [key])]
    if file.summary is not None:
        for key in sections:
            refuse_unknown([f"{key}/{file.summary}"], trials.get(key, ()), f"{path}: summary")
    chosen = names if variants is None else with_trials(variants, trials)
    changes = list(_overrides(overrides, chosen, names))
    built = {}
    for key, section in sections.items():
        for trial, of_the_grid in trials.get(key, {key: {}}).items():
            layers = [defaults, section, of_the_grid, *(change for of, change in changes if of == trial)]
            built[trial] = _variant(trial, layers, parameters, file.parameters, path, root)
    _refuse_unused(file.parameters, written, built, path)
    refuse_further_seeds(str(path), len(file.seeds), file.second_look, "an experiment")
    _refuse_folds(file, path)
    return Experiment(
        name=name,
        title=file.title,
        variants=built,
        seeds=tuple(file.seeds),
        comparisons=tuple(_comparisons(file.comparisons, built, f"{path}: comparisons")),
        equivalence_margin=file.equivalence_margin,
        margin_given="equivalence_margin" in file.model_fields_set,
        alpha=file.alpha,
        evaluate_on=file.evaluate_on,
        metric=file.metric,
        withhold_untuned=file.withhold_untuned,
        second_look=file.second_look,
        folds=file.folds,
        tuning=file.tuning.model_dump(exclude_none=True),
        trials={key: list(of_it) for key, of_it in trials.items()},
        search=_search(file, path),
        summary=file.summary,
    )


def _refuse_folds(file: ExperimentFile, path: Path) -> None:
    """Raise InputError for fewer folds than there can be, and for a search, which reads one split."""
    if file.folds is not None and file.folds < FEWEST:
        raise InputError(
            f"{path}: folds is {file.folds}: give {FEWEST} or more, one to test, one to validate and one to train"
        )
    if file.folds is not None and file.search is not None:
        raise InputError(f"{path} has folds and a search, which reads one validation split: remove one of them")


def _search(file: ExperimentFile, path: Path) -> dict[str, Any] | None:
    """Return the settings of the search with each variant's space; InputError for a search that cannot be."""
    own = [name for name, value in file.variants.items() if value.space is not None]
    if file.search is None:
        if own:
            raise InputError(f"{path}: variant '{own[0]}' has a space, and there is no search: add 'search'")
        return None
    if file.evaluate_on == "test":
        raise InputError(f"{path}: evaluate_on is 'test': a search only reads validation")
    if file.grid or any(value.grid for value in file.variants.values()):
        raise InputError(f"{path} has a grid and a search: remove one of them")
    if file.metric is not None:
        raise InputError(f"{path}: a search goes by the score that training maximises: remove 'metric'")
    if file.comparisons:
        raise InputError(f"{path}: a search has trials in place of its variants: remove 'comparisons'")
    spaces = {
        name: file.search.space if variant.space is None else variant.space for name, variant in file.variants.items()
    }
    checked = [axes(space, f"{path}: space of {name}") for name, space in spaces.items()]
    if not any(checked):
        raise InputError(f"{path}: search has no space: add settings to search")
    return {**file.search.model_dump(exclude={"space"}), "spaces": spaces}


def read_parameters(root: Path = Path()) -> dict[str, Any]:
    """Return params.yaml as it is written; InputError names what cannot be read in it."""
    written = read_yaml(root / PARAMETERS_FILE)
    validate(Parameters, written, str(PARAMETERS_FILE))
    return written


def refuse_elsewhere(root: Path = Path()) -> None:
    """Raise InputError for a folder that is no project."""
    if not (root / PARAMETERS_FILE).is_file():
        raise InputError(f"{root / PARAMETERS_FILE} is missing: run this from the project's folder")


def _known(name: str, root: Path, problem: str) -> str:
    if not (root / EXPERIMENTS).is_dir():
        raise InputError(f"{root / EXPERIMENTS}/ is missing: run this from the project's folder")
    if name not in experiments(root):
        raise InputError(f"{problem}: {nearest(name, experiments(root))}")
    return name


def _with_parts_of_others(given: dict[str, Any], path: Path, root: Path) -> dict[str, Any]:
    """The file's content with what it takes from other experiments: of one that it tunes, variants or comparisons."""
    if "tunes" in given:
        if "variants_of" in given:
            raise InputError(f"{path} tunes an experiment and takes variants of one: remove 'variants_of'")
        for key in ("defaults", "comparisons"):
            if key in given:
                raise InputError(f"{path}: an experiment that tunes another takes its variants: remove '{key}'")
        if given.get("evaluate_on", "validation") != "validation":
            raise InputError(f"{path}: evaluate_on is {given['evaluate_on']!r}: tuning only reads validation")
        tuned = _other(given, "tunes", path, root)
        if "variants_of" in tuned:
            tuned = _with_variants_of_another(tuned, EXPERIMENTS / f"{given['tunes']}.yaml", root)
        variants = _with_grids(tuned.get("variants") or {}, given.get("variants") or {}, f"{path}: variants")
        given = _over_settings_of(tuned, {"metric": tuned.get("metric"), **given}, variants, path)
    elif "variants_of" in given:
        given = _with_variants_of_another(given, path, root)
    if isinstance(given.get("comparisons"), str):
        other = _other(given, "comparisons", path, root)
        groups = validate(list[ComparisonGroup], other.get("comparisons") or [], f"{given['comparisons']}: comparisons")
        here = set(given.get("variants") or ())
        every = expanded(groups, f"{path}: comparisons")
        # expanded names the control of a published figure itself, so the file's own form has the figure alone.
        given = {
            **given,
            "comparisons": [_as_written(comparison) for comparison in every if set(networks(comparison)) <= here],
        }
    return given


def _with_variants_of_another(given: Mapping[str, Any], path: Path, root: Path) -> dict[str, Any]:
    """The file's content with the variants of another experiment that it names."""
    if "defaults" in given:
        raise InputError(f"{path}: variants of another experiment come with its defaults: remove 'defaults'")
    other = _other(given, "variants_of", path, root)
    if "variants_of" in other:
        raise InputError(
            f"{path}: variants_of is {given['variants_of']!r}, which takes variants itself: "
            "name the experiment that has them"
        )
    names = validate(list[Text], given.get("variants"), f"{path}: variants")
    refuse_unknown(names, other.get("variants") or {}, f"{path}: variants")
    return _over_settings_of(other, given, {name: other["variants"][name] for name in names}, path)


def _over_settings_of(
    other: Mapping[str, Any], given: Mapping[str, Any], variants: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """The file's content with variants of another experiment, and with its defaults and parameters."""
    given = {**given, "variants": variants, "defaults": other.get("defaults") or {}}
    layers = [file.get("parameters") or {} for file in (other, given)]
    if all(isinstance(layer, Mapping) for layer in layers):
        given["parameters"] = merged(*(_with_sizes(layer, f"{path}: parameters") for layer in layers))
    return given


def _with_grids(tuned: Mapping[str, Any], given: Any, where: str) -> dict[str, Any]:
    """The variants of the experiment that is tuned, with the grids that the tuning gives to some of them."""
    grids = validate(dict[str, OwnGrid], given, where)
    refuse_unknown(grids, tuned, where)
    return {
        name: {**(variant or {}), **grids[name].model_dump(exclude_none=True)} if name in grids else variant
        for name, variant in tuned.items()
    }


def _other(given: Mapping[str, Any], key: str, path: Path, root: Path) -> dict[str, Any]:
    """Return the content of the experiment's file that ``given[key]`` names."""
    where = f"{path}: {key}"
    name = validate(Text, given[key], where)
    return read_yaml(root / EXPERIMENTS / f"{_known(name, root, f'{where}: no experiment {name!r}')}.yaml")


def _grid(grid: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the settings of each combination: "learning_rate=0.01", {"training": {"learning_rate": 0.01}}.

    Of a list of grids those of each.
    """
    if isinstance(grid, list):
        for number, section in enumerate(grid):
            yield from _grid(section, f"{where}.{number}")
        return
    if not isinstance(grid, Mapping):
        raise InputError(f"{where} is {grid!r}: it must be a mapping of settings to lists of values, or a list of such")
    if not grid:
        return
    refuse_unknown(grid, SECTIONS, where)
    axes = list(_axes(grid, (), where))
    _refuse_many(math.prod(len(values) for _, values in axes), where)
    places = [place for place, _ in axes]
    for combination in itertools.product(*(values for _, values in axes)):
        chosen = list(zip(places, combination, strict=True))
        yield ",".join(f"{'.'.join(place[1:])}={value}" for place, value in chosen), nested(chosen)


def _refuse_many(trials: int, where: str) -> None:
    """Raise InputError for more trials than can be resolved in a minute."""
    if trials > MOST_TRIALS:
        raise InputError(
            f"{where} has {trials:,} trials, and an experiment may have {MOST_TRIALS:,}: "
            "give fewer values, or a search in place of the grid"
        )


def _axes(grid: Any, place: tuple[str, ...], where: str) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The path of each list of values in a grid, and the list."""
    here = ".".join([where, *place])
    if isinstance(grid, Mapping) and grid:
        for key, inner in grid.items():
            yield from _axes(inner, (*place, str(key)), where)
    elif len(place) < 2 or not isinstance(grid, list) or not grid or len(set(map(repr, grid))) < len(grid):
        raise InputError(f"{here} is {grid!r}: it must be a list of values, each of them once")
    else:
        yield place, grid


def _overrides(overrides: Iterable[str], chosen: list[str], names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the variant that each override changes, and the change: "han", {"training": {"learning_rate": 0.02}}."""
    for given in overrides:
        where, targets, rest = f"override '{given}'", chosen, given
        if given.startswith("variants."):
            after = given.removeprefix("variants.")
            # Names of variants may themselves have dots and equals signs.
            targets = sorted((target for target in names if after.startswith(f"{target}.")), key=len)[-1:]
            if not targets:
                refuse_unknown([after.split(".")[0].split("=")[0]], names, where)
                raise InputError(f"{where} sets no setting: write variants.NAME.training.learning_rate=0.02")
            rest = after.removeprefix(f"{targets[0]}.")
        path, equals, value = rest.partition("=")
        section, *steps = path.strip().split(".")
        refuse_unknown([section], SECTIONS, where)
        if not equals or not steps or not all(steps):
            raise InputError(f"{where} is not SECTION.SETTING=VALUE: write for example training.learning_rate=0.02")
        try:
            change = nested([((section, *steps), parse_yaml(value))])
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(f"{where}: its value is not valid YAML ({' '.join(str(error).split())})") from None
        for target in targets:
            yield target, change


def _variant(
    name: str,
    layers: list[dict[str, Any]],
    parameters: Parameters,
    of_experiment: Mapping[str, Any],
    path: Path,
    root: Path,
) -> VariantSettings:
    """Merge the settings of a variant: ``layers`` over ``parameters``, in which those ``of_experiment`` are merged."""
    where = f"{path}: variants.{name}"
    if name in kinds.baselines():
        raise InputError(f"{where} has the name of a baseline ({kinds.baselines()[name].title}): give it another")
    own: dict[str, Any] = {}
    model = next((layer["model"] for layer in reversed(layers) if layer.get("model") is not None), None)
    for layer in layers:
        given = {key: value for key, value in layer.items() if value is not None}
        if model is not None and "network" in given:
            given["network"] = _sized(model, given["network"], where)
        own = merged(own, given)
    for key in ("model", "data"):
        if key not in own:
            raise InputError(f"{where} has no '{key}': add it")
    if own["data"] not in parameters.preprocessing:
        known = {*SOURCES.available(), *Manifest.load(root / MANIFEST_PATH).datasets, *parameters.preprocessing}
        refuse_unknown([own["data"]], known, f"{where}: data")
    section = parameters.models.get(own["model"])
    network, training = (section.network, section.training) if section else ({}, {})
    training = merged(merged(parameters.training, training), own.get("training", {}))
    objective = training.get("objective")
    if (
        isinstance(objective, dict)
        and objective.get("label_smoothing")
        and not _asks_for_smoothing(of_experiment, own)
        and _has_several_labels(own["data"], root)
    ):
        # It would lift the probability of every absent label.
        training["objective"] = {**objective, "label_smoothing": 0.0}
    return VariantSettings(
        model=own["model"],
        data=own["data"],
        preprocessing=merged(parameters.preprocessing.get(own["data"], {}), own.get("preprocessing", {})),
        network=merged(network, own.get("network", {})),
        training=training,
    )


def _has_several_labels(data: str, root: Path) -> bool:
    entry = Manifest.load(root / MANIFEST_PATH).datasets.get(data)
    return entry is not None and entry.task == "multi-label"


def _asks_for_smoothing(of_experiment: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether the experiment or the variant itself names label smoothing."""
    of_model = (of_experiment.get("models") or {}).get(own["model"]) or {}
    given = [section.get("training") or {} for section in (of_experiment, of_model, own)]
    return any(
        "label_smoothing" in objective for training in given if isinstance(objective := training.get("objective"), dict)
    )


def _sized(model: str, network: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``network`` with the settings of the size that it names, if it does."""
    try:
        return models.with_size(model, network)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _with_sizes(parameters: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The parameters with the settings of each size that a model's network names; what is no mapping is left as is."""
    sections = parameters.get("models")
    if not isinstance(sections, Mapping):
        return parameters
    sized = {
        model: {**section, "network": _sized(model, section["network"], f"{where}.models.{model}")}
        for model, section in sections.items()
        if isinstance(section, Mapping) and isinstance(section.get("network"), Mapping) and "size" in section["network"]
    }
    return {**parameters, "models": {**sections, **sized}}


def _refuse_unused(
    differs: Mapping[str, Any], written: Mapping[str, Any], variants: Mapping[str, VariantSettings], path: Path
) -> None:
    """Refuse a data set or model under ``parameters`` that nothing uses: it would change nothing, and is a slip."""
    for key, of_variant in (("preprocessing", "data"), ("models", "model")):
        used = {getattr(variant, of_variant) for variant in variants.values()}
        refuse_unknown(differs.get(key) or (), {*written[key], *used}, f"{path}: parameters.{key}")


def expanded(groups: Iterable[ComparisonGroup], where: str) -> Iterator[dict[str, Any]]:
    """One comparison for each control of each group, or for its published figure."""
    for group in groups:
        about = group.model_dump(include={*Control.model_fields, "reference"}, exclude_none=True)
        if sum((group.control is not None, bool(group.controls), group.reference is not None)) != 1:
            raise InputError(f"{where}: {group.treatment} needs one of 'control', 'controls' and 'reference'")
        controls = {group.control: Control()} if group.control else group.controls
        if group.reference is not None:
            controls = {f"reference {group.reference:g}": Control()}
        for control, own in controls.items():
            sides = {"treatment": group.treatment, "control": control}
            written = {"name": control, **about, **own.model_dump(exclude_none=True), **sides}
            for key in ("claim", "metric"):
                if key not in written:
                    raise InputError(f"{where}: '{written['name']}' has no '{key}': add it")
            written.setdefault("source", "")  # a claim of one's own
            for side, name in sides.items():
                written["claim"] = written["claim"].replace(f"{{{side}}}", name)
            yield written


def _as_written(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison as an experiment's file has it."""
    return {key: value for key, value in comparison.items() if key != "control" or "reference" not in comparison}


def _comparisons(
    groups: Iterable[ComparisonGroup], variants: Mapping[str, VariantSettings], where: str
) -> Iterator[dict[str, Any]]:
    names: set[str] = set()
    for group in expanded(groups, where):
        place = f"{where}: '{group['name']}'"
        if group["name"] in names:
            raise InputError(f"{where}: two have the name '{group['name']}': give each its own name")
        names.add(group["name"])
        if group["treatment"] == group["control"]:
            raise InputError(f"{place} compares {group['treatment']} with itself: name two variants")
        sides = networks(group)
        if not sides:
            raise InputError(f"{place} compares two baselines: name a variant on one side")
        refuse_unknown(sides, variants, f"{place} (a side is a variant, or one of {', '.join(kinds.baselines())})")
        if len({variants[name].data for name in sides}) > 1:
            raise InputError(f"{place} compares variants on two data sets: choose one data set")
        yield group
