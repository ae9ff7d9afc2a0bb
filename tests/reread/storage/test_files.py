"""Files that are not what they should be are told in one line; those that are written are whole or absent."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reread.storage import files
from reread.storage.errors import InputError, command
from reread.storage.files import (
    below,
    canonical_json,
    content_key,
    json_text,
    published_directory,
    read_json,
    read_object,
    remove_directory,
    sha256_bytes,
    write_json,
    write_text,
)
from reread.storage.prepared import DESCRIPTION, open_prepared


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc/passwd", "link", "linked/secret", "loop", "\0"])
def test_a_name_that_leads_outside_of_its_folder_is_refused(tmp_path, name):
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    for link, target in (("link", tmp_path / "secret"), ("linked", tmp_path), ("loop", tmp_path / "circle")):
        (folder / link).symlink_to(target)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(InputError, match="folder"):
        below(folder, name, "move it")
    linked = name in ("link", "linked/secret", "loop")
    if linked:
        assert below(folder, name, "move it", links=True) == folder / name
    else:
        with pytest.raises(InputError, match="folder"):
            below(folder, name, "move it", links=True)


def test_a_folder_may_be_a_link_and_a_name_inside_of_it_an_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/inner").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "inner", "b/../a", tmp_path / "runs/a", tmp_path / "disk/a", "."):
        assert below(Path("runs"), name, "move it") == Path("runs") / name


def test_what_is_no_file_to_be_read_is_refused(tmp_path):
    (tmp_path / "file").write_text("{}")
    with pytest.raises(InputError, match="missing.json is missing"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_json(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read \(Not a directory\)"):
        read_json(tmp_path / "file" / "job.json")
    for broken in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "file").write_bytes(broken)
        with pytest.raises(InputError, match="file is not valid JSON .* restore it"):
            read_json(tmp_path / "file")


@pytest.mark.parametrize("value", [{}, [], None, {"name": "small", "kind": "text"}])
def test_an_object_without_what_is_asked_of_it_is_refused(tmp_path, value):
    write_json(tmp_path / DESCRIPTION, value)
    with pytest.raises(InputError, match="prepared.json has no 'task'|prepared.json has no 'name'"):
        open_prepared(tmp_path)
    with pytest.raises(InputError, match=f"prepared.json has no 'arrays': remove {tmp_path} and run again"):
        read_object(tmp_path / DESCRIPTION, "arrays")


def test_equal_values_have_one_text_and_one_key():
    """Folders are named by it: another text or another length would make every finished run unknown."""
    value, text = {"b": 1.5, "a": ["é", None, True]}, '{"a":["é",null,true],"b":1.5}'
    assert canonical_json(value) == text
    assert content_key(value) == content_key(dict(sorted(value.items()))) == sha256_bytes(text.encode())[:16]
    assert json_text({"b": 1, "a": "é"}) == '{\n  "a": "é",\n  "b": 1\n}\n'
    for function in (canonical_json, json_text):
        with pytest.raises(ValueError, match="JSON"):
            function([float("nan")])


def test_a_text_that_cannot_be_written_leaves_the_old_one_alone(tmp_path):
    path = tmp_path / "new" / "deep" / "file.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(str(path), "\ud800")
    assert path.read_text() == "old" and os.listdir(path.parent) == ["file.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_is_removed_also_where_a_killed_process_began_to(tmp_path):
    data, left = tmp_path / "data", tmp_path / ".data.removed"
    for folders in ([data], [data, left]):
        for folder in folders:
            publish(folder, "content")
        remove_directory(data)
        assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_published_leaves_nothing(tmp_path):
    destination = tmp_path / "new" / "data"
    with pytest.raises(UnicodeEncodeError):
        publish(destination, "\ud800")
    assert not any(destination.parent.iterdir())
    publish(destination, "whole")
    assert destination.stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        publish(tmp_path / "file", "content")


def publish(destination: Path, content: str, replace: bool = True) -> None:
    with published_directory(destination, replace=replace) as working:
        (working / "inner").mkdir()
        (working / "inner" / "file").write_text(content)


class Failing:
    """A C library whose renameat2 fails."""

    def renameat2(self, *_):
        return -1


@pytest.mark.parametrize("kernel", ["exchanges", "has no call", "has no file system for it"])
def test_a_replaced_folder_has_the_new_content_alone(tmp_path, monkeypatch, kernel):
    if kernel != "exchanges":
        library = object() if kernel == "has no call" else Failing()
        monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: library)
        monkeypatch.setattr(files.ctypes, "get_errno", lambda: errno.EINVAL)
    destination = tmp_path / "data"
    publish(destination, "old")
    publish(destination, "ignored", replace=False)
    assert (destination / "inner" / "file").read_text() == "old"
    renamed, replace = [], os.replace
    monkeypatch.setattr(files.os, "replace", lambda old, new: (renamed.append(Path(old)), replace(old, new)))
    publish(destination, "new")
    assert (destination in renamed) == (kernel != "exchanges"), "no moment without the folder where the kernel can"
    assert (destination / "inner" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_that_may_not_be_replaced_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    destination = Path("data")
    for content in ("old", "new"):
        publish(destination, content)
    monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: Failing())
    monkeypatch.setattr(files.ctypes, "get_errno", lambda: errno.EACCES)
    with pytest.raises(PermissionError, match="data"):
        publish(destination, "newer")
    assert (destination / "inner" / "file").read_text() == "new" and os.listdir() == ["data"]


def test_a_kill_while_a_folder_is_replaced_never_leaves_it_absent(tmp_path):
    """A process replaces a folder over and over and is killed; another sees the folder at every moment."""
    destination = tmp_path / "data"
    publish(destination, "0")
    code = (
        "import sys, itertools; from pathlib import Path; from tests.reread.storage.test_files import publish\n"
        "for n in itertools.count(): publish(Path(sys.argv[1]), str(n)); print(n, flush=True)"
    )
    command = [sys.executable, "-c", code, str(destination)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
            process.stdout.readline()
            end, absent = time.monotonic() + 0.3, 0
            while time.monotonic() < end:
                absent += not (destination / "inner" / "file").exists() and not destination.exists()
            process.send_signal(signal.SIGKILL)
        assert absent == 0
        assert (destination / "inner" / "file").read_text().isdecimal()


def test_content_is_flushed_before_it_takes_its_name(tmp_path, monkeypatch):
    """The order of system calls is what a power cut tests: file, then rename, then folder."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def record_replace(old, new):
        calls.append(("rename", Path(new).name))
        replace(old, new)

    monkeypatch.setattr(files.os, "fsync", record_fsync)
    monkeypatch.setattr(files.os, "replace", record_replace)
    write_text(tmp_path / "result.json", "{}")
    assert [kind for kind, _ in calls] == ["fsync", "rename", "fsync"]
    assert calls[1] == ("rename", "result.json") and calls[2] == ("fsync", tmp_path.name)
    calls.clear()
    publish(tmp_path / "data", "content")
    position = calls.index(("rename", "data"))
    assert {("fsync", "file"), ("fsync", "inner")} <= set(calls[:position])
    assert calls[position + 1 :] == [("fsync", tmp_path.name)]


def test_a_full_disk_is_named_by_what_is_written(tmp_path, capsys, monkeypatch):
    """The error of a write names no file, and numpy's has no number either."""

    def fill(path: Path) -> None:
        with published_directory(path):
            raise OSError("5801 requested and 4080 written")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    for name, write in (("file.json", lambda path: write_json(path, {})), ("report", fill)):
        with pytest.raises(SystemExit, match="2"):
            command(write)(tmp_path / name)
        assert f"the disk has no room for {tmp_path / name} (" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
