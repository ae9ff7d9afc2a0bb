"""Damage to a file: what a lost write, a bad disk or another's hand leave."""

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

CUTS = (0, 0.01, 0.5, 0.999)
FLIPS = 50


def damages(path: Path) -> Iterator[str]:
    """Damage a file in one way after the other, and restore it at the end; yield what was done, in words."""
    content, times = path.read_bytes(), path.stat()
    generator = random.Random(path.name)
    try:
        for share in CUTS:
            path.write_bytes(content[: int(share * len(content))])
            yield f"cut at {share:.1%}"
        for _ in range(FLIPS):
            place, bit = generator.randrange(len(content)), generator.randrange(8)
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            # As a bad disk does: neither size nor time tells.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            yield f"bit {bit} of byte {place} flipped"
        path.write_bytes(bytes(len(content)))
        yield "zeros"
    finally:
        path.write_bytes(content)


class Trap:
    """Its pickle makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def trap(path: Path) -> bytes:
    """Return a pickle that makes the folder ``path`` where it is loaded."""
    return pickle.dumps(Trap(path))
