"""The time limit on requests: it ends with the request, and does not cut the answer."""

import asyncio
import http.client
import threading
import time

import uvicorn

from reread.tracking import punctual
from tests.servers import free_port


async def slow(scope, receive, send):
    """Answer later than a request may take."""
    if scope["type"] == "http":
        await asyncio.sleep(2.5)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"late"})


def test_an_answer_may_take_longer_than_a_request(monkeypatch):
    monkeypatch.setattr(punctual, "REQUEST_SECONDS", 1)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(slow, port=port, http=punctual.Punctual, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(2):  # on one connection
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"late"
    # The connection is closed when no request comes.
    assert connection.sock.recv(1) == b""
    connection.close()
    server.should_exit = True
    thread.join()
