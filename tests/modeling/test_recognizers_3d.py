"""3D networks: any clip shape, their pathways, weights from 2D networks, and what is wrong with arguments."""

import logging
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MacCounter, build_model, load_weights
from paddlevideo_fast.modeling.heads import mean_logits
from tests.modeling.networks import ONE_EACH, normal

NETWORKS = {
    "slowfast": ({"name": "ResNetSlowFast", "alpha": 4, "beta": 4, "fusion_kernel_sz": 5}, "SlowFastHead"),
    "bare": ({"name": "ResNetSlowFast", "alpha": 2, "beta": 2, "fuse_bn_relu": False}, "SlowFastHead"),
    "slow": ({"name": "ResNetSlow"}, "I3DHead"),
    "i3d": ({"name": "ResNetI3D"}, "I3DHead"),
    "i3d_3x3x3": ({"name": "ResNetI3D", "inflate": "3x3x3"}, "I3DHead"),
    "r2plus1d": ({"name": "ResNetR2Plus1D", "width": 8}, "I3DHead"),
    "r2plus1d_50": ({"name": "ResNetR2Plus1D", "depth": 50, "width": 8}, "I3DHead"),
    "x3d": ({"name": "X3D", "dim_c1": 4, "depth_factor": 0.2}, "X3DHead"),
}


def make(kind="slowfast", width=8, classes=3, stage_blocks=ONE_EACH, **backbone):
    section, head = NETWORKS[kind]
    shape = {"in_channels": {"r2plus1d": 8 * width, "x3d": 144}.get(kind, 32 * width)}
    if head == "SlowFastHead":
        shape = {"width_per_group": width, "beta": section["beta"]}
    if section["name"] == "X3D":
        section = {**section, **backbone}
    else:
        wide = {} if "width" in section else {"width_per_group": width}
        section = {**section, **wide, "stage_blocks": list(stage_blocks), **backbone}
    head = {"name": head, "num_classes": classes, **shape}
    return build_model({"framework": "Recognizer3D", "backbone": section, "head": head})


def clips(num=2, frames=8, height=32, width=32):
    return normal(num, 3, frames, height, width)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_network_trains_and_takes_any_clip(kind):
    paddle.seed(0)
    model = make(kind)
    model.loss(model(clips()), paddle.to_tensor([0, 2])).backward()
    assert not [n for n, value in model.named_parameters() if not value.stop_gradient and value.grad is None]
    model.eval()
    for shape in ((4, 32, 32), (8, 48, 33), (16, 40, 64)):
        logits = model(clips(1, *shape))
        assert logits.shape == [1, 3]
        assert np.isfinite(logits.numpy()).all()


@pytest.mark.parametrize(
    ("alpha", "num_frames", "expected"),
    [
        (8, 32, [0, 10, 20, 31]),
        (4, 32, [0, 4, 8, 13, 17, 22, 26, 31]),
        (4, 8, [0, 7]),
        (8, 8, [0]),
        (1, 3, [0, 1, 2]),
    ],
)
def test_the_slow_pathway_sees_evenly_spread_frames(alpha, num_frames, expected):
    model = make(alpha=alpha)
    numbered = paddle.arange(num_frames, dtype="float32").reshape([1, 1, -1, 1, 1])
    slow, fast = model.backbone._split(numbered)
    assert slow.flatten().tolist() == expected
    assert fast.flatten().tolist() == list(range(num_frames))


def test_the_first_logits_hardly_differ_between_clips():
    model = make()
    model.eval()
    assert float(model(clips()).std()) < 0.1
    assert float(model.backbone.s2.pathway0_res0.branch2.c_bn.weight.abs().max()) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spatial_strides": [1, 2]}, "has 2 strides, and the network four stages"),
        ({"depth": 34}, r"MODEL\.backbone\.depth=34"),
        ({"beta": 3}, r"MODEL\.backbone\.beta=3: does not divide width_per_group=8"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ConfigError, match=message):
        make(**change)


@pytest.mark.parametrize("kind", ["slowfast", "slow", "i3d"])
def test_without_the_last_stride_maps_are_twice_as_large(kind):
    """With one block in each stage, the network with the stride gives every second value of the maps."""
    usual, finer = (make(kind, **strides).backbone for strides in ({}, {"spatial_strides": [1, 2, 2, 1]}))
    assert (usual.spatial_stride, finer.spatial_stride) == (32, 16)
    finer.set_state_dict(usual.state_dict())
    for network in (usual, finer):
        network.eval()
    for few, many in zip(usual(clips(height=28, width=44)), finer(clips(height=28, width=44))):
        assert (few.shape[3:], many.shape[3:]) == ([1, 2], [2, 3])
        np.testing.assert_allclose(many.numpy()[..., ::2, ::2], few.numpy(), rtol=1e-4, atol=1e-5)


def test_windows_need_the_usual_stride():
    section = {"name": "ResNetSlow", "width_per_group": 8, "spatial_strides": [1, 2, 2, 1]}
    head = {"name": "I3DHead", "in_channels": 256, "num_classes": 3, "crop_size": 224}
    with pytest.raises(ConfigError, match="spatial_strides of the backbone give 16; leave crop_size out"):
        build_model({"framework": "Recognizer3D", "backbone": section, "head": head})


def test_frames_that_do_not_divide():
    with pytest.raises(ConfigError, match=r"alpha=4: clips have 6 frames"):
        make()(clips(frames=6))


def test_too_few_frames():
    assert make("i3d")(clips(frames=3)).shape == make("i3d")(clips(frames=2)).shape
    with pytest.raises(ConfigError, match="clips have 1 frame, and ResNetI3D needs 2"):
        make("i3d")(clips(frames=1))


def test_parts_that_do_not_fit():
    flat = {"name": "ResNet", "depth": 18, "stage_blocks": ONE_EACH}
    slow = {"name": "ResNetSlow", "stage_blocks": ONE_EACH}
    for framework, backbone, head, message in [
        ("Recognizer3D", flat, {"name": "I3DHead"}, "ResNet is no network for it; use Recognizer2D"),
        ("Recognizer2D", slow, {"name": "I3DHead"}, "use Recognizer3D"),
        ("Recognizer3D", slow, {"name": "I3DHead", "in_channels": 7}, "set it to 2048"),
        ("Recognizer2D", flat, {"name": "I3DHead", "in_channels": 512}, "the backbone has NCHW"),
    ]:
        section = {"framework": framework, "backbone": backbone, "head": {"num_classes": 3, **head}}
        with pytest.raises(ConfigError, match=message):
            build_model(section)


def frame_resnet(depth, width):
    backbone = {"name": "ResNet", "depth": depth, "width": width}
    head = {"name": "TSNHead", "num_classes": 3, "in_channels": 32 * width}
    return build_model({"framework": "Recognizer2D", "backbone": backbone, "head": head})


@pytest.fixture
def frame_network(tmp_path):
    """A 2D ResNet-50 with random statistics, and the file of its weights."""
    paddle.seed(3)
    model = frame_resnet(depth=50, width=4)
    rng = np.random.default_rng(3)
    for value in model.state_dict().values():
        if len(value.shape) == 1:
            value.set_value(rng.uniform(0.5, 1.5, value.shape).astype("float32"))
    model.eval()
    path = tmp_path / "resnet50.pdparams"
    paddle.save(model.state_dict(), str(path))
    return model, path


@pytest.mark.parametrize("kind", ["slow", "i3d", "i3d_3x3x3"])
def test_an_inflated_network_sees_a_still_clip_as_its_frame(kind, frame_network):
    flat, path = frame_network
    model = make(kind, width=4, stage_blocks=(3, 4, 6, 3), pretrained=str(path))
    assert model.load_report.missing == model.load_report.mismatched == []
    model.eval()
    frame = clips(1, 1, 64, 64)
    # in the middle of a long still clip no convolution in time sees the zeros beyond its ends
    still = paddle.tile(frame, [1, 1, 96, 1, 1])
    features = model.backbone(still)[0]
    middle = features[:, :, features.shape[2] // 2]
    expected = flat.backbone(frame[:, :, 0])
    np.testing.assert_allclose(middle.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


def test_the_slow_pathway_of_slowfast_takes_what_fits(frame_network):
    _, path = frame_network
    model = make(width=4, stage_blocks=(3, 4, 6, 3), pretrained=str(path))
    report = model.load_report
    assert "s4.pathway0_res1.branch2.a.weight" in report.loaded
    # these also read the fast pathway's channels
    firsts = {
        f"s{stage}.pathway0_res0.{at}.weight" for stage in range(2, 6) for at in ("branch1", "branch2.a")
    }
    assert {name for name, _, _ in report.mismatched} == firsts


def test_weights_of_depth_101_find_their_blocks(tmp_path):
    flat = frame_resnet(depth=101, width=2)
    path = tmp_path / "resnet101.pdparams"
    paddle.save(flat.state_dict(), str(path))
    model = make("i3d", width=2, stage_blocks=(3, 4, 23, 3), depth=101)
    report = load_weights(model.backbone, path)
    assert report.missing == report.mismatched == []


def test_the_counter_leaves_no_trace():
    model = make("slow")
    with MacCounter(model) as counter:
        model(clips(1))
    once = counter.macs
    model(clips(1))
    assert counter.macs == once > 0
    with MacCounter(model) as counter:
        model(clips(2))
    assert counter.macs == 2 * once


def test_the_counter_agrees_with_a_hand_count():
    layer = paddle.nn.Sequential(
        paddle.nn.Conv2D(4, 6, 3, padding=1, groups=2, bias_attr=False),
        paddle.nn.Flatten(),
        paddle.nn.Linear(6 * 5 * 7, 2),
    )
    with MacCounter(layer) as counter:
        layer(paddle.zeros([1, 4, 5, 7]))
    assert counter.macs == 6 * 5 * 7 * (2 * 3 * 3) + 6 * 5 * 7 * 2


def test_a_run_says_what_a_clip_costs(caplog):
    from paddlevideo_fast.engine.callbacks import Complexity

    class Trainer:
        num_own_clips = 2

    model = make("slow")
    callback = Complexity(MacCounter(model))
    with caplog.at_level(logging.INFO, "paddlevideo_fast"):
        callback.fit_begin(Trainer)
        model(clips(7))  # a validation: the run was stopped in it and goes on there
        Trainer.num_own_clips = 0  # a rank without a clip computes on another one's
        callback.step_begin(Trainer)
        model(clips(1))
        callback.step_end(Trainer)
        Trainer.num_own_clips = 2
        for _ in range(2):
            callback.step_begin(Trainer)
            model(clips(2))
            callback.step_end(Trainer)
            model(clips(7))
    assert [record.getMessage() for record in caplog.records if "GFLOPs" in record.getMessage()] == [
        "0.0069 GFLOPs (multiply-adds) a clip of the first step"
    ]


@pytest.mark.parametrize(("macs", "told"), [(6.9e6, "0.0069"), (33.456e9, "33.46"), (1.894e12, "1894.00")])
def test_numbers_of_gflops_are_written_out(macs, told, caplog):
    from paddlevideo_fast.engine.callbacks import Complexity

    counter = SimpleNamespace(macs=macs, stop=lambda: None)
    with caplog.at_level(logging.INFO, "paddlevideo_fast"):
        Complexity(counter).step_end(SimpleNamespace(num_own_clips=1))
    assert f"{told} GFLOPs (multiply-adds) a clip of the first step" in caplog.text


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("size", [1.0, 115.0, 1e4])
def test_logits_of_mean_probabilities_are_finite_and_exact(activation, size):
    logits = size * np.random.default_rng(0).uniform(-1, 1, (3, 4, 5)).astype("float32")
    logits[0, :, 0], logits[1, :, 0] = -size, size
    exact = logits.astype("float64")
    if activation == "sigmoid":
        yes, no = -np.logaddexp(0, -exact), -np.logaddexp(0, exact)
        expected = np.logaddexp.reduce(yes, axis=1) - np.logaddexp.reduce(no, axis=1)
    else:
        shares = exact - np.logaddexp.reduce(exact, axis=2, keepdims=True)
        expected = np.logaddexp.reduce(shares, axis=1) - np.log(4)
    means = mean_logits(paddle.to_tensor(logits), "probabilities", activation).numpy()
    np.testing.assert_allclose(means, expected, rtol=2e-6, atol=2e-6)
