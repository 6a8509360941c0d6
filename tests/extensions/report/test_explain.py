"""What decided: in a network that looks at one region alone, in every family, and without a trace."""

from functools import partial

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.errors import ExplanationError
from paddlevideo_fast.extensions.features.model import HeadOnly
from paddlevideo_fast.extensions.report.explain import _chosen, _maps, by_grad_cam, grad_cam, occlusion
from paddlevideo_fast.modeling import Preprocess, build_for_clips, build_model
from paddlevideo_fast.modeling.backbones import Backbone
from paddlevideo_fast.modeling.freezing import set_frozen
from paddlevideo_fast.modeling.heads import MoViNetHead, TokenHead
from paddlevideo_fast.modeling.recognizers import Recognizer3D
from paddlevideo_fast.modeling.recompute import recompute_stages
from tests.extensions.distillation.networks import distillation_of
from tests.modeling.networks import ANNEXED, NETWORKS, clips_for, make, normal, section_of
from tests.modeling.test_pyramid import mvit, swin

REGION = np.s_[4:8, 16:32, 24:40]  # of a clip of 8 frames of 48 x 64 pixels


class Watcher(Backbone):
    """Class 1 is what is bright in `REGION`, class 0 what is dark there; the rest of the clip has no part."""

    data_format = "NCDHW"
    out_channels = 2
    num_classes = 2

    def __init__(self):
        super().__init__()
        self.cells = nn.AvgPool3D((2, 4, 4), (2, 4, 4))
        self.stage_layers = {"stem": ["cells"]}
        mask = np.zeros((1, 1, 4, 12, 16), "float32")
        mask[0, 0, 2:4, 4:8, 6:10] = 1
        self.mask = paddle.to_tensor(mask)

    def forward(self, clips):
        bright = nn.functional.relu(self.cells(clips).mean(axis=1, keepdim=True)) * self.mask
        level = bright.mean(axis=[2, 3, 4]) * 10
        return paddle.concat([-level, level], axis=1)


def transformer(**backbone):
    sizes = {"img_size": 32, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_seg": 4}
    head = {"name": "TokenShiftHead", "in_channels": 8, "num_classes": 3}
    parts = {"backbone": {**sizes, **backbone}, "head": head}
    return build_model({"framework": "RecognizerTransformer", **parts})


def channels_last():
    section = section_of(data_format="NHWC")
    section["head"]["data_format"] = "NHWC"
    return build_for_clips(section)


FAMILIES = {
    **{name: partial(make, name) for name in (*NETWORKS, *ANNEXED)},
    "channels last": channels_last,
    "swin": swin,
    "mvit": mvit,
    "space_only": partial(make, "timesformer", attention_type="space_only"),
    "joint_space_time": partial(make, "timesformer", attention_type="joint_space_time"),
    "tokshift": partial(transformer, name="TokenShiftVisionTransformer"),
}


def made(family):
    """A network of which no part is 0 at first, as the last batch norm of a block is."""
    paddle.seed(3)
    model = FAMILIES[family]()
    for parameter in model.parameters():
        if not parameter.numpy().any():
            parameter.set_value(paddle.uniform(parameter.shape, min=0.2, max=0.5))
    return model


def share_inside(heat):
    return heat[REGION].sum() / heat.sum()


@pytest.fixture
def clip():
    """Random pixels, and bright ones in `REGION`."""
    pixels = np.random.default_rng(0).integers(0, 120, (8, 48, 64, 3), np.uint8)
    pixels[REGION] += 130
    return pixels


def test_both_find_the_one_region_that_counts(clip):
    model, preprocess = Recognizer3D(Watcher(), MoViNetHead()), Preprocess((0, 0, 0), (1, 1, 1), "NCTHW")
    heat = by_grad_cam(model, preprocess)(clip, 1)
    assert (heat.shape, heat.dtype) == (clip.shape[:3], np.float32)
    assert (heat.min(), heat.max()) == (0, 1)
    assert share_inside(heat) > 0.7  # the map is coarser than the clip
    assert heat[:2].max() == heat[:, :8].max() == heat[:, :, :16].max() == 0

    def scores(clips):
        return nn.functional.softmax(model(preprocess(clips))).numpy()

    heat = occlusion(scores, clip, box=(0.25, 0.125, 0.125))
    assert (heat.shape, heat.dtype) == (clip.shape[:3], np.float32)
    assert (heat.min(), heat.max()) == (0, 1)
    assert share_inside(heat) > 0.7
    # nothing speaks for the other class
    assert not by_grad_cam(model, preprocess)(clip, 0).any()
    assert not occlusion(scores, clip, 0).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_heat_map(family):
    model = made(family)
    clip = np.random.default_rng(1).integers(0, 256, (4, 48, 64, 3), np.uint8)
    clip = clip[: model.backbone.num_seg]
    heat = by_grad_cam(model, Preprocess(layout=model.layout))(clip, 1)
    assert (heat.shape, heat.dtype) == (clip.shape[:3], np.float32)
    assert (heat.min() >= 0, heat.max()) == (True, 1)


def is_of_tokens(backbone):
    return backbone.has_tokens or backbone.data_format == "NLC"


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_have_the_places_of_the_clip(family):
    """What changes at one place of the last frame changes the first map there the most."""
    model = made(family)
    before = np.random.default_rng(1).integers(0, 100, (8, 64, 96, 3), np.uint8)[: model.backbone.num_seg]
    after = before.copy()
    after[-1, :16, 64:80] += 150
    maps = [
        next(iter(_maps(model, Preprocess(layout=model.layout)(clip[None]), 0).values()))
        for clip in (before, after)
    ]
    for (one, _), (other, _) in zip(*maps):
        change = (one - other).abs().sum(-1)[0].numpy()
        frame, row, column = np.unravel_index(change.argmax(), change.shape)
        frames, rows, columns = change.shape
        around = 0 if is_of_tokens(model.backbone) else 1  # cells that a convolution sees beside its own
        assert frame >= frames - 1 - 2 * around
        assert row - around < rows * 16 / 64
        assert columns * 64 / 96 - around <= column < columns * 80 / 96 + around


def test_the_deepest_map_that_is_fine_enough_is_taken():
    model = made("slowfast")
    large, small, tiny = (_maps(model, normal(1, 3, 4, side, side), 0) for side in (128, 32, 16))
    assert _chosen(large, has_tokens=False) == "res4"  # of 8 cells a side; res5 has 4
    assert _chosen(small, has_tokens=False) == "res2"
    assert _chosen(tiny, has_tokens=False) == "res2"  # of 4 cells, as the stem's
    assert not np.array_equal(*(grad_cam(model, clips_for(model, 1), 0, name) for name in ("res2", "res5")))


def random_numbers():
    """What the random state prints, without the address of its object."""
    return [word for state in paddle.get_rng_state() for word in str(state).split() if word[:2] != "0x"]


@pytest.mark.parametrize("family", ["videomae", "vjepa2", "timesformer", "swin", "mvit", "hiera", "tokshift"])
def test_of_tokens_the_first_block_is_taken(family):
    model = made(family)
    clips = normal(1, 3, 4, 32, 32)
    first, default = grad_cam(model, clips, 1, "block1"), grad_cam(model, clips, 1)
    np.testing.assert_array_equal(first, default)


@pytest.mark.parametrize("family", ["tsm", "slowfast", "videomae", "mvit", "hiera", "recomputed", "frozen"])
def test_an_explanation_changes_nothing(family):
    model = made("tsm" if family in ("recomputed", "frozen") else family)
    if family == "recomputed":
        recompute_stages(model)
    if family == "frozen":
        set_frozen(model, [name for name, _ in model.named_parameters() if name.startswith("backbone.")])
    model.train()
    model.loss(model(clips_for(model)), paddle.to_tensor([0, 1])).backward()
    random_state = random_numbers()

    def state():
        gradients = {
            name: None if value.grad is None else value.grad.numpy().copy()
            for name, value in model.named_parameters()
        }
        wanted = {name: value.stop_gradient for name, value in model.named_parameters()}
        values = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        return gradients, wanted, values, [layer.training for layer in model.sublayers(include_self=True)]

    before = state()
    assert grad_cam(model, clips_for(model, 1)).any()
    with paddle.no_grad():
        grad_cam(model, clips_for(model, 1))
    for found, expected in zip(state(), before):
        np.testing.assert_equal(found, expected)
    assert random_numbers() == random_state


def test_a_distillation_shows_its_student():
    model = build_model(distillation_of(section_of()))
    clips = clips_for(model, 1)
    np.testing.assert_array_equal(grad_cam(model, clips, 1), grad_cam(model.Student, clips, 1))


class Pooled(Backbone):
    """A feature of each clip, and nothing before it."""

    data_format = "NC"
    out_channels = 3

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, clips):
        return self.linear(clips.mean(axis=[2, 3, 4]))


def test_what_cannot_be_explained_names_occlusion():
    model = make()
    clips = clips_for(model, 1)
    for network in (HeadOnly(make()), nn.Linear(2, 2)):
        with pytest.raises(ExplanationError, match="gives no logits of clips.*occlusion"):
            grad_cam(network, clips)
    pooled = Recognizer3D(Pooled(), TokenHead(num_classes=2, in_channels=3))
    with pytest.raises(ExplanationError, match="no stage of the network has a map.*occlusion"):
        grad_cam(pooled, clips_for(pooled, 1))
    with pytest.raises(ExplanationError, match="stage res9: .* take one of stem, res2, res3, res4, res5"):
        grad_cam(model, clips, stage="res9")
    with pytest.raises(ExplanationError, match="class 3: name one of 0 to 2"):
        grad_cam(model, clips, 3)
    with pytest.raises(ExplanationError, match="class -1: name one of 0 to 1"):
        occlusion(lambda clips: np.full((len(clips), 2), 0.5), np.zeros((2, 4, 4, 3), np.uint8), -1)


@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 7, 5), (8, 40, 56)])
def test_boxes_cover_every_pixel(shape):
    pixels = np.resize(np.array([0, 200], np.uint8), (*shape, 1)).repeat(3, axis=3)
    seen = []

    def scores(clips):
        seen.append((clips != pixels).any(-1))
        return np.ones((len(clips), 1))

    assert occlusion(scores, pixels, progress=list).shape == shape
    hidden = np.concatenate(seen)[1:]
    assert hidden.any(axis=0).all()
    assert not hidden.all(axis=(1, 2, 3)).any()
    assert len(seen) == 1 + -(-len(hidden) // 16)
