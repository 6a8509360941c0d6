"""The HTTP server: FastAPI over a `Service`."""

import asyncio
import base64
import binascii
import contextlib
import importlib.resources
import json
import math
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from paddlevideo_fast import __version__
from paddlevideo_fast.apps.predict.predictor import Entry
from paddlevideo_fast.apps.serve.errors import RequestError
from paddlevideo_fast.apps.serve.listening import AcceptErrors
from paddlevideo_fast.apps.serve.own_site import OwnSite
from paddlevideo_fast.apps.serve.service import Job, Service
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.sources.untrimmed.windowing import Windowing

logger = get_logger(__name__)

Prepared = Callable[[Job], tuple[Entry, int]]
_GONE = 499  # nobody is there any more to see it
_POLL_SEC = 0.5
_MAX_JSON_MIB = 16  # it is held in memory
_MAX_SIZE = 1 << 31  # of an axis of a clip
_JSON_KEYS = ("video", "clip")
_CURL = "application/x-www-form-urlencoded"  # of `curl -d`, which leaves out line breaks, and --data-binary
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; media-src blob:; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_BINARY = {"type": "string", "format": "binary"}
_IN_JSON: dict[str, dict[str, Any]] = {
    "video": {"type": "string", "description": "a video file in base64"},
    "clip": {"type": "string", "description": "pixels in base64, uint8 in the order of `shape`"},
    "shape": {"type": "array", "items": {"type": "integer"}, "description": "[views,] T, H, W, 3 of `clip`"},
}
_SCHEMAS = {
    "multipart/form-data": {"type": "object", "properties": {"file": _BINARY}},
    "application/octet-stream": _BINARY,
    "application/json": {"type": "object", "properties": _IN_JSON},
}
_CONTENT = {kind: {"schema": schema} for kind, schema in _SCHEMAS.items()}


def make_app(service: Service, names: Iterable[str] = ()) -> FastAPI:
    """The application; it closes the service when it ends.

    Args:
        service: answers.
        names: hosts that the server is reached by, beside addresses, names without a dot and the machine's.
    """
    handler = _Handler(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        yield
        handler.close()
        service.close()

    app = FastAPI(
        title="paddlevideo_fast", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(OwnSite, names=[*names, socket.gethostname()])

    text = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers while the server takes requests."""
        return {"status": "ok"}

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """The model: its name, classes, clips, and the limits of requests."""
        return service.description()

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.post("/predict", openapi_extra={"requestBody": {"required": True, "content": _CONTENT}})
    async def predict(
        request: Request,
        top_k: Annotated[int, Query(ge=1, description="classes to list")] = 5,
        window_sec: Annotated[float | None, Query(gt=0, description="predict windows of so long")] = None,
        stride_sec: Annotated[float | None, Query(gt=0, description="from window to window")] = None,
    ) -> Any:
        """The classes of a video; with window_sec also of each window, and segments with one class."""
        known = "top_k", "window_sec", "stride_sec"
        if unknown := [name for name in request.query_params if name not in known]:
            raise RequestError(400, f"{', '.join(unknown)}: unknown; known: {', '.join(known)}")
        return await handler.answer(request, top_k, _windowing(window_sec, stride_sec))

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 503 else {}
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        texts = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
        return JSONResponse({"error": "; ".join(texts)}, 400)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code)

    return app


def _windowing(window_sec: float | None, stride_sec: float | None) -> Windowing | None:
    if window_sec is None:
        if stride_sec is not None:
            raise RequestError(400, "stride_sec: needs window_sec")
        return None
    try:
        return Windowing(window_sec, stride_sec)
    except PaddleVideoFastError as error:
        raise RequestError(400, str(error)) from error


class _Body:
    """The body of a request, in a file without a name. All bodies share a number of bytes.

    Args:
        space: bytes that are left for all, in one item.
    """

    def __init__(self, space: list[int]) -> None:
        self._space, self._num_held = space, 0
        with _no_room():
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`

    def hold(self, part: bytes) -> bytes:
        """The part, after its size was taken from what is left for all bodies."""
        if len(part) > self._space[0]:
            raise RequestError(503, "other requests fill the space for videos; try again later")
        self._space[0] -= len(part)
        self._num_held += len(part)
        return part

    def write(self, part: bytes) -> None:
        """Adds a part of the video."""
        with _no_room():
            self.file.write(self.hold(part))

    def close(self) -> None:
        """Gives the space back."""
        self.file.close()
        self._space[0] += self._num_held


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(503, f"the server has no room for the request ({error.strerror})") from error


class _Handler:
    """Takes requests for predictions up to a bound, and answers each with one response."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._options = service.options
        self._threads = ThreadPoolExecutor(service.options.max_queue, "requests")
        self._space = [service.options.max_queue * service.options.max_mb << 20]
        self._in_flight = self._num_working = 0

    def close(self) -> None:
        """Waits for the requests that are worked on."""
        self._threads.shutdown()

    async def answer(self, request: Request, top_k: int, windowing: Windowing | None) -> Any:
        """The response of a request for a prediction, which is counted."""
        began, status = time.perf_counter(), 200
        try:
            return await self._answer(request, top_k, windowing)
        except ClientDisconnect:
            status = _GONE
            return Response(status_code=_GONE)
        except RequestError as error:
            status = error.status
            if status in (400, 422) and _kind(request) == _CURL:
                line = f"curl --data-binary @video.mp4 {request.url.replace(query='')}"
                text = f"{error}; if curl -d sent it, which changes files, type  {line}"
                raise RequestError(status, text) from error
            raise
        except Exception as error:  # of the network or of this package, and not of the request
            status = 500
            logger.exception("a request failed")
            raise RequestError(500, "the server failed at this request; its log says why") from error
        finally:
            self._service.metrics.add_request(status, time.perf_counter() - began)

    async def _answer(self, request: Request, top_k: int, windowing: Windowing | None) -> Any:
        self._require_place()
        job = Job(time.monotonic() + self._options.timeout_sec)
        body = _Body(self._space)
        self._count(1)
        try:
            left = job.deadline - time.monotonic()
            work = await asyncio.wait_for(self._prepared(request, body, top_k, windowing), left)
            self._require_place()
        except BaseException as error:
            self._finish(body)
            if isinstance(error, asyncio.TimeoutError):
                raise RequestError(408, "the request did not arrive in time") from error
            raise
        # the work goes on where a client leaves, so it counts until its end; a slow upload does not count
        self._num_working += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, job)
        future.add_done_callback(lambda done: self._finish(body, done))
        while not (await asyncio.wait([future], timeout=_POLL_SEC))[0]:
            if await request.is_disconnected():
                job.is_gone.set()
                raise ClientDisconnect
        entry, num_clips = future.result()
        return JSONResponse({**entry, "num_clips": num_clips})

    def _require_place(self) -> None:
        if self._num_working >= self._options.max_queue:
            raise RequestError(503, f"{self._num_working} requests are worked on; try again later")

    def _count(self, change: int) -> None:
        self._in_flight += change
        self._service.metrics.set_in_flight(self._in_flight)

    def _finish(self, body: _Body, work: "asyncio.Future[Any] | None" = None) -> None:
        body.close()
        self._count(-1)
        if work is not None:
            self._num_working -= 1
            work.exception()  # nobody else asks for it where the client has left

    async def _prepared(
        self, request: Request, body: _Body, top_k: int, windowing: Windowing | None
    ) -> Prepared:
        """The work of a request, whose body has arrived."""
        kind = _kind(request)
        if kind == "application/json":
            most = min(self._options.max_mb, _MAX_JSON_MIB)
            content = _json(b"".join([body.hold(part) async for part in self._parts(request, most)]))
            if "clip" in content:
                if windowing is not None:
                    raise RequestError(400, "window_sec: a clip is one window; leave it out")
                return partial(self._service.predict_clips, _clips(content), top_k)
            body.write(_bytes(content, "video"))
        elif kind == "multipart/form-data":
            await self._save_form(request, body)
        else:
            async for part in self._parts(request, self._options.max_mb):
                body.write(part)
        with _no_room():
            body.file.flush()
        if not body.file.tell():
            raise RequestError(400, "the request holds no video")
        return partial(self._service.predict_file, body.file.fileno(), windowing, top_k)

    async def _parts(self, request: Request, max_mib: int) -> AsyncIterator[bytes]:
        """The body in parts, up to a size."""
        num_bytes = 0
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > max_mib << 20:
                raise RequestError(413, f"the request is larger than the {max_mib} MiB that are allowed")
            yield part

    async def _save_form(self, request: Request, body: _Body) -> None:
        """Copies the only file of a form."""
        parts = self._parts(request, self._options.max_mb)

        async def receive() -> dict[str, Any]:
            async for part in parts:
                return {"type": "http.request", "body": body.hold(part), "more_body": True}
            return {"type": "http.request", "body": b"", "more_body": False}

        try:
            async with Request(request.scope, receive).form(max_files=1, max_fields=8) as form:
                given = [value for value in form.values() if isinstance(value, UploadFile)]
                if not given:
                    raise RequestError(400, "the form holds no file; send one, as curl -F file=@video.mp4")
                while part := await given[0].read(1 << 20):
                    body.write(part)
        except HTTPException as error:
            raise RequestError(400, f"the form cannot be read: {error.detail}") from error


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the request is no JSON") from error
    if not isinstance(content, dict) or sum(key in content for key in _JSON_KEYS) != 1:
        raise RequestError(400, f"expected a JSON object with one of {', '.join(_JSON_KEYS)}")
    return content


def _bytes(content: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(content[key], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise RequestError(400, f"{key}: expected base64") from error


def _clips(content: Mapping[str, Any]) -> np.ndarray:
    """The pixels of a request, uint8 [V, T, H, W, 3]."""
    data, shape = _bytes(content, "clip"), content.get("shape")
    is_shape = isinstance(shape, list) and all(type(size) is int and 0 < size < _MAX_SIZE for size in shape)
    if not isinstance(shape, list) or not is_shape or len(shape) not in (4, 5):
        raise RequestError(400, "shape: expected [T, H, W, 3], or [views, T, H, W, 3]")
    if math.prod(shape) != len(data):
        raise RequestError(400, f"clip: has {len(data):,} bytes, and shape says {math.prod(shape):,}")
    return np.frombuffer(data, np.uint8).reshape(shape if len(shape) == 5 else [1, *shape])
