"""Prepared arrays of one data set in prepared/KEY/, written once and named by all that they depend on.

The key contains the settings that differ from their defaults, the data's hashes in the manifest and the numeric source
of preprocessing. It also has the versions of numpy and of the libraries that find words and vectors. Equal arrays are
never made twice, and no array is ever changed. reread/storage/prepared.py describes the folder and opens it.
"""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reread import goals, kinds
from reread.preprocessing import folds, tokenised, tokenizer
from reread.preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH, Manifest, open_data_set
from reread.preprocessing.raw import refuse_shared_groups
from reread.preprocessing.settings import FOLD, settings_for
from reread.storage.digests import digested_directory as published_directory
from reread.storage.files import content_key, read_json, sha256_file, write_json
from reread.storage.locks import file_lock
from reread.storage.numeric import NOT_NUMERIC, numeric_digest
from reread.storage.prepared import DESCRIPTION
from reread.storage.settings import to_json, without_defaults

SCHEMA = 2
PREPARED_ROOT = Path("prepared")
# More that affects no array: the processes that share the work, the sources of raw data, whose hashes count, and the
# tables and picture of lengths. The settings' values are in the key, and their defaults never change (tests/golden).
LEFT_OUT = (
    *NOT_NUMERIC,
    "reread.preprocessing.lengths:write_lengths",
    "reread.preprocessing.settings",
    "reread.preprocessing.sources",
    "reread.preprocessing.workers",
)


def prepared_key(name: str, settings: Mapping[str, Any] | None, manifest_path: Path = MANIFEST_PATH) -> str:
    """Return the name of the folder in prepared/ for data set ``name``, read from the manifest alone.

    ``settings`` is what params.yaml has under ``preprocessing: NAME``, and of cross-validation the fold. It makes no
    difference whether a default is written out. InputError for an unknown data set, an unknown setting or a value out
    of its range.
    """
    if folds.asked(settings):
        whole = {key: value for key, value in settings.items() if key != FOLD}
        return folds.key(prepared_key(name, whole, manifest_path), folds.Fold.of(settings))
    entry = Manifest.load(manifest_path).entry(name)
    if goals.beyond_labels(entry.task):  # the code that makes its targets counts as its content does
        source = numeric_digest([goals.module_of(entry.task)], without=LEFT_OUT)
        entry = replace(entry, version=content_key([entry.version, source]))
    kind, typed = kinds.kind(entry.kind), settings_for(entry.kind, name, settings)
    if tokenizer.asked(typed):
        return tokenised.key(prepared_key(name, {**(settings or {}), "tokenizer": None}, manifest_path), typed)
    libraries = ("numpy", *(kinds.load(kind.libraries)(typed) if kind.libraries else ()))
    # What these modules import counts as well.
    modules = ["reread.preprocessing.prepare", kinds.module_of(kind.prepare), kinds.module_of(kind.open_raw)]
    return content_key(
        {
            "schema": SCHEMA,
            "name": name,
            "settings": without_defaults(typed),
            "data": {
                "version": entry.version,
                "task": entry.task,
                "classes": list(entry.classes),
                "files": {file: about.sha256 for file, about in entry.files.items()},
                "groups": entry.groups,
            },
            "source": numeric_digest(modules, without=LEFT_OUT),
            "libraries": {library: importlib.metadata.version(library) for library in libraries},
        }
    )


def prepare(
    name: str,
    settings: Mapping[str, Any] | None,
    data_directory: Path = DATA_DIRECTORY,
    manifest_path: Path = MANIFEST_PATH,
    prepared_root: Path = PREPARED_ROOT,
    fresh: bool = False,
) -> Path:
    """Prepare data set ``name`` and return its folder; an existing folder is reused unless ``fresh``.

    The folder gets its name when it is complete. Of two processes at once the second waits and reuses the first's.
    InputError as ``prepared_key``, for data that is missing or was altered, for a document without a word, and for a
    group that has rows in two splits.
    """
    key = prepared_key(name, settings, manifest_path)
    directory = Path(prepared_root) / key
    if directory.exists() and not fresh:
        return directory
    with file_lock(directory.parent / ".locks" / f"{key}.lock"):
        # Another process may have published the folder in the meantime. Remains of a killed process are removed.
        if directory.exists() and not fresh:
            return directory
        for abandoned in directory.parent.glob(f".{key}.*"):
            shutil.rmtree(abandoned)
        data = open_data_set(name, data_directory, manifest_path)
        entry = data.entry
        typed = settings_for(entry.kind, name, settings)
        with published_directory(directory, replace=fresh) as working:
            if folds.asked(settings):
                data = folds.with_split(data, folds.Fold.of(settings), working / FOLD)
            about = kinds.load(kinds.kind(entry.kind).prepare)(data, typed, working)
            write_groups(data, working)
            if goals.beyond_labels(entry.task):
                targets = np.load(working / "labels.npy", allow_pickle=False)[slice(*about["splits"]["train"])]
                about |= goals.goal(entry.task).description(targets)
            if folds.asked(settings):
                about |= {FOLD: dict(settings[FOLD])}
                shutil.rmtree(working / FOLD)
            description = {
                "schema": SCHEMA,
                "name": name,
                "kind": entry.kind,
                "task": entry.task,
                "classes": list(entry.classes),
                "settings": to_json(typed),
                "data_version": entry.version,
                "arrays": {path.stem: _array(path) for path in sorted(working.glob("*.npy"))},
                **about,
            }
            write_json(working / DESCRIPTION, description)
    return directory


def write_groups(data: kinds.RawDataSet, working: Path) -> None:
    """Write groups.npy, int64 [N], the number of each prepared row's group, where the groups are known.

    InputError where a group has rows in two splits, whether they are prepared or not.
    """
    grouping = data.groups()
    if grouping is not None:
        groups, names = grouping
        refuse_shared_groups(groups, names, data.split, f"data set '{data.name}'")
        rows = np.load(working / "raw_indices.npy", allow_pickle=False)
        np.save(working / "groups.npy", groups[rows], allow_pickle=False)


def _array(path: Path) -> dict[str, Any]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return {"file": path.name, "shape": list(array.shape), "dtype": str(array.dtype), "sha256": sha256_file(path)}


def summary(prepared_directory: Path) -> dict[str, Any]:
    """Return what results/ keeps of a prepared data set: its key and prepared.json, the same on any machine."""
    directory = Path(prepared_directory)
    return {"prepared_key": directory.name, **read_json(directory / DESCRIPTION)}
