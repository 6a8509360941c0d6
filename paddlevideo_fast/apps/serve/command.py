"""Serves predictions of a trained network over HTTP, with a page to drop videos on.

Examples:
    paddlevideo-fast serve output/my_set
    paddlevideo-fast serve inference --port 8080 --max_batch 16

MODEL is one of:
    the output folder of a run, such as output/my_set: its best weights are taken
    a folder that `paddlevideo-fast export` wrote, or a program in it (no ending: the fastest)
    weights, a .pdparams file; the config of their training is the config.yaml beside them, or -c

POST /predict takes a video file as the body or as a form, or JSON with `video` (a file in base64), `clip` and
`shape` (pixels in base64). GET / is the page, /model describes the network, /health and /metrics are
for monitoring. Requests beyond --max_queue get status 503. Ctrl-C or SIGTERM: the requests that are worked on
are answered, then the server ends. Nothing of a request stays. It needs the extra `serve`.

Ask it, for example:
    curl --data-binary @video.mp4 http://127.0.0.1:8000/predict
    curl -F file=@video.mp4 "http://127.0.0.1:8000/predict?window_sec=2"
"""

import argparse
from typing import Any

from paddlevideo_fast.apps.predict.flags import PROGRAM_OPTIONS, RARE, check_program, make_predictor
from paddlevideo_fast.cli.command import add_import_argument, quiet_import, say
from paddlevideo_fast.command_line import CommandParser, add_options, count, option
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.extras import needing
from paddlevideo_fast.machine import answering_ctrl_c, num_cores

_MAX_READERS = 8  # by default


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


_OPTIONS: dict[str, dict[str, Any]] = {
    "--host": option(
        "address to listen on; 0.0.0.0: all of this machine (default 127.0.0.1, this machine alone)",
        default="127.0.0.1",
    ),
    "--port": option(
        "port; 0: a free one, which the line with the address names (default 8000)",
        type=count(0, 65535),
        default=8000,
    ),
    "--allow_host": option(
        "a name with a dot that the server is reached by, as DNS or a reverse proxy has it; may be "
        "given more than once (addresses and this machine's name need no flag)",
        action="append",
        default=[],
        metavar="NAME",
    ),
    "--max_batch": option("clips that the network computes at a time (default 8)", type=count(1), default=8),
    "--max_wait_ms": option(
        "how long a batch that is not full waits for more clips (default 2)", type=count(0), default=2
    ),
    "--num_readers": option(
        "processes that read videos (default: one per core, 8 at most)", type=count(1), metavar="N"
    ),
}
_LIMITS: dict[str, dict[str, Any]] = {
    "--max_queue": option(
        "requests that have arrived and are worked on or wait; one more gets status 503 (default 64)",
        type=count(1),
        default=64,
    ),
    "--timeout_sec": option("time for a request (default 60)", type=_seconds, default=60.0),
    "--max_mb": option("size of a video file in MiB (default 100)", type=count(1), default=100),
    "--max_sec": option("length of a video (default 600)", type=_seconds, default=600.0),
    "--max_frames": option("frames of a video (default 100000)", type=count(1), default=100_000),
    "--max_pixels": option(
        "pixels of a frame (default 9437184, which is 4096×2304)", type=count(1), default=4096 * 2304
    ),
    "--memory_mb": option(
        "most memory for reading one video, in MiB (default 2048)", type=count(64), default=2048
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast serve`."""
    parser = CommandParser("serve", __doc__, check_program)
    add_import_argument(parser)
    add_options(parser, PROGRAM_OPTIONS, RARE)
    add_options(parser, _OPTIONS)
    add_options(parser, _LIMITS, rare=_LIMITS)
    return parser


def run(args: argparse.Namespace) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        MissingExtraError: a package is missing.
        UsageError: the address cannot be listened on.
        PaddleVideoFastError: as of `make_predictor`.
    """
    prepare_process(args.config, args.override)
    with quiet_import():
        with needing("serve", "a server"):
            import fastapi  # noqa: F401
            import python_multipart  # noqa: F401  # reads forms, for FastAPI
            from uvicorn import Server
        from paddlevideo_fast.apps.serve.app import make_app
        from paddlevideo_fast.apps.serve.listening import listen, server_config
        from paddlevideo_fast.apps.serve.service import Service
    listening = listen(args.host, args.port)
    service = Service(make_predictor(args), _service_options(args))
    name, port = service.description()["model_name"], listening.getsockname()[1]
    host = f"[{args.host}]" if ":" in args.host else args.host
    with answering_ctrl_c():  # FastAPI imports more now, and an import may lose a `KeyboardInterrupt`
        server = Server(server_config(make_app(service, [args.host, *args.allow_host])))
    with answering_ctrl_c(server.handle_exit):  # uvicorn sets it later, and imports more before
        say(f"{name} answers at http://{host}:{port}/ ; Ctrl-C ends it")
        server.run(sockets=[listening])
    raise KeyboardInterrupt  # SIGTERM has ended the process


def _service_options(args: argparse.Namespace) -> Any:
    from paddlevideo_fast.apps.serve.reading import VideoLimits
    from paddlevideo_fast.apps.serve.service import ServiceOptions

    limits = VideoLimits(args.max_sec, args.max_frames, args.max_pixels, memory_mb=args.memory_mb)
    return ServiceOptions(
        max_batch=args.max_batch,
        max_wait_ms=args.max_wait_ms,
        max_queue=args.max_queue,
        num_readers=args.num_readers or min(num_cores(), _MAX_READERS),
        max_mb=args.max_mb,
        timeout_sec=args.timeout_sec,
        limits=limits,
    )
