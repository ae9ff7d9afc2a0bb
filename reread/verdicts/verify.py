"""Judge a published experiment or study again, from what it published: no run is read and nothing is trained.

results/NAME/ of an experiment has verdicts.json with both sides' scores by seed and what the test items leave,
metrics.json with the same scores, and plan.json with the comparisons. Of a study, results.json has its claims. How
often a test split had been read before is counted in the ledger again.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError
from reread.storage.files import FROM_GIT, read_committed, write_json
from reread.storage.ledger import SplitRead
from reread.verdicts.items import Items
from reread.verdicts.reads import NO_READS, EarlierReads, earlier_reads
from reread.verdicts.rule import RULE, VERSION, Comparison, Measured, Side, Verdict, judge, which_look
from reread.verdicts.statistics import rounded

VERDICTS, METRICS, PLAN, SUMMARY = "verdicts.json", "metrics.json", "plan.json", "summary.json"
# The list of the run records of a published experiment.
RUNS = "runs.json"
DIFFERENCES, STUDY = "differences.csv", "results.json"
SIDES = ("treatment", "control")
# Published scores have ten decimals. A probability can depend on them a thousand times as steeply, and Holm's step
# multiplies it by the number of comparisons.
NEAR = 1e-6
# Of a verdict as it is published, its earlier reads.
Count = Callable[[Mapping[str, Any]], EarlierReads]
# Of a verdict as it is published, both sides and the items computed anew; None where only what is published is known.
Recompute = Callable[[Mapping[str, Any]], tuple[Side, Side, Items] | None]


def published(folder: Path) -> list[dict[str, Any]]:
    """Return the verdicts of results/NAME or of a study's folder. InputError for those of another rule's version."""
    if (folder / VERDICTS).is_file():
        verdicts = read_committed(folder / VERDICTS, "verdicts")["verdicts"]
    elif (folder / STUDY).is_file():
        verdicts = [claim["measured"] for claim in judged_claims(read_committed(folder / STUDY, "provenance"))]
    else:
        raise InputError(f"{folder} has no {VERDICTS} and no {STUDY}: give a folder of results/")
    for verdict in verdicts:
        if "scores" not in verdict:
            raise InputError(
                f"{folder}: the verdict of '{verdict['name']}' has no scores: it is of an older rule than {VERSION}, "
                "which published none"
            )
    return list(verdicts)


def judged_claims(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of a study that the rule judged; others have measurements of their own."""
    return [claim for claim in study.get("claims", ()) if "equivalence_margin" in claim.get("measured", {})]


def judge_again(
    verdicts: Sequence[Mapping[str, Any]], recompute: Recompute | None = None, count: Count | None = None
) -> list[Verdict]:
    """Return the verdicts of the present rule from published ones, judged together.

    recompute: gives the measurements of a verdict anew, as from predictions by item. count: counts its earlier reads
    anew.
    """
    if not verdicts:
        return []
    names = [member.name for member in fields(Comparison)]
    # verdict.json has the ratio itself under ``ratio``, or null.
    known = [{**verdict, "ratio": bool(verdict.get("ratio"))} for verdict in verdicts]
    comparisons = [Comparison(**{name: verdict[name] for name in names if name in verdict}) for verdict in known]
    measured = [measured_of(verdict, recompute, count or published_reads) for verdict in verdicts]
    first = verdicts[0]
    # The margin of comparisons that name none: each verdict carries its own.
    return judge(comparisons, measured, float(first["equivalence_margin"]), first["alpha"], first["look"])


def published_reads(verdict: Mapping[str, Any]) -> EarlierReads:
    """Return the earlier reads that a published verdict names; none in one that is older than their names."""
    names = ("earlier_reads", "other_version_reads", "related_reads")
    return EarlierReads(*(verdict.get(name, 0) for name in names))


def counted(folder: Path, entries: Sequence[SplitRead]) -> Count:
    """Return what counts the earlier reads of the verdicts of ``folder`` in the ledger.

    Of a study: in the plan of the experiment that it names, beside its folder's, in a study that judged on test.
    """
    plan = plan_of(folder)

    def count(verdict: Mapping[str, Any]) -> EarlierReads:
        if plan is None:
            return NO_READS
        names = [name for name in (verdict["treatment"], verdict["control"]) if name in plan["variants"]]
        data = plan["variants"][names[0]]["data"] if names else next(iter(plan["data"]))
        return earlier_reads(entries, plan, data, names)

    return count


def plan_of(folder: Path) -> dict[str, Any] | None:
    """Return the plan whose test split the verdicts of a folder are of; None where they are of validation."""
    if (folder / VERDICTS).is_file():
        plan = read_committed(folder / PLAN, "name", "key", "variants", "data", "evaluate_on")
        return plan if plan["evaluate_on"] == "test" else None
    source = read_committed(folder / STUDY, "provenance")["provenance"]
    places = [parent / source.get("experiment", "") / PLAN for parent in folder.resolve().parents]
    known = [path for path in places if path.is_file() and path.parent.name == source.get("experiment")]
    if not known:
        return None
    plan = read_committed(known[0], "name", "key", "variants", "data", "evaluate_on")
    return {**plan, "key": source["plan"]} if plan["evaluate_on"] == "test" else None


def measured_of(verdict: Mapping[str, Any], recompute: Recompute | None, count: Count) -> Measured | None:
    """Return the measurements that a published verdict has; None of a comparison that was not run."""
    if not verdict["scores"]:
        return None
    again = recompute(verdict) if recompute else None
    if again is None:
        treatment, control = (Side(verdict["scores"][side], verdict["seeds"][side]) for side in SIDES)
        items = Items(verdict["item_deviation"], verdict["item_units"], verdict["items"], verdict["resamples"])
    else:
        treatment, control, items = again
    return Measured(
        verdict["kind"],
        treatment,
        control,
        items,
        verdict["flags"],
        verdict["cautions"],
        count(verdict),
        verdict.get("test_to_train") or 0.0,
    )


def verify(folder: Path, recompute: Recompute | None = None, count: Count | None = None) -> list[str]:
    """Return a line for each value of the published verdicts that the rule does not give again; none if all agree."""
    verdicts = published(folder)
    again = [rounded(verdict.as_dict()) for verdict in judge_again(verdicts, recompute, count)]
    lines = [f"{old['name']}: {line}" for old, new in zip(verdicts, again, strict=True) for line in unlike(old, new)]
    if (folder / VERDICTS).is_file():
        lines += of_files(folder, verdicts)
    return lines


def write_again(folder: Path, recompute: Recompute | None = None, count: Count | None = None) -> list[Verdict]:
    """Replace the published verdicts of a folder by those that the rule and the ledger give today, and return these.

    A number that is the same but for its last digits stays as it is.
    """
    again = judge_again(published(folder), recompute, count)
    if (folder / VERDICTS).is_file():
        judged = rounded([verdict.as_dict() for verdict in again])
        old = read_committed(folder / VERDICTS, "verdicts")
        write_json(folder / VERDICTS, kept(old, {**old, "verdicts": judged}))
        if (folder / SUMMARY).is_file():
            words = {verdict.comparison.name: verdict.verdict for verdict in again}
            write_json(folder / SUMMARY, {**read_committed(folder / SUMMARY, "verdict"), "verdict": words})
    else:
        old = read_committed(folder / STUDY, "claims")
        write_json(folder / STUDY, kept(old, with_claims(old, again)))
    return again


def kept(old: Any, new: Any) -> Any:
    """Return ``new`` with the values of ``old`` where both are the same."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: kept(old.get(name), value) for name, value in new.items()}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [kept(*pair) for pair in zip(old, new, strict=True)]
    return old if same(old, new) else new


def unlike(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield what differs between two JSON values, each with its place."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from unlike(old.get(name), new.get(name), f"{where}.{name}" if where else str(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from unlike(*pair, f"{where}[{number}]")
    elif not same(old, new):
        yield f"{where} is published as {old!r}, and the rule gives {new!r}"


def same(old: Any, new: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return bool(abs(old - new) <= NEAR if numbers else old == new)


def of_files(folder: Path, verdicts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield where the verdicts of an experiment differ from the scores, the plan and the words beside them."""
    metrics, plan = read_committed(folder / METRICS, "variants"), read_committed(folder / PLAN, "comparisons")
    for verdict in verdicts:
        for side, name in zip(SIDES, (verdict["treatment"], verdict["control"]), strict=True):
            known = scores_of(metrics, verdict, name)
            if verdict["scores"] and known is not None:
                given = dict(zip(verdict["seeds"][side] or [None], verdict["scores"][side], strict=True))
                yield from (f"{verdict['name']}: {line}" for line in unlike(given, known, f"scores of {name}"))
        if verdict["look"] != which_look(plan):
            yield f"{verdict['name']}: look is {verdict['look']}, and by the plan it is {which_look(plan)}"
    planned = {
        comparison["name"]: {"equivalence_margin": plan["equivalence_margin"], **comparison}
        for comparison in plan["comparisons"]
    }
    judged = {verdict["name"]: verdict for verdict in verdicts}
    for name in sorted({*planned, *judged}):
        if name not in planned or name not in judged:
            yield f"{name}: it is in {PLAN if name in planned else VERDICTS} alone"
            continue
        given = {key: judged[name].get(key) for key in planned[name]}
        yield from (f"{name}: {line}, by {PLAN}" for line in unlike(given, planned[name]))
    words = {verdict["name"]: verdict["verdict"] for verdict in verdicts}
    if (folder / SUMMARY).is_file():
        yield from unlike(read_committed(folder / SUMMARY, "verdict")["verdict"], words, f"{SUMMARY}: verdict")
    if (folder / DIFFERENCES).is_file():
        try:
            with (folder / DIFFERENCES).open(encoding="utf-8", newline="") as file:
                drawn = {row["comparison"]: row["verdict"] for row in csv.DictReader(file)}
        except (KeyError, ValueError, csv.Error) as error:
            raise InputError(f"{folder / DIFFERENCES} cannot be read ({error}): {FROM_GIT}") from None
        judged_words = {verdict["name"]: verdict["verdict"] for verdict in verdicts if verdict["scores"]}
        yield from unlike(drawn, judged_words, f"{DIFFERENCES}: verdict")


def scores_of(metrics: Mapping[str, Any], verdict: Mapping[str, Any], name: str) -> dict[int | None, Any] | None:
    """Return the scores of one side by seed as metrics.json has them, those of one figure under None.

    None where it has none: a metric of one class, and a side that is not there.
    """
    metric, split = verdict["metric"], metrics["evaluated_on"]
    if name == verdict["control"] and verdict.get("reference") is not None:
        return {None: verdict["reference"]}
    if name == verdict["baseline"]:
        network = next(side for side in (verdict["treatment"], verdict["control"]) if side in metrics["variants"])
        of_data = metrics["baselines"].get(metrics["variants"][network]["data"], {})
        if by_seed := of_data.get(name, {}).get("seeds"):
            return {int(seed): measured[split].get(metric) for seed, measured in by_seed.items()}
        scores = [
            baselines[name][split].get(metric) for baselines in metrics["baselines"].values() if name in baselines
        ]
        # Baselines of several data sets share their names.
        match = [
            score for score in scores if score in verdict["scores"].get("control", []) + verdict["scores"]["treatment"]
        ]
        return {None: (match or scores)[0]} if scores and scores[0] is not None else None
    if name not in metrics["variants"]:
        return None
    by_seed = metrics["variants"][name]["seeds"]
    of_seeds = {int(seed): measured[split].get(metric) for seed, measured in by_seed.items()}
    return None if None in of_seeds.values() else dict(sorted(of_seeds.items()))


def with_claims(study: Mapping[str, Any], again: Sequence[Verdict]) -> dict[str, Any]:
    """Return a study's results with its judged claims and the rule's wording replaced."""
    new = iter(again)
    claims = []
    judged = judged_claims(study)
    for claim in study["claims"]:
        if claim in judged:
            verdict = next(new)
            says = verdict.sentence if claim["says"] == claim["measured"]["sentence"] else claim["says"]
            claim = {**claim, "verdict": verdict.verdict, "says": says, "measured": rounded(verdict.as_dict())}
        claims.append(claim)
    return {**study, "claims": claims, **({"rule": RULE} if "rule" in study else {})}
