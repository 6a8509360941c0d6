"""Video Swin Transformer and MViTv2: their windows and tables, weights of other shapes, wrong arguments."""

import logging

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.modeling.freezing import frozen_parameters
from paddlevideo_fast.modeling.layers import operators, windows
from paddlevideo_fast.modeling.recompute import recompute_stages
from tests.modeling.networks import normal

FASTER = "paddlevideo_fast.extensions.cpu.operators"
CONVOLUTIONS = "paddlevideo_fast.extensions.cpu.convolutions"
SWIN = {
    "name": "SwinTransformer3D",
    "patch_size": [2, 4, 4],
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [1, 2],
    "window_size": [2, 3, 3],
    "drop_path_rate": 0.0,
}
MVIT = {
    "name": "MViT",
    "num_frames": 4,
    "crop_size": 32,
    "embed_dim": 8,
    "depths": [1, 1],
    "kv_stride": 2,
    "drop_path_rate": 0.0,
}


def swin(**change):
    head = {"name": "I3DHead", "num_classes": 3, "in_channels": 16}
    return build_model({"framework": "RecognizerTransformer", "backbone": {**SWIN, **change}, "head": head})


def mvit(**change):
    head = {"name": "TransformerHead", "num_classes": 3, "in_channels": 16}
    return build_model({"framework": "RecognizerTransformer", "backbone": {**MVIT, **change}, "head": head})


@pytest.mark.smoke
@pytest.mark.parametrize("make", [swin, mvit])
def test_every_parameter_learns_from_clips_of_any_size(make):
    paddle.seed(0)
    model = make()
    for shape in ((2, 3, 4, 32, 32), (1, 3, 5, 30, 41)):
        model.clear_gradients()
        model.loss(model(normal(*shape)), paddle.to_tensor([0, 2][: shape[0]])).backward()
        without = [
            name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()
        ]
        # of MViT's last block the class token alone reaches the head, which has no place and is not pooled
        last = ("backbone.blocks.1.attn.rel_pos_", "backbone.blocks.1.attn.pool_q.")
        assert not [name for name in without if not name.startswith(last)]


def test_tokens_see_their_neighbours_in_shifted_windows_and_nobody_else():
    """By brute force: each token is a number, and each window says which numbers it holds."""
    grid, window = (3, 7, 2), (2, 3, 3)
    shape = windows.Windows(grid, window)
    assert (shape.size, shape.shift) == ((2, 3, 2), (1, 1, 0))  # as long as the axis, and not shifted there
    numbered = paddle.arange(1, 3 * 7 * 2 + 1, dtype="float32").reshape([1, *grid, 1])
    held = shape.split(numbered, shifted=True).numpy()[:, :, 0].astype(int)
    sees = shape.mask().numpy() == 0

    def box(number):
        """The shifted window that a token is in, along each axis; the first ones are cut off."""
        places = np.unravel_index(number - 1, grid)
        return tuple((p + (w - s) % w) // w for p, w, s in zip(places, shape.size, shape.shift))

    assert sorted(held[held > 0]) == list(range(1, 43))
    for tokens, mask in zip(held, sees):
        for row, one in enumerate(tokens):
            for column, other in enumerate(tokens):
                if one and other:  # 0 fills the last windows
                    assert mask[row, column] == (box(one) == box(other))
    again = shape.join(paddle.to_tensor(held[:, :, None].astype("float32")), shifted=True)
    assert (again == numbered).all()


class PositionsOfTokens(nn.Layer):
    """A mask, and rows of a table, as a program has them for the first stage of Video Swin at 32×224²."""

    def forward(self, x):
        windows_of_grid = windows.Windows((16, 56, 56), (8, 7, 7))
        return windows_of_grid.mask() + x, windows.relative_positions((8, 7, 7), 392)


def test_the_file_of_a_program_does_not_hold_a_mask_number_by_number(tmp_path):
    layer = PositionsOfTokens()
    spec = [paddle.static.InputSpec([1], "float32")]
    paddle.jit.save(paddle.jit.to_static(layer, input_spec=spec, full_graph=True), str(tmp_path / "program"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8e6  # a mask has 2e7 numbers
    loaded = paddle.jit.load(str(tmp_path / "program"))
    for found, expected in zip(loaded(paddle.zeros([1])), layer(paddle.zeros([1]))):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_what_follows_from_shapes_is_computed_once():
    model = swin()
    model.eval()
    model(normal(1, 3, 4, 32, 32))
    before = operators._cached.cache_info()
    model(normal(2, 3, 4, 32, 32))
    after = operators._cached.cache_info()
    assert after.misses == before.misses
    assert after.hits > before.hits


def test_a_file_with_indices_and_masks_loads_whole(tmp_path):
    model = swin()
    state = {name: value.numpy() + 1 for name, value in model.state_dict().items()}
    extra = {
        "backbone.layers.0.blocks.1.attn.relative_position_index": np.zeros((18, 18), "int64"),
        "backbone.layers.0.blocks.1.attn_mask": np.zeros((4, 18, 18), "float32"),
    }
    paddle.save({**state, **extra}, str(tmp_path / "theirs.pdparams"))
    report = load_weights(model, tmp_path / "theirs.pdparams", strict=True)
    assert not report.unexpected
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name])


@pytest.mark.parametrize(
    ("window", "resized"),
    [((1, 3, 3), True), ((2, 3, 3), False), ((4, 3, 3), True), ((1, 5, 5), True), ((2, 4, 4), True)],
)
def test_tables_of_other_windows_are_resized(tmp_path, window, resized):
    model, name = swin(), "backbone.layers.0.blocks.1.attn.relative_position_bias_table"
    t, h, w = (2 * side - 1 for side in window)
    # the bias grows by 1 from one end of the height to the other
    rows = np.broadcast_to(np.linspace(0, 1, h)[None, :, None], (t, h, w)).reshape([-1, 1]).astype("float32")
    kernel = model.state_dict()["backbone.patch_embed.proj.weight"].numpy()
    paddle.save(
        {name: rows, "backbone.patch_embed.proj.weight": kernel[:, :, 0]}, str(tmp_path / "x.pdparams")
    )
    report = load_weights(model, tmp_path / "x.pdparams")
    assert report.resized == ([name] if resized else [])
    table = model.state_dict()[name].numpy().reshape([3, 5, 5])
    np.testing.assert_allclose(table, np.broadcast_to(table[:1, :, :1], table.shape), atol=1e-6)
    assert (np.diff(table[0, :, 0]) > 0).all()
    inflated = model.state_dict()["backbone.patch_embed.proj.weight"].numpy()
    np.testing.assert_allclose(inflated.sum(axis=2), kernel[:, :, 0], rtol=1e-5)


def test_mvit_interpolates_its_tables_for_other_clips_and_says_so(tmp_path, caplog):
    small, large = mvit(), mvit(crop_size=64)
    paddle.save(small.state_dict(), str(tmp_path / "small.pdparams"))
    report = load_weights(large, tmp_path / "small.pdparams")
    assert report.resized == [
        f"backbone.blocks.{block}.attn.rel_pos_{axis}" for block in (0, 1) for axis in "hw"
    ]
    table = small.state_dict()[report.resized[0]].numpy()
    # 15 rows to 31, pixel centres aligned
    places = np.clip((np.arange(31) + 0.5) * 15 / 31 - 0.5, 0, 14)
    expected = np.stack([np.interp(places, np.arange(15), column) for column in table.T], axis=1)
    np.testing.assert_allclose(large.state_dict()[report.resized[0]].numpy(), expected, atol=1e-6)
    for model in (small, large):
        model.eval()
    with caplog.at_level(logging.INFO, logger="paddlevideo_fast"):
        of_large = small(normal(1, 3, 4, 64, 64))
        small(normal(1, 3, 4, 64, 64))
    told = [record.getMessage() for record in caplog.records if "interpolated" in record.getMessage()]
    assert told == [
        "tables of positions, made for clips of 4×32×32, are interpolated for clips of 4×64×64 (T×H×W)"
    ]
    np.testing.assert_allclose(of_large.numpy(), large(normal(1, 3, 4, 64, 64)).numpy(), rtol=1e-4, atol=1e-5)


def test_mvit_starts_with_the_published_weights_and_biases():
    paddle.seed(0)
    backbone = mvit().backbone
    layers = [one for one in backbone.sublayers() if isinstance(one, (nn.Linear, nn.LayerNorm))]
    biases = [one.bias.numpy() for one in layers if one.bias is not None]
    assert len(biases) > 10
    assert all((bias == np.float32(0.02)).all() for bias in biases)
    drawn = [one for one in backbone.sublayers() if isinstance(one, (nn.Linear, nn.Conv3D))]
    weights = np.concatenate([one.weight.numpy().ravel() for one in drawn])
    assert weights.std() == pytest.approx(0.02, abs=0.001)


def test_frozen_stages_stay():
    assert not frozen_parameters(swin())
    frozen = frozen_parameters(swin(frozen_stages=1))
    assert {name.split(".")[1] for name in frozen} == {"patch_embed", "layers"}
    assert {name.split(".")[2] for name in frozen if ".layers." in name} == {"0"}


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (swin, {"num_heads": [1, 3]}, r"num_heads\.1=3: does not divide 16 channels"),
        (swin, {"num_heads": [1]}, r"num_heads: has 1 stages, and depths has 2"),
        (swin, {"frozen_stages": 3}, r"frozen_stages=3: expected -1 \(none\) to 2"),
        (mvit, {"num_heads": 3}, r"num_heads=3: does not divide embed_dim=8"),
    ],
)
def test_wrong_arguments_of_pyramids(make, change, message):
    with pytest.raises(ConfigError, match=message):
        make(**change)


def gradients_of(make, again=False):
    paddle.seed(3)
    model = make(drop_path_rate=0.5, drop_rate=0.1)
    if again:
        recompute_stages(model)
    loss = model.loss(model(normal(2, 3, 4, 32, 32)), paddle.to_tensor([0, 2]))
    loss.backward()
    return float(loss), {name: value.grad for name, value in model.named_parameters()}


@pytest.mark.annex
@pytest.mark.parametrize("fewest_scores", [1, 10**9])
@pytest.mark.parametrize("make", [swin, mvit])
def test_blocks_that_run_twice_give_the_same_gradients(make, fewest_scores, monkeypatch):
    monkeypatch.setattr(f"{FASTER}._MIN_SCORES", fewest_scores)
    (_, once), (_, twice) = gradients_of(make), gradients_of(make, again=True)
    for name, gradient in once.items():
        assert (gradient is None) == (twice[name] is None)
        assert gradient is None or (gradient == twice[name]).all()


@pytest.mark.annex
@pytest.mark.smoke
@pytest.mark.parametrize("make", [swin, mvit])
def test_operators_of_the_cpu_give_the_gradients_of_paddles(make, monkeypatch):
    """Swin shifts and masks its windows here."""
    monkeypatch.setattr(f"{FASTER}._MIN_SCORES", 1)
    loss, ours = gradients_of(make)
    for module in (FASTER, CONVOLUTIONS):
        monkeypatch.setattr(f"{module}.is_on_cpu", lambda x: False)
    expected, plain = gradients_of(make)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in ours.items():
        if gradient is not None:
            np.testing.assert_allclose(
                gradient.numpy(), plain[name].numpy(), rtol=1e-3, atol=1e-6, err_msg=name
            )
