"""Computes what a network, or its backbone, gives for each clip of a config's data, once."""

import itertools
import json
import os
import shutil
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn
from tqdm import tqdm

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.classes import checked_class_names
from paddlevideo_fast.assembly.data import Split, make_split
from paddlevideo_fast.assembly.plan import make_precision
from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine import Distribution, Precision
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.errors import FeatureError, SettingError
from paddlevideo_fast.extensions.features.loader import (
    KIND,
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
    NETWORK,
    WEIGHTS,
    file_states,
    recipe_of_features,
    require_same,
)
from paddlevideo_fast.io.files import as_path, atomic_write, atomic_write_text
from paddlevideo_fast.io.urls import scheme_of, shown_url
from paddlevideo_fast.jobs.executor import LOCAL, Engine, located
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.batches import ClipBatchSampler, EpochBatches
from paddlevideo_fast.loader.class_names import write_class_names
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch, make_batch
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.sources.remote.sync import mirrored

logger = get_logger(__name__)

_CONFIG = ".config.yaml"  # for the workers of a cluster
_NUM_TRIED = 16  # clips that are read to learn the shape of a row


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


class Block(NamedTuple):
    """Batches of a copy: `num_batches` from `first` on; None: all from there on."""

    copy: int
    first: int
    num_batches: int | None


class _SomeBatches(ClipBatchSampler):
    """A sampler that ends after `num_wanted` batches; None: with the epoch."""

    num_wanted: int | None = None

    def batches(self, epoch: int, start_batch: int = 0) -> EpochBatches:
        return super().batches(epoch, start_batch).first(self.num_wanted)


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
        num_workers: processes that read; None: as configured.

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
    num_workers: int | None = None

    def __post_init__(self) -> None:
        dataset, data, seed = self.split.dataset, self.spec.data, self.spec.run.seed
        dataset.num_attempts = 1  # no other record takes the place of one that does not decode
        self._views = 1 if self.name == "train" else dataset.num_views
        self.rows_of_copy = len(dataset) * self._views * dataset.num_crops
        size = len(dataset), data.batch_size_of(self.name)
        self._sampler = _SomeBatches(*size, shuffle=False, drop_last=False, seed=seed, num_views=self._views)
        workers = data.num_workers_of(self.name) if self.num_workers is None else self.num_workers
        self._loader = ClipLoader(dataset, self._sampler, workers)

    def rest(self, num_done: int, num_batches: int | None = None) -> list[Block]:
        """What is to compute where `num_done` rows are there, in blocks of at most so many batches."""
        done_copies, rest = divmod(num_done, self.rows_of_copy)
        start = rest // (self._sampler.batch_size * self.split.dataset.num_crops)
        blocks = []
        for copy in range(done_copies, self.num_copies):
            step = num_batches or self._sampler.num_batches
            for first in range(0, self._sampler.num_batches, step):
                if first + step > start:
                    begin = max(first, start)
                    blocks.append(Block(copy, begin, first + step - begin if num_batches else None))
            start = 0
        return blocks

    def compute(self, block: Block) -> Iterator[Rows]:
        """The rows of the batches of a block, in their order."""
        dataset, views = self.split.dataset, self._views
        first_row = block.copy * self.rows_of_copy
        self._sampler.num_wanted = block.num_batches
        requests_of = self._sampler.batches(block.copy, block.first)
        for requests, batch in zip(requests_of, to_device(self._loader.epoch(block.copy, block.first))):
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
    work: Work | None = None,
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
        work: where it is done, and which share of it; None: all of it, by this process and the workers of
            its loaders.
        dtype: of the values on the disk. "float16" takes half and rounds to three digits.
        kind: "features", which the head trains on, or "logits" of the whole network.

    Returns:
        What is computed; nothing where a share of it is done.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    if scheme_of(os.fspath(output)):
        if work and (work.share or work.merges or work.engine.scheduler != LOCAL):
            raise FeatureError(
                f"--output {output}: one machine computes features to a URL: leave out --shard, --merge and "
                "--scheduler, or give a folder that all machines see"
            )
        with mirrored(output) as folder:
            found = compute_features(cfg, folder, num_copies, show_progress, work, dtype, kind)
        for part in found:
            part.folder = as_path(output) / part.folder.name
        return found
    with cfg.placing():
        cfg.require("features", "DATASET.train")
        spec = RunSpec.of(cfg)
        names: list[SplitName] = [name for name in ("train", "valid") if cfg.holds(f"DATASET.{name}")]
        pipelines = check_evaluation(spec, *names)
        if spec.config.get("train_dali"):
            raise SettingError("train_dali", "features are computed through our own loader; leave it out")
        precision = make_precision(spec)
        model = _with_weights(spec, kind)
        layer = _layer_of(model, kind)
        work = work or Work(Engine())
        folders = [output / name for name in names]
        with work.writing(output, "features", folders=folders):
            digest, parts = digest_of(_stored_part(model, kind)), []
            for name in names:
                split = make_split(spec, name, model.layout, Distribution(), output, pipelines)
                copies = num_copies if name == "train" else 1
                recipe = {**recipe_of_features(spec, split, name, kind, dtype), WEIGHTS: digest}
                writer = FeatureWriter(output / name, _index(recipe, split, name, output / name, copies))
                if not writer.index.is_complete:
                    parts.append((writer, Network(spec, split, name, layer, precision, copies, dtype)))
            _require_space(output, parts, work)
            _keep_weights(model, output, kind, work)
            if kind == "logits" and (classes := checked_class_names(spec, str(spec.run.weights))):
                write_class_names(output, classes)
            for writer, network in parts:
                _fill(writer, network, work, show_progress)
            if not work.is_whole:
                return []
            return [StoredFeatures(output / name) for name in names]


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


def _layer_of(model: Any, kind: Kind) -> nn.Layer:
    """What gives the rows."""
    layer = model if kind == "logits" else PooledFeatures(model)
    layer.eval()
    return layer


def _stored_part(model: Any, kind: Kind) -> nn.Layer:
    """The part of a network whose weights decide the rows."""
    return model if kind == "logits" else model.backbone


def _keep_weights(model: Any, output: Path, kind: Kind, work: Work) -> None:
    """Puts weights beside the rows: training on features, and workers of a cluster, begin from them."""
    if kind == "logits" and work.engine.scheduler == LOCAL:
        return
    path, prefix = (output / NETWORK, "") if kind == "logits" else (output / BACKBONE, "backbone.")
    with writing(path), atomic_write(path) as partial:
        state = _stored_part(model, kind).state_dict().items()
        paddle.save({f"{prefix}{name}": value for name, value in state}, str(partial))


def _require_space(output: Path, parts: Sequence[tuple[FeatureWriter, Network]], work: Work) -> None:
    """Says what the rows will take on the disk.

    Raises:
        FeatureError: there is less space.
    """
    needed = 0
    for writer, network in parts:
        index = writer.index
        shape = index.shape or network.row_shape()
        if shape is None:
            continue
        index.take_shape(shape)
        needed += writer.num_bytes_missing()
        size = _shown_size(index.num_rows * index.row_bytes)
        logger.info("%s: %d rows of %s in %s, %s", writer.folder, index.num_rows, shape, index.dtype, size)
    if work.share is not None:
        needed //= work.share.total
    free = shutil.disk_usage(output).free
    if needed > free:
        halved = any(network.dtype == "float32" for _, network in parts)
        more = "; --dtype float16 takes half of it" if halved else ""
        raise FeatureError(
            f"--output {output}: {_shown_size(needed)} are still to be written, and {_shown_size(free)} are "
            f"free there: take a folder on a larger disk{more}"
        )
    logger.info("to write: %s; free there: %s", _shown_size(needed), _shown_size(free))


def _shown_size(num_bytes: int) -> str:
    exponent = min(4, max(0, (len(str(num_bytes)) - 1) // 3))
    return f"{num_bytes / 1000**exponent:.3g} {('bytes', 'KB', 'MB', 'GB', 'TB')[exponent]}"


def _index(
    recipe: dict[str, Any], split: Split, name: SplitName, folder: Path, num_copies: int
) -> FeatureIndex:
    """The index of what an earlier call has computed from the same, or a new one."""
    dataset = split.dataset
    views = 1 if name == "train" else dataset.num_views
    num_rows = num_copies * len(dataset) * views * dataset.num_crops
    found = FeatureIndex.read(folder)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / FILE_STATES, json.dumps(file_states(dataset)))
        return FeatureIndex(recipe, num_rows, num_copies)
    was = {**found.recipe, "views": found.num_copies}
    require_same(folder, dataset, was, {**recipe, "views": num_copies})
    return found


def _fill(writer: FeatureWriter, network: Network, work: Work, show_progress: bool) -> None:
    """Computes what is not there, or a share of it in files of their own, or puts such files together."""
    index, bad = writer.index, network.split.bad_samples
    if index.num_done:
        logger.info("%s: %d of %d features are there", writer.folder, index.num_done, index.num_rows)
    if not work.is_whole:
        try:
            _compute_share(writer, network, work)
        finally:
            network.close()
        return
    elsewhere = work.engine.scheduler != LOCAL
    bar = tqdm(
        total=index.num_rows,
        initial=index.num_done,
        desc=f"features of {network.name}",
        unit="clip",
        disable=not show_progress or elsewhere,
    )
    if work.merges:
        source = _of_shares(writer, network)
    elif elsewhere:
        source = _from_workers(writer, network, work)
    else:
        blocks = network.rest(index.num_done)
        source = itertools.chain.from_iterable(map(network.compute, blocks))
    try:
        for found in source:
            bad.add(found.incidents)
            writer.add(*found[:5])
            bar.update(found.stop - bar.n)
    finally:
        bar.close()
        network.close()
        writer.close()
    for file in [*writer.folder.glob(f"{_share_prefix(writer)}*")]:
        file.unlink()


# --- by several machines


_NUM_BATCHES = 8  # that a worker gets at a time, or that a file of a share has the features of
_ONE_AT_A_TIME = Lock()  # a network computes for one thread of a worker
_LAST: dict[Any, Network] = {}  # the network of a worker


class _Task(NamedTuple):
    """A block for a worker on another machine.

    Attributes:
        working: folder that relative paths of the config start from.
        output: of the features.
        name: of the part of the data.
        num_copies: of each clip.
        digest: of the weights.
        kind: features or logits.
        dtype: of their values.
        run: tells the runs of a client apart.
        block: to compute.
    """

    working: str
    output: str
    name: SplitName
    num_copies: int
    digest: str
    kind: Kind
    dtype: Dtype
    run: str
    block: Block


def _from_workers(writer: FeatureWriter, network: Network, work: Work) -> Iterator[Rows]:
    """The rows that are missing, in their order, computed by the workers of a cluster."""
    output = Path(located(writer.folder.parent))
    network.spec.config.save(output / _CONFIG)
    recipe, copies = writer.index.recipe, network.num_copies
    made = recipe[WEIGHTS], recipe[KIND], network.dtype, uuid.uuid4().hex
    tasks = [
        _Task(os.getcwd(), str(output), network.name, copies, *made, block)
        for block in network.rest(writer.index.num_done, _NUM_BATCHES)
    ]
    try:
        for found in work.run(_compute_block, tasks, f"blocks of {network.name}", [os.getcwd()]):
            yield from found
    finally:
        (output / _CONFIG).unlink(missing_ok=True)


def _compute_block(task: _Task) -> list[Rows]:
    """Computes a block with the network of this process, which is built for the first block of a run."""
    with _ONE_AT_A_TIME:
        paddle.set_device(paddle.get_device())  # a thread of a worker begins on the first GPU
        before = os.getcwd()
        os.chdir(task.working)
        try:
            key = task._replace(block=None)  # type: ignore[arg-type]
            if key not in _LAST:
                _LAST.clear()
                _LAST[key] = _network_of(task)
            return list(_LAST[key].compute(task.block))
        finally:
            os.chdir(before)


def _network_of(task: _Task) -> Network:
    output = Path(task.output)
    spec = RunSpec.of(load_config(output / _CONFIG))
    model = build_model(spec.model, load_pretrained=False)
    part = _stored_part(model, task.kind)
    path = output / (NETWORK if task.kind == "logits" else BACKBONE)
    load_weights(part, path, strict=True)
    if digest_of(part) != task.digest:
        raise FeatureError(f"{path}: has other weights than this run")
    layer, copies = _layer_of(model, task.kind), task.num_copies
    split = make_split(spec, task.name, model.layout, Distribution())
    return Network(spec, split, task.name, layer, make_precision(spec), copies, task.dtype, num_workers=0)


def _compute_share(writer: FeatureWriter, network: Network, work: Work) -> None:
    """Computes this job's blocks; each gives a file that appears whole."""
    blocks = network.rest(0, _NUM_BATCHES)
    mine = [(block, _share_file(writer, block)) for block in work.mine(blocks)]
    missing = [(block, file) for block, file in mine if not file.exists()]
    for place, (block, file) in enumerate(missing, 1):
        found = list(network.compute(block))
        some = [one for one in found if len(one.rows)]
        arrays: Any = {
            name: np.concatenate([getattr(one, name) for one in some]) if some else np.empty(0)
            for name in ("rows", "features", "labels")
        }
        failed = [[row, *why] for one in found for row, why in one.failed.items()]
        text = json.dumps([found[-1].stop, failed, [incident for one in found for incident in one.incidents]])
        with atomic_write(file) as partial, open(partial, "wb") as opened:
            np.savez(opened, text=np.frombuffer(text.encode(), np.uint8), **arrays)
        logger.info("%s: block %d of %d of this share", writer.folder, place, len(missing))
    share = work.share
    assert share is not None
    text = "%s: share %d/%d is done; when all are, run the same command with --merge in place of --shard"
    logger.info(text, writer.folder, *share)


def _of_shares(writer: FeatureWriter, network: Network) -> Iterator[Rows]:
    """The rows that jobs have computed, in their order.

    Raises:
        FeatureError: some are missing, or a file is damaged.
    """
    files = [_share_file(writer, block) for block in network.rest(0, _NUM_BATCHES)]
    missing = sum(not file.exists() for file in files)
    if missing:
        raise FeatureError(
            f"--merge: {missing} of {len(files)} blocks of {writer.folder} are missing: wait for the end of "
            "all --shard jobs, and start again what was stopped"
        )
    for file in files:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                stop, failed, incidents = json.loads(arrays["text"].tobytes())
                rows, features, labels = (arrays[name] for name in ("rows", "features", "labels"))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            text = f"{file}: cannot be read: {error}; remove it, and run its share again"
            raise FeatureError(text) from error
        causes = {int(row): (path, cause) for row, path, cause in failed}
        yield Rows(stop, rows, features, labels, causes, [DecodeFailure(*one) for one in incidents])


def _share_file(writer: FeatureWriter, block: Block) -> Path:
    """Where a share stores a block; the name tells what it is computed from."""
    return writer.folder / f"{_share_prefix(writer)}{block.copy}-{block.first:08d}.npz"


def _share_prefix(writer: FeatureWriter) -> str:
    index = writer.index
    made_from = json.dumps([index.recipe, index.num_rows, index.num_copies], sort_keys=True)
    return f".share-{zlib.crc32(made_from.encode()):08x}-"
