"""Predictions, and what they took, as text and for JSON."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Sequence, Union

from paddlevideo_fast.deploy.prediction import BatchTime, Prediction
from paddlevideo_fast.deploy.windows import WindowedPrediction

Entry = Dict[str, Any]

_WARMUP_BATCHES = 3


def entry_of(prediction: Union[Prediction, WindowedPrediction], top_k: int) -> Entry:
    """A prediction for JSON.

    Args:
        prediction: of a video.
        top_k: classes to list.

    Returns:
        `path` and `top`, a list of class_id, name and score, the best first. Where there are windows, also
        `windows`, each with start_sec, end_sec and `top`, and `segments`, each with start_sec, end_sec,
        class_id, name and score.
    """
    if isinstance(prediction, Prediction):
        return {"path": prediction.path, "top": _tops(prediction, top_k)}
    fps = prediction.fps
    windows = [
        {"start_sec": first / fps, "end_sec": stop / fps, "top": _tops(part, top_k)}
        for (first, stop), part in zip(prediction.windows, prediction.parts)
    ]
    segments = [
        {"start_sec": segment.start_sec, "end_sec": segment.end_sec, **segment.best._asdict()}
        for segment in prediction.segments()
    ]
    return {**entry_of(prediction.whole, top_k), "windows": windows, "segments": segments}


def table(entry: Entry) -> str:
    """A file of `entry_of`, its most probable classes, and the best one of each window and segment."""
    lines = [entry["path"], *(_row("", top) for top in entry["top"])]
    if "windows" in entry:
        lines += ["  windows", *(_row(_span(window), window["top"][0]) for window in entry["windows"])]
        lines += ["  segments", *(_row(_span(segment), segment) for segment in entry["segments"])]
    return "\n".join(lines)


def timing(times: Sequence[BatchTime]) -> str:
    """Medians over the batches of a prediction, the first ones left out."""
    times = times[_WARMUP_BATCHES:] or times
    preprocess_ms = statistics.median(time.preprocess_sec for time in times) * 1e3
    inference_ms = statistics.median(time.inference_sec for time in times) * 1e3
    return (
        f"preprocess_time(ms): {preprocess_ms:.1f}, inference_time(ms): {inference_ms:.1f}: "
        f"median of {len(times)} batches of {times[0].num_files} files"
    )


def _tops(prediction: Prediction, top_k: int) -> List[Entry]:
    return [score._asdict() for score in prediction.top(top_k)]


def _row(span: str, best: Entry) -> str:
    return f"{span}  {best['score']:8.5f}  {best['name']}"


def _span(part: Entry) -> str:
    return f"  {part['start_sec']:8.2f} - {part['end_sec']:8.2f} s"
