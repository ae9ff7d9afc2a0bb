"""data.manifest.json as a person may have edited it: each value is checked before anything is made of the data."""

from dataclasses import asdict
from pathlib import Path

from reread.planning.validation import validate
from reread.preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH, DataSetEntry, Manifest
from reread.storage.errors import InputError
from reread.storage.files import below
from reread.storage.prepared import SPLITS


def read_manifest(path: Path = MANIFEST_PATH) -> Manifest:
    """Read the manifest as ``Manifest.load`` does; InputError names a wrong value, split or file."""
    manifest = Manifest.load(path)
    for name, entry in manifest.datasets.items():
        try:
            validate(DataSetEntry, asdict(entry), f"{path}: datasets.{name}")
            for file in entry.files:
                below(DATA_DIRECTORY, Path(name) / file, f"{path}: datasets.{name}.files names it", links=True)
            if set(entry.splits) != set(SPLITS):
                raise InputError(
                    f"{path}: datasets.{name}.splits has {', '.join(entry.splits)}, not {', '.join(SPLITS)}"
                )
        except InputError as error:
            raise InputError(f"{error}: restore the file from git") from None
    return manifest
