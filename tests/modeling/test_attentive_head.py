"""The attentive probe on the tokens of every transformer, and the positions of V-JEPA 2."""

import math

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model, count_parameters
from paddlevideo_fast.modeling.layers.positions import rotated, rotation
from tests.modeling.networks import NETWORKS, clips_for, make, normal

_PATCHES = {"img_size": 32, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_seg": 4}
_SWIN = {"patch_size": [2, 4, 4], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
_MVIT = {"num_frames": 4, "crop_size": 32, "embed_dim": 8, "depths": [1, 1], "kv_stride": 2}
# backbone, its channels and tokens of clips of 4×32²
TRANSFORMERS = {
    "vjepa2": (NETWORKS["vjepa2"][1], 20, 2 * 16),
    "videomae": (NETWORKS["videomae"][1], 24, 2 * 16),
    "timesformer": ({"name": "VisionTransformer", **_PATCHES}, 8, 1 + 4 * 4),
    "joint": ({"name": "VisionTransformer", "attention_type": "joint_space_time", **_PATCHES}, 8, 1 + 4 * 4),
    "frames": ({"name": "VisionTransformer", "attention_type": "space_only", **_PATCHES}, 8, 4 * (1 + 4)),
    "tokshift": ({"name": "TokenShiftVisionTransformer", **_PATCHES}, 8, 4 * (1 + 4)),
    "swin": ({"name": "SwinTransformer3D", **_SWIN}, 16, 2 * 4 * 4),
    "mvit": ({"name": "MViT", **_MVIT}, 16, 1 + 2 * 4 * 4),
}


def probe(backbone, in_channels, framework="RecognizerTransformer", **head):
    own = {"num_classes": 3, "in_channels": in_channels, "depth": 1, "num_heads": 2, **head}
    return build_model(
        {"framework": framework, "backbone": backbone, "head": {"name": "AttentiveHead", **own}}
    )


@pytest.mark.smoke
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_it_sees_all_tokens_of_a_transformer_and_trains_on_stored_ones(kind):
    backbone, channels, num_tokens = TRANSFORMERS[kind]
    model = probe(backbone, channels)
    clips = clips_for(model)
    model.loss(model(clips), paddle.to_tensor([0, 2])).backward()
    without = [name for name, value in model.named_parameters() if value.grad is None]
    assert not without
    model.eval()
    tokens = model.head.pool(*model.features(clips)).detach()
    assert tokens.shape == [2, num_tokens, channels]
    np.testing.assert_array_equal(model.head.classify(tokens).numpy(), model(clips).numpy())
    # each token has a say, and their order none: positions are the backbone's
    tokens.stop_gradient = False
    logits = model.head.classify(tokens)
    logits[:, 0].sum().backward()
    assert (tokens.grad.abs().sum(axis=2) > 0).numpy().all()
    np.testing.assert_allclose(
        model.head.classify(tokens.flip(1)).numpy(), logits.numpy(), rtol=1e-4, atol=1e-5
    )


def test_the_head_of_a_transformer_still_gets_one_feature():
    model = make("timesformer")
    assert model.head.pool(*model.features(clips_for(model))).shape == [2, 8]


@pytest.mark.annex
def test_parts_that_do_not_fit_are_told():
    slow = {"name": "ResNetSlow", "width_per_group": 4, "stage_blocks": [1, 1, 1, 1]}
    with pytest.raises(ConfigError, match=r"AttentiveHead: takes tokens, and ResNetSlow gives none"):
        probe(slow, 128, framework="Recognizer3D")
    with pytest.raises(ConfigError, match=r"MODEL.head.num_heads=3: does not divide in_channels=20"):
        probe(NETWORKS["vjepa2"][1], 20, num_heads=3)
    decoder = {"name": "VideoMAEDecoder", "in_channels": 20}
    section = {"framework": "Pretrain", "backbone": NETWORKS["vjepa2"][1], "head": decoder}
    with pytest.raises(
        ConfigError, match=r"backbone.name=VJEPA2: encodes no parts .* for VideoMAEDecoder; take VideoMAEViT"
    ):
        build_model(section)


@pytest.mark.smoke
def test_channels_turn_by_the_place_of_their_token():
    """20 channels: six for each axis, of three angles each, and two that stay."""
    grid = (2, 3, 4)
    x = normal(24, 20).numpy()
    heads = paddle.to_tensor(x).unsqueeze(1).tile([1, 2, 1])
    found = rotated(heads, rotation(grid, 20, num_heads=2)).numpy()
    for token, places in enumerate(np.ndindex(grid)):
        wanted = x[token].copy()
        for axis, place in enumerate(places):
            for channel in range(6):
                angle = place / 10000 ** (channel % 3 / 3)
                at = 6 * axis + channel
                other = -x[token, at + 1] if channel % 2 == 0 else x[token, at - 1]
                wanted[at] = x[token, at] * math.cos(angle) + other * math.sin(angle)
        np.testing.assert_allclose(found[token], [wanted, wanted], rtol=1e-5, atol=1e-6)


def test_vjepa2_takes_clips_of_any_size():
    model = make("vjepa2")
    model.eval()
    for shape in ((2, 8, 8), (6, 16, 40)):
        assert model(normal(1, 3, *shape)).shape == [1, 3]
    with pytest.raises(ConfigError, match=r"patch_size=8: does not divide the 12 pixels in height"):
        model(normal(1, 3, 2, 12, 8))


@pytest.mark.parametrize(
    ("name", "embed_dim", "depth", "num_heads", "parameters"),
    [
        ("VJEPA2", 1024, 24, 16, 303_885_312),
        ("VJEPA2", 1280, 32, 16, 631_648_000),
        ("VJEPA2", 1408, 40, 22, 1_012_173_952),
        ("VideoMAEViT", 1408, 40, 16, 1_011_607_936),
    ],
)
def test_the_published_sizes_have_their_parameters(
    name, embed_dim, depth, num_heads, parameters, monkeypatch
):
    """One block is built of each: a billion numbers are 4 GB. The authors say 300 M, 600 M, 1 B and 1 B."""
    monkeypatch.setattr(
        paddle.nn.initializer, "TruncatedNormal", lambda **_: paddle.nn.initializer.Constant()
    )
    own = {"embed_dim": embed_dim, "num_heads": num_heads, "patch_size": 14 if name == "VideoMAEViT" else 16}
    own["mlp_ratio"] = 4.3637 if embed_dim == 1408 else 4
    model = probe({"name": name, "depth": 1, **own}, embed_dim, num_classes=1, depth=0)
    block = count_parameters(model.backbone.blocks[0])
    assert count_parameters(model.backbone) + (depth - 1) * block == parameters
