"""Vision transformers over frames: any clip, tables of positions, weights of images, views in a row."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model, load_weights
from tests.modeling.networks import normal

TINY = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_seg": 4}
NETWORKS = {
    "divided": ("VisionTransformer", "TimeSformerHead", {}),
    "joint": ("VisionTransformer", "TimeSformerHead", {"attention_type": "joint_space_time"}),
    "space": ("VisionTransformer", "TimeSformerHead", {"attention_type": "space_only"}),
    "pp": ("VisionTransformer_tweaks", "ppTimeSformerHead", {}),
    "tokshift": ("TokenShiftVisionTransformer", "TokenShiftHead", {"attention_type": "space_only"}),
}


def make(kind="divided", runtime_cfg=None, **backbone):
    name, head, own = NETWORKS[kind]
    paddle.seed(5)
    section = {"framework": "RecognizerTransformer", "backbone": {"name": name, **TINY, **own, **backbone}}
    section["head"] = {"name": head, "num_classes": 3, "in_channels": 16}
    return build_model({**section, **({"runtime_cfg": {"test": runtime_cfg}} if runtime_cfg else {})})


def clips(num=2, frames=4, height=32, width=32):
    return normal(num, 3, frames, height, width)


def randomize(model):
    """Random values for what starts at 0 or 1, so that everything reaches the logits."""
    rng = np.random.default_rng(2)
    for value in model.state_dict().values():
        value.set_value(rng.standard_normal(value.shape).astype("float32") * 0.2)
    model.eval()
    return model


@pytest.mark.smoke
@pytest.mark.parametrize("kind", NETWORKS)
def test_they_train_and_take_any_clip(kind):
    model = make(kind, drop_rate=0.1, attn_drop_rate=0.1)
    model.loss(model(clips()), paddle.to_tensor([0, 2])).backward()
    assert not [name for name, value in model.named_parameters() if value.grad is None]
    for shape in ((2, 32, 32), (8, 48, 64), (5, 33, 70)):
        assert np.isfinite(model(clips(1, *shape)).numpy()).all()


def test_attention_in_time_starts_without_effect():
    model = make()
    model.eval()
    before = model(clips())
    for block in model.backbone.blocks:
        block.temporal_attn.proj.bias.set_value(paddle.ones([16]))
    assert (model(clips()) == before).all()


def test_a_clip_of_equal_frames_is_seen_as_its_image_by_the_weights_of_an_image_network(tmp_path):
    flat = randomize(make("space", qkv_bias=True))
    state = {
        name[len("backbone.") :]: value for name, value in flat.state_dict().items() if "backbone" in name
    }
    state["head.weight"] = paddle.ones([16, 7])
    paddle.save(state, str(tmp_path / "vit.pdparams"))
    model = make(qkv_bias=True, pretrained=str(tmp_path / "vit.pdparams"))
    report = model.load_report
    assert report.unexpected == ["head.weight"]
    assert set(report.missing) == {"time_embed"} | {
        f"blocks.{number}.temporal_fc.{leaf}" for number in (0, 1) for leaf in ("weight", "bias")
    }
    assert "copied" in report.summary()
    blocks = model.backbone.blocks
    assert len(report.copied) == 2 * 6
    assert (blocks[1].temporal_attn.qkv.weight == blocks[1].attn.qkv.weight).all()
    assert (blocks[1].temporal_norm1.bias == blocks[1].norm1.bias).all()
    model.eval()
    still = paddle.tile(clips(2, 1), [1, 1, 4, 1, 1])
    expected = flat.backbone(still).numpy()
    np.testing.assert_allclose(model.backbone(still).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_tables_of_positions_are_fitted_and_told(tmp_path):
    source = randomize(make())
    paddle.save(source.state_dict(), str(tmp_path / "small.pdparams"))
    model = make(img_size=64, num_seg=8)
    report = load_weights(model, tmp_path / "small.pdparams")
    assert report.resized == ["backbone.pos_embed", "backbone.time_embed"]
    assert report.missing == report.mismatched == report.copied == []
    found, table = model.backbone.time_embed.numpy()[0], source.backbone.time_embed.numpy()[0]
    places = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)  # of the new frames among the old ones
    expected = np.stack([np.interp(places, np.arange(4), column) for column in table.T], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    positions = model.backbone.pos_embed.numpy()[0]
    np.testing.assert_array_equal(positions[0], source.backbone.pos_embed.numpy()[0, 0])
    # the corners of a 4×4 grid lie outside of the centres of a 2×2 one
    np.testing.assert_allclose(positions[[1, 4, 13, 16]], source.backbone.pos_embed.numpy()[0, 1:], rtol=1e-5)
    # the network with fitted tables is the smaller one, which fits its tables to each clip
    source.train()
    model.train()
    for network in (source, model):
        for layer in network.sublayers():
            layer.rate = 0.0
    large = clips(1, 8, 64, 64)
    np.testing.assert_allclose(model(large).numpy(), source(large).numpy(), rtol=1e-4, atol=1e-5)


def test_a_table_of_no_square_grid_is_another_shape(tmp_path):
    state = make().state_dict()
    state["backbone.pos_embed"] = paddle.zeros([1, 1 + 6, 16])
    paddle.save(state, str(tmp_path / "odd.pdparams"))
    report = load_weights(make(), tmp_path / "odd.pdparams")
    assert [name for name, _, _ in report.mismatched] == ["backbone.pos_embed"]


@pytest.mark.parametrize("runtime_cfg", [None, {"num_seg": 4, "avg_type": "score"}, {"avg_type": "prob"}])
def test_views_in_a_row_are_averaged(runtime_cfg):
    model = randomize(make(runtime_cfg=runtime_cfg))
    views = clips(2, 12)
    model.head.fc.weight.set_value(model.head.fc.weight * 200)
    middle = model(views[:, :, :4]).mean(axis=0)
    model.head.fc.bias.set_value(model.head.fc.bias - middle)  # logits that differ by view
    each = paddle.stack([model(views[:, :, first : first + 4]) for first in (0, 4, 8)])
    softmax = paddle.nn.functional.softmax
    found = model(views)
    if runtime_cfg and runtime_cfg["avg_type"] == "prob":
        assert paddle.allclose(softmax(found), softmax(each, axis=2).mean(axis=0), atol=1e-5)
        assert not paddle.allclose(softmax(found), softmax(each.mean(axis=0)), atol=1e-4)
    else:
        assert paddle.allclose(found, each.mean(axis=0), atol=1e-4)


def test_what_is_no_whole_number_of_views_is_refused():
    model = make(runtime_cfg={"num_seg": 4})
    assert model(clips(1, 6)).shape == [1, 3]  # a training clip is one view
    model.eval()
    assert model(clips(1, 3)).shape == [1, 3]
    with pytest.raises(ConfigError, match=r"num_seg: clips have 6 frames, no multiple of the 4 of a view"):
        model(clips(1, 6))
    assert model.head.pool(*model.features(clips(2, 4))).shape == [2, 16]
    with pytest.raises(ConfigError, match=r"2 views in a row.*num_spatial_crops"):
        model.features(clips(1, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, "num_heads=3: does not divide 16 channels"),
        ({"img_size": 8}, "img_size=8: smaller than patch_size=16"),
    ],
)
def test_wrong_arguments_are_told(change, message):
    with pytest.raises(ConfigError, match=message):
        make(**change)
