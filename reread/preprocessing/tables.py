"""Tables of a user's data as a stream of rows: CSV, TSV, JSON lines, Parquet, and a folder with a folder per class.

reread/preprocessing/hub.py adds what Hugging Face's library datasets reads.

A row is a dict from column to value. A folder has the columns ``file`` (its path), ``label`` and, where its top folders
are named by splits, ``split``. Memory holds one row, or one batch of a Parquet file.
"""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from reread.preprocessing.delimited import (
    AS_NAMED,
    Dialect,
    Row,
    encoding_of,
    read_delimited,
    refuse_other_format,
    undecodable,
)
from reread.preprocessing.hub import is_of_library, read_library
from reread.storage.errors import InputError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
DELIMITED = (".csv", ".tsv")
BATCH = 1024
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def read_table(path: Path, dialect: Dialect = AS_NAMED) -> Iterator[tuple[str, Row]]:
    """Yield where each row is ("reviews.csv, line 7") and the row. InputError names the line that cannot be read."""
    path = Path(path)
    if is_of_library(path):
        _refuse_options(path, dialect, ())
        return read_library(path)
    if path.is_dir():
        _refuse_options(path, dialect, ("--encoding",))
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
        _refuse_options(path, dialect, ())
        return _parquet(path)
    if suffix not in DELIMITED:
        _refuse_options(path, dialect, ("--encoding",))
    return _text_lines(path, dialect, read_delimited if suffix in DELIMITED else _json_lines)


def _refuse_options(path: Path, dialect: Dialect, known: tuple[str, ...]) -> None:
    for option in dialect.given:
        if option not in known:
            raise InputError(f"{option} is an option of {' and '.join(DELIMITED)}, and {path} is none: leave it out")


def has_class_folders(path: Path) -> bool:
    """Return whether the rows of ``path`` are files in a folder per class."""
    return path.is_dir() and not is_of_library(path)


def _text_lines(
    path: Path, dialect: Dialect, read: Callable[[Path, IO[str], Dialect], Iterator[tuple[str, Row]]]
) -> Iterator[tuple[str, Row]]:
    refuse_other_format(path)
    try:
        with open(path, encoding=encoding_of(dialect), newline="") as file:
            yield from read(path, file, dialect)
    except UnicodeError as error:
        raise InputError(undecodable(path, dialect, error)) from None


def _json_lines(path: Path, file: IO[str], _: Dialect) -> Iterator[tuple[str, Row]]:
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
    tops = _folders(path)
    if not tops:
        raise InputError(f"{path} has no folders: make one per class, with its files in it")
    by_split = _are_splits(tops)
    for top in tops:
        for folder in _folders(top) if by_split else [top]:
            split = {"split": top.name.lower()} if by_split else {}
            for file in _files(folder):
                if file.is_file():
                    yield str(file), {"file": str(file.relative_to(path)), "label": folder.name, **split}


def skipped_files(path: Path) -> dict[str, list[str]]:
    """Return what ``read_table`` skips in a folder of class folders: by what it is, its paths below the folder.

    Hidden files are not among it.
    """
    tops = _folders(path)
    above = [path, *(tops if _are_splits(tops) else [])]
    classes = [folder for top in tops for folder in _folders(top)] if _are_splits(tops) else tops
    within = {folder: _files(folder) for folder in classes}
    loose = [file for folder in above for file in sorted(folder.iterdir()) if not file.is_dir() and _shown(file)]
    dead = [file for file in [*loose, *chain(*within.values())] if file.is_symlink() and not file.exists()]
    skipped = {
        "files outside of a class's folder": [file for file in loose if file not in dead],
        "links to nowhere": dead,
        "empty folders": [folder for folder, files in within.items() if not files],
    }
    return {what: [str(file.relative_to(path)) for file in files] for what, files in skipped.items() if files}


def _shown(file: Path) -> bool:
    return not file.name.startswith(".")


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and _shown(folder))


def _are_splits(tops: list[Path]) -> bool:
    return all(top.name.lower() in SPLIT_NAMES for top in tops)


def _files(folder: Path) -> list[Path]:
    """Return the files at any depth, and links to nowhere."""
    return sorted(file for file in folder.rglob("*") if not file.is_dir() and _shown(file))
