"""Looks for configs and overrides that end in anything but a config or an error of the project.

    python tests/fuzz_config.py --minutes 10          # runs until then, and prints what it finds
    python tests/fuzz_config.py --seed 123            # one case again, with its traceback

A case changes one of the configs of the repository, or writes one that is made to grow, and adds overrides.
The config is loaded, checked, saved, loaded again and parsed into a `RunSpec`; then its pipelines choose the
frames of a clip, and the run is planned. A case is a finding where an error is raised that is not the
project's, where it takes more than 2 s of CPU time or 200 MB more memory than the process has, or where a
message has a line of more than 5000 characters.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__ == "__main__":  # of the checkout, wherever the package may be installed
    sys.path[0] = str(Path(__file__).parents[1])

from paddlevideo_fast import log
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest, VideoRecord, build_pipeline
from tests.support.isolated import Lost, map_isolated

CONFIGS = Path(__file__).parents[1] / "configs"
GOOD = CONFIGS / "quickstart" / "tsm_motion.yaml"
MAX_SECONDS = 2.0
MAX_BYTES = 200 * 2**20
MAX_MESSAGE = 500_000  # a hundred problems of 4000 characters, and their frame
CASES_OF_A_PROCESS = 2000

SCALARS = """
0|-1|1|7|65536|65537|2147483648|4294967296|9223372036854775808|100000000000000000000000000
-100000000000000000000|1e400|-.inf|.nan|1e-400|-0.0|1_0|0x|0xff|0b2|0o8|1:1:1|+|.|-|~|null|yes|no|on|=|<<|''
""|x|é|[]|{}|[null]|[[]]|{a: }|[1, 2|{a: b|*x|&x 1|&x [*x]|? [a]|{? {a: b} : c}|{1: 2}|{null: 1}|{on: 1}|- a
a: b: c|@|`|%|!|! a|!<|!!|!!x y|!a!b c|!!bool abc|!!bool ''|!!int ''|!!int abc|!!int 1:a|!!int 0b|!!int _
!!float x|!!float ''|!!float 1:a|!!null x|!!str 1|!!binary x|!!binary '====='|!!timestamp 1
!!timestamp 2020-99-99|!!set {a}|!!set a|!!omap [a: 1]|!!omap 1|!!pairs 1|!!map x|!!map [a]|!!seq {a: 1}
!!str [a]|!!str {a: b}|!!merge x|!!value x|!!python/name:os.system|!!python/object/new:a
!<tag:yaml.org,2002:int> x|!<> a|2020-01-01|2020-99-99|12:99|'{:99999999999}'|'{:.99999999999}'|'{:{}}'
'{}{}'|'{0.a}'|'{'|'}'|'{x}'|'{:s}'|'{!r:>99999999}'|'%s%s'|'%99999999d'|'../../..'|'/dev/zero'|'/'|'~'
'$HOME'|"a\\0b"|"\\ud800"|"\\x1b[2J"|"\\n"|"\\u202e"|"\\U0010ffff"|[1, a]|[0.5, .nan]|[-1]|[1e400, 2]
[[0, 1], [1]]|[{a: 1}, {a: 1}]|{name: x}|{name: null}
"""
KEYS = """
epochs|model_name|MODEL|MODEL.backbone|MODEL.backbone.name|MODEL.backbone.depth|MODEL.head.num_classes
MODEL.head.name|MODEL.framework|DATASET.batch_size|DATASET.num_workers|DATASET.train.format
DATASET.train.suffix|DATASET.train.file_path|DATASET.test.num_ensemble_views|DATASET.test.num_spatial_crops
DATASET.class_names|PIPELINE.train.sample.num_seg|PIPELINE.train.sample.seg_len|PIPELINE.train.sample.name
PIPELINE.train.sample|PIPELINE.valid.sample.num_frames|PIPELINE.train.transform|PIPELINE.train.transform.0
PIPELINE.train.transform.0.Scale.short_size|PIPELINE.train.decode|PIPELINE.train.transform.1
PIPELINE.train.transform.2.x|PIPELINE.train.transform.99|PIPELINE.train.transform.-1|OPTIMIZER
OPTIMIZER.name|OPTIMIZER.learning_rate|OPTIMIZER.learning_rate.name|OPTIMIZER.weight_decay.value
OPTIMIZER.x.y|METRIC.topk|METRIC.name|MIX|MIX.alpha|EMA|EMA.decay|RUNTIME.cpu_affinity
DISTRIBUTED.sharding_degree|MULTIGRID|MULTIGRID.long_cycle_factors|PRECISEBN.num_iters_preciseBN
GRADIENT_ACCUMULATION.global_batch_size|DALI_LOADER|seed|log_level|resume|weights|output_dir|_BASE_
train_dali|multigrid|INFERENCE|a.b.c|.|a.|=|name|RUNTIME.build_strategy
"""


def items(table: str) -> list[str]:
    """The items of a table whose rows end where a line ends."""
    return table.strip().replace("\n", "|").split("|")


class Case(NamedTuple):
    """A config on disk, and overrides."""

    path: str
    overrides: list[str]


class Finding(NamedTuple):
    """A case that ended otherwise than it may."""

    seed: int
    cause: str
    details: str


# ---- cases


def make_case(rng: random.Random, folder: Path) -> Case:
    """Writes a config into an empty folder."""
    kind = rng.choices([changed, grown, inherited, odd_file], [6, 3, 1, 0.3])[0]
    path = kind(rng, folder)
    return Case(str(path), [override(rng) for _ in range(rng.choice([0, 0, 1, 1, 2, 8]))])


def changed(rng: random.Random, folder: Path) -> Path:
    """A config of the repository with a few changes."""
    shutil.copytree(CONFIGS, folder / "configs")
    files = sorted((folder / "configs").rglob("*.yaml"))
    top = rng.choice([file for file in files if "_base_" not in file.parts])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        file = rng.choice([top, top, rng.choice(files)])
        file.write_text(change(rng, file.read_text("utf-8", "replace")), "utf-8", "replace")
    if rng.random() < 0.1:
        content = bytearray(top.read_bytes())
        for _ in range(rng.randint(1, 5)):
            content[rng.randrange(len(content) or 1) : rng.randrange(len(content) or 1)] = rng.randbytes(2)
        top.write_bytes(content[:1_000_000])
    return top


def change(rng: random.Random, text: str) -> str:
    """A text with one line changed."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    line, value = lines[at], rng.choice(items(SCALARS))
    key, colon, _ = line.partition(":")
    other = rng.choice(lines)
    choices: list[Callable[[], list[str]]] = [
        lambda: [f"{key}{colon} {value}"],
        lambda: [f"{key}{colon} {value}"],
        lambda: [f"{key}{colon} {value}"],
        list,
        lambda: [line, line],
        lambda: [line, other],
        lambda: [other],
        lambda: [" " * rng.randrange(9) + line],
        lambda: [line.lstrip()],
        lambda: [line[: rng.randrange(len(line) + 1)]],
        lambda: [line.replace(rng.choice("abce :-"), rng.choice("abce :-\t#&*!|>'\"%@`,[]{}"))],
        lambda: [f"{key[: len(key) - len(key.lstrip())]}{value}: {rng.choice(items(SCALARS))}", line],
        lambda: [f"{key}: &anchor", *lines[at + 1 : at + 4], f"{key}2: *anchor"],
        lambda: [f"{key[: len(key) - len(key.lstrip())]}<<: {value}", line],
        lambda: [f"{key}{colon} {bomb(rng)}"],
    ]
    lines[at : at + 1] = rng.choice(choices)()
    return "\n".join(lines)


def grown(rng: random.Random, folder: Path) -> Path:
    """A config that is small and means a lot, or is large."""
    path = folder / "grown.yaml"
    path.write_text(rng.choice(GROWTH)(rng), "utf-8", "replace")
    return path


def bomb(rng: random.Random) -> str:
    """A flow value of a line that stands for a lot."""
    count = rng.choice([3, 30, 300, 3000, 60_000])
    return rng.choice(
        [
            "[" * count,
            "[" * count + "]" * count,
            "{a: " * count,
            "[" + "1, " * count + "]",
            "[" + "[], " * count + "]",
            "{" + ", ".join(f"k{i}: {i}" for i in range(count)) + "}",
            "'" + "x" * count * 20 + "'",
            "x y " * count * 5,
            '"' + "\\n" * count * 9 + '"',
            "1" * count * 20,
            "1_" * count * 9,
            "1:" * count * 9 + "1",
            "." + "1" * count,
            "!!int " + "9" * count,
            "!!float " + "1:" * count + "1",
            "!" + "a" * count + " x",
            "&" + "a" * count + " x",
            "? " * count,
            "- " * count,
            "#" * count,
            "{" + "a: 1, " * count + "}",
            "'" + "''" * count + "'",
            "{" + ", ".join(f"<<: {{k{i}: {i}}}" for i in range(count)) + "}",
        ]
    )


def levels(rng: random.Random, item: Callable[[str, int], str], first: str) -> str:
    """Lines of which each refers to the line before it, several times."""
    num_levels, width = rng.choice([(3, 3), (9, 10), (30, 2), (300, 2), (1500, 1), (5, 300), (2, 9000)])
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {item(f'*a{n - 1}', width)}" for n in range(1, num_levels)]
    return "\n".join(lines) + "\n"


GROWTH: list[Callable[[random.Random], str]] = [
    lambda rng: levels(rng, lambda ref, width: "[" + f"{ref}, " * width + "]", "[x]"),
    lambda rng: levels(rng, lambda ref, width: "[" + f"{ref}, " * width + "]", "[]"),
    lambda rng: levels(
        rng, lambda ref, width: "{" + ", ".join(f"k{i}: {ref}" for i in range(width)) + "}", "x"
    ),
    lambda rng: levels(rng, lambda ref, width: f"{{<<: [{f'{ref}, ' * width}], b: 1}}", "{x: 1, y: 2}"),
    lambda rng: levels(rng, lambda ref, width: f"{{<<: [{f'{ref}, ' * width}]}}", "{}"),
    lambda rng: levels(rng, lambda ref, width: "{" + f"<<: {ref}, " * width + "}", "{x: 1}"),
    lambda rng: levels(
        rng, lambda ref, width: f"{{<<: [{f'{ref}, ' * width}], x{width}: {{<<: {ref}}}}}", "{x: []}"
    ),
    lambda rng: levels(rng, lambda ref, width: "{" + f"x: {ref}, " * width + "}", "{x: 1}"),
    lambda rng: levels(rng, lambda ref, width: "{" + f"? {{<<: [{f'{ref}, ' * width}]}} : 1" + "}", "{x: 1}"),
    lambda rng: levels(rng, lambda ref, width: f"!!set {{? {ref}}}", "[x]"),
    lambda rng: levels(rng, lambda ref, width: f"!!omap [{f'? {ref} : {ref}, ' * width}]", "x"),
    lambda rng: levels(rng, lambda ref, width: f"[{ref}]", "x"),
    lambda rng: f"MODEL: {bomb(rng)}\n",
    lambda rng: f"{bomb(rng)}: 1\n",
    lambda rng: f"{'k' * 900}:\n  {'k' * 900}:\n" + "".join(f"    k{i}: !!int x\n" for i in range(9000)),
    lambda rng: "".join(f"key{i}: {i}\n" for i in range(rng.choice([100, 9000, 60_000]))),
    lambda rng: "".join(f"epochs: {i % 2}\n" for i in range(9000)),
    lambda rng: "".join("epochs: 1\n" for _ in range(9000)),
    lambda rng: "big: [" + "1, " * 9000 + "]\n" + "big: 1\n" * 9000,
    lambda rng: "PIPELINE:\n  train:\n    transform:\n" + "      - Scalx: {short_size: 9}\n" * 9000,
    lambda rng: "PIPELINE:\n  train:\n    transform:\n" + "      - Scale: {short_size: 9}\n" * 9000,
    lambda rng: "PIPELINE:\n  train:\n    transform:\n" + "      - Scale: {short_siz: 9}\n" * 9000,
    lambda rng: "x" * rng.choice([10**5, 10**6, 10**7]),
    lambda rng: (
        rng.choice(["\n", " ", "\t", "#", "\0", "- ", "? ", "---\n", "%", "a: b\n", "'", '"'])
        * rng.choice([10**4, 10**5, 10**6])
    ),
    lambda rng: (
        "a: " + rng.choice(["|", ">"]) + "\n" + rng.choice([" x\n", "\n", " \n", "  x\n y\n"]) * 10**5
    ),
]


def inherited(rng: random.Random, folder: Path) -> Path:
    """Files that inherit each other."""
    count, times = rng.choice([(3, 2), (20, 2), (150, 1), (1500, 1), (9, 9), (2, 300)])
    small = "epochs: 1\n"
    large = "".join(f"k{i}: {i}\n" for i in range(9000))
    (folder / "0.yaml").write_text(rng.choice([small, large, "[]", "", "_BASE_: 1.yaml\n"]))
    for number in range(1, count):
        bases = ", ".join([f"{number - 1}.yaml"] * times)
        (folder / f"{number}.yaml").write_text(f"_BASE_: [{bases}]\nk{number}: 1\n")
    top = folder / "top.yaml"
    last = rng.choice(
        [f"{count - 1}.yaml", ".", "..", "/dev/zero", "pipe", "none", "", "a" * 5000, "top.yaml"]
    )
    os.mkfifo(folder / "pipe")
    top.write_text(f"_BASE_: {last or rng.choice(items(SCALARS))}\n")
    return top


def odd_file(rng: random.Random, folder: Path) -> Path:
    """What is no file, or none that ends."""
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    with open(folder / "sparse", "wb") as file:
        file.truncate(2**40)
    special = ["/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem", "/"]
    return folder / rng.choice([*special, "pipe", "loop", "sparse", "a\0b", "a" * 999])


def override(rng: random.Random) -> str:
    """A text for `-o`."""
    key = rng.choice(items(KEYS))
    if rng.random() < 0.1:
        key = rng.choice(
            [f"{key}.{rng.choice(items(SCALARS))}", "a." * 999, "\0", "MODEL." + "x" * 10**5, key + ".0" * 60]
        )
    value = rng.choice([rng.choice(items(SCALARS)), rng.choice(items(SCALARS)), bomb(rng)])
    return rng.choice([f"{key}={value}"] * 20 + [key, value, f"={value}", ""])


# ---- what is done with a case


def use(case: Case) -> None:
    """Loads a config and does what needs neither data nor network."""
    config = load_config(case.path, case.overrides)
    saved = str(Path(case.path).parent / "saved.yaml")
    config.save(saved)
    if load_config(saved) != config and "nan" not in repr(config):
        raise AssertionError("a config that was saved is not what it was")
    spec = RunSpec.of(config)
    for split in spec.splits.values():
        pipeline = build_pipeline(split.pipeline)
        for num_frames in (1, 300):
            video = _Video(num_frames)
            pipeline.plan(video, VideoRecord("x", 0), ClipRequest(0, 0), np.random.default_rng(0))
    plan_run(spec)


class _Video(NamedTuple):
    num_frames: int
    avg_fps: float = 25.0
    width: int = 320
    height: int = 240
    square_size: tuple[int, int] = (320, 240)


class TooLong(BaseException):
    """A case had its CPU time; nothing that it calls may catch this."""


@contextlib.contextmanager
def limits(seconds: float | None, num_bytes: int | None) -> Iterator[None]:
    """The block gets that much CPU time and that much more address space; None is no limit."""

    def stop(*_: Any) -> None:
        raise TooLong

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if num_bytes is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, hard))
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def try_case(
    seed: int, seconds: float | None = MAX_SECONDS, num_bytes: int | None = MAX_BYTES
) -> tuple[str, Finding | None]:
    """How the case of a seed ends ("loads", or the name of an error), and the finding if it is one."""
    with tempfile.TemporaryDirectory() as folder:
        case = make_case(random.Random(seed), Path(folder))
        try:
            with limits(seconds, num_bytes):
                use(case)
        except PaddleVideoFastError as error:
            if len(str(error)) > MAX_MESSAGE or any(len(line) > 5000 for line in str(error).split("\n")):
                return "too much text", Finding(seed, "too much text", str(error)[:300])
            return type(error).__name__, None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return type(error).__name__, Finding(seed, type(error).__name__, traceback.format_exc()[-3000:])
        finally:
            log._warned.clear()
    return "loads", None


@functools.cache
def prepare() -> None:
    """Imports everything, before memory is limited, and keeps the log quiet."""
    logging.disable(logging.CRITICAL)
    load_config(GOOD)


def outcome_of(seed: int) -> str:
    """How the case of a seed ends; prints what was found."""
    prepare()
    outcome, finding = try_case(seed)
    if finding is not None:
        print(f"FOUND {seed} {finding.cause}\n{finding.details}", file=sys.stderr, flush=True)
    return outcome


def run(minutes: float, first: int) -> int:
    """Tries seeds from `first` on in processes of their own; returns the number of findings."""
    counts: Counter = Counter()
    end_sec = time.monotonic() + 60 * minutes
    chunks = (
        range(start, start + CASES_OF_A_PROCESS) for start in itertools.count(first, CASES_OF_A_PROCESS)
    )
    outcomes = itertools.chain.from_iterable(map_isolated(outcome_of, chunk, 120) for chunk in chunks)
    for seed, outcome in zip(itertools.count(first), outcomes):
        if isinstance(outcome, Lost):
            print(f"FOUND {seed} {outcome.cause}")
        counts[outcome.cause if isinstance(outcome, Lost) else outcome] += 1
        if time.monotonic() > end_sec:
            break
    good = {"loads", *(cls.__name__ for cls in _all_errors(PaddleVideoFastError))}
    num_found = sum(count for outcome, count in counts.items() if outcome not in good)
    print(f"{sum(counts.values())} cases, {num_found} findings: {dict(sorted(counts.items()))}")
    return num_found


def _all_errors(cls: type) -> list[type]:
    return [cls, *(below for child in cls.__subclasses__() for below in _all_errors(child))]


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to look")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="try this case only, and show its traceback")
    options = parser.parse_args()
    if options.seed is not None:
        prepare()
        began = time.process_time()
        outcome, finding = try_case(options.seed)
        print(outcome, f"{time.process_time() - began:.2f} s", *(finding or ()), sep="\n")
        return int(finding is not None)
    return int(run(options.minutes, options.first) > 0)


if __name__ == "__main__":
    sys.exit(main())
