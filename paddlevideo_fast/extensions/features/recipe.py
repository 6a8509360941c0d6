"""What features were computed from: it is stored beside them, and compared before they are used."""

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.types import leaves
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.extensions.features.loader import DTYPE, KIND, Dtype, Kind, StoredFeatures
from paddlevideo_fast.io.files import read_text
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

BACKBONE = "backbone.pdparams"
FILE_STATES = "file_states.json"
WEIGHTS = "the SHA-256 of the weights"
_LIST = "the list"
_FILES = "the state of the files"  # compared last: sorts behind "the list"
_NUM_STAT_THREADS = 16
_MAX_STATES_BYTES = 2**28
# what decides only how often a record is drawn, or where its list lies; the records themselves are compared
_NO_MATTER = ("file_path", "data_prefix", "num_retries", "sampler", "clips_per_video")
_OF_POOLING = ("name", "data_format", "crop_size", "multigrid_short")


def local_folder(text: str) -> Path:
    """A folder of features on this machine; what is at a URL is fetched."""
    output = file_system(text).output_folder(text)
    output.fetch_all()
    return output.folder


def recipe_of_features(
    spec: RunSpec,
    dataset: ClipDataset,
    name: SplitName,
    precision: Precision,
    kind: Kind = "features",
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """What decides the features of a part of the data, but for the weights; JSON values."""
    head, section = spec.model["head"], spec.splits[name]
    states = json.dumps(file_states(dataset)).encode()
    recipe = {
        KIND: kind,
        DTYPE: dtype,
        "MODEL.framework": spec.model["framework"],
        "MODEL.backbone": _without(spec.model["backbone"], ("pretrained",)),
        "MODEL.head": dict(head) if kind == "logits" else {key: head.get(key) for key in _OF_POOLING},
        **({"MODEL.runtime_cfg": spec.model.get("runtime_cfg")} if kind == "logits" else {}),
        f"DATASET.{name}": _without(section.dataset, _NO_MATTER),
        f"PIPELINE.{name}": dict(section.pipeline),
        _LIST: dataset.list_crc32,
        _FILES: zlib.crc32(states),
        "the classes of a sigmoid head": dataset.num_classes,
        "precision": precision.name,
        **({"seed": spec.run.seed} if name == "train" else {}),
    }
    return json.loads(json.dumps(recipe, default=str))


def require_same_list(stored: StoredFeatures, dataset: ClipDataset) -> None:
    """Checks that stored rows are of the records of a part of the data, and of the same files.

    Where all files are others, the set may be a prepared or copied one: this is a warning.

    Raises:
        FeatureError: the list has other videos or labels than when the rows were computed, or some files have
            changed since.
    """
    then = {_LIST: stored.index.recipe.get(_LIST)}
    require_same(stored.folder, dataset, then, {_LIST: dataset.list_crc32})
    changed, count = _changed_files(stored.folder, dataset), len(set(dataset.files))
    if len(changed) == count > 1:
        text = (
            "%s: all %d files have changed since these were computed: is it the same set, prepared or copied?"
        )
        logger.warning(text, stored.folder, count)
    elif changed:
        require_same(stored.folder, dataset, {_FILES: "then"}, {_FILES: "now"})


def _without(section: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in names}


def file_states(dataset: ClipDataset) -> dict[str, list[int] | None]:
    """Path from the data_prefix on → size in bytes and time of the last change in ns; None: there is no file.

    Stores are not asked: it would take a request for each file.
    """
    files = dataset.local_files
    with ThreadPoolExecutor(_NUM_STAT_THREADS) as pool:  # a network file system takes its time for each
        return dict(zip(files, pool.map(_file_state, files.values())))


def _file_state(file: str) -> list[int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _changed_files(folder: Path, dataset: ClipDataset) -> list[tuple[str, str, str]]:
    """The files that changed since the features were computed, and their states then and now, as texts.

    None where the record of the states is lost or altered.
    """
    try:
        before = json.loads(read_text(folder / FILE_STATES, _MAX_STATES_BYTES))
        return [
            (file, _shown_state(before.get(file)), _shown_state(state))
            for file, state in file_states(dataset).items()
            if before.get(file) != state
        ]
    except (OSError, ValueError, AttributeError):
        return []


def _shown_state(state: list[int] | None) -> str:
    if state is None:
        return "missing"
    size, changed_ns = state
    return f"{size} bytes of {datetime.fromtimestamp(changed_ns / 1e9)}"


def require_same(
    folder: Path, dataset: ClipDataset, stored: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Compares what features were computed from with what they would be computed from now.

    Raises:
        FeatureError: it differs; the message names what, before and after.
    """
    was, now = ({dotted(path): value for path, value in leaves(each)} for each in (stored, expected))
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            text = f"{key} was {was.get(key)} when they were computed, and is {now.get(key)} now"
            if key == _FILES:
                unknown = ("a file of the list", "in another state", "changed")
                file, before, after = next(iter(_changed_files(folder, dataset)), unknown)
                text = f"{file} was {before} when they were computed, and is {after} now"
            if key == WEIGHTS:
                text = "they were computed with other weights"
            if key == _LIST:
                text = f"they are of other videos or labels than {dataset.file_path} has now"
            raise FeatureError(
                f"{folder}: these features are stale: {text}. Restore it, or compute features in another "
                "folder"
            )
