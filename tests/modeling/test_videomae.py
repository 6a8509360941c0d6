"""VideoMAE's ViT: tokens, positions, weights, pre-training."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.deploy.convert import convert_state
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model

TINY = {"name": "VideoMAEViT", "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8}


def classifier(num_classes=3, **backbone):
    return build_model(
        {
            "framework": "Recognizer3D",
            "backbone": {**TINY, **backbone},
            "head": {"name": "VideoMAEHead", "num_classes": num_classes, "in_channels": 24},
        }
    )


def clips_of(*shape):
    return paddle.to_tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))


@pytest.mark.smoke
def test_tubelets_are_squares_of_pixels_over_a_few_frames():
    embedding = classifier().backbone.patch_embed
    clips = clips_of(2, 3, 4, 16, 24)
    tubelets = embedding.tubelets(clips).numpy()
    assert tubelets.shape == (2, 2 * 2 * 3, 2 * 8 * 8, 3)
    token = 1 * 6 + 1 * 3 + 2  # the second pair of frames, second row, third column
    pixels = clips.numpy()[1, :, 2:4, 8:16, 16:24]
    np.testing.assert_array_equal(tubelets[1, token], pixels.transpose(1, 2, 3, 0).reshape(-1, 3))


def test_clips_of_any_size_and_length_and_what_does_not_divide():
    model = classifier()
    model.eval()
    for shape in ((1, 3, 2, 8, 8), (2, 3, 6, 16, 40)):
        assert model(clips_of(*shape)).shape == [shape[0], 3]
    with pytest.raises(ConfigError, match=r"tubelet_size=2: does not divide the 3 frames"):
        model(clips_of(1, 3, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"patch_size=8: does not divide the 12 pixels in height"):
        model(clips_of(1, 3, 2, 12, 8))


@pytest.mark.smoke
def test_the_order_of_the_tokens_reaches_the_logits_through_the_positions():
    model = classifier()
    model.eval()
    clips = clips_of(1, 3, 4, 16, 16)
    mirrored = paddle.flip(clips, axis=[2])
    assert not np.allclose(model(clips).numpy(), model(mirrored).numpy(), atol=1e-4)


def test_the_stages_are_the_blocks():
    model = classifier(depth=3)
    assert list(model.stages) == ["stem", "block1", "block2", "block3", "head"]
    assert [stage.num_later for stage in model.stages.values()] == [4, 3, 2, 1, 0]


def authors_pretraining_state(channels=24, inner=8, depth=2, patch=8):
    """Names and arrays of a pre-training checkpoint of the authors' repository."""
    shapes = {
        "encoder.patch_embed.proj.weight": (channels, 3, 2, patch, patch),
        "encoder.patch_embed.proj.bias": (channels,),
        "encoder.norm.weight": (channels,),
        "encoder.norm.bias": (channels,),
        "encoder_to_decoder.weight": (inner, channels),
        "mask_token": (1, 1, inner),
        "decoder.norm.weight": (inner,),
        "decoder.norm.bias": (inner,),
        "decoder.head.weight": (3 * 2 * patch * patch, inner),
        "decoder.head.bias": (3 * 2 * patch * patch,),
    }
    for part, width, blocks in (("encoder", channels, depth), ("decoder", inner, 1)):
        for block in range(blocks):
            at = f"{part}.blocks.{block}"
            for norm in ("norm1", "norm2"):
                shapes[f"{at}.{norm}.weight"] = shapes[f"{at}.{norm}.bias"] = (width,)
            shapes[f"{at}.attn.q_bias"] = shapes[f"{at}.attn.v_bias"] = (width,)
            for layer, out, taken in (
                ("attn.proj", width, width),
                ("mlp.fc1", 4 * width, width),
                ("mlp.fc2", width, 4 * width),
            ):
                shapes[f"{at}.{layer}.weight"] = (out, taken)
                shapes[f"{at}.{layer}.bias"] = (out,)
            shapes[f"{at}.attn.qkv.weight"] = (3 * width, width)
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def hugging_face_names(state):
    """The same weights as Hugging Face's VideoMAEForPreTraining has them."""
    theirs = {}
    for name, value in state.items():
        if name.endswith("attn.qkv.weight"):
            for part, each in zip(("query", "key", "value"), np.split(value, 3)):
                theirs[name.replace("attn.qkv", f"attention.attention.{part}")] = each
        else:
            theirs[name] = value
    renamed = (
        ("encoder.patch_embed.proj", "videomae.embeddings.patch_embeddings.projection"),
        ("encoder.norm.", "videomae.layernorm."),
        ("encoder.blocks", "videomae.encoder.layer"),
        ("decoder.blocks", "decoder.decoder_layers"),
        ("norm1", "layernorm_before"),
        ("norm2", "layernorm_after"),
        ("attn.proj", "attention.output.dense"),
        ("attn.", "attention.attention."),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    )
    for old, new in renamed:
        theirs = {name.replace(old, new): value for name, value in theirs.items()}
    return theirs


@pytest.mark.parametrize("kind", ["videomae", "huggingface"])
def test_a_pretrained_encoder_converts_for_fine_tuning_and_its_decoder_is_left_out(kind):
    state = authors_pretraining_state()
    state = hugging_face_names(state) if kind == "huggingface" else state
    result = convert_state(kind, state, classifier())
    assert result.is_whole
    left_out = {row.source for row in result.rows if row.outcome == "ignored"}
    assert {"mask_token", "decoder.head.weight", "encoder_to_decoder.weight"} < left_out
    assert all(row.detail == "only pre-training needs it" for row in result.rows if row.outcome == "ignored")
    assert all(name.startswith("backbone.") for name in result.weights)
    # the linear layer computes what the convolution does
    model = classifier()
    model.set_state_dict(result.weights)
    clips = clips_of(1, 3, 2, 8, 16)
    kernel = [value for value in state.values() if value.ndim == 5][0]
    bias = [value for name, value in state.items() if name.endswith(("proj.bias", "projection.bias"))][0]
    expected = paddle.nn.functional.conv3d(
        clips, paddle.to_tensor(kernel), paddle.to_tensor(bias), stride=[2, 8, 8]
    )
    embedding = model.backbone.patch_embed
    found = embedding(embedding.tubelets(clips)).numpy()
    np.testing.assert_allclose(found, expected.flatten(2).transpose([0, 2, 1]).numpy(), rtol=1e-4, atol=1e-4)
