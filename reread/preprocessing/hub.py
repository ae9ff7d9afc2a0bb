"""Tables of Hugging Face's library datasets: a folder of ``save_to_disk``, or hf://NAME of its hub.

The library is no dependency of reread: ``pip install datasets`` brings it. It keeps what it downloads in its own cache.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError

# The first part of Path("hf://NAME").
SCHEME = "hf:"
# What save_to_disk writes for several splits, and for rows without splits.
SAVED = ("dataset_dict.json", "state.json")


def is_of_library(path: Path) -> bool:
    """Return whether the library reads ``path``."""
    return path.parts[:1] == (SCHEME,) or any((path / name).is_file() for name in SAVED)


def read_library(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row is and the row, with its class by name and its split as the column ``split``.

    Raises:
        InputError: the library is missing or cannot read ``path``, or a column has images or sounds.
    """
    name = "/".join((f"{SCHEME}/", *path.parts[1:])) if path.parts[0] == SCHEME else str(path)
    loaded = _load(name)
    for split, rows in loaded.items() if isinstance(loaded, dict) else [("", loaded)]:
        kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
        if decoded := [column for column, kind in kinds.items() if kind in ("Image", "Audio", "Video")]:
            raise InputError(
                f"{name}: column '{decoded[0]}' has {kinds[decoded[0]].lower()} data: "
                "write its files to a folder per class, and add that folder"
            )
        classes = {column: rows.features[column].names for column, kind in kinds.items() if kind == "ClassLabel"}
        of_split = {"split": split} if split else {}
        for number, row in enumerate(rows, 1):
            # -1 stands for an unknown class.
            named = {column: names[row[column]] if row[column] >= 0 else None for column, names in classes.items()}
            yield ", ".join([name, *of_split.values(), f"row {number}"]), {**of_split, **row, **named}


def _load(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name} needs Hugging Face's datasets: `pip install datasets`") from None
    datasets.disable_progress_bars()
    try:
        if name.startswith(SCHEME):
            return datasets.load_dataset(name.removeprefix(f"{SCHEME}//"))
        return datasets.load_from_disk(name)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read: {error}") from None
