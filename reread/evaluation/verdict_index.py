"""One page of the verdicts that stand in a folder: verdict.json of claims, published experiments and studies.

index.json has an entry per claim; index.html a table that sorts and filters, and the card of each claim. Both are made
from the files alone and have no time, so that equal verdicts give equal bytes.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reread.evaluation.judged import interval_drawing, scores_drawing
from reread.evaluation.page import WORDS, render
from reread.evaluation.verdict_table import difference
from reread.storage.digests import current_sha256
from reread.storage.errors import InputError
from reread.storage.files import FROM_GIT, read_committed, read_json, read_object
from reread.verdicts.document import FILE, Provenance, with_claims
from reread.verdicts.scores import OVER_ITEMS, OVER_SEEDS
from reread.verdicts.verify import PLAN, RUNS, STUDY, SUMMARY, VERDICTS, judged_claims

PAGE, LIST = "index.html", "index.json"
# The page that stands beside a verdict.
REPORT = "report.html"
# Of a claim, what index.json has beside its place.
LISTED = (
    "claim", "source", "verdict", "sentence", "treatment", "control", "metric", "mean", "interval", "interval_level",
    "equivalence_margin", "seeds", "earlier_reads", "rule",
)  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """A file of verdicts: its path below the folder of the index, what it is called, its claims, and what is known of
    its origin by name."""

    path: Path
    title: str
    claims: Sequence[Mapping[str, Any]]
    origin: Mapping[str, str]


def gather(folder: Path) -> list[Evidence]:
    """Return the evidence in a folder and below, in the order of its paths; InputError where there is none."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    gathered = [evidence for path in sorted(verdict_files(folder)) if (evidence := read(folder, path)).claims]
    if not gathered:
        raise InputError(f"{folder} has no verdicts: no {FILE}, {VERDICTS} or {STUDY} with a claim is in it or below")
    return gathered


def verdict_files(folder: Path) -> Iterator[Path]:
    """Yield the files of verdicts in a folder and below; hidden folders are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in files if name in (FILE, VERDICTS, STUDY))


def read(folder: Path, path: Path) -> Evidence:
    """Return what a file of verdicts has: claims as verdict.json has them, without those that were not run."""
    name = str(path.parent.relative_to(folder))
    if path.name == FILE:
        content = read_object(path, "claims", "provenance")
        claims = content["claims"]
        title = claims[0]["claim"] if len(claims) == 1 else name
        origin = {key: value for key, value in content["provenance"].items() if value}
    elif path.name == VERDICTS:
        plan = read_committed(path.parent / PLAN, "title", "data", "evaluate_on")
        claims, title = read_committed(path, "verdicts")["verdicts"], plan["title"]
        data = ", ".join(f"{data} {about['version'][:12]}" for data, about in plan["data"].items())
        origin = {"experiment": name, "data": data, "split": plan["evaluate_on"]}
    else:
        study = read_committed(path)
        claims, title = [claim["measured"] for claim in judged_claims(study)], f"Study {name}"
        origin = {"study": name} | ({"source": study["provenance"]["commit"]} if "provenance" in study else {})
    return Evidence(path.relative_to(folder), title, [complete(claim) for claim in claims if claim["scores"]], origin)


def citable(folder: Path, known: Evidence) -> dict[str, Any]:
    """Return verdict.json of a published experiment or study, which ``reread verify`` computes again by itself.

    Its inputs are the published file and, of an experiment, the runs: their keys, machines and digests.
    """
    place = known.path.parent
    runs = read_json(folder / place / RUNS, FROM_GIT) if (folder / place / RUNS).is_file() else []
    named = [known.path, *([place / RUNS] if runs else [])]
    inputs = [
        {"file": path.as_posix(), "arm": None, "format": "reread", "sha256": current_sha256(folder / path)}
        for path in named
    ]
    summary = read_committed(folder / place / SUMMARY) if (folder / place / SUMMARY).is_file() else {}
    commits = sorted({run["commit"] for run in runs if run["commit"]})
    experiment = known.origin.get("experiment")
    provenance = Provenance(
        command=f"reread run --experiment {Path(experiment).name}" if experiment else None,
        source=known.origin.get("source") or ", ".join(commits) or None,
        data=known.origin.get("data"),
        results=place.as_posix(),
        hardware=summary.get("machine"),
    )
    return with_claims(known.claims, inputs, {}, provenance)


def complete(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim with the entries that only verdict.json has."""
    analyses = [OVER_SEEDS, OVER_ITEMS] if claim["items"] else [OVER_SEEDS]
    return {"ratio": None, "analyses": analyses, **claim}


def listing(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return an entry per claim as JSON values."""
    return [
        {"file": known.path.as_posix(), **known.origin, **{name: claim[name] for name in LISTED if name in claim}}
        for known in evidence
        for claim in known.claims
    ]


def index_page(folder: Path, evidence: Sequence[Evidence], title: str) -> str:
    """Return the page; it links to the report of a verdict where that stands beside it."""
    counts = Counter(claim["verdict"] for known in evidence for claim in known.claims)
    return render(
        "index.html",
        ["tables.js"],
        title=title,
        evidence=evidence,
        reports={known.path for known in evidence if (folder / known.path.parent / REPORT).is_file()},
        report=REPORT,
        counts={word: counts[word] for word in WORDS if word in counts},
        drawings=[[(interval_drawing(claim), scores_drawing(claim)) for claim in known.claims] for known in evidence],
        words=WORDS,
        difference=difference,
    )
