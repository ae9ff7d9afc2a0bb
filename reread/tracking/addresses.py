"""The addresses of MLflow's artifacts, which are absolute, after the project's folder was moved or copied.

The project's own database keeps its artifacts in mlartifacts/ beside it. ``correct_addresses`` writes where they are
now when the database is opened.
"""

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import unquote, urlsplit

ARTIFACTS = Path("mlartifacts")
# The columns of MLflow's database that have addresses: of an experiment, and of what is below it.
COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)


def place_now(address: str, root: Path) -> Path:
    """Return where the folder of a file: address is now: in the project ``root``, unless it is only in its old place.

    Another project that logs to this database has its artifacts in a place of its own.
    """
    folder = Path(unquote(urlsplit(address).path))
    here = root.resolve() / ARTIFACTS / str(folder).rpartition(f"/{ARTIFACTS}/")[2]
    return here if here.is_dir() or not folder.is_dir() else folder


def correct_addresses(database: Path) -> None:
    """Write the place of each experiment's artifacts to ``database`` where the project's folder is another one now."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        addresses = [address for (address,) in connection.execute("SELECT artifact_location FROM experiments")]
        now = {old: place_now(old, database.parent).as_uri() for old in addresses if old.startswith("file:")}
        with connection:
            for old, new in ((old, new) for old, new in now.items() if new != old):
                for table, column in COLUMNS:
                    connection.execute(
                        f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "
                        f"WHERE {column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/'",
                        {"old": old, "new": new},
                    )
