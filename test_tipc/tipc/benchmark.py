"""benchmark_train: measures the speed of a training and writes the files that TIPC's benchmarks read."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from test_tipc.tipc import commands
from test_tipc.tipc.pipeline import OUTPUT
from test_tipc.tipc.places import Place
from test_tipc.tipc.running import Session
from test_tipc.tipc.text import NULL, Text, TipcError

_REPOSITORY = "paddlevideo_fast"
_WARMUP_STEPS = 5
_CASE = re.compile(r"(dynamic|dynamicTostatic)_bs(\d+)_(fp32|fp16|null)_DP_N1C(\d+)")


class Case(NamedTuple):
    """One timed training.

    Attributes:
        to_static: whether the network is traced into a program.
        batch_size: clips a step of one process.
        precision: fp32 or fp16.
        num_devices: number of processes.
    """

    to_static: bool
    batch_size: str
    precision: str
    num_devices: int

    @property
    def device_num(self) -> str:
        """The number of devices as TIPC writes it."""
        return f"N1C{self.num_devices}"

    def model(self, text: Text) -> str:
        """The model's name, batch size and precision."""
        return f"{text.model_name}_bs{self.batch_size}_{self.precision}_DP"

    def file(self, text: Text, kind: str) -> str:
        """The name of a file of this case."""
        static = "d2sT_" if self.to_static else ""
        return f"{_REPOSITORY}_{self.model(text)}_{self.device_num}_{static}{kind}"


class Speed(NamedTuple):
    """The results in the log of a training.

    Attributes:
        ips: clips a second of all processes, over all steps but the first ones.
        loss: loss of the last step.
    """

    ips: float
    loss: float


def run_benchmark(text: Text, params: str | None = None) -> int:
    """Times the cases of a text, or the one that `params` names, and returns the exit code.

    Raises:
        TipcError: the text or `params` is wrong, or a case asks for more GPUs than there are.
    """
    chosen = list(cases(text, params))
    folder = Path(os.environ.get("BENCHMARK_LOG_DIR") or OUTPUT / text.model_name / "benchmark_train")
    session = Session.open(text, folder / "benchmark_log", "results.log")
    for case in chosen:
        place = _place(session, case)
        words = _words(text, case, folder / "output" / case.file(text, "output"))
        launcher = place.launcher(str(folder / "train_log" / case.file(text, "workers")))
        variables = {**_flags(text), **({} if place.launched else place.environment)}
        if not place.launched:
            _profile(session, words, folder / "profiling_log" / case.file(text, "profiling"), variables)
        began_sec = time.monotonic()
        log = folder / "train_log" / case.file(text, "log")
        if not session.run([*launcher, *words], log, variables):
            continue
        speed = read_speed(log)
        if speed is None:
            session.fail(f"Run failed - {text.model_name} - {log}: has no more than {_WARMUP_STEPS} steps")
            continue
        record = _record(session, case, place, speed, time.monotonic() - began_sec)
        index = folder / "index" / case.file(text, "speed")
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        session.say(f"ips: {speed.ips:.3f} instance/sec - {case.model(text)}_{case.device_num} - {index}")
    return session.exit_code


def cases(text: Text, params: str | None) -> Iterator[Case]:
    """The cases of the text on one device, or the one case that `dynamic_bs8_fp32_DP_N1C1` names.

    Raises:
        TipcError: `params` is none of these forms, or the text asks for an unknown precision.
    """
    match = _CASE.fullmatch(params or "")
    if match:
        kind, batch, precision, count = match.groups()
        precision = "fp32" if precision == NULL else precision
        if int(count) < 1 or int(batch) < 1:
            raise TipcError(f"{params}: a batch and a number of devices are 1 or more")
        yield Case(kind == "dynamicTostatic", batch, precision, int(count))
    elif params in (None, "", "dynamicTostatic"):
        line = text["fp_items"]
        for batch, precision in itertools.product(text["bench_batch_size"].choices, line.choices):
            commands.amp_words(line, precision)
            yield Case(params == "dynamicTostatic", batch, precision, 1)
    else:
        raise TipcError(
            f"{params}: expected dynamicTostatic, or one case such as dynamic_bs8_fp32_DP_N1C1 or "
            "dynamicTostatic_bs8_fp16_DP_N1C4"
        )


def read_speed(log: Path) -> Speed | None:
    """The speed of a training from its log, which has a line for each step; None where it has too few.

    Batches are equally large, so the speed is the harmonic mean of the steps' clips a second.
    """
    lines = log.read_text(encoding="utf-8", errors="replace")
    steps = re.findall(r"train step:\d+ .*?loss: +(\S+) .*?ips: ([\d.]+) instance/sec", lines)
    rates = [float(ips) for _, ips in steps][_WARMUP_STEPS:]
    if not rates:
        return None
    return Speed(len(rates) / sum(1 / rate for rate in rates), float(steps[-1][0]))


def _place(session: Session, case: Case) -> Place:
    """GPUs where there are any, else the CPU."""
    num_gpus = session.machine.num_gpus
    if not num_gpus:
        return Place(("-1",) * case.num_devices)
    if num_gpus < case.num_devices:
        raise TipcError(f"{case.device_num}: asks for {case.num_devices} GPUs, and Paddle finds {num_gpus}")
    return Place(tuple(map(str, range(case.num_devices))))


def _words(text: Text, case: Case, folder: Path) -> list[str]:
    """The training without validation, with a line in the log for each step."""
    words = [word for word in commands.script_words(text["trainer_1"]) if word != "--validate"]
    words = commands.train_words(text, "benchmark_train", words, folder)
    words += text["epochs"].option(text["bench_epochs"].value)
    words += text["train_batch_size"].option(case.batch_size)
    words += commands.amp_words(text["fp_items"], case.precision)
    words += text["to_static_train"].words() if case.to_static else []
    limit = text["max_iters"]
    words += [f"--max_iters={limit.value}"] if limit.given else []
    return [*words, "-o", "log_interval=1", "-o", "validate=false"]


def _flags(text: Text) -> dict[str, str]:
    """The variables of the line `flags`, `A=1;B=2`.

    Raises:
        TipcError: a variable is not of this form.
    """
    line = text["flags"]
    variables = {}
    for item in line.value.split(";") if line.given else []:
        name, equals, value = item.partition("=")
        if not equals:
            raise TipcError(f"{line.place}: flags: '{item}': expected NAME=VALUE")
        variables[name] = value
    return variables


def _profile(session: Session, words: list[str], log: Path, variables: dict[str, str]) -> None:
    """Runs once more under the profiler, which would slow down the timed run, unless PROFILING_TIMER_ONLY=no.

    Raises:
        TipcError: PROFILING_TIMER_ONLY is none of True, False, no.
    """
    timer_only = os.environ.get("PROFILING_TIMER_ONLY", "True")
    if timer_only not in ("True", "False", "no"):
        raise TipcError(f"PROFILING_TIMER_ONLY={timer_only}: expected True, False or no")
    line = session.text["profiler"]
    if line.given and timer_only != "no":
        option = f"{line.key}={line.value};timer_only={timer_only}"
        session.run([*words, option], log, variables)


def _record(
    session: Session, case: Case, place: Place, speed: Speed, duration_sec: float
) -> dict[str, object]:
    """The fields that TIPC's benchmarks read, and the device."""
    return {
        "model_branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "model_commit": _git("rev-parse", "HEAD"),
        "model_name": case.model(session.text),
        "batch_size": int(case.batch_size),
        "fp_item": case.precision,
        "run_process_type": "SingleP" if case.num_devices == 1 else "MultiP",
        "run_mode": "DP",
        "convergence_value": speed.loss,
        "convergence_key": "loss:",
        "ips": round(speed.ips, 3),
        "speed_unit": "instance/sec",
        "device_num": case.device_num,
        "model_run_time": str(round(duration_sec)),
        "frame_commit": session.machine.paddle_commit,
        "frame_version": session.machine.paddle_version,
        "device": "cpu" if place.on_cpu else "gpu",
    }


def _git(*words: str) -> str:
    """The first line of a git command's output; empty where there is no repository."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
