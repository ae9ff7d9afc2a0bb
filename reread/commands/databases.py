"""The two databases of a team's service in PostgreSQL: create, count, dump and restore.

The dumps are pg_dump's custom format. A dump and the counts of its rows are of one snapshot, so that a restore can be
compared with what was saved, row for row, while the service goes on.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from reread.commands.service_settings import ServiceSettings
from reread.storage.errors import InputError, TransientError

MAINTENANCE = "postgres"
SECONDS_TO_CONNECT = 5
TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY table_name
"""


@contextlib.contextmanager
def connection(settings: ServiceSettings, database: str) -> Iterator[Any]:
    """Connect to one database; InputError, of one line, where PostgreSQL refuses or does not answer."""
    host, _, port = settings.database.rpartition(":")
    try:
        connected = psycopg2.connect(
            host=host, port=port, dbname=database, user=settings.database_user,
            password=settings.database_password.get_secret_value(), connect_timeout=SECONDS_TO_CONNECT,
        )  # fmt: skip
    except psycopg2.OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"PostgreSQL at {settings.database} cannot be used ({reason}): start it, and make its role by "
            "`reread service sql`"
        ) from None
    try:
        yield connected
    finally:
        connected.close()


def create_missing(settings: ServiceSettings) -> None:
    """Create each database that is missing, with no tables."""
    with connection(settings, MAINTENANCE) as maintenance:
        maintenance.autocommit = True
        with maintenance.cursor() as cursor:
            for name in settings.databases.values():
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if not cursor.fetchone():
                    cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def count_rows(connected: Any) -> dict[str, int]:
    """Return the number of rows of each table; the tables that are empty are left out."""
    counts = {}
    with connected.cursor() as cursor:
        cursor.execute(TABLES)
        for (table,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
            counts[table] = cursor.fetchone()[0]
    return {table: rows for table, rows in counts.items() if rows}


def dump(settings: ServiceSettings, database: str, file: Path) -> dict[str, int]:
    """Dump a database to ``file`` and return the number of rows of each table in the dump.

    Only the owner may read the file: it has the hashes of MLflow's passwords.
    """
    file.touch(mode=0o600)
    with connection(settings, database) as connected:
        connected.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with connected.cursor() as cursor:
            cursor.execute("SELECT pg_export_snapshot()")
            snapshot = cursor.fetchone()[0]
        counts = count_rows(connected)
        # The snapshot is there as long as this transaction is open.
        _run(settings, "pg_dump", "--format", "custom", "--snapshot", snapshot, "--file", str(file), database)
    return counts


def restore(settings: ServiceSettings, database: str, file: Path, counts: dict[str, int]) -> None:
    """Restore a dump into an empty database, as a whole or not at all, and compare its rows with ``counts``."""
    _run(
        settings, "pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-comments",
        "--dbname", database, str(file),
    )  # fmt: skip
    with connection(settings, database) as connected:
        restored = count_rows(connected)
    differ = [name for name in sorted({*counts, *restored}) if counts.get(name) != restored.get(name)]
    if differ:
        name = differ[0]
        raise InputError(
            f"{database} is not what {file} was made of: table {name} has {restored.get(name, 0)} rows, and "
            f"{counts.get(name, 0)} were saved"
        )


def refuse_filled(settings: ServiceSettings) -> None:
    """Raise InputError where one of the databases has rows already."""
    for database in settings.databases.values():
        with connection(settings, database) as connected:
            if count_rows(connected):
                raise InputError(
                    f"database {database} has rows already: nothing is overwritten; stop the service and drop it "
                    f"(dropdb {database}), or restore under another REREAD_SERVICE_DATABASE_PREFIX"
                )


def _run(settings: ServiceSettings, program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs. The password is in its environment, which other users cannot read."""
    if not shutil.which(program):
        raise InputError(f"{program} is not installed: apt-get install postgresql-client")
    host, _, port = settings.database.rpartition(":")
    environment = {**os.environ, "PGPASSWORD": settings.database_password.get_secret_value(), "LC_ALL": "C"}
    where = ["--host", host, "--port", port, "--username", settings.database_user, "--no-password"]
    done = subprocess.run(
        [program, *where, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise TransientError(f"{program} failed: {reason}")
