"""The scores of finished runs: what commands write into {out}, as one table that `reread judge` reads.

metrics.json    {"accuracy": 0.93, ...}
items.csv       a row per test item: item, score and, optionally, group and metric; counts where a run has both. In
                place of score: prediction and reference, the texts that a metric such as bleu is measured of
"""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from reread.arms.jobs import Job
from reread.importers import Source, Table, metrics
from reread.importers.rows import ARM, GROUP, ITEM, METRIC, SCORE, SEED, NotFinite, Reader
from reread.storage.errors import InputError
from reread.verdicts.scores import Rows, collect

ITEMS = "items.csv"
METRICS = metrics.FILE
FILES = (ITEMS, METRICS)
TABLE = "scores.csv"


def source_of(job: Job) -> Source:
    """Return the file of a run's scores; InputError where it has none."""
    name = next((name for name in FILES if (job.out / name).is_file()), None)
    if name is None:
        raise InputError(f"{job.out} has neither {METRICS} nor {ITEMS}: let the command write one")
    return Source(str(job.out / name), job.arm, job.seed)


def read_scores(jobs: Sequence[Job]) -> dict[str, Rows]:
    """Return the rows of each metric of the jobs' claims.

    InputError names the file of a run that lacks a metric, whose score is no finite number, or whose items are others
    than the other runs'.
    """
    sources = [source_of(job) for job in jobs]
    alone = next((source for source in sources if source.path.name != sources[0].path.name), None)
    if alone is not None:
        raise InputError(
            f"{sources[0].text} and {alone.text} are scores of two kinds: let every run write the same one, and remove "
            "the folder of the run that did not"
        )
    reader = Reader(sources)
    for source, table in zip(sources, reader.tables, strict=True):
        if source.path.name == ITEMS and ITEM not in table.columns:
            raise InputError(f"{source.text} has no column '{ITEM}': write item and score, or prediction and reference")
    rows = {metric: reader.rows(metric) for metric in jobs[0].metrics}
    for of_metric in rows.values():
        collect(of_metric)
    return rows


def refuse_cached_without_scores(jobs: Sequence[Job]) -> None:
    """Raise InputError for a finished run that lacks scores of the claims: another claim file's run may be the same."""
    for job in jobs:
        if job.finished and job.damage() is None:
            try:
                read_scores([job])
            except InputError as error:
                remedy = f"correct the claim, remove {job.directory} to run it again"
                raise InputError(f"{job.name} is cached: {with_remedy(error, job, remedy)}") from None


def with_remedy(error: InputError, job: Job, remedy: str) -> str:
    """Return in words what is wrong with the scores of a run, and what to do in a claim."""
    # A row of a table may be removed, and a run's file is not edited.
    text = error.problem if isinstance(error, NotFinite) else str(error)
    return f"{text} ({remedy}, or leave seed {job.seed} out of `seeds`)"


def read_metrics(job: Job) -> dict[str, float]:
    """Return the numbers of a run's metrics.json, those that are finite; none where it has items alone."""
    if not (job.out / METRICS).is_file():
        return {}
    table: Table = metrics.read(Source(str(job.out / METRICS)))
    return {name: values[0] for name, values in table.columns.items() if not isinstance(values[0], str)}


def scores_table(jobs: Sequence[Job]) -> str:
    """Return the table of the claims' metrics as CSV: a row for each arm, seed and, where runs have items, item.

    Of a metric that is a function of sums, such as bleu, it has the parts of each item, and no text.

    InputError as ``read_scores``.
    """
    tables: list[dict[str, Sequence[Any]]] = []
    for metric, rows in read_scores(jobs).items():
        optional = {ITEM: rows.item, GROUP: rows.group}
        columns: dict[str, Sequence[Any]] = {ARM: rows.arm, SEED: rows.seed, METRIC: [metric] * len(rows.arm)}
        columns |= {name: column for name, column in optional.items() if column is not None}
        if rows.reduction is None:
            columns[SCORE] = [repr(score) for score in rows.score]
        else:
            parts = np.stack(rows.score).T.tolist()
            columns |= {
                f"{metric}.{place}": [f"{part:.17g}" for part in parts[place - 1]] for place in range(1, len(parts) + 1)
            }
        tables.append(columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = list(dict.fromkeys(name for columns in tables for name in columns))
    writer.writerow(header)
    for columns in tables:
        blank = [""] * len(columns[ARM])
        writer.writerows(zip(*(columns.get(name, blank) for name in header), strict=True))
    return text.getvalue()
