"""The rows of a prepared data set as they were before preparation: whole texts, raw pixels. What baselines read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH, ImageDataSet, open_data_set
from storage.prepared import Prepared


def uncut_rows(
    prepared: Prepared,
    splits: Sequence[str],
    data_directory: Path = DATA_DIRECTORY,
    manifest_path: Path = MANIFEST_PATH,
) -> dict[str, list[str] | np.ndarray]:
    """For each of ``splits`` the rows of ``prepared``, in its order: texts, or images uint8 [n, H, W, C].

    InputError where the raw data is missing or is not what the manifest names.
    """
    data = open_data_set(prepared.description["name"], data_directory, manifest_path)
    wanted = {split: prepared.arrays["source_rows"][prepared.rows(split)] for split in splits}
    if isinstance(data, ImageDataSet):
        return {split: np.asarray(data.images[rows]) for split, rows in wanted.items()}
    needed = {row for rows in wanted.values() for row in rows.tolist()}
    texts = {row: document.text for row, document in enumerate(data.documents()) if row in needed}
    return {split: [texts[row] for row in rows.tolist()] for split, rows in wanted.items()}
