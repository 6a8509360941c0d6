"""Training as a static graph: the same steps, what reaches Paddle, and what does not go with it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.static_graph.extension import StaticGraph
from tests.support.launching import overriding


@pytest.mark.slow
@pytest.mark.smoke
def test_a_static_graph_takes_the_same_steps(run, tmp_path, records):
    lines = {}
    for static in (False, True):
        assert run(*overriding(f"to_static={static}", f"output_dir={tmp_path / str(static)}")) == 0
        lines[static] = records(tmp_path / str(static))
    losses, other = ([line["loss"] for line in lines[k] if line["kind"] == "train"] for k in lines)
    np.testing.assert_allclose(losses, other, rtol=1e-5)
    values, other = ([line["top1"] for line in lines[k] if line["kind"] == "valid"] for k in lines)
    assert values == other


def test_the_switches_of_a_static_graph_reach_paddle(tiny_config, monkeypatch):
    calls = []
    monkeypatch.setattr(paddle.jit, "to_static", lambda layer, **how: calls.append(how) or layer)
    monkeypatch.setattr(paddle, "is_compiled_with_cinn", lambda: True)
    overrides = ["to_static=true", "RUNTIME={build_strategy: {enable_addto: true}, cinn: true}"]
    for words in (overrides, ["to_static=true"], []):
        training_setup(plan_run(RunSpec.for_training(load_config(str(tiny_config), words))))
    switched, plain = calls
    assert (switched["build_strategy"].enable_addto, plain["build_strategy"].enable_addto) == (True, False)
    assert (switched["backend"], plain["backend"]) == ("CINN", None)
    assert switched["full_graph"]
    assert plain["full_graph"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["RUNTIME.cinn=true"], "RUNTIME.cinn: it is for static graphs: add to_static: True, or take it out"),
        (
            ["RUNTIME.build_strategy={enable_addto: true}"],
            "RUNTIME.build_strategy: it is for static graphs: add to_static: True, or take it out",
        ),
        (
            ["to_static=true", "RUNTIME.cinn=true"],
            f"RUNTIME.cinn: this Paddle {paddle.__version__} is built without CINN; take it out",
        ),
        (
            ["to_static=true", "RUNTIME.build_strategy={enable_adto: true}"],
            "RUNTIME.build_strategy.enable_adto: Paddle's BuildStrategy has no such switch; did you mean "
            "'enable_addto'?",
        ),
        (
            ["to_static=true", "RUNTIME.recompute=true"],
            "RUNTIME.recompute: it is for dynamic graphs; take to_static or it out",
        ),
        (
            ["to_static=true", "PRECISEBN={preciseBN_interval: 1}"],
            "to_static: PRECISEBN looks into the network, which is hidden then; keep one of the two",
        ),
        (
            ["to_static=true", "amp=true"],
            "to_static: a CPU rounds for amp outside the graph; keep one of the two",
        ),
        (
            ["to_static=true", "multigrid=true", "MULTIGRID={LONG_CYCLE: false}"],
            "to_static: multigrid changes the network while it trains; keep one of the two",
        ),
    ],
)
def test_what_a_static_graph_does_not_go_with(tiny_config, overrides, problem):
    with pytest.raises(ConfigError) as error:
        plan_run(RunSpec.for_training(load_config(str(tiny_config), overrides)))
    assert [found.partition("  ")[2] for found in error.value.problems] == [problem]


@pytest.mark.parametrize(
    ("device", "version", "problems"),
    [
        ("cpu", "3.3.1", ["a CPU rounds for amp outside the graph; keep one of the two"]),
        ("gpu:0", "3.3.1", []),
        (
            "gpu:0",
            "2.6.2",
            ["a graph of Paddle 2.6.2 knows amp in float16 alone; keep one of the two, or take Paddle 3"],
        ),
    ],
)
def test_mixed_precision_in_a_static_graph(tiny_config, monkeypatch, device, version, problems):
    monkeypatch.setattr("paddle.get_device", lambda: device)
    monkeypatch.setattr("paddle.__version__", version)
    spec = RunSpec.of(load_config(str(tiny_config), ["amp=true", "to_static=true"]))
    plan: Any = SimpleNamespace(spec=spec)
    assert [problem.text for problem in StaticGraph(True).problems(plan)] == problems
