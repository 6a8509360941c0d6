"""How long a checkpoint stops training, plain and in the background; and kills while it is written."""

import statistics
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from benchmarks.measuring import Positive, in_turn, ratios
from paddlevideo_fast.apps.doctor.device_check import BatchList
from paddlevideo_fast.engine import CheckpointStore, Snapshot, Trainer, load_checkpoint
from paddlevideo_fast.engine.callbacks import Checkpointing, restore
from paddlevideo_fast.engine.checkpoint import portable_state
from paddlevideo_fast.engine.output import BackgroundStore
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.schedule.phases import plain_phases

_LAYERS = 10
_STEP_SEC = 0.002
_LIMIT_SEC = 300.0


def run(
    parameters: Positive = 100_000_000,
    rounds: Positive = 5,
    kills: Positive = 20,
    killed_parameters: Positive = 2_000_000,
    folder: Path | None = None,
) -> dict[str, Any]:
    """What `time_stops` and `kill_runs` return, the latter in "kills".

    Args:
        parameters: of the network.
        rounds: saves of each kind.
        kills: runs that are killed while they save.
        killed_parameters: of the network of these runs.
        folder: where to write; by default, a temporary folder.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return {
            **time_stops(Path(place) / "stops", parameters, rounds),
            "kills": kill_runs(Path(place) / "kills", killed_parameters, kills),
        }


def time_stops(folder: Path, num_parameters: int, rounds: int) -> dict[str, Any]:
    """Times both kinds of save in turn, of a network with Momentum.

    A background save is timed when the last one is on the disk, as it is in a run that trains for longer than
    it writes. The first one, which takes its memory from the system, is apart.

    Returns:
        "plain_sec", "background_sec": medians of the time for which a save stops training; "ratio": the
        median over neighbouring pairs; "first_sec": of the first background save.
    """
    trainer = _trainer(num_parameters, 1)
    trainer.fit()  # the optimizer has its state then
    sides = {"plain": CheckpointStore(folder, "plain"), "background": BackgroundStore(folder, "background")}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    state = {"trainer": {"step": 1, "epoch": 0}, "run": {}, "precision": {}, "callbacks": {}}
    for _, name in in_turn(sides, rounds + 1):
        began = time.perf_counter()
        optimizer = portable_state(trainer.optimizer, trainer.model)
        sides[name].save("step_00000001", Snapshot(trainer.model.state_dict(), optimizer, {}, state))
        seconds[name].append(time.perf_counter() - began)
        sides[name].wait()
    firsts = {name: each.pop(0) for name, each in seconds.items()}
    return {
        **{f"{name}_sec": statistics.median(each) for name, each in seconds.items()},
        "ratio": statistics.median(ratios(seconds["background"], seconds["plain"])),
        "first_sec": firsts["background"],
    }


def kill_runs(folder: Path, num_parameters: int, num_kills: int) -> dict[str, Any]:
    """Kills runs that go on from each other's checkpoints, each at a random moment of a save.

    Args:
        folder: for checkpoints.
        num_parameters: of the network.
        num_kills: SIGKILLs.

    Returns:
        "count" of kills; "while_saving": kills at which files were half written; "checkpoints": those that
        had their mark after the kills; "whole": how many of them load, their digests right; "exact": whether
        the weights in the end equal the weights of a run that nobody killed.
    """
    rng = np.random.default_rng(0)
    found = {"count": num_kills, "while_saving": 0, "checkpoints": 0, "whole": 0}
    killed, whole = folder / "killed", folder / "whole"
    store = CheckpointStore(killed, "net")
    for _ in range(num_kills):
        process = _start_run(killed, num_parameters, 4 * num_kills)
        _wait_for_a_save(store, process)
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        found["while_saving"] += bool(_half_written(killed))
        for *_, prefix in store.complete():
            found["checkpoints"] += 1
            load_checkpoint(prefix)  # checks the digests
            found["whole"] += 1
    for each in (killed, whole):
        process = _start_run(each, num_parameters, 4 * num_kills)
        process.join()
        if process.exitcode:
            raise RuntimeError(f"the last run ended with code {process.exitcode}")
    one, other = (load_checkpoint(str(each / "net_epoch_00001")) for each in (killed, whole))
    same = [np.array_equal(one.weights[key], other.weights[key]) for key in other.weights]
    return {**found, "exact": all(same) and one.weights.keys() == other.weights.keys()}


def _start_run(*arguments: Any) -> SpawnProcess:
    process = get_context("spawn").Process(target=train, args=arguments)
    process.start()
    return process


def train(folder: Path, num_parameters: int, num_steps: int) -> None:
    """Saves in the background after every step, and resumes from the newest checkpoint of the folder."""
    store = BackgroundStore(folder, "net")
    store.prepare()
    trainer = _trainer(num_parameters, num_steps)
    trainer.callbacks = [Checkpointing(store, every_steps=1, keep_last=2)]
    newest = store.latest()
    if newest is not None:
        restore(trainer, load_checkpoint(newest))
    trainer.fit()


def _wait_for_a_save(store: CheckpointStore, process: SpawnProcess) -> None:
    """Waits until a run has made a checkpoint and writes the next one."""
    before, deadline = store.latest(), time.monotonic() + _LIMIT_SEC
    while store.latest() == before or not _half_written(store.folder):
        if process.exitcode is not None:
            raise RuntimeError(f"a run ended with code {process.exitcode} before it was killed")
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was saved for {_LIMIT_SEC:.0f} s")
        time.sleep(_STEP_SEC)


def _half_written(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".saving-*") if path.exists()]


def _trainer(num_parameters: int, num_steps: int) -> Trainer:
    """A trainer of about so many parameters, whose steps are a function of their number alone."""
    paddle.seed(0)
    width = max(int((num_parameters / _LAYERS) ** 0.5), 2)
    layers = [layer for _ in range(_LAYERS) for layer in (paddle.nn.Linear(width, width), paddle.nn.Tanh())]
    model = paddle.nn.Sequential(*layers)
    model.loss = paddle.nn.functional.cross_entropy
    optimizer = paddle.optimizer.Momentum(0.01, 0.9, parameters=model.parameters())
    loader = BatchList([_batch(step, width) for step in range(num_steps)])
    return Trainer(model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1))


def _batch(step: int, width: int) -> Batch:
    clips = np.random.default_rng(step).standard_normal((2, width)).astype("float32")
    ids = np.array([2 * step, 2 * step + 1])
    return Batch(clips, ids % 2, ids, np.zeros_like(ids))
