"""Frozen parts of a network: what they are called, what they keep, what they cost, and when they train."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.freezing import Freezing, frozen_parameters, set_frozen
from paddlevideo_fast.modeling.layers.batch_norm import set_num_splits
from paddlevideo_fast.modeling.stages import learned_parameters, parameters_in
from tests.modeling.networks import ANNEXED, NETWORKS, clips_for, make


@pytest.mark.parametrize(
    "name", [*NETWORKS, *(pytest.param(name, marks=pytest.mark.annex) for name in ANNEXED)]
)
def test_each_parameter_is_in_one_stage_and_frozen_leading_stages_build_no_graph(name):
    model = make(name)
    names = [found for stage in model.stages for found in parameters_in(model, stage, "key")]
    assert sorted(names) == sorted(learned_parameters(model))
    assert list(model.stages)[0] == "stem"
    assert list(model.stages)[-1] == "head"
    assert [stage.num_later for stage in model.stages.values()] == list(range(len(model.stages)))[::-1]
    early = list(model.stages)[:-2]
    Freezing(model, early)
    model.train()
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    needs_graph = {}
    layers = {layer: stage for stage in model.stages for layer in model.stages[stage].layers}
    for key, layer in model.named_sublayers():
        if key in layers:
            layer.register_forward_post_hook(
                lambda _, inputs, output, at=layers[key]: needs_graph.setdefault(at, set()).update(
                    not tensor.stop_gradient for tensor in paddle.utils.flatten(output)
                )
            )
    model.loss(model(clips_for(model)), paddle.to_tensor([0, 2])).backward()
    assert all(needs_graph[stage] == {False} for stage in early)
    assert True in needs_graph[list(model.stages)[-2]]
    changed = {key for key, value in model.state_dict().items() if (value.numpy() != before[key]).any()}
    trained = {key for key, value in learned_parameters(model).items() if value.grad is not None}
    own = tuple(f"{layer}." for stage in list(model.stages)[-2:] for layer in model.stages[stage].layers)
    assert all(key.startswith(own) for key in changed)  # statistics of batch norms
    assert trained == {key for key in learned_parameters(model) if key.startswith(own)}


def test_parts_are_stages_names_starts_or_patterns():
    model = make()
    assert parameters_in(model, "head", "key") == ["head.fc.weight", "head.fc.bias"]
    assert parameters_in(model, "head.fc.bias", "key") == ["head.fc.bias"]
    assert all(name.startswith("backbone.") for name in parameters_in(model, "backbone", "key"))
    assert len(parameters_in(model, "backbone.*.bias", "key")) == 13
    assert not any("_mean" in name for name in parameters_in(model, "*", "key"))
    with pytest.raises(ConfigError, match=r"FINETUNE\.freeze\.1=layer1: fits no stage \(stem, res2, res3"):
        Freezing(model, ["stem", "layer1"])
    with pytest.raises(ConfigError, match="no stage"):
        parameters_in(model, "backbone.con", "key")  # no start up to a dot


def test_a_batch_norm_keeps_its_statistics_where_all_of_it_is_frozen():
    model = make()
    norm = model.backbone.res2a.conv0._batch_norm
    set_frozen(model, parameters_in(model, "*.bias", "key"))
    assert not norm._use_global_stats
    set_frozen(model, parameters_in(model, "backbone.res2a.conv0._batch_norm", "key"))
    assert norm._use_global_stats


def test_frozen_dropout_is_off_and_comes_back():
    model = make("pptsm_v2")
    freezing = Freezing(model, ["last", "head"], 2)
    model.train()
    assert not model.backbone.last_conv.training
    assert model.backbone.stem.training
    freezing.begin(1)
    assert not model.backbone.last_conv.training
    assert freezing.begin(2) == freezing.later
    assert model.backbone.last_conv.training
    assert not frozen_parameters(model)


def test_parts_train_at_their_epochs_and_what_was_frozen_before_stays():
    model = make(partial_bn=True)
    before = frozen_parameters(model)
    freezing = Freezing(model, ["stem", "res2", "res3"], {"res3": 2, "res2": 4})
    stages = {stage: set(parameters_in(model, stage, "key")) for stage in model.stages}

    def frozen_stages():
        now = frozen_parameters(model)
        return [name for name in stages if stages[name] <= now], before <= now

    assert frozen_stages() == (["stem", "res2", "res3"], True)
    freezing.begin(2)
    assert frozen_stages() == (["stem", "res2"], True)
    freezing.begin(7)  # a run that was resumed late
    assert frozen_stages() == (["stem"], True)
    assert freezing.later == (stages["res2"] | stages["res3"]) - before


def test_what_cannot_be_meant_is_told():
    with pytest.raises(ConfigError, match="FINETUNE.unfreeze_at.res2: FINETUNE.freeze has no res2"):
        Freezing(make(), ["stem"], {"res2": 3})
    with pytest.raises(ConfigError, match="FINETUNE.freeze: freezes all parameters; leave some out"):
        Freezing(make(), ["backbone", "head"], 3)


@pytest.mark.parametrize(("num_splits", "static"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("half", ["weight", "bias"])
def test_one_half_of_a_batch_norm(half, num_splits, static):
    """Paddle's batch norm alone would give the other half no gradient either."""
    gradients = []
    for parts in ([], [f"backbone.*_batch_norm.{half}"]):
        paddle.seed(5)
        model = make()
        model.head.dropout.p = 0.0
        set_num_splits(model, num_splits)
        if parts:
            Freezing(model, parts)
        program = paddle.jit.to_static(model, full_graph=True) if static else model
        program.train()
        program.loss(program(clips_for(model)), paddle.to_tensor([0, 2])).backward()
        gradients.append({name: value.grad for name, value in learned_parameters(model).items()})
    for name, gradient in gradients[1].items():
        if name.endswith(f"_batch_norm.{half}"):
            assert gradient is None
        else:
            np.testing.assert_array_equal(gradient.numpy(), gradients[0][name].numpy(), err_msg=name)


def test_a_static_graph_freezes_the_same():
    results = []
    for static in (False, True):
        paddle.seed(5)
        model = make()
        model.head.dropout.p = 0.0
        Freezing(model, ["stem", "res3"])
        if static:
            model = paddle.jit.to_static(model, full_graph=True)
        model.train()
        model.loss(model(clips_for(model)), paddle.to_tensor([0, 2])).backward()
        trained = {name: value for name, value in model.named_parameters() if value.grad is not None}
        gradients = {f"gradient {name}": value.grad for name, value in trained.items()}
        results.append({**gradients, **model.state_dict()})
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_allclose(
            results[1][name].numpy(), value.numpy(), rtol=1e-5, atol=1e-5, err_msg=name
        )
