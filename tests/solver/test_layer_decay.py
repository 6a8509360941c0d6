"""Layer-wise learning rates against a loop with an optimizer for each rate, and what is refused."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.solver import build_optimizer

MODEL = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 32, "drop_ratio": 0.0, "std": 0.01},
}
RATE = 0.02
BY_HAND = {  # 0.75 to the power of the stages that follow; the head of TSM has factors of its own
    "backbone.conv.": RATE * 0.2373046875,
    "backbone.res2a.": RATE * 0.31640625,
    "backbone.res3a.": RATE * 0.421875,
    "backbone.res4a.": RATE * 0.5625,
    "backbone.res5a.": RATE * 0.75,
    "head.fc.weight": RATE * 5,
    "head.fc.bias": RATE * 10,
}
CLASSES = {"Momentum": paddle.optimizer.Momentum, "AdamW": paddle.optimizer.AdamW}


def start():
    paddle.seed(3)
    model = build_model(MODEL)
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
    optimizer, _ = build_optimizer({"name": name, "learning_rate": RATE, "layer_decay": 0.75, **decay}, ours)
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
