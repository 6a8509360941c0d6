"""What the toolkit asks of a backbone, with defaults; a network's file says what differs."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.modeling.converters import Converter

DataFormat = Literal["NCHW", "NHWC", "NCDHW", "NLC", "NC"]


class Backbone(nn.Layer):
    """A network from frames or clips to features. A subclass sets what differs from the defaults.

    The annotations of the constructor say which arguments the shape of the clips sets, or has to fit: see
    `config.types.Role`.

    Attributes:
        data_format: what `forward` gives: feature maps of frames ("NCHW", "NHWC"), a list of feature maps of
            clips ("NCDHW"), tokens of clips ("NLC"), or one feature for each clip ("NC").
        has_tokens: `forward` gives all tokens of a clip, normed and with the class token if there is one,
            while `data_format` is set to "NLC".
        input_format: layout of the frames that a network over frames takes.
        pretrained: path or URL of weights to start from; None: random weights.
        out_channels: channels of the features.
        num_classes: length of the logits, where `forward` gives logits; None: it gives features.
        classifiers: names of the linear layers that give the logits, where it does.
        num_seg: frames of a clip that the network is built for; None: it takes any number.
        shift_ratio: share of the channels in each fold of the temporal shift; 0: there is no shift.
        spatial_stride: pixels of the clip for one value of the feature maps.
        least_frames: the fewest frames that a clip may have.
        full_clip: frames, height and width of the clips that a multigrid run ends with; computed positions of
            smaller clips are made of the positions of these. None: of each clip by itself.
        takes_multigrid: clips may change their size from step to step.
        has_batch_norm: some of the layers are batch norms, which MULTIGRID.bn_base_size is for.
        has_fixed_size: an exported program is for clips of one size.
        cpu_runtime: what runs an exported program fastest on a CPU; see `apps.predict.program`.
        stage_layers: name of a stage to the names of its layers, both in the order in which they compute; see
            `modeling.stages`.
        lr_multipliers: structured name of a parameter to the factor on its learning rate.
        no_weight_decay: words in the names of parameters without weight decay.
        computed: last words of the names of tensors in files that the network computes of shapes alone.
        converters: name of another toolkit to the converter of its weights for this network, where it is not
            the toolkit's usual one; see `apps.convert.convert`.
    """

    data_format: DataFormat
    has_tokens: ClassVar[bool] = False
    input_format: str = "NCHW"
    pretrained: str | None = None
    out_channels: int
    num_classes: int | None = None
    classifiers: ClassVar[Sequence[str]] = ()
    num_seg: int | None = None
    shift_ratio: float = 0.0
    spatial_stride: int = 32
    least_frames: ClassVar[int] = 1
    full_clip: tuple[int, int, int] | None = None
    takes_multigrid: ClassVar[bool] = True
    has_batch_norm: ClassVar[bool] = True
    has_fixed_size: ClassVar[bool] = False
    cpu_runtime: ClassVar[Literal["onnxruntime", "paddle", "onednn"]] = "onnxruntime"
    stage_layers: Mapping[str, Sequence[str]] = {}
    lr_multipliers: Mapping[str, float] = {}
    no_weight_decay: ClassVar[Sequence[str]] = ()
    computed: ClassVar[Sequence[str]] = ()
    converters: ClassVar[Mapping[str, type[Converter]]] = {}

    def start_as_published(self) -> None:
        """Draws weights of linear layers and convolutions; linear layers and norms get biases of 0.02.

        So the authors of MViTv2 and of Hiera start (PySlowFast, `MViT._init_weights`); the papers say nothing
        of biases.
        """
        draw, bias = nn.initializer.TruncatedNormal(std=0.02), nn.initializer.Constant(0.02)
        for layer in self.sublayers():
            if isinstance(layer, (nn.Linear, nn.Conv3D)):
                draw(layer.weight)
            if isinstance(layer, (nn.Linear, nn.LayerNorm)) and layer.bias is not None:
                bias(layer.bias)

    def translate(self, name: str) -> str:
        """The name here of the tensor that a file of a relative calls `name`; names of our own stay."""
        return name

    def fallback_parameter(self, name: str) -> str | None:
        """The tensor of a file whose value the parameter `name` takes where the file has none for it."""
        return None

    def adapt_table(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """A table of positions of a file in the shape that the parameter `name` has here.

        Args:
            name: of a parameter.
            value: as the file has it.
            shape: of the parameter.

        Returns:
            None: the parameter is no table of positions, or cannot be had from this value.
        """
        return None

    def last_layers(self, stage: str) -> Sequence[str]:
        """Names of the layers whose outputs a stage gives, one for each pathway.

        Args:
            stage: one of `stage_layers`, or, where a backbone declares none, one of its children.
        """
        return self.stage_layers.get(stage, [stage])[-1:]

    def maps(self, output: paddle.Tensor, clips: paddle.Tensor) -> paddle.Tensor | None:
        """What one of the `last_layers` gave, or its gradient, as maps of the clips.

        Args:
            output: as the layer gave it.
            clips: as the recognizer took them: [N, T, 3, H, W], [N, T, H, W, 3] or [N, 3, T, H, W].

        Returns:
            [N, T', H', W', C]; None: it is no map, such as a vector for each clip.
        """
        if self.data_format == "NCDHW" and output.ndim == 5:
            return output.transpose([0, 2, 3, 4, 1])
        if self.data_format in ("NCHW", "NHWC") and output.ndim == 4:
            frames = output if self.data_format == "NHWC" else output.transpose([0, 2, 3, 1])
            return frames.reshape([clips.shape[0], -1, *frames.shape[1:]])
        return None
