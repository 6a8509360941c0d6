"""Whole runs of PaddleVideo and of ours: training with validation, and a test.

Both read the same config, lists and weights. Nothing about frames and crops is random, so both take the same
steps. All training records are one video, since each toolkit has its own order of records.
"""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import paddle
import yaml

from benchmarks import cut_clips
from benchmarks.measuring import ROOT, Natural, Positive, in_turn, ratios
from paddlevideo_fast.command_line import count
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.modeling import build_model

_EPOCHS = 3
_SCALE = [{"Scale": {"short_size": 128, "fixed_ratio": False}}, {"CenterCrop": {"target_size": 112}}]
_WHOLE = [{"JitterScale": {"min_size": 64, "max_size": 64}}, {"MultiCrop": {"target_size": 64}}]
# PaddleVideo's own configs; what differs in the head and in the pipelines; the size of the videos
_NETWORKS: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "tsm": ("tsm/tsm_k400_videos.yaml", {"drop_ratio": 0.0}, _SCALE, 128),
    "slowfast": ("slowfast/slowfast.yaml", {"dropout_rate": 0.0, "crop_size": 64}, _WHOLE, 64),
}
_TESTED = ("tsm",)  # PaddleVideo's test of SlowFast ends in an error of NumPy 2
_RATE = {"name": "PiecewiseDecay", "boundaries": [100], "values": [1e-4, 1e-4]}
_CODES = re.compile(r"\x1b\[\d*m")
_LOSS = re.compile(r"train step:\d+ .*?loss: ([\d.]+)")


def run(
    videos: Sequence[Path],
    *,
    paddlevideo: Path,
    networks: Annotated[tuple[str, ...], _NETWORKS] = tuple(_NETWORKS),
    threads: Natural = 1,
    steps: Annotated[int, count(2)] = 4,
    rounds: Positive = 3,
    output: Path = Path("output/paddlevideo_runs"),
) -> dict[str, Any]:
    """Runs both in turn, each command in a process of its own.

    Args:
        videos: to cut the clips from, one class each; five or more, since PaddleVideo counts top-5.
        paddlevideo: a checkout of https://github.com/PaddlePaddle/PaddleVideo; it needs decord, pandas, scipy
            and scikit-image.
        networks: to train; TSM on 8 frames of 112², SlowFast on 32 frames of 64².
        threads: of each process; 0: what each toolkit takes by itself.
        steps: of an epoch, with a batch of 8 clips; two or more, since the last one is not timed alone.
        rounds: runs of each side.
        output: folder of clips, configs, logs and runs.

    Returns:
        "rows": for each network and "part" of the work "cpu_ratio" and "wall_ratio", the medians over the
        rounds of our time over PaddleVideo's, and "cpu_sec" and "wall_sec", the medians of ours and of
        PaddleVideo's. "start" is the time until the end of the first step, less a step.
        "losses": by network the largest difference of two losses of a step, relative to PaddleVideo's first.
        "mib": by network the memory of the training, ours and PaddleVideo's.

    Raises:
        PaddleVideoFastError: the folder is no checkout of PaddleVideo, or a command fails.
    """
    if not (paddlevideo / "paddlevideo" / "tasks").is_dir():
        raise PaddleVideoFastError(f"--paddlevideo {paddlevideo}: is no checkout of PaddleVideo")
    output = output.resolve()  # the commands run in the root of the repository
    rows, losses, memory = [], {}, {}
    for name in networks:
        config = _prepare(name, videos, paddlevideo, output / name, 8 * steps)
        sides = {"ours": ROOT, "paddlevideo": paddlevideo.resolve()}
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for turn, side in in_turn(sides, rounds):
            folder = output / name / f"{side}_{turn}"
            found[side].append(_measure(config, sides[side], folder, threads, steps, name in _TESTED))
        both = [found[side] for side in ("ours", "paddlevideo")]
        for part in both[0][0]["sec"]:
            row: dict[str, Any] = {"network": name, "part": part}
            for at, clock in enumerate(("cpu", "wall")):
                sec = [[one["sec"][part][at] for one in side] for side in both]
                row[f"{clock}_ratio"] = statistics.median(ratios(*sec))
                row[f"{clock}_sec"] = [statistics.median(side) for side in sec]
            rows.append(row)
        ours, theirs = (side[0]["losses"] for side in both)
        losses[name] = max(abs(one - other) for one, other in zip(ours, theirs)) / theirs[0]
        memory[name] = [statistics.median(one["mib"] for one in side) for side in both]
    return {"rows": rows, "losses": losses, "mib": memory}


def _prepare(name: str, videos: Sequence[Path], paddlevideo: Path, folder: Path, records: int) -> Path:
    """Writes clips, lists, weights and the config of a network."""
    file, head, geometry, size = _NETWORKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    cut_clips.run(videos, output=folder / "clips", frames=64, stride=64, size=size)
    first = (folder / "clips" / "train.list").read_text(encoding="utf-8").splitlines()[0]
    (folder / "clips" / "one.list").write_text(f"{first}\n" * records, encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load(
        (paddlevideo / "configs" / "recognition" / file).read_text(encoding="utf-8")
    )
    config["MODEL"]["backbone"].pop("pretrained", None)
    config["MODEL"]["head"] |= {"num_classes": len(videos), **head}
    config["DATASET"] |= {"batch_size": 8, "num_workers": 0}
    for split, section in config["PIPELINE"].items():
        files = {"data_prefix": str(folder / "clips"), "file_path": str(folder / "clips" / "train.list")}
        if split == "train":
            files["file_path"] = str(folder / "clips" / "one.list")
        config["DATASET"][split] |= files
        section.get("sample", {})["valid_mode"] = True
        others = ("Image2Array", "Normalization", "PackOutput")
        kept = [step for step in section["transform"] if next(iter(step)) in others]
        section["transform"] = [*geometry, *kept]
    config["OPTIMIZER"] |= {"learning_rate": _RATE}
    config |= {"epochs": _EPOCHS, "log_interval": 1, "model_name": name, "save_interval": 100}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    paddle.seed(0)
    model = build_model(load_config(str(folder / "config.yaml"))["MODEL"], load_pretrained=False)
    paddle.save(model.state_dict(), str(folder / "weights.pdparams"))
    return folder / "config.yaml"


def _measure(config: Path, root: Path, folder: Path, threads: int, steps: int, tests: bool) -> dict[str, Any]:
    """Seconds of CPU and of wall time by part, losses and memory of one side."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = str(config.with_name("weights.pdparams"))
    common = ["-c", str(config), "-w", weights, "-o", f"output_dir={folder / 'run'}"]
    script = "main.py" if (root / "main.py").exists() else "tools/main.py"
    if root == ROOT:  # PaddleVideo writes no report
        common += ["-o", "report=false", *(["-o", f"num_threads={threads}"] if threads else [])]
    training = _run(folder / "train", root, script, [*common, "--validate"], threads)
    clocks = training["steps"]
    each = [[after - before for before, after in zip(*pair)] for pair in zip(clocks, clocks[1:])]
    within = [one for number, one in enumerate(each, start=1) if number % steps]
    step = [statistics.median(values) for values in zip(*within)]
    epoch = [after - before for before, after in zip(clocks[steps - 1], clocks[2 * steps - 1])]
    sec = {
        "start": [max(first - one, 0.0) for first, one in zip(clocks[0], step)],
        "step": step,
        "epoch with validation": epoch,
        "training": [training["cpu_sec"], training["wall_sec"]],
    }
    if tests:
        test = _run(folder / "test", root, script, [*common, "--test"], threads)
        sec["test"] = [test["cpu_sec"], test["wall_sec"]]
    log = _CODES.sub("", (folder / "train.log").read_text(encoding="utf-8"))
    return {"sec": sec, "mib": training["mib"], "losses": [float(loss) for loss in _LOSS.findall(log)]}


def _run(place: Path, root: Path, script: str, flags: Sequence[str], threads: int) -> Mapping[str, Any]:
    result, log = place.with_suffix(".json"), place.with_suffix(".log")
    words = [sys.executable, "-m", "benchmarks.paddlevideo_child", str(result), str(root), script, *flags]
    variables = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    with log.open("wb") as file:
        code = subprocess.call(words, env={**os.environ, **variables}, cwd=ROOT, stdout=file, stderr=file)
    if code:
        raise PaddleVideoFastError(f"{log}: the command ended with {code}; its last lines say why")
    measured: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return measured
