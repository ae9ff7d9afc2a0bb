"""CSV, TSV, JSON or Parquet with the columns arm, seed and score; item, group and metric are optional."""

import codecs
import csv
import json
from typing import Any

from reread.importers import Source, Table, library
from reread.storage.errors import InputError

TABS, LINES, PARQUET = (".tsv", ".tab"), (".jsonl", ".ndjson"), (".parquet", ".pq")
ARRAY = ".json"
SUFFIXES = (".csv", *TABS, *LINES, *PARQUET)
# As CSV files of Europe and of some tools have it.
DELIMITERS = (",", ";", "\t")

Columns = dict[str, list[Any]]


def recognises(source: Source) -> bool:
    suffix = source.path.suffix.lower()
    return not source.is_address and (suffix in SUFFIXES or (suffix == ARRAY and is_array(source)))


def is_array(source: Source) -> bool:
    return source.head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def read(source: Source) -> Table:
    """Return the table as it is; a score may also be in a column that has the metric's name."""
    return Table(columns(source))


def columns(source: Source) -> Columns:
    """Return the columns of a file by its suffix, CSV where that is another one; InputError where it has no row."""
    suffix = source.path.suffix.lower()
    reader = _parquet if suffix in PARQUET else _json if suffix in (*LINES, ARRAY) else _separated
    columns_read = reader(source)
    if not columns_read or not next(iter(columns_read.values())):
        raise InputError(f"{source.text} is empty: it has no row of scores")
    return columns_read


def header(source: Source) -> list[str]:
    """Return the names of the columns of a CSV file; none where it is no text."""
    return _header(source)[1]


def _header(source: Source) -> tuple[str, list[str]]:
    """Return the delimiter of a CSV file, of which its first line has most, and the names of its columns."""
    delimiters = "\t" if source.path.suffix.lower() in TABS else DELIMITERS
    try:
        text = source.head.decode("utf-8-sig", errors="strict" if len(source.head) < 4 else "ignore")
        first = [line for line in text.splitlines() if line.strip()][:1]
        headers = [(each, next(csv.reader(first, delimiter=each), [])) for each in delimiters]
        return max(headers, key=lambda pair: len(pair[1]))
    except (UnicodeDecodeError, csv.Error):
        return delimiters[0], []


def _separated(source: Source) -> Columns:
    delimiter, _ = _header(source)
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


def _json(source: Source) -> Columns:
    rows = _array(source) if source.path.suffix.lower() == ARRAY or is_array(source) else objects(source)
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


def _array(source: Source) -> list[dict[str, Any]]:
    try:
        rows = json.loads(source.path.read_text(encoding="utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{source.text} is no JSON array of objects: write one, or a file .jsonl of one object a line")
    return rows


def _parquet(source: Source) -> Columns:
    pyarrow = library("pyarrow.parquet", "Parquet files")
    try:
        columns: Columns = pyarrow.read_table(source.path).to_pydict()
        return columns
    except (ValueError, OSError) as error:  # pyarrow's errors are these
        message = str(error).partition("\n")[0]
        raise InputError(f"{source.text} is no Parquet file ({message}): write it again") from None
