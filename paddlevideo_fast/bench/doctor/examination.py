"""The measurements: the real trainer on the real loader; the same on made-up batches; the reader alone.

`step_model` combines them, `remedy` tries changes.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict

import paddle

from paddlevideo_fast.assembly import training_parts
from paddlevideo_fast.bench.doctor.diagnosis import limit, summary
from paddlevideo_fast.bench.doctor.reading import time_reading, time_transport
from paddlevideo_fast.bench.doctor.remedy import Run, remedies
from paddlevideo_fast.bench.doctor.step_model import StepCost
from paddlevideo_fast.bench.training import (
    StepTimes,
    SyntheticLoader,
    require_own_loader,
    time_steps,
    time_training_stages,
)
from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.machine import num_cores

_MAX_CLIPS = 64


def examine(
    cfg: Config, steps: int = 20, data_tools: Path = Path("data"), progress: Callable[[str], None] = print
) -> Dict[str, Any]:
    """Measures the training that a config describes. Nothing is learned, and nothing is kept.

    Args:
        cfg: checked.
        steps: optimizer steps to time; fewer where they take long.
        data_tools: the folder `data` of the repository, whose tools are tried on a few clips.
        progress: told what is measured.

    Returns:
        What docs/en/performance.md says of doctor.json.

    Raises:
        PaddleVideoFastError: as training does; no section DATASET.train; no clip decodes; DALI reads.
    """
    if cfg.get("train_dali"):
        raise ConfigError(["train_dali: the doctor times our own reader only; set -o train_dali=false"])
    parts = training_parts(cfg, load_pretrained=False)
    loader = parts.split.loader
    require_own_loader(loader)
    batch_size = loader.batch_sampler.batch_size
    progress(f"training {steps} steps on the real loader")
    with contextlib.closing(loader):
        real = time_steps(parts, loader, steps)
    progress("reading alone, stage by stage")
    requests = [request for batch in loader.batch_sampler.batches(epoch=1) for request in batch]
    reading = time_reading(loader.dataset, requests[:_MAX_CLIPS])
    transport_sec = time_transport(reading.clip_shape, batch_size)
    progress(f"training {steps} steps on made-up batches")
    made_up = SyntheticLoader(batch_size, reading.clip_shape, parts.model.num_classes)
    synthetic = time_steps(parts, made_up, steps)
    training = time_training_stages(parts, made_up, max(steps // 2, 2))
    clips_a_step = synthetic.num_clips / synthetic.num_steps
    cost = StepCost(
        train_sec=synthetic.step_sec,
        train_cpu_sec=synthetic.cpu_sec / synthetic.num_steps,
        read_sec=clips_a_step * reading.total_sec,
        transport_sec=clips_a_step * transport_sec,
        num_workers=loader.num_workers,
        num_cores=num_cores(),
    )

    def per_step(stages: Dict[str, float]) -> Dict[str, float]:
        return {name: clips_a_step * sec for name, sec in stages.items()}

    run = Run(parts, cost, reading, batch_size, data_tools)
    found = sorted(remedies(run, progress), key=lambda remedy: -(remedy.gain or 0.0))
    result: Dict[str, Any] = {
        "config": cfg.path,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_cores": cost.num_cores,
        "num_threads": os.environ.get("OMP_NUM_THREADS", "1"),
        "num_workers": cost.num_workers,
        "batch_size": batch_size,
        "clip_shape": list(reading.clip_shape),
        "real": _steps(real),
        "synthetic": {**_steps(synthetic), "cpu_sec": cost.train_cpu_sec},
        "stages_sec": {
            "reading": {
                **per_step(reading.stages),
                "transport": cost.transport_sec if cost.num_workers else 0.0,
            },
            "training": training,
        },
        "augment_sec": per_step(reading.augment_steps),
        "model": {**asdict(cost), "step_sec": cost.step_sec},
        "remedies": [{**asdict(remedy), "helps": remedy.helps} for remedy in found],
    }
    result["limit"] = limit(result)
    result["summary"] = summary(result)
    return result


def _steps(times: StepTimes) -> Dict[str, Any]:
    return {
        "num_steps": times.num_steps,
        "step_sec": times.step_sec,
        "wait_share": times.wait_share,
        "clips_per_sec": times.clips_per_sec,
    }
