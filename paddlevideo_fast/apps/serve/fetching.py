"""Videos that a request names by URL, from public addresses only."""

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from paddlevideo_fast.apps.serve.errors import RequestError
from paddlevideo_fast.extras import needing

_MAX_REDIRECTS = 3
_CHUNK = 1 << 16
_HOLD_IPV4 = [ipaddress.ip_network(each) for each in ("64:ff9b::/96", "::/96")]
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")


def is_public(address: str) -> bool:
    """Whether an IP address is on the internet, also behind the forms of IPv6 that hold one of IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if any(found in network for network in _HOLD_IPV4):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
        if found.is_site_local or found in _LOCAL_NAT64:
            return False
    return found.is_global and not found.is_multicast


async def fetch(url: str, file: Any, max_bytes: int, allow_local: bool) -> None:
    """Writes what a URL holds to a file.

    The address is checked where the socket for it is made. So neither a spelling of the host nor a name that
    changes its address leads elsewhere.

    Args:
        url: http or https.
        file: is written.
        max_bytes: the most that is taken.
        allow_local: also from addresses of the local network and of this machine.

    Raises:
        RequestError: the URL is refused, does not answer, or holds more.
    """
    with needing("serve", "reading videos from URLs"):
        import aiohttp
    refused: list[str] = []

    def check(address: str) -> None:
        if not (allow_local or is_public(address)):
            refused.append(address)
            raise OSError("the address is of the local network")

    def checked_socket(address: Any) -> socket.socket:
        family, kind, protocol, _, (host, *_) = address
        check(host)
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(socket_factory=checked_socket, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        for _ in range(1 + _MAX_REDIRECTS):
            host = _host_of(url)
            try:
                async with session.get(url, allow_redirects=False) as answer:
                    if answer.status in (301, 302, 303, 307, 308) and "Location" in answer.headers:
                        url = str(answer.url.join(type(answer.url)(answer.headers["Location"])))
                        continue
                    await _save(answer, file, max_bytes)
                    return
            except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError) as error:
                with contextlib.suppress(OSError, ValueError):  # aiohttp resolves no 127.1 nor 2130706433
                    check(socket.inet_ntoa(socket.inet_aton(host)))
                if refused:
                    text = "the URL leads to an address of the local network, which is refused"
                    raise RequestError(403, text) from error
                raise RequestError(422, "the URL cannot be read") from error
    raise RequestError(422, f"the URL leads on more than {_MAX_REDIRECTS} times")


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.scheme in ("http", "https"):
            return parts.hostname
    except ValueError:
        pass
    raise RequestError(400, "url: expected http://… or https://…")


async def _save(answer: Any, file: Any, max_bytes: int) -> None:
    if answer.status != 200:
        raise RequestError(422, f"the URL answers with status {answer.status}")
    num_bytes = 0
    async for part in answer.content.iter_chunked(_CHUNK):
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise RequestError(413, f"the URL holds more than the {max_bytes >> 20} MiB that are allowed")
        file.write(part)
