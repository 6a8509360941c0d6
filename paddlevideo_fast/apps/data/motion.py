"""A small data set in which only the motion shows the class: `paddlevideo-fast data motion`.

A textured sprite moves over a textured background. Its state has four parts: x, y, size (log2 of the scale)
and angle. Each class moves one part up or down at constant speed; the other three stand still. So that no
single frame tells the class, every part of every clip is drawn alike:

    value(t) = middle + sweep * phase(t)         middle, sweep: drawn the same way for all classes
    phase(t) = (t - (T-1)/2) / (T-1)             the moving part: from -1/2 to 1/2, or back
    phase(t) = phase of one random time          a part that stands still

At a random time, each part of each class then has the same distribution, independent of the other parts, and
a clip of one class played backwards is a clip of its opposite. Texture, shape and background are drawn
without the class.

With `--motions 2` two parts move at once, each in its own direction, and the clip has both classes.
"""

import argparse
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from paddlevideo_fast.apps.data.encoding import write_h264
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.io.files import atomic_write, sweep
from paddlevideo_fast.io.locks import LOCK, only_writer
from paddlevideo_fast.jobs.executor import Executor, run_all
from paddlevideo_fast.jobs.flags import share, tool_parser
from paddlevideo_fast.jobs.run import Provenance, ToolError, earlier_run, lines_of, write_lines
from paddlevideo_fast.loader.tables import Row

# class → (part of the state, direction). y points down, so a rising angle turns to the right.
CLASSES: dict[str, tuple[int, int]] = {
    "left": (0, -1),
    "right": (0, 1),
    "up": (1, -1),
    "down": (1, 1),
    "grow": (2, 1),
    "shrink": (2, -1),
    "turn_left": (3, -1),
    "turn_right": (3, 1),
}

# Half width of the range of `middle`, then least and greatest sweep. x and y in picture widths from the
# centre, size in octaves, angle in radians.
_MIDDLE = np.array([0.10, 0.10, 0.2, np.pi])
_SWEEP_MIN = np.array([0.60, 0.60, 1.2, 2.5])
_SWEEP_MAX = np.array([0.78, 0.78, 1.7, 4.0])

_SPRITE_SCALE = 0.66  # the sprite's side in picture widths at size 0


def draw_states(name: str, num_frames: int, rng: np.random.Generator) -> np.ndarray:
    """The sprite's state over a clip of class `name`; several classes are joined by a +.

    Returns:
        float64 [T, 4]: x, y, size, angle.
    """
    phases = np.arange(num_frames) / max(num_frames - 1, 1) - 0.5
    middle = rng.uniform(-_MIDDLE, _MIDDLE)
    sweep = rng.uniform(_SWEEP_MIN, _SWEEP_MAX)
    still = rng.choice(phases, 4)
    states = np.tile(middle + sweep * still, (num_frames, 1))
    for part, direction in map(CLASSES.__getitem__, name.split("+")):
        states[:, part] = middle[part] + sweep[part] * direction * phases
    return states


def render_clip(name: str, num_frames: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """One clip of class `name`, or of several joined by a +: uint8 [T, size, size, 3], RGB."""
    states = draw_states(name, num_frames, rng)
    background = _texture(size, rng, contrast=0.4)
    side = 64
    sprite = np.dstack([_texture(side, rng, contrast=1.4), np.ones((side, side), np.float32)])
    sprite *= _blob(side, rng)[..., None]  # alpha is in the colours already, so edges blend without a halo
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for frame, (x, y, octaves, angle) in zip(frames, states):
        scale = _SPRITE_SCALE * size / side * 2.0**octaves
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        middle = (side - 1) / 2
        centre_x, centre_y = (0.5 + x) * size - 0.5, (0.5 + y) * size - 0.5
        shift = centre_x - (cos - sin) * middle, centre_y - (sin + cos) * middle
        matrix = np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])
        layer = cv2.warpAffine(sprite, matrix, (size, size), flags=cv2.INTER_LINEAR)
        picture = background * (1.0 - layer[..., 3:]) + layer[..., :3]
        np.clip(picture, 0, 255, out=picture)
        frame[:] = picture
    return frames


def _texture(side: int, rng: np.random.Generator, contrast: float) -> np.ndarray:
    """Smooth colour noise of three octaves around a random colour: float32 [side, side, 3] in 0 to 255."""
    texture = np.empty((side, side, 3), np.float32)
    texture[:] = rng.uniform(60, 196, 3)
    for cells, weight in ((3, 34.0), (7, 26.0), (15, 14.0)):
        grid = rng.standard_normal((cells, cells, 3), np.float32) * np.float32(contrast * weight)
        texture += cv2.resize(grid, (side, side), interpolation=cv2.INTER_LINEAR)
    return np.clip(texture, 0, 255, out=texture)


def _blob(side: int, rng: np.random.Generator) -> np.ndarray:
    """A star-shaped mask without symmetry: float32 [side, side] in 0 to 1."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    radius = np.ones_like(angles)
    for wave in (1, 2, 3):
        radius += rng.uniform(0.05, 0.22) * np.cos(wave * angles + rng.uniform(0, 2 * np.pi))
    radius *= 0.48 * side / radius.max()
    corners = np.stack([np.cos(angles), np.sin(angles)], 1) * radius[:, None] + (side - 1) / 2
    mask = np.zeros((side, side), np.uint8)
    cv2.fillPoly(mask, [np.round(corners * 16).astype(np.int32)], 255, lineType=cv2.LINE_AA, shift=4)
    return mask.astype(np.float32) / 255


# --- the data set

_TOOL = "make_motion_dataset"
_VERSION = 1  # raised when the same options give other clips
_SPLITS = ("train", "valid")
_Task = tuple[str, str, int, int, tuple[int, int, int]]


def make(argv: Sequence[str] | None = None) -> int:
    """Makes a small video data set in which only the motion shows the class.

    Textured sprites move over textured backgrounds: left, right, up, down, grow, shrink, turn_left,
    turn_right. A single frame does not show the class: a network that looks at frames one by one stays near
    chance, a network that relates frames does not. The same options give the same files. After a stop, run
    the same command again to continue.

    Writes to --output: train/ and valid/ with H.264 clips, train.list and valid.list (lines `path label`,
    paths relative to --output: the config's data_prefix), classes.txt (one class name a line) and
    provenance.json (the options).

    With --motions 2 a clip shows two motions at once, such as to the left and growing, and has two labels.
    The lists are train.jsonl and valid.jsonl then.

    Example:
        paddlevideo-fast data motion --output data/motion --train 10000 --valid 400
        paddlevideo-fast data motion --output data/two_motions --motions 2
    """
    args, options = _parse(argv)
    output: Path = args.output
    counts = {"num_train": args.train, "num_valid": args.valid, "num_classes": len(options["classes"])}
    result = {"output": output, **counts}
    if _is_complete(output, options):
        print_result({**result, "is_new": False}, args.json, _as_text)
        return 0
    classes = options["classes"]
    shown = _shown(classes, args.motions)
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_writer(output))
        stack.enter_context(Provenance(_TOOL, options).kept_in(output))
        tasks: list[_Task] = []
        for split_number, split in enumerate(_SPLITS):
            sweep(output / split, alone=True)
            stack.callback(sweep, output / split)  # after Ctrl-C, of workers that were killed
            for place in range(options[split]):
                path = output / _clip_path(split, place)
                if not path.is_file():
                    key = (args.seed, split_number, place)
                    tasks.append((str(path), shown[place % len(shown)], args.frames, args.size, key))
        for _ in run_all(_write_clip, tasks, Executor(args.workers), "clips"):
            continue
        for split, list_name in zip(_SPLITS, _list_names(args.motions)):
            rows = []
            for place in range(options[split]):
                name = _clip_path(split, place)
                labels = [classes.index(motion) for motion in shown[place % len(shown)].split("+")]
                rows.append((name, Row(0, name, tuple(labels))))
            write_lines(output / list_name, lines_of(rows, args.motions > 1)[0])
        write_lines(output / "classes.txt", classes)
    print_result({**result, "is_new": True}, args.json, _as_text)
    return 0


def _as_text(result: Mapping[str, Any]) -> str:
    if not result["is_new"]:
        return f"{result['output']}: complete already, nothing to do"
    text = "{output}: {num_train} training and {num_valid} validation clips of {num_classes} classes"
    return text.format_map(result)


def _shown(classes: Sequence[str], num_motions: int) -> list[str]:
    """What the clips show in turn: the classes, or pairs that move two parts of the state, joined by a +."""
    if num_motions == 1:
        return list(classes)
    pairs = itertools.combinations(classes, 2)
    pairs_shown = [f"{one}+{other}" for one, other in pairs if CLASSES[one][0] != CLASSES[other][0]]
    if not pairs_shown:
        raise ToolError(
            f"--motions 2: {', '.join(classes)} cannot be seen at once; add classes of another kind"
        )
    return pairs_shown


def _list_names(num_motions: int) -> list[str]:
    return [f"{split}.{'list' if num_motions == 1 else 'jsonl'}" for split in _SPLITS]


def make_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data motion`."""
    parser = tool_parser("data motion", make.__doc__)
    parser.add_argument(
        "--output", default=Path("data/motion"), help="folder to write to (default data/motion)"
    )
    parser.add_argument(
        "--train", type=count(1), default=10000, help="number of training clips (default 10000)"
    )
    parser.add_argument(
        "--valid", type=count(0), default=400, help="number of validation clips (default 400)"
    )
    text = "width and height in pixels, even (default 64)"
    parser.add_argument("--size", type=count(16, even=True), default=64, help=text)
    parser.add_argument("--frames", type=count(2), default=24, help="frames a clip (default 24)")
    text = "class names joined by commas; their order is the order of the labels"
    parser.add_argument("--classes", type=str, metavar="NAMES", default=",".join(CLASSES), help=text)
    text = "motions that a clip shows at once; with 2 it has two labels (default 1)"
    parser.add_argument("--motions", type=int, choices=(1, 2), default=1, help=text)
    parser.add_argument("--seed", help="random seed (default 0)")
    parser.add_argument("--workers")
    share(parser, "--json")
    return parser


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line, and the options that decide the content, as provenance.json keeps them."""
    args = make_parser().parse_args(argv)
    classes = [name.strip() for name in args.classes.split(",") if name.strip()]
    unknown = sorted(set(classes) - set(CLASSES))
    if unknown:
        raise ToolError(f"--classes: unknown {', '.join(unknown)}; known: {', '.join(CLASSES)}")
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ToolError("--classes: give two or more different names")
    keys = ("train", "valid", "size", "frames", "seed")
    options = {"version": _VERSION, "classes": classes, **{key: getattr(args, key) for key in keys}}
    if args.motions > 1:  # sets of one motion keep the options that they were made with
        options["motions"] = args.motions
    return args, options


def _is_complete(output: Path, options: dict[str, Any]) -> bool:
    """Whether the data set is there already.

    Raises:
        ToolError: something else is there.
    """
    earlier = earlier_run(output, _TOOL) if output.is_dir() else None
    if earlier is None:
        foreign = not output.is_dir() or any(path.name != LOCK for path in output.iterdir())
        if output.exists() and foreign:
            raise ToolError(f"{output} exists and is not a motion data set; choose another --output")
        return False
    before = earlier.options
    differing = sorted(key for key in {*before, *options} if before.get(key) != options.get(key))
    if differing:
        raise ToolError(
            f"{output} holds a data set made with another {', '.join(differing)} "
            f"({', '.join(f'{key}: {before.get(key)}' for key in differing)}); "
            "remove the folder or choose another --output"
        )
    clips = [_clip_path(split, place) for split in _SPLITS for place in range(options[split])]
    files = ["classes.txt", *_list_names(options.get("motions", 1)), *clips]
    return earlier.complete and all((output / path).is_file() for path in files)


def _clip_path(split: str, place: int) -> str:
    """A clip's path below the output folder; it does not tell the class."""
    return f"{split}/{place:06d}.mp4"


def _write_clip(task: _Task) -> None:
    """Renders and writes one clip; the key (seed, split, place) decides everything that is random."""
    path, name, num_frames, size, key = task
    clip = render_clip(name, num_frames, size, np.random.default_rng(list(key)))
    pictures = (av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in clip)
    x264 = {"crf": "23", "preset": "ultrafast", "tune": "fastdecode", "x264-params": "log-level=-1"}
    with atomic_write(path, sync=False) as partial:  # quick to write and to read, the same bytes each time
        write_h264(partial, pictures, Fraction(24), x264, {"gop_size": 8}, {"fflags": "bitexact"})
