"""The plan of a flow: handed down, or, where a deployment begins, made of what its parameters select."""

from collections.abc import Mapping
from typing import Any

from planning.plan import Plan, make_plan


def plan_of(
    plan: Mapping[str, Any] | None,
    experiment: str,
    variants: list[str] | None,
    seeds: list[int] | None,
    overrides: list[str] | None,
) -> Plan:
    """Return ``plan`` (``Plan.to_json``), or make one of the selection where there is none."""
    return make_plan(experiment, variants, seeds, overrides or ()) if plan is None else Plan.from_json(plan)
