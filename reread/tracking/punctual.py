"""HTTP with a time limit on requests, which uvicorn has not: a half-sent one would stay open for ever."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20


class Punctual(H11Protocol):
    """Close a connection whose next request is not whole in time; an answer may take as long as it does."""

    limit: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is h11.DONE:
            self.limit.cancel()

    def on_response_complete(self) -> None:
        self.limit.cancel()
        self._begin()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limit.cancel()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self.limit = self.loop.call_later(REQUEST_SECONDS, self.transport.close)
