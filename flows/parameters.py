"""The parameters that deployed flows share: as a deployment's page describes them, and as a plan."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from reread.planning.experiment import experiments
from reread.planning.plan import Plan
from reread.planning.resolve import make_plan

MOST_NAMES = 4  # that a flow run's name lists


def described(text: str, choices: list[str] | None = None) -> Any:
    """Return the schema of a parameter on a deployment's page: its description and what may be chosen."""
    return Field(json_schema_extra={"description": text, **({"enum": list(choices)} if choices else {})})


Experiment = Annotated[
    str, described("A file of experiments/. `reread serve` lists new ones when it starts.", experiments())
]
Variants = Annotated[list[str] | None, described("Only these variants of the experiment; none: all.")]
Seeds = Annotated[list[int] | None, described("Only these seeds of the experiment; none: all.")]
Overrides = Annotated[
    list[str] | None,
    described("Settings as NAME=VALUE, as training.learning_rate=0.02; each set of them has a report of its own."),
]
Fresh = Annotated[bool, described("Ignore the cache: make everything again.")]
Wait = Annotated[bool, described("Wait where another process trains a run; otherwise fail there.")]
# pydantic would rebuild a plan that it knows the class of.
GivenPlan = Annotated[Any, described("Leave empty: a plan that a command resolved.")]
GivenArrays = Annotated[
    dict[str, str] | None, described("Leave empty: the folders that `preprocess` returned to a calling flow.")
]


def plan_of(
    plan: Plan | None,
    experiment: str,
    variants: list[str] | None,
    seeds: list[int] | None,
    overrides: list[str] | None,
) -> Plan:
    """Return ``plan``, or make one of the selection where there is none."""
    return make_plan(experiment, variants, seeds, overrides or ()) if plan is None else plan


def name_of(parameters: Mapping[str, Any]) -> str:
    """Return the name of a flow run with these parameters: its experiment, and what is selected of it.

    ``tiny``, or ``tiny: han, seeds 0, 1``.
    """
    plan: Plan | None = parameters.get("plan")
    if plan is None:
        name, chosen = parameters["experiment"], parameters
    else:
        name, chosen = plan.name, vars(plan) if plan.partial else {}
    variants, seeds = list(chosen.get("variants") or ()), list(chosen.get("seeds") or ())
    parts = variants if len(variants) <= MOST_NAMES else [f"{len(variants)} variants"]
    if seeds:
        numbers = ", ".join(map(str, seeds)) if len(seeds) <= MOST_NAMES else f"{len(seeds)} in all"
        parts = [*parts, f"seeds {numbers}"]
    parts = [*parts, *(chosen.get("overrides") or ())]
    return f"{name}: {', '.join(parts)}" if parts else name
