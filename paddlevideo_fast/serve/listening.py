"""The socket of a server."""

import socket

from paddlevideo_fast.errors import UsageError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror or error}") from error
