"""What the trackers' own readers find of a run, and which trackers are installed."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
INSTALLED = [name for name, library in _LIBRARIES.items() if importlib.util.find_spec(library)]
TRACKERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(name not in INSTALLED, reason=f"needs {name}: make test-trackers")
    )
    for name in _LIBRARIES
]


@dataclass
class Found:
    """What a tracker shows of one run.

    Attributes:
        steps: the steps of the curve of each tag, as they are stored.
        settings: the stored config, as text.
        best: the best top-1; None where the tracker has it as a curve alone.
        files: names of the stored files.
    """

    steps: dict[str, list[int]] = field(default_factory=dict)
    settings: str = ""
    best: Any = None
    files: list[str] = field(default_factory=list)


def runs_of(tracker: str, folder: Path, store: str) -> list[Found]:
    """The runs of a tracker: of an output folder, or of MLflow's store."""
    readers = {"tensorboard": _tensorboard, "wandb": _wandb}
    return readers[tracker](folder / tracker) if tracker in readers else _mlflow(store)


def _tensorboard(folder: Path) -> list[Found]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    (config,) = events.Tensors("config")
    assert len(events.Tensors("_hparams_/session_start_info")) == 1
    return [Found(steps, config.tensor_proto.string_val[0].decode())]


def _mlflow(store: str) -> list[Found]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("paddlevideo_fast")
    found = []
    for run in client.search_runs([experiment.experiment_id]):
        run_id = run.info.run_id
        assert run.data.params["epochs"] == "2"
        history = {name: client.get_metric_history(run_id, name) for name in run.data.metrics}
        steps = {name: [point.step for point in points] for name, points in history.items()}
        places = (None, "report", "checkpoints")
        files = [file.path for place in places for file in client.list_artifacts(run_id, place)]
        config = Path(experiment.artifact_location, run_id, "artifacts", "config.yaml").read_text()
        best = run.data.tags.get("best.top1")
        found.append(Found(steps, config, best and float(best), [name for name in files if "." in name]))
    return found


def _wandb(folder: Path) -> list[Found]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in folder.glob("offline-run-*/run-*.wandb"):
        run = Found()
        for data in _log_records(path.read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run.settings = "\n".join(
                    f"{item.key}: {item.value_json}" for item in record.run.config.update
                )
            elif kind == "history":
                items = record.history.item
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                (step,) = [value for name, value in row.items() if name.endswith("/step")]
                for name in row:
                    run.steps.setdefault(name, []).append(step)
            elif kind == "summary":
                changed = {item.key or "/".join(item.nested_key): item for item in record.summary.update}
                run.best = json.loads(changed["best/top1"].value_json) if "best/top1" in changed else run.best
            elif kind == "artifact":
                run.files += [entry.path for entry in record.artifact.manifest.contents]
            elif record.request.HasField("log_artifact"):
                contents = record.request.log_artifact.artifact.manifest.contents
                run.files += [entry.path for entry in contents]
        found.append(run)
    return found


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, which a .wandb file is behind its first seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
