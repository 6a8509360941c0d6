"""TimeSformer, PP-TimeSformer and TokShift: PaddleVideo's outputs, and every toolkit's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.convert.convert import convert_state
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters, load_weights
from tests.numerics.test_numerics_parity import assert_close, clips_of, logits_of, network, paddle_weights

REFERENCES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "reference" / "paddlevideo_vision_transformers.json").read_text()
)


def make(name: str, **backbone: Any) -> paddle.nn.Layer:
    reference = REFERENCES[name]
    own = {**reference["backbone"], **backbone}
    return build_model({"framework": "RecognizerTransformer", "backbone": own, "head": reference["head"]})


@pytest.mark.smoke
@pytest.mark.parametrize("name", REFERENCES)
def test_they_give_paddlevideos_logits_with_its_files_as_they_are(name, tmp_path):
    reference, model = REFERENCES[name], make(name)
    state = paddle_weights(model, reference["state"])
    paddle.save(state, str(tmp_path / "theirs.pdparams"))
    assert not load_weights(model, tmp_path / "theirs.pdparams", strict=True).unexpected
    assert count_parameters(model) == sum(value.size for value in state.values())
    clips = clips_of(reference)
    assert_close(logits_of(model, clips), reference)
    if reference["backbone"]["attention_type"] != "space_only" or name == "tokshift":
        with pytest.raises(AssertionError):  # the order of the frames makes a difference
            assert_close(logits_of(model, np.ascontiguousarray(clips[:, :, ::-1])), reference)


# (our name, theirs); a block's names follow `backbone.blocks.N.` and the toolkit's prefix of a block
IN_BLOCKS = {
    "timesformer": {},
    "huggingface": {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.qkv": "attention.attention.qkv",
        "attn.proj": "attention.output.dense",
        "temporal_norm1": "temporal_layernorm",
        "temporal_attn.qkv": "temporal_attention.attention.qkv",
        "temporal_attn.proj": "temporal_attention.output.dense",
        "temporal_fc": "temporal_dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    },
    "mmaction2": {
        "norm1": "attentions.1.norm",
        "norm2": "ffns.0.norm",
        "attn.qkv": "attentions.1.attn.in_proj_",
        "attn.proj": "attentions.1.attn.out_proj",
        "temporal_norm1": "attentions.0.norm",
        "temporal_attn.qkv": "attentions.0.attn.in_proj_",
        "temporal_attn.proj": "attentions.0.attn.out_proj",
        "temporal_fc": "attentions.0.temporal_fc",
        "mlp.fc1": "ffns.0.layers.0.0",
        "mlp.fc2": "ffns.0.layers.1",
    },
    "mmaction2, one attention": {
        "norm1": "norms.0",
        "norm2": "norms.1",
        "attn.qkv": "attentions.0.attn.in_proj_",
        "attn.proj": "attentions.0.attn.out_proj",
        "mlp.fc1": "ffns.0.layers.0.0",
        "mlp.fc2": "ffns.0.layers.1",
    },
    "tokshift": {
        "norm1": "attention_norm",
        "norm2": "ffn_norm",
        "attn.proj": "attn.out",
        "mlp.fc1": "ffn.fc1",
        "mlp.fc2": "ffn.fc2",
    },
}
AROUND: dict[str, tuple[str, dict[str, str]]] = {
    "timesformer": ("model.blocks", {"head.fc": "model.head", "backbone.": "model."}),
    "huggingface": (
        "timesformer.encoder.layer",
        {
            "backbone.cls_token": "timesformer.embeddings.cls_token",
            "backbone.pos_embed": "timesformer.embeddings.position_embeddings",
            "backbone.time_embed": "timesformer.embeddings.time_embeddings",
            "backbone.patch_embed.proj": "timesformer.embeddings.patch_embeddings.projection",
            "backbone.norm": "timesformer.layernorm",
            "head.fc": "classifier",
        },
    ),
    "mmaction2": (
        "backbone.transformer_layers.layers",
        {"backbone.patch_embed.proj": "backbone.patch_embed.projection", "head.fc": "cls_head.fc_cls"},
    ),
    "tokshift": (
        "base_model.transformer.encoder.layer",
        {
            "backbone.cls_token": "base_model.transformer.embeddings.cls_token",
            "backbone.pos_embed": "base_model.transformer.embeddings.position_embeddings",
            "backbone.patch_embed.proj": "base_model.transformer.embeddings.patch_embeddings",
            "backbone.norm": "base_model.transformer.encoder.encoder_norm",
            "head.fc": "base_model.head",
        },
    ),
}


def under_names_of(toolkit: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PyTorch's arrays for tensors of ours: names of the toolkit, linear weights as [out, in]."""
    kind = toolkit.partition(",")[0]
    prefix, around = AROUND[kind]
    theirs = {}
    for name, value in state.items():
        owner, _, leaf = name.rpartition(".")
        value = value.T if value.ndim == 2 else value
        if owner.startswith("backbone.blocks."):
            number, _, layer = owner[len("backbone.blocks.") :].partition(".")
            layer = IN_BLOCKS[toolkit].get(layer, layer)
            if kind == "tokshift" and layer == "attn.qkv":
                for part, array in zip(("query", "key", "value"), np.split(value, 3)):
                    theirs[f"{prefix}.{number}.attn.{part}.{leaf}"] = array
                continue
            joint = "" if layer.endswith("_") else "."
            theirs[f"{prefix}.{number}.{layer}{joint}{leaf}"] = value
            continue
        for ours, other in around.items():
            if name.startswith(ours):
                name = other + name[len(ours) :]
                break
        theirs[name] = value
    return theirs


@pytest.mark.parametrize(
    ("toolkit", "name"),
    [
        ("timesformer", "timesformer"),
        ("timesformer", "timesformer_joint"),
        ("huggingface", "timesformer"),
        ("huggingface", "timesformer_space"),
        ("mmaction2", "timesformer"),
        ("mmaction2, one attention", "timesformer_joint"),
        ("tokshift", "tokshift"),
    ],
)
def test_the_names_of_every_toolkit_lead_to_ours(toolkit, name):
    model = make(name)
    state = paddle_weights(model, REFERENCES[name]["state"])
    theirs = under_names_of(toolkit, state)
    result = convert_state(toolkit.partition(",")[0], theirs, model)
    assert result.is_whole, result.problems()
    assert set(result.weights) == set(state)
    for ours, value in state.items():
        np.testing.assert_array_equal(result.weights[ours], value, err_msg=ours)


def test_timesformer_costs_what_the_paper_says():
    """0.59 TFLOPs for three crops of 8 frames of 224 pixels, in base size."""
    backbone = {"name": "VisionTransformer", "depth": 1, "qkv_bias": True}
    head = {"num_classes": 400, "in_channels": 768}
    model = network("RecognizerTransformer", backbone, "TimeSformerHead", **head)
    model.eval()
    with paddle.no_grad(), MacCounter(model) as whole, MacCounter(model.backbone.blocks[0]) as block:
        model(paddle.zeros([1, 3, 8, 224, 224]))
    assert 3 * (whole.macs + 11 * block.macs) / 1e12 == pytest.approx(0.59, rel=0.01)
