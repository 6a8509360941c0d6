"""Layers that run twice: gradients, statistics and dropout as if they ran once."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import Precision, RoundedPrecision
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MacCounter, build_model
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.layers.batch_norm import set_num_splits, set_sync_group
from paddlevideo_fast.modeling.recompute import recompute_stages
from tests.modeling.networks import clips_for, section_of
from tests.support.fused_norm import Alone

TSM = section_of(stage_blocks=[2, 1, 1, 1])


def make(section):
    paddle.seed(7)
    return build_model(section)


def trained(model, precision=None, num_steps=2):
    """Losses, gradients and state after steps of plain gradient descent."""
    precision = precision or Precision()
    model.train()
    optimizer = paddle.optimizer.SGD(0.01, model.parameters())
    found = {}
    for step in range(num_steps):
        paddle.seed(step)
        loss = model.loss(precision.forward(model, clips_for(model, 3, step)), paddle.to_tensor([0, 1, 2]))
        precision.backward(loss)
        found[f"loss {step}"] = loss.numpy()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient {step} {name}"] = parameter.grad.numpy().copy()
        optimizer.step()
        optimizer.clear_grad()
    return {**found, **{name: value.numpy() for name, value in model.state_dict().items()}}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


CASES = {
    "tsm": (TSM, {}),
    "slowfast": (section_of("slowfast"), {}),
    "pptsm_v2": (section_of("pptsm_v2"), {}),
    "timesformer": (section_of("timesformer", drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.5), {}),
    "splits": (TSM, {"splits": 3}),
    "shared statistics": (TSM, {"group": Alone(is_everyone=False)}),
    "bfloat16 O1": (TSM, {"precision": "O1"}),
    "bfloat16 O2": (TSM, {"precision": "O2"}),
    "some stages": (TSM, {"stages": ["res2", "res4"]}),
    "frozen": (TSM, {"freeze": ["stem", "res3"]}),
    "frozen, bfloat16": (TSM, {"freeze": ["stem", "res2"], "precision": "O2"}),
}


@pytest.mark.parametrize("case", CASES)
def test_everything_is_the_same_bit_for_bit(case):
    section, options = CASES[case]
    results = []
    for twice in (False, True):
        model = make(section)
        precision = RoundedPrecision(options["precision"]) if "precision" in options else None
        if "freeze" in options:
            Freezing(model, options["freeze"])
        set_num_splits(model, options.get("splits", 1))
        set_sync_group(model, options.get("group"))
        if twice:
            operators = precision.operators if precision else None
            recompute_stages(model, options.get("stages"), operators)
        results.append(trained(model, precision))
    check_equal(results[1], results[0])


def calls_of(model, name):
    """Counts the calls of the convolution `name`; they come with its hooks."""
    calls = []
    dict(model.named_sublayers())[name].register_forward_post_hook(lambda *_: calls.append(1) and None)
    return calls


def test_what_runs_twice():
    model = make(TSM)
    Freezing(model, ["stem"])
    recompute_stages(model, ["stem", "res2"])
    counted = {
        name: calls_of(model, f"backbone.{name}") for name in ("conv._conv", "res2b.conv1", "res3a.conv0")
    }
    with MacCounter(model) as counter:
        trained(model, num_steps=1)
    assert {name: len(calls) for name, calls in counted.items()} == {
        "conv._conv": 1,  # frozen and leading: nothing goes back to it
        "res2b.conv1": 2,
        "res3a.conv0": 1,
    }
    plain = make(TSM)
    with MacCounter(plain) as expected:
        trained(plain, num_steps=1)
    assert counter.macs == expected.macs
    for calls in counted.values():
        calls.clear()
    model.eval()
    with paddle.no_grad():
        model(paddle.zeros([1, 2, 3, 32, 32]))
    assert {len(calls) for calls in counted.values()} == {1}


def test_a_stage_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"recompute\.1=res6: no such stage; the stages are stem, res2"):
        recompute_stages(make(TSM), ["res2", "res6"])
