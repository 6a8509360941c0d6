"""Predicting a folder of files: reading ahead, in turn, and as PaddleVideo's tools/predict.py does it."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paddle import inference

from benchmarks.measuring import Positive, compared, time_in_turn, write_clips
from benchmarks.networks import write_random_weights
from benchmarks.paddlevideo import paddlevideo_pipelines
from paddlevideo_fast.apps.export.export import ExportedFiles, ExportOptions, export_model
from paddlevideo_fast.apps.predict.predictor import Prediction, Predictor
from paddlevideo_fast.config import load_config
from paddlevideo_fast.machine import num_cores

NETWORKS = {
    "TSM-R50, 8×224²": "recognition/tsm/tsm_k400_videos.yaml",
    "ppTSM-MobileNetV2, 8×224²": "recognition/pptsm/pptsm_mv2_k400_videos_uniform.yaml",
}
_BASELINE = "PaddleVideo"


def run(*, paddlevideo: Path, files: Positive = 200, rounds: Positive = 3) -> dict[str, Any]:
    """Times passes over the same files on all sides, in turn, one file at a time through the network.

    All sides predict with the weights of one export. PaddleVideo's side are the steps of its helper for TSM
    and the calls of its script: Paddle Inference with the script's defaults.

    Args:
        paddlevideo: a checkout of https://github.com/PaddlePaddle/PaddleVideo; it needs decord.
        files: of the folder.
        rounds: passes of each side.

    Returns:
        "frames" of each file, "cores", and for each network and side "files_per_sec", and "ratio" to
        PaddleVideo's with its quartiles over the rounds.

    Raises:
        PaddleVideoFastError: the folder is no checkout of PaddleVideo, or decord is missing.
    """
    num_frames = 120
    with tempfile.TemporaryDirectory() as name:
        videos = write_clips(Path(name), files, num_frames)
        networks = {
            title: _network(Path(name), config, videos, paddlevideo, rounds)
            for title, config in NETWORKS.items()
        }
    return {"frames": num_frames, "cores": num_cores(), "networks": networks}


def _network(
    folder: Path, config: str, videos: Sequence[Path], checkout: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    cfg = load_config(f"configs/{config}")
    weights = write_random_weights(cfg["MODEL"], folder / "weights.pdparams")
    found = export_model(cfg, weights, folder / "program", "program", ExportOptions(onnx_opset=13))
    program = str(found.program.with_suffix(""))
    sides = {
        _BASELINE: _theirs(found, videos, checkout),
        "ours, Paddle Inference, in turn": _ours(Predictor(program, backend="paddle"), videos, 0),
        "ours, in turn": _ours(Predictor(program), videos, 0),
        "ours, reading ahead": _ours(Predictor(program), videos, num_cores()),
    }
    rows = compared(time_in_turn(sides, rounds), _BASELINE)
    return {side: {"files_per_sec": 1e3 * len(videos) / row.pop("ms"), **row} for side, row in rows.items()}


def _ours(predictor: Predictor, videos: Sequence[Path], num_readers: int) -> Callable[[int], None]:
    def predict(turn: int) -> None:
        found = list(predictor.predict(videos, num_readers=num_readers))
        assert all(isinstance(one, Prediction) for one in found)

    return predict


def _theirs(files: ExportedFiles, videos: Sequence[Path], checkout: Path) -> Callable[[int], None]:
    step = paddlevideo_pipelines(checkout).get
    steps = [
        step("VideoDecoder")(backend="decord"),
        step("Sampler")(8, 1, valid_mode=True),
        step("Scale")(256),
        step("CenterCrop")(224),
        step("Image2Array")(),
        step("Normalization")([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
    config = inference.Config(str(files.program), str(files.params))
    config.disable_gpu()
    config.disable_glog_info()
    if hasattr(config, "disable_mkldnn"):  # the script leaves it off, and Paddle 3 turns it on by itself
        config.disable_mkldnn()
    predictor = inference.create_predictor(config)
    given = predictor.get_input_handle(predictor.get_input_names()[0])
    scores = predictor.get_output_handle(predictor.get_output_names()[0])

    def predict(turn: int) -> None:
        for video in videos:
            sample: Any = {"filename": str(video)}
            for each in steps:
                sample = each(sample)
            given.copy_from_cpu(np.expand_dims(sample["imgs"], 0).copy())
            predictor.run()
            scores.copy_to_cpu()

    return predict
