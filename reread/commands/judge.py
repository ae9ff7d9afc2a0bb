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

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from reread.commands.judging import ExitCode, Output, deliver, judged, refuse_file
from reread.commands.options import AsJson, completion
from reread.importers import REGISTRY
from reread.planning.claims import ClaimFile, is_claim_file, options, read_claim_file, refuse_options, score_files
from reread.storage.errors import InputError


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
    claim: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The claim in words; {treatment} is the arm.")
    ] = None,
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
    output: Output = None,
    exit_code: ExitCode = False,
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
    refuse_file(output)
    if is_claim_file(files[0]):
        refuse_options(values, files[0])
        given = read_claim_file(Path(files[0]), ClaimFile)
        files = files[1:]
    else:
        given = options(values)
    deliver(judged(given, score_files(given, files)), output, as_json, exit_code)


def named_columns(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Return the columns by role that ROLE=NAME name."""
    for text in texts or ():
        if "=" not in text:
            raise InputError(f"--column {text}: write ROLE=NAME, such as arm=model")
    return dict(text.split("=", 1) for text in texts) if texts else None
