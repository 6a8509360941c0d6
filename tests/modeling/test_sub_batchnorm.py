"""Batch norm over parts of the batch: Paddle's on each part, and one layer to everything else."""

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.modeling import count_parameters
from paddlevideo_fast.modeling.layers import batch_norm
from paddlevideo_fast.modeling.layers.batch_norm import (
    SubBatchNorm2D,
    SubBatchNorm3D,
    aggregate_splits,
    kept_statistics,
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
)
from tests.modeling.networks import make
from tests.support.fused_norm import Alone, operator_over

MOMENTUM, EPSILON, CHANNELS = 0.75, 2.0**-10, 3  # exact in float32, which Paddle keeps them in
LAYERS = {
    "2d": (SubBatchNorm2D, nn.BatchNorm2D, "NCHW", (5, 4)),
    "3d": (SubBatchNorm3D, nn.BatchNorm3D, "NCDHW", (2, 5, 4)),
    "nhwc": (SubBatchNorm2D, nn.BatchNorm2D, "NHWC", (5, 4)),
}
# batch, splits, and the parts that the batch is cut into
PARTS = [(8, 1, [8]), (8, 4, [2, 2, 2, 2]), (4, 4, [1, 1, 1, 1]), (7, 3, [3, 2, 2]), (2, 3, [1, 1])]


def make_layer(cls, data_format, dtype="float32"):
    layer = cls(CHANNELS, momentum=MOMENTUM, epsilon=EPSILON, data_format=data_format).to(dtype=dtype)
    rng = np.random.default_rng(1)
    for tensor in (layer.weight, layer.bias, layer._mean, layer._variance):
        tensor.set_value(rng.uniform(0.5, 2, CHANNELS).astype(dtype))
    return layer


def draw(batch, data_format, space, dtype="float32", seed=0):
    shape = (batch, CHANNELS, *space) if data_format[1] == "C" else (batch, *space, CHANNELS)
    return np.random.default_rng(seed).normal(0.5, 2, shape).astype(dtype)


def channels_last(array, data_format):
    return np.moveaxis(array, 1, -1) if data_format[1] == "C" else array


def by_hand(layer, parts, gradients):
    """Outputs, input gradients and gradients of weight and bias of each part, channels last, in float64."""
    outputs, inward, of_weight, of_bias = [], [], 0.0, 0.0
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    for x, g in zip(parts, gradients):
        axes = tuple(range(x.ndim - 1))
        count = x.size / CHANNELS
        scale = 1 / np.sqrt(x.var(axes) + EPSILON)
        normal = (x - x.mean(axes)) * scale
        outputs.append(normal * weight + bias)
        slope = g - g.sum(axes) / count - normal * (g * normal).sum(axes) / count
        inward.append(slope * scale * weight)
        of_weight, of_bias = of_weight + (g * normal).sum(axes), of_bias + g.sum(axes)
    return np.concatenate(outputs), np.concatenate(inward), of_weight, of_bias


@pytest.mark.smoke
@pytest.mark.parametrize(("batch", "num_splits", "sizes"), PARTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_forward_backward_and_statistics_by_hand(kind, batch, num_splits, sizes):
    cls, _, data_format, space = LAYERS[kind]
    layer = make_layer(cls, data_format, "float64")
    layer.set_num_splits(num_splits)
    start = layer._mean.numpy(), layer._variance.numpy()
    running = [start] * num_splits
    for step in range(3):
        array = draw(batch, data_format, space, "float64", seed=step)
        gradient = draw(batch, data_format, space, "float64", seed=10 + step)
        x = paddle.to_tensor(array, stop_gradient=False)
        layer.clear_gradients()
        output = layer(x)
        output.backward(paddle.to_tensor(gradient))
        borders = np.cumsum(sizes)[:-1]
        parts = np.split(channels_last(array, data_format), borders)
        gradients = np.split(channels_last(gradient, data_format), borders)
        expected = by_hand(layer, parts, gradients)
        found = (
            channels_last(output.numpy(), data_format),
            channels_last(x.grad.numpy(), data_format),
            layer.weight.grad.numpy(),
            layer.bias.grad.numpy(),
        )
        for mine, theirs in zip(found, expected):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
        for index, part in enumerate(parts):
            axes = tuple(range(part.ndim - 1))
            running[index] = tuple(
                MOMENTUM * old + (1 - MOMENTUM) * new
                for old, new in zip(running[index], (part.mean(axes), part.var(axes)))
            )
    means, variances = (np.stack(values) for values in zip(*running))
    if num_splits > 1:
        np.testing.assert_allclose(layer.split_statistics()[0].numpy(), means, rtol=1e-9)
        np.testing.assert_allclose(layer.split_statistics()[1].numpy(), variances, rtol=1e-9)
    layer.aggregate()
    np.testing.assert_allclose(layer._mean.numpy(), means.mean(0), rtol=1e-9)
    np.testing.assert_allclose(layer._variance.numpy(), variances.mean(0) + means.var(0), rtol=1e-9)


def run(layer, array, gradient, level):
    x = paddle.to_tensor(array, stop_gradient=False)
    with paddle.amp.auto_cast(enable=level != "O0", level=level, dtype="bfloat16"):
        output = layer(x)
    output.astype("float32").backward(paddle.to_tensor(gradient))
    return [output.astype("float32").numpy(), x.grad.numpy()]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_each_part_is_paddles_layer_bit_for_bit(kind, num_splits, level):
    cls, paddles, data_format, space = LAYERS[kind]
    layer = make_layer(cls, data_format)
    layer.set_num_splits(num_splits)
    singles = [make_layer(paddles, data_format) for _ in range(num_splits)]
    array, gradient = draw(8, data_format, space), draw(8, data_format, space, seed=9)
    found = run(layer, array, gradient, level)
    apart = [
        run(*arguments, level)
        for arguments in zip(singles, np.split(array, num_splits), np.split(gradient, num_splits))
    ]
    for mine, theirs in zip(found, zip(*apart)):
        np.testing.assert_array_equal(mine, np.concatenate(theirs))
    assert layer._mean.dtype == layer._variance.dtype == paddle.float32
    if num_splits == 1:
        kept = [(layer._mean, layer._variance)]
    else:
        kept = zip(*layer.split_statistics())
    for (mean, variance), single in zip(kept, singles):
        np.testing.assert_array_equal(mean.numpy(), single._mean.numpy())
        np.testing.assert_array_equal(variance.numpy(), single._variance.numpy())
    layer.aggregate()
    means = np.stack([single._mean.numpy() for single in singles])
    np.testing.assert_allclose(layer._mean.numpy(), means.mean(0), rtol=1e-6)  # not rounded by auto_cast
    layer.eval()
    plain = make_layer(paddles, data_format)
    plain.set_state_dict(layer.state_dict())
    plain.eval()
    np.testing.assert_array_equal(
        layer(paddle.to_tensor(array)).numpy(), plain(paddle.to_tensor(array)).numpy()
    )


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", LAYERS)
def test_on_a_gpu_paddle_gets_four_axes(kind, mode, monkeypatch):
    """Paddle's gradient by given statistics takes the sizes of three axes at most there."""
    cls, _, data_format, space = LAYERS[kind]
    whole, axes, results = batch_norm.F.batch_norm, [], []

    def noted(x, *arguments, **options):
        axes.append(x.ndim)
        return whole(x, *arguments, **options)

    monkeypatch.setattr(batch_norm.F, "batch_norm", noted)
    for capability in (0, 80):
        monkeypatch.setattr(batch_norm, "compute_capability", lambda capability=capability: capability)
        layer = make_layer(cls, data_format)
        getattr(layer, mode)()
        x = paddle.to_tensor(draw(4, data_format, space), stop_gradient=False)
        out = layer(x)
        out.square().sum().backward()
        results.append([each.numpy() for each in (out, x.grad, layer.weight.grad, layer.bias.grad)])
    assert axes == [2 + len(space), 4]
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias"), ("x",)], ids=str)
@pytest.mark.parametrize("kind", [*LAYERS, "ndhwc"])
def test_paddles_operator_gives_what_ours_gives(kind, frozen, monkeypatch):
    cls, _, data_format, space = {**LAYERS, "ndhwc": (SubBatchNorm3D, None, "NDHWC", (2, 5, 4))}[kind]
    calls, operator, results = [], operator_over(Alone().all_sum), []

    def noted(x, *arguments):
        calls.append(x)
        return operator(x, *arguments)

    monkeypatch.setattr(paddle._C_ops, "sync_batch_norm_", noted)
    for is_fused in (False, True):
        layer = make_layer(cls, data_format, "float64")
        layer.set_group(Alone(), is_fused)
        x = paddle.to_tensor(draw(4, data_format, space, "float64"), stop_gradient="x" in frozen)
        layer.weight.stop_gradient, layer.bias.stop_gradient = ("weight" in frozen, "bias" in frozen)
        factors = paddle.to_tensor(draw(4, data_format, space, "float64", seed=1))
        out = layer(x)
        if len(frozen) < 2 or not x.stop_gradient:
            (out * factors).sum().backward()
        gradients = [each.grad for each in (x, layer.weight, layer.bias)]
        results.append([out, layer._mean, layer._variance, *gradients])
        assert layer._mean.stop_gradient
        assert layer._variance.stop_gradient
        layer.eval()
        layer(x)
    assert len(calls) == 1
    for own, fused in zip(*results):
        assert (own is None) == (fused is None)
        if own is not None:
            np.testing.assert_allclose(fused.numpy(), own.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("capability", "is_everyone", "mean", "is_fused"),
    [
        pytest.param(80, True, 0.25, True, id="shares"),
        pytest.param(80, True, 0.0, False, id="alone"),
        pytest.param(80, True, 1.0, False, id="alone as rank 0"),
        pytest.param(80, False, 0.25, False, id="some processes"),
        pytest.param(0, True, 0.25, False, id="a CPU"),
    ],
)
def test_paddles_operator_is_used_where_a_trial_shows_that_it_shares(
    capability, is_everyone, mean, is_fused, monkeypatch
):
    def operator(x, running_mean, *others):
        assert capability
        assert is_everyone
        paddle.assign(paddle.full([1], mean), running_mean)
        return (x,)

    group = Alone(is_everyone)
    monkeypatch.setattr(batch_norm, "compute_capability", lambda: capability)
    monkeypatch.setattr(paddle._C_ops, "sync_batch_norm_", operator)
    layer = SubBatchNorm2D(CHANNELS)
    set_sync_group(nn.Sequential(layer), group)
    assert layer._is_fused == is_fused
    set_sync_group(nn.Sequential(layer), None)
    assert not layer._is_fused


@pytest.mark.parametrize("num_splits", [0, -2])
def test_fewer_than_one_split_is_an_error(num_splits):
    layer = SubBatchNorm2D(CHANNELS)
    with pytest.raises(ValueError, match="expected 1 or more"):
        layer.set_num_splits(num_splits)


def test_statistics_go_along_when_the_number_of_splits_changes():
    layer = make_layer(SubBatchNorm3D, "NCDHW")
    for num_splits in (4, 8, 2, 1, 3):
        before = layer._mean.numpy(), layer._variance.numpy()
        layer.set_num_splits(num_splits)
        assert layer.num_splits == num_splits
        np.testing.assert_array_equal(layer._mean.numpy(), before[0])
        np.testing.assert_array_equal(layer._variance.numpy(), before[1])
        if num_splits == 1:  # processes may share the statistics again
            layer.set_group(Alone())
            layer.set_group(None)
        else:
            for kept, old in zip(layer.split_statistics(), before):
                np.testing.assert_array_equal(kept.numpy(), np.stack([old] * num_splits))
        layer(paddle.to_tensor(draw(8, "NCDHW", (2, 3, 3), seed=num_splits)))
        layer.aggregate()
        assert (layer._mean.numpy() != before[0]).all()


STATISTICS = ("_mean", "_variance")
READINGS = {
    "weights": lambda net: net.state_dict(),
    "copied weights": lambda net: copy.deepcopy(net).state_dict(),
    "evaluation": lambda net: (net.eval(), net(paddle.zeros([1, CHANNELS, 2, 3, 3])), net.state_dict())[2],
    "fewer splits": lambda net: (set_num_splits(net, 2), net.state_dict())[1],
    "directly": lambda net: (aggregate_splits(net), {f"0.{k}": getattr(net[0], k) for k in STATISTICS})[1],
}


@pytest.mark.parametrize("reading", READINGS)
def test_whoever_reads_the_statistics_gets_those_of_all_steps(reading):
    """They are computed when they are read, to the same bits as after every step."""
    often, seldom = (nn.Sequential(make_layer(SubBatchNorm3D, "NCDHW")) for _ in range(2))
    for net in (often, seldom):
        set_num_splits(net, 4)
        for step in range(3):
            net(paddle.to_tensor(draw(8, "NCDHW", (2, 3, 3), seed=step)))
            if net is often:
                aggregate_splits(net)
    found = READINGS[reading](seldom)
    for name in STATISTICS:
        expected = getattr(often[0], name).numpy()
        np.testing.assert_array_equal(found[f"0.{name}"].numpy(), expected)


def test_a_training_step_computes_no_whole_statistics():
    layer = make_layer(SubBatchNorm3D, "NCDHW")
    before = layer._mean.numpy()
    layer.set_num_splits(4)
    layer(paddle.to_tensor(draw(8, "NCDHW", (2, 3, 3))))
    np.testing.assert_array_equal(layer._mean.numpy(), before)


def test_a_pass_that_leaves_no_trace_leaves_precise_statistics_alone():
    net = nn.Sequential(make_layer(SubBatchNorm3D, "NCDHW"))
    set_num_splits(net, 3)
    precise = paddle.to_tensor(np.float32([0.1, 0.2, 0.7]))
    paddle.assign(precise, net[0]._mean)
    with kept_statistics(net):
        net(paddle.to_tensor(draw(6, "NCDHW", (2, 3, 3))))
    np.testing.assert_array_equal(net.state_dict()["0._mean"].numpy(), precise.numpy())


@pytest.fixture(params=["slowfast", "x3d", "tsm", "tsm_nhwc"])
def network(request, make_model):
    """A network's builder and the shape of its clips without the batch."""
    if not request.param.startswith("tsm"):
        return lambda: make(request.param), (3, 8, 32, 32)
    layout = "NHWC" if request.param == "tsm_nhwc" else "NCHW"
    return lambda: make_model(data_format=layout), (8, 3, 32, 32)


def train_steps(model, optimizer, shape, batches=(8, 8), seed=0):
    paddle.seed(seed)  # of dropout
    rng = np.random.default_rng(seed)
    model.train()
    for batch in batches:
        clips = paddle.to_tensor(rng.normal(size=(batch, *shape)).astype("float32"))
        model.loss(model(clips), paddle.to_tensor(rng.integers(0, 3, batch))).backward()
        optimizer.step()
        optimizer.clear_grad()


def test_a_network_is_resized_in_place(network):
    build, shape = network
    model = build()
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    names, count = list(model.state_dict()), count_parameters(model)
    identities = {name: id(parameter) for name, parameter in model.named_parameters()}
    norms = [layer for layer in model.sublayers() if isinstance(layer, (nn.BatchNorm2D, nn.BatchNorm3D))]
    train_steps(model, optimizer, shape)
    velocities = {key: value.numpy() for key, value in optimizer.state_dict().items() if "velocity" in key}
    set_num_splits(model, 4)
    assert [norm.num_splits for norm in norms] == [4] * len(norms)
    assert len(split_statistics(model)) == 2 * len(norms)
    assert list(model.state_dict()) == names
    assert count_parameters(model) == count
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == identities
    for key, value in velocities.items():
        np.testing.assert_array_equal(optimizer.state_dict()[key].numpy(), value)
    train_steps(model, optimizer, shape, batches=(8, 3))  # the last one is not divisible
    set_num_splits(model, 1)
    assert split_statistics(model) == {}
    train_steps(model, optimizer, shape)


def test_a_weight_file_written_with_splits_is_a_plain_models(network, tmp_path):
    build, shape = network
    model = build()
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    set_num_splits(model, 4)
    train_steps(model, optimizer, shape)
    paddle.save(model.state_dict(), str(tmp_path / "m.pdparams"))
    plain = build()
    plain.set_state_dict(paddle.load(str(tmp_path / "m.pdparams")))
    clips = paddle.to_tensor(np.random.default_rng(3).normal(size=(2, *shape)).astype("float32"))
    model.eval()
    plain.eval()
    logits = model(clips).numpy()
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(logits, plain(clips).numpy())


def test_training_goes_on_exactly_from_the_statistics_of_the_splits(network):
    build, shape = network
    model, other = build(), build()
    set_num_splits(model, 4)
    train_steps(model, paddle.optimizer.SGD(0.01, parameters=model.parameters()), shape)
    other.set_state_dict(model.state_dict())
    set_num_splits(other, 4)
    set_split_statistics(other, {name: value.numpy() for name, value in split_statistics(model).items()})
    for each in (model, other):
        train_steps(each, paddle.optimizer.SGD(0.01, parameters=each.parameters()), shape, seed=1)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), other.state_dict()[name].numpy(), err_msg=name)


def test_partial_bn_keeps_its_statistics_with_splits(make_model):
    model = make_model(partial_bn=True)
    set_num_splits(model, 2)
    norms = [layer for layer in model.sublayers() if isinstance(layer, nn.BatchNorm2D)]
    before = [norm._mean.numpy() for norm in norms]
    parameters = [each for each in model.parameters() if not each.stop_gradient]
    train_steps(model, paddle.optimizer.SGD(0.01, parameters=parameters), (8, 3, 32, 32))
    aggregate_splits(model)
    changed = [not np.array_equal(norm._mean.numpy(), old) for norm, old in zip(norms, before)]
    assert changed == [True] + [False] * (len(norms) - 1)


@pytest.mark.parametrize("network", ["x3d", "tsm_nhwc"], indirect=True)
def test_a_network_with_splits_is_exported_like_a_plain_one(network, tmp_path):
    build, shape = network
    model = build()
    set_num_splits(model, 4)
    train_steps(model, paddle.optimizer.SGD(0.01, parameters=model.parameters()), shape)
    model.eval()
    paddle.jit.save(model, str(tmp_path / "m"), input_spec=[paddle.static.InputSpec([None, *shape])])
    clips = paddle.to_tensor(np.random.default_rng(3).normal(size=(2, *shape)).astype("float32"))
    np.testing.assert_allclose(
        paddle.jit.load(str(tmp_path / "m"))(clips).numpy(), model(clips).numpy(), rtol=1e-4, atol=1e-5
    )
