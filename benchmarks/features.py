"""An epoch of a head on stored features, and through the network whose backbone is frozen."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from benchmarks.measuring import Positive, compared, log_to_memory, time_in_turn, write_clips, write_list
from benchmarks.networks import write_random_weights
from paddlevideo_fast.assembly.build import TrainingSetup, training_setup
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.command_line import count
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine.callbacks import LearningRate
from paddlevideo_fast.extensions.features.compute import compute_features
from paddlevideo_fast.schedule.phases import plain_phases

NETWORKS = {
    "ResNet-50 at 8x224": ("{name: ResNetTSM, depth: 50, num_seg: 8}", 2048, 224),
    "narrow ResNet-18 at 8x56": (
        "{name: ResNetTSM, depth: 18, num_seg: 8, width: 8, stage_blocks: [1, 1, 1, 1]}",
        64,
        56,
    ),
}
CONFIG = """
MODEL:
  framework: Recognizer2D
  backbone: {backbone}
  head: {{name: TSMHead, num_classes: 8, in_channels: {channels}, drop_ratio: 0.5}}
FINETUNE: {{freeze: [backbone]}}
DATASET:
  batch_size: 8
  train: {{format: VideoDataset, file_path: {folder}/clips.list}}
PIPELINE:
  train:
    decode: {{name: VideoDecoder}}
    sample: {{name: Sampler, num_seg: 8, seg_len: 1, select_left: true}}
    transform: [Scale: {{short_size: 256}}, MultiScaleCrop: {{target_size: {size}}}, RandomFlip: ,
      Image2Array: , Normalization: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}]
OPTIMIZER: {{name: Momentum, momentum: 0.9, learning_rate: 0.01}}
model_name: features
output_dir: {folder}/output
epochs: 1
"""


def run(clips: Annotated[int, count(8)] = 16, rounds: Positive = 5) -> dict[str, Any]:
    """Times epochs of both sides in turn, for each network.

    The same trainer trains the same head with the same batches. Through the network, an epoch reads the
    videos and runs the frozen backbone; on features it reads their rows.

    Args:
        clips: of an epoch.
        rounds: epochs of each side.

    Returns:
        For each network the median seconds of an epoch of both sides, and "ratio": the median over
        neighbouring pairs.
    """
    log_to_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_clips(folder, num_clips=4, num_frames=60)
        write_list(folder, [files[number % len(files)] for number in range(clips)], 8)
        return {"networks": {title: _network(folder, title, rounds) for title in NETWORKS}}


def _network(folder: Path, title: str, rounds: int) -> dict[str, float]:
    backbone, channels, size = NETWORKS[title]
    config, features = folder / f"{size}.yaml", folder / f"features_{size}"
    config.write_text(CONFIG.format(backbone=backbone, channels=channels, size=size, folder=folder))
    weights = write_random_weights(load_config(str(config))["MODEL"], folder / f"{size}.pdparams")
    compute_features(load_config(str(config), [f"weights={weights}"]), features)
    sides = {
        "network": _epoch(load_config(str(config), [f"MODEL.backbone.pretrained={weights}"])),
        "features": _epoch(load_config(str(config), [f"features={features}", "FINETUNE="])),
    }
    rows = compared(time_in_turn(sides, rounds, warmup=1), "network")
    seconds = {f"{side}_sec": row["ms"] / 1e3 for side, row in rows.items()}
    return {**seconds, "ratio": rows["features"]["ratio"]}


def _epoch(config: Any) -> Callable[[int], None]:
    parts: TrainingSetup = training_setup(plan_run(RunSpec.for_training(config)))

    def epoch(turn: int) -> None:
        trainer = parts.trainer(parts.phase_loader(), [LearningRate(parts.curve)], plain_phases(1))
        trainer.fit()
        float(parts.model.head.fc.bias.sum())  # waits for the device

    return epoch
