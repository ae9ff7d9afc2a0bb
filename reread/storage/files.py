"""Atomic files: hashing, writing by rename, and folders published once."""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError, is_full_disk
from reread.storage.locks import folder_lock

# Constants of Linux: linux/fcntl.h and linux/fs.h.
AT_FDCWD, RENAME_EXCHANGE = -100, 2
FROM_GIT, RESTORE = "restore it from git", "restore it or remove it and run again"
# What mends a file of this name that is damaged or missing, where its reader names nothing else.
MENDS = {
    "data.manifest.json": FROM_GIT,
    "job.json": "remove {folder} and run again",
    "prepared.json": "remove {folder} and run again, it will be prepared again",
    "published.json": "remove {folder} and run again",
}


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def below(folder: Path, name: str | Path, hint: str, links: bool = False) -> Path:
    """Return ``folder / name``; InputError, with what to do, where an absolute path, ``..`` or a link leads outside.

    links: links may lead anywhere, of a file whose content is compared with a digest.
    """
    path = Path(folder) / name
    true_path = os.path.abspath if links else os.path.realpath
    if "\0" in str(name) or not Path(true_path(path)).is_relative_to(true_path(folder)):
        raise InputError(f"'{name}' lies outside of the folder {folder}: {hint}")
    return path


def canonical_json(value: Any) -> str:
    """Return one text for equal values, from which keys and digests are made: keys sorted, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_key(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of ``value`` as canonical JSON; folders are named by it."""
    return sha256_bytes(canonical_json(value).encode())[:16]


def mend(path: Path, hint: str = "") -> str:
    """Return what mends a file: ``hint``, or what MENDS has for its name; "" for an unknown one."""
    return hint or MENDS.get(Path(path).name, "").format(folder=Path(path).parent)


def read_json(path: Path, hint: str = "") -> Any:
    """Read a JSON file; InputError names it when it is missing, broken or unreadable, with what mends it (``mend``)."""
    known = mend(path, hint)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing{known and f': {known}'}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    # Invalid JSON and invalid UTF-8 are ValueErrors; deep nesting is a RecursionError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}): {known or RESTORE}") from None


def read_object(path: Path, *names: str, hint: str = "") -> dict[str, Any]:
    """Read a JSON object; InputError as ``read_json``, and where it lacks one of ``names``."""
    value, known = read_json(path, hint), mend(path, hint) or RESTORE
    missing = [name for name in names if not isinstance(value, dict) or name not in value]
    if missing:
        raise InputError(f"{path} has no '{missing[0]}': {known}")
    if not isinstance(value, dict):
        raise InputError(f"{path} is no JSON object: {known}")
    return value


def read_committed(path: Path, *names: str) -> dict[str, Any]:
    """Read a JSON object of a committed file, as ``read_object`` does."""
    return read_object(path, *names, hint=FROM_GIT)


@contextlib.contextmanager
def named_if_full(path: Path, working: Path) -> Iterator[None]:
    """Name ``path`` in the error of a full disk inside the block, which names no file or one of ``working``."""
    try:
        yield
    except OSError as error:
        written = os.path.abspath(os.fsdecode(error.filename or working))
        if not is_full_disk(error) or not Path(written).is_relative_to(os.path.abspath(working)):
            raise
        raise OSError(error.errno or errno.ENOSPC, error.strerror or str(error), str(path)) from error


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write ``text`` by rename, flushed to disk: readers see the old file or the new one, also after a power cut.

    mode: who may read it; at no moment may anybody else.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with named_if_full(path, Path(temporary)), os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        fsync_path(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_text(value: Any) -> str:
    """Return ``value`` as indented JSON with sorted keys: what ``write_json`` writes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with sorted keys, by rename."""
    write_text(path, json_text(value))


def remove_directory(path: Path) -> None:
    """Remove a folder that is whole or gone at every moment: it gets a hidden name first."""
    doomed = path.with_name(f".{path.name.lstrip('.')}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


@contextlib.contextmanager
def published_directory(destination: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside ``destination`` that takes its name when the block ends without an error.

    An existing folder is kept (another process published the same content first), unless ``replace``: then the two
    folders are exchanged in one step, so that ``destination`` exists at every moment. All content is flushed to disk
    before the rename. After an error nothing is left. The yielded folder is locked until the end of the block, so that
    ``reread prune`` can tell it from one that a killed process left.
    """
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, working, ignore_errors=True)
        held.enter_context(folder_lock(working))
        held.enter_context(named_if_full(destination, working))
        yield working
        os.chmod(working, 0o755)
        for path in (*working.rglob("*"), working):
            fsync_path(path)
        try:
            os.replace(working, destination)
        except OSError:
            # A folder that has files in it cannot be renamed onto.
            if not destination.is_dir():
                raise
            if replace:
                exchange(working, destination)
        fsync_path(destination.parent)


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two folders: atomically on Linux, on other systems by three renames."""
    # Python has no binding for renameat2(2); glibc has one from 2.28 on.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename and rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return
    if rename and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(second))
    spare = Path(tempfile.mkdtemp(dir=second.parent, prefix=f".{second.name}."))
    os.replace(second, spare)
    os.replace(first, second)
    os.replace(spare, first)
