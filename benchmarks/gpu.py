"""Training on a GPU: clips a second of six networks with and without each setting, memory, waiting for data.

Each measurement is a process of its own, as Paddle reads flags at its import. All train in mixed precision on
made-up batches, but for the rows that say otherwise.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from benchmarks.measuring import Positive, write_clips, write_list
from benchmarks.train import measured
from paddlevideo_fast.apps.doctor.device_check import environment, no_gpu
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

NETWORKS = {
    "tsn": "tsn_k400_videos",
    "tsm": "tsm_k400_videos",
    "slowfast": "slowfast_8x8",
    "x3d": "x3d_m",
    "videomae": "videomae_vit_s_k400_videos",
    "videoswin": "videoswin_tiny_k400_videos",
}
_2D, _CONVOLUTIONAL, _STATIC = ("tsn", "tsm"), ("tsn", "tsm", "slowfast", "x3d"), ["to_static=true"]


class Setting(NamedTuple):
    """What differs from the defaults.

    Attributes:
        override: of the config.
        variables: of the process.
        synthetic: False: the clips are read from videos.
        networks: that it concerns.
    """

    override: Sequence[str] = ()
    variables: Mapping[str, str] = {}
    synthetic: bool = True
    networks: Sequence[str] = tuple(NETWORKS)


def _cudnn(flag: str, value: str = "0") -> Setting:
    return Setting(variables={f"FLAGS_{flag}": value}, networks=_CONVOLUTIONAL)


SETTINGS = {
    "defaults": Setting(),
    "reading videos": Setting(synthetic=False),
    "float32": Setting(["amp=false"]),
    "float16": Setting(["amp_dtype=float16"]),
    "NCHW": Setting(["MODEL.backbone.data_format=NCHW", "MODEL.head.data_format=NCHW"], networks=_2D),
    "no cuDNN search": _cudnn("cudnn_exhaustive_search"),
    "workspace of 512 MiB": _cudnn("conv_workspace_size_limit", "512"),
    "no persistent batch norm": _cudnn("cudnn_batchnorm_spatial_persistent"),
    "an operator a parameter": Setting(["OPTIMIZER.use_multi_tensor=false"], networks=_CONVOLUTIONAL),
    "to_static": Setting(_STATIC),
    "to_static, gradients not added in place": Setting(_STATIC, {"FLAGS_max_inplace_grad_add": "0"}),
}
_REHEARSAL = ("crop_size=32", "DATASET.batch_size=2", "DATASET.num_workers=0")


def run(
    networks: Annotated[Sequence[str], NETWORKS] = tuple(NETWORKS),
    settings: Annotated[Sequence[str], SETTINGS] = tuple(SETTINGS),
    batch_size: Positive | None = None,
    steps: Positive = 30,
    warmup: Positive = 10,
    rehearse: bool = False,
) -> dict[str, Any]:
    """Measures each network with each setting that concerns it; one that fails is a row with its error.

    Args:
        networks: by default, all.
        settings: by default, all.
        batch_size: clips of a step; by default, of the config.
        steps: optimizer steps to time.
        warmup: steps before them.
        rehearse: tiny clips on the CPU: tries the benchmark.

    Returns:
        What `device_check.environment` returns, and "rows": "network", "setting", what `train` measures, and
        "ratio": clips a second divided by the clips a second of the network's first row without an error.

    Raises:
        PaddleVideoFastError: there is no GPU, or nothing could be measured.
    """
    if not rehearse and (reason := no_gpu()):
        raise PaddleVideoFastError(f"{reason}. --rehearse tries the benchmark on the CPU")
    common = [*_REHEARSAL] * rehearse + [f"DATASET.batch_size={batch_size}"] * (batch_size is not None)
    with tempfile.TemporaryDirectory() as folder:
        videos = write_list(Path(folder), write_clips(Path(folder)) * 200)
        common += [f"DATASET.train.file_path={videos}", "DATASET.train.data_prefix="]
        flags = ["--steps", steps, "--warmup", warmup]
        rows = [row for name in networks for row in _rows(name, settings, common, flags)]
    if not any("clips_per_sec" in row for row in rows):
        raise PaddleVideoFastError(f"nothing could be measured: {rows[0]['error']}")
    return {**environment(), "rows": rows}


def _rows(
    network: str, settings: Sequence[str], common: Sequence[str], flags: Sequence[Any]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    first = 0.0
    for name in settings:
        setting = SETTINGS[name]
        if network not in setting.networks:
            continue
        logger.info("%s, %s", network, name)
        overrides, of_setting = ("amp=true", *common, *setting.override), ["--synthetic"] * setting.synthetic
        try:
            found = measured(NETWORKS[network], [*flags, *of_setting], overrides, **setting.variables)
            first = first or found["clips_per_sec"]
            result: dict[str, Any] = {**found, "ratio": found["clips_per_sec"] / first}
        except PaddleVideoFastError as error:
            result = {"error": str(error).strip().splitlines()[-1]}
        rows.append({"network": network, "setting": name, **result})
    return rows
