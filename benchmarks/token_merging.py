"""Merged tokens against the plain network: time of a batch and top-1, all in turn in one process."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle import nn

from benchmarks.measuring import Positive, compared, time_in_turn
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.loader import ClipRequest, build_dataset, build_pipeline
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights

_PLAIN = "0"


def run(
    config: str,
    override: Sequence[str],
    imports: Sequence[str] | None,
    *,
    weights: str = "",
    merged: Sequence[Positive] = (8, 16, 32),
    batch_size: Positive = 4,
    rounds: Positive = 20,
) -> dict[str, Any]:
    """Times forward passes of one network at several numbers of merged tokens.

    Args:
        config: of a `VideoMAEViT`.
        override: KEY=VALUE; `imports` are among them.
        imports: names of plug-ins.
        weights: a .pdparams file, whose top-1 on DATASET.valid is measured; without one, first weights.
        merged: numbers of tokens that each layer merges.
        batch_size: clips of a pass.
        rounds: timed passes of each side, where there are no weights.

    Returns:
        "batch_size", and "rows" by number of merged tokens: "ms", "ratio" and "spread" of `compared`, to the
        plain network; with weights "top1". There the passes are over all batches of the validation.
    """
    cfg = load_config(config, override)
    numbers = [_PLAIN, *map(str, merged)]
    networks = {
        each: _network(load_config(config, [*override, f"merge_tokens={each}"]), weights) for each in numbers
    }
    clips, labels = (
        _validation(cfg, networks[_PLAIN].layout, batch_size) if weights else _random(cfg, batch_size)
    )
    predicted: dict[str, dict[int, np.ndarray]] = {each: {} for each in numbers}

    def passes(name: str, turn: int) -> None:
        with paddle.no_grad():
            predicted[name][turn] = networks[name](clips(turn)).argmax(axis=1).numpy()

    num_rounds = -(-len(labels) // batch_size) if weights else rounds
    clock = time.process_time if paddle.get_device() == "cpu" else time.perf_counter
    sides = {each: partial(passes, each) for each in numbers}
    seconds = time_in_turn(sides, num_rounds, warmup=2, clock=clock)
    rows = compared(seconds, _PLAIN)
    for name, row in rows.items() if weights else ():
        found = np.concatenate([predicted[name][turn] for turn in range(num_rounds)])
        row["top1"] = float((found == labels).mean())
    return {"batch_size": batch_size, "rows": rows}


def _network(cfg: Config, weights: str) -> nn.Layer:
    paddle.seed(0)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    if weights:
        load_weights(model, weights, strict=True)
    model.eval()
    return model


Clips = Callable[[int], paddle.Tensor]


def _validation(cfg: Config, layout: Any, batch_size: int) -> tuple[Clips, np.ndarray]:
    """The clips of batch `turn` of the validation, and all labels."""
    dataset = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=0)
    samples: list[Any] = [dataset[ClipRequest(index, 0)].clip for index in range(len(dataset))]
    preprocess = Preprocess(*dataset.pipeline.normalization, layout)

    def clips(turn: int) -> paddle.Tensor:
        turn = max(turn, 0)  # warm-up
        return preprocess(np.stack(samples[turn * batch_size : (turn + 1) * batch_size]))

    return clips, np.array([record.label for record in dataset.records])


def _random(cfg: Config, batch_size: int) -> tuple[Clips, np.ndarray]:
    """Random clips of the size of the validation's, the same in each turn, and no labels."""
    pipeline = build_pipeline(cfg["PIPELINE"]["valid"])
    batch = paddle.randn([batch_size, 3, pipeline.sample.num_frames, *[pipeline.crop_size] * 2])
    return lambda turn: batch, np.zeros(0)
