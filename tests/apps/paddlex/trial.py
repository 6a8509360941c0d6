"""PaddleX itself on this toolkit: `make test-paddlex`.

In an environment with PaddleX, for each model: check_dataset, train, evaluate, resume, export, predict,
`create_model` and the pipeline video_classification, on a CPU and on PaddleX's defaults. Then our own
prediction of the same videos, of five sizes, must have the same top-1 and scores within 1e-3.

PaddleX's wheel lacks its YAML files for training; in its repository they lie in
paddlex/repo_apis/PaddleVideo_api/configs. `make test-paddlex PADDLEX_CONFIGS=FOLDER` takes them from a
folder; without it `training_configs` writes files of their form.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import yaml
from training_configs import MODELS, training_config

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import paddlevideo_fast  # noqa: E402, F401  # gives PaddleX's own processes the fastest path of MKL, too

SIZES = ((320, 240), (340, 256), (640, 360), (480, 640), (1280, 720))
CLASSES = ("rise", "fall", "to the left", "to the right")
MAX_DEVIATION = 1e-3
_ENGINE = "from paddlex.engine import Engine; Engine().run()"
_CREATE = """
import json, sys
import numpy as np
from paddlex import create_model, create_pipeline
from paddlex.inference import load_pipeline_config
name, folder, target, *videos = sys.argv[1:]
model = create_model(name, model_dir=folder)
config = load_pipeline_config("video_classification")
config["SubModules"]["VideoClassification"].update(model_name=name, model_dir=folder)
pipeline = create_pipeline(config=config)
found = {}
for kind, predict in (("create_model", model.predict), ("pipeline", pipeline.predict)):
    for video in videos:
        (result,) = predict(video, topk=4)
        result = result.json["res"]
        found[f"{kind} {video}"] = {
            str(label): float(score)
            for label, score in zip(np.ravel(result["class_ids"]), np.ravel(result["scores"]))
        }
json.dump(found, open(target, "w"))
"""


def write_video(path: Path, size: Sequence[int], label: int, seed: int) -> None:
    """A textured picture that moves in the direction of its class, with a disc on it."""
    width, height = size
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    picture = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    down, right = ((-3, 0), (3, 0), (0, -3), (0, 3))[label]
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "20", "g": "12"}
        for number in range(30 + seed % 7):
            frame = np.roll(picture, (down * number, right * number), (0, 1))
            frame = cv2.circle(
                frame.copy(), (width // 2, height // 2), height // 6, (40 * label, 200, 90), -1
            )
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def make_data(folder: Path) -> list[Path]:
    """A data set in PaddleX's form, 24 videos to train and 8 to validate; gives 12 others to predict."""
    for split, count in (("train", 24), ("val", 8)):
        lines = []
        for number in range(count):
            name = f"videos/{split}_{number}.mp4"
            seed = number + 1000 * (split == "val")
            write_video(folder / name, SIZES[number % len(SIZES)], number % 4, seed)
            lines.append(f"{name} {number % 4}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    (folder / "label.txt").write_text("".join(f"{label} {name}\n" for label, name in enumerate(CLASSES)))
    unseen = [folder.parent / "unseen" / f"{number:02}.mp4" for number in range(12)]
    for number, path in enumerate(unseen):
        write_video(path, SIZES[number % len(SIZES)], number % 4, 2000 + number)
    return unseen


@contextlib.contextmanager
def installed(configs: Path | None) -> Iterator[Path]:
    """PaddleX with its YAML files and this checkout as its PaddleVideo; gives PaddleX's own folder."""
    import paddlex

    home = Path(paddlex.__file__).parent
    target = home / "repo_apis/PaddleVideo_api/configs"
    target.mkdir(exist_ok=True)
    for model, (network, num_frames) in MODELS.items():
        if configs is not None:
            shutil.copyfile(configs / f"{model}.yaml", target / f"{model}.yaml")
        else:
            (target / f"{model}.yaml").write_text(yaml.safe_dump(training_config(model, network, num_frames)))
    repository, mark = home / "repo_manager/repos/PaddleVideo", ROOT / ".installed"
    repository.parent.mkdir(exist_ok=True)
    repository.unlink(missing_ok=True)
    repository.symlink_to(ROOT)
    mark.touch()
    try:
        yield home
    finally:
        mark.unlink()
        repository.unlink()


def run(*words: Any, log: Path) -> str:
    """Runs a command and returns what it prints; the log keeps all of it."""
    font = next(Path(cv2.__file__).parent.parent.glob("matplotlib/**/DejaVuSans.ttf"), "")
    env = {
        **os.environ,
        "PADDLE_PDX_LOCAL_FONT_FILE_PATH": str(font),
        "PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK": "True",
    }
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, words))}\n{done.stdout}\n")
    assert done.returncode == 0, f"exit code {done.returncode}: see {log}\n{done.stdout[-3000:]}"
    return done.stdout


def try_model(
    model: str, home: Path, work: Path, data: Path, unseen: Sequence[Path], epochs: int
) -> dict[str, Any]:
    """Goes through PaddleX's modes with one model; gives what was measured."""
    output, log = work / model, work / f"{model}.log"
    base = ["-c", _ENGINE, "-c", home / "configs/modules/video_classification" / f"{model}.yaml"]
    shared = ["-o", f"Global.dataset_dir={data}", "-o", "Global.device=cpu", "-o", f"Global.output={output}"]

    def engine(mode: str, *settings: str) -> str:
        words = [word for setting in settings for word in ("-o", setting)]
        return run(*base, "-o", f"Global.mode={mode}", *shared, *words, log=log)

    engine("check_dataset")
    assert json.loads((output / "check_dataset_result.json").read_text())["check_pass"]

    training = [
        "Train.num_classes=4",
        "Train.batch_size=4",
        "Train.warmup_steps=1",
        "Train.learning_rate=0.001",
        f"Train.pretrain_weight_path={pretrained(model, home, work)}",
    ]
    began = time.perf_counter()
    engine("train", f"Train.epochs_iters={epochs}", *training)
    train_sec = time.perf_counter() - began
    check_output(output, epochs)

    best = output / "best_model"
    shown = engine("evaluate", f"Evaluate.weight_path={best}/best_model.pdparams")
    assert "avg_acc1=" in shown
    first = output / "epoch_1"
    engine("train", f"Train.epochs_iters={epochs}", f"Train.resume_path={first}/epoch_1.pdparams", *training)
    check_output(output, epochs)
    assert "resumed" in (output / "paddlevideo_fast/train.log").read_text()

    exported = work / f"{model}_exported"
    weights = f"Export.weight_path={best}/best_model.pdparams"
    run(*base, "-o", "Global.mode=export", *shared[:-1], f"Global.output={exported}", "-o", weights, log=log)
    engine("predict", f"Predict.model_dir={best}/inference", f"Predict.input={unseen[0]}")

    deviations = [
        compare(model, folder, unseen, work, log) for folder in (best / "inference", exported)
    ]  # the program of the training, and the export
    return {"train_sec": round(train_sec), "max_deviation": max(deviations)}


def pretrained(model: str, home: Path, work: Path) -> Path:
    """Weights of the network with 400 classes, in place of the file that PaddleX would download."""
    path = work / f"{model}.pdparams"
    text = (
        "import sys, paddle; sys.path.insert(0, sys.argv[1])\n"
        "from paddlevideo_fast.apps.paddlex.translate import load_paddlex_config\n"
        "from paddlevideo_fast.modeling import build_model\n"
        "cfg, _ = load_paddlex_config(sys.argv[2], [], 'export')\n"
        "paddle.seed(1)\n"
        "paddle.save(build_model(cfg['MODEL'], load_pretrained=False).state_dict(), sys.argv[3])\n"
    )
    config = home / "repo_apis/PaddleVideo_api/configs" / f"{model}.yaml"
    run("-c", text, ROOT, config, path, log=work / f"{model}.log")
    return path


def check_output(output: Path, epochs: int) -> None:
    """PaddleX's files are where it looks for them, its own where it has put them."""
    result = json.loads((output / "train_result.json").read_text())
    assert result["done_flag"] is True
    for tag in ("best_model", f"epoch_{epochs}"):
        names = [f"{tag}.pdparams", "config.yaml", "inference/inference.yml", "inference/inference.pdiparams"]
        missing = [name for name in names if not (output / tag / name).is_file()]
        assert not missing, f"{output / tag}: {missing}"
    for name in ("config.yaml", "train.log"):
        assert (output / name).is_file()
    assert set(result["models"]["best"]) >= {"pdparams", "pdmodel", "pdiparams", "inference_config", "score"}


def compare(model: str, folder: Path, unseen: Sequence[Path], work: Path, log: Path) -> float:
    """The largest difference between PaddleX's scores and ours; top-1 must be the same."""
    target = work / "paddlex.json"
    run("-c", _CREATE, model, folder, target, *unseen, log=log)
    theirs = json.loads(target.read_text())
    words = ("-i", unseen[0].parent, "--model_file", folder / "inference", "--json", "--top_k", "4")
    shown = run(ROOT / "tools/predict.py", *words, log=log)
    ours = {
        Path(entry["path"]).name: {str(top["class_id"]): top["score"] for top in entry["top"]}
        for entry in map(json.loads, filter(lambda line: line.startswith("{"), shown.splitlines()))
    }
    largest = 0.0
    for key, scores in theirs.items():
        own = ours[Path(key).name]
        assert max(own, key=own.__getitem__) == max(scores, key=scores.__getitem__), (key, scores, own)
        largest = max(largest, *(abs(scores[label] - own[label]) for label in own))
    assert largest <= MAX_DEVIATION, f"{folder}: {largest}"
    return largest


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the trial and prints what it measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--configs", type=Path, help="folder of PaddleX's YAML files (default: files of their form)"
    )
    parser.add_argument("--work", type=Path, help="folder for data and outputs (default: a temporary one)")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="(default: all three)"
    )
    parser.add_argument("--epochs", type=int, default=2, help="(default 2)")
    args = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work.absolute()
        data = work / "data"
        data.mkdir(parents=True, exist_ok=True)
        unseen = make_data(data)
        home = stack.enter_context(installed(args.configs))
        for model in args.models:
            print(model, try_model(model, home, work, data, unseen, args.epochs), flush=True)


if __name__ == "__main__":
    main()
