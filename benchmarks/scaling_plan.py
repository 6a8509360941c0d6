"""What `tools/scaling.py` predicts: for the published networks, or for a config's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paddle

from benchmarks.scaling import Cluster, Workload, cluster_from_file, make_report
from benchmarks.scaling_published import (
    ASSUMPTIONS,
    CLUSTERS,
    FRAME_BYTES,
    FRAME_SEC,
    against_published,
    published_workloads,
)
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.doctor.shape_cost import ShapeCosts
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import build_pipeline

_SECTIONS = ("MODEL", "OPTIMIZER", "PIPELINE")


@dataclass(frozen=True)
class ScalingOptions:
    """What to predict.

    Attributes:
        cluster: a name of `CLUSTERS`, or a YAML file.
        counts: numbers of devices; None: the usual ones of the cluster.
        step_sec: time of the config's step on one device; None: measured.
        num_steps: steps to measure.
        clip_bytes: size of a stored clip; None: JPEG frames.
        read_sec: time in which a core reads a clip; None: JPEG frames.
    """

    cluster: str = "summit"
    counts: Sequence[int] | None = None
    step_sec: float | None = None
    num_steps: int = 3
    clip_bytes: float | None = None
    read_sec: float | None = None


def plan_scaling(cfg: Config | None, options: ScalingOptions) -> dict[str, Any]:
    """The prediction as JSON values.

    Args:
        cfg: checked; None: the published networks, and on Summit a comparison with what was published.
        options: what to predict.

    Raises:
        ConfigError: the cluster or the config is wrong.
        PaddleVideoFastError: a number of devices does not fit the cluster.
    """
    cluster = _cluster(options.cluster)
    workloads = published_workloads() if cfg is None else [_workload(cfg, options)]
    workloads = [_with_reading(workload, options) for workload in workloads]
    compare = cfg is None and options == replace(ScalingOptions(), counts=options.counts)
    return {
        **make_report(workloads, cluster, options.counts or cluster.usual_counts()),
        "assumptions": list(ASSUMPTIONS if cfg is None else ASSUMPTIONS[2:]),
        "published": against_published() if compare else [],
    }


def _cluster(name: str) -> Cluster:
    if name in CLUSTERS:
        return CLUSTERS[name]
    if not Path(name).is_file():
        raise ConfigError([f"--cluster {name}: neither a file nor one of {', '.join(CLUSTERS)}"])
    return cluster_from_file(Path(name))


def _workload(cfg: Config, options: ScalingOptions) -> Workload:
    cfg.require("a prediction", *_SECTIONS)
    spec = RunSpec.of(cfg)
    pipeline = build_pipeline(spec.splits["train"].pipeline)
    sampler: Any = pipeline.sample
    num_frames = sampler.num_frames
    batch_size = spec.data.batch_size
    costs = ShapeCosts(plan_run(spec), options.num_steps)
    step_sec, source = options.step_sec, "given"
    if step_sec is None:
        step_sec = costs.step_sec(batch_size, num_frames, pipeline.crop_size, bn_splits=1)
        source = f"measured on {paddle.get_device()}"
    return Workload(
        spec.run.model_name,
        costs.num_parameters,
        step_sec,
        batch_size,
        num_frames * FRAME_BYTES,
        num_frames * FRAME_SEC,
        source,
        num_frames,
    )


def _with_reading(workload: Workload, options: ScalingOptions) -> Workload:
    return replace(
        workload,
        clip_bytes=options.clip_bytes or workload.clip_bytes,
        read_sec=options.read_sec or workload.read_sec,
    )
