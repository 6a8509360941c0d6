"""A line between the ranks of a run: when one rank fails or dies, all ranks say so and end.

A rank that waits in an all_reduce for a rank that is gone waits for ever, or gets an error that names neither
the rank nor its problem. So each rank has a connection to a hub in rank 0, beside Paddle's own connections:

    rank 1 fails    rank 1 --"ValueError: ..."--> hub --"rank 1 failed: ValueError: ..."--> all
    rank 1 dies     rank 1 --(the system closes it)--> hub --"rank 1 died"--> all
    rank 0 dies     its hub with it: all see their connection closed

On each rank a thread waits for the hub's message and ends the process, as the main thread may never return.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from paddlevideo_fast.errors import DistributionError, exit_code
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_CONNECT_SEC = 60
_HELLO_SEC = 5
_VERDICT_SEC = 10
# A rank that fails because another died may report its failure before the hub sees the death.
_SETTLE_SEC = 0.3
# The loss of a machine is noticed after 10 + 4 * 5 seconds.
_KEEPALIVE = {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


@dataclass(frozen=True)
class RankFailure:
    """How a rank ended before its work was done.

    Attributes:
        rank: of the process that ended.
        host: where it ran.
        error: the error that it failed with; None: it died without a message.
        exit_code: with which all ranks end.
    """

    rank: int
    host: str
    error: str | None = None
    exit_code: int = 1

    def __str__(self) -> str:
        how = "died without a word: it was killed" if self.error is None else f"failed: {self.error}"
        return f"rank {self.rank} on {self.host} {how}"


@dataclass(eq=False)
class FailureDetector:
    """Context manager around the work of a rank. All ranks enter and leave it together.

    An exception that leaves the block on one rank ends the processes of all other ranks with its exit code.
    The rank itself ignores SIGTERM from then on, as it is about to end.

    Args:
        rank: of this process.
        gather: returns the values of all ranks, by rank.
        orderly: exceptions that are no failure; all ranks leave with them.
    """

    rank: int
    gather: Callable[[Any], list[Any]]
    orderly: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        self._host = socket.gethostname()
        self._error: str | None = None
        self._line: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> FailureDetector:
        hub = _FailureServer() if self.rank == 0 else None
        hellos = self.gather((hub and hub.address, self._host))
        if hub is not None:
            hub.start(len(hellos))
        host, port, token = hellos[0][0]
        line, cause = self._connect(host, port, token)
        without = [f"rank {rank}: {text}" for rank, text in enumerate(self.gather(cause)) if text]
        try:
            if not without and line is not None:
                _receive(line)  # the hub has heard from all ranks
        except OSError as exc:
            raise DistributionError(
                f"rank {self.rank} on {self._host} lost its line to rank 0: {exc}"
            ) from exc
        if without or line is None:
            self._go_on_without(hub, line, without)
            return self
        _keep_alive(line)
        line.settimeout(None)
        self._line = line
        self._thread = threading.Thread(target=self._wait, args=(line, hellos[0][1]), daemon=True)
        self._thread.start()
        return self

    def _connect(self, host: str, port: int, token: str) -> tuple[socket.socket | None, str | None]:
        """A connection to the hub, or why there is none."""
        try:
            line = socket.create_connection((host, port), timeout=_CONNECT_SEC)
            _send(line, {"token": token, "rank": self.rank, "host": self._host})
        except OSError as exc:
            return None, f"{host}:{port} cannot be reached from {self._host}: {exc}"
        return line, None

    def _go_on_without(
        self, hub: _FailureServer | None, line: socket.socket | None, causes: list[str]
    ) -> None:
        """Trains without the line, on all ranks alike."""
        if line is not None:
            line.close()
        if hub is not None:
            hub.stop()
            logger.warning(
                "the ranks have no line that says when one of them dies, and the others may then wait for "
                "ever: %s; let the machines of a run reach each other on every port from 1024 on",
                "; ".join(causes),
            )

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._line is None or self._thread is None:
            return
        end: RankFailure | None = None
        if error is not None and not isinstance(error, self.orderly):
            # The launcher sends SIGTERM when it sees others end; its exit code would hide this rank's.
            if threading.current_thread() is threading.main_thread():  # no other thread may set it
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._error = f"{type(error).__name__}: {error}"
            end = RankFailure(self.rank, self._host, self._error, exit_code(error))
        with contextlib.suppress(OSError):  # the hub is gone; the thread sees that, too
            _send(self._line, end and asdict(end))
        self._thread.join(None if end is None else _VERDICT_SEC)
        self._line.close()

    def _wait(self, line: socket.socket, hub_host: str) -> None:
        """Runs in a thread; returns when all ranks have done their work, or when this rank itself failed."""
        try:
            word = _receive(line)
            if word is None:
                return
            end = RankFailure(**word)
        except OSError:
            end = RankFailure(0, hub_host)
        if end.rank == self.rank:
            return
        logger.error("%s; this rank ends with it", end)
        if self._error not in (None, end.error):
            logger.error("the error here was %s", self._error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.exit_code)


class _FailureServer:
    """A thread of rank 0 that learns how each rank ends, and then tells all ranks once.

    Attributes:
        address: host, port and a password, without which a connection is refused.
    """

    def __init__(self) -> None:
        host = os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]
        self._server = socket.create_server(("", 0), backlog=4096)
        self.address = host, self._server.getsockname()[1], secrets.token_hex(16)
        self._members: dict[int, tuple[socket.socket, RankFailure]] = {}  # and how it ended if it hangs up

    def start(self, world_size: int) -> None:
        """Starts to wait for all ranks; each takes a file descriptor, and 1,024 is a common limit."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        threading.Thread(target=self._run, args=(world_size,), daemon=True).start()

    def _run(self, world_size: int) -> None:
        with self._server, contextlib.suppress(OSError):  # of `stop`
            while len(self._members) < world_size:
                self._admit()
        if len(self._members) < world_size:
            return
        self._tell(None)  # all are here
        verdict = self._watch()
        self._tell(verdict and asdict(verdict))

    def stop(self) -> None:
        """Waits no longer for ranks that cannot come."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _watch(self) -> RankFailure | None:
        """Waits until all have done their work, or one has failed."""
        failures: list[RankFailure] = []
        with selectors.DefaultSelector() as selector:
            for member in self._members.values():
                selector.register(member[0], selectors.EVENT_READ, member)
            while selector.get_map() and all(end.error for end in failures):
                ready = selector.select(_SETTLE_SEC if failures else None)
                if not ready:
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    end = _end_of(*key.data)
                    if end is not None:
                        failures.append(end)
        # A death first: the failures of other ranks may only be its consequence.
        return min(failures, key=lambda end: end.error is not None, default=None)

    def _tell(self, message: Any) -> None:
        for rank in sorted(self._members, reverse=True):  # rank 0 last: its process may end with it
            with contextlib.suppress(OSError):
                _send(self._members[rank][0], message)

    def _admit(self) -> None:
        line, _ = self._server.accept()
        line.settimeout(_HELLO_SEC)
        try:
            hello = _receive(line)
            if not isinstance(hello, dict) or hello.pop("token", None) != self.address[-1]:
                raise ValueError("not of this run")
        except (OSError, ValueError, RecursionError):
            line.close()
            return
        _keep_alive(line)
        line.settimeout(None)
        self._members[hello["rank"]] = line, RankFailure(**hello)


def _end_of(line: socket.socket, death: RankFailure) -> RankFailure | None:
    """How a member ended; None where its work is done."""
    try:
        word = _receive(line)
    except OSError:
        return death
    return word and RankFailure(**word)


def _send(line: socket.socket, message: Any) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")


def _receive(line: socket.socket) -> Any:
    """The next message, and no byte of the one after it, which may be there already."""
    text = b""
    while not text.endswith(b"\n"):
        byte = line.recv(1)
        if not byte:
            raise ConnectionError("closed by the other side")
        text += byte
    return json.loads(text)


def _keep_alive(line: socket.socket) -> None:
    for name, value in _KEEPALIVE.items():
        level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
        line.setsockopt(level, getattr(socket, name), value)
