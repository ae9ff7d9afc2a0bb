"""From files of any format to rows of scores: which column is what, and one message for what is missing."""

import glob
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from reread import goals
from reread.importers import ADDRESS, Source, Table, find_format
from reread.storage.errors import InputError, nearest
from reread.storage.files import sha256_bytes, sha256_file
from reread.verdicts.scores import LARGEST, Rows

OF_ROWS = ARM, SEED, SCORE, ITEM, GROUP, METRIC = ("arm", "seed", "score", "item", "group", "metric")
# In place of a score: what a goal measures.
TEXTS = PREDICTION, REFERENCE = ("prediction", "reference")
ROLES = *OF_ROWS, *TEXTS
MOST_COLUMNS = 30
# A number of a path; one with a point, as in lr-0.1, is no seed.
NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)*)")
WORDS = {"true": 1.0, "false": 0.0}
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(e[-+]?\d+)?", re.IGNORECASE)


class NotFinite(InputError):
    """A score that is missing or no finite number: ``problem`` says which, without what to do in a table."""

    def __init__(self, problem: str, what_to_do: str) -> None:
        super().__init__(f"{problem}: {what_to_do}")
        self.problem = problem


def find_sources(texts: Sequence[str]) -> list[Source]:
    """Return the sources that ``[ARM=]PATH`` name, with the patterns (*, ?) expanded; InputError for what is not there.

    A path that exists may contain "=" and brackets.
    """
    named: list[tuple[str | None, str]] = []
    for text in texts:
        before, equals, path = text.partition("=")
        arm: str | None = before
        if not equals or "/" in before or ADDRESS.match(text) or matches(text):
            arm, path = None, text
        paths = matches(path)
        if not paths:
            raise InputError(f"{path} does not exist: give a file of scores")
        named += [(arm, path) for path in paths]
    repeated = next((path for path, times in Counter(path for _, path in named).items() if times > 1), None)
    if repeated is not None:
        raise InputError(f"{repeated} is given twice: the same scores are no further seeds")
    by_arm: dict[str | None, list[str]] = {}
    for arm, path in named:
        by_arm.setdefault(arm, []).append(path)
    numbers = {arm: iter(numbers_of(paths)) for arm, paths in by_arm.items()}
    return [Source(path, arm, next(numbers[arm]), len(by_arm[arm])) for arm, path in named]


def numbers_of(paths: Sequence[str]) -> list[int]:
    """Return the whole numbers in which the paths of an arm differ, else their places.

    Only the first folder or name that differs counts: below it there may be dates.
    """
    places = list(range(len(paths)))
    levels = zip(*(path.split("/") for path in paths), strict=False)
    differing = next((names for names in levels if len(set(names)) > 1), ())
    parts = [NUMBER.split(name) for name in differing]
    if len({len(part) for part in parts}) != 1:
        return places
    # Text and numbers take turns, text first.
    first, *others = ((at, texts) for at, texts in enumerate(zip(*parts, strict=True)) if len(set(texts)) > 1)
    at, texts = first
    if others or at % 2 == 0 or not all(text.isdigit() for text in texts):
        return places
    numbers = list(map(int, texts))
    return numbers if len(set(numbers)) == len(numbers) else places


def matches(path: str) -> list[str]:
    """Return an address or a path that exists, else the paths that match the pattern, in order."""
    return [path] if ADDRESS.match(path) or os.path.exists(path) else sorted(glob.glob(path))


class Reader:
    """The tables of some sources, read once.

    A row has a score, a prediction and a reference, or the statistics of a metric that is a function of their sums, in
    the columns METRIC.1, METRIC.2 and so on.

    name: of the format; None: recognised. columns: the column of a role, one of ROLES.
    """

    def __init__(
        self, sources: Sequence[Source], name: str | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        self.columns = dict(columns or {})
        unknown = next((role for role in self.columns if role not in ROLES), None)
        if unknown is not None:
            raise InputError(f"--column {unknown}=…: {nearest(unknown, ROLES)}")
        self.sources = list(sources)
        modules = [find_format(source, name) for source in self.sources]
        self.formats = [module.__name__.rpartition(".")[2] for module in modules]
        self.tables = [module.read(source) for module, source in zip(modules, self.sources, strict=True)]
        for source, table in zip(self.sources, self.tables, strict=True):
            for what, value in table.about.items():
                first = self.tables[0].about.get(what)
                if first != value:
                    raise InputError(
                        f"{self.sources[0].text} is of {what} {first}, {source.text} of {value}: judge one at a time"
                    )

    def rows(self, metric: str | None = None) -> Rows:
        """Return the rows of a metric; None: of the only one that there is."""
        title, parts = metric or self._only_metric(), []
        for source, table in zip(self.sources, self.tables, strict=True):
            score = self._score_column(source, table, title)
            title = title or score.removeprefix(table.prefix)
            parts.append(self._part(source, table, score, title))
        merged: dict[str, list[Any] | None] = {}
        for role in OF_ROWS:
            values = [part[role] for part in parts]
            lacking = next((number for number, column in enumerate(values) if column is None), None)
            if lacking is None:
                merged[role] = [value for column in values for value in column or ()]
            elif all(column is None for column in values):
                merged[role] = None
            else:
                raise InputError(f"{self.sources[lacking].text} has no column '{role}', which other files have")
        with_statistics = [isinstance((part[SCORE] or [None])[0], np.ndarray) for part in parts]
        if any(with_statistics) and not all(with_statistics):
            alone = self.sources[with_statistics.index(False)]
            raise InputError(f"{alone.text} has a score per row, and other files have its parts: judge one kind")
        directions = {table.lower_is_better for table in self.tables}
        known = goals.known_metric(title or SCORE) if with_statistics[0] else None
        if known is not None:
            directions = {not known.higher_is_better}
        return Rows(
            title or SCORE,
            merged[ARM] or [],
            merged[SEED] or [],
            merged[SCORE] or [],
            merged[ITEM],
            merged[GROUP],
            directions.pop() if len(directions) == 1 else None,
            list(dict.fromkeys(line for table in self.tables for line in table.cautions)),
            known.reduce if known is not None else None,
        )

    def _only_metric(self) -> str | None:
        """Return the only value of the columns of metrics; None without such a column, InputError of several values."""
        columns = [self._column(*pair, METRIC) for pair in zip(self.sources, self.tables, strict=True)]
        names = list(dict.fromkeys(str(name) for column in columns for name in column or ()))
        if len(names) > 1:
            raise InputError(
                f"{self.sources[0].text} has scores of {len(names)} metrics: choose one by --metric, of {listed(names)}"
            )
        return names[0] if names else None

    def _part(self, source: Source, table: Table, score: str, metric: str) -> dict[str, list[Any] | None]:
        """Return the rows of a table: a list for each role, or None where the table has no such column."""
        length = len(table.columns[score])
        part: dict[str, Any] = {role: self._column(source, table, role) for role in OF_ROWS}
        part[SCORE] = range(length)
        if source.arm is not None:
            part[ARM] = [source.arm] * length
        if part[ARM] is None:
            raise InputError(f"{lacks(source, table, ARM)}, or write ARM=FILE")
        if part[SEED] is None:
            if not table.numbered and source.arm is None:
                raise InputError(lacks(source, table, SEED))
            part[SEED] = [source.number] * length
        kept = [True] * length
        # A table whose scores are in a column of the metric's name needs no column of metrics.
        if part[METRIC] is not None and score != metric:
            kept = [str(name) == table.aliases.get(metric, metric) for name in part[METRIC]]
            if not any(kept):
                raise InputError(f"{source.text} has no metric '{metric}': {nearest(metric, map(str, part[METRIC]))}")
        if table.finished is not None:
            refuse_unfinished(source, table, part[ARM])
            kept = [not is_empty(arm) for arm in part[ARM]]
        lines = list(compress(range(1, length + 1), kept))
        part = {role: None if column is None else list(compress(column, kept)) for role, column in part.items()}
        part[SCORE] = self._scores(source, table, score, metric, part[SCORE])
        for role in (ARM, SEED, ITEM, GROUP):
            line = next((line for value, line in zip(part[role] or (), lines, strict=False) if is_empty(value)), None)
            if line is not None:
                raise InputError(f"{place(source, table, line)} has no {role}: fill it in, or remove it")
        return part

    def _scores(
        self, source: Source, table: Table, name: str, metric: str, rows: Sequence[int]
    ) -> list[float] | list[np.ndarray]:
        """Return the scores of rows or, of a metric that is a function of sums, their statistics, float64 [S]."""
        goal = goals.of_texts(metric)
        if goal is not None and table.columns[name] is self._column(source, table, PREDICTION):
            columns = [self._column(source, table, role) for role in TEXTS]
            texts = [
                ["" if is_empty(column[row]) else str(column[row]) for row in rows] for column in columns if column
            ]
            if len(texts) < len(TEXTS):
                raise InputError(lacks(source, table, REFERENCE))
            statistics = goal.metric(metric).statistics(*goal.from_texts(*texts))
            if statistics is None:
                raise InputError(f"{source.text}: {metric} is not defined on these texts")
            return list(statistics)
        parts = statistics_columns(table, metric)
        if name not in parts:
            return [number(source, table, name, row) for row in rows]
        return [np.array([number(source, table, part, row) for part in parts]) for row in rows]

    def _column(self, source: Source, table: Table, role: str) -> Sequence[Any] | None:
        chosen = self.columns.get(role)
        if chosen is not None and chosen not in table.columns:
            raise InputError(f"{source.text} has no column '{chosen}' for {role}: {nearest(chosen, table.columns)}")
        return table.columns.get(chosen or table.roles.get(role, role))

    def _score_column(self, source: Source, table: Table, metric: str | None) -> str:
        """Return the column of the scores: the one that was chosen, one with the metric's name, ``score``, or the first
        of the statistics or texts that have it."""
        if SCORE in self.columns:
            self._column(source, table, SCORE)
            return self.columns[SCORE]
        usual = table.roles.get(SCORE, SCORE)
        named = [f"{table.prefix}{metric}", metric, *statistics_columns(table, metric)] if metric else []
        texts = [self.columns.get(PREDICTION, PREDICTION)] if metric and goals.of_texts(metric) else []
        for name in (*named, usual, *texts):
            if name in table.columns:
                return name
        known = self._metrics(table)
        if metric:
            raise InputError(f"{source.text} has no metric '{metric}': {nearest(metric, known)}")
        if not known:
            raise InputError(lacks(source, table, SCORE))
        raise InputError(f"{source.text} has no column 'score': name the metric by --metric, of {listed(known)}")

    def _metrics(self, table: Table) -> list[str]:
        """Return the columns of numbers that have no other role, without their prefix."""
        others = {self.columns.get(role) or table.roles.get(role, role) for role in ROLES}
        named = [name for name in table.columns if name.startswith(table.prefix) and name not in others]
        return [name.removeprefix(table.prefix) for name in named if has_numbers(table.columns[name])]


def statistics_columns(table: Table, metric: str) -> list[str]:
    """Return the columns METRIC.1, METRIC.2 and so on of a metric that a goal has; none where there are none."""
    if goals.known_metric(metric) is None:
        return []
    return [name for name in (f"{metric}.{place + 1}" for place in range(len(table.columns))) if name in table.columns]


def number(source: Source, table: Table, name: str, row: int) -> float:
    """Return a score as a float; InputError names the row of one that is missing or no finite number."""
    value = table.columns[name][row]
    score = as_number(value)
    if not abs(score) <= LARGEST:
        where = place(source, table, row + 1)
        if DECIMAL_COMMA.fullmatch(str(value).strip()):
            raise InputError(f"{where}: {name} is '{value}': write decimal points in place of commas")
        said = "empty" if is_empty(value) else f"'{value}'"
        raise NotFinite(
            f"{where}: {name} is {said}, no finite number",
            f"run that seed again, or say why it is left out and remove the {'run' if table.runs else 'row'}",
        )
    return score


def as_number(value: Any) -> float:
    """Return a cell as a float, 1 for true and 0 for false in any case; NaN where it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return WORDS.get(str(value).strip().lower(), math.nan)


def has_numbers(column: Sequence[Any]) -> bool:
    """Return whether the first value of a column is a number, with a decimal point or comma."""
    first = next((value for value in column if not is_empty(value)), None)
    return math.isfinite(as_number(str(first).replace(",", ".")))


def place(source: Source, table: Table, row: int) -> str:
    """Return where a row is, numbered from 1: by its run where rows have no number."""
    return f"{source.text}, " + (f"run {table.columns[table.runs][row - 1]}" if table.runs else f"row {row}")


def is_empty(value: Any) -> bool:
    return value is None or value == "" or value != value  # NaN


def refuse_unfinished(source: Source, table: Table, arms: Sequence[Any]) -> None:
    """Raise InputError for a run of an arm that has not finished: its last value is no result."""
    name, finished = table.finished or ("", "")
    for row, (arm, state) in enumerate(zip(arms, table.columns.get(name, ()), strict=False), 1):
        if not is_empty(arm) and state != finished:
            where = place(source, table, row)
            raise InputError(f"{where}: a run of arm '{arm}' is {state}, not {finished}: finish or delete that run")


def lacks(source: Source, table: Table, role: str) -> str:
    return f"{source.text} has no column '{role}': name it by --column {role}=COLUMN, of {listed(table.columns)}"


def listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - MOST_COLUMNS} more" if len(known) > MOST_COLUMNS else ""
    return ", ".join(known[:MOST_COLUMNS]) + more if known else "none"


def digest_of(source: Source) -> str | None:
    """Return the sha256 of a file, or of a folder's event files; None of a server, whose runs may change."""
    if source.is_address:
        return None
    if source.path.is_file():
        return sha256_file(source.path)
    whole = hashlib.sha256()
    for path in sorted(path for path in source.path.rglob("*") if path.is_file()):
        whole.update(f"{path.relative_to(source.path)}\0{sha256_bytes(path.read_bytes())}\n".encode())
    return whole.hexdigest()
