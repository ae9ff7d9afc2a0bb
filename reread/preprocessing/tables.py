"""Tables of a user's data as a stream of rows: CSV, TSV, JSON lines, Parquet, and a folder with a folder per class.

reread/preprocessing/hub.py adds what Hugging Face's library datasets reads.

A row is a dict from column to value. A folder has the columns ``file`` (its path), ``label`` and, where its top folders
are named by splits, ``split``. Memory holds one row, or one batch of a Parquet file.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reread.preprocessing.hub import is_of_library, read_library
from reread.storage.errors import InputError

Row = dict[str, Any]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
DELIMITERS = ",;\t|"
BATCH = 1024
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def read_table(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield where each row is ("reviews.csv, line 7") and the row. InputError names the line that cannot be read."""
    path = Path(path)
    if is_of_library(path):
        return read_library(path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise InputError(f"{path} is missing: give a file ({', '.join(SUFFIXES)}) or a folder with a folder per class")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} has the suffix '{suffix}': give one of {', '.join(SUFFIXES)}, or a folder; "
            "another format needs a short script (docs/own-data.md, 'Another format')"
        )
    if suffix == ".parquet":
        return _parquet(path)
    return _text_lines(path, _json_lines if "json" in suffix or "nd" in suffix else _delimited)


def has_class_folders(path: Path) -> bool:
    """Return whether the rows of ``path`` are files in a folder per class."""
    return path.is_dir() and not is_of_library(path)


def _text_lines(path: Path, read: Any) -> Iterator[tuple[str, Row]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from read(path, file)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason}): convert it, with iconv for example") from None


def _delimited(path: Path, file: Any) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(1 << 30)
    tabs = path.suffix.lower() == ".tsv"
    lines = (_tab_separated if tabs else _comma_separated)(path, file)
    _, header = next(lines, (1, []))
    twice = [name for name in header if header.count(name) > 1]
    if len(header) < 2 or twice:
        fault = f"the column '{twice[0]}' twice" if twice else "fewer than two columns"
        raise InputError(f"{path}, line 1 has {fault}: give it a header with a name for each column")
    for line, values in lines:
        where = f"{path}, line {line}"
        if values and len(values) != len(header):
            mend = "save a text with a tab or a line break as CSV" if tabs else "quote its text"
            raise InputError(f"{where} has {len(values)} columns and the header {len(header)}: {mend}")
        if values:
            yield where, dict(zip(header, values, strict=True))


def _comma_separated(path: Path, file: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the values of each row; a quoted value may have several lines."""
    first = file.readline()
    file.seek(0)
    reader = csv.reader(file, delimiter=max(DELIMITERS, key=first.count), strict=True)
    line = 1
    try:
        for values in reader:
            yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {line}: {error}: quote the text, and double each quotation mark in it"
        ) from None


def _tab_separated(path: Path, file: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield each line and its values. A line that is not quoted as a CSV is has literal quotation marks."""
    for number, text in enumerate(file, 1):
        try:
            yield number, next(csv.reader([text], delimiter="\t", strict=True), [])
        except csv.Error:
            yield number, text.rstrip("\r\n").split("\t")


def _json_lines(path: Path, file: Any) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"{where} is no JSON object: write one object of columns per line")
        yield where, row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{path} needs pyarrow: `pip install pyarrow`, or save it as CSV") from None
    try:
        number = 0
        with ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except Exception as error:  # a damaged file raises errors of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is no Parquet file, or is damaged ({reason}): copy it again") from None


def _folder(path: Path) -> Iterator[tuple[str, Row]]:
    tops = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not tops:
        raise InputError(f"{path} has no folders: make one per class, with its files in it")
    by_split = all(one.name.lower() in SPLIT_NAMES for one in tops)
    for top in tops:
        for folder in sorted(one for one in top.iterdir() if one.is_dir()) if by_split else [top]:
            split = {"split": top.name.lower()} if by_split else {}
            for file in sorted(one for one in folder.rglob("*") if one.is_file() and not one.name.startswith(".")):
                yield str(file), {"file": str(file.relative_to(path)), "label": folder.name, **split}
