"""Videos in tar shards, as webdataset and video2dataset write them.

    walk/0007.mp4    the video of the sample walk/0007: up to the first dot of its name
    walk/0007.cls    its class: a number, or a name
    walk/0007.json   or this: the label, or several, under a key

The headers of all shards are read once. Then a video is a range of bytes of a shard, which any process reads
at any time: order, ranks and resuming are those of a list of files.
"""

import glob
import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import numpy as np

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, VideoReader
from paddlevideo_fast.errors import (
    AnnotationError,
    LoaderError,
    ObjectError,
    VideoDecodeError,
    cause_of,
    shown,
)
from paddlevideo_fast.io.files import (
    as_path,
    atomic_write_text,
    hint_at_working_folder,
    read_names,
    read_text,
)
from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.io.urls import bare_url, join, scheme_of
from paddlevideo_fast.loader.annotations import ClassNumbers, VideoRecord
from paddlevideo_fast.loader.dataset import VideoDecoder
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import DATASETS
from paddlevideo_fast.sources.sharded import ShardedDataset
from paddlevideo_fast.sources.tar.tar_shards import Member, TarShard

LABEL_KEYS = ("label", "labels", "cls", "class_id")
_VIDEO, _CLS, _JSON = "video", ".cls", ".json"
_VERSION = 2
_MAX_MAPS = 256  # each keeps a file handle
_NUM_OPENED = 32  # shards at a time: at a URL each waits for one answer after the other
_MAX_INDEX_BYTES = 2**30
_MAX_SHARDS = 10**6
_BRACES = re.compile(r"\{([^{},]+(?:,[^{},]+)+|(\d{1,9})\.\.(\d{1,9}))\}")
_OF_SET = re.compile(r"(.*?)(\d+)-of-(\d+)\.tar", re.DOTALL)  # with their number in the set
_EXPECTED = "expected a folder of .tar, a pattern such as shards/{00000..00012}.tar, or a list of them"


class _Sample(NamedTuple):
    """A video of a shard: the name of its member, where its bytes are, and the labels that the shard says."""

    name: str
    offset: int
    size: int
    labels: list[int | str]


@DATASETS.register()
class WebDataset(ShardedDataset):
    """Videos in tar shards, as webdataset and video2dataset write them, beside their labels.

    A sample is the members with the same name up to its first dot: KEY.mp4, or another ending of videos, with
    KEY.cls or KEY.json. Other members are passed over. `decode` needs the reader "pyav".

    Args:
        file_path: a folder of .tar files, a pattern such as `shards/{00000..00012}.tar` or `shards/*.tar`, or
            a list with one of these a line; each may be a URL.
        data_prefix: folder that relative paths in a list start from.
        label_key: key of KEY.json that says the label: a number, a name, or a list of them. null: KEY.cls
            says it, or, without one, the first of label, labels, cls, class_id that KEY.json has.

    Raises:
        ShardError: a shard is missing, compressed, damaged or cut off.
        AnnotationError: there is no shard or no video; or the label or the video of a sample is missing, is
            there twice or is wrong.
        LoaderError: the pipeline decodes with another reader; or as of `ClipDataset`.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        **ShardedDataset.ignored_arguments,
        "suffix": "members of shards have their endings",
    }

    def __init__(self, file_path: str, *, label_key: str | None = None, **shared: Any) -> None:
        self.label_key = label_key
        super().__init__(file_path, **shared)

    def read_records(self) -> list[VideoRecord]:
        if not isinstance(self.decoder, VideoDecoder) or self.decoder.reader not in ("auto", "pyav"):
            reader = getattr(self.decoder, "backend", type(self.decoder).__name__)
            raise LoaderError(f"WebDataset: {reader} reads no videos in shards; set backend: pyav in decode")
        maps: Any = LRUCache(_MAX_MAPS)
        paths = shard_paths(self.file_path, self.data_prefix)
        with ThreadPoolExecutor(_NUM_OPENED) as threads:
            self.shards = list(threads.map(lambda path: TarShard(path, maps), paths))
            samples_of_shards = list(threads.map(self._samples_of, self.shards))
        # offset and size of each video: few bytes, because each worker may come to have a copy
        self._ranges = [
            np.array([sample[1:3] for sample in samples], np.int64) for samples in samples_of_shards
        ]
        numbers = ClassNumbers(self.class_names)
        records = []
        for shard_no, (shard, samples) in enumerate(zip(self.shards, samples_of_shards)):
            for index, sample in enumerate(samples):
                path = f"{shard.path}:{sample.name}"
                labels = tuple(numbers.of(label, f"{path}: label") for label in sample.labels)
                records.append(VideoRecord(path, labels, position=(shard_no, index)))
        if not records:
            text = f"no video ({', '.join(VIDEO_EXTENSIONS)}) in its {len(self.shards)} shards"
            raise AnnotationError(f"{self.file_path}: {text}")
        return records

    @property
    def files(self) -> list[str]:
        return [shard.source for shard in self.shards]

    @property
    def is_remote(self) -> bool:
        return any(file_system(shard.source).fetches_ahead() for shard in self.shards)

    def open(self, record: VideoRecord) -> VideoReader:
        shard, offset, size = self._range_of(record)
        assert isinstance(self.decoder, VideoDecoder)
        return self.decoder.open_source(shard.open(record.path, offset, size))

    def fetch(self, requests: Sequence[ClipRequest]) -> int:
        """Brings the video of the requests into the cache: all of it, for the reader needs its index."""
        record = self.records[requests[0].index]
        shard, offset, size = self._range_of(record)
        try:
            return shard.data.fetch([(offset, size)])
        except ObjectError as error:
            raise VideoDecodeError(record.path, error.cause) from None

    def _range_of(self, record: VideoRecord) -> tuple[TarShard, int, int]:
        shard_no, index = record.position
        offset, size = self._ranges[shard_no][index].tolist()
        return self.shards[shard_no], offset, size

    def _samples_of(self, shard: TarShard) -> list[_Sample]:
        """The videos of a shard, from DATASET.index_cache where it knows them."""
        assert isinstance(self.decoder, VideoDecoder)
        key = self.label_key if self.is_labelled else False
        if self.decoder.cache is None or shard.state is None:
            return samples_of(shard, key)
        place = shard.path if scheme_of(shard.path) else os.path.realpath(shard.path)
        digest = hashlib.blake2b(json.dumps([place, key]).encode(), digest_size=16).hexdigest()
        file, state = self.decoder.cache.folder / f"{digest}.json", [_VERSION, *shard.state]
        try:
            content = json.loads(read_text(file, _MAX_INDEX_BYTES))
            if content["state"] == state:
                return [_Sample(*sample) for sample in content["samples"]]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn_once(get_logger(), f"{file}: is damaged and is made anew: {cause_of(error)}")
        samples = samples_of(shard, key)
        try:
            atomic_write_text(file, json.dumps({"state": state, "samples": samples}))
        except OSError as error:
            cause = cause_of(error)
            warn_once(get_logger(), f"index_cache {file.parent}: indexes cannot be written: {cause}")
        return samples


# --- what is in a shard


def samples_of(shard: TarShard, label_key: str | bool | None = None) -> list[_Sample]:
    """The videos of a shard with their labels, in the order of the tar.

    Args:
        shard: the shard.
        label_key: see `WebDataset`; False: labels are not read.

    Raises:
        ShardError: see `TarShard.members`.
        AnnotationError: see `WebDataset`; it names shard and sample.
    """
    groups: dict[str, dict[str, Member]] = {}
    for member in shard.members(lambda name: label_key is not False and _kind_of(name) in (_CLS, _JSON)):
        folder, slash, name = member.name.rpartition("/")
        key, kind = folder + slash + name.partition(".")[0], _kind_of(name)
        if not kind:
            continue
        if not member.has_content:
            text = "is a link or sparse file; write the tar with  tar --dereference --hard-dereference"
            raise AnnotationError(f"{shard.path}: {member.name}: {text}")
        other = groups.setdefault(key, {}).setdefault(kind, member)
        if other is not member:
            text = f"has both {other.name} and {member.name}; a sample ends at the first dot of its name"
            raise AnnotationError(f"{shard.path}: {shown(key)}: {text}")
    samples = []
    for key, members in groups.items():
        where = f"{shard.path}: {shown(key)}"
        labels = [] if label_key is False else _labels(where, members, label_key)
        if video := members.get(_VIDEO):
            samples.append(_Sample(video.name, video.offset, video.size, labels))
        elif label_key is not False:
            raise AnnotationError(f"{where}: has a label and no video ({', '.join(VIDEO_EXTENSIONS)})")
    return samples


def _kind_of(name: str) -> str:
    """What a member is: `_VIDEO`, `_CLS` or `_JSON`; "" for all else."""
    name = name.rpartition("/")[2].lower()
    stem, dot, ending = name.partition(".")  # what webdataset calls the member: all behind the first dot
    if stem and dot + ending in (_CLS, _JSON):
        return dot + ending
    return _VIDEO if stem and os.path.splitext(name)[1] in VIDEO_EXTENSIONS else ""


def _labels(where: str, members: dict[str, Member], label_key: str | bool | None) -> list[int | str]:
    try:
        if _CLS in members and label_key is None:
            text = members[_CLS].text.decode().strip()
            return _checked(int(text) if text.isdecimal() else text)
        if _JSON not in members:
            needed = ".cls or .json" if label_key is None else f".json with the key {shown(label_key)}"
            raise ValueError(f"has no {needed}, which says its label")
        content = json.loads(members[_JSON].text)
        keys = LABEL_KEYS if label_key is None else (label_key,)
        for key in keys if isinstance(content, dict) else ():
            if key in content:
                return _checked(content[key])
        there = ", ".join(map(shown, content)) if isinstance(content, dict) else shown(content)
        looked_for = " or ".join(map(shown, keys))
        raise ValueError(f"its .json has no key {looked_for}, but {there}; label_key names another key")
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{where}: {error}") from None


def _checked(value: Any) -> list[int | str]:
    labels = value if isinstance(value, list) else [value]
    for label in labels:
        is_number = isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 10**9
        if not is_number and not (isinstance(label, str) and label.strip()):
            text = f"its label is {shown(label)}, expected the number of a class, its name, or a list"
            raise ValueError(text)
    return labels


# --- which shards there are


def shard_paths(file_path: str, data_prefix: str | None = None) -> list[str]:
    """The shards that a folder, a pattern, or a list of those names, in their order; see `WebDataset`.

    Raises:
        AnnotationError: there is none, or a folder lacks some of its set.
    """
    try:
        paths = _matching(file_path)
        if paths is None:
            lines = [line.strip() for line in read_names(file_path) if line.strip()]
            lines = [join(data_prefix, line) if data_prefix else line for line in lines]
            paths = [path for line in lines for path in _matching(line) or [line]]
    except (OSError, ValueError) as error:
        text = f"{cause_of(error)}; {_EXPECTED}{hint_at_working_folder(file_path)}"
        raise AnnotationError(f"{file_path}: {text}") from None
    if not paths:
        raise AnnotationError(
            f"{file_path}: there is no .tar; {_EXPECTED}{hint_at_working_folder(file_path)}"
        )
    return paths


def _matching(text: str) -> list[str] | None:
    """The shards that a folder or a pattern names; None: it is neither."""
    paths: list[str] = []
    for path in [text] if not scheme_of(text) and os.path.exists(text) else _expanded(text):
        bare = bare_url(path)
        if "*" in bare:
            url = as_path(path)
            paths += sorted(map(str, url.parent.glob(url.name)) if scheme_of(path) else glob.glob(path))
        elif bare.lower().endswith(".tar"):
            paths.append(path)
        elif as_path(path).is_dir():
            paths += _in_folder(path)
        else:
            return None
    return paths


def _in_folder(folder: str) -> list[str]:
    paths = sorted(as_path(folder).glob("*.tar"))
    sets: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        if named := _OF_SET.fullmatch(path.name):
            sets.setdefault((named[1], named[3]), set()).add(int(named[2]))
    for (name, total), numbers in sets.items():
        if missing := sorted(set(range(int(total))[:_MAX_SHARDS]) - numbers):
            first = f"{name}{missing[0]:0{len(total)}}-of-{total}.tar"
            raise AnnotationError(
                f"{folder}: {len(missing)} of {int(total)} shards are missing, the first one is {first}; "
                "copy them"
            )
    return list(map(str, paths))


def _expanded(text: str) -> list[str]:
    """A text with braces, as shells expand them: `{008..010}` and `{a,b}`."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    words = match[1].split(",")
    if match[2]:
        width = len(match[2]) if match[2].startswith("0") else 0
        words = [
            f"{number:0{width}}" for number in range(int(match[2]), int(match[3]) + 1)[: _MAX_SHARDS + 1]
        ]
    rest = _expanded(text[match.end() :])
    if len(words) * len(rest) > _MAX_SHARDS:
        raise ValueError(f"names more than {_MAX_SHARDS:,} shards")
    return [text[: match.start()] + word + end for word in words for end in rest]
