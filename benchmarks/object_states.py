"""Pretrains PP-TSMv2 on generated clips of two frames: where the object is, and how far it moves.

The network shifts once, at an eighth of the size of its frames. On `paddlevideo-fast data motion` it stays at
chance if it begins with random weights and learns classes; if it begins with these weights, it learns them.

    python -m benchmarks.object_states output/pptsm_v2.pdparams
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from tqdm import tqdm

from paddlevideo_fast.cli import count
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.preparation.motion import CLASSES, draw_states, render_clip

BACKBONE: Mapping[str, Any] = {
    "name": "PPTSM_v2",
    "scale": 0.125,
    "class_expand": 256,
    "dropout_prob": 0.0,
    "shift_ratio": 0.25,
}
_NUM_FRAMES = 2
_NUM_CLIPS = 32  # of a batch
_SIZE = 112  # pixels
_UNITS = np.array([0.2, 0.2, 0.4])  # of x and y in picture widths, of the size in octaves


def _batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Clips uint8 [N, T, H, W, 3], and for each frame the state of the object and its motion, [N * T, 6]."""
    clips, states = [], []
    for number in range(_NUM_CLIPS):
        name, seed = [*CLASSES][number % len(CLASSES)], (2, step, number)
        clips.append(render_clip(name, _NUM_FRAMES, _SIZE, np.random.default_rng(seed)))
        states.append(draw_states(name, _NUM_FRAMES, np.random.default_rng(seed))[:, :3] / _UNITS)
    state = np.stack(states)
    motion = np.broadcast_to(np.diff(state, axis=1), state.shape)
    return np.stack(clips), np.concatenate([state, motion], axis=2).reshape(-1, 6).astype(np.float32)


def pretrain(file: Path, num_steps: int, learning_rate: float) -> float:
    """Writes the weights; returns the last squared error over the targets' variance."""
    paddle.seed(1)
    backbone = {**BACKBONE, "num_seg": _NUM_FRAMES, "class_num": 6}
    section = {"framework": "Recognizer2D", "backbone": backbone, "head": {"name": "MoViNetHead"}}
    model = build_model(section, load_pretrained=False)
    preprocess = Preprocess([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], model.layout)
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(learning_rate, num_steps)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters(), weight_decay=0.01)
    share = 1.0
    for step in (progress := tqdm(range(num_steps), "steps", disable=None)):
        clips, states = _batch(step)
        loss = F.mse_loss(model.features(preprocess(clips))[0], paddle.to_tensor(states))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        share = 0.95 * share + 0.05 * float(loss) / states.var(axis=0).mean()
        progress.set_postfix(error=f"{share:.3f}")
    file.parent.mkdir(parents=True, exist_ok=True)
    paddle.save(model.state_dict(), str(file))
    return share


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="weights to write, .pdparams")
    parser.add_argument("--steps", type=count(1), default=800)
    args = parser.parse_args()
    print(f"{args.file}: squared error {pretrain(args.file, args.steps, 0.004):.3f} of the variance")
