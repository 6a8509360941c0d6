"""Computes what a network, or its backbone, gives for each clip of a config's data, once."""

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn
from tqdm import tqdm

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.data import Split, make_split
from paddlevideo_fast.cli.command import say
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine import Distribution, Precision
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.errors import FeatureError, SettingError
from paddlevideo_fast.extensions.features.loader import (
    Dtype,
    FeatureIndex,
    FeatureWriter,
    Kind,
    StoredFeatures,
)
from paddlevideo_fast.extensions.features.model import PooledFeatures, digest_of, require_head, require_logits
from paddlevideo_fast.extensions.features.recipe import (
    BACKBONE,
    FILE_STATES,
    WEIGHTS,
    file_states,
    recipe_of_features,
    require_same,
)
from paddlevideo_fast.io.files import as_path, atomic_write, atomic_write_text
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import scheme_of, shown_url
from paddlevideo_fast.jobs.dry_run import Fact, free_bytes
from paddlevideo_fast.jobs.run import duration, size_text
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.class_names import checked_class_names, write_class_names
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch, make_batch
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.log import counted, get_logger
from paddlevideo_fast.modeling import build_model, classes_of, load_weights
from paddlevideo_fast.sources.remote.sync import mirrored

logger = get_logger(__name__)

_NUM_TRIED = 16  # clips that are read to learn the shape of a row
_NUM_BATCHES, _BUDGET_SEC = 6, 20.0  # of a dry run


class Rows(NamedTuple):
    """What a batch gives: the first five are the arguments of `FeatureWriter.add`.

    Attributes:
        incidents: of the batch.
    """

    stop: int
    rows: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    failed: dict[int, tuple[str, str]]
    incidents: list[DecodeFailure]


@dataclass(eq=False, repr=False)
class Network:
    """A network and the clips of a part of the data, which it gives the features or the logits of.

    Args:
        spec: of the run.
        split: the part.
        name: of the part.
        layer: gives the rows of clips.
        precision: to compute in.
        num_copies: of each clip.
        dtype: of the values.

    Attributes:
        rows_of_copy: rows of one copy of all clips.
    """

    spec: RunSpec
    split: Split
    name: SplitName
    layer: nn.Layer
    precision: Precision
    num_copies: int
    dtype: Dtype

    def __post_init__(self) -> None:
        dataset, data, seed = self.split.dataset, self.spec.data, self.spec.run.seed
        dataset.num_attempts = 1  # no other record takes the place of one that does not decode
        self._views = 1 if self.name == "train" else dataset.num_views
        self.rows_of_copy = len(dataset) * self._views * dataset.num_crops
        size = len(dataset), data.batch_size_of(self.name)
        self._sampler = ClipBatchSampler(
            *size, shuffle=False, drop_last=False, seed=seed, num_views=self._views
        )
        self._loader = ClipLoader(dataset, self._sampler, data.num_workers_of(self.name))

    def rest(self, num_done: int) -> Iterator[Rows]:
        """Computes what is missing where the first `num_done` rows are there, batch by batch."""
        done_copies, num_rows = divmod(num_done, self.rows_of_copy)
        start_batch = num_rows // (self._sampler.batch_size * self.split.dataset.num_crops)
        for copy in range(done_copies, self.num_copies):
            yield from self._compute(copy, start_batch)
            start_batch = 0

    def _compute(self, copy: int, start_batch: int) -> Iterator[Rows]:
        """The rows of a copy of all clips, from a batch on."""
        dataset, views = self.split.dataset, self._views
        first_row = copy * self.rows_of_copy
        requests_of = self._sampler.batches(copy, start_batch)
        for requests, batch in zip(requests_of, to_device(self._loader.epoch(copy, start_batch))):
            rows, values = np.empty(0, np.int64), np.empty(0, self.dtype)
            if len(batch):
                values = self._values(batch)
                rows = first_row + batch.ids * views * dataset.num_crops + batch.views
            begin = first_row + (requests[0].index * views + requests[0].view) * dataset.num_crops
            stop = begin + len(requests) * dataset.num_crops
            causes = {incident.path: incident.cause for incident in batch.incidents}
            failed = {}
            for row in sorted(set(range(begin, stop)) - set(rows.tolist())):
                record = dataset.records[(row - first_row) // (views * dataset.num_crops)]
                path = shown_url(record.path)
                failed[row] = path, causes.get(path, "it does not decode")
            labels = np.asarray(batch.labels)
            yield Rows(stop, rows, values, labels, failed, list(batch.incidents))

    def row_shape(self) -> list[int] | None:
        """Shape of a row, by one of the first clips; None: none of these decodes."""
        for index in range(min(len(self.split.dataset), _NUM_TRIED)):
            batch = make_batch(self.split.dataset, [ClipRequest(index, 0, num_views=self._views)])
            if len(batch):
                return list(self._values(batch).shape[1:])
        return None

    def _values(self, batch: Batch) -> np.ndarray:
        with paddle.no_grad():
            given: Any = self.precision.forward(self.layer, self.split.preprocess(batch.clips))
        exact = given.astype("float32").numpy()
        with np.errstate(over="ignore"):
            values = exact.astype(self.dtype)  # Paddle 2.6 cuts off on a CPU, and does not round
        if self.dtype == "float16" and np.isinf(values).any():
            largest = float(np.abs(exact).max())
            text = f"a feature of {largest:g}, and float16 ends at 65504: compute with --dtype float32"
            raise FeatureError(f"DATASET.{self.name}: {text}")
        return values

    def close(self) -> None:
        """Ends the workers of the loader."""
        self._loader.close()


def compute_features(
    cfg: Config,
    output: Path,
    num_copies: int = 1,
    show_progress: bool = False,
    dtype: Dtype = "float32",
    kind: Kind = "features",
) -> list[StoredFeatures]:
    """Computes the features of DATASET.train and, where there is one, DATASET.valid.

    Copy k of a training clip is the clip that epoch k of a training would see. What an earlier call with the
    same arguments has computed is kept.

    Args:
        cfg: a checked config; `weights`, or `pretrained` of the backbone, says which weights.
        output: the folder; it gets one folder for each part of the data.
        num_copies: differently augmented copies of each training clip.
        show_progress: draws a bar; for a terminal.
        dtype: of the values on the disk. "float16" takes half and rounds to three digits.
        kind: "features", which the head trains on, or "logits" of the whole network.

    Returns:
        What is computed.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    if scheme_of(os.fspath(output)):
        with mirrored(output) as folder:
            stored = compute_features(cfg, folder, num_copies, show_progress, dtype, kind)
        for part in stored:
            part.folder = as_path(output) / part.folder.name
        return stored
    with cfg.placing(), only_writer(output):
        model, parts = _plan(cfg, output, num_copies, dtype, kind)
        spec = parts[0][1].spec
        unfinished = [(writer, network) for writer, network in parts if not writer.index.is_complete]
        for name, fact in _sizes(output, parts).items():
            logger.info("%s: %s", name, fact.text)
        if kind == "features":
            _save_backbone(model, output)
        elif classes := checked_class_names(cfg, classes_of(spec.model), str(spec.run.weights)):
            write_class_names(output, classes)
        for writer, network in unfinished:
            if not writer.index.num_done:
                states = file_states(network.split.dataset)
                atomic_write_text(writer.folder / FILE_STATES, json.dumps(states))
        for writer, network in unfinished:
            _fill(writer, network, show_progress)
        return [StoredFeatures(writer.folder) for writer, _ in parts]


def dry_run(
    cfg: Config, output: Path, num_copies: int = 1, dtype: Dtype = "float32", kind: Kind = "features"
) -> dict[str, Fact]:
    """What `compute_features` would read, write and take; nothing is written.

    Raises:
        PaddleVideoFastError: as `compute_features` raises.
    """
    if scheme_of(os.fspath(output)):
        with mirrored(output) as folder:
            return dry_run(cfg, folder, num_copies, dtype, kind)
    with cfg.placing():
        with only_writer(output):  # nobody else writes there, and this process can
            pass
        _, parts = _plan(cfg, output, num_copies, dtype, kind)
        facts = _sizes(output, parts)
        say("timing a few batches")
        seconds = sum(_seconds_left(writer.index, network) for writer, network in parts)
    values = {"seconds": seconds, "device": paddle.get_device()}
    return {**facts, "time": Fact(values, f"about {duration(seconds)} on {paddle.get_device()}")}


def _plan(
    cfg: Config, output: Path, num_copies: int, dtype: Dtype, kind: Kind
) -> tuple[Any, list[tuple[FeatureWriter, Network]]]:
    """The network, and each part of the data with what writes its rows; see `compute_features`."""
    cfg.require("features", "DATASET.train")
    spec = RunSpec.of(cfg)
    names: list[SplitName] = [name for name in ("train", "valid") if cfg.holds(f"DATASET.{name}")]
    pipelines = check_evaluation(spec, *names)
    if spec.config.get("train_dali"):
        raise SettingError("train_dali", "features are computed through our own loader; leave it out")
    precision = make_precision(spec.run)
    model = _with_weights(spec, kind)
    layer: nn.Layer = model if kind == "logits" else PooledFeatures(model)
    layer.eval()
    digest = digest_of(model if kind == "logits" else model.backbone)
    parts: list[tuple[FeatureWriter, Network]] = []
    for name in names:
        split = make_split(spec, name, model.layout, Distribution(), output, pipelines)
        copies = num_copies if name == "train" else 1
        recipe = {
            **recipe_of_features(spec, split.dataset, name, precision, kind, dtype),
            WEIGHTS: digest,
        }
        writer = FeatureWriter(output / name, _index(recipe, split, name, output / name, copies))
        parts.append((writer, Network(spec, split, name, layer, precision, copies, dtype)))
    return model, parts


def _with_weights(spec: RunSpec, kind: Kind) -> Any:
    weights = spec.run.weights
    model: Any = build_model(spec.model, load_pretrained=not weights and kind == "features")
    if kind == "logits":
        require_logits(model)
        if not weights:
            raise SettingError("weights", "logits need the weights of the whole network; give -w FILE")
        logger.info(load_weights(model, weights, strict=True).summary())
        return model
    require_head(model)
    if weights:
        logger.info(load_weights(model.backbone, weights, strict=True).summary())
    elif not model.backbone.pretrained:
        text = "features of a network without training are of no use; give its weights with -w FILE"
        raise SettingError("weights", text)
    return model


def _save_backbone(model: Any, output: Path) -> None:
    """Writes the backbone's weights beside the features: training on them begins from these."""
    path = output / BACKBONE
    with writing(path), atomic_write(path) as partial:
        state = model.backbone.state_dict().items()
        paddle.save({f"backbone.{name}": value for name, value in state}, str(partial))


def _sizes(output: Path, parts: Sequence[tuple[FeatureWriter, Network]]) -> dict[str, Fact]:
    """What the rows of each part are, and what those that are missing will take on the disk.

    Raises:
        FeatureError: there is less space.
    """
    needed = 0
    facts: dict[str, Fact] = {}
    for writer, network in parts:
        index = writer.index
        shape = index.shape or network.row_shape()
        if shape is None:
            continue
        index.take_shape(shape)
        needed += 0 if index.is_complete else writer.num_bytes_missing()
        num_bytes, num_records = index.num_rows * index.row_bytes, len(network.split.dataset)
        values = {
            "num_records": num_records,
            "num_rows": index.num_rows,
            "num_done": index.num_done,
            "shape": shape,
            "dtype": str(index.dtype),
            "num_bytes": num_bytes,
        }
        text = f"{counted(index.num_rows, 'row')} of {shape} in {index.dtype}, {size_text(num_bytes)}"
        facts[network.name] = Fact(
            values, f"{text}, of {counted(num_records, 'record')}; {index.num_done} are there"
        )
    free = free_bytes(output)
    assert free is not None  # a local folder
    if needed > free:
        halved = any(network.dtype == "float32" for _, network in parts)
        more = "; --dtype float16 takes half of it" if halved else ""
        raise FeatureError(
            f"--output {output}: {size_text(needed)} are still to be written, and {size_text(free)} are "
            f"free there: take a folder on a larger disk{more}"
        )
    text = f"{size_text(needed)} to write; free there: {size_text(free)}"
    return {**facts, "disk": Fact({"num_bytes": needed, "free_bytes": free}, text)}


def _seconds_left(index: FeatureIndex, network: Network) -> float:
    """About how long the missing rows take, by some batches."""
    if index.is_complete:
        return 0.0
    ends = [(time.monotonic(), index.num_done)]
    try:
        for computed in itertools.islice(network.rest(index.num_done), _NUM_BATCHES):
            ends.append((time.monotonic(), computed.stop))
            if ends[-1][0] - ends[0][0] > _BUDGET_SEC:
                break
    finally:
        network.close()
    (began, first), (ended, last) = ends[1 if len(ends) > 2 else 0], ends[-1]  # workers start in the first
    return (ended - began) / max(last - first, 1) * (index.num_rows - index.num_done)


def _index(
    recipe: dict[str, Any], split: Split, name: SplitName, folder: Path, num_copies: int
) -> FeatureIndex:
    """The index of what an earlier call has computed from the same, or a new one."""
    dataset = split.dataset
    views = 1 if name == "train" else dataset.num_views
    num_rows = num_copies * len(dataset) * views * dataset.num_crops
    earlier = FeatureIndex.read(folder)
    if earlier is None:
        return FeatureIndex(recipe, num_rows, num_copies)
    was = {**earlier.recipe, "views": earlier.num_copies}
    require_same(folder, dataset, was, {**recipe, "views": num_copies})
    return earlier


def _fill(writer: FeatureWriter, network: Network, show_progress: bool) -> None:
    """Computes what is not there."""
    index = writer.index
    if index.num_done:
        logger.info("%s: %d of %d features are there", writer.folder, index.num_done, index.num_rows)
    bar = tqdm(
        total=index.num_rows,
        initial=index.num_done,
        desc=f"features of {network.name}",
        unit="clip",
        disable=not show_progress,
    )
    try:
        for computed in network.rest(index.num_done):
            network.split.bad_samples.add(computed.incidents)
            writer.add(*computed[:5])
            bar.update(computed.stop - bar.n)
    finally:
        bar.close()
        network.close()
        writer.close()
