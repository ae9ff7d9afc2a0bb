"""How MLflow is reached: the project's own database, made where it is missing, or the server of MLFLOW_TRACKING_URI.

MLflow is imported on first use: its import takes a second, and not every stage tracks.
"""

import logging
import os
import sqlite3
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from reread.storage.errors import InputError
from reread.storage.locks import file_lock
from reread.tracking.addresses import ARTIFACTS, correct_addresses

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE = Path("mlflow.db")
LOCKS = Path(".locks")
# MLflow would try for minutes by default, and training waits meanwhile.
HTTP_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# What SQLite says where nothing more can be written.
FULL_DISK = ("database or disk is full", "disk I/O error")


class Unavailable(InputError):
    """MLflow does not answer, its disk is full, or its database cannot be opened."""


def tracking_uri(root: Path = Path()) -> str:
    """Return MLFLOW_TRACKING_URI if the user has set it, else the sqlite database in ``root``, absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root / DATABASE).resolve()}"


def connect(root: Path = Path()) -> "MlflowClient":
    """Connect to MLflow; the first process creates a missing database, and addresses of a moved one are corrected.

    Unavailable where the server does not answer, the disk is full, or the database is of another version of MLflow.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for name, value in HTTP_DEFAULTS.items():
        os.environ.setdefault(name, value)
    # MLflow reports success on stderr, where it looks like an error, and prints the address of each run that has ended.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    for name in ("mlflow.pyfunc", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It prints the traceback of each error that it raises.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    uri = tracking_uri(root)
    refuse_silent_server(uri)
    with file_lock(root / LOCKS / "mlflow.lock"):
        try:
            own = uri == f"sqlite:///{(root / DATABASE).resolve()}"
            if own:
                _create_database(root)
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
            if own:
                correct_addresses(root / DATABASE)
        except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            full = any(message in reason for message in FULL_DISK)
            mend = "Make room on the disk" if full else "Move that file away: finished runs are logged again"
            if uri.startswith(("http://", "https://")):
                mend = "Check it and, where it asks for a password, MLFLOW_TRACKING_TOKEN"
            raise Unavailable(f"MLflow cannot open {uri}: {reason}. {mend}") from None
    return client


def refuse_silent_server(uri: str) -> None:
    """Raise Unavailable where ``uri`` is a server's and it does not answer."""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=15).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(
            f"MLFLOW_TRACKING_URI={uri} does not answer ({reason}): start that server or unset the variable"
        ) from None


def _create_database(root: Path) -> None:
    """Create the database under another name and rename it: a killed migration leaves nothing behind."""
    if (root / DATABASE).exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    working = (root / f".{DATABASE}.{uuid.uuid4().hex}").resolve()
    try:
        store = SqlAlchemyStore(f"sqlite:///{working}", (root / ARTIFACTS).resolve().as_uri())
        # MLflow's own 'Default' would stand beside our experiment 'default', and never has a run.
        store.delete_experiment(SqlAlchemyStore.DEFAULT_EXPERIMENT_ID)
        store.engine.dispose()
        os.replace(working, root / DATABASE)
    finally:
        working.unlink(missing_ok=True)
