"""How much a difference depends on the tuning: each seed of a tuning chooses alone.

A tuning chooses each variant's settings by few seeds. Other seeds may choose others, and a verdict's interval, which is
over the experiment's seeds and test items, has nothing of that. Here each seed of the tuning counts as a tuning of its
own. It chooses each variant's settings by its own validation scores, and the experiment's seeds are trained with them.
Where two settings tie, a variant keeps the experiment's.

The interval with tuning has three variances: between the seeds of each side and between test items, both as the verdict
has them, and between tunings. Tunings are a random effect: their variance is that of the mean of their differences,
with one degree of freedom less than there are tunings. The interval is Student's, of the verdict's level, about the
mean over tunings. Where the verdict's own interval reaches further, its end counts, so a verdict only becomes weaker.
The variance between tunings is rather too large: each of them has one seed where the experiment's has several, and the
difference of two tunings also has the noise of the seeds that were trained.

reread study tuning_variance --experiment default    names the commands that train what is missing

Writes results.json, choices.csv (what each variant trains with by each tuning), differences.csv (of each tuning),
intervals.csv and figure.png.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from reread.evaluation.pictures import BLUE, GREY, ORANGE, picture
from reread.planning.plan import PLAN, Plan
from reread.planning.resolve import make_plan
from reread.planning.tuning import Choice, choices, contradictions, evidence_folders, flow, trained_with
from reread.storage.digests import require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_object
from reread.storage.run_folder import METRICS
from reread.studies import study_io
from reread.studies.load_runs import EvaluatedExperiment, evaluated_experiment
from reread.verdicts.items import Items, Student, of_seeds
from reread.verdicts.rule import DIFFERENT, EQUIVALENT, INCONCLUSIVE, REFUTED, SUPPORTED

EXPERIMENT = "default"
VARIANT = None
# Its evidence is of an experiment, which may have several data sets.
PER_EXPERIMENT = True
LEAST_TUNINGS = 2
SIDES = ("treatment", "control")


@dataclass(frozen=True)
class Settings:
    """This study has no settings: the experiment and its tuning have them all."""


DEBUG = Settings()


def choices_by_seed(folder: Path) -> dict[int, dict[str, Choice]]:
    """Return what each seed of a tuning chooses alone, by variant; folder: its report or its published results.

    InputError where all trials share fewer than two seeds: one tuning has no variance.
    """
    again = f"run `reread run --experiment {folder.name}` again"
    trials = read_object(require_intact(folder / METRICS, again), "variants")["variants"].values()
    seeds = sorted(set.intersection(*(set(map(int, trial["seeds"])) for trial in trials)))
    if len(seeds) < LEAST_TUNINGS:
        raise InputError(
            f"{folder} has fewer than {LEAST_TUNINGS} seeds that all its trials share ({seeds or 'none'}): "
            "give the tuning more"
        )
    return {seed: choices(folder, seed) for seed in seeds}


def overrides_of(source: EvaluatedExperiment, chosen: Mapping[str, Choice]) -> list[str]:
    """Return the overrides by which each variant of the experiment trains with its choice; none of what it has."""
    overrides = []
    for name in contradictions(source.plan, chosen):
        settings = chosen[name].chosen
        here = trained_with(source.plan, name, settings) or {}
        overrides += [
            f"variants.{name}.{setting}={flow(value)}"
            for setting, value in settings.items()
            if here.get(setting) != value
        ]
    return overrides


def tuned_experiments(
    source: EvaluatedExperiment,
) -> tuple[dict[int, dict[str, Choice]], dict[int, EvaluatedExperiment]]:
    """Return by seed of the tuning what it chose, and the experiment as it was evaluated with these settings.

    InputError names all commands that are still to be run.
    """
    plan = source.plan
    if plan.trials:
        raise InputError(f"experiment '{plan.name}' has a grid of its own: give an experiment that a tuning tunes")
    folders = evidence_folders(plan)
    folder = next((candidate for candidate in folders if (candidate / PLAN).is_file()), None)
    if folder is None:
        raise InputError(f"experiment '{plan.name}' has no tuning in {' or '.join(map(str, folders))}")
    chosen, evaluated, missing = choices_by_seed(folder), {}, []
    for seed, by_variant in chosen.items():
        overrides = overrides_of(source, by_variant)
        if not overrides:
            evaluated[seed] = source
            continue
        again = make_plan(plan.name, overrides=overrides, environment=plan.environment)
        try:
            evaluated[seed] = evaluated_experiment(again)
        except InputError:
            missing.append(f"`{again.command}`")
    if missing:
        raise InputError(
            f"{len(missing)} of {len(chosen)} tunings are not trained or evaluated with what they chose: "
            f"run {' and '.join(dict.fromkeys(missing))}"
        )
    return chosen, evaluated


def with_tuning(verdict: Mapping[str, Any], differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference over tunings and the ends of its interval, of the verdict's level.

    InputError for a verdict without an interval.
    """
    scores = [verdict["scores"][side] for side in SIDES if verdict["seeds"].get(side)]
    items = Items(verdict["item_deviation"], verdict["item_units"], verdict["items"], verdict["resamples"])
    mean = float(np.mean(differences))
    own = verdict["interval"]
    if own["low"] is None or own["high"] is None:
        raise InputError(f"comparison '{verdict['name']}' has no interval: train more seeds")
    parts = [of_seeds(np.array(values)) for values in (*scores, differences)]
    low, high = Student(mean, parts, items).ends(1 - verdict["interval_level"]) or (own["low"], own["high"])
    return mean, min(low, own["low"]), max(high, own["high"])


def word_with_tuning(verdict: Mapping[str, Any], low: float, high: float) -> str:
    """Return the word that is left of a verdict by its interval with tuning (reread.verdicts.rule.RULE)."""
    word: str = verdict["verdict"]
    margin = verdict["equivalence_margin"]
    holds = {SUPPORTED: low > margin, REFUTED: high < -margin, EQUIVALENT: -margin < low and high < margin}
    if holds.get(word):
        return word
    return DIFFERENT if word in (SUPPORTED, REFUTED, DIFFERENT) and (low > 0 or high < 0) else INCONCLUSIVE


def study(settings: Settings, source: EvaluatedExperiment, device: torch.device) -> study_io.Findings:
    """Compare the tunings' differences, and put the interval with tuning beside each verdict's."""
    chosen, evaluated = tuned_experiments(source)
    rows = [
        {"variant": name, "tuning_seed": seed, "validation": choice.scores[choice.trial], "choice": words}
        for seed, by_variant in chosen.items()
        for name, choice in by_variant.items()
        if (words := settings_of(evaluated[seed].plan, name, choice))
    ]
    judged = {
        seed: {judgement["name"]: judgement for judgement in experiment.verdicts}
        for seed, experiment in evaluated.items()
    }
    differences, intervals = [], []
    for verdict in source.verdicts:
        name = verdict["name"]
        of_tunings = []
        for seed, by_name in judged.items():
            tuned = by_name[name]
            means = {side: float(np.mean(tuned["scores"][side])) for side in SIDES}
            differences.append({"comparison": name, "tuning_seed": seed, **means, "difference": tuned["mean"]})
            of_tunings.append(tuned["mean"])
        mean, low, high = with_tuning(verdict, of_tunings)
        intervals.append(
            {
                "comparison": name,
                "margin": verdict["equivalence_margin"],
                "level": verdict["interval_level"],
                "verdict": verdict["verdict"],
                "difference": verdict["mean"],
                "low": verdict["interval"]["low"],
                "high": verdict["interval"]["high"],
                "deviation_of_tunings": float(np.std(of_tunings, ddof=1)),
                "mean_of_tunings": mean,
                "low_with_tuning": low,
                "high_with_tuning": high,
                "verdict_with_tuning": word_with_tuning(verdict, low, high),
            }
        )
    results = {
        "settings": asdict(settings),
        "data": list(source.plan.data),
        "seeds": list(source.plan.seeds),
        "tunings": {
            str(seed): {"plan": experiment.plan.key, "overrides": list(experiment.plan.overrides)}
            for seed, experiment in evaluated.items()
        },
        **study_io.rule(source.plan.equivalence_margin, source.plan.alpha),
        "claims": study_io.claims(source.verdicts),
    }
    tables = {
        "choices": pd.DataFrame(rows).sort_values(["variant", "tuning_seed"], kind="stable"),
        "differences": pd.DataFrame(differences),
        "intervals": pd.DataFrame(intervals),
    }
    return study_io.Findings(results, tables)


def settings_of(plan: Plan, name: str, choice: Choice) -> str:
    """Return the settings that a variant trains with by a choice as words: ``learning_rate=0.01``; "" of no variant."""
    settings = trained_with(plan, name, choice.chosen) or {}
    return ", ".join(f"{address.rpartition('.')[2]}={flow(value)}" for address, value in settings.items())


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from intervals.csv and differences.csv: each verdict's interval, the one with tuning, the tunings."""
    intervals, differences = pd.read_csv(folder / "intervals.csv"), pd.read_csv(folder / "differences.csv")
    with picture(path, 7, 1 + 0.8 * len(intervals)) as figure:
        axes = figure.subplots()
        for place, row in enumerate(intervals.itertuples()):
            last = place == len(intervals) - 1
            spans = (
                (0.15, row.low, row.high, row.difference, BLUE, "verdict"),
                (-0.15, row.low_with_tuning, row.high_with_tuning, row.mean_of_tunings, ORANGE, "with tuning"),
            )
            for shift, low, high, mean, colour, label in spans:
                axes.plot([low, high], [place + shift] * 2, color=colour, linewidth=2, label=label if last else None)
                axes.plot(mean, place + shift, "o", color=colour, markersize=5)
            points = differences.loc[differences["comparison"] == row.comparison, "difference"]
            axes.plot(points, [place] * len(points), "|", color=GREY, markersize=9, label="a tuning" if last else None)
            axes.plot([-row.margin, row.margin], [place - 0.35] * 2, color=GREY, linewidth=1, linestyle=":")
        axes.axvline(0, color=GREY, linewidth=1)
        axes.set_yticks(range(len(intervals)), list(intervals["comparison"]))
        axes.invert_yaxis()
        axes.set_xlabel("difference; dotted: the margin")
        axes.legend(fontsize=7)
