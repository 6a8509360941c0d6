"""Converters of Video Swin Transformer and MViTv2 (torchvision, their authors, PySlowFast).

The networks are the same, the names differ.
"""

import re
from collections.abc import Mapping

import numpy as np

from paddlevideo_fast.deploy.converters.base import Network, RenamingConverter


class SwinConverter(RenamingConverter):
    """The authors' networks: Video Swin Transformer, in files of MMAction2's form, and the 2D one.

    The 2D network's classifier is of another task, and is left out.
    """

    classifier = "cls_head.fc_cls"
    layers = ((r"((?:patch_embed|layers|norm)(?:\..+)?)", r"\1"),)
    renames = ((r"^backbone\.", ""),)

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        if "head.weight" in state:
            self.backbone_only, self.classifier = True, "head"


class TorchvisionSwinConverter(RenamingConverter):
    """torchvision's Video Swin Transformer; it numbers blocks and mergings of patches in one list."""

    classifier = "head"
    layers = (
        (r"(patch_embed\.(?:proj|norm)|norm)", r"\1"),
        (r"(layers\.\d+\.downsample\.(?:norm|reduction))", r"\1"),
        (r"(layers\.\d+\.blocks\.\d+\.(?:norm[12]|attn\.\w+))", r"\1"),
        (r"(layers\.\d+\.blocks\.\d+\.mlp)\.0", r"\1.fc1"),
        (r"(layers\.\d+\.blocks\.\d+\.mlp)\.3", r"\1.fc2"),
    )

    def normalized(self, name: str) -> str:
        """`features.2.0.norm1` to `layers.1.blocks.0.norm1`, `features.3` to `layers.1.downsample`."""
        found = re.fullmatch(r"features\.(\d+)\.(.+)", name)
        if not found:
            return name
        stage, is_merging = divmod(int(found[1]), 2)
        return f"layers.{stage}.{'downsample' if is_merging else 'blocks'}.{found[2]}"


class MViTConverter(RenamingConverter):
    """PySlowFast's MViTv2."""

    classifier = "head.projection"
    layers = (
        (r"(patch_embed\.proj|cls_token|norm)", r"\1"),
        (r"(blocks\.\d+\.(?:norm[12]|proj|mlp\.fc[12]|attn\.\w+))", r"\1"),
    )


class TorchvisionMViTConverter(RenamingConverter):
    """torchvision's MViTv2."""

    classifier = "head.1"
    layers = (
        (r"conv_proj", r"patch_embed.proj"),
        (r"pos_encoding\.class_token", r"cls_token"),
        (r"norm", r"norm"),
        (r"(blocks\.\d+\.norm[12])", r"\1"),
        (r"(blocks\.\d+\.(?:attn\.)?proj)ect(?:\.0)?", r"\1"),
        (r"(blocks\.\d+\.attn\.(?:qkv|rel_pos_[thw]))", r"\1"),
        (r"(blocks\.\d+\.attn\.pool_[qkv])\.pool", r"\1"),
        (r"(blocks\.\d+\.attn)\.pool_([qkv])\.norm_act\.0", r"\1.norm_\2"),
        (r"(blocks\.\d+\.mlp)\.0", r"\1.fc1"),
        (r"(blocks\.\d+\.mlp)\.3", r"\1.fc2"),
    )

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        token = "pos_encoding.class_token"
        shaped = {token: state[token].reshape([1, 1, -1])} if token in state else {}
        super().__init__({**state, **shaped}, network)
