"""Converters of VideoMAE's ViT: Hugging Face's files and the authors', fine-tuned and pre-trained ones.

A pre-trained file has an encoder and a decoder. A network that classifies takes the encoder alone; the report
says what is left out. The network of `Pretrain` takes both.
"""

from collections.abc import Mapping

import numpy as np

from paddlevideo_fast.deploy.converters.base import (
    Network,
    Place,
    Renames,
    RenamingConverter,
    Step,
    with_joined_projections,
)

_NORM = "head.fc_norm"
_BLOCK = r"(blocks\.\d+\.(?:norm[12]|attn\.(?:qkv|proj|q_bias|v_bias)|mlp\.fc[12]))"


class VideoMAEConverter(RenamingConverter):
    """The authors' files (MCG-NJU/VideoMAE), whose names in the encoder and the decoder are ours."""

    classifier = "head"
    layers = (
        (r"patch_embed\.proj", r"patch_embed.proj"),
        (_BLOCK, r"\1"),
        (r"fc_norm", _NORM),
        (r"norm", r"head.encoder_norm"),
        (r"encoder_to_decoder", r"head.encoder_to_decoder"),
        (r"mask_token", r"head.mask_token"),
        (r"decoder\." + _BLOCK, r"head.\1"),
        (r"decoder\.(norm|head)", r"head.\1"),
    )
    renames: Renames = ((r"^(?:module\.)?(?:encoder\.|backbone\.)?", ""),)  # `encoder.`: of pre-training
    left_out = "only pre-training needs it"

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        names = {self.normalized(name) for name in state}
        # of a pre-trained file a network that classifies takes the encoder, and its classifier starts anew
        self.backbone_only = bool(network.classifier) and f"{self.classifier}.weight" not in names

    def place(self, name: str) -> Place | None:
        place = super().place(name)
        if place is None or self.normalized(name) != "patch_embed.proj.weight":
            return place
        return Place(place.name, (Step("from a convolution to a linear layer", _linear, num_axes=5),))


def _linear(kernel: np.ndarray) -> np.ndarray:
    """A kernel [out, 3, t, h, w] as the weight [t * h * w * 3, out] of `TubeletEmbedding`."""
    return np.moveaxis(kernel, 0, -1).transpose(1, 2, 3, 0, 4).reshape(-1, len(kernel))


class HuggingFaceVideoMAEConverter(VideoMAEConverter):
    """VideoMAEForVideoClassification and VideoMAEForPreTraining of Hugging Face's transformers."""

    classifier = "classifier"
    renames = (
        (r"^(?:videomae\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"^(?:videomae\.)?layernorm\.", "norm."),
        (r"^(?:(?:videomae\.)?encoder\.layer|(decoder\.)decoder_layers)\.", r"\1blocks."),
        (r"(blocks\.\d+)\.attention\.attention\.", r"\1.attn."),
        (r"(blocks\.\d+)\.attention\.output\.dense\.", r"\1.attn.proj."),
        (r"(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
        (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
        (r"(blocks\.\d+)\.layernorm_before\.", r"\1.norm1."),
        (r"(blocks\.\d+)\.layernorm_after\.", r"\1.norm2."),
        (r"(blocks\.\d+\.attn)\.(?:\{query,key,value\})\.", r"\1.qkv."),
        (r"(blocks\.\d+\.attn)\.query\.bias$", r"\1.q_bias"),  # transformers 5
        (r"(blocks\.\d+\.attn)\.value\.bias$", r"\1.v_bias"),
    )

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(with_joined_projections(state, _PROJECTION), network)


_PROJECTION = r"(.+\.attention\.attention\.)(query|key|value)\.(weight)"
