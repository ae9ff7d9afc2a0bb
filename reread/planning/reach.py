"""The verdicts that the size of a plan can reach, computed before anything is trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread import kinds
from reread.goals import higher_is_better, metric_words
from reread.planning.experiment import networks
from reread.planning.plan import Plan
from reread.planning.runs import RESULTS
from reread.planning.tuning import tuning_name
from reread.preprocessing.manifest import MANIFEST_PATH, Manifest
from reread.storage.files import read_committed, read_json
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import METRICS
from reread.verdicts.power import PowerAnalysis, reachable
from reread.verdicts.rule import named


def plan_reach(plan: Plan, root: Path = Path()) -> list[PowerAnalysis]:
    """Return what each comparison of a plan can decide, by its seeds, rows, margin, and the spread that tuning saw.

    The spread between seeds is ``tuning.spread``, or else that of the tuning's results, or else that of the results of
    an earlier round (``evidence``). ``root`` is the project's folder.
    InputError where a data set is not ingested yet, and for a file that is no metrics.json.
    """
    manifest = Manifest.load(root / MANIFEST_PATH)
    items = {
        comparison["name"]: evaluated_rows(plan, networks(comparison)[0], manifest, root)
        for comparison in plan.comparisons
    }
    return reachable(
        [
            named(
                comparison,
                kinds.baselines(),
                metric_words(comparison["metric"]),
                higher_is_better(comparison["metric"]),
            )
            for comparison in plan.comparisons
        ],
        len(plan.seeds),
        plan.equivalence_margin,
        plan.alpha_of_a_look,
        items,
        evidence(plan, root),
        plan.tuning.get("spread"),
        plan.folds,
    )


def reach_lines(reaches: list[PowerAnalysis]) -> list[str]:
    """Return what is printed of the comparisons: sentences and warnings, once where several have the same."""
    names: dict[tuple[str, str], list[str]] = {}
    for reach in reaches:
        for kind, lines in (("", reach.sentences), ("warning: ", reach.warnings)):
            for line in lines:
                names.setdefault((kind, line.removeprefix(f"{reach.name}: ")), []).append(reach.name)
    return [f"{kind}{', '.join(of)}: {line}" for (kind, line), of in names.items()]


def evidence(plan: Plan, root: Path = Path()) -> list[Mapping[str, Any]]:
    """Return metrics.json of the experiment that tuned this one, then of earlier results of this one, where published.

    The first is the file that ``tuning.evidence`` names, or results/NAME-tuning/metrics.json.
    """
    tuning = plan.tuning.get("evidence", RESULTS / tuning_name(plan.name) / METRICS)
    paths = (root / tuning, root / RESULTS / plan.name / METRICS)
    return [read_committed(path, "variants") for path in paths if path.is_file()]


def evaluated_rows(plan: Plan, name: str, manifest: Manifest, root: Path = Path()) -> int:
    """Return how many rows of the evaluated split variant ``name`` is judged on.

    Where its arrays are not prepared, this is at most what ``rows_per_class`` leaves of the split.
    """
    variant = plan.variants[name]
    if plan.folds is not None:
        return manifest.entry(variant.data).rows
    description = root / plan.environment.prepared / (variant.prepared_key or "") / DESCRIPTION
    if description.is_file():
        start, end = map(int, read_json(description)["splits"][plan.evaluate_on])
        return end - start
    entry = manifest.entry(variant.data)
    rows, per_class = entry.splits[plan.evaluate_on], variant.preprocessing.get("rows_per_class")
    return rows if per_class is None else min(rows, per_class * len(entry.classes))
