"""Turns an ONNX program into one in int8: clips of videos show the range of each tensor."""

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from paddlevideo_fast.apps.predict.predictor import probabilities
from paddlevideo_fast.apps.predict.program import ProgramOptions, open_program
from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger

ALLOWED_LOSS = 0.01  # of top-1; or a single clip of `_FEW` or more
_FEW = 10  # fewer clips show no loss of top-1 that a rate could be made of
_ALLOWED_DEVIATION = 0.1  # of the probabilities of few clips, in the mean
_ROUNDING = 1e-9
_ERRORS = 3  # in onnxruntime's log
_NUM_JUDGING = 4  # clips that show how much a layer loses
_LAYERS = ("Conv", "Gemm", "MatMul")
# What stands between the layers of a convolutional network, and stays in int8 there.
_BETWEEN = (
    "Add",
    "AveragePool",
    "Concat",
    "GlobalAveragePool",
    "LeakyRelu",
    "MaxPool",
    "Pad",
    "Relu",
    "Slice",
    "Split",
)
_SWISH = ("Sigmoid", "Mul")
_SHAPES = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

_CPU = ProgramOptions(providers=("cpu",))

logger = get_logger(__name__)


class LabelledClip(NamedTuple):
    """A clip as the program takes it, [1, ...], and the classes of its video."""

    clip: np.ndarray
    labels: tuple[int, ...]


class ClipsOfVideos:
    """Clips of videos of all classes of a list: one calibrates, another of its class compares the programs.

    The videos of a class are taken in random order, so that no order of the list decides which is which.

    Args:
        dataset: the videos.
        num_clips: to calibrate with; as many others compare, where the list has them.
        prepare: from uint8 clips [1, T, H, W, 3] to what the program takes.

    Raises:
        ProgramError: the list has a single video.
    """

    def __init__(
        self, dataset: ClipDataset, num_clips: int, prepare: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._dataset = dataset
        self._prepare = prepare
        if len(dataset) < 2:
            raise ProgramError(f"{dataset.file_path}: has one video, and calibrating and comparing need two")
        shuffled = np.random.default_rng(0).permutation(len(dataset)).tolist()
        by_class = sorted(shuffled, key=lambda number: dataset.records[number].labels)
        num_pairs = len(dataset) // 2
        firsts = 2 * np.linspace(0, num_pairs - 1, min(num_clips, num_pairs)).round().astype(int)
        self.calibrating = [by_class[first] for first in firsts]
        self.comparing = [by_class[first + 1] for first in firsts]

    def read(self, numbers: Sequence[int], what: str) -> Iterator[LabelledClip]:
        """One clip of each of these records, with a progress bar; a file that does not decode is told."""
        for number in tqdm(numbers, what, unit="clip", disable=None):
            batch = make_batch(self._dataset, [ClipRequest(number, 0, 0, self._dataset.num_views)])
            if batch.failures:
                path, cause = batch.failures[0]
                logger.warning("%s is left out: %s", path, cause)
                continue
            yield LabelledClip(self._prepare(batch.clips[:1]), self._dataset.records[number].labels)


@dataclass(frozen=True)
class Comparison:
    """How a program in int8 does on clips that did not calibrate it.

    Attributes:
        calibrated_with: number of the other clips, which did.
        num_clips: that were compared.
        top1, top1_float32: shares of the clips whose best class is one of their labels.
        same_class: share of the clips that both programs give the same class.
        deviation: mean over the clips of the largest difference of a probability.
    """

    calibrated_with: int
    num_clips: int
    top1: float
    top1_float32: float
    same_class: float
    deviation: float


def quantize(
    model_file: Path, target: Path, clips: ClipsOfVideos, activation: Activation
) -> tuple[Comparison, list[str]]:
    """Writes a program in int8: weights by channel, activations by the ranges that clips show.

    If it loses more than a point of top-1, and more than one clip, swish stays in float; then also the layers
    whose int8 changes the logits most, first one, then two, four and so on. Where fewer than ten clips are
    compared, no clip may be lost, and the probabilities must stay near.

    Args:
        model_file: .onnx, in float32.
        target: the .onnx file to write.
        clips: to calibrate with and to compare.
        activation: makes probabilities of the logits.

    Returns:
        How it compares, and what stays in float: the names of layers, and operators of swish.

    Raises:
        MissingExtraError: a package is missing.
        ProgramError: no clip could be read, or with half of the layers in float it still loses too much.
    """
    with tempfile.TemporaryDirectory(prefix=".int8.", dir=target.parent) as folder:
        work = _Quantizer(model_file, Path(folder))
        paths = (Path(folder, f"clip-{number}.npy") for number in itertools.count())
        read = clips.read(clips.calibrating, "clips that calibrate")
        calibrating = [_stored(clip, next(paths)) for clip, _ in read]
        read = clips.read(clips.comparing, "clips to compare")
        compared = [(_stored(clip, next(paths)), labels) for clip, labels in read]
        if not calibrating or not compared:
            raise ProgramError("int8: no clip of the list could be read")
        if len(compared) < _FEW:
            logger.warning(
                f"int8: only {len(compared)} clips compare the programs, which says little about their "
                f"top-1; give --calibrate a list of {2 * _FEW} videos or more"
            )
        labels, shown = [labels for _, labels in compared], [clip for clip, _ in compared]
        expected = probabilities(_logits(model_file, shown), activation)
        order: list[str] = []
        powers = (2**power for power in range(len(work.layers).bit_length()))
        trials = [([], 0)] * bool(work.swish) + [(work.swish, number) for number in (0, *powers)]
        for swish, num_float in trials:
            if num_float > len(work.layers) / 2:
                break
            if num_float == 1:
                order = _by_loss(work, calibrating[:_NUM_JUDGING])
            kept = [*swish, *order[:num_float]]
            work.write(target, calibrating, [name for name in work.layers if name not in kept], swish)
            scores = probabilities(_logits(target, shown), activation)
            comparison = _compared(scores, expected, labels, len(calibrating))
            logger.info("int8%s: %s", f" but for {', '.join(kept)}" if kept else "", told(comparison))
            if _is_near(comparison):
                return comparison, kept
    loss = f"loses more than {ALLOWED_LOSS:.0%} of top-1"
    if comparison.num_clips < _FEW:
        loss = "gives other classes or probabilities"
    text = f"int8: with half of the layers in float, it still {loss} ({told(comparison)})"
    raise ProgramError(f"{text}; nothing was written")


def _is_near(comparison: Comparison) -> bool:
    """Whether a program in int8 does as well as in float32, as far as the clips show it."""
    is_few = comparison.num_clips < _FEW
    allowed = 0.0 if is_few else max(ALLOWED_LOSS, 1 / comparison.num_clips)
    is_like = not is_few or comparison.deviation <= _ALLOWED_DEVIATION
    return is_like and comparison.top1_float32 - comparison.top1 <= allowed + _ROUNDING


def _stored(clip: np.ndarray, path: Path) -> np.ndarray:
    """The same clip, read from a file where it is used: there may be gigabytes of clips."""
    np.save(path, clip)
    return np.load(path, mmap_mode="r")


def _logits(program: Path, clips: Sequence[np.ndarray]) -> np.ndarray:
    """Float32 [num_clips, num_classes] of clips [1, ...]."""
    opened = open_program(program, options=_CPU)
    return np.concatenate([opened.run(clip) for clip in clips])


def _compared(
    actual: np.ndarray, expected: np.ndarray, labels: Sequence[tuple[int, ...]], calibrated_with: int
) -> Comparison:
    """Compares probabilities [num_clips, num_classes]."""
    best, own = actual.argmax(axis=1), expected.argmax(axis=1)
    return Comparison(
        calibrated_with=calibrated_with,
        num_clips=len(labels),
        top1=float(np.mean([one in several for one, several in zip(best, labels)])),
        top1_float32=float(np.mean([one in several for one, several in zip(own, labels)])),
        same_class=float(np.mean(best == own)),
        deviation=float(np.abs(actual - expected).max(axis=1).mean()),
    )


def told(comparison: Comparison) -> str:
    """A comparison in a line."""
    return (
        f"top1 {comparison.top1:.3f}, {comparison.top1_float32:.3f} in float32; "
        f"{comparison.same_class:.1%} of {comparison.num_clips} clips keep their class; "
        f"probabilities differ by {comparison.deviation:.4f} in the mean"
    )


class _Quantizer:
    """onnxruntime's quantization of one program.

    Args:
        model_file: .onnx, in float32.
        folder: an empty one, for `prepared`.

    Attributes:
        prepared: the program, with its batch norms in its convolutions, and as `make_planar` and
            `fuse_attention` write it.
        layers: names of the operators that have weights, in their order.
        swish: which operators of swish stand between the layers.
    """

    def __init__(self, model_file: Path, folder: Path) -> None:
        with needing("onnx", "export to int8"):
            import onnx
            import onnxruntime
            from onnxruntime.quantization.shape_inference import quant_pre_process

            from paddlevideo_fast.apps.export.fused_attention import fuse_attention
            from paddlevideo_fast.apps.export.planar import make_planar
        self.prepared = folder / "prepared.onnx"
        onnxruntime.set_default_logger_severity(_ERRORS)
        quant_pre_process(str(model_file), str(self.prepared), skip_symbolic_shape=True)
        program = onnx.load(str(self.prepared))
        if not make_planar(program):
            logger.info("3D convolutions remain, which are slow in int8: the export has a free H or W")
        num_fused = fuse_attention(program)
        onnx.save(program, str(self.prepared))
        graph = program.graph
        weights = {value.name: len(value.dims) for value in graph.initializer}
        layers = [node for node in graph.node if node.op_type in _LAYERS]
        # onnxruntime multiplies with no batch of matrices whose channels have scales of their own
        batches = {name for name, ndim in weights.items() if ndim > 2}
        self.layers = [
            node.name
            for node in layers
            if weights.keys() & node.input[1:]
            and not (node.op_type == "MatMul" and batches.intersection(node.input))
        ]
        is_transformer = num_fused > 0 or len(layers) > len(self.layers)
        # a transformer keeps its residuals, norms and attention in float
        around = () if is_transformer else (*_BETWEEN, *_SWISH, *_SHAPES)
        # what follows its products is in float, so that onnxruntime gives their results in float at once
        self._options = {"OpTypesToExcludeOutputQuantization": ["MatMul"]} if is_transformer else {}
        self._between = {node.name: node.op_type for node in graph.node if node.op_type in around}
        self.swish = sorted(set(self._between.values()).intersection(_SWISH))
        self._input = next(value.name for value in graph.input if value.name not in weights)

    def write(
        self, target: Path, clips: Sequence[np.ndarray], layers: Sequence[str], in_float: Sequence[str] = ()
    ) -> None:
        """Writes the program with these layers in int8, and with what stands between several layers.

        Args:
            target: the .onnx file.
            clips: that calibrate, each [1, ...].
            layers: names.
            in_float: operators between the layers that stay in float.
        """
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        between = [name for name, op in self._between.items() if op not in in_float and len(layers) > 1]
        feeds = ({self._input: clip} for clip in clips)
        own = logging.getLogger()
        level = own.level
        own.setLevel(logging.ERROR)  # it tells the root logger what it does
        try:
            quantize_static(
                str(self.prepared),
                str(target),
                SimpleNamespace(get_next=lambda: next(feeds, None)),
                quant_format=QuantFormat.QDQ,
                nodes_to_quantize=[*layers, *between],
                per_channel=True,
                weight_type=QuantType.QInt8,
                activation_type=QuantType.QUInt8,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options=self._options,
            )
        finally:
            own.setLevel(level)


def _by_loss(work: _Quantizer, clips: Sequence[np.ndarray]) -> list[str]:
    """The layers, and first the one that changes the logits most where it alone is in int8."""
    expected, losses = _logits(work.prepared, clips), {}
    alone = work.prepared.with_name("alone.onnx")
    for name in tqdm(work.layers, "layers", unit="layer", disable=None):
        work.write(alone, clips, [name])
        losses[name] = float(np.abs(_logits(alone, clips) - expected).mean())
    return sorted(losses, key=losses.__getitem__, reverse=True)
