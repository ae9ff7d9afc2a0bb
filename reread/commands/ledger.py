"""List and verify the reads of test splits.

reread ledger                       all entries of results/test-reads.jsonl by date
reread ledger --data imdb           those of a data set
reread ledger --add FILE            append the entries of another machine or branch, such as one that git cannot merge

Each entry has the sha256 of the line before it: one that was changed, removed or inserted is named by its line.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from reread.commands.options import DATA, AsJson, print_json
from reread.storage.errors import InputError
from reread.storage.ledger import LEDGER, add_reads, read_ledger
from reread.verdicts.reads import reads_of

DIGITS = 8


def command(
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only reads of this data set.", autocompletion=DATA)
    ] = None,
    add: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Append its entries; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    entries = read_ledger()
    known = len(entries) if add else 0
    for file in add or []:
        if not file.is_file():
            raise InputError(f"--add {file}: there is no such file")
        before = len(entries)
        entries = add_reads(read_ledger(file))
        if not as_json:
            print(f"{file}: {len(entries) - before} new entries in {LEDGER}")
    names = {name for entry in entries for name in entry.data}
    shown = reads_of(entries[known:], names if data is None else [data])
    if as_json:
        print_json([vars(entry) for entry in shown])
        return
    table = Table(box=None)
    for title in ("date (UTC)", "reader"):
        table.add_column(title, no_wrap=True)
    table.add_column("data")
    table.add_column("changed")
    for entry in shown:
        versions = ", ".join(f"{name} {version[:DIGITS]}".strip() for name, version in entry.data.items())
        table.add_row(entry.date, entry.reader, versions, entry.changed + entry.note)
    Console().print(table)
