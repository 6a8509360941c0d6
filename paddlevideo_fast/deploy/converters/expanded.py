"""Converters of X3D (PySlowFast, PyTorchVideo) and R(2+1)D (torchvision, PyTorchVideo).

Two versions of X3D exist: PyTorchVideo's networks have no batch norm in the shortcut of the first stage,
where the number of channels stays the same.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from paddlevideo_fast.deploy.converters.base import RenamingConverter
from paddlevideo_fast.deploy.converters.clips import ClipConverter, PySlowFastConverter, PyTorchVideoConverter


class X3DConverter(ClipConverter):
    """What the converters of X3D share.

    Attributes:
        shortcut_norm: as of `X3D`.
    """

    shortcut_norm: ClassVar[str]
    training_crop = "160 (XS, S), 224 (M) or 312 (L)"

    def differences(self) -> Sequence[str]:
        if self.network.model.backbone.shortcut_norm == self.shortcut_norm:
            return []
        return [
            "this toolkit's network has other batch norms in its shortcuts; set "
            f"MODEL.backbone.shortcut_norm={self.shortcut_norm}"
        ]


class PySlowFastX3DConverter(X3DConverter, PySlowFastConverter):
    """PySlowFast's X3D. Most of its names are ours."""

    shortcut_norm = "always"
    layers = (
        (r"(s1\.pathway0_stem\.(?:conv_xy|conv|bn))", r"\1"),
        (r"(s[2-5]\.pathway0_res\d+\.branch2\.se\.fc[12])", r"\1"),
        (r"head\.(conv_5(?:_bn)?)", r"\1"),
        (r"head\.lin_5", r"head.lin_5"),
        *PySlowFastConverter.layers,
    )


class PyTorchVideoX3DConverter(X3DConverter, PyTorchVideoConverter):
    """PyTorchVideo's X3D. Its stem calls the convolution in space `conv_t`, and the one in time `conv_xy`."""

    shortcut_norm = "widening"
    layers = (
        (r"s1\.0\.conv\.conv_t", r"s1.pathway0_stem.conv_xy"),
        (r"s1\.0\.conv\.conv_xy", r"s1.pathway0_stem.conv"),
        (r"s1\.0\.norm", r"s1.pathway0_stem.bn"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.0", r"\1.pathway0_res\2.branch2.b_bn"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.1\.block\.0", r"\1.pathway0_res\2.branch2.se.fc1"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.1\.block\.2", r"\1.pathway0_res\2.branch2.se.fc2"),
        (r"s6\.0\.pool\.pre_conv", r"conv_5"),
        (r"s6\.0\.pool\.pre_norm", r"conv_5_bn"),
        (r"s6\.0\.pool\.post_conv", r"head.lin_5"),
        *PyTorchVideoConverter.layers,
    )


class PyTorchVideoR2Plus1DConverter(PyTorchVideoConverter):
    """PyTorchVideo's R(2+1)D, of depth 50."""

    layers = (
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.conv_b\.conv_(t|xy)", r"\1.pathway0_res\2.branch2.b.\3"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.conv_b\.norm", r"\1.pathway0_res\2.branch2.b.bn"),
        *PyTorchVideoConverter.layers,
    )


class TorchvisionR2Plus1DConverter(RenamingConverter):
    """torchvision's R(2+1)D, of depth 18, trained on videos: its classifier is converted, too."""

    classifier = "fc"
    layers = (
        (r"stem\.(xy|bn|t)", r"s1.pathway0_stem._conv.\1"),
        (r"stem\.4", r"s1.pathway0_stem._bn"),
        (r"(s\d)\.(\d+)\.([ab])\.0\.(xy|bn|t)", r"\1.pathway0_res\2.branch2.\3.\4"),
        (r"(s\d)\.(\d+)\.([ab])\.1", r"\1.pathway0_res\2.branch2.\3_bn"),
        (r"(s\d)\.(\d+)\.downsample\.0", r"\1.pathway0_res\2.branch1"),
        (r"(s\d)\.(\d+)\.downsample\.1", r"\1.pathway0_res\2.branch1_bn"),
    )

    def normalized(self, name: str) -> str:
        """`layer1.0.conv2.0.3.weight` to `s2.0.b.0.t.weight`; `stem.0.weight` to `stem.xy.weight`."""
        name = re.sub(r"^layer([1-4])", lambda found: f"s{int(found[1]) + 1}", name)
        name = re.sub(r"\.conv([12])\.", lambda found: f".{'ab'[int(found[1]) - 1]}.", name)
        parts = {"0": "xy", "1": "bn", "3": "t"}
        return re.sub(
            r"^(stem|.*\.[ab]\.0)\.([013])(?=\.)", lambda found: f"{found[1]}.{parts[found[2]]}", name
        )
