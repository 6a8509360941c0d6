"""Features of a network's backbone: computed once for each clip of a config's data, then trained on."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
import paddle
from tqdm import tqdm

from paddlevideo_fast.assembly.consistency import check_sections
from paddlevideo_fast.assembly.data import Split, data_identity, make_split
from paddlevideo_fast.assembly.environment import check_environment, make_precision
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine import Distribution, Precision
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.files import whole
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.features import FeatureIndex, FeatureLoader, FeatureWriter, StoredFeatures
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.locks import only_writer
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.modeling.features import HeadOnly, PooledFeatures, backbone_digest, require_head

logger = get_logger(__name__)

_BACKBONE = "backbone.pdparams"
_WEIGHTS = "the SHA-256 of the backbone"
# what decides only how often a record is drawn, or where its list lies; the records themselves are compared
_NO_MATTER = ("file_path", "data_prefix", "num_retries", "sampler", "clips_per_video")
_OF_POOLING = ("name", "data_format", "crop_size", "multigrid_short")


class ComputedFeatures(NamedTuple):
    """Features of one part of the data.

    Attributes:
        folder: where they are.
        num_rows: features, over all views and copies.
        num_failed: clips that do not decode.
        shape: of a feature.
    """

    folder: Path
    num_rows: int
    num_failed: int
    shape: Tuple[int, ...]


def compute_features(
    cfg: Config, output: Path, num_copies: int = 1, show_progress: bool = False
) -> List[ComputedFeatures]:
    """Computes the features of DATASET.train and, where there is one, DATASET.valid.

    Copy k of a training clip is the clip that epoch k of a training would see. What an earlier call with the
    same arguments has computed is kept.

    Args:
        cfg: a checked config; `weights`, or `pretrained` of the backbone, says which weights.
        output: the folder; it gets one folder for each part of the data.
        num_copies: differently augmented copies of each training clip.
        show_progress: draws a bar; for a terminal.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    with cfg.placing():
        cfg.require("features", "DATASET.train")
        spec = RunSpec.of(cfg)
        check_environment(spec)
        names: List[SplitName] = [name for name in ("train", "valid") if cfg.holds(f"DATASET.{name}")]
        check_sections(spec, *names)
        if spec.run.train_dali:
            raise spec.config.error(
                "train_dali", "features are computed through our own loader; leave it out"
            )
        precision = make_precision(spec)
        model = _with_weights(spec)
        pooled = PooledFeatures(model)
        pooled.eval()
        with only_writer(output):
            digest, work = backbone_digest(model), []
            for name in names:
                split = make_split(spec, name, model.layout, Distribution(), output)
                copies = num_copies if name == "train" else 1
                index = _index(spec, split, name, output / name, copies, digest)
                work.append((name, split, FeatureWriter(output / name, index)))
            _keep_backbone(model, output)
            for name, split, writer in work:
                if not writer.index.is_complete:
                    _fill(writer, spec, split, name, pooled, precision, show_progress)
            return [_summary(StoredFeatures(output / name)) for name in names]


def with_features(spec: RunSpec, name: SplitName, split: Split) -> Split:
    """The same part of the data, whose loader reads the features that the key `features` names.

    Raises:
        FeatureError: they are missing, unfinished or altered, or were computed from something else.
    """
    stored = StoredFeatures(Path(spec.run.features or "") / name)
    was = stored.index.recipe
    _require_same(stored.folder, was, {**_recipe(spec, split, name), _WEIGHTS: was.get(_WEIGHTS)})
    loader = FeatureLoader(stored, split.loader.batch_sampler, split.dataset)
    return replace(split, loader=loader, preprocess=paddle.to_tensor)


def head_only(spec: RunSpec, model: Any) -> HeadOnly:
    """The head of a network, beside the backbone that has given the features.

    Raises:
        WeightError: the backbone's weights are not in the folder of the features.
    """
    load_weights(model.backbone, Path(spec.run.features or "") / _BACKBONE, strict=True)
    return HeadOnly(model)


def check_backbone(model: HeadOnly, split: Split) -> None:
    """Checks that a network's backbone, with the weights that it has now, has given the features.

    Raises:
        FeatureError: it has other weights.
    """
    assert isinstance(split.loader, FeatureLoader)
    stored = split.loader.stored
    if backbone_digest(model) != stored.index.recipe.get(_WEIGHTS):
        raise FeatureError(
            f"{stored.folder}: another backbone than the one of the loaded weights gave these features: "
            "leave -w out, or compute the features of these weights"
        )


def _with_weights(spec: RunSpec) -> Any:
    weights = spec.run.weights
    model = build_model(spec.model, load_pretrained=not weights)
    require_head(model)
    if weights:
        logger.info(load_weights(model.backbone, weights, strict=True).summary())
    elif not model.backbone.pretrained:
        text = "features of a network without training are of no use; give its weights with -w FILE"
        raise spec.config.error("weights", text)
    return model


def _keep_backbone(model: Any, output: Path) -> None:
    """Puts the weights beside the features: training with features begins from them."""
    with writing(output / _BACKBONE), whole(output / _BACKBONE) as partial:
        state = model.backbone.state_dict().items()
        paddle.save({f"backbone.{name}": value for name, value in state}, str(partial))


def _recipe(spec: RunSpec, split: Split, name: SplitName) -> Dict[str, Any]:
    """What decides the features of a part of the data, but for the weights; JSON values."""
    section, dataset = spec.splits[name], split.dataset
    recipe = {
        "MODEL.framework": spec.model["framework"],
        "MODEL.backbone": _without(spec.model["backbone"], ("pretrained",)),
        "MODEL.head": {key: spec.model["head"].get(key) for key in _OF_POOLING},
        f"DATASET.{name}": _without(section.dataset, _NO_MATTER),
        f"PIPELINE.{name}": dict(section.pipeline),
        "the list": data_identity(spec, split)["list_crc32"],
        "the classes of a sigmoid head": dataset.num_classes,
        "precision": make_precision(spec).name,
        **({"seed": spec.run.seed} if name == "train" else {}),
    }
    return json.loads(json.dumps(recipe, default=str))


def _without(section: Any, names: Tuple[str, ...]) -> Dict[str, Any]:
    return {key: value for key, value in section.items() if key not in names}


def _require_same(folder: Path, stored: Dict[str, Any], expected: Dict[str, Any]) -> None:
    was, now = dict(_flat(stored)), dict(_flat(expected))
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            text = f"{key} was {was.get(key)} when they were computed, and is {now.get(key)} now"
            raise FeatureError(
                f"{folder}: these features are stale: {text}. Restore it, or compute features in another "
                "folder"
            )


def _flat(value: Any, key: str = "") -> Iterator[Tuple[str, Any]]:
    """The numbers and texts of JSON values, each with its dotted key."""
    if isinstance(value, (dict, list)):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _index(
    spec: RunSpec, split: Split, name: SplitName, folder: Path, num_copies: int, digest: str
) -> FeatureIndex:
    """The index of what an earlier call has computed from the same, or a new one."""
    recipe = {**_recipe(spec, split, name), _WEIGHTS: digest}
    dataset = split.dataset
    views = 1 if name == "train" else dataset.num_views
    num_rows = num_copies * len(dataset) * views * dataset.num_crops
    found = FeatureIndex.read(folder)
    if found is None:
        return FeatureIndex(recipe, num_rows, num_copies)
    _require_same(folder, {**found.recipe, "views": found.num_copies}, {**recipe, "views": num_copies})
    return found


def _fill(
    writer: FeatureWriter,
    spec: RunSpec,
    split: Split,
    name: SplitName,
    pooled: PooledFeatures,
    precision: Precision,
    show_progress: bool,
) -> None:
    index, dataset = writer.index, split.dataset
    dataset.num_attempts = 1  # no other record takes the place of one that does not decode
    views = 1 if name == "train" else dataset.num_views
    batch_size = spec.data.batch_size_of(name)
    sampler = ClipBatchSampler(
        len(dataset), batch_size, shuffle=False, drop_last=False, seed=spec.run.seed, num_views=views
    )
    loader = ClipLoader(dataset, sampler, spec.data.num_workers_of(name))
    bar = tqdm(
        total=index.num_rows,
        initial=index.num_done,
        desc=f"features of {name}",
        unit="clip",
        disable=not show_progress,
    )
    if index.num_done:
        logger.info("%s: %d of %d features are there", writer.folder, index.num_done, index.num_rows)
    try:
        for first_row, requests, batch in _batches(loader, index, dataset.num_crops):
            split.bad_samples.add(batch.incidents)
            rows, values = np.empty(0, np.int64), np.empty(0, np.float32)
            if len(batch):
                with paddle.no_grad():
                    given: Any = precision.forward(pooled, split.preprocess(batch.clips))
                values = given.astype("float32").numpy()
                rows = first_row + batch.ids * views * dataset.num_crops + batch.views
            begin = first_row + (requests[0].index * views + requests[0].view) * dataset.num_crops
            stop = begin + len(requests) * dataset.num_crops
            causes = {incident.path: incident.cause for incident in batch.incidents}
            failed = {
                row: _failure(dataset.records, (row - first_row) // (views * dataset.num_crops), causes)
                for row in sorted(set(range(begin, stop)) - set(rows.tolist()))
            }
            writer.add(stop, rows, values, batch.labels, failed)
            bar.update(stop - bar.n)
    finally:
        bar.close()
        loader.close()
        writer.close()


def _batches(
    loader: ClipLoader, index: FeatureIndex, num_crops: int
) -> Iterator[Tuple[int, List[ClipRequest], Batch]]:
    """Each batch that is not done, with its requests and the first row of its copy."""
    rows_of_copy = index.num_rows // index.num_copies
    done_copies, rest = divmod(index.num_done, rows_of_copy)
    start = rest // (loader.batch_sampler.batch_size * num_crops)
    for copy in range(done_copies, index.num_copies):
        requests = loader.batch_sampler.batches(copy, start)
        batches = to_device(loader.epoch(copy, start))
        yield from zip(itertools.repeat(copy * rows_of_copy), requests, batches)
        start = 0


def _failure(records: Any, index: int, causes: Dict[str, str]) -> Tuple[str, str]:
    path = records[index].path
    return path, causes.get(path, "it does not decode")


def _summary(stored: StoredFeatures) -> ComputedFeatures:
    index = stored.index
    return ComputedFeatures(stored.folder, index.num_rows, len(index.failed), stored.features.shape[1:])
