"""ONNX programs on a GPU and on the CPU: time of a clip, and the first run at a new shape."""

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks.int8 import NETWORKS, OPSET, random_network
from benchmarks.measuring import versions_of
from paddlevideo_fast.apps.export.export import ExportOptions, deviation_of, export_model
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import ProgramOptions, median_times, open_program
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.machine import installed_gpus, num_cores

_BATCH_SIZES = (1, 8)
_SEARCHES = ("HEURISTIC", "EXHAUSTIVE")  # of cuDNN's algorithms; the second is onnxruntime's default
_CPU, _CUDA, _HALF = "CPU", "CUDA", "CUDA, 16 bits"


def run(networks: Annotated[Sequence[str], NETWORKS] = tuple(NETWORKS)) -> dict[str, Any]:
    """Exports each network with random weights in 32 and in 16 bits, and runs the programs in turn.

    Args:
        networks: to time; by default, all.

    Returns:
        "gpu", "cores", "onnxruntime"; "networks": for each "ms" of a clip, by the clips of a batch and the
        program, on the CPU with one clip; "deviation" of the logits from the CPU's, None where numbers of
        random weights are too large for 16 bits; "new_shape_ms": by the search, the first run with a batch of
        another size.

    Raises:
        PaddleVideoFastError: there is no GPU, or onnxruntime computes on none.
    """
    gpus = installed_gpus()
    if not gpus:
        raise PaddleVideoFastError("the driver of NVIDIA lists no GPU here")
    with tempfile.TemporaryDirectory() as name:
        found = {title: _measured(Path(name), title) for title in networks}
    (version,) = versions_of("onnxruntime-gpu", "onnxruntime").values()
    return {"gpu": gpus[0].name, "cores": num_cores(), "onnxruntime": version, "networks": found}


def _measured(folder: Path, title: str) -> dict[str, Any]:
    cfg, weights = random_network(folder, title)
    options = (ExportOptions(onnx_opset=OPSET, onnx_fp16=fp16) for fp16 in (False, True))
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
    noise = np.random.default_rng(0).standard_normal(Predictor(full).any_clip().shape).astype("float32")
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
