"""The key `to_static`: the forward pass of the network is a static graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import paddle

from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling import classes_of
from paddlevideo_fast.registry import EXTENSIONS, did_you_mean

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan
    from paddlevideo_fast.config import Config


@EXTENSIONS.register("to_static")
@dataclass(frozen=True)
class StaticGraph(Extension):
    """A static graph.

    Args:
        to_static: train the network as a static graph, which Paddle builds from its code.
    """

    to_static: bool = False

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> StaticGraph:
        return cls(bool(config.get("to_static")))

    def problems(self, plan: RunPlan) -> Problems:
        settings = plan.spec.runtime
        if self.to_static:
            yield from self._of_run(plan)
        for name in ("build_strategy", "cinn"):
            if getattr(settings, name) and not self.to_static:
                text = "it is for static graphs: add to_static: True, or take it out"
                yield Problem(f"RUNTIME.{name}", text)
        strategy = paddle.static.BuildStrategy()
        switches = [name for name in dir(strategy) if isinstance(getattr(strategy, name), bool)]
        for name in settings.build_strategy or {}:
            if name not in switches:
                text = f"Paddle's BuildStrategy has no such switch{did_you_mean(name, switches)}"
                yield Problem(f"RUNTIME.build_strategy.{name}", text)

    def _of_run(self, plan: RunPlan) -> Problems:
        """What the network does that a graph does not have."""
        run, settings = plan.spec.run, plan.spec.runtime
        if run.multigrid:
            yield Problem("to_static", "multigrid changes the network while it trains; keep one of the two")
        elif run.amp and gpu_number(paddle.get_device()) is None:
            yield Problem("to_static", "a CPU rounds for amp outside the graph; keep one of the two")
        elif run.amp and paddle.__version__.startswith("2."):
            text = f"a graph of Paddle {paddle.__version__} knows amp in float16 alone; keep one of the two"
            yield Problem("to_static", f"{text}, or take Paddle 3")
        if settings.recompute:
            yield Problem("RUNTIME.recompute", "it is for dynamic graphs; take to_static or it out")
        if settings.cinn and not paddle.is_compiled_with_cinn():
            text = f"this Paddle {paddle.__version__} is built without CINN; take it out"
            yield Problem("RUNTIME.cinn", text)
        if not classes_of(plan.spec.model):
            text = f"{plan.spec.model['framework']} draws masks outside the graph; take it out"
            yield Problem("to_static", text)

    def on_model(self, setup: TrainingSetup) -> None:
        """Makes a graph of the forward pass when the network first runs.

        Paddle builds one graph for each shape of a batch, and one for training and one for evaluation.
        """
        if not self.to_static:
            return
        settings, strategy = setup.spec.runtime, paddle.static.BuildStrategy()
        for name, on in (settings.build_strategy or {}).items():
            setattr(strategy, name, on)
        backend = "CINN" if settings.cinn else None
        # without `full_graph` Paddle cuts the graph at what it cannot trace, and fails on some networks
        setup.model = paddle.jit.to_static(
            setup.model, build_strategy=strategy, backend=backend, full_graph=True
        )
