"""Stores of objects for tests: plain HTTP with ranges, and S3 (moto), each slow or broken as a test asks.

    with http_store() as store:                    # s3_store() for S3; both run in a process of their own
        url = store.publish(folder)                # "http://127.0.0.1:40123/0/"; S3: "s3://videos/0/"
        store.delay_sec = 0.02                     # each request waits that long
        store.fault("reset", "*.pack", times=2)    # the next two requests for such an object
        ...
        assert store.num_requests == 3 and store.num_bytes < 5000
        store.reset()                              # no faults, no delay, counters at 0

`store.environment` holds what a process needs to reach the store: for S3 the end point and made-up keys. The
pytest fixtures of the same names set it. Faults, delay and counters belong to the server: any process may set
or read them with `Store(address, kind)`.

The faults, by name (`FAULTS`):

    timeout      no answer, until the client hangs up
    close        the connection is closed without an answer
    reset        the connection is reset in the middle of the body
    cut          the body ends early, with the Content-Length of the whole
    short        the body is shorter than asked for, and Content-Length says so too
    understated  the body is right, and Content-Length a byte too small: the rest begins the next answer
    long         the body is longer than asked for, and Content-Length says so too
    throttled    503 with Retry-After: 1
    error        500
    denied       403
    unauthorised 401
    gone         404
    changed      another object of that size: other bytes, ETag and date; If-Match of the old one gives 412
    unranged     200 with the whole object, whatever range was asked for
    flipped      one byte of the body has another value
    redirect     302 to a server that does not exist
    drip         the body comes in pieces, ten a second
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import fnmatch
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

FAULTS = (
    *("timeout", "close", "reset", "cut", "short", "understated", "long", "throttled", "error"),
    *("denied", "unauthorised", "gone", "changed", "unranged", "flipped", "redirect", "drip"),
)
BUCKET = "videos"
_CONTROL = "/-control"
_STATUS = {"throttled": 503, "error": 500, "denied": 403, "unauthorised": 401, "gone": 404}
# moto takes any signature, and refuses requests without one
_SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=made-up-key/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=00"
}
_S3_CODES = {
    503: "SlowDown",
    500: "InternalError",
    401: "Unauthorized",
    403: "AccessDenied",
    404: "NoSuchKey",
    412: "PreconditionFailed",
}


# ------------------------------------------------------------------------------ what tests use


class Store:
    """The handle of a running store.

    Args:
        address: `http://host:port` of its server.
        kind: "http" or "s3".

    Attributes:
        url: prefix of the URLs of all objects, with a slash at its end.
        environment: variables that a process needs to reach the store.
    """

    def __init__(self, address: str, kind: str = "http") -> None:
        self.address, self.kind = address, kind
        self.url = f"{address}/" if kind == "http" else f"s3://{BUCKET}/"
        self.environment: dict[str, str] = {}
        if kind == "s3":
            self.environment = {
                "AWS_ACCESS_KEY_ID": "made-up-key",
                "AWS_SECRET_ACCESS_KEY": "made-up-secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ENDPOINT_URL": address,
            }

    def publish(self, folder: str | Path) -> str:
        """Makes the files below a folder objects of the store; gives their prefix, which ends in a slash."""
        return self.url + self._ask(do="publish", folder=str(Path(folder).resolve()))

    def put(self, url: str, content: bytes) -> None:
        """Writes an object as another user of the store would: without delay, faults and counting."""
        self._ask(do="put", name=self._name(url), content=content.hex())

    def get(self, url: str) -> bytes:
        """The content of an object, without delay, faults and counting; KeyError: there is none."""
        answer = self._ask(do="get", name=self._name(url))
        if answer is None:
            raise KeyError(url)
        return bytes.fromhex(answer)

    def names(self, url: str = "") -> list[str]:
        """The objects whose URLs begin with `url`, without that beginning, sorted."""
        prefix = self._name(url or self.url)
        return sorted(name[len(prefix) :] for name in self._ask(do="names") if name.startswith(prefix))

    def fault(
        self,
        name: str | Sequence[str],
        path: str = "*",
        times: int | None = None,
        after: int = 0,
        method: str = "*",
        every: int = 1,
    ) -> None:
        """Lets requests go wrong.

        Args:
            name: one of `FAULTS`, or several that take turns.
            path: pattern of the paths of objects (`fnmatch`; `*` matches slashes as well).
            times: how many requests; None: all from then on.
            after: how many matching requests go well before.
            method: `GET`, `HEAD`, `PUT` …; `*`: all.
            every: 3: of three matching requests one goes wrong, and two go well.
        """
        names = [name] if isinstance(name, str) else list(name)
        assert set(names) <= set(FAULTS), names
        self._ask(do="fault", names=names, path=path, times=times, after=after, method=method, every=every)

    def reset(self) -> None:
        """Takes away all faults and the delay, and starts to count anew."""
        self._ask(do="reset")

    @property
    def delay_sec(self) -> float:
        """How long each request waits before it is answered, in seconds."""
        return self._ask(do="state")["delay_sec"]

    @delay_sec.setter
    def delay_sec(self, value: float) -> None:
        self._ask(do="set", delay_sec=value)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests since `reset`: method, path, range, status, num_bytes (of the body), fault."""
        return self._ask(do="state")["requests"]

    @property
    def num_requests(self) -> int:
        """How many requests came since `reset`."""
        return len(self.requests)

    @property
    def num_bytes(self) -> int:
        """How many bytes of bodies went out since `reset`."""
        return sum(request["num_bytes"] for request in self.requests)

    def _name(self, url: str) -> str:
        assert url.startswith(self.url), (url, self.url)
        return url[len(self.url) :]

    def _ask(self, **question: Any) -> Any:
        request = urllib.request.Request(self.address + _CONTROL, json.dumps(question).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def http_store() -> Iterator[Store]:
    """A plain HTTP server with ranges and without listings, in a process of its own."""
    with _process("http") as store:
        yield store


@contextlib.contextmanager
def s3_store() -> Iterator[Store]:
    """Moto's S3 behind the same proxy, in a process of its own; it has one bucket, `videos`."""
    with _process("s3") as store:
        yield store


@contextlib.contextmanager
def _process(kind: str) -> Iterator[Store]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, __file__, kind]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the {kind} server did not start; it ended with {process.wait()}")
        yield Store(address, kind)
    finally:
        # Its sign to end is a line: closing the pipe would not do while a forked worker still holds it.
        process.communicate("end\n", timeout=30)


# ------------------------------------------------------------------------------ the server's process


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class _Folder:
    """Objects that are files of one folder, whose symbolic links lead to published folders."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, name: str, folder: Path) -> None:
        (self.root / name).symlink_to(folder, target_is_directory=True)

    def put(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)

    def get(self, name: str) -> bytes | None:
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def names(self) -> list[str]:
        found = []
        for folder, _, files in os.walk(self.root, followlinks=True):
            found += [os.path.relpath(os.path.join(folder, file), self.root) for file in files]
        return found

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> _Answer:
        name = urllib.parse.unquote(_path_of(target)).lstrip("/")
        path = self.root / name
        if method not in ("GET", "HEAD"):
            return _plain(405)
        if ".." in Path(name).parts or not path.is_file():
            return _plain(404)
        state = path.stat()
        size = state.st_size
        etag = f'"{state.st_mtime_ns:x}-{size:x}"'
        common = {
            "ETag": etag,
            "Last-Modified": email.utils.formatdate(state.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if headers.get("if-match", etag) not in (etag, "*"):
            return _plain(412)
        start, end = _range_of(headers.get("range", ""), size)
        if start >= size > 0:
            return _plain(416, {"Content-Range": f"bytes */{size}"})
        if "range" in headers and size:
            common["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        common["Content-Length"] = str(end - start)
        status = 206 if "range" in headers and size else 200
        if method == "HEAD":
            return _Answer(status, common, b"")
        with open(path, "rb") as file:
            file.seek(start)
            return _Answer(status, common, file.read(end - start))


class _Upstream:
    """Objects of moto's server, which runs in a thread of this process."""

    def __init__(self) -> None:
        import logging

        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints a line for every request
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        self.place = server.get_host_and_port()
        self._own = threading.local()
        assert self.answer("PUT", f"/{BUCKET}", _SIGNED, b"").status == 200

    def publish(self, name: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def put(self, name: str, content: bytes) -> None:
        assert self.answer("PUT", self._target(name), _SIGNED, content).status == 200, name

    def get(self, name: str) -> bytes | None:
        answer = self.answer("GET", self._target(name), _SIGNED, b"")
        return answer.body if answer.status == 200 else None

    def names(self) -> list[str]:
        found: list[str] = []
        more = ""
        while True:
            query = "?list-type=2" + (f"&continuation-token={urllib.parse.quote(more)}" if more else "")
            page = self.answer("GET", f"/{BUCKET}{query}", _SIGNED, b"").body.decode()
            found += [_unescape(key) for key in re.findall("<Key>(.*?)</Key>", page)]
            token = re.search("<NextContinuationToken>(.*?)</NextContinuationToken>", page)
            if token is None:
                return found
            more = token[1]

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> _Answer:
        own = self._own
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(*self.place, timeout=60)
        kept = {name: value for name, value in headers.items() if name not in ("connection", "expect")}
        if method in ("PUT", "POST"):
            kept.pop("transfer-encoding", None)
            kept["content-length"] = str(len(body))
        try:
            own.connection.request(method, target, body or None, kept)
            response = own.connection.getresponse()
        except (OSError, http.client.HTTPException):  # moto closes connections that it likes no more
            own.connection.close()
            own.connection.request(method, target, body or None, kept)
            response = own.connection.getresponse()
        content = response.read()
        given = {name: value for name, value in response.getheaders() if name.lower() != "connection"}
        return _Answer(response.status, given, content)

    def _target(self, name: str) -> str:
        return f"/{BUCKET}/{urllib.parse.quote(name)}"


class _State:
    """What the control address sets and reads."""

    def __init__(self, backend: Any, kind: str) -> None:
        self.backend, self.kind = backend, kind
        self.lock = threading.Lock()
        self.num_published = 0
        self.clear()

    def clear(self) -> None:
        self.delay_sec = 0.0
        self.faults: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    def fault_of(self, method: str, path: str) -> str:
        """The name of the fault that this request gets; empty: none."""
        with self.lock:
            for fault in self.faults:
                if fault["method"] not in ("*", method) or not fnmatch.fnmatchcase(path, fault["path"]):
                    continue
                if fault["after"] > 0:
                    fault["after"] -= 1
                elif fault["times"] is None or fault["times"] > 0:
                    if fault["times"] is not None:
                        fault["times"] -= 1
                    fault["after"] = fault["every"] - 1
                    fault["names"].append(fault["names"].pop(0))
                    return fault["names"][-1]
        return ""

    def control(self, do: str, **given: Any) -> Any:
        """What the handle of a test asks for."""
        if do == "publish":
            with self.lock:
                name, self.num_published = str(self.num_published), self.num_published + 1
            self.backend.publish(name, Path(given["folder"]))
            return f"{name}/"
        if do == "put":
            return self.backend.put(given["name"], bytes.fromhex(given["content"]))
        if do == "get":
            content = self.backend.get(given["name"])
            return None if content is None else content.hex()
        if do == "names":
            return self.backend.names()
        with self.lock:
            if do == "fault":
                self.faults.append(given)
            elif do == "reset":
                self.clear()
            elif do == "set":
                vars(self).update(given)
            elif do == "state":
                return {name: vars(self)[name] for name in ("delay_sec", "requests")}
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: _State

    def log_message(self, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self._read_body()
        if self.path == _CONTROL:
            told = json.dumps(self.state.control(**json.loads(body))).encode()
            self._send(_Answer(200, {"Content-Length": str(len(told))}, told))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = urllib.parse.unquote(_path_of(self.path)).lstrip("/")
        fault = self.state.fault_of(self.command, path)
        entry = {
            "method": self.command,
            "path": path,
            "range": headers.get("range", ""),
            "status": 0,
            "num_bytes": 0,
            "fault": fault,
        }
        with self.state.lock:
            self.state.requests.append(entry)
        time.sleep(self.state.delay_sec)
        if fault in ("timeout", "close"):
            if fault == "timeout":
                self.connection.settimeout(600)
                with contextlib.suppress(OSError):
                    self.connection.recv(1)  # until the client hangs up
            self.close_connection = True
            return
        answer = self._answer(fault, headers, body)
        entry["status"] = answer.status
        entry["num_bytes"] = len(answer.body)
        self._send(answer, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = _serve

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, fault: str, headers: dict[str, str], body: bytes) -> _Answer:
        if fault in _STATUS:
            more = {"Retry-After": "1"} if fault == "throttled" else {}
            return self._failed(_STATUS[fault], more)
        if fault == "redirect":
            return _plain(302, {"Location": "http://127.0.0.1:1/nowhere"})
        asked = dict(headers)
        if fault == "unranged":
            asked.pop("range", None)
        if fault == "changed":
            asked.pop("if-match", None)
        answer = self.state.backend.answer(self.command, self.path, asked, body)
        if answer.status not in (200, 206):
            return answer
        given, content = dict(answer.headers), answer.body
        if fault == "changed":
            etag = given.get("ETag", '""')
            if headers.get("if-match") == etag:
                return self._failed(412, {})
            given["ETag"] = f'"changed-{etag.strip(chr(34))}"'
            given["Last-Modified"] = email.utils.formatdate(2**31 - 1, usegmt=True)
            content = bytes(255 - value for value in content)
        elif fault == "flipped" and content:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        elif fault == "short":
            content = content[: len(content) // 2]
        elif fault == "long":
            content += bytes(1000)
        if fault in ("short", "long") and self.command != "HEAD":
            _set_length(given, len(content))
        return _Answer(answer.status, given, content)

    def _failed(self, status: int, headers: dict[str, str]) -> _Answer:
        if self.state.kind == "s3" and self.command != "HEAD":
            code = _S3_CODES[status]
            content = (
                f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            )
            return _Answer(
                status,
                {**headers, "Content-Type": "application/xml", "Content-Length": str(len(content))},
                content,
            )
        return _plain(status, headers)

    def _send(self, answer: _Answer, fault: str = "") -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if fault == "understated" and name.lower() == "content-length":
                value = str(max(0, len(answer.body) - 1))
            if name.lower() != "transfer-encoding":
                self.send_header(name, value)
        if "Content-Length" not in answer.headers and "content-length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        try:
            self.end_headers()
            if fault in ("reset", "cut"):
                self.wfile.write(answer.body[: len(answer.body) // 2])
                self.close_connection = True
                if fault == "reset":
                    at_once = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                    self.connection.close()
                return
            piece = max(1, len(answer.body) // 20) if fault == "drip" else len(answer.body)
            for start in range(0, len(answer.body), piece or 1):
                self.wfile.write(answer.body[start : start + piece])
                time.sleep(0.1 if fault == "drip" else 0)
        except OSError:  # the client has hung up
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients hang up, and connections are reset
            super().handle_error(request, client_address)


def _plain(status: int, headers: dict[str, str] | None = None) -> _Answer:
    return _Answer(status, {**(headers or {}), "Content-Length": "0"}, b"")


def _path_of(target: str) -> str:
    """What a request asks for, without query and parameters."""
    return re.sub(";[^/]*", "", target.partition("?")[0])


def _range_of(text: str, size: int) -> tuple[int, int]:
    """The first byte and the end of what a Range header asks for, as `range` takes them."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if found is None or not any(found.groups()):
        return 0, size
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _set_length(headers: dict[str, str], length: int) -> None:
    for name in list(headers):
        if name.lower() == "content-length":
            del headers[name]
        elif name.lower() == "content-range":
            unit, _, rest = headers[name].partition(" ")
            first = int(rest.partition("-")[0])
            headers[name] = f"{unit} {first}-{first + length - 1}/{rest.rpartition('/')[2]}"
    headers["Content-Length"] = str(length)


def _unescape(text: str) -> str:
    for name, character in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("amp", "&")):
        text = text.replace(f"&{name};", character)
    return text


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("http", "s3"))
    kind = parser.parse_args().kind
    root = Path(tempfile.mkdtemp(prefix="store-"))
    try:
        backend: Any = _Folder(root) if kind == "http" else _Upstream()
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": _State(backend, kind)}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.readline()  # until the process that started this one says so or dies
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    _main()
    os._exit(0)  # moto's threads are no daemons
