"""Restore the databases of a team's service.

reread service restore backups/monday

The databases must be missing or empty. Each is restored as a whole or not at all. Then the rows of each table are
counted and compared with the backup. Start the service afterwards.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reread.commands.databases import create_missing, refuse_filled, restore
from reread.commands.service_backup import CONTENT
from reread.commands.service_settings import SETTINGS, Settings, read_settings
from reread.storage.digests import Damaged, refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.files import read_object


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `reread service backup` wrote.")],
    settings: Settings = SETTINGS,
) -> None:
    read = read_settings(settings)
    try:
        refuse_damaged_folder(folder)
    except Damaged as damaged:
        raise InputError(f"{damaged}: nothing is restored; use another backup") from None
    counts = read_object(folder / CONTENT, "rows")["rows"]
    create_missing(read)
    refuse_filled(read)
    console = Console(highlight=False, soft_wrap=True)
    for name, database in read.databases.items():
        restore(read, database, folder / f"{name}.dump", counts[name])
        rows = sum(counts[name].values())
        console.print(f"{database}: {rows:,} rows in {len(counts[name])} tables, as in the backup", markup=False)
