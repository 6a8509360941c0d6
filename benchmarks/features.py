"""An epoch of a head on stored features, and through the network whose backbone is frozen."""

import tempfile
from collections.abc import Callable, Sequence
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

# What differs from the config: nothing, and a network that is quick on a CPU.
CONFIG = "tsm_k400_videos"
_NARROW = "{name: ResNetTSM, depth: 18, num_seg: 8, width: 8, stage_blocks: [1, 1, 1, 1]}"
NETWORKS = {
    "ResNet-50 at 8x224": [],
    "narrow ResNet-18 at 8x56": [f"MODEL.backbone={_NARROW}", "MODEL.head.in_channels=64", "crop_size=56"],
}


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
        listed = write_list(folder, [files[number % len(files)] for number in range(clips)], 8)
        return {"networks": {title: _network(folder, title, listed, rounds) for title in NETWORKS}}


def _network(folder: Path, title: str, listed: Path, rounds: int) -> dict[str, float]:
    weights, features = folder / f"{title}.pdparams", folder / title
    data = f"DATASET={{batch_size: 8, train: {{format: VideoDataset, file_path: {listed}}}}}"
    start = ("MODEL.head.num_classes=8", "MODEL.backbone.pretrained=null", "epochs=1")
    common = [*NETWORKS[title], data, *start]
    write_random_weights(load_config(CONFIG, common)["MODEL"], weights)
    compute_features(load_config(CONFIG, [*common, f"weights={weights}"]), features)
    sides = {
        "network": _epoch([*common, "FINETUNE.freeze=[backbone]", f"weights={weights}"]),
        "features": _epoch([*common, f"features={features}", f"weights={weights}"]),
    }
    rows = compared(time_in_turn(sides, rounds, warmup=1), "network")
    seconds = {f"{side}_sec": row["ms"] / 1e3 for side, row in rows.items()}
    return {**seconds, "ratio": rows["features"]["ratio"]}


def _epoch(overrides: Sequence[str]) -> Callable[[int], None]:
    config = load_config(CONFIG, overrides)
    parts: TrainingSetup = training_setup(plan_run(RunSpec.for_training(config)))

    def epoch(turn: int) -> None:
        trainer = parts.trainer(parts.phase_loader(), [LearningRate(parts.curve)], plain_phases(1))
        trainer.fit()
        float(parts.model.head.fc.bias.sum())  # waits for the device

    return epoch
