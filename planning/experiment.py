"""Hyper-parameters: params.yaml, overridden by experiments/NAME.yaml, resolved to one job a (variant, seed).

The two files are the only source. An experiment lists its variants (a model, a data set, and what differs from
the model's defaults), its seeds, and the rule by which its pairs are judged, all before anything runs.

An experiment that tunes may name the one whose variants it tries (``tunes: imdb``), and a grid: each variant becomes
one of every combination of the grid's values, as many for each, by the name han/learning_rate=0.01,dropout=0.5

    grid: {training: {learning_rate: [0.01, 0.02]}, network: {dropout: [0.3, 0.5]}}
"""

import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import kinds
from storage.errors import InputError, nearest, refuse_unknown

PARAMETERS_FILE = Path("params.yaml")
EXPERIMENTS = Path("experiments")
EXPERIMENT_KEYS = {
    "title", "variants", "seeds", "parameters", "pairs", "smallest_effect", "alpha", "evaluate_on", "tuning",
    "tunes", "grid",
}  # fmt: skip
SECTIONS = ("preprocessing", "training", "models")
KEY_OF = {"preprocessing": "data", "models": "model"}  # what a variant names of these sections
VARIANT_KEYS = {"model", "data", "network", "training"}
MERGE = "tag:yaml.org,2002:merge"  # of `<<`
SEEDS = 2**63  # how many there are: torch takes a seed as a signed integer of 64 bits
PAIR_KEYS = {"name", "claim", "source", "better", "worse", "metric"}


@dataclass(frozen=True)
class Variant:
    """A network as one experiment trains it: every setting resolved, none left to a default elsewhere."""

    name: str
    model: str
    data: str
    network: dict[str, Any]
    training: dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One experiment, resolved and checked. ``preprocessing`` maps each data set used to its settings.

    ``trials`` maps each variant that a grid stood for to the variants that came of it; empty without a grid.
    """

    name: str
    title: str
    variants: dict[str, Variant]
    seeds: tuple[int, ...]
    preprocessing: dict[str, dict[str, Any]]
    pairs: tuple[dict[str, str], ...]
    smallest_effect: float
    alpha: float
    evaluate_on: str
    tuning: dict[str, Any]
    trials: dict[str, list[str]]

    def select(self, variants: Iterable[str] | None = None, seeds: Iterable[int] | None = None) -> "Experiment":
        """The same experiment with these variants and seeds alone; pairs that lose a side are left out."""
        names = list(self.variants) if variants is None else list(variants)
        refuse_unknown(names, self.variants, f"the variants of experiment '{self.name}'")
        chosen = self.seeds if seeds is None else tuple(seeds)
        if not names or not chosen:
            raise InputError(f"experiment '{self.name}' needs at least one variant and one seed: name some")
        for seed in chosen:
            if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
                raise InputError(
                    f"seed {seed!r} of experiment '{self.name}' is not a whole number from 0 up: change it"
                )
            if seed >= SEEDS:
                raise InputError(f"seed {seed} of experiment '{self.name}' is too large: choose one below 2^63")
            if chosen.count(seed) > 1:
                raise InputError(f"experiment '{self.name}' has seed {seed} twice: name each seed once")
        kept = {name: self.variants[name] for name in self.variants if name in names}
        used = {variant.data for variant in kept.values()}
        return Experiment(
            **{
                **{field: getattr(self, field) for field in self.__dataclass_fields__},
                "variants": kept,
                "seeds": chosen,
                "preprocessing": {name: value for name, value in self.preprocessing.items() if name in used},
                "pairs": tuple(pair for pair in self.pairs if set(networks(pair)) <= set(kept)),
                "trials": {
                    name: left
                    for name, all_of_it in self.trials.items()
                    if (left := [one for one in all_of_it if one in kept])
                },
            }
        )

    def as_dictionary(self) -> dict[str, Any]:
        """The resolved whole as plain values: what is saved with each result."""
        return {
            **{
                field: copy.deepcopy(getattr(self, field)) for field in self.__dataclass_fields__ if field != "variants"
            },
            "seeds": list(self.seeds),
            "pairs": [dict(pair) for pair in self.pairs],
            "variants": {name: copy.deepcopy(vars(variant)) for name, variant in self.variants.items()},
        }


def networks(pair: Mapping[str, str]) -> list[str]:
    """The variants of a pair: both of its sides, or the one that is no baseline."""
    return [pair[side] for side in ("better", "worse") if pair[side] not in kinds.baselines()]


class _Loader(yaml.SafeLoader):
    """YAML in which a name stands once: the format's own rule, which PyYAML does not keep."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # As it is written: what `<<` merges into it later may be named again.
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if key.tag != MERGE]
        names = [self.construct_object(key, deep=True) for key in keys]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{name}' stands here a second time", keys[place].start_mark
                )
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. InputError names the file, and the line of a syntax error or of a name that stands twice."""
    try:
        # _Loader is a SafeLoader.
        value = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: run this from the project's folder") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a mapping of names to values, not {type(value).__name__}")
    return value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on it: mappings are merged key by key, anything else is replaced."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        old = result.get(key)
        # A mapping with another name is another member of a registry: it replaces the old one.
        if isinstance(value, Mapping) and isinstance(old, Mapping) and value.get("name") in (None, old.get("name")):
            result[key] = merged(old, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def experiments(root: Path = Path()) -> list[str]:
    """Names of the experiments there are."""
    return sorted(path.stem for path in (root / EXPERIMENTS).glob("*.yaml"))


def load_experiment(name: str, root: Path = Path()) -> Experiment:
    """Resolve experiments/NAME.yaml over params.yaml and check every name and value in it."""
    if name not in experiments(root):
        raise InputError(f"no experiment '{name}' in {EXPERIMENTS}/: {nearest(name, experiments(root))}")
    path = EXPERIMENTS / f"{name}.yaml"
    given = _with_tuned_variants(read_yaml(root / path), path, root)
    for key in ("title", "variants", "seeds"):
        if not given.get(key):
            raise InputError(
                f"{path} has no '{key}': add it" if key not in given else f"{path}: {key} is empty: fill it"
            )
    for key, kind in (("variants", dict), ("seeds", list), ("pairs", list), ("parameters", dict), ("tuning", dict)):
        if given.get(key) is not None:
            _of_kind(given[key], kind, f"{path}: {key}")
    for one in given["variants"]:
        _of_kind(one, str, f"{path}: variants: the name {one!r}")
    parameters = read_yaml(root / PARAMETERS_FILE)
    refuse_unknown(parameters, SECTIONS, str(PARAMETERS_FILE))
    differs = given.get("parameters") or {}
    refuse_unknown(differs, SECTIONS, f"{path}: parameters")
    written, parameters = parameters, merged(parameters, differs)
    for key in SECTIONS:
        _of_kind(parameters.get(key), dict, f"{PARAMETERS_FILE} with {path}: {key}")

    trials = {key: _trials(key, given.get("grid"), path) for key in given["variants"]} if given.get("grid") else {}
    variants = {
        trial: _variant(trial, value, settings, parameters, path)
        for key, value in given["variants"].items()
        for trial, settings in (trials[key] if trials else {key: {}}).items()
    }
    for key, of_variant in KEY_OF.items():
        # A name that is neither there nor any variant's would change nothing, and is a slip.
        known = written.get(key) if isinstance(written.get(key), Mapping) else {}
        used = {getattr(variant, of_variant) for variant in variants.values()}
        refuse_unknown(differs.get(key, {}), {*known, *used}, f"{path}: parameters.{key}")
    preprocessing = {
        variant.data: _section(parameters["preprocessing"], variant, path) for variant in variants.values()
    }
    experiment = Experiment(
        name=name,
        title=str(given["title"]),
        variants=variants,
        seeds=tuple(given["seeds"]),
        preprocessing=preprocessing,
        pairs=tuple(_pair(pair, variants, path) for pair in given.get("pairs") or ()),
        smallest_effect=_number(given.get("smallest_effect", 0.01), 0.0, 1.0, f"{path}: smallest_effect"),
        alpha=_number(given.get("alpha", 0.05), 0.0, 1.0, f"{path}: alpha"),
        evaluate_on=str(given.get("evaluate_on", "test")),
        tuning=dict(given.get("tuning") or {}),
        trials={key: list(names) for key, names in trials.items()},
    )
    refuse_unknown([experiment.evaluate_on], ("test", "validation"), f"{path}: evaluate_on")
    names = [pair["name"] for pair in experiment.pairs]
    for one in names:
        if names.count(one) > 1:
            raise InputError(f"{path}: pairs: two have the name '{one}': give each a name of its own")
    return experiment.select()


def _with_tuned_variants(given: dict[str, Any], path: Path, root: Path) -> dict[str, Any]:
    """An experiment as its file has it; one that tunes another has that one's variants, and reads validation alone."""
    refuse_unknown(given, EXPERIMENT_KEYS, str(path))
    if "tunes" not in given:
        return given
    for key in ("variants", "pairs"):
        if key in given:
            raise InputError(f"{path}: an experiment that tunes another takes its variants: remove '{key}'")
    if given.setdefault("evaluate_on", "validation") != "validation":
        raise InputError(f"{path}: evaluate_on is '{given['evaluate_on']}': what tunes reads validation alone")
    _of_kind(given["tunes"], str, f"{path}: tunes")
    if given["tunes"] not in experiments(root):
        raise InputError(
            f"{path}: tunes: no experiment '{given['tunes']}': {nearest(given['tunes'], experiments(root))}"
        )
    tuned = read_yaml(root / EXPERIMENTS / f"{given['tunes']}.yaml")
    for one in (tuned, given):
        _of_kind(one.get("parameters") or {}, dict, f"{path}: parameters")
    parameters = merged(tuned.get("parameters") or {}, given.get("parameters") or {})
    return {**given, "variants": tuned.get("variants"), "parameters": parameters}


def _trials(name: str, grid: Any, path: Path) -> dict[str, dict[str, Any]]:
    """By the name of each variant that ``name`` becomes, what differs in it: {"training": {"learning_rate": 0.01}}."""
    where = f"{path}: grid"
    if not isinstance(grid, Mapping):
        raise InputError(f"{where} must be a mapping such as {{training: {{learning_rate: [0.01, 0.02]}}}}")
    refuse_unknown(grid, ("network", "training"), where)
    for section, inner in grid.items():
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}.{section} must be a mapping of settings to lists of values, not {inner!r}")
    values = {(section, key): value for section, inner in grid.items() for key, value in inner.items()}
    for (section, key), value in values.items():
        if not isinstance(value, list) or not value or len(set(map(repr, value))) < len(value):
            raise InputError(f"{where}.{section}.{key}: {value!r} is not a list of values, each of them once")
    found = {}
    for combination in itertools.product(*values.values()):
        settings: dict[str, Any] = {}
        for (section, key), value in zip(values, combination, strict=True):
            settings.setdefault(section, {})[key] = value
        said = ",".join(f"{key}={value}" for (_, key), value in zip(values, combination, strict=True))
        found[f"{name}/{said}"] = settings
    return found


def _variant(
    name: str, given: Any, of_the_grid: Mapping[str, Any], parameters: Mapping[str, Any], path: Path
) -> Variant:
    where = f"{path}: variants.{name}"
    if not isinstance(given, Mapping):
        raise InputError(f"{where} must be a mapping such as {{model: han, data: docstrings}}")
    given = merged(given, of_the_grid)
    refuse_unknown(given, VARIANT_KEYS, where)
    if name in kinds.baselines():
        raise InputError(f"{where} has the name of a baseline ({kinds.baselines()[name].title}): give it another")
    for key in ("model", "data"):
        if key not in given:
            raise InputError(f"{where} has no '{key}': add it")
        _of_kind(given[key], str, f"{where}.{key}")
    place = f"{PARAMETERS_FILE} with {path}: models.{given['model']}"
    defaults = _of_kind(parameters["models"].get(given["model"]) or {}, dict, place)
    refuse_unknown(defaults, ("network", "training"), place)
    for key in ("network", "training"):
        _of_kind(defaults.get(key) or {}, dict, f"{place}.{key}")
        for one in _of_kind(given.get(key) or {}, dict, f"{where}.{key}"):
            _of_kind(one, str, f"{where}.{key}: the name {one!r}")
    return Variant(
        name=name,
        model=given["model"],
        data=given["data"],
        network=merged(defaults.get("network") or {}, given.get("network") or {}),
        training=merged(merged(parameters["training"], defaults.get("training") or {}), given.get("training") or {}),
    )


def _of_kind(value: Any, kind: type, where: str) -> Any:
    """``value``, which YAML must have read as a dict, a list or text; InputError where it is something else."""
    words = {dict: "a mapping of names to values", list: "a list", str: "text"}
    if not isinstance(value, kind):
        raise InputError(f"{where} is {value!r}: it must be {words[kind]}")
    return value


def _section(sections: Mapping[str, Any], variant: Variant, path: Path) -> dict[str, Any]:
    """The settings of preprocessing of a variant's data set."""
    if variant.data not in sections:
        where = f"{path}: variants.{variant.name}"
        raise InputError(
            f"{where}: data '{variant.data}' has no section in {PARAMETERS_FILE}: preprocessing: "
            f"{nearest(variant.data, sections)} A data set of your own gets one there: `{variant.data}: {{}}`"
        )
    return dict(_of_kind(sections[variant.data] or {}, dict, f"{PARAMETERS_FILE}: preprocessing.{variant.data}"))


def _pair(given: Mapping[str, str], variants: Mapping[str, Variant], path: Path) -> dict[str, str]:
    where = f"{path}: pairs"
    _of_kind(given, dict, f"{where}: a pair")
    refuse_unknown(given, PAIR_KEYS, where)
    for key in sorted(PAIR_KEYS):
        if key not in given:
            raise InputError(f"{where}: a pair has no '{key}': add it")
        _of_kind(given[key], str, f"{where}: {key}")
    if given["better"] == given["worse"]:
        raise InputError(f"{where}: '{given['name']}' compares {given['better']} with itself: name two variants")
    sides = networks(given)
    if not sides:
        raise InputError(f"{where}: '{given['name']}' compares two baselines: name a variant on one side")
    refuse_unknown(sides, variants, f"{where} (a side is a variant, or one of {', '.join(kinds.baselines())})")
    if len({variants[name].data for name in sides}) > 1:
        raise InputError(f"{where}: '{given['name']}' compares variants on two data sets: choose one data set")
    return dict(given)


def _number(value: Any, low: float, high: float, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise InputError(f"{where}: {value!r} is not a number between {low:g} and {high:g}: change it")
    return float(value)
