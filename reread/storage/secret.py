"""Secrets: drawn at random, and kept in files that only their owner may read.

The servers of a project's folder ask for the folder's own secret. It is drawn once, into secret.env, which a shell can
load.
"""

import re
import secrets
from pathlib import Path

from reread.storage.errors import InputError
from reread.storage.files import write_text
from reread.storage.locks import file_lock

SECRET = Path("secret.env")
LOCK = Path(".locks") / "secret.lock"
VARIABLE = "PREFECT_API_AUTH_STRING"
USER = "reread"
PRIVATE = 0o600
OTHERS = 0o077


def draw() -> str:
    """Return a new secret of 32 characters."""
    return secrets.token_urlsafe(24)


def project_secret() -> str:
    """Return the secret of this folder; the first caller draws it. InputError where others may read it."""
    with file_lock(LOCK):
        if not SECRET.exists():
            write_text(SECRET, f"{VARIABLE}={USER}:{draw()}\n", PRIVATE)
    refuse_readable(SECRET)
    match = re.search(rf"^{VARIABLE}={USER}:([\w-]{{32,}})$", SECRET.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise InputError(f"{SECRET} has no {VARIABLE}: remove it, and the next server draws another")
    return match.group(1)


def project_auth() -> str:
    """Return USER:PASSWORD of the servers of this folder."""
    return f"{USER}:{project_secret()}"


def refuse_readable(file: Path) -> None:
    """Raise InputError where other users may read ``file``."""
    if file.stat().st_mode & OTHERS:
        raise InputError(f"{file} has passwords and other users may read it: chmod 600 {file}")
