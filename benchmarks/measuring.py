"""What the benchmarks share: sides measured in turn, child processes, clips, results shown and kept."""

import argparse
import contextlib
import datetime
import inspect
import io
import json
import logging
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import av
import numpy as np

from paddlevideo_fast.cli import add_config_arguments
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report import save_json
from paddlevideo_fast.machine import num_cores

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_PACKAGES = ("paddlepaddle", "paddlepaddle-gpu", "av", "decord", "numpy", "opencv-python-headless")


def in_turn(sides: Iterable[str], rounds: int, warmup: int = 0) -> Iterator[tuple[int, str]]:
    """(round, side) of measurements side by side: each side goes first in every other round.

    So a machine that becomes slower or faster meanwhile favours no side.

    Args:
        sides: names.
        rounds: how often each side is measured.
        warmup: rounds before these; their numbers are negative.
    """
    names = sorted(sides)
    for turn in range(-warmup, rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            yield turn, name


def time_in_turn(
    sides: Mapping[str, Callable[[int], Any]],
    rounds: int,
    warmup: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds that each side takes in each round; see `in_turn`. A side is called with the round's number."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn, name in in_turn(sides, rounds, warmup):
        began = clock()
        sides[name](turn)
        if turn >= 0:
            seconds[name].append(clock() - began)
    return seconds


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """`over / under`, round by round."""
    return [one / other for one, other in zip(over, under)]


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third quartile."""
    return [float(value) for value in np.quantile(values, (0.25, 0.75))]


def compared(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """What `time_in_turn` returned, by side.

    Returns:
        "ms", the median; "ratio", the baseline's time over this one's, and "spread": the median and the
        quartiles over the rounds.
    """
    rows = {}
    for side, own in seconds.items():
        gains = ratios(seconds[baseline], own)
        rows[side] = {
            "ms": 1e3 * statistics.median(own),
            "ratio": statistics.median(gains),
            "spread": quartiles(gains),
        }
    return rows


def medians(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians of results with the same keys, by key; of lists, element by element."""
    return {
        key: [statistics.median(each) for each in zip(*(result[key] for result in results))]
        if isinstance(value, list)
        else statistics.median(result[key] for result in results)
        for key, value in results[0].items()
    }


def compared_rates(
    found: Mapping[str, Sequence[Mapping[str, float]]], rate: str, baseline: str
) -> list[dict[str, Any]]:
    """A row for each side: the medians of its results.

    Args:
        found: by side, what each round returned.
        rate: the value that is compared: "spread" has its lowest and highest, "ratio" the median over the
            rounds of this side's over the baseline's.
        baseline: a side.
    """
    rates = {side: [each[rate] for each in results] for side, results in found.items()}
    return [
        {
            "side": side,
            **medians(results),
            "spread": [min(rates[side]), max(rates[side])],
            "ratio": statistics.median(ratios(rates[side], rates[baseline])),
        }
        for side, results in found.items()
    ]


def medians_in_turn(
    sides: Mapping[str, Callable[[], Mapping[str, Any]]], rounds: int
) -> dict[str, dict[str, Any]]:
    """The medians of what each side returns, called in turn; a result that has "error" stays as it is."""
    results: dict[str, list[Mapping[str, Any]]] = {name: [] for name in sides}
    for _, name in in_turn(sides, rounds):
        results[name].append(sides[name]())
    return {name: dict(each[0]) if "error" in each[0] else medians(each) for name, each in results.items()}


def json_of_process(words: Sequence[Any], **environment: str | None) -> Any:
    """The last line that a process prints, which is JSON.

    Args:
        words: of the command.
        environment: variables that the process gets in addition to ours; None takes one away.

    Raises:
        PaddleVideoFastError: the process fails; with what it wrote.
    """
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [*map(str, words)],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PaddleVideoFastError(f"a measuring process ended with code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def children_sec() -> float:
    """CPU time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_mib(field: str) -> float:
    """Memory of this process, from /proc/self/status: VmRSS, or its peak, VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


# What an option of a benchmark takes; see `add_options`.
Natural: TypeAlias = Annotated[int, count(0)]
Positive: TypeAlias = Annotated[int, count(1)]


def add_options(parser: CommandParser, run: Callable[..., Any]) -> None:
    """Adds an option for each argument of a benchmark's `run`, and those of `show_run`.

    The docstring of `run` has their help. An argument without a default is a word, or an option that must be
    given where it is keyword-only. `Annotated[…, function]` reads the text of a value with the function,
    `Annotated[…, collection]` has the choices. A sequence takes several values, in one option or in several;
    a tuple one value with each option, a sequence of sequences one sequence.

    Args:
        parser: of the benchmark. What is not given is absent from what it returns.
        run: the benchmark. Its arguments `config`, `override` and `imports` are those of all commands.
    """
    texts = _argument_texts(run)
    parameters = dict(inspect.signature(run).parameters)
    if "config" in parameters:
        add_config_arguments(parser)
        for name in ("config", "override", "imports"):
            del parameters[name]
    for name, parameter in parameters.items():
        is_required = parameter.default is parameter.empty
        keywords = {"help": texts.get(name, "").replace("%", "%%"), **_taken(parameter.annotation)}
        if "nargs" in keywords and is_required:
            keywords["nargs"] = "+"
        if parameter.default and isinstance(parameter.default, int | str):
            keywords["help"] += f" (default {parameter.default})"
        if is_required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            parser.add_argument(name, **keywords)
        else:
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, required=is_required, default=argparse.SUPPRESS, **keywords)
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON instead of text")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="also write the result, as benchmarks/results has it"
    )


def _argument_texts(run: Callable[..., Any]) -> dict[str, str]:
    """Argument → what the docstring says of it."""
    section = (inspect.getdoc(run) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.M)
    return {name: " ".join(text.split()).rstrip(".") for name, text in found}


def _taken(annotation: Any) -> dict[str, Any]:
    """The arguments of `add_argument` for an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return {"action": "store_true"}
    if origin is Annotated:
        kind, how = arguments
        return {**_taken(kind), **({"type": how} if callable(how) else {"choices": list(how)})}
    if origin is Sequence:
        of_each = _taken(arguments[0])
        return {"nargs": "*", **of_each, "action": "append" if "nargs" in of_each else "extend"}
    if origin is tuple:
        return {**_taken(arguments[0]), "action": "append"}
    if type(None) in arguments:
        return _taken(arguments[0])
    return {"type": annotation}


def show_run(run: Callable[..., Any], as_json: bool, save: Path | None, **options: Any) -> None:
    """Runs a benchmark, prints its result, and saves it with its command and environment.

    Args:
        run: returns JSON values, or None where it writes files of its own. The result begins with the
            device, if the benchmark uses Paddle, and with the numbers among the arguments.
        as_json: print JSON, not text.
        save: a file; None: not saved.
        options: arguments of `run`.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    measured = run(**options)
    if measured is None:
        return
    bound = inspect.signature(run).bind(**options)
    bound.apply_defaults()
    result: dict[str, Any] = {}
    if "paddle" in sys.modules:
        result["device"] = sys.modules["paddle"].get_device()
    result |= {name: value for name, value in bound.arguments.items() if type(value) is int}
    result |= measured
    print(json.dumps(result) if as_json else as_text(result))
    if save:
        save_json(record_of(result), save)


def as_text(result: Mapping[str, Any], title: str = "") -> str:
    """A result as text: first its single values, then its lists, and mappings, of rows as tables."""
    rows = [{"": name, **row} for name, row in result.items() if isinstance(row, Mapping)]
    is_flat = not any(isinstance(value, Mapping) for row in rows for value in row.values())
    if rows and len(rows) == len(result) and is_flat:
        return _table(title, rows)
    single, parts = [title] if title else [], []
    for name, value in result.items():
        heading = f"{title}, {name}" if title else name
        if isinstance(value, Mapping):
            parts.append(as_text(value, heading))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            parts.append(_table(heading, value))
        else:
            single.append(f"{name}: {_cell(value)}")
    return "\n\n".join(["\n".join(single)] * (len(single) > bool(title)) + parts)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    lines = [heads, *([_cell(row.get(name, "")) for name in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([title, *texts])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_cell(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else str(value)


def load(name: str) -> Any:
    """The result that benchmarks/results/NAME.json records."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["result"]


def record_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the command, the environment, the date and the revision of its measurement."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{num_cores()} cores, {platform.machine()}"
    return {
        "command": " ".join(["python", *sys.argv]),
        "environment": {"machine": machine, "python": platform.python_version(), **versions_of(*_PACKAGES)},
        "date": datetime.date.today().isoformat(),
        "revision": revision or "unknown",
        "result": result,
    }


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_video(
    path: Path,
    frames: Iterable[np.ndarray],
    codec: str = "libx264",
    rate: float = 30,
    options: Mapping[str, str] | None = None,
    pix_fmt: str = "yuv420p",
) -> Path:
    """Encodes RGB frames; of an odd size the last row or column is left out. Returns the path."""
    stream: Any = None
    with av.open(str(path), "w") as container:
        for frame in frames:
            if stream is None:
                stream = container.add_stream(
                    codec, Fraction(rate).limit_denominator(1001), options=dict(options or {})
                )
                stream.height, stream.width = (size // 2 * 2 for size in frame.shape[:2])
                stream.pix_fmt, stream.codec_context.gop_size = pix_fmt, 120
            picture = np.ascontiguousarray(frame[: stream.height, : stream.width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def tsm_pipeline(size: int) -> dict[str, Any]:
    """The pipeline section of training clips of 8 frames from segments, of `size` pixels."""
    crop = [{"Scale": {"short_size": size * 8 // 7}}, {"MultiScaleCrop": {"target_size": size}}]
    sample = {"name": "Sampler", "num_seg": 8, "seg_len": 1}
    return {"decode": {"name": "VideoDecoder"}, "sample": sample, "transform": [*crop, {"RandomFlip": None}]}


def write_list(folder: Path, videos: Iterable[Path | str], num_classes: int = 1) -> Path:
    """Writes clips.list, with labels in turn, and returns its path."""
    target = folder / "clips.list"
    lines = [f"{Path(video).resolve()} {at % num_classes}\n" for at, video in enumerate(videos)]
    target.write_text("".join(lines), encoding="utf-8")
    return target


def log_to_memory() -> None:
    """Log lines are formatted and written, but to memory: they belong to what is timed, not to the output."""
    logger = logging.getLogger("paddlevideo_fast")
    logger.handlers, logger.propagate = [logging.StreamHandler(io.StringIO())], False
    logger.setLevel(logging.INFO)


def write_clips(folder: Path, num_clips: int = 3, num_frames: int = 120) -> list[Path]:
    """Encodes H.264 clips of 340×256 with a moving texture, for measurements without videos of the user.

    Args:
        folder: gets the files.
        num_clips: number of files.
        num_frames: frames of each.
    """
    paths = []
    for number in range(num_clips):
        rng = np.random.default_rng(number)
        texture = np.repeat(np.repeat(rng.integers(0, 256, (64, 85, 3), np.uint8), 4, 0), 4, 1)
        frames = (np.roll(texture, (at, 2 * at), (0, 1)) for at in range(num_frames))
        paths.append(write_video(folder / f"made_{number}.mp4", frames))
    return paths
