"""A PostgreSQL server of the tests' own, on a free port, from the programs of Debian's package."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers import free_port


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, None where it is not installed or cannot be started by this user."""
    initdb = shutil.which("initdb")
    folders = [Path(initdb).resolve().parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    usable = folders and shutil.which("psql") and shutil.which("pg_dump") and (os.geteuid() or _other_user())
    return folders[-1] if usable else None


def _other_user() -> str | None:
    """The user that starts it for root, for whom it does not start."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return None


@dataclass(frozen=True)
class Postgres:
    """The server: any user of this machine is its superuser by the socket in ``folder``; TCP wants a password."""

    folder: Path
    port: int

    def psql(self, text: str) -> str:
        """Run SQL, or psql's own commands, as the superuser."""
        command = ["psql", "-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Run a server with no databases of ours; its folder is short, as the path of a socket must be."""
    folder, port, where = Path(tempfile.mkdtemp(prefix="postgres-")), free_port(), programs()
    other = [] if os.geteuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    if other:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    initdb = [*other, where / "initdb", "-D", data, "-U", "postgres", "--auth-local=trust"]
    initdb += ["--auth-host=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"]
    subprocess.run(initdb, check=True, capture_output=True, cwd="/")
    settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "max_connections": "100", "shared_buffers": "32MB"}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    server = subprocess.Popen(
        [*other, where / "postgres", "-D", data, "-k", folder, "-p", str(port), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    try:
        postgres = Postgres(folder, port)
        for _ in range(100):
            with contextlib.suppress(subprocess.CalledProcessError):
                postgres.psql("SELECT 1")
                break
            time.sleep(0.1)
        yield postgres
    finally:
        server.send_signal(signal.SIGINT)  # at once, without waiting for its clients
        server.wait()
        shutil.rmtree(folder)
