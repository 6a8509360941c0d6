"""What the trainer costs over a bare Paddle loop on the same model and batches."""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle

from benchmarks.measuring import Positive, log_to_memory, ratios, time_in_turn
from paddlevideo_fast.apps.doctor.device_check import BatchList, made_up_batches
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback, LearningRate, Recorder
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer

MODEL = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 8, "width": 16, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 8, "in_channels": 128, "drop_ratio": 0.5, "std": 0.01},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.01, "weight_decay": 1e-4}


def run(steps: Positive = 10, rounds: Positive = 9, batch_size: Positive = 8) -> dict[str, Any]:
    """Times rounds of both loops in turn.

    Both take uint8 batches through the same `Preprocess`, forward, loss, backward and optimizer step; ours
    adds what a run adds: the learning-rate curve, device seeds, records every 10 steps and `metrics.jsonl`.

    Args:
        steps: optimizer steps in a round.
        rounds: of each side.
        batch_size: clips of 8 x 56 x 56.

    Returns:
        Each side's median steps a second, and "cost": the share of time that the trainer adds, the median
        over rounds of neighbouring pairs.
    """
    log_to_memory()
    batches = made_up_batches(steps, batch_size)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"bare": _bare_loop(batches), "trainer": _trainer_loop(batches, Path(folder))}
        seconds = time_in_turn(sides, rounds, warmup=1)
    costs = [ratio - 1 for ratio in ratios(seconds["trainer"], seconds["bare"])]
    return {
        "bare_steps_per_sec": steps / statistics.median(seconds["bare"]),
        "trainer_steps_per_sec": steps / statistics.median(seconds["trainer"]),
        "cost": statistics.median(costs),
        "cost_spread": [min(costs), max(costs)],
    }


def _bare_loop(batches: list[Batch]) -> Callable[[int], None]:
    model, preprocess = build_model(MODEL), Preprocess()
    optimizer = paddle.optimizer.Momentum(0.01, 0.9, parameters=model.parameters(), weight_decay=1e-4)

    def loop(turn: int) -> None:
        model.train()
        for batch in batches:
            logits = model(preprocess(batch.clips))
            loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(batch.labels))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        float(loss)  # waits for the device

    return loop


def _trainer_loop(batches: list[Batch], folder: Path) -> Callable[[int], None]:
    model = build_model(MODEL)
    optimizer, curve = build_optimizer(OPTIMIZER, model)
    loader = BatchList(batches)

    def loop(turn: int) -> None:
        recorder = Recorder([ConsoleSink(), JsonLinesSink(folder / "metrics.jsonl")], interval=10)
        callbacks: list[Callback] = [LearningRate(curve), recorder]
        Trainer(model, optimizer, lambda phase: loader, Preprocess(), plain_phases(1), callbacks).fit()

    return loop
