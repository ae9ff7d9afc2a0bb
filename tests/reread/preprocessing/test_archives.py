"""Archives are read as streams, and what is not the published file is refused."""

import gzip
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing import archives
from reread.preprocessing.archives import read_idx, read_members
from reread.storage.errors import InputError
from tests.reread.preprocessing.packing import idx, pack


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def read_all(path: Path) -> dict[str, bytes]:
    return dict(read_members(path, lambda name: True))


def test_wanted_members_come_in_order_and_nothing_is_unpacked(tmp_path):
    folder = special("a", tarfile.DIRTYPE)
    path = pack(tmp_path / "x.tar.gz", folder, ("a/2.txt", b"two"), ("a/1.txt", b"one"), ("a/1.feat", b"no"))
    read = list(read_members(path, lambda name: name.endswith(".txt")))
    assert read == [("a/2.txt", b"two"), ("a/1.txt", b"one")]
    assert [file.name for file in tmp_path.iterdir()] == ["x.tar.gz"]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../../x", b"out"), r"'../../x' leads outside"),
        (("a/../../x", b"out"), "leads outside"),
        (("/etc/x", b"out"), "leads outside"),
        (("..\\x", b"out"), "leads outside"),
        (special("a/link", tarfile.SYMTYPE, "/etc/passwd"), "'a/link' is a link or a device"),
        (special("a/hard", tarfile.LNKTYPE, "a/1.txt"), "is a link or a device"),
        (special("a/pipe", tarfile.FIFOTYPE), "is a link or a device"),
        (special("a/device", tarfile.CHRTYPE), "is a link or a device"),
        (special("../out", tarfile.DIRTYPE), "leads outside"),
        (("a/1.txt", b"again"), "occurs twice"),
    ],
)
def test_a_member_that_could_do_harm_is_refused_wanted_or_not(tmp_path, member, message):
    path = pack(tmp_path / "x.tar.gz", ("a/1.txt", b"one"), member)
    for wanted in (lambda name: True, lambda name: name == "a/1.txt"):
        with pytest.raises(InputError, match=message) as error:
            list(read_members(path, wanted))
        assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_member_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 1000)
    path = pack(tmp_path / "x.tar.gz", ("a/1.txt", bytes(1001)))
    with pytest.raises(InputError, match="has 1001 bytes"):
        read_all(path)


def test_truncation_is_found_wherever_it_happens(tmp_path):
    path = pack(tmp_path / "x.tar.gz", *((f"a/{number}.txt", os.urandom(700)) for number in range(40)))
    whole = path.read_bytes()
    assert len(read_all(path)) == 40
    for kept in [0, 1, 9, len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 1]:
        path.write_bytes(whole[:kept])
        with pytest.raises(InputError, match="truncated or altered"):
            read_all(path)


def test_an_altered_byte_is_found_also_behind_the_last_member(tmp_path):
    path = pack(tmp_path / "x.tar.gz", *((f"a/{number}.txt", os.urandom(700)) for number in range(40)))
    whole = bytearray(path.read_bytes())
    for place in [len(whole) // 4, len(whole) // 2, len(whole) - 6]:
        altered = bytearray(whole)
        altered[place] ^= 0x10
        path.write_bytes(altered)
        with pytest.raises(InputError, match="truncated or altered"):
            read_all(path)


def test_what_is_no_archive_or_not_there_is_refused(tmp_path):
    path = tmp_path / "x.tar.gz"
    with pytest.raises(InputError, match="is missing"):
        read_all(path)
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(InputError, match="truncated or altered"):
        read_all(path)
    path.write_bytes(gzip.compress(b"<html>404</html>"))
    with pytest.raises(InputError, match="truncated or altered"):
        read_all(path)


def test_idx_comes_back(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (5, 3, 4), dtype=np.uint8)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(values)))
    assert np.array_equal(read_idx(path), values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (idx(np.zeros(3, np.uint8), kind=0x0D), "not an idx file"),
        (idx(np.zeros((2, 2), np.uint8))[:-1], r"has 3 values where its header says \[2, 2\]"),
        (idx(np.zeros((2, 2), np.uint8)) + b"x", "has 5 values"),
        (bytes((0, 0, 8, 3)) + bytes(4), "values where its header says"),
        (bytes((0, 0, 8, 3)), "values where its header says"),
    ],
)
def test_a_bad_idx_file_is_refused(tmp_path, content, message):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=message):
        read_idx(path)
    path.write_bytes(gzip.compress(idx(np.zeros((20, 20), np.uint8)))[:-4])
    with pytest.raises(InputError, match="truncated or altered"):
        read_idx(path)
