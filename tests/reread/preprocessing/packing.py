"""Small archives in the formats of the published ones."""

import io
import tarfile
from pathlib import Path

import numpy as np


def pack(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    """Write a .tar.gz of files, each a name and its content, and of other members; return its path."""
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tuple):
                name, content = member
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                archive.addfile(member)
    return path


def idx(values: np.ndarray, kind: int = 0x08) -> bytes:
    """Return an array in the format of MNIST's files, not yet compressed."""
    return bytes((0, 0, kind, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
