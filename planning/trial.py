"""The experiment that tries every reader on a user's data: its files, before and after tuning.

Each network is tuned on validation by one seed that the experiment does not use; the experiment then compares the best
network with the best baseline, both as validation had them. The test split is read at the end alone.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import scipy
import yaml

import kinds
import models
from evaluation.power import ITEM_SHARE_OF_A_BASELINE, POWER
from planning.experiment import EXPERIMENTS, PARAMETERS_FILE, merged
from planning.plan import Plan
from planning.schema import read_yaml
from planning.tuning import choices_of, chosen_sections, tuning_name
from preprocessing.manifest import DataSetEntry
from storage.errors import InputError, refuse_unknown
from storage.files import write_text

MARK = "# Written by `reread try`, which writes it again; copy it under another name to change it.\n"
TUNING_SEED = 100
# What the two sides are compared by. A linear model's C hardly changes AUROC of many labels, and changes F1 a lot.
METRICS = {"single-label": "accuracy", "multi-label": "tuned_micro_f1"}
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


def experiment_of(
    name: str, entry: DataSetEntry, seeds: int, epochs: int | None, only: Collection[str] = ()
) -> dict[str, Any]:
    """Return the experiment before tuning; InputError for a kind of data that no network here reads.

    only: the variants that it has, or other networks of models/; none: all variants of the kind.
    epochs: at most so many; None: those of params.yaml. Several labels are trained without label smoothing: it lifts
    the probability of every absent class.
    """
    if entry.kind not in VARIANTS:
        raise InputError(f"'{name}' is {entry.kind} data: `reread try` knows {', '.join(VARIANTS)}")
    training: dict[str, Any] = {} if epochs is None else {"max_epochs": epochs}
    if entry.task == "multi-label":
        training["objective"] = {"name": "classification", "label_smoothing": 0.0}
    known = VARIANTS[entry.kind]
    refuse_unknown(only, {*known, *models.available()}, "the networks")
    variants = {one: known.get(one, {"model": one}) for one in dict.fromkeys(only or known)}
    for about in variants.values():
        models.refuse_other_kind(about["model"], name, entry.kind)
    baseline = kinds.kind(entry.kind).baselines[0].name
    return {
        "title": f"{name}: networks and baselines that read it",
        "defaults": {"data": name, "training": training},
        "variants": {variant: dict(settings) for variant, settings in variants.items()},
        "seeds": list(range(seeds)),
        "comparisons": [comparison(name, next(iter(variants)), baseline, METRICS[entry.task])],
        "evaluate_on": "test",
    }


def smallest_difference(rows: int, accuracy: float = 0.9) -> float:
    """Return about the smallest difference in accuracy that so many test rows can show, however many seeds there are.

    With a power of 80 % at a level of 5 %, between a network and a baseline that are right as often as ``accuracy``.
    Of several labels it serves for micro F1: rows are drawn, not labels.
    """
    variance = ITEM_SHARE_OF_A_BASELINE * 2 * accuracy * (1 - accuracy) / rows
    return (scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(POWER)) * math.sqrt(variance)


def comparison(name: str, network: str, baseline: str, metric: str) -> dict[str, str]:
    return {
        "name": "network-or-baseline",
        "claim": f"{network} classifies {name} better than {baseline}.",
        "source": "the best network and baseline of the tuning, on the validation split",
        "treatment": network,
        "control": baseline,
        "metric": metric,
    }


def grid_of(variant: str, model: str, root: Path = Path()) -> dict[str, Any]:
    """Return what is tried of a variant; of one that GRIDS lacks two learning rates, the greater from params.yaml."""
    if variant in GRIDS:
        return GRIDS[variant]
    parameters = read_yaml(root / PARAMETERS_FILE)
    of_model = parameters.get("models", {}).get(model, {})
    rate = merged(parameters["training"], of_model.get("training", {}))["learning_rate"]
    return {"training": {"learning_rate": [float(f"{0.3 * rate:.3g}"), rate]}}


def tuning_of(name: str, experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment that tunes each variant by its own grid, on validation, by one other seed."""
    return {
        "title": f"Which size and learning rate does each network want on {name}?",
        "tunes": name,
        "variants": {
            variant: {"grid": grid_of(variant, section["model"])} for variant, section in experiment["variants"].items()
        },
        "seeds": [TUNING_SEED],
    }


def tuned(experiment: Mapping[str, Any], tuning: Plan, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment with what tuning chose: each variant's settings, and the two sides of the comparison.

    metrics: metrics.json of the tuning.
    """
    (data,) = tuning.data
    found = choices_of(metrics["tuned"], {name: vars(variant) for name, variant in tuning.variants.items()})
    chosen = {name: choice.trial for name, choice in found.items()}
    variants = {name: merged(section, chosen_sections(found[name])) for name, section in experiment["variants"].items()}
    metric = experiment["comparisons"][0]["metric"]
    network = max(chosen, key=lambda name: metrics["variants"][chosen[name]]["validation"][metric]["mean"] or 0.0)
    baselines = metrics["baselines"][data]
    baseline = max(baselines, key=lambda name: baselines[name]["validation"][metric] or 0.0)
    sides = [comparison(data, network, baseline, metric)]
    trials = sorted({len(one["trials"]) for one in metrics["tuned"].values()})
    notes = {
        "experiment": tuning_name(experiment["defaults"]["data"]),
        "budget": f"of each network {' or '.join(map(str, trials))} sizes and learning rates, by one seed "
        f"({TUNING_SEED}), the best on validation chosen",
    }
    return {**experiment, "variants": variants, "comparisons": sides, "tuning": notes}


def path_of(name: str) -> Path:
    return EXPERIMENTS / f"{name}.yaml"


def write_experiment(name: str, content: Mapping[str, Any], root: Path = Path()) -> Path:
    """Write experiments/NAME.yaml; InputError where another hand wrote the one that is there."""
    path = root / path_of(name)
    if path.is_file() and not path.read_text(encoding="utf-8").startswith(MARK):
        raise InputError(f"{path} is there, and `reread try` did not write it: rename it, or the data set")
    write_text(path, MARK + yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110))
    return path
