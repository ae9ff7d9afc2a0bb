"""What verdicts the size of a plan can reach, computed before anything is trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.power import Reach, reachable
from evaluation.verdicts import Comparison
from planning.experiment import networks
from planning.plan import Plan
from preprocessing.manifest import MANIFEST_PATH, Manifest
from storage.files import read_json, read_object
from storage.prepared import DESCRIPTION

RESULTS = Path("results")


def plan_reach(plan: Plan, root: Path = Path()) -> list[Reach]:
    """Return what each comparison of a plan can decide, by its seeds, rows, margin, and the spread that tuning saw.

    The tuning's results are the file that ``tuning.evidence`` names, or results/NAME-tuning/metrics.json;
    ``tuning.spread`` is used in place of the spread in them. ``root`` is the project's folder.
    InputError where a data set is not ingested yet, and for a file that is no metrics.json.
    """
    manifest = Manifest.load(root / MANIFEST_PATH)
    items = {one["name"]: evaluated_rows(plan, networks(one)[0], manifest, root) for one in plan.comparisons}
    return reachable(
        [Comparison(**one) for one in plan.comparisons],
        len(plan.seeds),
        plan.equivalence_margin,
        plan.alpha,
        items,
        tuning_metrics(plan, root),
        plan.tuning.get("spread"),
    )


def reach_lines(reaches: list[Reach]) -> list[str]:
    """Return what is printed of each comparison: its sentences, then its warnings."""
    return [line for one in reaches for line in (*one.sentences, *(f"warning: {said}" for said in one.warnings))]


def tuning_metrics(plan: Plan, root: Path = Path()) -> Mapping[str, Any] | None:
    """Return metrics.json of the experiment that tuned this one, or None where there is none."""
    path = root / plan.tuning.get("evidence", RESULTS / f"{plan.name}-tuning" / "metrics.json")
    return read_object(path, "variants") if path.is_file() else None


def evaluated_rows(plan: Plan, name: str, manifest: Manifest, root: Path = Path()) -> int:
    """Return how many rows of the evaluated split variant ``name`` is judged on.

    Where its arrays are not prepared, this is at most what ``rows_per_class`` leaves of the split.
    """
    variant = plan.variants[name]
    description = root / plan.environment.prepared / (variant.prepared_key or "") / DESCRIPTION
    if description.is_file():
        start, end = read_json(description)["splits"][plan.evaluate_on]
        return end - start
    entry = manifest.entry(variant.data)
    rows, per_class = entry.splits[plan.evaluate_on], variant.preprocessing.get("rows_per_class")
    return rows if per_class is None else min(rows, per_class * len(entry.classes))
