"""Data sets of your own, added and removed from Python.

    import reread

    reread.data.add("reviews.csv", text="body", label="stars")
    seen = reread.data.add("reviews.csv", text="body", label="stars", dry_run=True)     # nothing is written
    reread.data.list()                              # what the manifest has of each data set
    reread.data.remove("reviews")

It works in the project's folder, which is the current one, as `reread data add`, `list` and `remove` do.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reread import goals
from reread.commands import data_add, data_list
from reread.preprocessing.delimited import Dialect
from reread.preprocessing.image_files import MODES
from reread.preprocessing.manifest import DataSetEntry
from reread.preprocessing.own_data import Preview
from reread.preprocessing.raw import remove_data_set
from reread.storage.errors import InputError, refuse_unknown

__all__ = ["add", "list", "remove"]


def add(
    path: str | Path,
    *,
    name: str | None = None,
    text: str | Sequence[str] = (),
    label: str | Sequence[str] = (),
    split: str | Path | None = None,
    group: str | None = None,
    id: str | None = None,
    task: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    quote: str | None = None,
    header: bool | None = None,
    size: int | None = None,
    colours: str | None = None,
    source: str = "",
    licence: str = "unknown",
    dry_run: bool = False,
    say: Callable[[str], None] = print,
) -> DataSetEntry | Preview:
    """Add a table, or a folder with a folder per class, to data/ and return its entry in the manifest.

    The arguments are the options of `reread data add`: text and label are columns, or several; split, group and id may
    be "none". A data set of that name is replaced. ``say`` gets a line for each column, and for what is left out. With
    ``dry_run`` nothing is written, and a ``Preview`` is returned: the first rows, the rows of each class by split, and
    how many would be left out. InputError for what the command refuses; then nothing is written.
    """
    refuse_unknown([] if task is None else [task], goals.available(), "task")
    refuse_unknown([] if colours is None else [colours], MODES, "colours")
    low, high = data_add.SIZES
    if size is not None and not low <= size <= high:
        raise InputError(f"size is {size}: give {low} to {high} pixels")
    columns = {"content": _several(text), "labels": _several(label), "group": group, "identity": id, "task": task}
    _, _, preview = data_add.add(
        Path(path), name, columns, None if split is None else str(split), Dialect(delimiter, encoding, quote, header),
        size, colours, source, licence, dry_run=dry_run, say=say,
    )  # fmt: skip
    return preview


def list() -> Sequence[Mapping[str, Any]]:
    """Return the data sets of the manifest by name, each as `reread data list --json` prints it."""
    return data_list.data_sets()


def remove(name: str) -> None:
    """Remove a data set of your own from data/ and from the manifest. Runs, reports and experiments stay.

    InputError for an unknown name, a data set of the project, and one that another process adds or removes.
    """
    with data_add.alone(name):
        remove_data_set(name)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else [*names]
