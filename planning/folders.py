"""Where things lie: in the project's folder, unless the environment names another place."""

import os
from pathlib import Path


def runs_root() -> Path:
    """The folder of the runs: REREAD_RUNS, or runs/."""
    return Path(os.environ.get("REREAD_RUNS", "runs"))


def prepared_root() -> Path:
    """The folder of the prepared arrays: REREAD_PREPARED, or prepared/."""
    return Path(os.environ.get("REREAD_PREPARED", "prepared"))


def reports_root() -> Path:
    """The folder of the reports: REREAD_REPORTS, or reports/."""
    return Path(os.environ.get("REREAD_REPORTS", "reports"))
