"""The key `profiler_options`: Paddle's profiler around some steps, by `-p` as in PaddleVideo."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import paddle
from paddle import profiler

from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.extension import Extension, Problems
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer, TrainingEnds
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.io.files import atomic_write
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.registry import EXTENSIONS, did_you_mean

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan
    from paddlevideo_fast.config import Config

logger = get_logger(__name__)

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "t", "1"), True),
    **dict.fromkeys(("false", "no", "f", "0"), False),
}


@dataclass(frozen=True)
class ProfilerOptions:
    """Which steps are measured, and where the results are written.

    Args:
        batch_range: the first step and the step after the last, counted from 0 at the start of this run.
        state: the device that is traced; "GPU" leaves out the operators' calls on the CPU.
        sorted_key: order of the summary, by time on the device that `state` names.
        tracer_option: "Default" sums up operators, "OpDetail" also the kernels that they call, "AllOpDetail"
            also keeps the shapes of their inputs in the trace.
        profile_path: the trace is `<profile_path>.json`, the summary `<profile_path>.txt`; empty for
            `profile` in the output folder.
        exit_on_finished: the run ends after these steps, without a checkpoint.
        timer_only: no trace and no summary, only the mean time of a step.
    """

    batch_range: tuple[int, int] = (10, 20)
    state: Literal["All", "CPU", "GPU"] = "All"
    sorted_key: Literal["total", "ave", "max", "min"] = "total"
    tracer_option: Literal["Default", "OpDetail", "AllOpDetail"] = "Default"
    profile_path: str = ""
    exit_on_finished: bool = True
    timer_only: bool = False

    @classmethod
    def parse(cls, text: str) -> ProfilerOptions:
        """The options of a string such as "batch_range=[10,20];state=CPU".

        Raises:
            ConfigError: with all problems of the string.
        """
        names = [field.name for field in fields(cls)]
        values: dict[str, Any] = {}
        problems = []
        for item in filter(None, (part.strip() for part in text.split(";"))):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                problems.append(f"'{item}' is no key=value")
            elif key not in names:
                problems.append(f"unknown key '{key}'{did_you_mean(key, names)}")
            else:
                try:
                    values[key] = _converted(get_type_hints(cls)[key], value)
                except ValueError as error:
                    problems.append(f"{key}={value}: expected {error}")
        if values.get("state") == "GPU" and gpu_number(paddle.get_device()) is None:
            problems.append("state=GPU: Paddle computes on the CPU here; use CPU or All")
        if problems:
            raise ConfigError([f"-p, profiler_options: {problem}" for problem in problems])
        return cls(**values)


@EXTENSIONS.register("profiler_options")
@dataclass(frozen=True)
class Profiler(Extension):
    """Paddle's profiler.

    Args:
        profiler_options: measure the operators of some steps, as the flag `-p` does; null for never.
    """

    profiler_options: str | None = None

    is_of_one_start = True

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> Profiler | None:
        options = config.get("profiler_options")
        return None if options is None else cls(options)

    @property
    def options(self) -> ProfilerOptions:
        """The options.

        Raises:
            ConfigError: see `ProfilerOptions.parse`.
        """
        return ProfilerOptions.parse(self.profiler_options or "")

    def problems(self, plan: RunPlan) -> Problems:
        _ = self.options
        yield from ()

    def callbacks(self, setup: TrainingSetup) -> Iterable[Callback]:
        yield Profiling(self.options, setup.output_folder / "profile", setup.distribution.rank)


class Profiling(Callback):
    """Measures some steps, writes a trace for chrome://tracing and a table, and logs the table.

    Where the run ends earlier, the results cover the steps until then.

    Args:
        options: see `ProfilerOptions`.
        prefix: path of both files without their endings, where the options name none.
        rank: of this process; each rank has its own files.

    Raises:
        ConfigError: Paddle cannot measure here.
    """

    slot = Slot.SHOW

    def __init__(self, options: ProfilerOptions, prefix: Path, rank: int = 0) -> None:
        no_driver = paddle.is_compiled_with_cuda() and not paddle.device.cuda.device_count()
        if no_driver and not options.timer_only:
            text = "the profiler of a GPU build of Paddle ends the process where there is no GPU"
            remedy = "add timer_only=True, or install paddlepaddle, the build for CPUs"
            raise ConfigError(f"-p, profiler_options: {text}; {remedy}")
        self._options = options
        self._prefix = (options.profile_path or str(prefix)) + (f".rank{rank}" if rank else "")
        self._num_steps = 0
        self._running: profiler.Profiler | None = None

    def step_begin(self, trainer: Trainer) -> None:
        if self._num_steps == self._options.batch_range[0]:
            self._running = self._profiler()
            self._running.start()

    def step_end(self, trainer: Trainer) -> None:
        self._num_steps += 1
        if self._running is None:
            return
        last = self._num_steps == self._options.batch_range[1]
        if self._options.timer_only or not last:  # else the trace would begin another step
            self._running.step(trainer.num_clips)
        if last:
            self._finish()
            if self._options.exit_on_finished:
                raise TrainingEnds

    def fit_end(self, trainer: Trainer) -> None:
        if self._num_steps <= self._options.batch_range[0]:
            logger.warning("profiler: nothing was measured, the run had %d steps", self._num_steps)

    def close(self) -> None:
        self._finish()

    def _profiler(self) -> profiler.Profiler:
        targets = {"CPU": [profiler.ProfilerTarget.CPU], "GPU": [profiler.ProfilerTarget.GPU], "All": None}
        return profiler.Profiler(
            targets=targets[self._options.state],
            on_trace_ready=self._keep_trace,
            record_shapes=self._options.tracer_option == "AllOpDetail",
            timer_only=self._options.timer_only,
        )

    def _finish(self) -> None:
        if self._running is None:
            return
        running, self._running = self._running, None
        if self._options.timer_only:
            logger.info("profiler: %s", running.step_info("clips").strip())
            running.stop()
            return
        with contextlib.redirect_stdout(io.StringIO()) as shown:  # Paddle prints its tables
            running.stop()
            running.summary(self._order(), op_detail=self._options.tracer_option != "Default")
        with writing(self._prefix):
            Path(f"{self._prefix}.txt").write_text(shown.getvalue(), encoding="utf-8")
        logger.info("profiler:\n%s", shown.getvalue().strip())
        logger.info("profiler: '%s.json' holds the trace, '%s.txt' the table", self._prefix, self._prefix)

    def _keep_trace(self, running: profiler.Profiler) -> None:
        trace = Path(f"{self._prefix}.json")
        with writing(trace), atomic_write(trace) as partial:
            running.export(str(partial), "json")

    def _order(self) -> Any:
        device = "GPU" if self._options.state == "GPU" else "CPU"
        key = {"total": "Total", "ave": "Avg", "max": "Max", "min": "Min"}[self._options.sorted_key]
        return getattr(profiler.SortedKeys, f"{device}{key}")


def _converted(hint: Any, text: str) -> Any:
    """The value of an option's text. The message of a ValueError says what is expected."""
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError("True or False")
        return _BOOLEANS[text.lower()]
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise ValueError(" or ".join(get_args(hint)))
        return text
    if hint is str:
        return text
    steps = [part.strip() for part in text.strip("[]()").split(",")]
    if len(steps) != 2 or not all(step.isdigit() for step in steps) or int(steps[0]) >= int(steps[1]):
        raise ValueError("two rising step numbers, such as [10,20]")
    return int(steps[0]), int(steps[1])
