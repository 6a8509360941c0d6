"""Mixed precision against arithmetic by hand, and against float32."""

import json

import numpy as np
import paddle
import pytest
from paddle import nn
from small_runs import StopAt, assert_same, weights

from paddlevideo_fast.engine import (
    CheckpointStore,
    Distribution,
    Evaluator,
    MixedPrecision,
    Precision,
    RoundedPrecision,
    TrainingInterrupted,
    load_checkpoint,
    population_statistics,
)
from paddlevideo_fast.engine.callbacks import (
    Callback,
    Checkpointing,
    ExponentialMovingAverage,
    Recorder,
    restore,
)
from paddlevideo_fast.engine.precision import nearest
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink
from paddlevideo_fast.errors import NonFiniteGradientError, NonFiniteLossError
from paddlevideo_fast.metrics import CenterCropMetric
from paddlevideo_fast.modeling.layers.attention import SelfAttention
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D, SubBatchNorm3D

LEVELS = ["O1", "O2"]


def float16_with_scale(scale, every=2000):
    """Rounded float16 whose loss scale is `scale` and doubles after `every` good steps."""
    precision = RoundedPrecision("O1", "float16")
    precision.set_state_dict({**precision.state_dict(), "scale": [scale], "incr_every_n_steps": every})
    return precision


class Losses(Callback):
    def __init__(self):
        self.values = []

    def step_end(self, trainer):
        self.values.append(trainer.drain()["loss"])


# Numbers


@pytest.mark.smoke
def test_bfloat16_is_nearest_with_ties_to_even():
    step = 2.0**-7  # of bfloat16 from 1 to 2
    values = [1 + step / 2, 1 + 1.5 * step, 1 + 0.75 * step, -1 - 0.25 * step, 3.4e38, -3.4e38, 2.0**-133, 0]
    wanted = [1, 1 + 2 * step, 1 + step, -1, np.inf, -np.inf, 2.0**-133, 0]
    np.testing.assert_array_equal(nearest(np.array(values, "float32"), "bfloat16"), np.float32(wanted))
    special = np.array([0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(nearest(special, "bfloat16"), np.float32([np.inf, -np.inf, np.nan, np.nan]))


def test_bfloat16_against_all_numbers_around():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(5000) * 10.0 ** rng.uniform(-30, 30, 5000)).astype("float32")
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = ((values.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    found = nearest(values, "bfloat16").astype("float64")
    errors = [np.abs(bound.astype("float64") - values) for bound in (below, above)]
    np.testing.assert_array_equal(np.abs(found - values), np.minimum(*errors))


def test_gradients_are_rounded_and_overflow():
    x = paddle.to_tensor([1.0, 1.0, 1.0], stop_gradient=False)
    (RoundedPrecision("O1", "float16").cast(x) * paddle.to_tensor([65504.0, 65520.0, 1 + 2.0**-12])).backward(
        paddle.ones([3])
    )
    assert x.grad.tolist() == [65504.0, np.inf, 1.0]


# Layers


def layer_and_input(kind):
    paddle.seed(3)
    if kind == "linear":
        return nn.Linear(6, 5), paddle.randn([4, 6])
    if kind == "conv2d":
        return nn.Conv2D(3, 5, 3), paddle.randn([2, 3, 6, 6])
    return nn.Conv3D(3, 5, 3), paddle.randn([2, 3, 4, 6, 6])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["linear", "conv2d", "conv3d"])
def test_a_matrix_layer_computes_with_rounded_numbers(kind, level):
    layer, x = layer_and_input(kind)
    found = RoundedPrecision(level, "bfloat16").forward(layer, x)
    plain = layer(x)
    rounded = {name: nearest(value.numpy(), "bfloat16") for name, value in layer.state_dict().items()}
    twin, _ = layer_and_input(kind)
    twin.set_state_dict(rounded)
    by_hand = nearest(twin(paddle.to_tensor(nearest(x.numpy(), "bfloat16"))).numpy(), "bfloat16")
    np.testing.assert_array_equal(found.numpy(), by_hand)
    assert np.abs(found.numpy() - plain.numpy()).max() > 1e-4
    found.sum().backward()
    assert layer.weight.grad.dtype == paddle.float32
    np.testing.assert_array_equal(layer.weight.grad.numpy(), nearest(layer.weight.grad.numpy(), "bfloat16"))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
def test_batch_norm_computes_in_float32(level, splits):
    def norm():
        layer = SubBatchNorm2D(3)
        layer.weight.set_value(np.float32([1 + 2.0**-12, 1, 1]))  # what bfloat16 would lose
        layer.set_num_splits(splits)
        return layer

    x = paddle.randn([4, 3, 5, 5]) * 3 + 1
    layer, plain = norm(), norm()
    found, wanted = RoundedPrecision(level, "bfloat16").forward(layer, x), plain(x).numpy()
    np.testing.assert_array_equal(
        found.numpy(), wanted if level == "O1" else nearest(wanted, "bfloat16")
    )  # its output is a number that other layers read
    for name in ("_mean", "_variance", "weight"):
        np.testing.assert_array_equal(getattr(layer, name).numpy(), getattr(plain, name).numpy())


class Affine(nn.Layer):
    """A user's own layer."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = self.create_parameter([1]), self.create_parameter([1])


class Dtypes(nn.Layer):
    """Notes the type of its layer's parameters when it runs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        layer.forward = self.note
        self.seen = []

    def note(self, x):
        self.seen += [self.layer.weight.dtype, self.layer.bias.dtype]
        return x

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(("level", "others"), [("O1", paddle.float32), ("O2", paddle.bfloat16)])
def test_which_layers_see_16_bits_through_paddle(level, others, monkeypatch):
    asked = []

    class AutoCast:
        def __init__(self, **arguments):
            asked.append(arguments)

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return False

    monkeypatch.setattr(paddle.amp, "auto_cast", AutoCast)
    low, full = paddle.bfloat16, paddle.float32
    wanted = [
        (nn.Conv2D(3, 3, 1), low),
        (nn.Conv3D(3, 3, 1), low),
        (nn.Linear(3, 3), low),
        (SubBatchNorm2D(3), full),
        (SubBatchNorm3D(3), full),
        (nn.SyncBatchNorm(3), full),
        (nn.LayerNorm(3), full),
        (Affine(), others),
    ]
    model = nn.Sequential(*(Dtypes(layer) for layer, _ in wanted))
    MixedPrecision(level, "bfloat16").forward(model, paddle.ones([2, 3]))
    assert [branch.seen for branch in model.children()] == [[dtype] * 2 for _, dtype in wanted]
    lists = {"custom_white_list": {"conv3d"}, "custom_black_list": {"layer_norm", "softmax"}}
    assert asked == [{"level": level, "dtype": "bfloat16", **lists}]
    assert all(parameter.dtype == full for parameter in model.parameters())


@pytest.mark.parametrize("level", LEVELS)
def test_norm_and_softmax_of_attention_are_not_rounded(level):
    """Linear layers alone round their inputs, parameters and outputs; the norm's output goes into one."""
    paddle.seed(0)
    norm, attention = nn.LayerNorm(8), SelfAttention(8, 2)
    norm.weight.set_value(paddle.linspace(0.5, 2.0, 8))  # not numbers of bfloat16
    x = np.random.default_rng(1).standard_normal((3, 5, 8)).astype("float32")
    found = RoundedPrecision(level, "bfloat16").forward(nn.Sequential(norm, attention), paddle.to_tensor(x))

    def low(values):
        return nearest(np.ascontiguousarray(values, "float32"), "bfloat16")

    def linear(layer, values):
        return low(low(values) @ low(layer.weight.numpy()) + low(layer.bias.numpy()))

    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * norm.weight.numpy()
    query, key, value = linear(attention.qkv, normed).reshape(3, 5, 3, 2, 4).transpose(2, 0, 3, 1, 4)
    scores = np.exp(query @ key.swapaxes(-1, -2) / 2)
    attended = (scores / scores.sum(-1, keepdims=True) @ value).swapaxes(1, 2).reshape(3, 5, 8)
    np.testing.assert_allclose(found.numpy(), linear(attention.proj, attended), rtol=1e-2, atol=1e-6)
    exact = np.isclose(found.numpy(), linear(attention.proj, attended), rtol=1e-6, atol=1e-7)
    assert exact.mean() > 0.95  # else a last bit of float32 decided how a number was rounded


@pytest.mark.parametrize("level", LEVELS)
def test_the_model_is_as_it_was_also_after_an_error(level):
    model = nn.Sequential(nn.Conv2D(3, 4, 3), SubBatchNorm2D(4), nn.ReLU())
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    with pytest.raises(ValueError):
        RoundedPrecision(level, "bfloat16").forward(model, paddle.ones([2, 3]))  # no picture
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    for layer in model.sublayers():
        assert not layer._forward_pre_hooks
        assert not layer._forward_post_hooks
        assert not {"weight", "bias"} & set(vars(layer))


# Training


@pytest.mark.parametrize("level", LEVELS)
def test_a_bfloat16_run_stays_near_float32(make_trainer, level):
    curves = {}
    for precision in (Precision(), RoundedPrecision(level, "bfloat16")):
        losses = Losses()
        trainer = make_trainer([losses], epochs=8, dropout=0.0, precision=precision)
        trainer.fit()
        curves[precision.name] = np.array(losses.values)
        assert all(value.dtype == np.float32 for value in weights(trainer).values())
    plain, low = curves["float32"], curves[f"bfloat16 {level}"]
    assert plain[-6:].mean() < 0.5 * plain[:6].mean()  # there is something to learn
    assert np.abs(low - plain).max() < 0.03
    assert np.abs(low - plain).max() > 1e-5  # it is another arithmetic


@pytest.mark.parametrize("scale", [None, 2.0**19])
def test_a_stopped_and_resumed_run_takes_the_same_steps(make_trainer, tmp_path, scale):
    """bfloat16, and float16 that is still looking for its scale where the run stops."""

    def begin(folder, *more):
        precision = (
            RoundedPrecision("O2", "bfloat16") if scale is None else float16_with_scale(scale, every=2)
        )
        trainer = make_trainer(epochs=3, accumulate_steps=2, precision=precision)
        trainer.optimizer._grad_clip = nn.ClipGradByGlobalNorm(0.5)
        store = CheckpointStore(tmp_path / folder, "m")
        store.prepare()
        ema = ExponentialMovingAverage(trainer.model, 0.9)
        trainer.callbacks = [ema, *more, Checkpointing(store)]
        return trainer, store

    whole, whole_store = begin("whole")
    whole.fit()
    stopped, store = begin("parts", StopAt(5))
    with pytest.raises(TrainingInterrupted):
        stopped.fit()
    resumed, store = begin("parts")
    restore(resumed, load_checkpoint(store.latest()))
    resumed.fit()

    assert_same(weights(whole), weights(resumed))
    final, other = load_checkpoint(whole_store.latest()), load_checkpoint(store.latest())
    assert_same(final.optimizer, other.optimizer)
    assert_same(final.tensors, other.tensors)
    assert final.state["trainer"] == other.state["trainer"]
    assert final.state["precision"] == other.state["precision"]
    if scale is not None:
        assert final.state["precision"]["scale"] != [scale]


def test_an_overflow_leaves_the_step_out(make_trainer, tmp_path, caplog):

    class Watch(Callback):
        def __init__(self):
            self.scales, self.moved = [], []

        def step_begin(self, trainer):
            self.before = weights(trainer)["fc.weight"]
            self.scales.append(trainer.precision.state_dict()["scale"][0])

        def step_end(self, trainer):
            self.moved.append(bool((weights(trainer)["fc.weight"] != self.before).any()))

    watch = Watch()
    recorder = Recorder([ConsoleSink(), JsonLinesSink(tmp_path / "metrics.jsonl")], interval=1)
    trainer = make_trainer([watch, recorder], dropout=0.0, precision=float16_with_scale(2.0**21))
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        trainer.fit()
    skipped = [not moved for moved in watch.moved]
    assert skipped[:2] == [True, True]
    assert 2 <= sum(skipped) <= 6
    assert watch.scales == [2.0 ** (21 - sum(skipped[:step])) for step in range(12)]

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counts = [line["num_skipped"] for line in lines if line["kind"] == "train"]
    epochs = [skipped[:6], skipped[6:]]
    assert counts == [sum(epoch[: step + 1]) for epoch in epochs for step in range(6)]
    of_epochs = [line["num_skipped"] for line in lines if line["kind"] == "train_epoch"]
    assert of_epochs == [sum(epoch) for epoch in epochs]
    assert all(np.isfinite(line["loss"]) for line in lines)
    messages = [record.getMessage() for record in caplog.records]
    assert (
        "gradients overflowed float16 in 1 steps, which are left out; the loss scale is now 1048576"
        in messages
    )
    assert sum("loss scale" in message for message in messages) == sum(skipped)
    assert any(message.endswith(f" sec, {sum(epochs[0])} steps left out") for message in messages)


def test_the_scale_grows_again(make_trainer):
    trainer = make_trainer(precision=float16_with_scale(8.0, every=4), dropout=0.0)
    trainer.fit()
    assert trainer.precision.state_dict()["scale"] == [64.0]  # 12 steps
    assert trainer.state.num_skipped == 0


def test_clipping_sees_unscaled_gradients(make_trainer):
    after = {}
    for precision in (Precision(), float16_with_scale(2.0**12)):
        trainer = make_trainer(precision=precision, dropout=0.0, epochs=1, accumulate_steps=3)
        trainer.optimizer._grad_clip = nn.ClipGradByGlobalNorm(0.05)
        trainer.fit()
        after[precision.name] = weights(trainer)
    moved = make_trainer(dropout=0.0).model.state_dict()["fc.weight"].numpy()
    assert np.abs(after["float32"]["fc.weight"] - moved).max() > 1e-3
    for name, value in after["float32"].items():
        np.testing.assert_allclose(after["float16 O1"][name], value, atol=3e-5)


def test_gradients_that_no_scale_mends_end_the_run(make_trainer):
    trainer = make_trainer(precision=float16_with_scale(16.0), dropout=0.0)
    trainer.model.loss = lambda logits, labels: (logits * 1e30).sum() * 0 + (logits * 1e9).mean()
    with pytest.raises(NonFiniteGradientError, match=r"every loss scale down to 1\. Lower the learning rate"):
        trainer.fit()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loss_that_is_not_finite_ends_the_run(make_trainer, dtype):
    trainer = make_trainer([Recorder([], interval=1)], precision=RoundedPrecision("O1", dtype))
    before = weights(trainer)
    loss = trainer.model.loss
    trainer.model.loss = lambda logits, labels: (
        loss(logits, labels) * (np.nan if trainer.state.step == 2 else 1)
    )
    with pytest.raises(NonFiniteLossError, match="the loss is nan at step 3"):
        trainer.fit()
    assert trainer.state.num_skipped == (dtype == "float16")
    assert np.isfinite(weights(trainer)["fc.weight"]).all() == (dtype == "float16")
    assert np.isfinite(before["fc.weight"]).all()


def test_an_overflow_on_another_rank_leaves_the_step_out(make_trainer):
    class Elsewhere(Distribution):
        num_calls = 0

        def any_rank(self, flag):  # as where another rank's gradients overflow in the third step
            self.num_calls += 1
            return paddle.full([1], self.num_calls == 3, "bool")

    seen = []

    class Watch(Callback):
        def step_end(self, trainer):
            values = {**trainer.model.state_dict(), **trainer.optimizer.state_dict()}
            seen.append({name: np.array(value) for name, value in values.items() if name != "LR_Scheduler"})

    trainer = make_trainer(
        [Watch()],
        dropout=0.0,
        epochs=1,
        precision=float16_with_scale(8.0),
        distribution=Elsewhere(),
        optimizer="Adam",
    )
    trainer.fit()
    assert trainer.state.num_skipped == 1
    assert trainer.precision.state_dict()["scale"] == [4.0]
    assert_same(seen[1], seen[2])  # the optimizer's moments and powers of its betas, too
    assert all((seen[2][name] != seen[3][name]).any() for name in seen[2])


def test_another_precision_goes_on_with_a_warning(make_trainer, tmp_path, caplog):
    store = CheckpointStore(tmp_path, "m")
    store.prepare()
    first = make_trainer([StopAt(2), Checkpointing(store)], precision=float16_with_scale(2.0**10))
    with pytest.raises(TrainingInterrupted):
        first.fit()
    checkpoint = load_checkpoint(store.latest())
    for precision in (Precision(), RoundedPrecision("O2", "bfloat16")):
        caplog.clear()
        trainer = make_trainer([Checkpointing(store)], precision=precision)
        restore(trainer, checkpoint)
        assert_same(weights(trainer), weights(first))
        assert f"had precision float16 O1, this one has {precision.name}" in caplog.text
        trainer.fit()
    again = make_trainer([Checkpointing(store)], precision=RoundedPrecision("O1", "float16"))
    restore(again, load_checkpoint(store.latest()))  # of the bfloat16 run, which has no scale
    assert again.precision.state_dict()["scale"] == [2.0**16]


# Evaluation


def test_evaluation_and_statistics_are_of_the_rounded_network(make_trainer):
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2D(3, 4, 3), SubBatchNorm2D(4), nn.Linear(16, 3)

        def forward(self, clips):
            frames = clips.flatten(0, 1).transpose([0, 3, 1, 2])
            features = self.norm(self.conv(frames)).flatten(1)
            return self.fc(features).reshape([-1, 2, 3]).mean(1)

        def loss(self, logits, labels):
            return nn.functional.cross_entropy(logits, labels)

    trainer = make_trainer()
    loader, model = trainer.make_loader(None), Net()
    precision = RoundedPrecision("O1", "bfloat16")
    plain, low = (
        Evaluator(loader, trainer.preprocess, each).run(model, CenterCropMetric())
        for each in (Precision(), precision)
    )
    assert plain["loss"] != low["loss"]
    assert low["loss"] == pytest.approx(plain["loss"], rel=0.02)

    found = population_statistics(Evaluator(loader, trainer.preprocess, precision), model)["norm"]
    reached = []
    hook = model.norm.register_forward_pre_hook(lambda _, inputs: reached.append(inputs[0].numpy()))
    Evaluator(loader, trainer.preprocess, precision).run(model, CenterCropMetric())
    hook.remove()
    values = np.concatenate(reached).astype("float64")
    np.testing.assert_array_equal(values, nearest(values.astype("float32"), "bfloat16"))
    np.testing.assert_allclose(found[0].numpy(), values.mean((0, 2, 3)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1].numpy(), values.var((0, 2, 3)), rtol=1e-5)
