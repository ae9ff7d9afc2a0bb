"""Tracking in a thread: in order, in the caller's context, and finished when the block ends."""

import contextvars
import threading

from tasks.background import is_in_background, track, tracking_in_background

NAME = contextvars.ContextVar("name", default="none")


def test_calls_are_made_at_once_without_a_thread():
    assert not is_in_background()
    assert track(threading.get_ident).result() == threading.get_ident()


def test_calls_are_made_in_order_in_one_thread_until_the_block_ends(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    going, found = threading.Event(), []
    with tracking_in_background():
        assert is_in_background()
        track(going.wait)
        for name in ("first", "second"):
            NAME.set(name)
            track(lambda: found.append((NAME.get(), threading.current_thread().name)))
        assert not found
        going.set()
    assert [name for name, _ in found] == ["first", "second"]
    assert {thread for _, thread in found} == {"tracking_0"} and not is_in_background()
