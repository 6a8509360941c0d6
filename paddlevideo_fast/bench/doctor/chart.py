"""The doctor's findings as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from paddlevideo_fast.report import picture

_READING, _TRAINING, _GAIN = "C1", "C0", "C2"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draws the stages of a step, and what each change is predicted to gain.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, 1, 2, figsize=(11, 4.2)) as (_, (left, right)):
        bars = [
            (f"{stage}", sec * 1e3, color)
            for part, color in (("reading", _READING), ("training", _TRAINING))
            for stage, sec in result["stages_sec"][part].items()
        ]
        places = range(len(bars))[::-1]
        left.barh(places, [bar[1] for bar in bars], color=[bar[2] for bar in bars])
        left.set_yticks(places, [bar[0] for bar in bars])
        left.set(title="one step, in one process", xlabel="ms")
        for key, style in (("real", "-"), ("synthetic", ":")):
            label = "a step" if key == "real" else "a step on made-up batches"
            left.axvline(result[key]["step_sec"] * 1e3, color="0.3", linestyle=style, label=label)
        left.legend()
        gains = [("as it is", 1.0)] + [(r["name"], r["gain"]) for r in result["remedies"] if r["gain"]]
        speed = result["real"]["clips_per_sec"]
        places = range(len(gains))[::-1]
        drawn = right.barh(
            places, [gain * speed for _, gain in gains], color=["0.6", *[_GAIN] * (len(gains) - 1)]
        )
        right.bar_label(drawn, [f"{gain:.2f}×" for _, gain in gains], padding=3)
        right.set_yticks(places, [name for name, _ in gains])
        right.margins(x=0.15)
        right.set(title="predicted, each change alone", xlabel="clips a second")
