"""Converters of TimeSformer (the authors', Hugging Face's, MMAction2's) and of TokShift (the authors').

The networks are the same, the names differ; each converter turns them into the names of the authors of
TimeSformer, which are ours.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from paddlevideo_fast.deploy.converters.base import (
    Network,
    Renames,
    RenamingConverter,
    with_joined_projections,
)


class TimeSformerConverter(RenamingConverter):
    """The authors' files (facebookresearch/TimeSformer)."""

    classifier = "head"
    layers = (
        (r"(cls_token|pos_embed|time_embed|patch_embed\.proj|norm)", r"\1"),
        (r"(blocks\.\d+\.(?:temporal_)?(?:norm1|attn\.qkv|attn\.proj))", r"\1"),
        (r"(blocks\.\d+\.(?:temporal_fc|norm2|mlp\.fc[12]))", r"\1"),
    )
    renames: Renames = ((r"^(?:module\.)?model\.", ""),)


class HuggingFaceTimeSformerConverter(TimeSformerConverter):
    """TimesformerForVideoClassification of Hugging Face's transformers."""

    renames = (
        (r"^timesformer\.", ""),
        (r"^embeddings\.(?=cls_token)", ""),
        (r"^embeddings\.position_embeddings", "pos_embed"),
        (r"^embeddings\.time_embeddings", "time_embed"),
        (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"^encoder\.layer\.", "blocks."),
        (r"^layernorm\.", "norm."),
        (r"^classifier\.", "head."),
        (r"\.temporal_layernorm\.", ".temporal_norm1."),
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.temporal_dense\.", ".temporal_fc."),
        (r"\.(temporal_)?attention\.attention\.qkv\.", r".\1attn.qkv."),
        (r"\.(temporal_)?attention\.output\.dense\.", r".\1attn.proj."),
        (r"\.intermediate\.dense\.", ".mlp.fc1."),
        (r"\.output\.dense\.", ".mlp.fc2."),
    )


_MMACTION2: Renames = (
    (r"^backbone\.", ""),
    (r"^cls_head\.fc_cls\.", "head."),
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^transformer_layers\.layers\.", "blocks."),
    (r"\.attn\.in_proj_(weight|bias)$", r".attn.qkv.\1"),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.ffns\.0\.norm\.|\.norms\.1\.", ".norm2."),
    (r"\.norms\.0\.", ".norm1."),
    (r"\.ffns\.0\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffns\.0\.layers\.1\.", ".mlp.fc2."),
)
# Where blocks attend in time first; else the only attention, number 0, is the one in space.
_MMACTION2_DIVIDED: Renames = (
    (r"\.attentions\.0\.norm\.", ".temporal_norm1."),
    (r"\.attentions\.0\.attn\.", ".temporal_attn."),
    (r"\.attentions\.0\.temporal_fc\.", ".temporal_fc."),
    (r"\.attentions\.1\.norm\.", ".norm1."),
)


class MMAction2TimeSformerConverter(TimeSformerConverter):
    """TimeSformer of MMAction2."""

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        is_divided = any(".temporal_fc." in name for name in state)
        self.renames = (
            *_MMACTION2,
            *(_MMACTION2_DIVIDED if is_divided else ()),
            (r"\.attentions\.[01]\.attn\.", ".attn."),
        )

    def notes(self) -> Sequence[str]:
        return [
            "this toolkit normalises pictures with mean 0.5 and std 0.5; set both in the Normalization of "
            "PIPELINE's parts"
        ]


class TokShiftConverter(TimeSformerConverter):
    """TokShift of its authors (VideoNetworks/TokShift-Transformer), which has a layer for each projection."""

    renames = (
        (r"^(?:module\.)?(?:base_model\.)?", ""),
        (r"^transformer\.embeddings\.(?=cls_token)", ""),
        (r"^transformer\.embeddings\.position_embeddings", "pos_embed"),
        (r"^transformer\.embeddings\.patch_embeddings\.", "patch_embed.proj."),
        (r"^transformer\.encoder\.encoder_norm\.", "norm."),
        (r"^transformer\.encoder\.layer\.", "blocks."),
        (r"\.attention_norm\.", ".norm1."),
        (r"\.ffn_norm\.", ".norm2."),
        (r"\.ffn\.", ".mlp."),
        (r"\.attn\.\{query,key,value\}\.", ".attn.qkv."),
        (r"\.attn\.out\.", ".attn.proj."),
    )

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(
            with_joined_projections(state, r"(.+\.attn\.)(query|key|value)\.(weight|bias)"), network
        )
