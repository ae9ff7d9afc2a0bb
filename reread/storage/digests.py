"""The digests of a folder's files, by which a damaged file is told from the one that was written.

digests.json   {"files": {NAME: sha256}}, written after the files that it names

Checkpoints, evaluations, prepared arrays and finished runs have one. A file is checked where it is opened.
"""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from reread.storage.errors import InputError
from reread.storage.files import below, json_text, published_directory, read_object, sha256_file

DIGESTS = "digests.json"
# A file that was changed this recently may change again within the resolution of its time.
SETTLED_SECONDS = 2


class Damaged(InputError):
    """A file is missing or is not the one that was written. The message is half a line, without what to do."""


@contextlib.contextmanager
def digested_directory(
    destination: Path, replace: bool = False, known: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Do as ``published_directory`` does, and write digests.json when the block has ended.

    ``known``: digests of files that are not computed.
    """
    with published_directory(destination, replace) as working:
        yield working
        digests = dict(known or {})
        for path in working.iterdir():
            if path.is_file() and path.name not in digests:
                digests[path.name] = sha256_file(path)
        (working / DIGESTS).write_text(json_text({"files": digests}), encoding="utf-8")


def read_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file by its name; Damaged where digests.json is missing or cannot be read."""
    path = folder / DIGESTS
    try:
        written = read_object(path, "files")
        intact = path.read_bytes() == json_text(written).encode() and isinstance(written["files"], dict)
    except ValueError:
        raise Damaged(f"{path} is missing or damaged") from None
    if not intact:
        raise Damaged(f"{path} is damaged")
    for name in written["files"]:
        below(folder, name, f"{path} is damaged", links=True)
    return written["files"]


def refuse_damaged_folder(folder: Path) -> None:
    """Raise Damaged for the first file of digests.json that is missing or has another sha256."""
    for name, digest in read_digests(folder).items():
        refuse_damaged(folder / name, digest)


def refuse_damaged(path: Path, digest: str) -> None:
    """Raise Damaged where a file is missing or has another sha256 than ``digest``."""
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    current = current_sha256(path)
    if current != digest:
        raise Damaged(f"{path} is damaged: its sha256 is {current[:12]}…, and {digest[:12]}… was written")


def verify_digest(path: Path, required: bool = False) -> None:
    """Raise Damaged where digests.json beside a file does not name its sha256.

    required: also where there is no digests.json, of a folder that is always written with one.
    """
    if required or (path.parent / DIGESTS).exists():
        digest = read_digests(path.parent).get(path.name)
        if digest is None:
            raise Damaged(f"{path.parent / DIGESTS} does not name {path.name}")
        refuse_damaged(path, digest)


def require_intact(path: Path, hint: str, required: bool = False) -> Path:
    """Return ``path``; InputError where it is damaged (``verify_digest``); ``hint`` says how to mend it."""
    try:
        verify_digest(path, required)
    except Damaged as error:
        raise InputError(f"{error}: {hint}") from None
    return path


def current_sha256(path: Path) -> str:
    """Return the sha256 of a file. A process reads a file once until its size, inode or time of change does.

    That time is the system's own (ctime): who writes a file may set its mtime back, as rsync and tar do.
    """
    about = path.stat()
    if time.time() - about.st_ctime < SETTLED_SECONDS:
        return sha256_file(path)
    return _sha256(path, (about.st_ctime_ns, about.st_size, about.st_ino))


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, _changed: tuple[int, int, int]) -> str:
    return sha256_file(path)
