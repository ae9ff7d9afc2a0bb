"""Prepared arrays of one data set in prepared/KEY/, named by all that they depend on and written once.

The key is made of the settings, the data's hashes in the manifest, the source files of preprocessing that make the
arrays and the versions of the libraries that find words and vectors; so equal arrays are never made twice, and no array
is ever changed. storage/prepared.py says what lies in the folder, and opens it.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from preprocessing import documents, images
from preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH, Manifest, open_data_set
from preprocessing.settings import settings_for
from preprocessing.workers import open_workers
from storage.files import content_key, published_directory, read_json, sha256_file, write_json
from storage.locks import file_lock
from storage.prepared import DESCRIPTION

SCHEMA = 2
PREPARED_ROOT = Path("prepared")
KINDS = {"text": documents, "image": images}


def prepared_key(name: str, settings: Mapping[str, Any] | None, manifest_path: Path = MANIFEST_PATH) -> str:
    """Return the name of the folder in prepared/ for data set ``name``, read from the manifest alone.

    ``settings`` is what params.yaml has under ``preprocessing: NAME``. It makes no difference whether a default is
    written out. InputError for an unknown data set, an unknown setting or a value out of its range.
    """
    entry = Manifest.load(manifest_path).entry(name)
    typed = settings_for(entry.kind, name, settings)
    sources, libraries = KINDS[entry.kind].made_by(typed)
    folder = Path(__file__).parent
    return content_key(
        {
            "schema": SCHEMA,
            "name": name,
            "settings": asdict(typed),
            "data": {
                "version": entry.version,
                "task": entry.task,
                "classes": list(entry.classes),
                "files": {file: about.sha256 for file, about in entry.files.items()},
            },
            # Not the whole closure: how the raw data came to be is told by its hashes.
            "source": {module: sha256_file(folder / f"{module}.py") for module in ("prepare", *sources)},
            "libraries": libraries,
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
    """Prepare data set ``name`` and return its folder; at once where it is there, unless ``fresh``.

    The folder takes its name when it is whole. Of two processes at once the second waits and takes the first's.
    InputError for what ``prepared_key`` refuses, for data that is missing or altered, and for a document without
    a word.
    """
    key = prepared_key(name, settings, manifest_path)
    directory = Path(prepared_root) / key
    if directory.exists() and not fresh:
        return directory
    with file_lock(directory.parent / ".locks" / f"{key}.lock"):
        # What another process published meanwhile is taken; what a killed one left behind goes.
        if directory.exists() and not fresh:
            return directory
        for abandoned in directory.parent.glob(f".{key}.*"):
            shutil.rmtree(abandoned)
        data = open_data_set(name, data_directory, manifest_path)
        typed = settings_for(data.entry.kind, name, settings)
        with published_directory(directory, replace=fresh) as working:
            if data.entry.kind == "text":
                with open_workers(documents.count_blocks(data), working) as run:
                    about = documents.write_documents(data, typed, working, run)
            else:
                about = images.write_images(data, typed, working)
            description = {
                "schema": SCHEMA,
                "name": name,
                "kind": data.entry.kind,
                "task": data.entry.task,
                "classes": list(data.entry.classes),
                "settings": asdict(typed),
                "data_version": data.entry.version,
                "arrays": {path.stem: _array(path) for path in sorted(working.glob("*.npy"))},
                **about,
            }
            write_json(working / DESCRIPTION, description)
    return directory


def _array(path: Path) -> dict[str, Any]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return {"file": path.name, "shape": list(array.shape), "dtype": str(array.dtype), "sha256": sha256_file(path)}


def summary(prepared_directory: Path) -> dict[str, Any]:
    """Return what results/ keeps of a prepared data set: its key and prepared.json, the same on any machine."""
    directory = Path(prepared_directory)
    return {"prepared_key": directory.name, **read_json(directory / DESCRIPTION)}
