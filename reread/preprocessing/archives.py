"""Readers of published archives. Archives are read as streams; nothing is unpacked to a path that they name.

Every member is checked, also those that are not read: its name must stay inside the archive, and it must be a file or a
folder. The stream is read to its end, so that gzip's checksum covers all of it.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from reread.storage.errors import InputError

LARGEST_MEMBER = 256 << 20
LARGEST_IDX = 1 << 30
IDX_UINT8 = 0x08
DOWNLOAD_AGAIN = "download the archive again"


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the files in a .tar.gz whose name is ``wanted``, in the order of the archive.

    InputError names an archive that is truncated or altered. It also names a member that is a link or a device, has a
    name outside the archive, occurs twice or is larger than LARGEST_MEMBER.
    """
    names: set[str] = set()
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    check_member(path, member, names)
                    names.add(member.name)
                    if member.isreg() and wanted(member.name) and (opened := archive.extractfile(member)):
                        content = opened.read()
                        if len(content) != member.size:
                            raise EOFError(f"{member.name} ends early")
                        yield member.name, content
            while stream.read(1 << 20):
                pass
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {DOWNLOAD_AGAIN}") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} is truncated or altered ({error}): {DOWNLOAD_AGAIN}") from None


def check_member(path: Path, member: tarfile.TarInfo, names: set[str]) -> None:
    parts = PurePosixPath(member.name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in member.name:
        raise InputError(f"{path}: member '{member.name}' leads outside of the archive: {DOWNLOAD_AGAIN}")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise InputError(f"{path}: member '{member.name}' is a link or a device, not a file: {DOWNLOAD_AGAIN}")
    if member.isreg() and member.name in names:
        raise InputError(f"{path}: member '{member.name}' occurs twice: {DOWNLOAD_AGAIN}")
    if member.size > LARGEST_MEMBER:
        raise InputError(
            f"{path}: member '{member.name}' has {member.size} bytes, more than any known archive's: {DOWNLOAD_AGAIN}"
        )


def read_matching(path: Path, names: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the match and the content of each file of a .tar.gz archive whose whole name ``names`` matches.

    InputError as ``read_members``.
    """
    for name, content in read_members(path, lambda name: names.fullmatch(name) is not None):
        if match := names.fullmatch(name):
            yield match, content


def check_count(path: Path, what: str, count: int, expected: int) -> None:
    """Raise InputError where an archive does not have as many rows as the published one."""
    if count != expected:
        raise InputError(f"{path} has {count} {what}, the published archive has {expected}: {DOWNLOAD_AGAIN}")


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of an idx.gz file: two zero bytes, a type, the number of axes, each axis, then the values.

    Source: the format as Y. LeCun, C. Cortes and C. Burges describe it on the MNIST page.
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST_IDX)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {DOWNLOAD_AGAIN}") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} is truncated or altered ({error}): {DOWNLOAD_AGAIN}") from None
    if len(content) < 4 or content[:3] != bytes((0, 0, IDX_UINT8)):
        raise InputError(f"{path} is not an idx file of bytes: {DOWNLOAD_AGAIN}")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist()) if len(content) >= start else ()
    values = np.frombuffer(content, dtype=np.uint8, offset=min(start, len(content)))
    if len(shape) != content[3] or values.size != np.prod(shape, dtype=np.int64):
        raise InputError(f"{path} has {values.size} values where its header says {list(shape)}: {DOWNLOAD_AGAIN}")
    return values.reshape(shape)
