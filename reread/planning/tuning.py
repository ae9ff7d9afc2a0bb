"""The choices of a tuning experiment, what they leave open, and where the experiment that it tuned differs."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from reread.evaluation.trials import tuned
from reread.planning.experiment import EXPERIMENTS, SECTIONS
from reread.planning.plan import PLAN, Plan, Variant
from reread.planning.resolve import make_plan
from reread.planning.runs import RESULTS
from reread.planning.space import flat, nested
from reread.storage.digests import require_intact
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import FROM_GIT, read_object
from reread.storage.run_folder import METRICS
from reread.verdicts.verify import VERDICTS

EPOCHS = "training.max_epochs"
COMPLETED = "schedule completed"  # how a run ended, in metrics.json
# Each line of ``untuned`` has it.
OF_TUNING = re.compile("its tuning tried|the best trial has")


@dataclass(frozen=True)
class Choice:
    """The trial of one variant that scored best on validation.

    settings: of each trial the settings in which the trials differ, by address ("training.learning_rate"). scores: of
    each trial the mean validation score; None where it is undefined. epochs: of the trial, if half of its seeds trained
    to the end of their schedule and had their best epoch in its last tenth; else None.
    """

    trial: str
    settings: Mapping[str, Mapping[str, Any]]
    scores: Mapping[str, float | None]
    epochs: int | None = None

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The settings of the chosen trial."""
        return self.settings[self.trial]

    @property
    def short(self) -> bool:
        """Whether the chosen trial used all its epochs, and none with more of them and the same settings was tried."""

        def without_epochs(settings: Mapping[str, Any]) -> dict[str, Any]:
            return {address: value for address, value in settings.items() if address != EPOCHS}

        return self.epochs is not None and not any(
            settings.get(EPOCHS, 0) > self.chosen.get(EPOCHS, 0)
            and without_epochs(settings) == without_epochs(self.chosen)
            for settings in self.settings.values()
        )

    def score_of(self, settings: Mapping[str, Any]) -> float | None:
        """Return the score of the trial with these settings; None where there was none."""
        return next((self.scores[trial] for trial, tried in self.settings.items() if tried == settings), None)


def tuning_name(experiment: str) -> str:
    """Return the name of the experiment that tunes another."""
    return f"{experiment}-tuning"


def choices(report: Path, seed: int | None = None) -> dict[str, Choice]:
    """Return what a tuning chose for each variant, from the folder of its report or of its published results.

    seed: one of the tuning's, by which alone it chooses; None for the mean over all. {} where a file is missing, and
    for an experiment without trials. InputError where a file is damaged or the two do not fit.
    """
    if not (report / METRICS).is_file() or not (report / PLAN).is_file():
        return {}
    again = FROM_GIT if report.parent == RESULTS else f"run `reread run --experiment {report.name}` again"
    metrics = read_object(require_intact(report / METRICS, again), hint=again)
    variants = read_object(require_intact(report / PLAN, again), "variants", hint=again)["variants"]
    try:
        return choices_of(metrics if seed is None else by_seed(metrics, seed), variants)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{report / PLAN} and {METRICS} beside it are not of one tuning ({type(error).__name__}: {error}): {again}"
        ) from None


def by_seed(metrics: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the variants and the choices of metrics.json as if the tuning had this seed alone."""
    variants = {}
    for name, trial in metrics["variants"].items():
        of_seed, score = trial["seeds"][str(seed)], trial["score"]
        validation = {score: {"mean": of_seed["validation"][score]}}
        variants[name] = {**trial, "seeds": {str(seed): of_seed}, "validation": validation}
    trials = {name: list(about["trials"]) for name, about in metrics["tuned"].items()}
    return {"variants": variants, "tuned": tuned(trials, variants)}


def choices_of(metrics: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Choice]:
    """Return the same from metrics.json and the trials that the tuning's plan has as ``variants``."""
    choices = {
        name: Choice(
            trial=about["chosen"],
            settings=differing({trial: variants[trial] for trial in about["trials"]}),
            scores=about["trials"],
            epochs=all_epochs(metrics["variants"][about["chosen"]]["seeds"].values()),
        )
        for name, about in metrics.get("tuned", {}).items()
    }
    for choice in choices.values():
        if not all(
            isinstance(score, int | float | None) for score in (choice.scores[choice.trial], *choice.scores.values())
        ):
            raise TypeError("a score is no number")
    return choices


def all_epochs(seeds: Collection[Mapping[str, Any]]) -> int | None:
    """Return a trial's epochs if half of its ``seeds`` used them all and were best in the last tenth; else None."""
    ended = [
        seed["epochs"] for seed in seeds if seed.get("ended") == COMPLETED and seed["best_epoch"] > 0.9 * seed["epochs"]
    ]
    return max(ended) if ended and 2 * len(ended) >= len(seeds) else None


def edges(here: Mapping[str, Any], tried: Iterable[Mapping[str, Any]], least: int = 3) -> dict[str, str]:
    """Return which numbers of ``here`` are "highest" or "lowest" of those tried, by address; of at least ``least``.

    A number of epochs has no edge: with more of them a run may still end early.
    """
    tried, ends = list(tried), {}
    for address, value in here.items():
        values = {settings[address] for settings in tried if _is_number(settings.get(address))}
        if _is_number(value) and address != EPOCHS and len(values) >= least and not min(values) < value < max(values):
            ends[address] = "highest" if value >= max(values) else "lowest"
    return ends


def untuned(plan: Plan, choices: Mapping[str, Choice]) -> dict[str, list[str]]:
    """Return by variant what its tuning says against its settings: that they are at the edge of what was tried ("has
    the highest ..."), or that it chose others.

    Two values are alternatives and have no edge. A plan that withholds verdicts is stricter: two values are too few,
    and a schedule that was used to its end must have been tried at a greater length.
    """
    left: dict[str, list[str]] = {}
    others = contradictions(plan, choices)
    for name, choice in choices.items():
        if (here := trained_with(plan, name, choice.chosen)) is None:
            continue
        ends = edges(here, choice.settings.values(), least=2 if plan.withhold_untuned else 3)
        lines = [f"has the {end} {address} that its tuning tried, {here[address]:g}" for address, end in ends.items()]
        if plan.withhold_untuned and choice.short and here == choice.chosen:
            lines.append(f"was still learning at the end of its {choice.epochs} epochs, and its tuning tried no more")
        if name in others:
            lines.append(": ".join(filter(None, [others[name], plan.tuning.get("kept", {}).get(name)])))
        if lines:
            left[name] = lines
    return left


def outdated(folder: Path) -> list[str]:
    """Return the cautions of published verdicts that the tuning published beside them does not give any more."""
    record, judged = read_object(folder / PLAN, "variants"), read_object(folder / VERDICTS, "verdicts")
    told = [line for verdict in judged["verdicts"] for line in (*verdict["cautions"], *verdict["flags"])]
    told = list(dict.fromkeys(line for line in told + judged.get("warnings", []) if OF_TUNING.search(line)))
    about = record.get("tuning", {})
    name = Path(about["evidence"]).parent.name if about.get("evidence") else tuning_name(folder.resolve().name)
    if not told or not (chosen := choices(folder.resolve().parent / name)):
        return []
    plan: Any = SimpleNamespace(
        variants={name: SimpleNamespace(**variant) for name, variant in record["variants"].items()},
        trials=record.get("trials", {}),
        tuning=about,
        withhold_untuned=record.get("withhold_untuned", False),
    )
    today = [f"{variant} {line}" for variant, lines in untuned(plan, chosen).items() for line in lines]
    # A reason to keep other settings may have been given, or worded, since.
    return [line for line in told if not any(line.startswith(now.partition(": ")[0]) for now in today)]


def differing(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return of each trial, by address, the settings that are not the same in all of them."""
    settings_of = {name: _settings(trial) for name, trial in trials.items()}
    every = dict.fromkeys(address for settings in settings_of.values() for address in settings)
    differ = [
        address
        for address in every
        if len({json.dumps(settings.get(address)) for settings in settings_of.values()}) > 1
    ]
    return {
        name: {address: settings[address] for address in differ if address in settings}
        for name, settings in settings_of.items()
    }


def published(plan: Plan, root: Path = Path()) -> dict[str, Choice]:
    """Return what the tuning of a plan chose; {} where none is known.

    The tuning is the one that ``tuning.evidence`` names, or NAME-tuning: its report here, or its published results.
    """
    return next(filter(None, (choices(root / folder) for folder in evidence_folders(plan))), {})


def evidence_folders(plan: Plan) -> list[Path]:
    """Return the folders that may have the tuning of a plan; the first one that has it counts."""
    evidence, name = plan.tuning.get("evidence"), tuning_name(plan.name)
    return [Path(evidence).parent] if evidence else [plan.environment.reports / name, RESULTS / name]


def contradictions(plan: Plan, choices: Mapping[str, Choice]) -> dict[str, str]:
    """Return by variant that it trains with settings that its tuning did not choose: "trains with ..., ..."."""
    lines = {}
    for name, choice in choices.items():
        if (here := trained_with(plan, name, choice.chosen)) is None:
            continue
        # A grid varies some of them itself.
        whole, chosen = here, choice.chosen
        if name in plan.trials:
            whole, chosen = {**chosen, **here}, {address: chosen[address] for address in here}
        if here == chosen:
            continue
        score, best = choice.score_of(whole), choice.scores[choice.trial]
        if score is None or score != best:
            lines[name] = (
                f"trains with {_words(here)} ({_words_of(score)}), "
                f"the best trial has {_words(choice.chosen)} ({_words_of(best)})"
            )
    return lines


def other_settings(plan: Plan, choices: Mapping[str, Choice]) -> list[str]:
    """Return a sentence for each variant of a plan that trains with settings that its tuning did not choose."""
    return [f"tuning: {name} {line}" for name, line in contradictions(plan, choices).items()]


def refuse_untuned(plan: Plan, root: Path = Path()) -> None:
    """InputError for a variant whose settings its published tuning did not choose, unless ``tuning.kept`` says why."""
    where = EXPERIMENTS / f"{plan.name}.yaml"
    kept = plan.tuning.get("kept", {})
    refuse_unknown(kept, {*plan.variants, *plan.trials}, f"{where}: tuning.kept")
    for name, line in contradictions(plan, published(plan, root)).items():
        if name not in kept:
            raise InputError(
                f"{where}: {name} {line}: train it with that, or say under tuning.kept why these settings stay; to try "
                f"others, leave the file: `reread run --experiment {plan.name} --set variants.{name}.SETTING=VALUE`"
            )


def trained_with(plan: Plan, name: str, addresses: Collection[str]) -> dict[str, Any] | None:
    """Return the settings of a variant at those addresses that it has; of a grid those that all its trials share.

    None where the plan has no such variant.
    """
    settings = [
        at(vars(plan.variants[variant]), addresses)
        for variant in plan.trials.get(name, [name])
        if variant in plan.variants
    ]
    if not settings:
        return None
    return {
        address: value
        for address, value in settings[0].items()
        if all(other.get(address) == value for other in settings)
    }


def at(variant: Mapping[str, Any], addresses: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a variant at those addresses that it has."""
    settings = _settings(variant)
    return {address: settings[address] for address in addresses if address in settings}


def chosen_lines(report: Path, root: Path = Path()) -> list[str]:
    """Return the lines of ``variants`` in an experiment's file by which each variant trains with its choice.

    report: of the tuning. The lines are for the experiment that it tunes, NAME of NAME-tuning: they have the settings
    in which the trials differ, and those in which the chosen trial differs from that experiment. Where there is none
    they have the model and the data as well, and all that differs from params.yaml.
    """
    lines = []
    for name, choice in choices(report).items():
        plan = read_object(report / PLAN, "name", "variants")
        trial = plan["variants"][choice.trial]
        there = _variant_of(plan["name"].removesuffix(tuning_name("")), name, root)
        about = {"title": "-", "seeds": [0], "variants": {"-": {"model": trial["model"], "data": trial["data"]}}}
        base = there or make_plan("-", root=root, content=about).variants["-"]
        settings = sections({**_differing_from(_settings(trial), _settings(vars(base))), **choice.chosen})
        if not there:
            settings = {"model": trial["model"], "data": trial["data"], **settings}
        if settings:
            lines.append(f"{flow(name)}: {flow(settings)}")
    return lines


def _variant_of(experiment: str, name: str, root: Path) -> Variant | None:
    """Return a variant of an experiment; None where there is no such experiment, or it cannot be read."""
    try:
        return make_plan(experiment, root=root).variants.get(name)
    except InputError:
        return None


def _differing_from(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that ``base`` has not, by address; with another member of a registry all settings of it."""
    differ = [address for address, value in settings.items() if address not in base or base[address] != value]
    members = tuple(address.removesuffix("name") for address in differ if address.endswith(".name"))
    return {address: value for address, value in settings.items() if address in differ or address.startswith(members)}


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=math.inf).strip()[1:-1]


def sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by address as an experiment has them: {"training": {"learning_rate": 0.01}}."""
    return nested((address.split("."), value) for address, value in settings.items())


def _settings(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return each setting of a variant by its address."""
    return flat({section: variant[section] for section in SECTIONS})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{address}={value}" for address, value in settings.items())


def _words_of(score: float | None) -> str:
    return "not tried" if score is None else f"{score:.4f} on validation"
