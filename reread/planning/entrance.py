"""Checks at the entrance, from the experiment's files alone: torch is not imported."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from reread.goals import available, goal, output_titles
from reread.planning.experiment import EXPERIMENTS, Experiment, load_experiment, networks, with_trials
from reread.planning.schema import SEEDS
from reread.storage.errors import InputError, refuse_unknown
from reread.verdicts.seeds import few_seeds

if TYPE_CHECKING:
    from reread.planning.plan import Plan


def read_experiment(
    name: str, variants: list[str] | None, seeds: Iterable[int] | None, overrides: Iterable[str]
) -> Experiment:
    """Read an experiment and check the selection; InputError for a name, a seed or an override that is wrong."""
    experiment = load_experiment(name, variants=variants, overrides=overrides)
    refuse_unknown(variants or (), {*experiment.variants, *experiment.trials}, f"the variants of experiment '{name}'")
    of_splits = [name for task in available() for name in goal(task).names]
    for comparison in experiment.comparisons:
        measure, colon, _ = comparison["metric"].partition(":")
        where = f"experiment '{name}', comparison '{comparison['name']}', metric"
        refuse_unknown([measure], output_titles() if colon else of_splits, where)
    chosen = list(seeds or ())
    for seed in chosen:
        if chosen.count(seed) > 1:
            raise InputError(f"experiment '{name}' has seed {seed} twice: name each seed once")
        if not 0 <= seed < SEEDS:
            raise InputError(f"seed {seed} of experiment '{name}' is not a whole number from 0 up and below 2^63")
    return experiment


def undecidable(
    experiment: "Experiment | Plan", variants: list[str] | None = None, seeds: list[int] | None = None
) -> list[str]:
    """Return a line where so few seeds can reach no verdict, or no difference, whatever they measure."""
    comparisons = _comparisons_of(experiment, variants)
    number = len(seeds or experiment.seeds)
    # Two networks need fewer seeds than one network and a figure.
    figures = all(
        comparison.get("reference") is not None or (len(networks(comparison)) == 1 and experiment.folds is None)
        for comparison in comparisons
    )
    if not comparisons:
        return []
    alpha = experiment.alpha_of_a_look
    return list(filter(None, [few_seeds(number, alpha, len(comparisons), figures, "comparison", "variant")]))


def unset_margin(experiment: Experiment, variants: list[str] | None = None) -> list[str]:
    """Return a line where a comparison is judged by a margin that nobody has set."""
    if experiment.margin_given or all("equivalence_margin" in each for each in _comparisons_of(experiment, variants)):
        return []
    path = EXPERIMENTS / f"{experiment.name}.yaml"
    return [f"{path} sets no equivalence_margin: {experiment.equivalence_margin:g} is used"]


def _comparisons_of(experiment: "Experiment | Plan", variants: list[str] | None) -> list[Mapping[str, Any]]:
    """Return the comparisons both of whose sides are chosen."""
    chosen = set(with_trials(variants or experiment.variants, experiment.trials))
    return [comparison for comparison in experiment.comparisons if set(networks(comparison)) <= chosen]
