"""Exported networks: time of a clip and size in float32 and in int8, top-1 of trained ones.

Or on a GPU, or windows of a long video, which are read while the network computes, and which are not.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import av
import cv2
import numpy as np

from benchmarks.measuring import (
    Positive,
    compared_rates,
    in_turn,
    versions_of,
    write_clips,
    write_list,
    write_video,
)
from benchmarks.networks import write_random_weights
from paddlevideo_fast.apps.export.export import (
    Calibration,
    ExportedFiles,
    ExportOptions,
    deviation_of,
    export_model,
)
from paddlevideo_fast.apps.predict.predictor import (
    Prediction,
    Predictor,
    WindowedPrediction,
    Windowing,
)
from paddlevideo_fast.apps.predict.program import ProgramOptions, median_times, open_program
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.engine.output import weights_of_run
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.machine import installed_gpus, num_cores

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
_OPSET = 13


_BATCH_SIZES = (1, 8)  # on a GPU
_SEARCHES = ("HEURISTIC", "EXHAUSTIVE")  # of cuDNN's algorithms; the second is onnxruntime's default
_CPU, _CUDA, _HALF = "CPU", "CUDA", "CUDA, 16 bits"
_FPS, _TILE, _WINDOWS = 30, (480, 270), Windowing(4.0)  # of a long video


def run(
    networks: Annotated[Sequence[str], NETWORKS] = tuple(NETWORKS),
    trained: Sequence[Path] = (),
    calibration_clips: Positive = 128,
    gpu: bool = False,
    long: Sequence[Path] = (),
    seconds: Positive = 600,
    tiles: Positive = 4,
    rounds: Positive = 3,
) -> dict[str, Any]:
    """Exports each network twice, in float32 and in int8, and runs the programs in turn; or on a GPU.

    With `long`, predicts a long video in windows of 4 s instead, by the float programs.

    Networks of NETWORKS have random weights and noise as videos, which changes no time. Those that are
    trained are exported as users do it, and predict their whole validation list.

    Args:
        networks: to time; by default, all.
        trained: output folders of runs whose top-1 is compared.
        calibration_clips: of a trained network.
        gpu: time the ONNX programs in 32 and in 16 bits on a GPU, in place of int8.
        long: clips that make the long video, over and over.
        seconds: of the long video.
        tiles: clips of 480×270 pixels in each row and column of its pictures; 4: 1920×1080.
        rounds: predictions of the long video by each side.

    Returns:
        "cores", and "networks" and "trained": for each the median "ms" of a clip and the "mb" of the files,
        both by program, "float_layers", and "ratio": time of the float ONNX program over int8's. Of a trained
        network "top1", by program, and the "videos" of its list. With `gpu`, "card", "onnxruntime" and for
        each network "ms" of a clip, by the clips of a batch and the program, on the CPU with one clip;
        "deviation" of the logits from the CPU's, None where numbers of random weights are too large for 16
        bits; "new_shape_ms": by the search, the first run with a batch of another size. With `long`, "rows":
        by program, and by reading in turn with the network or ahead of it, the "windows", "sec" and
        "cpu_sec", and see `compared_rates`.

    Raises:
        PaddleVideoFastError: there is no GPU, or onnxruntime computes on none.
    """
    result: dict[str, Any] = {"cores": num_cores()}
    if gpu:
        gpus = installed_gpus()
        if not gpus:
            raise PaddleVideoFastError("the driver of NVIDIA lists no GPU here")
        (version,) = versions_of("onnxruntime-gpu", "onnxruntime").values()
        result |= {"card": gpus[0].name, "onnxruntime": version}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if long:
            video = _joined(long, folder / "long.mp4", seconds * _FPS, tiles)
            rows = [row for title in networks for row in _in_windows(folder, title, video, rounds)]
            return {**result, "rows": rows}
        result["networks"] = {title: (_on_gpu if gpu else _timed)(folder, title) for title in networks}
        runs = {given.name: _trained(folder, given, calibration_clips) for given in trained}
    return {**result, "trained": runs}


def _timed(folder: Path, title: str) -> dict[str, Any]:
    cfg, weights = _random_network(folder, title)
    return _compared(_exports(cfg, weights, weights.parent, _NUM_CLIPS))


def _random_network(folder: Path, title: str) -> tuple[Config, Path]:
    """The config of one of NETWORKS with made-up videos, and random weights in a folder of their own."""
    listed = write_list(folder, list(folder.glob("*.mp4")) or write_clips(folder, 2 * _NUM_CLIPS))
    config, *overrides = NETWORKS[title]
    data = f"DATASET.valid={{format: VideoDataset, file_path: {listed}}}"
    cfg = load_config(f"configs/recognition/{config}", [data, *overrides])
    return cfg, write_random_weights(cfg["MODEL"], folder / Path(config).stem / "random.pdparams")


def _joined(clips: Sequence[Path], path: Path, num_frames: int, tiles: int) -> Path:
    """Writes the frames of clips over and over, `tiles` by `tiles` at different times. Returns the path."""
    frames: list[np.ndarray] = []
    for clip in clips:
        with open_video(str(clip)) as video:
            frames += (cv2.resize(frame, _TILE, interpolation=cv2.INTER_AREA) for frame in video)
    shifts = np.arange(tiles * tiles).reshape(tiles, tiles) * len(frames) // (tiles * tiles)
    pictures = (
        np.vstack([np.hstack([frames[(number + shift) % len(frames)] for shift in row]) for row in shifts])
        for number in range(min(len(frames), num_frames))
    )
    once = write_video(path.with_stem("once"), pictures, rate=_FPS, options={"preset": "veryfast"})
    listed = path.with_suffix(".txt")
    listed.write_text(f"file {once.name}\n" * -(-num_frames // len(frames)), encoding="utf-8")
    with av.open(str(listed), format="concat") as source, av.open(str(path), "w") as joined:
        stream = joined.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                joined.mux(packet)
    return path


def _in_windows(folder: Path, title: str, video: Path, rounds: int) -> list[dict[str, Any]]:
    cfg, weights = _random_network(folder, title)
    exports = export_model(cfg, weights, weights.parent, options=ExportOptions(onnx_opset=_OPSET))
    assert exports.onnx is not None
    num_readers, rows = {"in turn": 0, "ahead": num_cores()}, []
    for program, file in (("onnxruntime", exports.onnx), ("Paddle", exports.program)):
        predictor = Predictor(file)
        sides: dict[str, list[dict[str, float]]] = {side: [] for side in num_readers}
        for _, side in in_turn(num_readers, rounds):
            began_sec, began_cpu_sec = time.perf_counter(), time.process_time()
            (result,) = predictor.predict_windows([video], _WINDOWS, num_readers=num_readers[side])
            sec, cpu_sec = time.perf_counter() - began_sec, time.process_time() - began_cpu_sec
            assert isinstance(result, WindowedPrediction)
            sides[side].append({"windows": len(result.windows), "sec": sec, "cpu_sec": cpu_sec})
        compared = compared_rates(sides, "sec", "in turn")
        rows += [{"network": title, "program": program, **row} for row in compared]
    return rows


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
        export_model(cfg, weights, folder / name, name, ExportOptions(onnx_opset=_OPSET, int8=int8))
        for name, int8 in (("float", None), ("int8", Calibration(None, num_clips)))
    )
    return one, other


def _files(exports: tuple[ExportedFiles, ExportedFiles]) -> dict[str, Path]:
    in_float, in_int8 = exports
    assert in_float.onnx is not None
    assert in_int8.onnx is not None
    return {"Paddle": in_float.program, "float ONNX": in_float.onnx, "int8 ONNX": in_int8.onnx}


def _clip_of(program: Path) -> np.ndarray:
    """One view of a made-up video, as the program takes it."""
    with tempfile.TemporaryDirectory() as folder:
        (video,) = write_clips(Path(folder), 1)
        return Predictor(program).clips_of(video)[:1]


def _compared(exports: tuple[ExportedFiles, ExportedFiles]) -> dict[str, Any]:
    files = _files(exports)
    programs = {name: open_program(file) for name, file in files.items()}
    clip = _clip_of(files["Paddle"])
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


def _on_gpu(folder: Path, title: str) -> dict[str, Any]:
    cfg, weights = _random_network(folder, title)
    options = (ExportOptions(onnx_opset=_OPSET, onnx_fp16=fp16) for fp16 in (False, True))
    full, half = (
        export_model(cfg, weights, weights.parent / str(number), options=each).onnx
        for number, each in enumerate(options)
    )
    assert full is not None
    assert half is not None
    on_gpu = ProgramOptions(providers=("cuda",))
    programs = {
        _CPU: open_program(full),
        _CUDA: open_program(full, options=on_gpu),
        _HALF: open_program(half, options=on_gpu),
    }
    noise = np.random.default_rng(0).standard_normal(_clip_of(full).shape).astype("float32")
    expected = programs[_CPU].run(noise)
    times = {}
    for batch_size in _BATCH_SIZES:
        timed = {name: each for name, each in programs.items() if batch_size == 1 or name != _CPU}
        sec = median_times(timed, np.repeat(noise, batch_size, 0))
        times[str(batch_size)] = {name: 1e3 * each / batch_size for name, each in sec.items()}
    return {
        "ms": times,
        "deviation": {
            name: value if math.isfinite(value := deviation_of(programs[name].run(noise), expected)) else None
            for name in (_CUDA, _HALF)
        },
        "new_shape_ms": _first_runs(full, noise),
    }


def _first_runs(file: Path, clip: np.ndarray) -> dict[str, float]:
    """Milliseconds of the first run with a second clip, by the search."""
    import onnxruntime

    found = {}
    for search in _SEARCHES:
        chosen = ("CUDAExecutionProvider", {"cudnn_conv_algo_search": search})
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # errors
        providers = [chosen, "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(file), settings, providers=providers)
        name = session.get_inputs()[0].name
        session.run(None, {name: clip})
        began = time.perf_counter()
        session.run(None, {name: np.repeat(clip, 2, 0)})
        found[search] = 1e3 * (time.perf_counter() - began)
    return found
