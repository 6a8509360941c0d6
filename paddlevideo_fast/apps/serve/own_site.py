"""Keeps pages of other sites from a server that a browser can reach."""

import contextlib
import ipaddress
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from paddlevideo_fast.errors import shown


class OwnSite:
    """Refuses what pages of other sites send through the browser of somebody who reaches this server.

    Such a page has its own `Origin`. With a name that first leads to its own server and then to this one, its
    `Host` is that name. So a name with a dot must be one that the server knows.

    Args:
        app: of ASGI.
        names: hosts that it is reached by, beside addresses and names without a dot.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope))):
            app = JSONResponse({"error": problem}, 403)
        await app(scope, receive, send)

    def _problem(self, headers: Headers) -> str:
        host, origin = headers.get("host", "localhost"), headers.get("origin")  # HTTP/1.0 has no Host
        if not self._is_own(_parts(f"//{host}").hostname):
            return f"Host: {shown(host)} is no name of this server; start it with --allow_host and this name"
        if origin is None or _parts(origin).netloc == host.lower() or _parts(origin).hostname in self._names:
            return ""
        return f"Origin: {shown(origin)} is another site; start the server with --allow_host and its name"

    def _is_own(self, name: str | None) -> bool:
        if name is None:
            return False
        name = name.rstrip(".")
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name.partition("%")[0]))
        return "." not in name or name.endswith(".localhost") or name in self._names


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address.lower())
        return parts if parts.hostname else urlsplit("")
    except ValueError:
        return urlsplit("")
