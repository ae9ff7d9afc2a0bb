"""Save the databases of a team's service, while it runs.

reread service backup backups/monday

The folder gets one dump per database, the number of rows of each table at that moment, and digests. It appears when
it is whole. Artifacts in a folder are files: copy them afterwards, so that they are no older than the dumps.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reread.commands.databases import dump
from reread.commands.service_settings import SETTINGS, Settings, read_settings
from reread.storage.digests import digested_directory
from reread.storage.errors import InputError
from reread.storage.files import write_json

CONTENT = "backup.json"


def command(
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="By default backups/DATE-TIME.")] = None,
    settings: Settings = SETTINGS,
) -> None:
    read = read_settings(settings)
    folder = folder or Path("backups") / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
    if folder.exists():
        raise InputError(f"{folder} exists: name another folder")
    counts = {}
    with digested_directory(folder) as working:
        for name, database in read.databases.items():
            counts[name] = dump(read, database, working / f"{name}.dump")
        write_json(working / CONTENT, {"rows": counts})
    rows = sum(sum(tables.values()) for tables in counts.values())
    Console(highlight=False, soft_wrap=True).print(
        f"{folder}: {counts['mlflow'].get('runs', 0):,} runs of MLflow, {counts['prefect'].get('flow_run', 0):,} flow "
        f"runs of Prefect, {rows:,} rows in all",
        markup=False,
    )
