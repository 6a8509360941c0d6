"""Trackers: VisualDL, TensorBoard, Weights & Biases and MLflow take records, settings and results of a run.

A tracker is a sink that a config chooses (TRACKERS). Its library is imported when a run begins, on rank 0
alone. `metrics.jsonl` is the truth: a tracker that opens in a resumed run first takes from it what it lacks,
and then takes no record a second time; VisualDL's file is written anew. So a run that was killed and resumed
has each step once, whatever the library had still in its buffers.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import struct
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from paddlevideo_fast.config.sections import ComponentList, NamedItem, build_list, names_of
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.extension import Extension
from paddlevideo_fast.engine.guard import call_hook
from paddlevideo_fast.engine.output import CheckpointStore
from paddlevideo_fast.engine.sinks import Record, Sink, scalars_of
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.log import printable
from paddlevideo_fast.registry import EXTENSIONS, Registry

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.config import Config

TRACKERS = Registry("tracker", __name__, base="Tracker")
VISUALDL = "visualdl"  # its name in the registry

# sections that are not compared in the table of runs of a tracker
_NOT_COMPARED = ("DATASET", "PIPELINE", "METRIC", "CALLBACKS", "TRACKERS", "RUNTIME", "STORAGE")
_KINDS = ("train", "train_epoch", "valid")
_IDS = "trackers.json"
_LENGTH = struct.Struct("<Q")  # of the record behind it, in VisualDL's files
Checkpoints = Literal["best", "all", "none"]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows.

    Attributes:
        name: the `model_name` of the config.
        folder: the output folder, which holds metrics.jsonl.
        settings: the resolved config.
        compared: the settings in which runs differ, by dotted key.
        measured: the value of "valid" records in which runs are compared; "": there are none.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    compared: Mapping[str, str | int | float] = field(default_factory=dict)
    measured: str = ""

    def records(self) -> Iterator[Record]:
        """What metrics.jsonl holds; a resumed run has taken out the steps that it repeats."""
        path = self.folder / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            yield json.loads(line)

    def recall(self, tracker: str) -> str | None:
        """The name of this run in a tracker, as `remember` has kept it."""
        return self._ids().get(tracker)

    def remember(self, tracker: str, run_id: str) -> None:
        """Keeps the name of this run in a tracker, so that a resumed run goes on with it."""
        ids = {**self._ids(), tracker: run_id}
        atomic_write_text(self.folder / _IDS, json.dumps(ids, indent=1) + "\n")

    def _ids(self) -> dict[str, str]:
        try:
            ids = json.loads((self.folder / _IDS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}


@dataclass(frozen=True)
class Results:
    """What a finished training leaves.

    Attributes:
        best: the best validation and its epoch, `{"top1": 0.9, "epoch": 3}`; empty without validation.
        reports: report.html; nothing with `report: false`.
        weights: of the best epoch; without validation, of the last one.
        checkpoint: all files of the newest checkpoint.
    """

    best: Mapping[str, float]
    reports: list[Path]
    weights: list[Path]
    checkpoint: list[Path]

    def kept(self, checkpoints: Checkpoints) -> list[Path]:
        """The files that a tracker takes: the best weights, all of the newest checkpoint as well, or none."""
        if checkpoints == "none":
            return []
        return list(dict.fromkeys([*self.weights, *(self.checkpoint if checkpoints == "all" else ())]))


@dataclass(eq=False, repr=False)
class Tracker(Sink):
    """A sink that a config chooses. Methods do nothing unless a subclass overrides them.

    Rank 0 alone has trackers. The first error of a tracker is one warning, and the run goes on without it.

    Args:
        run: that it follows; given by the toolkit.
    """

    injected: ClassVar[tuple[str, ...]] = ("run",)

    run: TrackedRun

    def finish(self, results: Results) -> None:
        """Takes the results, after the last epoch."""


@TRACKERS.register("visualdl")
@dataclass(eq=False, repr=False)
class VisualDL(Tracker):
    """VisualDL: curves, clips and settings, in `vdl/` of the output folder.

    `visualdl --logdir output/vdl` shows them.
    """

    _parts: Any = field(default=None, init=False)  # the module that makes VisualDL's records
    _path: Path | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.folder = self.run.folder / "vdl"

    def open(self, step: int, epoch: int) -> None:
        """Writes the curves of metrics.jsonl into one event file: VisualDL shows the newest of a folder.

        Its own `LogWriter` writes in a thread, which ends at the first error; then the run waits for ever.
        """
        with needing("", "VisualDL (-o use_visualdl=false leaves it out)", "visualdl"):
            from visualdl.component import base_component
        self._parts = base_component
        with writing(self.folder):
            *others, self._path = sorted(self.folder.glob("vdlrecords.*")) or [
                self.folder / f"vdlrecords.{int(time.time()):010d}.log"
            ]
            for path in (*others, self._path):
                path.unlink(missing_ok=True)
            self._add(base_component.meta_data(display_name="", walltime=_now_ms()))
            if self.run.compared:
                identity = hashlib.sha256(os.fsencode(self._path)).hexdigest()
                shown = ["train_epoch/loss", *([f"valid/{self.run.measured}"] if self.run.measured else [])]
                self._add(base_component.hparam(identity, dict(self.run.compared), shown, _now_ms()))
            for record in self.run.records():
                self.write(record)

    def write(self, record: Record) -> None:
        """Adds each number under `kind/name`."""
        step, now_ms = int(record["step"]), _now_ms()
        scalars = scalars_of(record).items()
        self._add(*(self._parts.scalar(tag, value, step, now_ms) for tag, value in scalars))

    def add_clips(self, tag: str, step: int, sheets: Mapping[str, np.ndarray]) -> None:
        """Adds pictures.

        Args:
            tag: what they are.
            step: optimizer step.
            sheets: name → uint8 [H, W, 3].
        """
        for name, sheet in sheets.items():
            self._add(self._parts.image(f"{tag}/{_in_tag(name)}", sheet, step, _now_ms()))

    def _add(self, *records: Any) -> None:
        assert self._path is not None
        self.folder.mkdir(parents=True, exist_ok=True)  # it may have been removed since
        events = [record.SerializeToString() for record in records]
        with self._path.open("ab") as file:
            file.write(b"".join(_LENGTH.pack(len(event)) + event for event in events))


def _in_tag(name: str) -> str:
    """A name as a part of a tag. VisualDL takes the sign % for a slash."""
    return printable(name).replace("%", "\N{FULLWIDTH PERCENT SIGN}")


def _now_ms() -> int:
    return round(time.time() * 1000)


class _Library(Tracker):
    """A tracker that takes each record once, also those that it lacks when a run is resumed."""

    _last: Mapping[str, int] = {}

    def open(self, step: int, epoch: int) -> None:
        self._last = self._begin()
        for record in self.run.records():
            self.write(record)

    def write(self, record: Record) -> None:
        if record["step"] > self._last.get(record["kind"], -1):
            self._log(record, scalars_of(record))

    def _begin(self) -> Mapping[str, int]:
        """Goes on with the run, or begins one; returns the last step that it has of each kind of record."""
        raise NotImplementedError

    def _log(self, record: Record, scalars: Mapping[str, float]) -> None:
        """Takes the numbers of a record, by their tags `kind/name`."""
        raise NotImplementedError


@TRACKERS.register("tensorboard")
class TensorBoard(_Library):
    """TensorBoard: curves and settings, in `tensorboard/` of the output folder.

    `tensorboard --logdir output` shows them. Its own package writes the files, without TensorFlow or PyTorch.
    """

    _path: Path

    def _begin(self) -> Mapping[str, int]:
        with needing("tensorboard", "TRACKERS: tensorboard"):
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
            from tensorboard.compat.proto.event_pb2 import Event
        folder = self.run.folder / "tensorboard"
        last: dict[str, int] = {}
        earlier = sorted(folder.glob("events.out.tfevents.*"))
        for event in (event for path in earlier for event in EventFileLoader(str(path)).Load()):
            for value in event.summary.value:
                kind = value.tag.partition("/")[0]
                last[kind] = max(event.step, last.get(kind, -1))
        # Each start has a file, as the last record of one that was killed may be cut short. TensorBoard reads
        # the files in the order of their names, and a clock may stand still or go back between two starts.
        seconds = [part for path in earlier if (part := path.name.split(".")[3]).isdecimal()]
        second = max(int(time.time()), *(int(part) + 1 for part in seconds), 0)
        name = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.{len(earlier)}"
        self._path = folder / name
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if not last:
            self._add_settings()
        return last

    def _add_settings(self) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add_summary(0, hparams_pb(dict(self.run.compared)))
        lines = dump(dict(self.run.settings)).splitlines()
        self._add_summary(
            0, text_pb("config", "\n".join(f"    {line}" for line in lines))
        )  # Markdown's verbatim

    def _log(self, record: Record, scalars: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add_summary(record["step"], Summary(value=values))

    def _add_summary(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def _add(self, event: Any) -> None:
        # TensorBoard's EventFileWriter writes in a thread; after an error there, the run would wait for ever
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed since
        with self._path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())


@TRACKERS.register("wandb")
@dataclass(eq=False, repr=False)
class WeightsAndBiases(_Library):
    """Weights & Biases: curves, settings, the best result, report and weights.

    Each record is a row; the axis of its curves is the optimizer step. Offline, the rows wait in `wandb/` of
    the output folder for `wandb sync`.

    Args:
        project: of W&B.
        entity: user or team; null for W&B's default.
        mode: null for what the variable WANDB_MODE says, else online.
        checkpoints: what is stored as an artifact when training ends: the `best` weights, `all`: the newest
            checkpoint as well, or `none`.
    """

    project: str = "paddlevideo_fast"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    checkpoints: Checkpoints = "best"
    _run: Any = field(default=None, init=False)

    _num_rows = 0
    _finished = False

    def _begin(self) -> Mapping[str, int]:
        with needing("wandb", "TRACKERS: wandb"):
            import wandb
        run_id = self.run.recall("wandb") or uuid.uuid4().hex[:8]
        self.run.remember("wandb", run_id)
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=str(self.run.folder),
            id=run_id,
            resume="allow",
            name=self.run.name,
            config=dict(self.run.settings),
            allow_val_change=True,  # a resumed run may train for more epochs
            settings=wandb.Settings(console="off", silent=True),
        )
        if self._run.offline:
            # This start writes all rows anew: one that was killed has lost what W&B had in its buffers.
            for folder in (self.run.folder / "wandb").glob(f"offline-run-*-{run_id}"):
                if folder != Path(self._run.sync_dir):
                    shutil.rmtree(folder)
        for kind in _KINDS:
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        return {}

    def _log(self, record: Record, scalars: Mapping[str, float]) -> None:
        self._num_rows += 1
        if self._num_rows > self._run.starting_step:  # the server has the rows before it
            self._run.log({**scalars, f"{record['kind']}/step": record["step"]})

    def finish(self, results: Results) -> None:
        self._run.summary.update({f"best/{name}": value for name, value in results.best.items()})
        name = re.sub(r"[^\w.-]", "-", self.run.name)
        for kind, files in (("report", results.reports), ("model", results.kept(self.checkpoints))):
            if files:
                self._log_artifact(f"{name}-{kind}", kind, files)
        self._finished = True

    def _log_artifact(self, name: str, kind: str, files: list[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(name, kind)
        for file in files:
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._finished else 1)
            self._run = None


@TRACKERS.register("mlflow")
@dataclass(eq=False, repr=False)
class MLflow(_Library):
    """MLflow: curves, settings, the best result, report and weights.

    Args:
        uri: of the tracking store, such as `sqlite:///mlflow.db` or `http://host:5000`; null for what the
            variable MLFLOW_TRACKING_URI says, else MLflow's default.
        experiment: it is made where it is missing.
        checkpoints: as for wandb.
    """

    uri: str | None = None
    experiment: str = "paddlevideo_fast"
    checkpoints: Checkpoints = "best"
    _client: Any = field(default=None, init=False)

    _id = ""
    _status = "KILLED"

    def _begin(self) -> Mapping[str, int]:
        with needing("mlflow", "TRACKERS: mlflow"):
            from mlflow import MlflowClient
        client = MlflowClient(tracking_uri=self.uri)
        known = self.run.recall("mlflow")
        self._id = known or self._new_run(client)
        self._client = client
        client.update_run(self._id, status="RUNNING")
        client.log_dict(self._id, dict(self.run.settings), "config.yaml")
        # the last number of a record: a process that dies while it writes one has not written that
        history = {kind: client.get_metric_history(self._id, f"{kind}/step") for kind in _KINDS if known}
        return {kind: max((point.step for point in points), default=-1) for kind, points in history.items()}

    def _new_run(self, client: Any) -> str:
        from mlflow.entities import Param

        experiment = client.get_experiment_by_name(self.experiment)
        place = experiment.experiment_id if experiment else client.create_experiment(self.experiment)
        run_id = client.create_run(place, run_name=self.run.name).info.run_id
        self.run.remember("mlflow", run_id)
        settings = [Param(name, str(value)[:500]) for name, value in self.run.compared.items()]
        for begin in range(0, len(settings), 100):  # as many as MLflow takes at a time
            client.log_batch(run_id, params=settings[begin : begin + 100])
        return run_id

    def _log(self, record: Record, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms, step = int(time.time() * 1000), record["step"]
        numbers = {**scalars, f"{record['kind']}/step": float(step)}
        metrics = [Metric(name, value, now_ms, step) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, results: Results) -> None:
        for name, value in results.best.items():
            self._client.set_tag(self._id, f"best.{name}", f"{value:.6g}")
        for folder, files in (("report", results.reports), ("checkpoints", results.kept(self.checkpoints))):
            for file in files:
                self._client.log_artifact(self._id, str(file), folder)
        self._status = "FINISHED"

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, self._status)
            self._client = None


def flattened(values: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Flattens settings for a table of runs: {"A": {"b": 1}} becomes {"A.b": 1}.

    Only text and numbers stay; a truth value becomes 0 or 1.
    """
    scalars: dict[str, str | int | float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            scalars.update(flattened({f"{key}.{name}": item for name, item in value.items()}))
        elif isinstance(value, (str, int, float)):
            scalars[key] = int(value) if isinstance(value, bool) else value
    return scalars


@EXTENSIONS.register("TRACKERS", "use_visualdl")
@dataclass(frozen=True)
class Trackers(Extension):
    """Where curves, settings and results go besides the output folder.

    Args:
        TRACKERS: the trackers, by name; without this section `visualdl`.
        use_visualdl: write curves, clips and settings for VisualDL; without this key TRACKERS decides.
    """

    parts: ClassVar = {  # before the field hides the registry
        "TRACKERS": ComponentList(
            TRACKERS,
            purpose="Where curves, settings and results go besides the output folder. Without this section: "
            "`visualdl`. Where `use_visualdl` is written, it decides on VisualDL.",
            plain_names=True,
        )
    }
    TRACKERS: Sequence[NamedItem] | None = None
    use_visualdl: bool = True

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: "Config") -> "Trackers":
        """The trackers, with or without VisualDL as `use_visualdl` says."""
        items = config.get("TRACKERS")
        listed: list[NamedItem] = [VISUALDL] if items is None else list(items)
        others = [item for item, name in zip(listed, names_of(listed)) if name != VISUALDL]
        if not config.get("use_visualdl", VISUALDL in names_of(listed)):
            return cls(others, False)
        return cls(listed if len(others) < len(listed) else [VISUALDL, *listed], True)

    def callbacks(self, setup: "TrainingSetup") -> Iterable[Callback]:
        """Adds the trackers to the places where records go.

        Raises:
            ConfigError: one is listed twice.
        """
        items, spec, metric = self.TRACKERS or (), setup.spec, setup.plan.metric
        name, count = Counter([*names_of(items), ""]).most_common(1)[0]
        if count > 1:
            raise SettingError("TRACKERS", f"{name} is listed {count} times")
        if not setup.distribution.is_main:
            return
        compared = {
            "epochs": spec.run.epochs,
            "seed": spec.run.seed,
            "accumulate_steps": spec.run.accumulate_steps,
            "DATASET.batch_size": spec.data.batch_size,
            **{key: each for key, each in spec.config.items() if key.isupper() and key not in _NOT_COMPARED},
        }
        measured = (metric.value_names or ("top1",))[0] if metric else ""
        folder = setup.output_folder
        run = TrackedRun(spec.run.model_name, folder, dict(spec.config), flattened(compared), measured)
        trackers = build_list(TRACKERS, items, run=run)
        setup.sinks += trackers
        assert setup.store is not None
        yield Tracking(trackers, setup.store)


class Tracking(Callback):
    """Gives the trackers best result, report and weights after the last epoch.

    Args:
        trackers: of the run.
        store: of the run's checkpoints.
    """

    slot = Slot.SHOW
    non_critical = True

    def __init__(self, trackers: Sequence[Tracker], store: CheckpointStore) -> None:
        self.trackers = list(trackers)
        self.store = store

    def fit_end(self, trainer: Trainer) -> None:
        report, newest = self.store.folder / "report.html", trainer.last_checkpoint
        checkpoint = self.store.files(newest) if newest else []
        weights = [path for path in checkpoint if path.suffix == ".pdparams"]
        results = Results(
            best=trainer.state.best,
            reports=[report] if report.exists() else [],
            weights=self.store.files(str(self.store.prefix("best"))) or weights,
            checkpoint=checkpoint,
        )
        call_hook(self.trackers, "finish", results)
