"""Predicted scaling as text and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling import MAX_DEVICES, VARIANTS
from paddlevideo_fast.report import picture

_HEADS = {name: name.replace("_", ", ") for name in VARIANTS}
_STYLES = {"ring": ":", "ring_overlapped": "-.", "hierarchical": "--", "hierarchical_overlapped": "-"}


def report(result: Mapping[str, Any]) -> str:
    """The prediction as text."""
    cluster = result["cluster"]
    lines = [f"{cluster['name']} ({cluster['source']})"]
    for network in result["networks"]:
        lines += ["", *_network(network)]
    if result["published"]:
        lines += ["", *_published(result["published"])]
    lines += ["", "Assumed:", *(f"- {text}" for text in result["assumptions"])]
    return "\n".join(lines)


def _network(network: Mapping[str, Any]) -> list[str]:
    title = (
        f"{network['name']}: {network['batch_size']} clips a step of {network['step_sec'] * 1e3:.0f} ms "
        f"({network['source']}), {network['gradient_bytes'] / 1e6:.1f} MB of gradients; a node can read "
        f"{network['reading_clips_per_sec_and_node']:,.0f} clips a second"
    )
    columns = "".join(f"{head:>26}" for head in _HEADS.values())
    lines = [title, "clips a second, and their share of so many single devices:"]
    lines.append(f"{'devices':>7}{'nodes':>7}{columns}")
    for point in network["points"]:
        cells = "".join(f"{_cell(point[name]):>26}" for name in VARIANTS)
        lines.append(f"{point['devices']:>7,}{point['nodes']:>7,}{cells}")
    if any(point[name]["waiting_sec"] > 0 for point in network["points"] for name in VARIANTS):
        lines.append("*: limited by reading")
    return lines


def _cell(step: Mapping[str, float]) -> str:
    mark = "*" if step["waiting_sec"] > 0 else " "
    return f"{step['clips_per_sec']:,.1f}{step['efficiency']:8.1%}{mark}"


def _published(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = "".join(f"{head:>26}" for head in _HEADS.values())
    lines = [f"{'Against the published run (arXiv 1910.00932)':<52}{'published':>12}{columns}"]
    for row in rows:
        shown = _UNITS[row["unit"]]
        predicted = [f"{shown(row['predicted'][name])} ({row['deviation'][name]:+.0%})" for name in VARIANTS]
        cells = "".join(f"{text:>26}" for text in predicted)
        lines.append(f"{row['what']:<52}{shown(row['published']):>12}{cells}")
    return lines


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draws throughput by network and efficiency by variant, over the devices.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    networks = result["networks"]
    num_rows = (len(networks) + 2) // 2
    with picture(path, num_rows, 2, figsize=(10, 3.6 * num_rows), squeeze=False) as (_, axes):
        rates, *shares = axes.flat
        _draw_rates(rates, result)
        lowest = []
        for color, (axis, network) in enumerate(zip(shares, networks)):
            lowest.append(_draw_shares(axis, network, f"C{color}"))
        if result["published"]:
            published = result["published"][0]["published"]
            lowest.append(published)
            shares[0].plot(
                [MAX_DEVICES], [published], "k*", markersize=9, label="published, against one node"
            )
        for axis in shares[: len(networks)]:
            axis.set_ylim(math.floor(10 * min(lowest)) / 10, 1.01)
            axis.legend(fontsize="x-small", loc="lower left")


def _draw_rates(axis: Any, result: Mapping[str, Any]) -> None:
    """Clips a second of the slowest and the fastest variant; grey: of devices that wait for nothing."""
    for color, network in enumerate(result["networks"]):
        counts = [point["devices"] for point in network["points"]]
        alone = network["batch_size"] / network["step_sec"]
        axis.plot(counts, [alone * count for count in counts], color="0.8")
        for name in ("ring", "hierarchical_overlapped"):
            values = [point[name]["clips_per_sec"] for point in network["points"]]
            label = f"{network['name']}, {_HEADS[name]}"
            axis.plot(counts, values, _STYLES[name], color=f"C{color}", label=label)
    axis.set(xscale="log", yscale="log", xlabel="devices", ylabel="clips a second")
    axis.set_title(result["cluster"]["name"])
    axis.legend(fontsize="x-small")


def _draw_shares(axis: Any, network: Mapping[str, Any], color: str) -> float:
    """Efficiency of each variant; returns the lowest."""
    counts = [point["devices"] for point in network["points"]]
    for name, head in _HEADS.items():
        values = [point[name]["efficiency"] for point in network["points"]]
        axis.plot(counts, values, _STYLES[name], color=color, label=head)
    axis.set(xscale="log", xlabel="devices", ylabel="efficiency", title=network["name"])
    return min(point[name]["efficiency"] for point in network["points"] for name in VARIANTS)


def _minutes(sec: float) -> str:
    return f"{int(sec) // 60} min {int(sec) % 60:02} s"


_UNITS: dict[str, Callable[[float], str]] = {
    "share": "{:.1%}".format,
    "sec": _minutes,
    "ratio": "{:.2f}×".format,
}
