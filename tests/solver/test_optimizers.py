"""Every optimizer's steps against the update written out in numpy, and the rules of parameters."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.config import build
from paddlevideo_fast.engine.checkpoint import portable_state, restore_optimizer
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.registry import BACKBONES, OPTIMIZERS
from paddlevideo_fast.solver import build_optimizer

RATES = [0.1, 0.1, 0.02]


class Net(paddle.nn.Layer):
    """A weight with decay, a batch norm without, and a last layer with its own factors."""

    lr_multipliers = {"fc.weight": 5.0, "fc.bias": 10.0}

    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Linear(4, 4)
        self.norm = paddle.nn.BatchNorm1D(4)
        self.fc = paddle.nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)))


def run(section, steps=3):
    """Takes steps and returns (names, weights before, gradients of each step, weights after)."""
    paddle.seed(3)
    net = Net()
    optimizer, curve = build_optimizer(section, net)
    trained = {name: value for name, value in net.named_parameters() if not value.stop_gradient}
    before = {name: value.numpy().astype("float64") for name, value in trained.items()}
    data = paddle.to_tensor(np.random.default_rng(0).standard_normal((6, 4)).astype("float32"))
    gradients = []
    for step in range(steps):
        optimizer.set_lr(curve.at(step))
        (net(data) ** 2).sum().backward()
        gradients.append({name: value.grad.numpy().astype("float64") for name, value in trained.items()})
        optimizer.step()
        optimizer.clear_grad()
    return before, gradients, {name: value.numpy() for name, value in trained.items()}


def is_decayed(name):
    return name in ("conv.weight", "fc.weight")


def rate(name, step):
    return RATES[step] * Net.lr_multipliers.get(name, 1.0)


def check(section, update, decay=0.01, clip=None, coupled=True):
    """`update(weight, gradient, state, rate, step)` gives the new weight."""
    curve = {"name": "PiecewiseDecay", "boundaries": [2], "values": [0.1, 0.02]}
    weights, gradients, after = run({"learning_rate": curve, **section})
    states = {name: {} for name in weights}
    for step, gradient in enumerate(gradients):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        assert clip is None or step or norm > clip, "the test must clip"
        for name in weights:
            g = gradient[name] * factor
            lost = decay if is_decayed(name) else 0.0
            g = g + lost * weights[name] if coupled else g
            shrunk = weights[name] * (1 if coupled else 1 - rate(name, step) * lost)
            weights[name] = update(shrunk, g, states[name], rate(name, step), step)
    for name in weights:
        np.testing.assert_allclose(after[name], weights[name], rtol=2e-4, atol=2e-5, err_msg=name)


def momentum(weight, gradient, state, rate, step, nesterov=False):
    state["v"] = 0.9 * state.get("v", 0.0) + gradient
    return weight - rate * (gradient + 0.9 * state["v"] if nesterov else state["v"])


def adam(weight, gradient, state, rate, step):
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
    state["s"] = 0.999 * state.get("s", 0.0) + 0.001 * gradient**2
    mean, square = state["m"] / (1 - 0.9 ** (step + 1)), state["s"] / (1 - 0.999 ** (step + 1))
    return weight - rate * mean / (np.sqrt(square) + 1e-8)


@pytest.mark.smoke
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.01, {"name": "L2", "value": 0.01}])
def test_momentum(nesterov, weight_decay):
    section = {"name": "Momentum", "use_nesterov": nesterov, "weight_decay": weight_decay}
    check(section, lambda *args: momentum(*args, nesterov=nesterov))


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "update"), [("Momentum", momentum), ("Adam", adam)])
def test_all_parameters_by_one_operator(name, update, monkeypatch):
    """Decay, factors on the rate and the clip are those of each parameter."""
    calls = []
    operators = paddle._C_ops
    for operator in ("merged_momentum_", "merged_adam_"):
        whole = getattr(operators, operator)

        def counted(*args, whole=whole, operator=operator):
            calls.append((operator, len(args[0])))
            return whole(*args)

        monkeypatch.setattr(operators, operator, counted)
    section = {"name": name, "weight_decay": 0.01, "use_multi_tensor": True}
    check({**section, "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 0.5}}, update, clip=0.5)
    assert calls == [(f"merged_{name.lower()}_", 6)] * 3


@pytest.mark.parametrize(
    ("device", "frozen", "given", "expected"),
    [("gpu:0", False, {}, True), ("gpu:0", True, {}, False), ("cpu", False, {}, False)]
    + [("gpu:0", False, {"use_multi_tensor": False}, False), ("cpu", True, {"use_multi_tensor": True}, True)],
)
@pytest.mark.parametrize("name", ["Momentum", "Adam"])
def test_one_operator_is_the_default_on_a_gpu(name, device, frozen, given, expected, monkeypatch):
    net = Net()
    net.norm.weight.stop_gradient = frozen
    monkeypatch.setattr(paddle, "get_device", lambda: device)
    optimizer, _ = build_optimizer({"name": name, "learning_rate": 0.1, **given}, net)
    assert optimizer._use_multi_tensor is expected


@pytest.mark.parametrize("name", ["Momentum", "Adam"])
def test_one_operator_goes_on_from_a_state_and_passes_over_what_is_frozen(name):
    def make(multi):
        paddle.seed(1)
        net = Net()
        net.norm.weight.stop_gradient = net.norm.bias.stop_gradient = True
        section = {"name": name, "learning_rate": 0.1, "weight_decay": 0.01, "use_multi_tensor": multi}
        return net, build_optimizer(section, net)[0]

    def train(net, optimizer, steps):
        for step in range(steps):
            (net(paddle.ones([2, 4]) * (step + 1)) ** 2).sum().backward()
            optimizer.step()
            optimizer.clear_grad()

    plain, resumed = make(False), make(True)
    train(*plain, 2)
    first = make(True)
    train(*first, 2)
    resumed[0].set_state_dict(first[0].state_dict())
    restore_optimizer(resumed[1], resumed[0], portable_state(first[1], first[0]))
    train(*plain, 2)
    train(*resumed, 2)
    for key, value in plain[0].state_dict().items():
        np.testing.assert_allclose(resumed[0].state_dict()[key].numpy(), value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.smoke
def test_the_global_norm_is_that_of_all_groups_together():
    clip = {"name": "ClipGradByGlobalNorm", "value": 0.5}
    check({"name": "Momentum", "weight_decay": 0.01, "grad_clip": clip}, momentum, clip=0.5)


def test_sgd():
    check({"name": "SGD", "weight_decay": 0.01}, lambda w, g, state, rate, step: w - rate * g)


@pytest.mark.smoke
def test_adam():
    check({"name": "Adam", "weight_decay": 0.01}, adam)


@pytest.mark.smoke
def test_adamw():
    check({"name": "AdamW", "weight_decay": {"name": "L2", "value": 0.01}}, adam, coupled=False)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(centered):
    def update(weight, gradient, state, rate, step):
        state["s"] = 0.9 * state.get("s", 0.0) + 0.1 * gradient**2
        state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
        square = state["s"] - state["m"] ** 2 if centered else state["s"]
        state["v"] = 0.8 * state.get("v", 0.0) + rate * gradient / np.sqrt(square + 0.5)
        return weight - state["v"]

    section = {"name": "RMSProp", "rho": 0.9, "epsilon": 0.5, "momentum": 0.8, "centered": centered}
    check({**section, "weight_decay": {"name": "L2", "value": 0.01}}, update)


class Positions(paddle.nn.Layer):
    """A table that its layer declares, and a layer that has one; neither is a bias."""

    no_weight_decay = ("table",)

    def __init__(self):
        super().__init__()
        self.table = self.create_parameter([2, 4])
        self.fc = paddle.nn.Linear(4, 4)


class Network(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.table = Positions(), self.create_parameter([2, 4])


@pytest.mark.parametrize(
    ("words", "decayed"),
    [
        (None, {"first.fc.weight", "table"}),
        ("", {"first.fc.weight", "first.table", "table"}),
        ("fc table", set()),
    ],
)
def test_layers_declare_what_has_no_decay_unless_the_config_says(words, decayed):
    recipe = build(OPTIMIZERS, {"name": "AdamW", "learning_rate": 0.1, "no_weight_decay_name": words})
    assert {name for name, rule in recipe.rules(Network()).items() if rule.decay} == decayed


VIT = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 32}
SWIN = {"patch_size": [2, 4, 4], "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": [2, 4, 4]}
MVIT = {"num_frames": 4, "crop_size": 32, "embed_dim": 16, "depths": [1, 1]}


@pytest.mark.parametrize(("name", "arguments"), [("VisionTransformer", VIT), ("SwinTransformer3D", SWIN)])
def test_what_the_transformers_declare_are_tables_and_tokens_of_theirs(name, arguments):
    network = build(BACKBONES, {"name": name, **arguments})
    rules = build(OPTIMIZERS, {"name": "AdamW", "learning_rate": 0.1}).rules(network)
    decayed = {name for name, rule in rules.items() if rule.decay}
    assert decayed == {  # weights of layers, which lie below a layer of their own
        name for name, value in network.named_parameters() if value.ndim > 1 and name.endswith(".weight")
    }
    names = dict(network.named_parameters())
    assert all(any(word in each for each in names) for word in network.no_weight_decay)


def test_the_tables_and_the_token_of_mvit_decay_as_in_the_authors_config():
    network = build(BACKBONES, {"name": "MViT", **MVIT})
    rules = build(OPTIMIZERS, {"name": "AdamW", "learning_rate": 0.1}).rules(network)
    shapes = {name: value.shape for name, value in network.named_parameters()}
    spared = {name for name, rule in rules.items() if not rule.decay}
    assert spared == {name for name, shape in shapes.items() if len(shape) == 1}


def test_no_decay_is_none():
    check({"name": "Momentum"}, momentum, decay=0.0)


def test_l1_decay():
    before, gradients, after = run(
        {"name": "SGD", "learning_rate": 0.1, "weight_decay": {"name": "L1", "value": 0.05}}, steps=1
    )
    expected = before["conv.weight"] - 0.1 * (
        gradients[0]["conv.weight"] + 0.05 * np.sign(before["conv.weight"])
    )
    np.testing.assert_allclose(after["conv.weight"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "limit"), [("ClipGradByNorm", 0.1), ("ClipGradByValue", 0.01)])
def test_the_other_clips(kind, limit):
    before, gradients, after = run(
        {"name": "SGD", "learning_rate": 0.1, "grad_clip": {"name": kind, "value": limit}}, steps=1
    )
    g = gradients[0]["conv.weight"]
    g = g * limit / np.linalg.norm(g) if kind == "ClipGradByNorm" else np.clip(g, -limit, limit)
    np.testing.assert_allclose(after["conv.weight"], before["conv.weight"] - 0.1 * g, rtol=1e-4, atol=1e-6)


def test_a_number_is_a_constant_curve_and_multipliers_can_be_set():
    section = {"name": "SGD", "learning_rate": 0.1, "lr_multipliers": {"conv": 0.0, "fc.bias": 2.0}}
    before, gradients, after = run(section, steps=1)
    np.testing.assert_array_equal(after["conv.weight"], before["conv.weight"].astype("float32"))
    expected = before["fc.bias"] - 0.2 * gradients[0]["fc.bias"]
    np.testing.assert_allclose(after["fc.bias"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.smoke
def test_groups_of_a_recognizer():
    model = build_model(
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNetTSM", "depth": 18, "width": 8, "stage_blocks": [1, 1, 1, 1]},
            "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 64},
        }
    )
    optimizer, curve = build_optimizer(
        {"name": "Momentum", "learning_rate": 0.1, "weight_decay": 1e-4}, model
    )
    listed = {parameter.name for parameter in optimizer._parameter_list}
    assert listed == {value.name for value in model.parameters() if not value.stop_gradient}
    for name, value in model.named_parameters():
        if value.stop_gradient:
            continue
        factor = {"head.fc.weight": 5.0, "head.fc.bias": 10.0}.get(name, 1.0)
        assert value.optimize_attr["learning_rate"] == factor
        assert (value.regularizer is not None) == (len(value.shape) > 1), name
    assert optimizer.get_lr() == curve.at(3.5) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weight_decay": {"name": "L3", "value": 1}}, "weight_decay"),
        ({"weight_decay": {"name": "L2"}}, "weight_decay"),
        ({"grad_clip": {"name": "Clip", "value": 1}}, "ClipGradByGlobalNorm"),
        ({"grad_clip": {"name": "ClipGradByNorm"}}, "ClipGradByNorm"),
        (
            {"grad_clip": {"name": "ClipGradByNorm", "value": "abc"}},
            "grad_clip.value='abc': expected a number",
        ),
        ({"grad_clip": {"name": "ClipGradByNorm", "value": 0}}, "grad_clip.value=0: .*above 0"),
        ({"weight_decay": {"name": "L2", "value": "x"}}, "weight_decay.value='x': expected a number"),
        ({"lr_multipliers": {"neck": 2.0}}, "neck"),
        ({"name": "AdamW", "weight_decay": {"name": "L1", "value": 1}}, "AdamW"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        build_optimizer({"name": "Momentum", "learning_rate": 0.1, **arguments}, Net())


@pytest.mark.parametrize("name", ["Momentum", "SGD", "Adam", "AdamW", "RMSProp"])
def test_the_state_of_each_parameter_is_as_large_as_the_class_says(name):
    net = Net()
    optimizer, _ = build_optimizer({"name": name, "learning_rate": 0.1}, net)
    net(paddle.ones([3, 4])).sum().backward()
    optimizer.step()
    kept = [value for key, value in portable_state(optimizer, net).items() if key.startswith("fc.weight")]
    large = sum(value.size for value in kept if value.size > 1)  # Adam has powers of its betas, too
    assert large == OPTIMIZERS.get(name).states_per_parameter * net.fc.weight.size


# --- Layer-wise learning rates against a loop with an optimizer for each rate, and what is refused


LAYERED = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 32, "drop_ratio": 0.0, "std": 0.01},
}
LAYERED_RATE = 0.02
BY_HAND = {  # 0.75 to the power of the stages that follow; the head of TSM has factors of its own
    "backbone.conv.": LAYERED_RATE * 0.2373046875,
    "backbone.res2a.": LAYERED_RATE * 0.31640625,
    "backbone.res3a.": LAYERED_RATE * 0.421875,
    "backbone.res4a.": LAYERED_RATE * 0.5625,
    "backbone.res5a.": LAYERED_RATE * 0.75,
    "head.fc.weight": LAYERED_RATE * 5,
    "head.fc.bias": LAYERED_RATE * 10,
}
CLASSES = {"Momentum": paddle.optimizer.Momentum, "AdamW": paddle.optimizer.AdamW}


def start():
    paddle.seed(3)
    model = build_model(LAYERED)
    model.train()
    return model, {name: each for name, each in model.named_parameters() if not each.stop_gradient}


def steps(model, optimizers):
    rng = np.random.default_rng(0)
    for _ in range(3):
        clips = paddle.to_tensor(rng.standard_normal((4, 2, 3, 24, 24)).astype("float32"))
        model.loss(model(clips), paddle.to_tensor(rng.integers(0, 3, 4))).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.clear_grad()


@pytest.mark.parametrize("name", CLASSES)
def test_rates_of_the_stages_equal_a_loop_with_an_optimizer_for_each(name):
    decay = {"weight_decay": 0.1, "decay_bn_bias": True}
    ours, found = start()
    optimizer, _ = build_optimizer(
        {"name": name, "learning_rate": LAYERED_RATE, "layer_decay": 0.75, **decay}, ours
    )
    steps(ours, [optimizer])
    theirs, expected = start()
    assert all(sum(key.startswith(part) for part in BY_HAND) == 1 for key in expected)
    steps(
        theirs,
        [
            CLASSES[name](
                learning_rate=rate,
                weight_decay=0.1,
                parameters=[value for key, value in expected.items() if key.startswith(part)],
            )
            for part, rate in BY_HAND.items()
        ],
    )
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].numpy(), value.numpy(), rtol=1e-4, atol=1e-5, err_msg=key)


def test_given_multipliers_come_on_top():
    model, _ = start()
    section = {"name": "SGD", "learning_rate": 1.0, "layer_decay": 0.5, "lr_multipliers": {"backbone": 0.1}}
    build_optimizer(section, model)
    factor = {name: each.optimize_attr["learning_rate"] for name, each in model.named_parameters()}
    assert factor["backbone.res5a.conv0._conv.weight"] == pytest.approx(0.05)
    assert factor["backbone.conv._batch_norm.bias"] == pytest.approx(0.1 / 32)
    assert factor["head.fc.weight"] == 1


def test_a_parameter_in_no_stage_is_told():
    model = paddle.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"OPTIMIZER\.layer_decay=0\.75: weight belongs to no stage"):
        build_optimizer({"name": "SGD", "learning_rate": 1.0, "layer_decay": 0.75}, model)


# --- The rule of each parameter as a function of names and shapes


def rules(**arguments):
    """Rules of `a`, a layer with a batch norm `a.b`, and of `ab`, whose name begins as that of `a`."""
    network = paddle.nn.Sequential(("a", paddle.nn.Linear(2, 2)), ("ab", paddle.nn.Linear(2, 2)))
    network.a.b = paddle.nn.BatchNorm1D(2)
    return build(OPTIMIZERS, {"name": "SGD", "learning_rate": 1.0, **arguments}).rules(network)


@pytest.mark.smoke
def test_matrices_decay_and_the_longest_name_decides_on_the_rate():
    assert rules(lr_multipliers={"a": 0.1, "a.b": 0.5, "ab.bias": 10}) == {
        "a.weight": (True, 0.1),
        "a.bias": (False, 0.1),
        "a.b.weight": (False, 0.5),
        "a.b.bias": (False, 0.5),
        "ab.weight": (True, 1.0),
        "ab.bias": (False, 10.0),
    }


def test_decay_on_biases_and_words_that_switch_it_off():
    found = rules(decay_bn_bias=True, no_weight_decay_name="b.w")
    assert {name for name, rule in found.items() if not rule.decay} == {"a.b.weight", "ab.weight"}


@pytest.mark.parametrize("key", ["a.weigh", "b"])
def test_an_entry_that_fits_nothing_is_an_error(key):
    with pytest.raises(ConfigError, match=f"no parameter is called '{key}'"):
        rules(lr_multipliers={key: 2})
