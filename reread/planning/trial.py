"""The experiment that tries every reader on a user's data: its files, before and after tuning.

Each network is tuned on validation by one seed that the experiment does not use. The tuning goes on where a choice is
at the edge of what was tried; the experiment then compares the best network with the best baseline, both as validation
had them. The test split is read only at the end. With folds there is no tuning, because its validation rows would be
tested: each network has its settings of params.yaml, and is compared with the first baseline of the data's kind.

experiments/NAME-tuning.yaml stands for itself, and what is tried later is added to it. experiments/NAME.yaml is written
once tuning has ended, experiments/NAME-folds.yaml where there are folds.
"""

import contextlib
import copy
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import scipy
import yaml

import models
from reread import kinds
from reread.evaluation.trials import best_baseline
from reread.goals import goal, metric_words
from reread.planning.experiment import EXPERIMENTS, PARAMETERS_FILE, merged
from reread.planning.plan import Plan
from reread.planning.schema import EQUIVALENCE_MARGIN, read_yaml
from reread.planning.search import trial
from reread.planning.space import flat
from reread.planning.tuning import EPOCHS, at, choices_of, edges, sections, tuning_name
from reread.preprocessing.manifest import DataSetEntry
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import write_text
from reread.verdicts.power import ITEM_SHARE_OF_A_BASELINE, POWER

MARK = "# Written by `reread try`, which writes it again; copy it under another name to change it.\n"
SEEDS = 6  # the fewest with which one comparison can be decided
TUNING_SEED = 100
# Of each kind: the networks, and the sizes and learning rates that are tried.
VARIANTS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "text": {"han": {"model": "han"}, "gru-flat": {"model": "gru_flat"}, "word-average": {"model": "word_average"}},
    "image": {
        "densenet": {"model": "densenet", "network": {"activation": {"name": "relu"}}},
        "resnet": {"model": "resnet"},
    },
}
GRIDS: Mapping[str, dict[str, Any]] = {
    "han": {"training": {"learning_rate": [0.003, 0.01]}, "network": {"hidden_size": [32, 64]}},
    "gru-flat": {"training": {"learning_rate": [0.003, 0.01]}, "network": {"hidden_size": [32, 64]}},
    "word-average": {"training": {"learning_rate": [0.003, 0.01]}, "network": {"embedding_dim": [32, 128]}},
    "densenet": {"training": {"learning_rate": [0.03, 0.1]}, "network": {"growth_rate": [8, 12]}},
    "resnet": {"training": {"learning_rate": [0.03, 0.1]}, "network": {"width": [8, 16]}},
}


def tuning_of(
    name: str, entry: DataSetEntry, epochs: int | None = None, only: Collection[str] = (), metric: str | None = None
) -> dict[str, Any]:
    """Return the experiment that tunes each variant by its own grid, on validation, by one seed of its own.

    It has the variants of an earlier tuning as they are there, apart from those that are tried now. InputError for a
    kind of data that no network here reads, and for an experiment of that name that another hand wrote.
    only: the variants that are tried, or other networks, of models/ or of another package; none: all variants of the
    kind.
    epochs: at most so many; None: those of params.yaml, or more where these are too few. metric: what chooses; None:
    that of the earlier tuning, or that of the task.
    """
    earlier = written(tuning_name(name))
    variants = dict(earlier.get("variants", {}))
    chosen = sections_of(name, entry, epochs, only)
    for variant, section in variants.items():
        if variant not in chosen and not ("model" in section and isinstance(section.get("grid"), list)):
            raise InputError(
                f"{path_of(tuning_name(name))}: variants.{variant} is not as `reread try` writes it: "
                f"remove {variant} there"
            )
    for variant, section in chosen.items():
        variants[variant] = {**section, "grid": [copy.deepcopy(grid_of(variant, section["model"]))]}
    return {
        "title": f"Which size and learning rate does each network want on {name}?",
        "metric": metric or earlier.get("metric") or goal(entry.task).compared_by,
        "defaults": {"data": name},
        "variants": variants,
        "seeds": [TUNING_SEED],
    }


def sections_of(
    name: str, entry: DataSetEntry, epochs: int | None = None, only: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the section of each variant that is tried, without a grid; arguments and errors of ``tuning_of``."""
    if entry.kind not in VARIANTS:
        raise InputError(f"'{name}' is {entry.kind} data: `reread try` knows {', '.join(VARIANTS)}")
    known = VARIANTS[entry.kind]
    available = {*known, *models.available()}
    if unknown := [network for network in only if network not in available and not models.is_outside(network)]:
        refuse_unknown(unknown, networks_of(entry.kind), f"the networks that read {entry.kind}")
    sections = {}
    for network in only or known:
        variant = short_name(network, entry.kind)
        section = copy.deepcopy(known.get(variant, {"model": models.address(network)}))
        models.refuse_other_kind(section["model"], name, entry.kind)
        if epochs is not None:
            section["training"] = {"max_epochs": epochs}
        sections[variant] = section
    return sections


def networks_of(kind: str) -> list[str]:
    """Return the names of the networks that read a kind of data, each once: where it is one of VARIANTS, by that."""
    named = {section["model"] for section in VARIANTS[kind].values()}
    others = (model for model in models.available() if models.kind(model) in (None, kind))
    return [*VARIANTS[kind], *(model for model in others if model not in named)]


def short_name(network: str, kind: str) -> str:
    """Return the name of the variant that tries a network: where one of VARIANTS is of this file of models/, that one;
    an address of another package without points, which separate settings."""
    of_models = {section["model"]: variant for variant, section in VARIANTS[kind].items()}
    return of_models.get(network, re.sub("[.:]", "-", network))


def experiment_of(
    name: str, entry: DataSetEntry, tuning: Mapping[str, Any], seeds: int | None = None
) -> dict[str, Any]:
    """Return the experiment before tuning. seeds: None for as many as an earlier one had, or SEEDS.

    The margin is that of the earlier one too.
    """
    variants = {variant: untuned(section) for variant, section in tuning["variants"].items()}
    baseline = kinds.baselines_of(entry.kind, entry.task)[0].name
    earlier = written(name)
    return {
        "title": f"{name}: networks and baselines that read it",
        "metric": tuning["metric"],
        "withhold_untuned": True,
        "defaults": {"data": name},
        "variants": variants,
        "seeds": list(range(seeds)) if seeds else earlier.get("seeds", list(range(SEEDS))),
        "comparisons": [comparison(name, next(iter(variants)), baseline, tuning["metric"])],
        "equivalence_margin": earlier.get("equivalence_margin", EQUIVALENCE_MARGIN),
        "evaluate_on": "test",
    }


def untuned(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a variant without its grid."""
    return {key: value for key, value in section.items() if key != "grid"}


def as_chosen_before(experiment: Mapping[str, Any], tuning: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment before tuning with what an earlier one chose, of each variant that is tried as it was then.

    These are the runs that will be compared where the tuning chooses the same again, as it does of finished runs.
    """
    name = experiment["defaults"]["data"]
    before, chosen = (written(known).get("variants", {}) for known in (tuning_name(name), name))
    variants = {
        variant: chosen[variant]
        if variant in chosen and untuned(before.get(variant, {})) == untuned(tuning["variants"][variant])
        else section
        for variant, section in experiment["variants"].items()
    }
    return {**experiment, "variants": variants}


def folds_name(experiment: str) -> str:
    """Return the name of the experiment that `reread try --folds` writes."""
    return f"{experiment}-folds"


def with_folds(
    name: str,
    entry: DataSetEntry,
    folds: int,
    seeds: int | None = None,
    epochs: int | None = None,
    only: Collection[str] = (),
    metric: str | None = None,
) -> dict[str, Any]:
    """Return the experiment that compares each network with a baseline by cross-validation, beside those of before.

    metric: what judges; None: that of before, or the first that needs no validation split. Else as ``tuning_of`` and
    ``experiment_of``.
    """
    earlier, about = written(folds_name(name)), goal(entry.task)
    variants = {**earlier.get("variants", {}), **sections_of(name, entry, epochs, only)}
    free = next(known for known in (about.compared_by, *about.names) if not about.reads_validation(known))
    chosen = metric or earlier.get("metric") or free
    baseline = kinds.baselines_of(entry.kind, entry.task)[0].name
    return {
        "title": f"{name}: networks and baselines, cross-validated",
        "folds": folds,
        "metric": chosen,
        "withhold_untuned": True,
        "defaults": {"data": name},
        "variants": variants,
        "seeds": list(range(seeds)) if seeds else earlier.get("seeds", list(range(SEEDS))),
        "comparisons": [{"name": network, **claim(name, network, baseline, chosen)} for network in variants],
        "equivalence_margin": earlier.get("equivalence_margin", EQUIVALENCE_MARGIN),
        "evaluate_on": "test",
    }


def smallest_difference(rows: int, accuracy: float = 0.9) -> float:
    """Return about the smallest difference in accuracy that so many test rows can show, however many seeds there are.

    With a power of 80 % at a level of 5 %, between a network and a baseline that are right as often as ``accuracy``.
    Of several labels it serves for micro F1: rows are drawn, not labels.
    """
    variance = ITEM_SHARE_OF_A_BASELINE * 2 * accuracy * (1 - accuracy) / rows
    return float((scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(POWER)) * math.sqrt(variance))


def comparison(name: str, network: str, baseline: str, metric: str) -> dict[str, str]:
    return {
        "name": "network-or-baseline",
        "source": "the best network and baseline of the tuning, on the validation split",
        **claim(name, network, baseline, metric),
    }


def claim(name: str, network: str, baseline: str, metric: str) -> dict[str, str]:
    return {
        "claim": f"{network} reads {name} better than {baseline}.",
        "treatment": network,
        "control": baseline,
        "metric": metric,
    }


def grid_of(variant: str, model: str) -> dict[str, Any]:
    """Return what is tried of a variant; of one that GRIDS lacks two learning rates, the greater from params.yaml."""
    if variant in GRIDS:
        return GRIDS[variant]
    parameters = read_yaml(PARAMETERS_FILE)
    of_model = parameters.get("models", {}).get(model, {})
    rate = merged(parameters["training"], of_model.get("training", {}))["learning_rate"]
    return {"training": {"learning_rate": [float(f"{0.3 * rate:.3g}"), rate]}}


def wider(tuning: Mapping[str, Any], plan: Plan, metrics: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return by variant the trials that go on where its choice is at the edge of what was tried, each as a grid.

    A trial changes one setting of the chosen one: a number at an edge by the step that led there; of a schedule that
    was used to its end, the number of epochs, to twice as many. A value that a network refuses is left out.
    plan: of ``tuning``; metrics: its metrics.json.
    """
    trials: dict[str, list[dict[str, Any]]] = {}
    for name, choice in choices_of(
        metrics, {trial_name: vars(variant) for trial_name, variant in plan.variants.items()}
    ).items():
        section, base = tuning["variants"][name], plan.variants[choice.trial]
        tried = list(choice.settings.values())
        point = at(vars(base), {**flat(section["grid"][0]), **choice.chosen})
        steps = {
            address: beyond({settings[address] for settings in tried}, highest=end == "highest")
            for address, end in edges(choice.chosen, tried, least=2).items()
        }
        if choice.short and "max_epochs" not in section.get("training", {}):
            point[EPOCHS] = base.training["max_epochs"]
            steps[EPOCHS] = 2 * point[EPOCHS]
        for address, value in steps.items():
            settings = {**point, address: value}
            if value == point[address]:
                continue  # a whole number that can be no lower
            with contextlib.suppress(InputError):
                trial(base, name, sections(settings), name)
                trials.setdefault(name, []).append(sections({setting: [value] for setting, value in settings.items()}))
    return trials


def beyond(tried: Collection[float], highest: bool) -> float:
    """Return the value that follows the highest or the lowest of at least two, by the ratio of the last two."""
    *_, before, last = sorted(tried, reverse=not highest)
    return max(1, round(last * last / before)) if isinstance(last, int) else float(f"{last * last / before:.3g}")


def widened(tuning: Mapping[str, Any], trials: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the tuning with further trials of some variants (``wider``)."""
    variants = {
        name: {**section, "grid": [*section["grid"], *trials.get(name, ())]}
        for name, section in tuning["variants"].items()
    }
    return {**tuning, "variants": variants}


def tuned(experiment: Mapping[str, Any], tuning: Plan, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment with what tuning chose: each variant's settings, and the two sides of the comparison.

    metrics: metrics.json of the tuning.
    """
    (data,) = tuning.data
    choices = choices_of(metrics, {name: vars(variant) for name, variant in tuning.variants.items()})
    chosen = {name: choice.trial for name, choice in choices.items()}
    variants = {
        name: merged(section, sections(choices[name].chosen)) for name, section in experiment["variants"].items()
    }
    metric = experiment["metric"]
    network = max(chosen, key=lambda name: metrics["variants"][chosen[name]]["validation"][metric]["mean"] or 0.0)
    baseline = best_baseline(metrics["baselines"][data], metric)
    trials = sorted({len(choice["trials"]) for choice in metrics["tuned"].values()})
    notes = {
        "experiment": tuning_name(experiment["defaults"]["data"]),
        "budget": f"of each network {' or '.join(map(str, trials))} sizes and learning rates, by one seed "
        f"({TUNING_SEED}), the best {metric_words(metric)} on validation chosen",
    }
    sides = [comparison(data, network, baseline, metric)]
    return {**experiment, "variants": variants, "comparisons": sides, "tuning": notes}


def path_of(name: str) -> Path:
    return EXPERIMENTS / f"{name}.yaml"


def is_of_another_hand(path: Path) -> bool:
    """Return whether an experiment's file is not one that `reread try` wrote."""
    return not path.read_bytes().startswith(MARK.encode())


def written(name: str) -> dict[str, Any]:
    """Return experiments/NAME.yaml as an earlier `reread try` wrote it, or {}; InputError for others."""
    path = path_of(name)
    if not path.is_file():
        return {}
    if is_of_another_hand(path):
        raise InputError(f"{path} is there, and `reread try` did not write it: rename it, or the data set")
    return read_yaml(path)


def write_experiment(name: str, content: Mapping[str, Any]) -> Path:
    """Write experiments/NAME.yaml; InputError where another hand wrote the one that is there."""
    written(name)
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110)
    write_text(path_of(name), MARK + text)
    return path_of(name)
