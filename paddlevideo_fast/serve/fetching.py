"""Videos that a request names by URL, from public addresses only."""

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from paddlevideo_fast.errors import MissingExtraError
from paddlevideo_fast.serve.errors import RequestError

_MAX_REDIRECTS = 3
_CHUNK = 1 << 16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address is on the internet, also behind the forms of IPv6 that hold one of IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


async def fetch(url: str, file: BinaryIO, max_bytes: int, allow_local: bool) -> None:
    """Writes what a URL holds to a file.

    The address is checked where it is connected to, so a name cannot change its address in between.

    Args:
        url: http or https.
        file: is written.
        max_bytes: the most that is taken.
        allow_local: also from addresses of the local network and of this machine.

    Raises:
        RequestError: the URL is refused, does not answer, or holds more.
    """
    aiohttp = _import_aiohttp()

    class Resolver(aiohttp.ThreadedResolver):  # type: ignore[name-defined]
        async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> Any:
            found = await super().resolve(host, port, family)
            for each in found:
                _require_public(each["host"], allow_local)
            return found

    connector = aiohttp.TCPConnector(resolver=Resolver(), use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        for _ in range(1 + _MAX_REDIRECTS):
            _check_url(url, allow_local)
            try:
                async with session.get(url, allow_redirects=False) as answer:
                    if answer.status in (301, 302, 303, 307, 308) and "Location" in answer.headers:
                        url = str(answer.url.join(type(answer.url)(answer.headers["Location"])))
                        continue
                    await _save(answer, file, max_bytes)
                    return
            except RequestError:
                raise
            except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError) as error:
                raise _refusal_in(error) or RequestError(422, "the URL cannot be read") from error
    raise RequestError(422, f"the URL leads on more than {_MAX_REDIRECTS} times")


async def _save(answer: Any, file: BinaryIO, max_bytes: int) -> None:
    if answer.status != 200:
        raise RequestError(422, f"the URL answers with status {answer.status}")
    num_bytes = 0
    async for part in answer.content.iter_chunked(_CHUNK):
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise RequestError(413, f"the URL holds more than the {max_bytes >> 20} MiB that are allowed")
        file.write(part)


def _check_url(url: str, allow_local: bool) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise RequestError(400, "url: expected http://… or https://…")
    with contextlib.suppress(OSError):
        host = socket.inet_ntoa(socket.inet_aton(host))  # also of 127.1 and 2130706433
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        _require_public(host, allow_local)  # the resolver checks the addresses of names


def _require_public(address: str, allow_local: bool) -> None:
    if not allow_local and not is_public(address):
        raise RequestError(403, "the URL leads to an address of the local network, which is refused")


def _refusal_in(error: BaseException | None) -> RequestError | None:
    """The refusal that a client's error wraps."""
    while error is not None:
        if isinstance(error, RequestError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _import_aiohttp() -> Any:
    try:
        import aiohttp
    except ModuleNotFoundError as error:
        raise MissingExtraError("aiohttp", "serve", "reading videos from URLs") from error
    return aiohttp
