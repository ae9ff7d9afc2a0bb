"""Locks: who holds one, who is refused, and who waits."""

import os
import threading

import pytest

from reread.storage.errors import InputError
from reread.storage.locks import file_lock, holder, is_held, run_lock, run_locked


def test_a_lock_is_held_by_one_and_names_its_process(tmp_path):
    path = tmp_path / "locks" / "lock"
    assert not is_held(path) and not path.exists() and holder(path) == "another process"
    for blocking in (True, False):
        with file_lock(path, blocking) as file:
            assert file and is_held(path) and path.read_text() == f"{os.getpid()}\n"
            assert holder(path) == f"process {os.getpid()}"
            with file_lock(path, blocking=False) as other:
                assert other is None
        assert not is_held(path)
    path.write_text("")
    assert holder(path) == "another process"


def test_a_run_in_use_is_refused_or_waited_for(tmp_path):
    run, said = tmp_path / "runs" / "0123abcd", []
    assert run_lock(run) == tmp_path / "runs/.locks/0123abcd.lock"

    def wait():
        with run_locked(run, say=said.append):
            said.append("begun")

    other = threading.Thread(target=wait)
    with run_locked(run, say=said.append):
        assert not said
        with (
            pytest.raises(InputError, match=f"0123abcd is in use by process {os.getpid()}: wait"),
            run_locked(run, False),
        ):
            pass
        other.start()
        other.join(0.3)
        (line,) = said
        assert f"0123abcd is in use by process {os.getpid()}: waiting" in line and other.is_alive()
    other.join(30)
    assert said == [line, "begun"]
