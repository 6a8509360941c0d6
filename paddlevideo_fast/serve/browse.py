"""A local page to look at the videos of a list and correct it: `paddlevideo-fast data browse`."""

import json
import secrets
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np

from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.errors import MissingExtraError, PaddleVideoFastError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.tables import list_rows
from paddlevideo_fast.preparation.clips import open_clip
from paddlevideo_fast.preparation.flags import share, tool_parser
from paddlevideo_fast.preparation.lists import read_records
from paddlevideo_fast.preparation.run import class_names, json_lines, spread
from paddlevideo_fast.report.dataset import CONTRADICTED, FINDINGS
from paddlevideo_fast.serve.edits import ConflictError, EditedList, State

_SPRITE_PX = 240  # height of a frame
_NUM_FRAMES = 16
_WRITE_SEC = 1.0


def browse_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data browse`."""
    parser = tool_parser("data browse", browse.__doc__)
    parser.add_argument("--list", required=True, positional="LIST")
    share(parser, "--data_prefix", "--kind", "--suffix", "--classes")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="folder of `data report`, whose findings are shown (default: the one beside the list, if it is "
        "there)",
    )
    parser.add_argument(
        "--output",
        type=as_path,
        metavar="FILE",
        help="the new list, .jsonl (default: LIST without its ending, and _edited.jsonl)",
    )
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        help="show the frames that the sampler of PIPELINE.valid takes (default: 16 from all over the video)",
    )
    parser.add_argument("--port", type=count(0, 65535), default=8010, help="0: a free one (default 8010)")
    return parser


def browse(argv: Sequence[str] | None = None) -> None:
    """Serves a page on this machine to look at the videos of a list and to correct it.

    Filter by class, finding and name; play the clip that a network would see; choose another class, drop a
    video, or mark spans. Each change goes at once to a journal, and with it to a new list; the list itself is
    never changed. Several windows may work at once. The same command goes on where it was. Ctrl-C ends it.

    With `data report --run` before it, the page shows which labels a network contradicts.

    Example:
        paddlevideo-fast data report my_set/train.list --run output/my_folds
        paddlevideo-fast data browse my_set/train.list
    """
    args = browse_parser().parse_args(argv)
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "serve", "a page to browse") from error
    from paddlevideo_fast.serve.listening import listen

    source: Path = args.list
    output: Path = args.output or source.with_name(f"{source.stem}_edited.jsonl")
    report = args.report or source.with_name(f"{source.stem}_report")
    records = read_records(source, args.kind, args.data_prefix, args.suffix, args.classes)
    rows = list(list_rows(str(source), 3 if args.kind == "frames" else 2))
    with only_writer(output.parent, output.name):
        edited = EditedList(source, rows, output)
        names = class_names(args.classes) if args.classes else _names_in(rows)
        clips = Clips(records, args.config)
        pages = Browser(edited, clips, names, list(json_lines(report / FINDINGS)), args.kind == "video")
        listening = listen("127.0.0.1", args.port)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={pages.token}"
        print(f"{source}: {len(rows)} entries; open  {url}  in a browser; Ctrl-C ends it", flush=True)
        config = uvicorn.Config(pages.app(), log_config=None, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


def _names_in(rows: Sequence[Any]) -> list[str]:
    """The names of the classes of a list without a file of them: those in it, or numbers."""
    labels = {label for row in rows for label in row.labels}
    if all(isinstance(label, int) for label in labels):
        return [str(number) for number in range(max(labels, default=-1) + 1)]
    return sorted(map(str, labels))


class Clips:
    """The frames that are shown of an entry.

    Args:
        records: of the list.
        config: whose PIPELINE.valid chooses the frames; None: frames from all over the video.
    """

    def __init__(self, records: Sequence[VideoRecord], config: str | None) -> None:
        self.records = records
        self._sampler: Any = None
        if config is not None:
            from paddlevideo_fast.config.load import load_config
            from paddlevideo_fast.loader.build import build_pipeline

            self._sampler = build_pipeline(load_config(config)["PIPELINE"]["valid"]).sample

    def sprite(self, place: int) -> tuple[bytes, dict[str, Any]]:
        """The frames of a clip side by side, a JPEG, and their number, times and the length of the video.

        Raises:
            VideoDecodeError: the video does not decode.
        """
        record = self.records[place]
        with open_clip(record.path, record.num_frames, record.frames_suffix) as video:
            part = video if record.span is None else video.part(record.span)
            indices = self._indices(part)
            frames = [_scaled(frame) for frame in part.read(indices)]
            fps = part.avg_fps or 25.0
            told = {"frames": len(frames), "times": [round(index / fps, 3) for index in indices]}
            _, data = cv2.imencode(".jpg", np.concatenate(frames, axis=1)[..., ::-1])
            return data.tobytes(), {**told, "length_sec": round(part.num_frames / fps, 3)}

    def _indices(self, video: VideoReader) -> list[int]:
        if self._sampler is None:
            return spread(range(video.num_frames), _NUM_FRAMES)
        from paddlevideo_fast.loader.request import ClipRequest, Middle

        found = self._sampler.sample(video.num_frames, video.avg_fps, ClipRequest(0, 0), Middle())
        return [int(index) for index in np.ravel(found)]


def _scaled(frame: np.ndarray) -> np.ndarray:
    width = max(1, round(frame.shape[1] * _SPRITE_PX / frame.shape[0]))
    return cv2.resize(frame, (width, _SPRITE_PX), interpolation=cv2.INTER_AREA)


class Browser:
    """What the page asks for.

    Args:
        edited: the list.
        clips: shows its videos.
        names: of the classes, by number.
        findings: of `data report`.
        has_files: the entries are video files, which a browser may play.

    Attributes:
        token: a request without it is refused: other pages in the same browser do not know it.
    """

    def __init__(
        self,
        edited: EditedList,
        clips: Clips,
        names: Sequence[str],
        findings: Sequence[Mapping[str, Any]],
        has_files: bool,
    ) -> None:
        self.edited, self.clips, self.names, self.has_files = edited, clips, names, has_files
        self.token = secrets.token_urlsafe(16)
        self._findings: dict[int, list[str]] = {}
        self._margins: dict[int, float] = {}  # by which a network contradicts the label of a line
        for one in findings:
            text = f"{one['finding']}: {one['detail']}"
            self._findings.setdefault(one["line"], []).append(text)
            if one["finding"] == CONTRADICTED:
                self._margins[one["line"]] = one["weight"]
        self._is_dirty = threading.Event()
        self._is_closed = threading.Event()
        self._writer = threading.Thread(target=self._keep_writing, name="list", daemon=True)

    def _keep_writing(self) -> None:
        while not self._is_closed.wait(_WRITE_SEC):
            if self._is_dirty.is_set():
                self._is_dirty.clear()
                self.edited.write()

    def close(self) -> None:
        """Writes the new list and ends."""
        self._is_closed.set()
        self._writer.join()
        self.edited.write()
        self.edited.close()

    def entries(self) -> dict[str, Any]:
        """All entries, as the page keeps them.

        Each is [path, classes, is dropped, spans, version, findings, margin of a contradicted label].
        """
        rows = [
            [row.path, *self._shown(place), self._findings.get(row.line, []), self._margins.get(row.line, 0)]
            for place, row in enumerate(self.edited.rows)
        ]
        number = len(self.edited.changes)
        return {"names": self.names, "rows": rows, "newest": number, "has_files": self.has_files}

    def _shown(self, place: int) -> list[Any]:
        state = self.edited.state(place)
        labels = [self._number_of(label) for label in state.labels]
        return [labels, state.is_dropped, state.spans, self.edited.version(place)]

    def _number_of(self, label: int | str) -> int:
        return label if isinstance(label, int) else self.names.index(label)

    def news(self, since: int) -> dict[str, Any]:
        """What has changed after change `since`."""
        changes = self.edited.changes
        places = sorted({change.place for change in changes[since:]})
        return {"newest": len(changes), "rows": [[place, *self._shown(place)] for place in places]}

    def change(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the change that a page asks for.

        Raises:
            PaddleVideoFastError: it is malformed.
            ConflictError: the entry has changed meanwhile.
        """
        after = self._state(wanted)
        change = self.edited.change(wanted["place"], wanted["seen"], after, str(wanted["client"]))
        self._is_dirty.set()
        return self.news(change.number - 1)

    def undo(self, client: str) -> dict[str, Any]:
        """Takes the last change of a page back; see `EditedList.undo`."""
        change = self.edited.undo(client)
        self._is_dirty.set()
        return {**self.news(change.number - 1), "place": change.place}

    def _state(self, wanted: Mapping[str, Any]) -> State:
        try:
            place, labels, spans = wanted["place"], wanted["labels"], wanted["spans"]
            if not 0 <= place < len(self.edited.rows) or not isinstance(wanted["seen"], int):
                raise ValueError(place)
            uses_names = any(isinstance(label, str) for label in self.edited.rows[place].labels)
            named = [self.names[label] if uses_names else int(label) for label in labels]
            times = [[float(start), float(end)] for start, end in spans]
            if not named or any(not 0 <= label < len(self.names) for label in labels):
                raise ValueError(labels)
            if any(not 0 <= start < end for start, end in times):
                raise ValueError(spans)
            return State(named, bool(wanted["dropped"]), times)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PaddleVideoFastError(f"the change is malformed: {error}") from error

    def app(self) -> Any:
        """The application; when it ends, the new list is written."""
        from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
        from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response

        from paddlevideo_fast.serve.browse_page import PAGE
        from paddlevideo_fast.serve.page import PAGE_HEADERS

        def known(token: Annotated[str, Query()] = "", x_token: Annotated[str, Header()] = "") -> None:
            if not secrets.compare_digest((x_token or token).encode(), self.token.encode()):
                raise HTTPException(403, "open the page with the address that the command has printed")

        def place_of(place: int) -> int:
            if not 0 <= place < len(self.edited.rows):
                raise HTTPException(404, "there is no such entry")
            return place

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            self._writer.start()
            yield
            self.close()

        app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, dependencies=[Depends(known)])

        @app.get("/")
        def page() -> HTMLResponse:
            policy = PAGE_HEADERS["Content-Security-Policy"].replace("blob:", "'self'")
            headers = {**PAGE_HEADERS, "Content-Security-Policy": policy.replace("data:", "data: blob:")}
            return HTMLResponse(PAGE, headers=headers)

        @app.get("/entries")
        def entries() -> Response:
            return Response(json.dumps(self.entries()), media_type="application/json")

        @app.get("/news")
        def news(since: int) -> dict[str, Any]:
            return self.news(since)

        @app.get("/clip/{place}")
        def clip(place: Annotated[int, Depends(place_of)]) -> Response:
            data, told = self.clips.sprite(place)
            return Response(data, media_type="image/jpeg", headers={"X-Clip": json.dumps(told)})

        @app.get("/video/{place}")
        def video(place: Annotated[int, Depends(place_of)]) -> FileResponse:
            return FileResponse(self.clips.records[place].path)

        @app.post("/change")
        def change(wanted: dict[str, Any]) -> dict[str, Any]:
            return self.change(wanted)

        @app.post("/undo")
        def undo(wanted: dict[str, Any]) -> dict[str, Any]:
            return self.undo(str(wanted.get("client", "")))

        @app.exception_handler(PaddleVideoFastError)
        async def refused(request: Request, error: PaddleVideoFastError) -> JSONResponse:
            return JSONResponse({"error": str(error)}, 409 if isinstance(error, ConflictError) else 422)

        return app
