"""How many tokens of a data set repeat the token before them, and what leaving them out would save (RLT)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paddle

from paddlevideo_fast.apps.doctor.timing import SyntheticLoader, time_steps
from paddlevideo_fast.assembly import TrainingSetup
from paddlevideo_fast.extensions.run_length.model import RunLengthRecognizer
from paddlevideo_fast.extensions.run_length.rule import first_of_runs
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling.attentive_head import AttentiveHead
from paddlevideo_fast.modeling.backbones.videomae import TubeletTransformer
from paddlevideo_fast.modeling.heads import VideoMAEHead
from paddlevideo_fast.modeling.recognizers import Recognizer3D, RecognizerTransformer

THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.4)
USUAL = 0.1  # of the paper
_NETWORKS = (Recognizer3D, RecognizerTransformer, RunLengthRecognizer)
_TRIAL_STEPS, _TRIAL_SEC = 5, 6.0


def takes_run_lengths(model: Any) -> bool:
    """Whether a network is one that RLT is for."""
    is_one = type(model) in _NETWORKS and isinstance(model.backbone, TubeletTransformer)
    return is_one and isinstance(model.head, (VideoMAEHead, AttentiveHead))


def repeated_tokens(parts: TrainingSetup, batch: Batch) -> list[dict[str, float]]:
    """What share of the tokens of real clips repeats, by threshold.

    Args:
        parts: of the run; `takes_run_lengths` has taken the network.
        batch: clips of the training data.

    Returns:
        For each of `THRESHOLDS` "threshold"; "repeated", the share of the tokens that would be left out;
        "work", the multiply-adds of the blocks that would be left, as a share.
    """
    backbone = parts.model.backbone
    clips, sizes = parts.split.preprocess(batch.clips), backbone.patch_embed
    rows = []
    for threshold in THRESHOLDS:
        with paddle.no_grad():
            stays = first_of_runs(clips, sizes.tubelet_size, sizes.patch_size, threshold).flatten(1)
        lengths = stays.astype("int64").sum(axis=1).tolist()
        num_tokens = stays.shape[1]
        work = sum(_work(backbone, length) for length in lengths)
        rows.append(
            {
                "threshold": threshold,
                "repeated": 1 - sum(lengths) / stays.size,
                "work": work / (len(lengths) * _work(backbone, num_tokens)),
            }
        )
    return rows


def _work(backbone: TubeletTransformer, num_tokens: int) -> int:
    """Multiply-adds of a block for a clip of so many tokens."""
    channels, hidden = backbone.out_channels, backbone.blocks[0].mlp.fc1.weight.shape[1]
    return num_tokens * (4 * channels**2 + 2 * channels * hidden) + 2 * num_tokens**2 * channels


def shorter_training(parts: TrainingSetup, batch: Batch, clip_shape: Sequence[int]) -> float:
    """How long a training step on real clips takes with RLT at the `USUAL` threshold, over one without.

    The network changes: its blocks take both from then on.
    """
    plain, loader = parts.model, SyntheticLoader(len(batch), clip_shape, parts.model)
    loader.batch = batch
    is_ours = isinstance(plain, RunLengthRecognizer)
    network = plain if is_ours else RunLengthRecognizer(plain.backbone, plain.head)
    before = network.threshold
    step_sec = []
    try:
        for threshold in (None, USUAL):
            network.threshold = threshold
            trial = replace(parts, model=network)
            step_sec.append(time_steps(trial, loader, _TRIAL_STEPS, 1, _TRIAL_SEC).step_sec)
    finally:
        network.threshold = before
    return step_sec[1] / step_sec[0]
