"""Arrays of an .npz file of any size, memory-mapped."""

import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from reread.storage.errors import InputError

CHUNK = 1 << 22


def read_arrays(path: Path, names: list[str]) -> list[np.ndarray]:
    """Return uint8 arrays of an .npz file, compressed or not, which pass through the folder of temporary files.

    InputError for a file that is damaged, an array that is missing, of another dtype, or ends early.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in names if f"{name}.npy" not in archive.namelist()]
            if missing:
                raise InputError(f"{path} has no array '{missing[0]}': download the archive again")
            return [_read_array(path, archive, name) for name in names]
    except FileNotFoundError:
        raise InputError(f"{path} is missing: download the archive again") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise InputError(f"{path} is truncated or altered ({error}): download the archive again") from None


def _read_array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as member, tempfile.TemporaryFile() as file:
        version = np.lib.format.read_magic(member)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(member)
        if dtype != np.uint8 or fortran_order:
            raise InputError(f"{path}: '{name}' is {dtype}, not uint8 in C order: download the archive again")
        while chunk := member.read(CHUNK):
            file.write(chunk)
        if file.tell() != np.prod(shape, dtype=np.int64):
            raise EOFError(f"'{name}' has {file.tell()} bytes for the shape {list(shape)}")
        file.flush()
        # The memory map holds the file.
        return np.memmap(file, np.uint8, "r", shape=shape)
