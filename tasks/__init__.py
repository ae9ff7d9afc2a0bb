"""Prefect tasks: one step each, and the command of the same name that DVC calls.

Importing this package settles the environment of the process, before Prefect, MLflow or torch are imported:
homes inside the project, nothing sent to anybody, and one thread a process before anything fans out. What the
user has set stays as it is.
"""

import os
from pathlib import Path

from reread.runtime.garbage import collect_less

DEFAULTS = {
    "PREFECT_HOME": str(Path.cwd() / ".prefect"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A busy laptop needs more than the 20 seconds that Prefect gives its temporary server.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Hides the tracebacks that the temporary server prints when it is stopped.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    # Exactly 'true': the spelling that Prefect and MLflow both honour.
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MPLCONFIGDIR": str(Path.cwd() / ".cache" / "matplotlib"),
    # Two runs of two threads each on two cores run at a twentieth of their speed; one thread each loses nothing.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# A person at a terminal reads our own lines; Prefect's log goes to its server and its pages. A worker's flow run, which
# Prefect starts with this variable, keeps the log on the console as well.
AT_TERMINAL = "PREFECT__FLOW_RUN_ID" not in os.environ
if AT_TERMINAL:
    DEFAULTS["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"

SET_HERE = {name for name in DEFAULTS if name not in os.environ}
for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)

collect_less()


def users_environment() -> dict[str, str]:
    """Return the variables as the user has them, for commands that are not of this project."""
    return {name: value for name, value in os.environ.items() if name not in SET_HERE}
