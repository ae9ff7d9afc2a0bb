"""The door of a server: which requests reach it.

A web page can send requests to every server that its browser reaches, under a name of its own choice (DNS rebinding),
and any account of this machine can connect to 127.0.0.1. A request passes the door if

- its Host is localhost, the address that it came in by, or a name that is given;
- it is of the server's own pages or of no page: its Origin is its Host, and no page of another origin embeds the
  answer. A link from elsewhere passes;
- it has the secret, where there is one: as the password of Basic authentication, which a browser asks for, or as a
  Bearer token.
"""

import base64
import hmac
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

HOST = re.compile(r"(\[[\da-f:.]+\]|[^\[\]:/@]+)(:\d+)?")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
# Of a page of the server itself, or of a person who typed the address.
OWN_SITES = ("same-origin", "none")


class Door:
    """An ASGI application that passes on what may reach ``app``.

    secret: None where ``app`` asks for passwords itself. names: by which clients reach the server.
    """

    def __init__(self, app: ASGIApp, secret: str | None = None, names: Iterable[str] = ()) -> None:
        self.app, self.secret = app, secret
        self.names = LOCAL | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None if scope["type"] == "lifespan" else self.refusal(scope)
        if answer and scope["type"] == "websocket":
            await WebSocketClose(1008)(scope, receive, send)
        else:
            await (answer or self.app)(scope, receive, send)

    def refusal(self, scope: Scope) -> JSONResponse | None:
        """Return the answer to a request that does not pass, None for one that does."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not self._is_own(host, scope["server"][0]):
            return JSONResponse({"detail": "the Host of the request is no name of this server"}, 403)
        if _is_of_another_page(headers, host):
            return JSONResponse({"detail": "the request is of a page of another origin"}, 403)
        if self.secret is not None and not _has(headers.get("authorization", ""), self.secret):
            detail = "the password is missing or wrong: secret.env in the folder of the server has it"
            return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": 'Basic realm="reread"'})
        return None

    def _is_own(self, host: str, address: str) -> bool:
        match = HOST.fullmatch(host)
        return match is not None and match[1].strip("[]") in self.names | {address}


def _is_of_another_page(headers: Headers, host: str) -> bool:
    """Return whether a page of another origin sends the request; programs send none of these headers."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return True
    embeds = headers.get("sec-fetch-dest", "document") != "document"
    return embeds and headers.get("sec-fetch-site", "none") not in OWN_SITES


def _has(authorization: str, secret: str) -> bool:
    """Return whether a header has ``secret``, as a Bearer token or as a password of Basic authentication."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:  # neither base64 nor UTF-8
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), secret.encode())
