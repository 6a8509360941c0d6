"""Which part of which frame decided: Grad-CAM of a network, and occlusion of anything that gives scores.

Both give a heat map of a clip's frames for one class. Grad-CAM takes one pass forth and back, and needs the
network. Occlusion takes some hundred passes forth, and needs a function from clips to scores alone.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.errors import ExplanationError
from paddlevideo_fast.extensions.distillation.model import STUDENT
from paddlevideo_fast.extensions.features.model import HeadOnly
from paddlevideo_fast.modeling.contexts import evaluating, hooked
from paddlevideo_fast.modeling.recognizers import Recognizer
from paddlevideo_fast.modeling.stages import HEAD

Explain = Callable[[np.ndarray, int], np.ndarray]
"""From a clip, uint8 [T, H, W, 3], and the number of a class to a heat map, float32 [T, H, W]."""
Maps = Sequence[tuple[paddle.Tensor, paddle.Tensor]]
Batch = Sequence[tuple[slice, ...]]
Progress = Callable[[Sequence[Batch]], Iterable[Batch]]

_MIN_CELLS = 7  # on the short side of a map that is fine enough
_STEM = "stem"
_BATCH = 16
_INSTEAD = "explain it by occlusion (predict --explain_by occlusion), which needs its scores alone"


def grad_cam(
    model: nn.Layer, clips: paddle.Tensor, class_id: int | None = None, stage: str | None = None
) -> np.ndarray:
    """The heat map of a clip by Grad-CAM, with a weight of its own for each value of the feature maps.

    The heat of a place is the sum of what its channels add to the logit, to the first order: activation times
    gradient, where that is positive. This is LayerCAM. Grad-CAM itself weighs a channel by the mean gradient
    of its map, which says little where gradients differ from place to place: before the last stage, and where
    something moves. Tokens have no ReLU that makes 0 of what is not there, so they count from their mean over
    the clip. The maps of several pathways are added. docs/adr/0052 has the measurements.

    The stage is the deepest one whose map has seven cells or more on its short side; if there is none, the
    deepest one with the finest map. Of tokens it is the first block: attention carries what is seen away from
    its place, and maps of deeper blocks look the same before training. Stages whose maps do not reach the
    logit are left out, such as the last block where the class token alone is classified.

    Nothing of the model changes: neither gradients, nor statistics, nor the random state.

    Args:
        model: a network with classes, as a config's MODEL describes it.
        clips: one clip as the network takes it, float32 [1, ...] in its `layout`.
        class_id: the class to explain; None: the one with the highest logit.
        stage: the name of a stage of the backbone; None: as above.

    Returns:
        float32 [T, H, W], from 0 to 1; all 0 where nothing speaks for the class.

    Raises:
        ExplanationError: the network has no maps that reach the logits, or no such stage or class.

    References:
        Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
        arXiv 1610.02391, section 3.
        Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization", IEEE
        Transactions on Image Processing 30, 2021, section III.
    """
    network = _network(model)
    maps_of_stage = _maps(network, clips, class_id)
    if stage is not None and stage not in maps_of_stage:
        text = f"stage {stage}: has no map that reaches the logits; take one of {', '.join(maps_of_stage)}"
        raise ExplanationError(text)
    has_tokens = network.backbone.has_tokens or network.backbone.data_format == "NLC"
    maps = maps_of_stage[stage or _chosen(maps_of_stage, has_tokens)]
    axes = [network.layout.index(axis) for axis in "THW"]
    size = [clips.shape[axis] for axis in axes]
    if has_tokens:
        maps = [(values - values.mean(axis=[1, 2, 3], keepdim=True), slopes) for values, slopes in maps]
    added = [F.relu(values * slopes).sum(-1).unsqueeze(1) for values, slopes in maps]
    heat = sum(F.interpolate(each, size, mode="trilinear", data_format="NCDHW") for each in added)
    return _normalized(heat[0, 0].numpy())


def by_grad_cam(model: nn.Layer, preprocess: Callable[[np.ndarray], paddle.Tensor]) -> Explain:
    """`grad_cam` of a network, for clips as they are read.

    Args:
        model: see `grad_cam`.
        preprocess: from uint8 clips [N, T, H, W, 3] to the network's input.
    """
    return lambda clip, class_id: grad_cam(model, preprocess(clip[None]), class_id)


def _network(model: nn.Layer) -> Recognizer:
    """The recognizer that a model predicts with; of a distillation it is the student."""
    network = getattr(model, STUDENT, model)
    if not isinstance(network, Recognizer) or isinstance(network, HeadOnly) or not network.has_classes:
        raise ExplanationError(f"Grad-CAM: {type(model).__name__} gives no logits of clips; {_INSTEAD}")
    return network


def _maps(network: Recognizer, clips: paddle.Tensor, class_id: int | None) -> dict[str, Maps]:
    """Values and gradients of the maps of each stage that reach the logit, each [1, T', H', W', C]."""
    clips = clips.detach()
    clips.stop_gradient = False  # else frozen stages would keep no graph
    outputs: dict[str, list[Any]] = {}
    with paddle.enable_grad(), _without_gradients(network), _watched(network, outputs):
        logits = network(clips)
        class_id = _class_in(logits[0].numpy(), class_id)
        flat = [(stage, output) for stage, each in outputs.items() for output in each]
        slopes = paddle.grad(logits[0, class_id], [one for _, one in flat], allow_unused=True)
    maps_of_stage: dict[str, Maps] = {}
    for (stage, output), slope in zip(flat, slopes):
        if slope is None:
            continue
        values, slope = (network.backbone.maps(each.astype("float32"), clips) for each in (output, slope))
        if values is not None and bool(slope.any()):
            maps_of_stage[stage] = [*maps_of_stage.get(stage, ()), (values.detach(), slope)]
    return maps_of_stage


def _class_in(scores: np.ndarray, class_id: int | None) -> int:
    if class_id is None:
        return int(scores.argmax())
    if not 0 <= class_id < len(scores):
        raise ExplanationError(f"class {class_id}: name one of 0 to {len(scores) - 1}")
    return class_id


@contextlib.contextmanager
def _without_gradients(network: nn.Layer) -> Iterator[None]:
    """Context in which a network is in eval mode and none of its parameters wants a gradient."""
    learned = [each for each in network.parameters() if not each.stop_gradient]
    with evaluating(network):
        for parameter in learned:
            parameter.stop_gradient = True
        try:
            yield
        finally:  # before the network trains again: it leaves frozen layers in evaluation mode
            for parameter in learned:
                parameter.stop_gradient = False


def _watched(
    network: Recognizer, outputs: dict[str, list[paddle.Tensor]]
) -> contextlib.AbstractContextManager[None]:
    """Context that adds to `outputs` what the last layers of each stage give."""
    backbone = network.backbone
    layers = dict(backbone.named_sublayers())
    stages = backbone.stage_layers or dict(backbone.named_children())

    def keep(stage: str, layer: nn.Layer, inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output  # MViT's tokens come with their grid
        if isinstance(output, paddle.Tensor):
            outputs.setdefault(stage, []).append(output)

    return hooked(
        [
            layers[name].register_forward_post_hook(partial(keep, stage))
            for stage in stages
            if stage != HEAD
            for name in backbone.last_layers(stage)
            if name in layers
        ]
    )


def _chosen(maps_of_stage: Mapping[str, Maps], has_tokens: bool) -> str:
    """The stage that `grad_cam` takes by default.

    Raises:
        ExplanationError: no stage has a map.
    """
    cells = {
        stage: max(min(values.shape[2:4]) for values, _ in maps) for stage, maps in maps_of_stage.items()
    }
    if not cells:
        raise ExplanationError(f"Grad-CAM: no stage of the network has a map of the clip; {_INSTEAD}")
    if has_tokens:
        return next((stage for stage in cells if stage != _STEM), _STEM)
    return max(reversed(cells), key=lambda stage: min(cells[stage], _MIN_CELLS))


def _normalized(heat: np.ndarray) -> np.ndarray:
    """Its positive part, scaled to a peak of 1."""
    heat = np.maximum(heat, 0).astype(np.float32)
    peak = heat.max()
    return heat / peak if peak > 0 else heat


def occlusion(
    probabilities: Callable[[np.ndarray], np.ndarray],
    clip: np.ndarray,
    class_id: int | None = None,
    box: Sequence[float] = (0.5, 0.25, 0.25),
    progress: Progress = iter,
) -> np.ndarray:
    """The heat map of a clip by occlusion: how much the class loses where a box of one colour hides pixels.

    The box has the mean colour of the clip and slides over it by half of its sides. The heat of a pixel is
    the drop of the class's probability, averaged over the boxes that cover the pixel, where it is positive.

    Args:
        probabilities: from clips, uint8 [N, T, H, W, 3], to float [N, num_classes].
        clip: uint8 [T, H, W, 3].
        class_id: the class to explain; None: the most probable one.
        box: frames, height and width of the box, as shares of the clip's.
        progress: wraps the batches, for a progress bar such as `tqdm`.

    Returns:
        float32 [T, H, W], from 0 to 1; all 0 where no box makes the class less probable.

    Raises:
        ExplanationError: there is no such class.

    Reference: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", arXiv 1311.2901,
    section 4.2.
    """
    whole = probabilities(clip[None])[0]
    class_id = _class_in(whole, class_id)
    spans = [_spans(length, share) for length, share in zip(clip.shape, box)]
    boxes = list(itertools.product(*spans))
    colour = clip.mean(axis=(0, 1, 2)).round().astype(np.uint8)
    drops, counts = (np.zeros(clip.shape[:3]) for _ in range(2))
    starts = range(0, len(boxes), _BATCH)
    for batch in progress([boxes[start : start + _BATCH] for start in starts]):
        hidden = np.repeat(clip[None], len(batch), axis=0)
        for each, part in zip(hidden, batch):
            each[part] = colour
        for part, scores in zip(batch, probabilities(hidden)):
            drops[part] += whole[class_id] - scores[class_id]
            counts[part] += 1
    return _normalized(drops / counts)


def _spans(length: int, share: float) -> list[slice]:
    """Spans that cover an axis, each half a span after the one before; the last ends where the axis does."""
    size = min(max(round(length * share), 1), length)
    firsts = [*range(0, length - size, max(size // 2, 1)), length - size]
    return [slice(first, first + size) for first in firsts]
