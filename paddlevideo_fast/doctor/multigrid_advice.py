"""Whether a multigrid schedule pays on this machine, what speaks against it, and which factors pay more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from paddlevideo_fast.assembly.plan import plan_phases
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.types import arguments_of
from paddlevideo_fast.doctor import multigrid
from paddlevideo_fast.doctor.multigrid import PlanOptions, Pricing, duration, make_plan
from paddlevideo_fast.doctor.shape_cost import ShapeCosts
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.registry import BACKBONES

# Below this gain, a shorter plain schedule or a better reader saves more than multigrid.
_PAYS = 1.1
# What a small shape may cost beyond its share of the pixels.
_DEAR = 1.15
_ADAPTIVE = ("Adam", "AdamW")
_SIDES = (0.7071, 0.8409)
_FINISH = 0.33
_NUM_PROPOSALS = 3


def advise(
    cfg: Config,
    options: PlanOptions,
    plan: Mapping[str, Any],
    costs: ShapeCosts,
    progress: Callable[[str], None] = lambda text: None,
) -> Dict[str, Any]:
    """Judges a plan, and looks for factors that pay more where something speaks against it.

    Args:
        cfg: that was planned.
        options: of the plan.
        plan: as `make_plan` gives it.
        costs: that the plan was priced with; other shapes are measured where they are needed.
        progress: called with a line about each measurement that starts.

    Returns:
        "pays": whether the plan is predicted at least 1.1 times as fast as the plain run, and as plain
        training cut to as many clips; None without times;
        "reasons": what speaks against its shapes and rates; "proposals": other settings that are predicted to
        pay and that have none of the reasons, the fastest first, each with "overrides" and "speed_up".
    """
    shapes = [*_dear_shapes(plan, costs), *_maps_of_one(cfg, plan)]
    reasons = [*_fewer_clips(plan), *shapes, *_grown_rate(cfg, plan)]
    pays = None if plan["speed_up"] is None else _pays(plan)
    proposals: List[Dict[str, Any]] = []
    if plan["speed_up"] is not None and (reasons or not pays):
        progress("looking for factors that pay more")
        options = replace(options, num_clips=plan["num_clips"])
        found = list(_priced(cfg, options, plan, costs, progress))
        proposals = sorted(found, key=lambda proposal: -proposal["speed_up"])[:_NUM_PROPOSALS]
    return {"pays": pays, "reasons": reasons, "proposals": proposals}


def _pays(plan: Mapping[str, Any]) -> bool:
    return min(plan["speed_up"], _gain_a_clip(plan)) >= _PAYS


def _gain_a_clip(plan: Mapping[str, Any]) -> float:
    return float(plan["speed_up"] * plan["multigrid"]["clips"] / plan["plain"]["clips"])


def _fewer_clips(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["speed_up"] is not None and _gain_a_clip(plan) < _PAYS <= plan["speed_up"]:
        share = plan["multigrid"]["clips"] / plan["plain"]["clips"]
        yield f"the gain comes from fewer clips: plain training with {share:.2f} of its epochs gains as much"


def _shapes(plan: Mapping[str, Any]) -> List[Tuple[int, Mapping[str, Any]]]:
    """Number of splits and values of each shape of a plan, the smallest first."""
    found = {
        (shape["num_frames"], shape["crop_size"], shape["batch_size"], phase["bn_splits"]): shape
        for phase in plan["phases"]
        for shape in phase["shapes"]
    }
    return [(key[3], found[key]) for key in sorted(found)]


def _cost(plan: Mapping[str, Any], shape: Mapping[str, Any], step_sec: float) -> float:
    """The time a pixel of a step at this shape, relative to the plain run's."""
    (plain,) = plan["plain"]["shapes"]
    return step_sec / plain["step_sec"] * _num_pixels(plain) / _num_pixels(shape)


def _num_pixels(shape: Mapping[str, Any]) -> int:
    return int(shape["batch_size"] * shape["num_frames"] * shape["crop_size"] ** 2)


def _is_dear(plan: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    return _cost(plan, shape, shape["step_sec"]) > _DEAR


def _dear_shapes(plan: Mapping[str, Any], costs: ShapeCosts) -> Iterator[str]:
    """Shapes that cost more than their share of the pixels, and which part of it the splits take."""
    if "step_sec" not in plan["plain"]["shapes"][0]:
        return
    dear = {  # of one shape, the phase with the most splits stays
        (shape["batch_size"], shape["num_frames"], shape["crop_size"]): (shape, splits)
        for splits, shape in _shapes(plan)
        if _is_dear(plan, shape)
    }
    for (batch_size, num_frames, crop_size), (shape, splits) in dear.items():
        cost = _cost(plan, shape, shape["step_sec"])
        text = f"{batch_size} clips of {num_frames}×{crop_size}² cost {cost:.2f}"
        if splits > 1:
            alone = _cost(plan, shape, costs.step_sec(batch_size, num_frames, crop_size, 1))
            text += f" ({alone:.2f} without the {splits} splits of batch norm)"
        yield f"{text} of the plain step's time a pixel"


def _maps_of_one(cfg: Config, plan: Mapping[str, Any]) -> Iterator[str]:
    """Crops at which kernels meet a feature map of one value, where they do not in plain training."""
    (plain,) = plan["plain"]["shapes"]
    if plain["smallest_map"] < 2:
        return
    crops = sorted({shape["crop_size"] for _, shape in _shapes(plan) if shape["smallest_map"] == 1})
    if crops:
        sides = " and ".join(map(str, crops))
        has_strides = "spatial_strides" in arguments_of(BACKBONES.get(cfg["MODEL"]["backbone"]["name"]))
        remedy = "; see MODEL.backbone.spatial_strides" if has_strides else ""
        yield (
            f"at crops of {sides} pixels the last feature maps have one value: most of a kernel there lies "
            f"over padding and learns nothing{remedy}"
        )


def _grown_rate(cfg: Config, plan: Mapping[str, Any]) -> Iterator[str]:
    name = (cfg.get("OPTIMIZER") or {}).get("name")
    highest = max(phase["lr_multiplier"] for phase in plan["phases"])
    if name in _ADAPTIVE and highest > 1:
        yield (
            f"{name} wants nearly the same learning rate at all batches; the schedule multiplies it by "
            f"up to {highest:g}, see MULTIGRID.lr_scaling"
        )


def _priced(
    cfg: Config,
    options: PlanOptions,
    plan: Mapping[str, Any],
    costs: ShapeCosts,
    progress: Callable[[str], None],
) -> Iterator[Dict[str, Any]]:
    """The candidates that nothing speaks against and that pay."""
    for section in _candidates(cfg, plan):
        changed = Config({**cfg, "MULTIGRID": {**cfg["MULTIGRID"], **section}})
        try:
            other = make_plan(changed, options, progress, costs)
        except PaddleVideoFastError:  # our candidate does not fit the schedule or the batch
            continue
        if other["speed_up"] is None or not _pays(other):
            continue
        dear = (shape for _, shape in _shapes(other) if _is_dear(other, shape))
        if not any([*dear, *_maps_of_one(changed, other), *_grown_rate(changed, other)]):
            given = cfg["MULTIGRID"]
            overrides = [
                f"MULTIGRID.{key}={value if isinstance(value, str) else json.dumps(value)}"
                for key, value in section.items()
                if given.get(key) != value
            ]
            yield {"overrides": overrides, "speed_up": other["speed_up"]}


def _candidates(cfg: Config, plan: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Either cycle alone and both, with and without a finish, of the shapes that nothing speaks against.

    Where none of the configured ones is left, larger ones take their place.
    """
    spec = RunSpec.of(cfg)
    assert spec.multigrid is not None  # the plan has it
    (plain,) = plan["plain"]["shapes"]
    bad = {
        (shape["num_frames"], shape["crop_size"])
        for _, shape in _shapes(plan)
        if _is_dear(plan, shape) or shape["smallest_map"] < min(plain["smallest_map"], 2)
    }

    def is_bad(frames: float, side: float) -> bool:
        return (round(plain["num_frames"] * frames), round(plain["crop_size"] * side)) in bad

    long_factors = replace(spec.multigrid, LONG_CYCLE=True).long_factors
    small = [[*factors] for factors in long_factors if factors != (1, 1) and not is_bad(*factors)]
    sides = sorted({side for side in spec.multigrid.short_cycle_factors if side < 1 and not is_bad(1, side)})
    others = [side for side in _SIDES if not is_bad(1, side)]
    rates = {"lr_scaling": "none"} if spec.optimizer and spec.optimizer.get("name") in _ADAPTIVE else {}
    for longs in [small] if small else [[[1, side]] for side in others]:
        for shorts in [sides] if sides else [[side] for side in others]:
            yield from _cycles(longs, shorts, rates)


def _cycles(
    longs: Sequence[Any], shorts: Sequence[float], rates: Mapping[str, Any]
) -> Iterator[Dict[str, Any]]:
    long_cycle = {"LONG_CYCLE": True, "long_cycle_factors": [*longs, [1, 1]], **rates}
    short_cycle = {"SHORT_CYCLE": True, "short_cycle_factors": shorts}
    finish = {"finish": _FINISH}
    yield {**long_cycle, "SHORT_CYCLE": False}
    yield {**long_cycle, "SHORT_CYCLE": False, "long_cycle_factors": longs, **finish}
    yield {**short_cycle, "LONG_CYCLE": False}
    yield {**short_cycle, "LONG_CYCLE": False, **finish}
    yield {**long_cycle, **short_cycle}
    yield {**long_cycle, **short_cycle, **finish}


class Learned(NamedTuple):
    """How accurate an earlier run was after its epochs.

    Attributes:
        name: of the run.
        config: that it ran with.
        epochs: after which it was validated, from 1.
        values: top-1, or mAP of several labels.
    """

    name: str
    config: Config
    epochs: Sequence[int]
    values: Sequence[float]

    def epochs_to(self, accuracy: float) -> Optional[int]:
        """Epochs until a validation first reaches this; None: it never does."""
        return next((epoch for epoch, value in zip(self.epochs, self.values) if value >= accuracy), None)


def time_to_accuracy(
    cfg: Config,
    options: PlanOptions,
    costs: ShapeCosts,
    runs: Sequence[Learned],
    accuracy: Optional[float] = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Dict[str, Any]:
    """Predicts how long the schedules of earlier runs train here until they reach an accuracy.

    An earlier run tells after how many of its epochs that is; the costs tell how long these epochs take.

    Args:
        cfg: whose network the costs are of.
        options: of the plan; the number of clips must be known.
        costs: of the network; shapes of the runs are measured where they are needed.
        runs: earlier runs of the same network.
        accuracy: from 0 to 1; None: what all runs reach.
        progress: called with a line about each measurement that starts.

    Returns:
        "accuracy", and "runs": each with "run", "epochs" (None: never reached), "of_epochs" and "train_sec"
        (None without times).

    Raises:
        ConfigError: a run had another network.
    """
    if accuracy is None:
        accuracy = min(max(run.values) for run in runs)
    found = []
    for run in runs:
        if run.config["MODEL"].get("backbone") != cfg["MODEL"].get("backbone"):
            text = f"{run.name} was a run of another network: its MODEL.backbone is not this config's"
            raise ConfigError([text])
        spec = RunSpec.of(run.config)
        phases = plan_phases(spec).phases
        epochs, train_sec = run.epochs_to(accuracy), None
        if epochs is not None:
            pricing = Pricing(spec, options, costs, progress)
            pricing.measure(phases)
            described = [pricing.describe(phase) for phase in phases]
            if all("train_sec" in phase for phase in described):
                train_sec = sum(_sec_until(epochs, phase) for phase in described)
        found.append(
            {"run": run.name, "epochs": epochs, "of_epochs": phases[-1].end_epoch, "train_sec": train_sec}
        )
    return {"accuracy": accuracy, "runs": found}


def _sec_until(epoch: int, phase: Mapping[str, Any]) -> float:
    """The time of a phase's epochs before `epoch`."""
    first, stop = phase["start_epoch"], phase["end_epoch"]
    share = (min(max(epoch, first), stop) - first) / (stop - first)
    return float(share * phase["train_sec"])


def report(plan: Mapping[str, Any]) -> str:
    """A plan with what `advise` and `time_to_accuracy` found, as text."""
    lines = [multigrid.report(plan)]
    if plan["pays"] is False:
        lines += [
            "",
            f"Multigrid does not pay here: a gain below {_PAYS:g} is no reason for another schedule.",
        ]
    if plan["reasons"]:
        lines += ["", "What speaks against this schedule:", *(f"- {reason}" for reason in plan["reasons"])]
    if plan["proposals"]:
        lines += ["", "Settings without these problems, with their predicted gain over the plain run:"]
        lines += [
            f"{proposal['speed_up']:.2f}  "
            + " ".join(f"-o '{override}'" for override in proposal["overrides"])
            for proposal in plan["proposals"]
        ]
        lines.append("Accuracy is not predicted: small clips must show the classes.")
    elif plan["speed_up"] is not None and (plan["reasons"] or not plan["pays"]):
        lines += ["", "No factors were found that pay here and have none of these problems."]
    if "learned" in plan:
        lines += ["", *_learned_lines(plan["learned"])]
    return "\n".join(lines)


def _learned_lines(learned: Mapping[str, Any]) -> Iterator[str]:
    width = max(len("schedule of"), *(len(run["run"]) for run in learned["runs"])) + 2
    yield f"To an accuracy of {100 * learned['accuracy']:.1f} %, as these runs learned:"
    yield f"{'schedule of':<{width}}{'epochs':>12}{'training here':>16}"
    for run in learned["runs"]:
        epochs = f"{run['epochs'] or 'none'} of {run['of_epochs']}"
        time = "-" if run["train_sec"] is None else duration(run["train_sec"])
        yield f"{run['run']:<{width}}{epochs:>12}{time:>16}"
