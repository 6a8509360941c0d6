"""The socket of a server and its connections, which are bounded in number and in idle time."""

import asyncio
import errno
import os
import resource
import socket
from typing import Any, ClassVar

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from paddlevideo_fast.errors import UsageError
from paddlevideo_fast.log import get_logger

_MOST_CONNECTIONS = 1024
_BACKLOG = 128
_MOST_FILES = 1 << 16
_IDLE_SEC = 15.0  # until a request has its head
_ACCEPT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_SEC = 60.0  # between two lines about connections that could not be taken
_UNREAD_SEC = 60.0  # until a client has taken a part of its answer


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror or error}") from error


def server_config(app: Any) -> Config:
    """How uvicorn serves an app with as many connections as this process may have files.

    One third of the files is for connections, one for what requests open, and one for connections that were
    taken in the same moment and are closed at once.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    num_free = max(soft, most) - len(os.listdir("/proc/self/fd"))
    number = max(min(_MOST_CONNECTIONS, num_free // 3), 1)
    return Config(
        app,
        http=type("Connection", (_Connection,), {"most": number}),
        ws="none",
        backlog=min(max(number // 2, 1), _BACKLOG),  # so that connections of one moment do not end each other
        log_config=None,
        log_level="error",
        access_log=False,
    )


class _Connection(H11Protocol):
    """A connection that ends where its client neither sends a request nor takes its answer.

    Where there are too many, the oldest one ends of those that wait for their clients.

    Attributes:
        most: connections at a time.
    """

    most: ClassVar[int]
    _idle_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _made_at = 0.0

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._made_at = self.loop.time()
        self._wait_for_request(None)
        if len(self.connections) > self.most:
            own = [each for each in self.connections if isinstance(each, _Connection)]
            oldest = min(filter(_Connection._is_waiting, own), key=lambda each: each._made_at)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop(self._idle_timer, self._unread_timer)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._wait_for_request(answered)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(_UNREAD_SEC, self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self._stop(self._unread_timer)
        self._unread_timer = None
        self._wait_for_request(self.cycle)

    def _wait_for_request(self, last: Any) -> None:
        self._stop(self._idle_timer)
        self._idle_timer = self.loop.call_later(_IDLE_SEC, self._end_idle, last)

    def _end_idle(self, last: Any) -> None:
        is_idle = self.cycle is last and (last is None or last.response_complete)
        if is_idle and self._unread_timer is None:
            self.transport.abort()

    def _is_waiting(self) -> bool:
        is_asked = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        return is_asked or self._unread_timer is not None or self.transport.is_closing()

    @staticmethod
    def _stop(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()


class AcceptErrors:
    """Logs once a minute that no connection can be taken for lack of files; asyncio reports each attempt."""

    _logged_at = -_LOG_SEC

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See `loop.set_exception_handler`."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _ACCEPT_ERRORS):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged_at >= _LOG_SEC:
            self._logged_at = loop.time()
            get_logger(__name__).warning("connections cannot be taken: %s", error.strerror)
