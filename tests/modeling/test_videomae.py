"""VideoMAE's ViT: tokens, positions, weights, pre-training."""

from functools import partial

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.convert.convert import convert_state
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.pretraining.model import tube_mask
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.backbones.videomae import VideoMAEViT
from paddlevideo_fast.modeling.layers.positions import fixed_positions, resized, table_in_program
from tests.modeling.networks import NETWORKS, make, normal

TINY = NETWORKS["videomae"][1]
classifier = partial(make, "videomae")


@pytest.mark.smoke
def test_tubelets_are_squares_of_pixels_over_a_few_frames():
    embedding = classifier().backbone.patch_embed
    clips = normal(2, 3, 4, 16, 24)
    tubelets = embedding.tubelets(clips).numpy()
    assert tubelets.shape == (2, 2 * 2 * 3, 2 * 8 * 8, 3)
    token = 1 * 6 + 1 * 3 + 2  # the second pair of frames, second row, third column
    pixels = clips.numpy()[1, :, 2:4, 8:16, 16:24]
    np.testing.assert_array_equal(tubelets[1, token], pixels.transpose(1, 2, 3, 0).reshape(-1, 3))


def test_clips_of_any_size_and_length_and_what_does_not_divide():
    model = classifier()
    model.eval()
    for shape in ((1, 3, 2, 8, 8), (2, 3, 6, 16, 40)):
        assert model(normal(*shape)).shape == [shape[0], 3]
    with pytest.raises(ConfigError, match=r"tubelet_size=2: does not divide the 3 frames"):
        model(normal(1, 3, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"patch_size=8: does not divide the 12 pixels in height"):
        model(normal(1, 3, 2, 12, 8))


@pytest.mark.smoke
def test_the_order_of_the_tokens_reaches_the_logits_through_the_positions():
    model = classifier()
    model.eval()
    clips = normal(1, 3, 4, 16, 16)
    mirrored = paddle.flip(clips, axis=[2])
    assert not np.allclose(model(clips).numpy(), model(mirrored).numpy(), atol=1e-4)


def authors_pretraining_state():
    """Names and arrays of a pre-training checkpoint of the authors' repository."""
    parts = {
        "backbone.": "encoder.",
        "head.encoder_norm.": "encoder.norm.",
        "head.encoder_to_decoder.": "encoder_to_decoder.",
        "head.mask_token": "mask_token",
        "head.": "decoder.",
    }
    shapes = {}
    for name, value in pretraining().state_dict().items():
        ours = next(part for part in parts if name.startswith(part))
        shape = value.shape[::-1] if len(value.shape) == 2 else value.shape
        shapes[parts[ours] + name[len(ours) :]] = shape
    shapes["encoder.patch_embed.proj.weight"] = (24, 3, 2, 8, 8)
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
    assert {"mask_token", "decoder.norm.bias", "decoder.head.weight", "encoder_to_decoder.weight"} < left_out
    assert all(row.detail == "only pre-training needs it" for row in result.rows if row.outcome == "ignored")
    assert all(name.startswith("backbone.") for name in result.weights)
    # the linear layer computes what the convolution does
    model = classifier()
    model.set_state_dict(result.weights)
    clips = normal(1, 3, 2, 8, 16)
    kernel = [value for value in state.values() if value.ndim == 5][0]
    bias = [value for name, value in state.items() if name.endswith(("proj.bias", "projection.bias"))][0]
    expected = paddle.nn.functional.conv3d(
        clips, paddle.to_tensor(kernel), paddle.to_tensor(bias), stride=[2, 8, 8]
    )
    embedding = model.backbone.patch_embed
    found = embedding(embedding.tubelets(clips)).numpy()
    np.testing.assert_allclose(found, expected.flatten(2).transpose([0, 2, 1]).numpy(), rtol=1e-4, atol=1e-4)


def pretraining(mask_ratio=0.75, normalize_targets=True, **backbone):
    head = {"name": "VideoMAEDecoder", "in_channels": 24, "embed_dim": 8, "depth": 1, "num_heads": 2}
    return build_model(
        {
            "framework": "Pretrain",
            "backbone": {**TINY, **backbone},
            "head": {**head, "patch_size": 8, "normalize_targets": normalize_targets},
            "mask_ratio": mask_ratio,
        }
    )


@pytest.mark.smoke
def test_tubes_are_hidden_at_all_times():
    mask = tube_mask((7, 0, 3, 0), num_times=4, num_squares=196, mask_ratio=0.9).reshape(4, 196)
    assert (mask == mask[0]).all()
    assert mask[0].sum() == 176
    others = [tube_mask((7, 0, index, 0), 1, 196, 0.9) for index in range(300)]
    assert abs(np.mean(others, axis=0) - 176 / 196).max() < 0.1  # no square is hidden more often than others
    assert len({each.tobytes() for each in others}) == 300
    np.testing.assert_array_equal(mask[0], tube_mask((7, 0, 3, 0), 1, 196, 0.9))
    with pytest.raises(ConfigError, match=r"mask_ratio=0.9: hides 0 of the 1 squares"):
        tube_mask((1,), 1, 1, 0.9)


def brute_force_loss(model, clip, mask):
    """The loss of one clip [3, T, H, W] with one mask: all tokens are computed, and keys that are hidden do
    not count. Nothing of the package but the parameters is used.
    """
    own = dict(model.named_parameters())

    def linear(x, name):
        bias = own.get(f"{name}.bias")
        return x @ own[f"{name}.weight"] + (0 if bias is None else bias)

    def norm(x, name):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * own[f"{name}.weight"] + own[f"{name}.bias"]

    def positions(channels):
        table = np.zeros((len(mask), channels))
        for place in range(len(mask)):
            for channel in range(channels):
                angle = place / 10000 ** (2 * (channel // 2) / channels)
                table[place, channel] = np.cos(angle) if channel % 2 else np.sin(angle)
        return paddle.to_tensor(table)

    def block(x, name, num_heads, hidden_keys):
        each = x.shape[1] // num_heads
        y = norm(x, f"{name}.norm1") @ own[f"{name}.attn.qkv.weight"]
        query, key, value = paddle.split(y, 3, axis=1)
        query, value = query + own[f"{name}.attn.q_bias"], value + own[f"{name}.attn.v_bias"]
        heads = []
        for head in range(num_heads):
            part = slice(head * each, (head + 1) * each)
            scores = query[:, part] @ key[:, part].t() / each**0.5
            scores = scores - 1e30 * paddle.to_tensor(hidden_keys.astype("float64"))
            heads.append(paddle.nn.functional.softmax(scores) @ value[:, part])
        x = x + linear(paddle.concat(heads, axis=1), f"{name}.attn.proj")
        hidden = paddle.nn.functional.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.mlp.fc1"))
        return x + linear(hidden, f"{name}.mlp.fc2")

    squares = []
    for time in range(0, clip.shape[1], 2):
        for top in range(0, clip.shape[2], 8):
            for left in range(0, clip.shape[3], 8):
                part = clip[:, time : time + 2, top : top + 8, left : left + 8]
                squares.append(part.transpose(1, 2, 3, 0).reshape(-1, 3))
    tubelets = paddle.to_tensor(np.stack(squares))
    x = linear(tubelets.flatten(1), "backbone.patch_embed.proj") + positions(24)
    for number in range(2):
        x = block(x, f"backbone.blocks.{number}", 3, mask)
    x = linear(norm(x, "head.encoder_norm"), "head.encoder_to_decoder")
    hidden = paddle.to_tensor(mask[:, None].astype("float64"))
    x = x * (1 - hidden) + own["head.mask_token"][0] * hidden + positions(8)
    x = linear(norm(block(x, "head.blocks.0", 2, np.zeros(len(mask))), "head.norm"), "head.head")
    losses = []
    for token in np.flatnonzero(mask):
        wanted = squares[token]
        wanted = (wanted - wanted.mean(0)) / (wanted.std(0, ddof=1) + 1e-6)
        losses.append(((x[int(token)] - paddle.to_tensor(wanted.reshape(-1))) ** 2).mean())
    return paddle.stack(losses).mean()


def test_loss_and_gradient_are_those_of_computing_all_tokens():
    paddle.set_default_dtype("float64")
    try:
        model = pretraining()
    finally:
        paddle.set_default_dtype("float32")
    for parameter in model.parameters():  # biases of zeros and small weights would hide much
        rng = np.random.default_rng(parameter.size)
        parameter.set_value(0.3 * rng.standard_normal(parameter.shape) + (parameter.ndim == 1) * 0.5)
    clips = np.random.default_rng(5).standard_normal((2, 3, 4, 16, 32))
    keys = [(0, 1, 2, 0), (0, 1, 9, 0)]
    model.train()
    model.key_clips(keys)
    found = model(paddle.to_tensor(clips))
    model.loss(found).backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    model.clear_gradients()
    masks = [tube_mask(key, 2, 8, 0.75) for key in keys]
    expected = paddle.stack([brute_force_loss(model, *each) for each in zip(clips, masks)])
    expected.mean().backward()
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5)
    for name, parameter in model.named_parameters():
        wanted = parameter.grad.numpy()
        assert np.abs(gradients[name] - wanted).max() <= 1e-4 * np.abs(wanted).max(), name


@pytest.mark.smoke
def test_the_encoder_computes_no_hidden_tokens():
    model = pretraining()
    lengths = []
    hook = model.backbone.blocks[0].register_forward_pre_hook(lambda _, x: lengths.append(x[0].shape[1]))
    model(normal(1, 3, 4, 32, 32))
    hook.remove()
    assert lengths == [2 * 4]  # of 2 * 16


def test_masks_follow_the_keys_in_training_and_are_one_in_evaluation():
    model = pretraining()
    clips = paddle.concat([normal(1, 3, 2, 32, 32)] * 3)

    def losses(*keys):
        if keys:
            model.key_clips(keys)
        return model(clips).numpy()

    model.train()
    first = losses((0, 0, 5, 0), (0, 0, 6, 0), (0, 1, 5, 0))
    assert len(set(first.tolist())) == 3
    swapped = losses((0, 0, 6, 0), (0, 0, 5, 0), (0, 1, 5, 0))
    np.testing.assert_allclose(swapped, first[[1, 0, 2]], rtol=1e-5)
    paddle.seed(3)
    drawn = losses()
    paddle.seed(3)
    np.testing.assert_array_equal(losses(), drawn)
    assert len(set(drawn.tolist())) == 3
    model.eval()
    evaluated = losses((0, 0, 5, 0), (0, 0, 6, 0), (0, 1, 5, 0))
    np.testing.assert_allclose(evaluated, evaluated[0], rtol=1e-5)


@pytest.mark.parametrize("normalize_targets", [True, False])
def test_pictures_show_what_is_visible_and_what_is_restored(normalize_targets):
    model = pretraining(normalize_targets=normalize_targets)
    model.eval()
    clips = normal(1, 3, 4, 32, 32)
    made = {title: clip.numpy() for title, clip in model.pictures(clips).items()}
    assert list(made) == ["visible", "reconstruction"]
    hidden = (made["visible"] == 0).all(axis=1)
    assert hidden.mean() == 0.75
    np.testing.assert_array_equal(made["visible"][:, 0][~hidden], clips.numpy()[:, 0][~hidden])
    np.testing.assert_array_equal(made["reconstruction"][:, 0][~hidden], clips.numpy()[:, 0][~hidden])
    tubelets = [model.backbone.patch_embed.tubelets(paddle.to_tensor(each)).numpy() for each in
                (clips.numpy(), made["reconstruction"])]  # fmt: skip
    if normalize_targets:  # with predictions of 0, a hidden tubelet is its mean
        model.head.head.weight.set_value(np.zeros(model.head.head.weight.shape, "float32"))
        model.head.head.bias.set_value(np.zeros(model.head.head.bias.shape, "float32"))
        restored = model.backbone.patch_embed.tubelets(model.pictures(clips)["reconstruction"]).numpy()
        np.testing.assert_allclose(restored.mean(axis=2), tubelets[0].mean(axis=2), atol=1e-5)
    assert not np.allclose(*tubelets)


def test_parts_that_do_not_fit_are_told():
    section = {"framework": "Pretrain", "backbone": TINY}
    head = {"name": "VideoMAEHead", "num_classes": 3, "in_channels": 24}
    with pytest.raises(ConfigError, match=r"VideoMAEHead: classifies, and pre-training restores"):
        build_model({**section, "head": head})
    decoder = {"name": "VideoMAEDecoder", "in_channels": 24}
    with pytest.raises(ConfigError, match=r"MODEL.head.patch_size=16: the backbone has 8"):
        build_model({**section, "head": decoder})
    with pytest.raises(ConfigError, match=r"VideoMAEDecoder: gives no logits; set MODEL.framework to Pretr"):
        build_model({**section, "framework": "Recognizer3D", "head": decoder})


@pytest.mark.parametrize("kind", ["videomae", "huggingface"])
def test_a_whole_pretraining_checkpoint_converts(kind):
    state = authors_pretraining_state()
    expected = convert_state("videomae", state, pretraining()).weights
    state = hugging_face_names(state) if kind == "huggingface" else state
    result = convert_state(kind, state, pretraining())
    assert result.is_whole
    assert not [row for row in result.rows if row.outcome == "ignored"]
    for name, value in expected.items():
        np.testing.assert_array_equal(result.weights[name], value)


def test_a_narrow_vit_g_of_videomae_v2_converts_by_both_names():
    """Patches of 14 pixels, and perceptrons of 48/11 of the channels; all else is VideoMAE's."""
    backbone = {**TINY, "embed_dim": 44, "num_heads": 4, "patch_size": 14, "mlp_ratio": 4.3637}
    head = {"name": "VideoMAEHead", "num_classes": 3, "in_channels": 44}
    model = build_model({"framework": "Recognizer3D", "backbone": backbone, "head": head})
    rng, theirs = np.random.default_rng(2), {}
    for name, value in model.state_dict().items():
        name = (
            name.removeprefix("backbone.").replace("head.fc_norm.", "fc_norm.").replace("head.fc.", "head.")
        )
        shape = value.shape[::-1] if len(value.shape) == 2 else value.shape
        theirs[name] = rng.standard_normal(shape).astype("float32")
    assert theirs["blocks.1.mlp.fc1.weight"].shape == (192, 44)
    theirs["patch_embed.proj.weight"] = rng.standard_normal((44, 3, 2, 14, 14)).astype("float32")
    authors = convert_state("videomae", theirs, model)
    renamed = {
        f"encoder.{name}": value for name, value in theirs.items() if not name.startswith(("head", "fc"))
    }
    renamed = hugging_face_names(renamed)
    renamed |= {name: theirs[name] for name in ("fc_norm.weight", "fc_norm.bias")}
    renamed |= {f"classifier.{leaf}": theirs[f"head.{leaf}"] for leaf in ("weight", "bias")}
    hugging_face = convert_state("huggingface", renamed, model)
    clips, logits = normal(1, 3, 4, 28, 14), []
    model.eval()
    for result in (authors, hugging_face):
        assert {row.outcome for row in result.rows} == {"converted"}
        model.set_state_dict(result.weights)
        logits.append(model(clips).numpy())
    np.testing.assert_array_equal(*logits)
    keys = ("embed_dim=44", "mlp_ratio=4.3636", "patch_size=14")
    wanted = " and ".join(f"MODEL.backbone.{key}" for key in keys)
    (text,) = convert_state("videomae", theirs, classifier()).differences
    assert text == f"the file's encoder has another size; set {wanted}"
    assert not convert_state("videomae", theirs, make("tsm")).is_whole


def test_fine_tuning_takes_the_encoder_of_a_checkpoint_by_name(tmp_path):
    pretrained = pretraining()
    paddle.save(pretrained.state_dict(), str(tmp_path / "best.pdparams"))
    model = classifier(pretrained=str(tmp_path / "best.pdparams"))
    report = model.load_report
    assert not report.missing
    assert all(name.startswith("head.") for name in report.unexpected)
    for name, value in model.backbone.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), pretrained.backbone.state_dict()[name].numpy())


@pytest.mark.smoke
def test_the_positions_of_a_program_are_the_table():
    """Exported programs compute them from smaller tables."""
    for num_tokens, channels in ((5, 6), (64, 8), (1568, 96)):
        found, wanted = table_in_program(num_tokens, channels), fixed_positions((1, 1, num_tokens), channels)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=5e-7)


def interpolated(table, sizes, new_sizes):
    """A table [T, H, W, C] at the centres of the pixels of another grid, linear along each axis."""
    for axis, (size, new_size) in enumerate(zip(sizes, new_sizes)):
        places = ((np.arange(new_size) + 0.5) * size / new_size - 0.5).clip(0, size - 1)
        below = np.floor(places).astype(int)
        above, share = np.minimum(below + 1, size - 1), places - below
        share = share.reshape([-1, *[1] * (table.ndim - 1 - axis)])
        table = table.take(below, axis) * (1 - share) + table.take(above, axis) * share
    return table


@pytest.mark.parametrize("size", [(4, 16, 16), (8, 8, 16), (2, 24, 24), (8, 16, 24)])
def test_positions_of_smaller_clips_are_those_of_the_full_clip_interpolated(size):
    """As V-JEPA's authors do it, trilinear with align_corners=False."""
    backbone = VideoMAEViT(embed_dim=12, depth=1, num_heads=2, patch_size=8)
    own = backbone.positions(paddle.zeros([1, 3, *size]), 12)
    backbone.full_clip = (8, 24, 24)
    table = fixed_positions((4, 3, 3), 12).numpy().astype("float64").reshape([4, 3, 3, 12])
    wanted = interpolated(table, (4, 3, 3), [size[0] // 2, size[1] // 8, size[2] // 8]).reshape([-1, 12])
    found = backbone.positions(paddle.zeros([1, 3, *size]), 12).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert np.abs(found - own.numpy()).max() > 0.1


def test_a_full_clip_gives_the_same_bits_as_without_multigrid():
    backbone = VideoMAEViT(embed_dim=12, depth=2, num_heads=2, patch_size=8)
    clips = paddle.randn([2, 3, 8, 24, 24])
    plain = backbone(clips).numpy()
    backbone.full_clip = (8, 24, 24)
    np.testing.assert_array_equal(backbone(clips).numpy(), plain)


@pytest.mark.parametrize("sizes", [((7, 7), (5, 5)), ((7, 7), (10, 8)), ((8,), (4,)), ((13,), (7,))])
def test_learned_tables_at_other_sizes(sizes):
    """What TimeSformer (one or two axes) and MViT (one) do for clips of another shape."""
    old, new = sizes
    table = np.random.default_rng(0).normal(size=[*old, 6])
    found = resized(paddle.to_tensor(table.reshape([-1, 6])), old, new)
    np.testing.assert_allclose(
        found.numpy(), interpolated(table, old, new).reshape([-1, 6]), rtol=0, atol=2e-6
    )
