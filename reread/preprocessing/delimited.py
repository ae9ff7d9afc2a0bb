"""CSV and TSV as a stream of rows, in any encoding, with or without a header."""

import codecs
import csv
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from reread.storage.errors import InputError

Row = dict[str, Any]
DELIMITERS = ",;\t|"
NO_QUOTE = "none"
# How files begin that are no text, whatever their name.
BEGINNINGS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
}
# The line above the header by which Excel is told the delimiter.
SEPARATOR = re.compile('"?sep=([^"]?)"?')
MARKS_OF_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Dialect:
    """How the text of a table is read. None: as its name and its first line have it.

    delimiter: between two values, a character or "tab"; encoding: as Python names it, of text files too, by default
    UTF-8; quote: around a value, a character or NO_QUOTE; header: whether the first line has the names of the columns,
    which are numbers from 1 where it has not.
    InputError for one that cannot be.
    """

    delimiter: str | None = None
    encoding: str | None = None
    quote: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            mark = {"tab": "\t", "\\t": "\t"}.get(self.delimiter, self.delimiter)
            object.__setattr__(self, "delimiter", mark)
            if len(mark) != 1 or mark in "\r\n\0" or mark == (self.quote or '"'):
                raise InputError(f"--delimiter {mark!r}: give one character, such as ; or tab, that is not the quote")
        if self.quote not in (None, NO_QUOTE) and (len(self.quote or "") != 1 or self.quote in ("\r", "\n", "\0", " ")):
            raise InputError(f"--quote {self.quote!r}: give one character, or {NO_QUOTE}")
        if self.encoding is not None:
            try:
                "text".encode(self.encoding).decode(self.encoding)
            except (LookupError, ValueError):
                raise InputError(
                    f"--encoding {self.encoding!r} is not known: give one such as cp1252, latin-1 or utf-16"
                ) from None

    @property
    def given(self) -> list[str]:
        """The options that say something."""
        values = {"--delimiter": self.delimiter, "--encoding": self.encoding, "--quote": self.quote}
        header = [] if self.header is None else ["--header" if self.header else "--no-header"]
        return [option for option, value in values.items() if value is not None] + header


AS_NAMED = Dialect()


def encoding_of(dialect: Dialect) -> str:
    """Return the encoding of a text file; a byte order mark at its beginning is no text."""
    named = codecs.lookup(dialect.encoding or "utf-8").name
    return "utf-8-sig" if named == "utf-8" else named


def undecodable(path: Path, dialect: Dialect, error: UnicodeError) -> str:
    """Say which line of a file has another encoding, and which option names that one."""
    reason = getattr(error, "reason", str(error))
    if dialect.encoding is not None:
        return f"{path} is not {dialect.encoding} ({reason}): give another --encoding"
    with open(path, "rb") as file:
        if file.read(2) in MARKS_OF_UTF_16:
            return f"{path} is not UTF-8 but UTF-16: give --encoding utf-16"
        file.seek(0)
        line = next((number for number, data in enumerate(file, 1) if not _is_utf_8(data)), 1)
    return f"{path}, line {line} is not UTF-8 ({reason}): give its encoding by --encoding, often cp1252 or latin-1"


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def refuse_other_format(path: Path) -> None:
    """Raise InputError for a file that is an archive, a workbook or Parquet under the name of a text file."""
    with open(path, "rb") as file:
        start = file.read(4)
    kind = next((name for beginning, name in BEGINNINGS.items() if start.startswith(beginning)), None)
    if kind is None:
        return
    hint = "unpack it and give the table in it"
    if kind == "a zip archive":
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except zipfile.BadZipFile:
            names = []
        if "[Content_Types].xml" in names:
            kind = "an Excel workbook"
        elif names:
            hint = f"unpack it and give the table in it, such as {names[0]}"
    hint = {"an Excel workbook": "save its sheet as CSV", "a Parquet file": "name it .parquet"}.get(kind, hint)
    raise InputError(f"{path} is {kind}, in spite of its name: {hint}")


def read_delimited(path: Path, file: IO[str], dialect: Dialect) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(1 << 30)
    tabs = path.suffix.lower() == ".tsv" and dialect.delimiter in (None, "\t")
    if not (first := file.readline()):
        raise InputError(f"{path} is empty: give a table with a header and rows")
    start, named = 1, ""
    if separator := SEPARATOR.fullmatch(first.rstrip("\r\n")):
        start, named, first = 2, separator[1], file.readline()
    file.seek(0)
    if separator:
        file.readline()
    mark = dialect.delimiter or named or ("\t" if tabs else delimiter_of(first))
    literal = tabs and mark == "\t" and dialect.quote is None
    lines = _tab_separated(file, start) if literal else _quoted(path, file, mark, dialect.quote, start)
    number, header = next(lines, (start, []))
    if dialect.header is False:
        lines = chain([(number, header)], lines)
        header = [str(column) for column in range(1, len(header) + 1)]
    twice = [name for name in header if header.count(name) > 1]
    if len(header) < 2:
        raise InputError(f"{path}, line {start} {_one_column(first, mark)}")
    if twice:
        raise InputError(
            f"{path}, line {start} has the column '{twice[0]}' twice: give each its own name; if it is a row and no "
            "header, give --no-header"
        )
    for line, values in lines:
        if values and len(values) != len(header):
            hint = "save a text with a tab or a line break as CSV" if literal else "quote its text"
            other = f"line {start}" if dialect.header is False else "the header"
            raise InputError(
                f"{path}, line {line} has {len(values)} columns and {other} "
                f"{len(header)}: {hint}, or give the delimiter, read as {_shown(mark)}, by --delimiter"
            )
        if values:
            yield f"{path}, line {line}", dict(zip(header, values, strict=True))


def delimiter_of(line: str) -> str:
    """Return the delimiter that a line has most often outside of quotation marks; a comma where it has none."""
    plain = re.sub('"[^"]*"', "", line)
    return max(DELIMITERS, key=plain.count)


def _shown(mark: str) -> str:
    return "a tab" if mark == "\t" else f"'{mark}'"


def _one_column(line: str, mark: str) -> str:
    """Say which delimiter a first line lacks, and which one it may have."""
    other = delimiter_of(line)
    if other in line and other != mark:
        name = "tab" if other == "\t" else f"'{other}'"
        return f"has no {_shown(mark).removeprefix('a ')} as delimiter, but {_shown(other)}: give --delimiter {name}"
    return (
        "has fewer than two columns: give it a header with a name for each column, or the delimiter between them by "
        "--delimiter"
    )


def _quoted(path: Path, file: IO[str], mark: str, quote: str | None, start: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the values of each row from line ``start``; a quoted value may have several lines."""
    if quote == NO_QUOTE:
        reader = csv.reader(file, delimiter=mark, quoting=csv.QUOTE_NONE, strict=True)
    else:
        reader = csv.reader(file, delimiter=mark, quotechar=quote or '"', strict=True)
    line = start
    try:
        for values in reader:
            yield line, values
            line = start + reader.line_num
    except csv.Error as error:
        raise InputError(
            f"{path}, line {line}: {error}: quote the text, and double each quotation mark in it; if none is a "
            f"quotation mark, give --quote {NO_QUOTE}"
        ) from None


def _tab_separated(file: IO[str], start: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines from ``start`` and their values. One not quoted as a CSV is has literal quotation marks."""
    for number, text in enumerate(file, start):
        try:
            yield number, next(csv.reader([text], delimiter="\t", strict=True), [])
        except csv.Error:
            yield number, text.rstrip("\r\n").split("\t")
