"""CSV, TSV, JSON lines or Parquet with the columns arm, seed and score; item, group and metric are optional."""

import csv
import json
from typing import Any

from reread.importers import Source, Table, library
from reread.storage.errors import InputError

TABS, LINES, PARQUET = (".tsv", ".tab"), (".jsonl", ".ndjson"), (".parquet", ".pq")
SUFFIXES = (".csv", *TABS, *LINES, *PARQUET)

Columns = dict[str, list[Any]]


def recognises(source: Source) -> bool:
    return not source.is_address and source.path.suffix.lower() in SUFFIXES


def read(source: Source) -> Table:
    """Return the table as it is; a score may also be in a column that has the metric's name."""
    return Table(columns(source))


def columns(source: Source) -> Columns:
    """Return the columns of a file by its suffix, CSV where that is another one; InputError where it has no row."""
    suffix = source.path.suffix.lower()
    reader = _parquet if suffix in PARQUET else _json_lines if suffix in LINES else _separated
    columns_read = reader(source)
    if not columns_read or not next(iter(columns_read.values())):
        raise InputError(f"{source.text} is empty: it has no row of scores")
    return columns_read


def header(source: Source) -> list[str]:
    """Return the names of the columns of a CSV file; none where it is no text."""
    try:
        first = source.head.decode("utf-8-sig", errors="strict" if len(source.head) < 4 else "ignore").splitlines()[:1]
        return next(csv.reader(first), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _separated(source: Source) -> Columns:
    delimiter = "\t" if source.path.suffix.lower() in TABS else ","
    rows: list[list[str]] = []
    names: list[str] = []
    try:
        with open(source.path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if not names:
                    names = [cell.strip() for cell in row]
                elif len(row) != len(names):
                    raise InputError(
                        f"{source.text}, line {reader.line_num} has {len(row)} cells, and the header has {len(names)}"
                    )
                else:
                    rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source.text} is no table of text in UTF-8 ({error}): save it as CSV") from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{source.text} has two columns '{twice}': rename one")
    return {name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)} if rows else {}


def objects(source: Source) -> list[dict[str, Any]]:
    """Return the objects of JSON lines; InputError names a line that is none."""
    rows = []
    with open(source.path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise InputError(f"{source.text}, line {number} is no JSON object: write one object a line")
            rows.append(value)
    return rows


def _json_lines(source: Source) -> Columns:
    rows = objects(source)
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


def _parquet(source: Source) -> Columns:
    pyarrow = library("pyarrow.parquet", "Parquet files")
    try:
        columns: Columns = pyarrow.read_table(source.path).to_pydict()
        return columns
    except (ValueError, OSError) as error:  # pyarrow's errors are these
        message = str(error).partition("\n")[0]
        raise InputError(f"{source.text} is no Parquet file ({message}): write it again") from None
