"""From files of scores to verdicts on the claims of a file, and how a command prints, writes and exits by them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from reread.commands.options import print_json, print_table
from reread.evaluation.judged import badge, report_page
from reread.evaluation.verdict_table import claims_table, verdict_text
from reread.importers.rows import Reader, digest_of, find_sources
from reread.planning.claims import ClaimFile, resolve
from reread.storage.errors import InputError, printable
from reread.storage.files import json_text, write_text
from reread.verdicts.document import FILE, make_document
from reread.verdicts.rule import DIFFERENT, INCONCLUSIVE, REFUTED, which_look
from reread.verdicts.scores import OVER_ITEMS, Scores, collect, judge_claims
from reread.verdicts.seeds import refuse_further_seeds

REPORT, BADGE = "report.html", "badge.svg"
REFUTED_CODE, UNDECIDED_CODE = 1, 3
SEEDS_ONLY = "Judged over seeds only: the scores have no rows per item, so nothing is said of other test items."

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write verdict, page and badge there.")
]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="Say the verdict by the exit code.")]


def refuse_file(output: Path | None) -> None:
    """Raise InputError where the folder of --output is a file."""
    if output is not None and output.exists() and not output.is_dir():
        raise InputError(f"--output {output} is a file: give a folder")


def judged(
    given: ClaimFile, texts: Sequence[str], arms: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return verdict.json of the claims on these files of scores. arms: how their scores were made, if known."""
    reader = Reader(find_sources(texts), given.format, given.columns)
    scores: dict[str | None, Scores] = {}

    def scores_of(metric: str | None) -> Scores:
        if metric not in scores:
            scores[metric] = collect(reader.rows(metric))
        return scores[metric]

    claims = resolve(given, scores_of)
    by_metric = {known.metric: known for known in scores.values()}
    seeds = [
        [len(by_metric[claim.metric].arms.get(arm, ())) for arm in (claim.treatment, claim.control)] for claim in claims
    ]
    refuse_further_seeds("an arm", max(map(max, seeds)), given.second_look, "a claim")
    look = which_look({"second_look": given.second_look, "seeds": range(min(treatment for treatment, _ in seeds))})
    verdicts = judge_claims(claims, by_metric, given.alpha, look, given.cautions or (), given.earlier_reads)
    inputs = [
        {"file": source.text, "arm": source.arm, "format": name, "sha256": digest_of(source)}
        for source, name in zip(reader.sources, reader.formats, strict=True)
    ]
    return make_document(claims, verdicts, by_metric, inputs, reader.columns, given.provenance, arms)


def deliver(
    document: Mapping[str, Any],
    output: Path | None,
    as_json: bool,
    exit_code: bool,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write the verdicts and other ``texts`` by their name to ``output``, print them, and exit by them if asked to."""
    if output is not None:
        write_output(output, document, texts or {})
    print_json(document) if as_json else print_table(summary(document))
    if exit_code:
        raise typer.Exit(code_of(document["claims"]))


def write_output(folder: Path, document: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write ``texts``, the verdict, its page and its badge; all are made before the first is written."""
    made = {FILE: json_text(document), REPORT: report_page(document), BADGE: badge(document["claims"])}
    for name, text in {**texts, **made}.items():
        write_text(folder / name, text)


def summary(document: Mapping[str, Any]) -> RenderableType:
    """Return what is printed: a line per claim, each verdict, and the metrics of which more is taken as better."""
    claims = document["claims"]
    parts: list[RenderableType] = [claims_table(claims), *map(verdict_text, claims)]
    if higher := dict.fromkeys(printable(claim["metric"]) for claim in claims if claim["higher_is_better"]):
        parts.append(Text(f"\nHigher is better: {', '.join(higher)}.", style="dim"))
    if any(OVER_ITEMS not in claim["analyses"] for claim in claims):
        parts.append(Text(f"\n{SEEDS_ONLY}", style="dim"))
    return Group(*parts)


def code_of(claims: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code of the verdicts: whether a harm of the margin is excluded, shown, or neither."""
    words = {claim["verdict"] for claim in claims}
    if REFUTED in words:
        return REFUTED_CODE
    against = any(claim["verdict"] == DIFFERENT and claim["mean"] < 0 for claim in claims)
    return UNDECIDED_CODE if INCONCLUSIVE in words or against else 0
