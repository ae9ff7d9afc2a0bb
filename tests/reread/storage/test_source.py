"""Source files are parsed from several threads, also while a library's threads parse."""

import ast
import contextlib
import threading

import pytest

from reread.storage.source import ROOT, parse


def test_what_a_library_s_thread_made_fail_is_parsed_again(monkeypatch):
    """Threads that take no turn parse meanwhile, as a library's do; how often CPython then fails is its affair, so that
    it fails twice is made sure of."""
    path = ROOT / "reread/storage" / "source.py"
    failing = [SystemError("AST constructor recursion depth mismatch (before=69, after=76)")] * 2
    whole = ast.parse

    def parsed(*arguments):
        if failing:
            raise failing.pop()
        return whole(*arguments)

    ended = threading.Event()

    def library():
        while not ended.is_set():
            with contextlib.suppress(SystemError):
                whole(path.read_bytes())

    others = [threading.Thread(target=library) for _ in range(2)]
    for other in others:
        other.start()
    try:
        monkeypatch.setattr(ast, "parse", parsed)
        for _ in range(50):
            assert isinstance(parse(path), ast.Module)
    finally:
        ended.set()
        for other in others:
            other.join()
    assert not failing


def test_a_file_that_is_no_python_is_refused_at_once(tmp_path):
    (tmp_path / "wrong.py").write_text("def")
    with pytest.raises(SyntaxError, match=r"wrong\.py"):
        parse(tmp_path / "wrong.py")
