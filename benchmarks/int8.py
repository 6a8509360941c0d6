"""Exported networks in float32 and in int8: time of a clip, size, and top-1 of trained ones."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks.measuring import Positive, write_clips, write_list
from benchmarks.networks import write_random_weights
from paddlevideo_fast.apps.export.export import Calibration, ExportedFiles, ExportOptions, export_model
from paddlevideo_fast.apps.predict.predictor import Prediction, Predictor
from paddlevideo_fast.apps.predict.program import ProgramOptions, median_times, open_program
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.engine.output import weights_of_run
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.machine import num_cores

# A built-in config, and what must change to read videos.
NETWORKS: Mapping[str, Sequence[str]] = {
    "TSM-R50, 8×224²": ["tsm/tsm_k400_videos.yaml"],
    "ppTSM-R50, 8×224²": ["pptsm/pptsm_k400_videos_uniform.yaml"],
    "PP-TSMv2, 8×224²": [
        "pptsm/v2/pptsm_lcnet_k400_8frames_uniform.yaml",
        "PIPELINE.valid.decode={name: VideoDecoder}",
    ],
    "SlowFast-R50 4×16, 32×224²": ["slowfast/slowfast_4x16.yaml"],
    "X3D-M, 16×224²": ["x3d/x3d_m.yaml"],
    "VideoMAE ViT-S, 16×224²": ["videomae/videomae_vit_s_k400_videos.yaml"],
}
_NUM_CLIPS = 4  # that calibrate a network with random weights
OPSET = 13


def run(
    networks: Annotated[Sequence[str], NETWORKS] = tuple(NETWORKS),
    trained: Sequence[Path] = (),
    calibration_clips: Positive = 128,
) -> dict[str, Any]:
    """Exports each network twice, in float32 and in int8, and runs the programs in turn.

    Networks of NETWORKS have random weights and noise as videos, which changes no time. Those that are
    trained are exported as users do it, and predict their whole validation list.

    Args:
        networks: to time; by default, all.
        trained: output folders of runs whose top-1 is compared.
        calibration_clips: of a trained network.

    Returns:
        "cores", and "networks" and "trained": for each the median "ms" of a clip and the "mb" of the files,
        both by program, "float_layers", and "ratio": time of the float ONNX program over int8's. Of a trained
        network "top1", by program, and the "videos" of its list.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed = {title: _timed(folder, title) for title in networks}
        runs = {given.name: _trained(folder, given, calibration_clips) for given in trained}
    return {"cores": num_cores(), "networks": timed, "trained": runs}


def _timed(folder: Path, title: str) -> dict[str, Any]:
    cfg, weights = random_network(folder, title)
    return _compared(_exports(cfg, weights, weights.parent, _NUM_CLIPS))


def random_network(folder: Path, title: str) -> tuple[Config, Path]:
    """The config of one of NETWORKS with made-up videos, and random weights in a folder of their own."""
    listed = write_list(folder, list(folder.glob("*.mp4")) or write_clips(folder, 2 * _NUM_CLIPS))
    config, *overrides = NETWORKS[title]
    data = f"DATASET.valid={{format: VideoDataset, file_path: {listed}}}"
    cfg = load_config(f"configs/recognition/{config}", [data, *overrides])
    return cfg, write_random_weights(cfg["MODEL"], folder / Path(config).stem / "random.pdparams")


def _trained(folder: Path, given: Path, num_clips: int) -> dict[str, Any]:
    cfg = load_config(given / CONFIG_FILE)
    exports = _exports(cfg, weights_of_run(str(given)), folder / given.name, num_clips)
    dataset = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=0)
    top1 = {}
    for name, file in _files(exports).items():
        found = Predictor(file).predict([record.path for record in dataset.records], 8, num_cores())
        right = [
            isinstance(one, Prediction) and one.top(1)[0].class_id in record.labels
            for one, record in zip(found, dataset.records)
        ]
        top1[name] = float(np.mean(right))
    return {**_compared(exports), "top1": top1, "videos": len(dataset)}


def _exports(cfg: Config, weights: Any, folder: Path, num_clips: int) -> tuple[ExportedFiles, ExportedFiles]:
    one, other = (
        export_model(cfg, weights, folder / name, name, ExportOptions(onnx_opset=OPSET, int8=int8))
        for name, int8 in (("float", None), ("int8", Calibration(None, num_clips)))
    )
    return one, other


def _files(exports: tuple[ExportedFiles, ExportedFiles]) -> dict[str, Path]:
    in_float, in_int8 = exports
    assert in_float.onnx is not None
    assert in_int8.onnx is not None
    return {"Paddle": in_float.program, "float ONNX": in_float.onnx, "int8 ONNX": in_int8.onnx}


def _compared(exports: tuple[ExportedFiles, ExportedFiles]) -> dict[str, Any]:
    files = _files(exports)
    programs = {name: open_program(file) for name, file in files.items()}
    clip = Predictor(files["Paddle"]).any_clip()
    try:
        onednn = open_program(files["Paddle"], options=ProgramOptions(use_mkldnn=True))
        onednn.run(clip)
        programs["Paddle, oneDNN"] = onednn
    except ProgramError:
        pass
    sec = median_times(programs, clip)
    mb = {name: file.stat().st_size / 1e6 for name, file in files.items()}
    mb["Paddle"] += exports[0].params.stat().st_size / 1e6
    measured = read_recipe(exports[1].settings).settings.int8 or {}
    return {
        "ms": {name: 1e3 * each for name, each in sec.items()},
        "mb": mb,
        "ratio": sec["float ONNX"] / sec["int8 ONNX"],
        "float_layers": len(measured["float_layers"]),
    }
