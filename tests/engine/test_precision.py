"""Mixed precision against arithmetic by hand, and against float32."""

import json

import numpy as np
import paddle
import pytest
from paddle import nn

import paddlevideo_fast.assembly  # noqa: F401  it comes before its extensions
from paddlevideo_fast.engine import (
    CheckpointStore,
    Evaluator,
    MixedPrecision,
    Precision,
    RoundedPrecision,
    TrainingInterrupted,
    load_checkpoint,
)
from paddlevideo_fast.engine.callbacks import (
    Callback,
    Checkpointing,
    ExponentialMovingAverage,
    Recorder,
    restore,
)
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.engine.precision import nearest
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink
from paddlevideo_fast.errors import NonFiniteGradientError, NonFiniteLossError
from paddlevideo_fast.metrics import CenterCropMetric
from paddlevideo_fast.modeling.layers.attention import SelfAttention
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D
from tests.support.gpu_amp import gpu_amp
from tests.support.small_runs import Classifier, StopAt, assert_resumes, assert_same, weights

LEVELS = ["O1", "O2"]


@pytest.fixture
def as_on_a_gpu():
    with gpu_amp():
        yield


@pytest.fixture
def float16_with_scale(as_on_a_gpu):
    """Float16 whose loss scale is `scale` and doubles after `every` good steps; it computes in float32."""

    def make(scale, every=2000):
        precision = MixedPrecision("O1", "float16")
        state = {"scale": [scale], "incr_count": 0, "incr_every_n_steps": every}  # as in old checkpoints
        precision.set_state_dict(state)
        assert precision.state_dict() == state
        return precision

    return make


class Overflow(Callback):
    """Makes the loss infinite or NaN in some steps, as a network does that overflows float16."""

    def __init__(self, steps, value=np.inf):
        self.steps, self.value = steps, value

    def fit_begin(self, trainer):
        loss = trainer.model.loss

        def changed(logits, labels):
            return loss(logits, labels) * (self.value if trainer.state.step in self.steps else 1.0)

        trainer.model.loss = changed


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
    np.testing.assert_array_equal(nearest(np.array(values, "float32")), np.float32(wanted))
    special = np.array([0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(nearest(special), np.float32([np.inf, -np.inf, np.nan, np.nan]))


def test_bfloat16_against_all_numbers_around():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(5000) * 10.0 ** rng.uniform(-30, 30, 5000)).astype("float32")
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = ((values.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    found = nearest(values).astype("float64")
    errors = [np.abs(bound.astype("float64") - values) for bound in (below, above)]
    np.testing.assert_array_equal(np.abs(found - values), np.minimum(*errors))


def test_gradients_are_rounded():
    layer = nn.Linear(1, 3, bias_attr=False)
    with RoundedPrecision("O1").operators(layer):
        layer(paddle.ones([1, 1])).backward(paddle.to_tensor([[1 + 2.0**-12, 3.4e38, -1 - 2.0**-7]]))
    assert layer.weight.grad[0].tolist() == [1, np.inf, -1 - 2.0**-7]


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
    found = RoundedPrecision(level).forward(layer, x)
    plain = layer(x)
    rounded = {name: nearest(value.numpy()) for name, value in layer.state_dict().items()}
    twin, _ = layer_and_input(kind)
    twin.set_state_dict(rounded)
    by_hand = nearest(twin(paddle.to_tensor(nearest(x.numpy()))).numpy())
    np.testing.assert_array_equal(found.numpy(), by_hand)
    assert np.abs(found.numpy() - plain.numpy()).max() > 1e-4
    found.sum().backward()
    assert layer.weight.grad.dtype == paddle.float32
    np.testing.assert_array_equal(layer.weight.grad.numpy(), nearest(layer.weight.grad.numpy()))


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
    found, wanted = RoundedPrecision(level).forward(layer, x), plain(x).numpy()
    np.testing.assert_array_equal(
        found.numpy(), wanted if level == "O1" else nearest(wanted)
    )  # its output is a number that other layers read
    for name in ("_mean", "_variance", "weight"):
        np.testing.assert_array_equal(getattr(layer, name).numpy(), getattr(plain, name).numpy())


class Block(nn.Layer):
    """What a transformer is made of."""

    def __init__(self):
        super().__init__()
        self.position = self.create_parameter([8])
        self.fc, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.position
        return self.last(nn.functional.softmax(self.norm(nn.functional.gelu(self.fc(x)) + x)))


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="amp is refused in graphs of Paddle 2")
@pytest.mark.parametrize("level", LEVELS)
def test_what_a_static_graph_computes_in_16_bits(level, as_on_a_gpu, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.engine.precision.gpu_number", lambda device: 0)
    model = paddle.jit.to_static(Block(), full_graph=True)
    with MixedPrecision(level, "bfloat16").operators(model):
        program, _ = model.forward.get_concrete_program(paddle.ones([2, 8]))
    seen = {}
    for op in program.main_program.global_block().ops:
        if op.name() not in ("pd_op.cast", "builtin.parameter", "pd_op.data"):
            kinds = {str(value.dtype).rpartition(".")[2].lower() for value in op.operands_source()[:2]}
            seen.setdefault(op.name().removeprefix("pd_op."), []).append(kinds)
    half, full = {"bfloat16"}, {"float32"}
    assert seen["matmul"] == [half] * 2
    assert (seen["layer_norm"], seen["softmax"]) == ([full], [full])
    assert seen["gelu"] == [half]  # reads the output of a linear layer with a bias
    # the position, a bias, the sum of two branches, a bias
    assert seen["add"] == ([half] * 4 if level == "O2" else [full] * 4)
    assert {str(each.dtype).rpartition(".")[2].lower() for each in model.parameters()} == full


@pytest.mark.parametrize("level", LEVELS)
def test_a_static_graph_takes_the_same_steps(level, make_trainer):
    """On a CPU both compute in float32: that amp and graph go together, and hooks leave nothing behind."""
    curves = []
    for is_static in (False, True):
        losses = Losses()
        trainer = make_trainer([losses], epochs=1, dropout=0.0, precision=MixedPrecision(level, "bfloat16"))
        if is_static:
            trainer.model = trainer._step_model = paddle.jit.to_static(trainer.model, full_graph=True)
        trainer.fit()
        curves.append(losses.values)
    np.testing.assert_allclose(curves[0], curves[1], atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_norm_and_softmax_of_attention_are_not_rounded(level):
    """Linear layers alone round their inputs, parameters and outputs; the norm's output goes into one."""
    paddle.seed(0)
    norm, attention = nn.LayerNorm(8), SelfAttention(8, 2)
    norm.weight.set_value(paddle.linspace(0.5, 2.0, 8))  # not numbers of bfloat16
    x = np.random.default_rng(1).standard_normal((3, 5, 8)).astype("float32")
    found = RoundedPrecision(level).forward(nn.Sequential(norm, attention), paddle.to_tensor(x))

    def low(values):
        return nearest(np.ascontiguousarray(values, "float32"))

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
        RoundedPrecision(level).forward(model, paddle.ones([2, 3]))  # no picture
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    for layer in model.sublayers():
        assert not layer._forward_pre_hooks
        assert not layer._forward_post_hooks
        assert not {"weight", "bias"} & set(vars(layer))


# Training


@pytest.mark.parametrize("level", LEVELS)
def test_a_bfloat16_run_stays_near_float32(make_trainer, level):
    curves = {}
    for precision in (Precision(), RoundedPrecision(level)):
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
def test_a_stopped_and_resumed_run_takes_the_same_steps(make_trainer, tmp_path, scale, float16_with_scale):
    """bfloat16, and float16 whose scale has changed where the run stops."""

    def begin(folder, *more):
        precision = RoundedPrecision("O2") if scale is None else float16_with_scale(scale, every=4)
        trainer = make_trainer(epochs=3, accumulate_steps=2, precision=precision)
        trainer.optimizer._grad_clip = nn.ClipGradByGlobalNorm(0.5)
        store = CheckpointStore(tmp_path / folder, "m")
        store.prepare()
        ema = ExponentialMovingAverage(trainer.model, 0.9)
        trainer.callbacks = [ema, *more, Checkpointing(store)]
        if scale is not None:
            trainer.callbacks.insert(0, Overflow([1, 3]))
        return trainer, store

    final = assert_resumes(begin, 5)
    if scale is not None:
        assert final.state["precision"]["scale"] != [scale]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_overflow_leaves_the_step_out(make_trainer, tmp_path, caplog, float16_with_scale, value):
    """In the forward pass, from which it reaches the gradients."""

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
    callbacks = [Overflow([0, 1, 7], value), watch, recorder]
    trainer = make_trainer(callbacks, dropout=0.0, precision=float16_with_scale(2.0**17))
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        trainer.fit()
    assert [step for step, moved in enumerate(watch.moved) if not moved] == [0, 1, 7]
    assert watch.scales == [2.0**17, 2.0**16, *[2.0**15] * 6, *[2.0**14] * 4]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["num_skipped"] for line in lines if line["kind"] == "train"}
    assert steps == {3: 2, 4: 2, 5: 2, 6: 2, 7: 0, 9: 1, 10: 1, 11: 1, 12: 1}  # no line without a loss
    of_epochs = [line["num_skipped"] for line in lines if line["kind"] == "train_epoch"]
    assert of_epochs == [2, 1]
    assert all(np.isfinite(line["loss"]) for line in lines)
    messages = [record.getMessage() for record in caplog.records]
    assert "float16 overflows: this step is left out, and the loss scale is now 65536" in messages
    assert sum("loss scale" in message for message in messages) == 3
    assert any(message.endswith(" sec, 2 steps left out") for message in messages)


def test_a_step_that_is_left_out_leaves_running_statistics_alone(as_on_a_gpu):
    precision, norm = MixedPrecision("O1", "float16"), SubBatchNorm2D(2)
    norm.set_num_splits(2)
    optimizer = paddle.optimizer.SGD(0.1, norm.parameters())
    x = paddle.randn([4, 2, 3, 3])

    def step(factor):
        for part in (x, x * factor):  # micro-batches
            precision.backward(precision.forward(norm, part).sum())
        taken = precision.optimizer_step(optimizer, norm)
        return taken, {name: value.numpy().copy() for name, value in norm.state_dict().items()}

    is_taken, before = step(1.0)
    assert is_taken
    is_taken, after = step(np.inf)
    assert not is_taken
    assert_same(before, after)
    is_taken, after = step(1.0)
    assert is_taken
    assert (after["_mean"] != before["_mean"]).all()


@pytest.mark.parametrize("optimizer", ["Momentum", "SGD", "Adam", "AdamW", "RMSProp"])
def test_every_optimizer_leaves_an_overflow_out(make_trainer, float16_with_scale, optimizer):
    """Also what it keeps on the host."""
    seen = []

    class Watch(Callback):
        def step_end(self, trainer):
            values = {**trainer.model.state_dict(), **trainer.optimizer.state_dict()}
            seen.append({name: np.array(value) for name, value in values.items() if name != "LR_Scheduler"})

    callbacks, precision = [Overflow([2]), Watch()], float16_with_scale(8.0)
    trainer = make_trainer(callbacks, dropout=0.0, epochs=1, precision=precision, optimizer=optimizer)
    trainer.fit()
    assert trainer.state.num_skipped == 1
    assert precision.state_dict()["scale"] == [4.0]
    assert_same(seen[1], seen[2])
    assert all((seen[2][name] != seen[3][name]).any() for name in ("fc.weight", "fc.bias"))


def test_the_scale_grows_again(make_trainer, float16_with_scale):
    trainer = make_trainer(precision=float16_with_scale(8.0, every=4), dropout=0.0)
    trainer.fit()
    assert trainer.precision.state_dict()["scale"] == [64.0]  # 12 steps
    assert trainer.state.num_skipped == 0


def test_clipping_sees_unscaled_gradients(make_trainer, float16_with_scale):
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


def test_gradients_that_no_scale_mends_end_the_run(make_trainer, float16_with_scale):
    trainer = make_trainer([Overflow(range(12))], precision=float16_with_scale(16.0), dropout=0.0)
    with pytest.raises(NonFiniteGradientError, match=r"every loss scale down to 1\. Lower the learning rate"):
        trainer.fit()
    assert trainer.state.step == 4  # 8, 4, 2, 1


def test_an_epoch_without_a_finite_loss_ends_the_run(make_trainer, float16_with_scale):
    trainer = make_trainer([Overflow(range(6, 12))], precision=float16_with_scale(2.0**16), dropout=0.0)
    with pytest.raises(NonFiniteLossError, match="no step of epoch 2 has a finite loss in float16"):
        trainer.fit()


def test_a_loss_that_is_not_finite_ends_a_bfloat16_run(make_trainer):
    trainer = make_trainer(
        [Overflow([2], np.nan), Recorder([], interval=1)], precision=RoundedPrecision("O1")
    )
    with pytest.raises(NonFiniteLossError, match="the loss is nan at step 3"):
        trainer.fit()


def test_another_precision_goes_on_with_a_warning(make_trainer, tmp_path, caplog, float16_with_scale):
    store = CheckpointStore(tmp_path, "m")
    store.prepare()
    first = make_trainer([StopAt(2), Checkpointing(store)], precision=float16_with_scale(2.0**10))
    with pytest.raises(TrainingInterrupted):
        first.fit()
    checkpoint = load_checkpoint(store.latest())
    for precision in (Precision(), RoundedPrecision("O2")):
        caplog.clear()
        trainer = make_trainer([Checkpointing(store)], precision=precision)
        restore(trainer, checkpoint)
        assert_same(weights(trainer), weights(first))
        assert f"had precision float16 O1, this one has {precision.name}" in caplog.text
        trainer.fit()
    again = make_trainer([Checkpointing(store)], precision=MixedPrecision("O1", "float16"))
    restore(again, load_checkpoint(store.latest()))  # of the bfloat16 run, which has no scale
    assert again.precision.state_dict()["scale"] == [2.0**16]


# Evaluation


def test_evaluation_and_statistics_are_of_the_rounded_network(make_trainer):
    class Net(Classifier):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2D(3, 4, 3), SubBatchNorm2D(4), nn.Linear(16, 3)

        def forward(self, clips):
            frames = clips.flatten(0, 1).transpose([0, 3, 1, 2])
            features = self.norm(self.conv(frames)).flatten(1)
            return self.fc(features).reshape([-1, 2, 3]).mean(1)

    trainer = make_trainer()
    loader, model = trainer.make_loader(None), Net()
    precision = RoundedPrecision("O1")
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
    np.testing.assert_array_equal(values, nearest(values.astype("float32")))
    np.testing.assert_allclose(found[0].numpy(), values.mean((0, 2, 3)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1].numpy(), values.var((0, 2, 3)), rtol=1e-5)
