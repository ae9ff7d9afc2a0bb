"""List the data sets of the manifest.

reread data list
reread data list --json     with the size of each file, the source and the licence

The files of a data set are present where each has the size that data.manifest.json records; `reread data NAME` also
compares their sha256.
"""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from reread import goals
from reread.commands.options import AsJson, print_json, print_table
from reread.storage.prepared import SPLITS

DIGITS = 12


def command(as_json: AsJson = False) -> None:
    listed = data_sets()
    if as_json:
        print_json(listed)
        return
    if not listed:
        print("no data sets: `reread data` makes those of an experiment, `reread data add` adds your own")
        return
    table = Table(box=None, padding=(0, 3, 0, 0))
    for title in ("name", "kind", "task"):
        table.add_column(title, no_wrap=True)
    for title in (*SPLITS, "classes"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("version", "made of", "files"):
        table.add_column(title, no_wrap=True)
    for data_set in listed:
        rows = (f"{count:,}" for count in data_set["splits"].values())
        classes = "-" if goals.beyond_labels(data_set["task"]) else f"{len(data_set['classes']):,}"
        table.add_row(
            Text(data_set["name"]), data_set["kind"], data_set["task"], *rows, classes,
            data_set["version"][:DIGITS], data_set["made_of"], data_set["files"],
        )  # fmt: skip
    print_table(table)


def data_sets() -> list[dict[str, Any]]:
    """Return the data sets of the manifest by name, as ``--json`` prints them.

    made_of: "a source" of the project, or "own data"; files: "present", "missing" or "changed". InputError in a folder
    without a manifest that is no project's.
    """
    from reread.planning.experiment import refuse_elsewhere
    from reread.planning.manifest import read_manifest
    from reread.preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH
    from reread.preprocessing.sources import SOURCES

    if not MANIFEST_PATH.exists():
        refuse_elsewhere()
    return [
        {
            "name": name,
            "kind": entry.kind,
            "task": entry.task,
            "splits": {split: entry.splits[split] for split in SPLITS},
            "classes": list(entry.classes),
            "version": entry.version,
            "made_of": "a source" if name in SOURCES else "own data",
            "files": state(DATA_DIRECTORY / name, {file: about.bytes for file, about in entry.files.items()}),
            "source": entry.source,
            "licence": entry.licence,
            "bytes": sum(about.bytes for about in entry.files.values()),
        }
        for name, entry in sorted(read_manifest().datasets.items())
    ]


def state(directory: Path, sizes: dict[str, int]) -> str:
    """Return whether the files are "present" in their sizes, one is "missing", or one has another size: "changed"."""
    files = {directory / name: size for name, size in sizes.items()}
    if not all(file.is_file() for file in files):
        return "missing"
    return "present" if all(file.stat().st_size == size for file, size in files.items()) else "changed"
