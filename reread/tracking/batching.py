"""Requests answered together: those that arrive while one batch is computed are the next batch.

So a request that comes alone waits for nobody, and under load batches grow by themselves.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

Answers = list[dict[str, Any]]


class Overloaded(RuntimeError):
    """More rows are waiting than are held."""


@dataclass(frozen=True)
class Waiting:
    """A request that waits: its rows and parameters, and where its answers go."""

    rows: Sequence[Any]
    attention: bool
    future: "Future[Answers]" = field(default_factory=Future)


class Batcher:
    """A thread that answers the requests of an event loop in batches.

    answer: f(requests' rows, attention) -> one answer per row of all of them, in order. Requests of one batch have the
    same ``attention``. rows_per_batch: a batch ends with the request that reaches it. most_waiting: rows.
    """

    def __init__(
        self,
        answer: Callable[[list[Sequence[Any]], bool], Answers],
        rows_per_batch: int = 128,
        most_waiting: int = 8192,
    ) -> None:
        self.answer, self.rows_per_batch, self.most_waiting = answer, rows_per_batch, most_waiting
        self.waiting: deque[Waiting] = deque()
        self.rows_waiting = 0
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Answer what waits, then end the thread."""
        with self.changed:
            self.stopping = True
            self.changed.notify()
        self.thread.join()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    async def answers(self, rows: Sequence[Any], attention: bool) -> Answers:
        """Return one answer per row; Overloaded, at once, where too many rows wait already."""
        request = Waiting(rows, attention)
        with self.changed:
            if self.rows_waiting + len(rows) > self.most_waiting:
                raise Overloaded(f"{self.rows_waiting} rows are waiting: send these again later")
            self.waiting.append(request)
            self.rows_waiting += len(rows)
            self.changed.notify()
        return await asyncio.wrap_future(request.future)

    def _run(self) -> None:
        while batch := self._next():
            # A client that has gone has cancelled its request.
            asked = [request for request in batch if request.future.set_running_or_notify_cancel()]
            if asked:
                self._answer(asked)

    def _next(self) -> list[Waiting]:
        """Wait for requests and return those of the next batch; none when it is time to stop."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.stopping)
            batch: list[Waiting] = []
            rows = 0
            while self.waiting and rows < self.rows_per_batch:
                if batch and self.waiting[0].attention != batch[0].attention:
                    break
                batch.append(self.waiting.popleft())
                rows += len(batch[-1].rows)
            self.rows_waiting -= rows
        return batch

    def _answer(self, requests: list[Waiting]) -> None:
        try:
            answers = self.answer([request.rows for request in requests], requests[0].attention)
        except Exception as error:  # it belongs to whoever asked for it
            if len(requests) == 1:
                requests[0].future.set_exception(error)
            else:
                # One request cannot spoil those that happen to be beside it.
                for request in requests:
                    self._answer([request])
            return
        start = 0
        for request in requests:
            request.future.set_result(answers[start : start + len(request.rows)])
            start += len(request.rows)
