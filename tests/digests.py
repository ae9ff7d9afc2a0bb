"""Digests of a folder that a test has written or changed, as those who publish such a folder write them."""

from pathlib import Path

from reread.storage.digests import DIGESTS
from reread.storage.files import sha256_file, write_json


def write_digests(folder: Path) -> Path:
    """Write digests.json with the sha256 of each file that the folder has now, and return the folder."""
    files = {path.name: sha256_file(path) for path in folder.iterdir() if path.is_file() and path.name != DIGESTS}
    write_json(folder / DIGESTS, {"files": files})
    return folder
