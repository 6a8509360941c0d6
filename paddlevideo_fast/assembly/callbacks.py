"""Builds the callbacks of a run, in the order in which they run."""

from collections import Counter
from collections.abc import Sequence

from paddlevideo_fast import annexes
from paddlevideo_fast.assembly.build import TrainingSetup, is_on_terminal
from paddlevideo_fast.config.sections import build_list
from paddlevideo_fast.engine import CheckpointStore
from paddlevideo_fast.engine.callbacks import checkpointing, recorder, schedule
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink
from paddlevideo_fast.engine.trainer import Callback
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.registry import CALLBACKS


def callbacks_of(
    setup: TrainingSetup, store: CheckpointStore, further: Sequence[Callback] = ()
) -> list[Callback]:
    """The run's callbacks, slot by slot; see `Slot`. In a slot stand the core's, the extensions', the user's.

    The caller's callbacks (`further`) see what is on the disk.

    Raises:
        ConfigError: a callback is listed twice.
    """
    spec, main = setup.spec, setup.distribution.is_main
    run, folder, model = spec.run, setup.output_folder, setup.model
    # first, as extensions add to the sinks of the recorder
    optional = [each for extension in spec.extensions for each in extension.callbacks(setup)]
    sinks = [ConsoleSink(), JsonLinesSink(folder / "metrics.jsonl"), *setup.sinks] if main else []
    callbacks: list[Callback] = [
        schedule.PhaseLog(setup.plan.global_batch_size),
        recorder.Complexity(MacCounter(model)),
        schedule.BatchNormSplits(model),
        schedule.LearningRate(setup.curve),
        recorder.Recorder(sinks, run.log_interval, spec.distributed.one_process_ips),
        checkpointing.Checkpointing(
            store, run.save_interval, run.save_every_steps, run.keep_last, setup.label_names
        ),
        *setup.callbacks,
        *optional,
        *build_list(CALLBACKS, spec.callbacks),
    ]
    callbacks = [*sorted(callbacks, key=lambda callback: callback.slot), *further]
    progress = annexes.load("run", "progress bar")
    if progress is not None and is_on_terminal(setup.distribution):
        callbacks.append(progress.ProgressBar())
    name, count = Counter(type(callback).__name__ for callback in callbacks).most_common(1)[0]
    if count > 1:
        text = f"a run has one callback of a name, whose state a checkpoint holds; {count} are {name}"
        raise SettingError("CALLBACKS", text)
    return callbacks
