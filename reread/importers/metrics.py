"""metrics.json: an object with a number for each metric, as scripts write it at their end.

The arm is named before the file, as ARM=FILE, and the seed of a file is its number.
"""

from typing import Any

from reread.importers import Source, Table
from reread.storage.errors import InputError
from reread.storage.files import read_object
from reread.verdicts.scores import LARGEST

FILE = "metrics.json"


def recognises(source: Source) -> bool:
    return not source.is_address and source.path.name == FILE


def read(source: Source) -> Table:
    """Return one row: each metric's value. A value that is no finite number is text, so that it is refused by name."""
    values = read_object(source.path)
    scores = {
        name: value if abs(value) <= LARGEST else str(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not scores:
        raise InputError(f'{source.text} has no number: write an object such as {{"accuracy": 0.93}}')
    columns: dict[str, list[Any]] = {name: [score] for name, score in scores.items()}
    return Table(columns)
