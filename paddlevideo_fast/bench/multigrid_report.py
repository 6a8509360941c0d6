"""A multigrid plan as text and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

from paddlevideo_fast.report import picture


def report(plan: Mapping[str, Any]) -> str:
    """The plan as text."""
    lines = [
        f"{plan['config']} on {plan['device']}, Paddle {plan['paddle']}",
        f"{plan['max_epoch']} epochs in place of {plan['plain']['end_epoch']}",
        "",
        f"{'epochs':<11}{'batch':>13}{'frames':>8}{'crop':>13}{'rate':>8}{'BN splits':>11}"
        f"{'learning rate':>17}{'activations':>13}",
        *(_line(phase, plan) for phase in plan["phases"]),
        "",
        *_comparison(plan),
    ]
    return "\n".join(lines)


def _line(phase: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    shapes, rates = phase["shapes"], plan["lr_at_epoch"][phase["start_epoch"] : phase["end_epoch"]]
    lowest, highest = plan["plain"]["sampling_rate"], phase["sampling_rate"]

    def in_turn(key: str) -> str:
        return "/".join(str(shape[key]) for shape in shapes)

    def span(first: float, last: float) -> str:
        return f"{first:.4g}" if first == last else f"{first:.4g} to {last:.4g}"

    epochs = f"{phase['start_epoch'] + 1} to {phase['end_epoch']}"
    return (
        f"{epochs:<11}{in_turn('batch_size'):>13}{phase['num_frames']:>8}{in_turn('crop_size'):>13}"
        f"{span(lowest, highest):>8}{phase['bn_splits']:>11}{span(rates[0], rates[-1]):>17}"
        f"{_amount(phase['activation_bytes']):>13}"
    )


def _comparison(plan: Mapping[str, Any]) -> List[str]:
    plain, multigrid = plan["plain"], plan["multigrid"]
    if not multigrid:
        return ["The training list is not there: give --clips for the costs against the plain run."]
    lines = [f"{plan['num_clips']:,} clips{'plain':>19}{'multigrid':>14}{'plain / multigrid':>20}"]
    for key, (name, shown) in _ROWS.items():
        if key in multigrid:
            ratio = plain[key] / multigrid[key]
            lines.append(f"{name:<16}{shown(plain[key]):>14}{shown(multigrid[key]):>14}{ratio:>20.2f}")
    width, height = plan["frame_size"]
    frames = f"{width}×{height}, YUV 4:2:0"
    lines += ["", f"decoded: all frames from the first to the last of each clip, {frames}."]
    if plan["speed_up"] is not None:
        lines.append(
            f"Predicted: {plan['speed_up']:.2f} times as fast as the plain run, where reading keeps up with "
            "training."
        )
    return lines


def draw(plan: Mapping[str, Any], path: Path) -> None:
    """Draws frames, crop, batch and learning rate over the epochs.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, 4, 1, figsize=(8, 7), sharex=True) as (_, axes):
        phases = plan["phases"]
        edges = [phase["start_epoch"] for phase in phases] + [plan["max_epoch"]]
        titles = {"num_frames": "frames", "crop_size": "crop (px)", "batch_size": "clips a batch"}
        for axis, color, (key, title) in zip(axes, ("C0", "C1", "C2"), titles.items()):
            axis.stairs([phase[key] for phase in phases], edges, fill=True, alpha=0.6, color=color)
            first = [phase["shapes"][0][key] for phase in phases]
            axis.stairs(first, edges, color="0.2", linestyle=":", baseline=None)
            axis.set(ylabel=title, ylim=(0, 1.1 * max(*first, *(phase[key] for phase in phases))))
        epochs = f"{plan['max_epoch']} epochs in place of {plan['plain']['end_epoch']}"
        axes[0].set_title(f"{epochs}; dotted: the first step of a short cycle")
        axes[3].plot(range(plan["max_epoch"]), plan["lr_at_epoch"], color="C3")
        axes[3].set(yscale="log", ylabel="learning rate", xlabel="epoch")


def _amount(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} PB"


def _duration(sec: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if sec >= 2 * length:
            return f"{sec / length:.1f} {unit}"
    return f"{sec:.1f} s"


_ROWS: Dict[str, Tuple[str, Callable[[Any], str]]] = {
    "iterations": ("steps", "{:,}".format),
    "clips": ("clips", "{:,}".format),
    "flops": ("forward FLOPs", "{:.3g}".format),
    "decoded_bytes": ("decoded", _amount),
    "clip_bytes": ("in clips", _amount),
    "train_sec": ("training", _duration),
}
