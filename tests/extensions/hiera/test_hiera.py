"""Hiera: mask units and their order, other sizes of clips, weights, pre-training on parts of a clip."""

import logging
from functools import partial

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.apps.convert.convert import convert_state
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.hiera.network import Hiera, pooled, units_in_order
from paddlevideo_fast.modeling import build_model, count_parameters, load_weights
from paddlevideo_fast.modeling.recompute import recompute_stages
from tests.modeling.networks import ANNEXED, make, normal
from tests.support.launching import overriding

TINY = ANNEXED["hiera"][1]
classifier = partial(make, "hiera")


def pretraining(mask_ratio=0.75, normalize_targets=True, **backbone):
    own = {**TINY, "mask_unit": 16, "q_pool": 1, **backbone}
    head = {"name": "HieraDecoder", "in_channels": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    sizes = {key: own[key] for key in ("num_frames", "crop_size", "mask_unit", "q_pool")}
    head.update(**sizes, num_stages=len(own["depths"]), normalize_targets=normalize_targets)
    section = {"framework": "Pretrain", "backbone": own, "head": head, "mask_ratio": mask_ratio}
    return build_model(section)


@pytest.mark.smoke
@pytest.mark.parametrize(("side", "num_pools"), [(8, 3), (8, 2), (4, 1), (14, 1)])
def test_a_pooling_is_the_maximum_of_a_square_of_tokens(side, num_pools):
    values = np.random.default_rng(0).standard_normal((side, side)).astype("float32")
    tokens = paddle.to_tensor(values.ravel()[units_in_order(side, num_pools)]).reshape([1, -1, 1])
    for pools_left in range(num_pools - 1, -1, -1):
        tokens = pooled(tokens, tokens.shape[1])
        values = values.reshape(values.shape[0] // 2, 2, -1, 2).max(axis=(1, 3))
        expected = values.ravel()[units_in_order(len(values), pools_left)]
        np.testing.assert_array_equal(tokens.numpy().ravel(), expected)


def test_the_first_stages_see_their_mask_unit_alone_and_the_last_ones_all():
    """By the gradient of one output with respect to what enters a block."""
    backbone = classifier().backbone
    for number, sees_all in enumerate((False, False, False, True)):
        block = backbone.blocks[number]
        unit, num_units = 16 // 4 ** min(max(number - 1, 0), 2), 8  # tokens of a unit
        tokens = normal(1, num_units * unit, block.norm1.weight.shape[0])
        tokens.stop_gradient = False
        block(tokens)[0, 0].sum().backward()
        seen = tokens.grad.numpy()[0].any(axis=1).reshape(num_units, unit)
        assert seen[0].all()
        assert seen[1:].all() == seen[1:].any() == sees_all


@pytest.mark.smoke
def test_every_parameter_learns_from_clips_of_any_size_that_units_divide():
    paddle.seed(0)
    model = classifier()
    for shape in ((2, 3, 4, 32, 32), (1, 3, 6, 16, 48)):
        model.clear_gradients()
        model.loss(model(normal(*shape)), paddle.to_tensor([0, 2][: shape[0]])).backward()
        assert not [
            name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()
        ]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 32, 32), r"tubelet_size=2: does not divide the 5 frames of the clips; 4 or 6 would fit"),
        ((4, 40, 32), r"mask_unit=16: does not divide the 40 pixels in height of the clips; 32 or 48 would"),
        ((4, 32, 12), r"mask_unit=16: does not divide the 12 pixels in width of the clips; 16 would fit"),
    ],
)
def test_a_clip_that_units_do_not_divide_names_the_sizes_that_would_fit(shape, message):
    model = classifier()
    with pytest.raises(ConfigError, match=message):
        model(normal(1, 3, *shape))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, r"num_heads=3: does not divide embed_dim=8"),
        ({"q_pool": 3}, r"q_pool=3: expected 0 to 2, as depths has 3 stages"),
        ({"mask_unit": 24}, r"mask_unit=24: expected a multiple of 16, .* and 2 poolings halve it"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ConfigError, match=message):
        classifier(**change)


def test_positions_are_interpolated_for_other_clips_as_a_larger_network_has_them(tmp_path):
    small, large = classifier(), classifier(crop_size=64, num_frames=8)
    paddle.save(small.state_dict(), str(tmp_path / "small.pdparams"))
    report = load_weights(large, tmp_path / "small.pdparams")
    assert report.resized == ["backbone.pos_embed_spatial", "backbone.pos_embed_temporal"]
    table = small.backbone.pos_embed_temporal.numpy()[0]
    places = np.clip((np.arange(4) + 0.5) * 2 / 4 - 0.5, 0, 1)
    expected = np.stack([np.interp(places, np.arange(2), column) for column in table.T], axis=1)
    np.testing.assert_allclose(large.backbone.pos_embed_temporal.numpy()[0], expected, atol=1e-6)
    for model in (small, large):
        model.eval()
    clips = normal(1, 3, 8, 64, 64)
    np.testing.assert_allclose(small(clips).numpy(), large(clips).numpy(), rtol=1e-4, atol=1e-5)


def test_it_starts_with_the_published_weights_and_biases():
    paddle.seed(0)
    backbone = classifier().backbone
    layers = [each for each in backbone.sublayers() if isinstance(each, (nn.Linear, nn.LayerNorm))]
    assert all((each.bias.numpy() == np.float32(0.02)).all() for each in layers)
    drawn = [each for each in backbone.sublayers() if isinstance(each, (nn.Linear, nn.Conv3D))]
    weights = np.concatenate([each.weight.numpy().ravel() for each in drawn])
    assert weights.std() == pytest.approx(0.02, abs=0.001)


@pytest.mark.parametrize(
    ("embed_dim", "num_heads", "depths", "parameters"),
    [
        (96, 1, [1, 2, 7, 2], 27_168_672),
        (96, 1, [1, 2, 11, 2], 34_266_528),
        (96, 1, [2, 3, 16, 3], 50_783_424),
        (112, 2, [2, 3, 16, 3], 69_031_648),
        (144, 2, [2, 6, 36, 4], 212_628_096),
    ],
)
def test_the_published_sizes_have_their_parameters(embed_dim, num_heads, depths, parameters, monkeypatch):
    monkeypatch.setattr(nn.initializer, "TruncatedNormal", lambda **_: nn.initializer.Constant(0.1))
    assert count_parameters(Hiera(embed_dim=embed_dim, num_heads=num_heads, depths=depths)) == parameters


def test_blocks_that_run_twice_give_the_same_gradients():
    gradients = []
    for again in (False, True):
        paddle.seed(3)
        model = classifier(drop_path_rate=0.5)
        if again:
            recompute_stages(model)
        model.loss(model(normal(2, 3, 4, 32, 32)), paddle.to_tensor([0, 2])).backward()
        gradients.append({name: value.grad.numpy() for name, value in model.named_parameters()})
    for name, gradient in gradients[0].items():
        np.testing.assert_array_equal(gradient, gradients[1][name], err_msg=name)


def authors_state(model):
    """The names and shapes of the authors' file of a network, with random numbers."""
    linear = {name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)}
    rng, state = np.random.default_rng(1), {}
    for name, value in model.state_dict().items():
        shape = value.shape[::-1] if name.removesuffix(".weight") in linear else value.shape
        theirs = name.removeprefix("backbone.")
        for ours, other in (("head.fc_norm", "norm"), ("head.fc.", "head.projection.")):
            theirs = theirs.replace(ours, other)
        state[theirs] = rng.standard_normal(shape).astype("float32")
    return state


def test_a_file_of_another_size_names_what_to_set():
    head = {"name": "VideoMAEHead", "num_classes": 3, "in_channels": 64}
    backbone = {**TINY, "embed_dim": 16, "depths": [2, 1, 2]}
    state = authors_state(build_model({"framework": "Recognizer3D", "backbone": backbone, "head": head}))
    result = convert_state("hiera", state, classifier())
    (text,) = result.differences
    keys = "MODEL.backbone.embed_dim=16 and MODEL.backbone.depths=[2,1,2]"
    assert text == f"the file's encoder has another size; set {keys}"
    assert not result.is_whole


def test_a_file_converts_whole_and_a_pretrained_one_without_its_decoder():
    state = authors_state(classifier())
    result = convert_state("hiera", state, classifier())
    assert result.is_whole
    assert {row.outcome for row in result.rows} == {"converted"}
    encoder = {name: value for name, value in state.items() if not name.startswith(("norm", "head"))}
    decoder = {"encoder_norm.weight": np.ones(32), "decoder_blocks.0.attn.qkv.weight": np.ones((48, 16))}
    result = convert_state("hiera", {**encoder, **decoder}, classifier())
    assert result.is_whole
    left_out = {row.source: row.detail for row in result.rows if row.outcome == "ignored"}
    assert left_out == dict.fromkeys(decoder, "only pre-training needs it")
    assert set(result.weights) == {name for name in classifier().state_dict() if name.startswith("backbone.")}


# --- pre-training


def test_dropped_units_do_not_reach_the_encoder():
    """Neither as tokens, nor by the patches that reach over the edge of their unit."""
    model = pretraining()
    backbone, lengths = model.backbone, []
    hook = backbone.blocks[0].register_forward_pre_hook(lambda _, x: lengths.append(x[0].shape[1]))
    clips = normal(2, 3, 4, 32, 32)
    clips.stop_gradient = False
    visible = paddle.to_tensor([[0, 5], [3, 6]])
    outputs = backbone.encode(clips, visible)
    hook.remove()
    assert lengths == [2 * 16]  # of 8 * 16
    assert [each.shape for each in outputs] == [[2, 2 * 16, 8], [2, 2 * 4, 16], [2, 2 * 4, 32]]
    outputs[-1].square().sum().backward()
    reached = clips.grad.numpy().any(axis=1).reshape(2, 2, 2, 2, 16, 2, 16).any(axis=(2, 4, 6))
    for each, numbers in zip(reached.reshape(2, 8), visible.numpy()):
        assert np.flatnonzero(each).tolist() == numbers.tolist()
    # where units are neighbours in time, their patches see each other's frames, as in a whole clip
    everything = paddle.arange(8, dtype="int64").unsqueeze(0).tile([2, 1])
    np.testing.assert_array_equal(backbone.encode(clips, everything)[-1].numpy(), backbone(clips).numpy())


def test_the_loss_is_of_hidden_units_alone():
    """What is predicted for visible units is not computed; the pixels of hidden ones are the targets."""
    model = pretraining(normalize_targets=False)
    clips = normal(1, 3, 4, 32, 32)
    visible, hidden = paddle.to_tensor([[1, 4]]), paddle.to_tensor([[0, 2, 3, 5, 6, 7]])
    predictions, truth = model.head.restored(model.backbone, clips, visible, hidden)
    assert predictions.shape == truth.shape == [1, 6 * 4, 3 * 8 * 8]
    # unit 6: the second time, the second row, the first column; its square 1 is the right upper one
    pixels = clips.numpy()[0, :, 2, 16:24, 8:16].transpose(1, 2, 0)
    np.testing.assert_array_equal(truth.numpy()[0, 4 * 4 + 1].reshape(8, 8, 3), pixels)


def test_a_report_shows_what_is_seen_and_what_is_restored():
    model = pretraining()
    model.eval()
    clips = normal(2, 3, 4, 32, 32)
    pictures = model.pictures(clips)
    seen = pictures["visible"].numpy()
    shown = seen != 0
    assert shown.mean() == pytest.approx(0.25)
    np.testing.assert_array_equal(seen[shown], clips.numpy()[shown])
    drawn = pictures["reconstruction"].numpy()
    np.testing.assert_array_equal(drawn[shown], clips.numpy()[shown])
    first, second = drawn[:, :, ::2], drawn[:, :, 1::2]  # one frame is restored for two
    hidden = ~shown[:, :, ::2]
    np.testing.assert_array_equal(first[hidden], second[hidden])


def test_masks_are_of_any_units_and_follow_the_keys():
    model = pretraining()
    model.train()
    keys = [(0, 0, number, 0) for number in range(40)]
    visible, hidden = model._masks(normal(40, 3, 4, 32, 32), keys)
    assert (visible.shape, hidden.shape) == ([40, 2], [40, 6])
    together = np.sort(np.concatenate([visible.numpy(), hidden.numpy()], axis=1))
    np.testing.assert_array_equal(together, np.tile(np.arange(8), (40, 1)))
    pairs = set(map(tuple, visible.numpy().tolist()))
    assert len(pairs) > 15  # of 28; tubes have the same square at both times, which are four
    again, _ = model._masks(normal(1, 3, 4, 32, 32), keys[7:8])
    np.testing.assert_array_equal(again.numpy()[0], visible.numpy()[7])


def test_parts_of_pretraining_that_do_not_fit_are_told():
    head = {"name": "HieraDecoder", "in_channels": 32, "num_stages": 3, "q_pool": 1, "mask_unit": 16}
    section = {"framework": "Pretrain", "backbone": {**TINY, "q_pool": 1}, "head": head}
    head["q_pool"] = 2
    with pytest.raises(ConfigError, match=r"head\.q_pool=2: the backbone has 1; give both the same"):
        build_model(section)
    section["head"] = {"name": "VideoMAEHead", "num_classes": 3, "in_channels": 32}
    with pytest.raises(ConfigError, match=r"VideoMAEHead: classifies, and pre-training restores; take Hiera"):
        build_model(section)
    section["head"] = {"name": "VideoMAEDecoder", "in_channels": 32}
    with pytest.raises(ConfigError, match=r"Hiera: encodes no parts of a clip for VideoMAEDecoder; take Vid"):
        build_model(section)
    head.update(q_pool=1, mask_unit=20)
    with pytest.raises(ConfigError, match=r"head\.mask_unit=20: expected a multiple of 8, as q_pool is 1"):
        build_model({**section, "head": head})


def test_fine_tuning_takes_the_encoder_of_a_checkpoint_by_name(tmp_path, caplog):
    pretrained = pretraining()
    paddle.save(pretrained.state_dict(), str(tmp_path / "best.pdparams"))
    with caplog.at_level(logging.INFO, logger="paddlevideo_fast"):
        model = classifier(pretrained=str(tmp_path / "best.pdparams"))
    assert not model.load_report.missing
    for name, value in model.backbone.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), pretrained.backbone.state_dict()[name].numpy())


@pytest.mark.slow
def test_it_trains_in_mixed_precision_and_as_a_static_graph_with_the_same_losses(run, tmp_path, records):
    sizes = "num_frames: 4, crop_size: 28, embed_dim: 8, depths: [1, 2], mask_unit: 4, q_pool: 0"
    network = [
        f"MODEL={{framework: Recognizer3D, backbone: {{name: Hiera, {sizes}}}}}",
        "MODEL.head={name: VideoMAEHead, num_classes: 4, in_channels: 16}",
    ]
    losses = {}
    for options in ("", "amp=true", "to_static=true"):
        folder = tmp_path / options
        given = [*network, *options.split(), "validate=false", f"output_dir={folder}"]
        assert run(*overriding(*given)) == 0
        losses[options] = [line["loss"] for line in records(folder) if line["kind"] == "train"]
    np.testing.assert_allclose(losses["to_static=true"], losses[""], rtol=1e-5)
    np.testing.assert_allclose(losses["amp=true"], losses[""], rtol=2e-2)
