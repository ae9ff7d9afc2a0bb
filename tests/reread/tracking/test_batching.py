"""Requests that wait together are answered together, each with its own answers."""

import asyncio
import threading
from contextlib import contextmanager

import pytest

from reread.tracking.batching import Batcher, Overloaded


class Slow:
    """Answers each row by itself; the first batch waits until it may go. 'bad' spoils the batch that it is in."""

    def __init__(self) -> None:
        self.batches: list[list[list[str]]] = []
        self.go = threading.Event()

    def __call__(self, requests, attention):
        self.batches.append(requests)
        self.go.wait(10)
        rows = [row for request in requests for row in request]
        if "bad" in rows:
            raise RuntimeError("a row is bad")
        return [{"row": row, "attention": attention} for row in rows]


@contextmanager
def started(slow: Slow, **limits):
    batcher = Batcher(slow, **limits)
    batcher.start()
    try:
        yield batcher
    finally:
        slow.go.set()
        batcher.stop()


def ask(slow: Slow, requests, **limits):
    """The answers, or errors, to a first request that is computed while the others arrive, and to those."""

    async def all_of_them(batcher):
        first = asyncio.create_task(batcher.answers(["first"], False))
        while not slow.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.answers(rows, attention)) for rows, attention in requests]
        await asyncio.sleep(0)
        slow.go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    with started(slow, **limits) as batcher:
        return asyncio.run(all_of_them(batcher))


def rows_of(answers):
    return [answer["row"] for answer in answers]


def test_requests_that_wait_are_one_batch_up_to_its_size_and_keep_their_order():
    slow = Slow()
    requests = [(["a", "b"], False), (["c"], False), (["d", "e", "f"], False), (["g"], False)]
    first, *others = ask(slow, requests, rows_per_batch=4)
    assert rows_of(first) == ["first"]
    assert [rows_of(answers) for answers in others] == [rows for rows, _ in requests]
    assert slow.batches == [[["first"]], [["a", "b"], ["c"], ["d", "e", "f"]], [["g"]]]


def test_requests_with_and_without_attention_are_not_one_batch():
    slow = Slow()
    _, *others = ask(slow, [(["a"], False), (["b"], True), (["c"], True)])
    assert slow.batches[1:] == [[["a"]], [["b"], ["c"]]]
    assert [answers[0]["attention"] for answers in others] == [False, True, True]


def test_a_request_that_fails_leaves_those_beside_it_alone():
    slow = Slow()
    _, good, bad, last = ask(slow, [(["a"], False), (["bad"], False), (["b"], False)])
    assert rows_of(good) == ["a"] and rows_of(last) == ["b"]
    assert isinstance(bad, RuntimeError)


def test_more_than_can_wait_is_refused_at_once():
    slow = Slow()
    first, waiting, refused = ask(slow, [(["a", "b"], False), (["c"], False)], most_waiting=2)
    assert rows_of(first) == ["first"] and rows_of(waiting) == ["a", "b"] and isinstance(refused, Overloaded)


def test_a_client_that_has_gone_is_not_answered():
    slow = Slow()

    async def leave(batcher):
        first = asyncio.create_task(batcher.answers(["first"], False))
        while not slow.batches:
            await asyncio.sleep(0.001)
        gone = asyncio.create_task(batcher.answers(["gone"], False))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        slow.go.set()
        return await first, await batcher.answers(["next"], False)

    with started(slow) as batcher:
        first, following = asyncio.run(leave(batcher))
    assert rows_of(first) == ["first"] and rows_of(following) == ["next"]
    assert [["gone"]] not in slow.batches and not batcher.alive
