"""Judge claims on scores from anywhere.

reread judge scores.csv --treatment swish --control relu --margin 0.005
reread judge claim.yaml                                          # claims and margins from a file
reread judge claim.yaml scores.parquet --exit-code               # a gate for CI
reread judge times.json --treatment new --control old --margin 5%    # hyperfine: a claim on speed
reread judge base='runs/base-*.jsonl' tuned='runs/tuned-*.jsonl' --metric acc --treatment tuned --margin 0.01
reread judge scores.csv --control relu --margin 0.005 --output verdict    # verdict.json, report.html, badge.svg

A table has the columns arm, seed and score, and may have item, group and metric. `--column arm=NAME` names another
column. ARM=FILE names the arm of a whole file. Formats: CSV, TSV, JSON lines, Parquet, MLflow, Weights & Biases,
lm-evaluation-harness, TensorBoard, pytest-benchmark and hyperfine. A margin in percent compares ratios of scores.

With --exit-code: 0 supported, equivalent, or different in favour of the treatment; 1 refuted; 3 inconclusive, or
different against it. Of several claims 1 counts before 3, and 3 before 0. Bad input is 2.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from reread.commands.options import AsJson, completion, print_json, print_table
from reread.evaluation.judged import badge, report_page
from reread.evaluation.verdict_table import claims_table, verdict_text
from reread.importers import REGISTRY, Source
from reread.importers.rows import Reader, digest_of
from reread.planning.claims import (
    ClaimFile,
    is_claim_file,
    options,
    read_claim_file,
    refuse_options,
    resolve,
    score_files,
)
from reread.storage.errors import InputError
from reread.storage.files import json_text, write_text
from reread.verdicts.document import FILE, make_document
from reread.verdicts.rule import DIFFERENT, INCONCLUSIVE, REFUTED, which_look
from reread.verdicts.scores import OVER_ITEMS, Scores, collect, judge_claims

REPORT, BADGE = "report.html", "badge.svg"
REFUTED_CODE, UNDECIDED_CODE = 1, 3
SEEDS_ALONE = "Judged over seeds alone: the scores have no rows per item, so nothing is said of other test items."


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[CLAIM.yaml] [[ARM=]FILE...]", help="A claim file; files of scores.", show_default=False
        ),
    ],
    treatment: Annotated[
        list[str] | None, typer.Option(metavar="ARM", help="The arm that is claimed to be better; repeatable.")
    ] = None,
    control: Annotated[str | None, typer.Option(metavar="ARM", help="The arm it is compared with.")] = None,
    reference: Annotated[float | None, typer.Option(metavar="NUMBER", help="A published figure as control.")] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="MARGIN", help="The smallest difference that matters: 0.005, or 5% of ratios.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(metavar="RATE", help="The rate of errors; default: 0.05.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="The metric that is judged.")] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option("--lower-is-better/--higher-is-better", help="Which direction of the metric is better."),
    ] = None,
    paired: Annotated[
        bool | None, typer.Option("--paired", help="Equal seeds are pairs: one unit under both arms.")
    ] = None,
    claim: Annotated[str | None, typer.Option(metavar="TEXT", help="The claim in words.")] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", metavar="ROLE=NAME", help="The column of a role; repeatable.")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="The files' format.",
            autocompletion=completion(lambda _: REGISTRY.available()),
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write verdict, page and badge there.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Say the verdict by the exit code.")] = False,
    as_json: AsJson = False,
) -> None:
    values = {
        "treatment": treatment,
        "control": control,
        "reference": reference,
        "margin": margin,
        "alpha": alpha,
        "metric": metric,
        "lower_is_better": lower_is_better,
        "paired": paired,
        "claim": claim,
        "columns": named_columns(columns),
        "format": file_format,
    }
    if output is not None and output.exists() and not output.is_dir():
        raise InputError(f"--output {output} is a file: give a folder")
    if is_claim_file(files[0]):
        refuse_options(values, files[0])
        given = read_claim_file(Path(files[0]))
        files = files[1:]
    else:
        given = options(values)
    document = judged(given, score_files(given, files))
    if output is not None:
        write_output(output, document)
    print_json(document) if as_json else print_table(summary(document))
    if exit_code:
        raise typer.Exit(code_of(document["claims"]))


def judged(given: ClaimFile, texts: Sequence[str]) -> dict[str, Any]:
    """Return verdict.json of the claims on these files of scores."""
    reader = Reader(texts, given.format, given.columns)
    scores: dict[str | None, Scores] = {}

    def scores_of(metric: str | None) -> Scores:
        if metric not in scores:
            scores[metric] = collect(reader.rows(metric))
        return scores[metric]

    claims = resolve(given, scores_of)
    by_metric = {known.metric: known for known in scores.values()}
    fewest = min(len(by_metric[claim.metric].arms.get(claim.treatment, ())) for claim in claims)
    look = which_look({"second_look": given.second_look, "seeds": range(fewest)})
    verdicts = judge_claims(claims, by_metric, given.alpha, look, given.cautions or (), given.earlier_reads)
    inputs = [input_of(*pair) for pair in zip(reader.sources, reader.formats, strict=True)]
    return make_document(claims, verdicts, by_metric, inputs, reader.columns, given.provenance)


def input_of(source: Source, name: str) -> dict[str, Any]:
    return {"file": source.text, "arm": source.arm, "format": name, "sha256": digest_of(source)}


def named_columns(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Return the columns by role that ROLE=NAME name."""
    for text in texts or ():
        if "=" not in text:
            raise InputError(f"--column {text}: write ROLE=NAME, such as arm=model")
    return dict(text.split("=", 1) for text in texts) if texts else None


def write_output(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the verdict, its page and its badge; all are made before the first is written."""
    texts = {FILE: json_text(document), REPORT: report_page(document), BADGE: badge(document["claims"])}
    for name, text in texts.items():
        write_text(folder / name, text)


def summary(document: Mapping[str, Any]) -> RenderableType:
    """Return what is printed: a line per claim, then each verdict."""
    claims = document["claims"]
    parts: list[RenderableType] = [claims_table(claims), *map(verdict_text, claims)]
    if any(OVER_ITEMS not in claim["analyses"] for claim in claims):
        parts.append(Text(f"\n{SEEDS_ALONE}", style="dim"))
    return Group(*parts)


def code_of(claims: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code of the verdicts: whether a harm of the margin is excluded, shown, or neither."""
    words = {claim["verdict"] for claim in claims}
    if REFUTED in words:
        return REFUTED_CODE
    against = any(claim["verdict"] == DIFFERENT and claim["mean"] < 0 for claim in claims)
    return UNDECIDED_CODE if INCONCLUSIVE in words or against else 0
