"""Weights & Biases: the CSV that the table of runs exports, one row per run.

A run is a unit: its seed is the column ``seed`` where there is one, else its id or name. The arm is a column of the
configuration, named by ``--column arm=NAME``.
"""

from reread.importers import Source, Table, table
from reread.storage.errors import InputError

ID, NAME, STATE = "ID", "Name", "State"
# Of which the table of runs has some; the name of a run is always there.
OF_RUNS = {STATE, "Runtime", "Created", "Sweep", "User", "Tags", "Notes"}
# A chart's CSV has a step, and for each run its series and the least and the largest value around each step.
OF_CHART = "__MIN"


def recognises(source: Source) -> bool:
    names = table.header(source)
    return (NAME in names and len(OF_RUNS & set(names)) >= 3) or any(name.endswith(OF_CHART) for name in names)


def read(source: Source) -> Table:
    """Return one row per run."""
    columns = table.columns(source)
    if any(name.endswith(OF_CHART) for name in columns):
        raise InputError(f"{source.text} is the export of a chart, which has steps: export the table of runs as CSV")
    seed = next(name for name in ("seed", "Seed", ID, NAME, next(iter(columns))) if name in columns)
    return Table(columns, {"seed": seed}, finished=(STATE, "finished"))
