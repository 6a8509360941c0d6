"""Weights by name: downloaded once, checked, converted, kept in a bounded cache; and what goes wrong."""

import errno
import hashlib
import json
import multiprocessing
import os
import re
import sys
import threading
from argparse import Namespace
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import paddle
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from paddlevideo_fast.apps.convert.convert import CONVERTERS, convert_state
from paddlevideo_fast.apps.convert.source_files import read_source
from paddlevideo_fast.apps.predict import flags
from paddlevideo_fast.apps.predict.program import PROGRAM_SUFFIXES
from paddlevideo_fast.apps.zoo import named_weights
from paddlevideo_fast.apps.zoo.named_weights import Source, cached, remove, source_of, weight_names
from paddlevideo_fast.apps.zoo.zoo import published_results, read_metafiles, sources_of_weights
from paddlevideo_fast.cli.command import find_weights
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.config.builtin import built_in
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import MissingExtraError, OutputError, OutputInUseError, WeightError
from paddlevideo_fast.modeling import attentive_head, build_model, load_weights
from paddlevideo_fast.modeling.backbones import vjepa2
from paddlevideo_fast.modeling.weights import fetch_weights
from paddlevideo_fast.registry import BACKBONES, RECOGNIZERS
from paddlevideo_fast.sources.remote import stores
from tests.apps.convert.test_convert_weights import mit_resnet, section_2d
from tests.numerics.test_numerics_parity import load
from tests.support.fresh_stores import start_anew
from tests.support.runs import *  # noqa: F403  fixtures
from tests.support.torch_writer import write_zip

NAME = "narrow"
NONE = Source("", "", "")
PIECE = 2**15  # of a download: the file below has some dozens


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """A cache, a current folder and stores of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (named_weights.MIRROR, named_weights.LIMIT):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(named_weights, "_PIECE_BYTES", PIECE)
    start_anew(monkeypatch, (2.0, 3, 1.0, 0.01))


@pytest.fixture
def published(http_store, tmp_path, monkeypatch):
    """A function that names a file of a server; `narrow` is named already: MIT's file of a narrow TSM."""
    root = tmp_path / "published"
    root.mkdir()
    write_zip(root / "tsm.pth", {"state_dict": mit_resnet()})
    model = section_2d()
    monkeypatch.setattr(named_weights, "built_in", lambda name: None)
    config = {"MODEL": model, "epochs": 1}
    monkeypatch.setattr(named_weights, "load_config", lambda path, options=(), check=True: config)
    names = {}

    def name_it(file="tsm.pth", name=NAME, url=None, converter="mit-tsm"):
        names[name] = Source(url or f"{name_it.url}{file}", converter, "config" if converter else "")
        return names[name].url

    monkeypatch.setattr(named_weights, "source_of", names.get)
    name_it.root, name_it.url = root, http_store.publish(root)
    name_it()
    return name_it


def digest_of(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def in_cache(tmp_path, pattern="*"):
    return sorted(path.name for path in (tmp_path / "cache").rglob(pattern) if path.is_file())


def test_the_first_use_downloads_and_converts_and_the_next_does_not(published, http_store, tmp_path):
    path = find_weights(NAME)
    model = build_model(section_2d(), load_pretrained=False)
    report = load_weights(model, NAME, strict=True)
    assert report.path == path
    expected = convert_state("mit-tsm", read_source(published.root / "tsm.pth"), model).weights
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), expected[key])
    assert in_cache(tmp_path) == [f"{NAME}.pdparams", "source.json"]
    note = json.loads(Path(path).with_name("source.json").read_text())
    assert note["sha256"] == digest_of(published.root / "tsm.pth")
    http_store.reset()
    assert fetch_weights(NAME) == path
    assert http_store.num_requests == 0


def test_a_conversion_changes_no_random_number(published):
    paddle.seed(3)
    expected = paddle.rand([4]).numpy()
    paddle.seed(3)
    fetch_weights(NAME)
    np.testing.assert_array_equal(paddle.rand([4]).numpy(), expected)


def test_a_backbone_starts_from_a_name(published):
    section = section_2d()
    section["backbone"]["pretrained"] = NAME
    model = build_model(section)
    assert not model.load_report.missing


def test_an_interrupted_download_goes_on(published, http_store, tmp_path, monkeypatch, caplog):
    size = (published.root / "tsm.pth").stat().st_size
    read_range = stores.read_range

    def interrupted(url, offset, *args):
        if offset >= 3 * PIECE:
            raise KeyboardInterrupt
        return read_range(url, offset, *args)

    monkeypatch.setattr(stores, "read_range", interrupted)
    with caplog.at_level("INFO"), pytest.raises(KeyboardInterrupt):
        fetch_weights(NAME)
    mb = f"{3 * PIECE / 1e6:.1f} of {size / 1e6:.1f} MB are here; the next command that needs it goes on"
    assert f"{NAME}: {mb}" in caplog.text
    (partial,) = (tmp_path / "cache").rglob("*.part")
    assert partial.stat().st_size == 3 * PIECE
    monkeypatch.setattr(stores, "read_range", read_range)
    http_store.reset()
    fetch_weights(NAME)
    assert http_store.num_bytes <= size - 3 * PIECE + 1  # one byte tells the size
    assert not in_cache(tmp_path, "*.part")


def test_what_arrived_of_an_earlier_version_is_not_gone_on_with(published, tmp_path):
    folder = tmp_path / "cache/paddlevideo_fast/weights" / NAME
    folder.mkdir(parents=True)
    (folder / "0123456789abcdef.part").write_bytes(b"of another version")
    fetch_weights(NAME)
    assert in_cache(tmp_path) == [f"{NAME}.pdparams", "source.json"]


@pytest.mark.parametrize("fault", ["cut", "short", "reset", "flipped"])
def test_a_bad_connection(fault, published, http_store, tmp_path):
    """A cut or short answer is asked for again; a flipped byte is found by the checksum."""
    file = published.root / "tsm.pth"
    published(url=f"{published()}#sha256={digest_of(file)}")
    http_store.fault(fault, times=2)
    if fault == "flipped":
        with pytest.raises(WeightError, match="its SHA-256 is .* as its publisher says"):
            fetch_weights(NAME)
        assert not in_cache(tmp_path, "*.part")
    fetch_weights(NAME)


def test_the_checksum_that_a_file_name_ends_with(published):
    digest = digest_of(published.root / "tsm.pth")
    for start in (digest[:8], "0" * 8):
        write_zip(published.root / f"tsm_20220831-{start}.pth", {"state_dict": mit_resnet()})
    published(f"tsm_20220831-{digest_of(published.root / 'tsm_20220831-00000000.pth')[:8]}.pth", "right")
    assert fetch_weights("right")
    published("tsm_20220831-00000000.pth", "wrong")
    with pytest.raises(WeightError, match=r"wrong: .*-00000000\.pth: its SHA-256 .* not 00000000 as"):
        fetch_weights("wrong")


def test_a_file_that_changes_at_its_publisher_is_not_taken(published, tmp_path):
    path = Path(fetch_weights(NAME))
    path.write_bytes(path.read_bytes()[:-10])  # damaged: downloaded again, and compared
    assert fetch_weights(NAME) == str(path)
    path.unlink()
    other = {name: value + 1 for name, value in mit_resnet().items()}
    write_zip(published.root / "tsm.pth", {"state_dict": other})
    with pytest.raises(WeightError, match=f"as it was before; .* zoo --remove {NAME}"):
        fetch_weights(NAME)
    remove(NAME)
    assert fetch_weights(NAME) == str(path)


@pytest.mark.parametrize("change", ["url", "config", "options", "converter"])
def test_weights_of_another_source_are_made_again(change, published, http_store, monkeypatch):
    """A later version of the package may mean another file by a name, or convert it otherwise."""
    path = Path(fetch_weights(NAME))
    before = path.read_bytes()
    changes = {"url": f"{published.url}other.pth", "options": ("a=1",), "converter": "mmaction2"}
    other = {name: value + 1 for name, value in mit_resnet().items()}
    write_zip(published.root / "other.pth", {"state_dict": other})
    source = replace(named_weights.source_of(NAME), **{change: changes.get(change, "another")})
    monkeypatch.setattr(named_weights, "source_of", lambda name: source)
    http_store.reset()
    if change == "converter":  # which cannot read the file: the weights in the cache are not taken for its
        with pytest.raises(WeightError, match="mmaction2"):
            fetch_weights(NAME)
        return
    assert fetch_weights(NAME) == str(path)
    assert (path.read_bytes() == before) == (change != "url")
    assert http_store.num_bytes > path.stat().st_size / 2
    http_store.reset()
    assert fetch_weights(NAME) == str(path)
    assert http_store.num_requests == 0


def test_a_truncated_file_and_one_of_another_network_are_refused(published, tmp_path):
    whole = (published.root / "tsm.pth").read_bytes()
    (published.root / "half.pth").write_bytes(whole[: len(whole) // 2])
    write_zip(published.root / "other.pth", {"state_dict": {"module.x": np.zeros(3, "float32")}})
    for file, why in (("half.pth", "damaged"), ("other.pth", "nothing in it has the names of 'mit-tsm'")):
        url = published(file)
        with pytest.raises(WeightError, match=f"(?s){NAME}: {url}: .*{why}"):
            fetch_weights(NAME)
        assert not in_cache(tmp_path)


class Redirects(BaseHTTPRequestHandler):
    """Sends whoever asks to `target`."""

    target = ""

    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", self.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


def test_a_redirect(published):
    Redirects.target = published()
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        published(url=f"http://127.0.0.1:{server.server_port}/tsm.pth")
        assert fetch_weights(NAME)
        server.shutdown()


def test_404_and_no_network_say_where_to_put_the_file(published, http_store, monkeypatch):
    gone = published("gone.pth")
    with pytest.raises(
        WeightError, match=f"404; download {gone} by hand to a folder as {NAME}.pth, and set P"
    ):
        fetch_weights(NAME)
    url = published()
    http_store.fault("close")
    with pytest.raises(WeightError, match=f"^{NAME}: {url}: its server does not answer; download {url} by"):
        fetch_weights(NAME)
    monkeypatch.setenv(named_weights.MIRROR, "mirror")
    with pytest.raises(WeightError, match=f"download {url} by hand to mirror/{NAME}.pth$"):
        fetch_weights(NAME)
    monkeypatch.setenv(named_weights.MIRROR, "http://127.0.0.1:1/mirror")
    with pytest.raises(WeightError, match=f"^{NAME}: http://127.0.0.1:1/mirror: its server does not answer"):
        fetch_weights(NAME)


@pytest.mark.parametrize("fault", ["unauthorised", "denied"])
def test_a_refusal_says_where_to_put_the_file(fault, published, http_store):
    url = published()
    http_store.fault(fault)
    with pytest.raises(
        WeightError, match=f"^{NAME}: {url}: the store .*; download {url} by hand to a folder"
    ):
        fetch_weights(NAME)


def test_a_damaged_file_of_a_server_is_named_and_not_the_publisher(
    published, http_store, tmp_path, monkeypatch
):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/tsm.pth").write_bytes((published.root / "tsm.pth").read_bytes()[:9000])
    mirror = http_store.publish(tmp_path / "mirror")
    monkeypatch.setenv(named_weights.MIRROR, mirror)
    with pytest.raises(WeightError, match=f"(?s)^{NAME}: {mirror}tsm.pth: .*damaged"):
        fetch_weights(NAME)


def test_who_waits_for_another_process_says_so_once(published, monkeypatch):
    only_writer, attempts = named_weights.only_writer, []

    def in_use_twice(folder, **options):
        attempts.append(folder)
        if len(attempts) < 3:
            raise OutputInUseError("XDG_CACHE_HOME: process 1; choose another")
        return only_writer(folder, **options)

    monkeypatch.setattr(named_weights, "only_writer", in_use_twice)
    messages = []
    monkeypatch.setattr(named_weights.logger, "info", lambda text, *values: messages.append(text % values))
    assert fetch_weights(NAME)
    waiting, downloading = messages
    assert waiting == f"{NAME}: another process downloads it; waiting for its end"
    assert downloading.startswith(f"{NAME}: downloading  http://127.0.0.1:")


def test_a_publisher_is_not_waited_for_as_long_as_a_store(monkeypatch):
    monkeypatch.setattr(stores, "_policy", stores.RetryPolicy())
    with stores.waiting_at_most(20):
        assert stores._policy.unreachable_sec == 20
        with stores.waiting_at_most(50):
            assert stores._policy.unreachable_sec == 20
    assert stores._policy == stores.RetryPolicy()


def test_a_full_disk_leaves_what_has_arrived(published, http_store, tmp_path, monkeypatch):
    monkeypatch.setattr(named_weights, "open", filling(3 * PIECE), raising=False)
    with pytest.raises(WeightError, match="No space left on device; what has arrived stays, .*XDG_CACHE"):
        fetch_weights(NAME)
    monkeypatch.undo()
    assert in_cache(tmp_path, "*.part")


def filling(limit):
    """`open` on a disk that is full after so many bytes."""

    class File:
        def __init__(self, path, mode):
            self.file = open(path, mode)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            if self.file.tell() + len(data) > limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.file.write(data)

        def __getattr__(self, name):
            return getattr(self.file, name)

    return File


def test_a_cache_that_cannot_be_written(published, tmp_path, monkeypatch):
    path = fetch_weights(NAME)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", refuse)
        assert fetch_weights(NAME) == path
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"XDG_CACHE_HOME .*: cannot be written: Not a directory"):
        fetch_weights(NAME)


def test_processes_download_one_file_once(published, http_store):
    http_store.delay_sec = 0.02
    with multiprocessing.get_context("fork").Pool(2) as pool:
        paths = pool.map(fetch_weights, [NAME] * 2, chunksize=1)
    assert len({*paths}) == 1
    ranges = [request["range"] for request in http_store.requests]
    assert len(ranges) == len({*ranges})


def test_a_mirror_goes_before_the_publisher(published, http_store, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "tsm.pth").write_bytes((published.root / "tsm.pth").read_bytes())
    published(url="http://127.0.0.1:1/tsm.pth")
    monkeypatch.setenv(named_weights.MIRROR, str(mirror))
    converted = Path(fetch_weights(NAME))
    assert (mirror / "tsm.pth").is_file()
    (mirror / f"{NAME}.pdparams").write_bytes(converted.read_bytes())
    remove(NAME)
    assert fetch_weights(NAME) == str(mirror / f"{NAME}.pdparams")  # converted already
    monkeypatch.setenv(named_weights.MIRROR, published.url)
    assert fetch_weights(NAME) == str(converted)


def test_a_file_by_hand_is_not_taken_for_another_name(published, tmp_path, monkeypatch):
    """Several publishers call their file `pytorch_model.bin`; the one of the advice has the name."""
    file = "pytorch_model.bin"
    assert sum(result.weights.endswith(f"/{file}") for result in read_metafiles()) > 1
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    monkeypatch.setenv(named_weights.MIRROR, str(mirror))
    url = published(url=f"{published.url}{file}")
    (mirror / file).write_bytes((published.root / "tsm.pth").read_bytes())
    with pytest.raises(WeightError, match=f"download {url} by hand to {mirror}/{NAME}.bin$"):
        fetch_weights(NAME)
    (mirror / file).rename(mirror / f"{NAME}.bin")
    assert fetch_weights(NAME)


@pytest.mark.parametrize("kind", ["folder", "server"])
@pytest.mark.parametrize("sum_in", ["URL", "name"])
def test_a_mirror_has_the_file_that_its_publisher_says(
    kind, sum_in, published, http_store, tmp_path, monkeypatch
):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    digest = digest_of(published.root / "tsm.pth")
    file = f"tsm.pth#sha256={digest}" if sum_in == "URL" else f"tsm-{digest[:8]}.pth"
    published(url=f"http://127.0.0.1:1/{file}")
    monkeypatch.setenv(named_weights.MIRROR, str(mirror) if kind == "folder" else http_store.publish(mirror))
    write_zip(mirror / f"{NAME}.pth", {"state_dict": {k: v + 1 for k, v in mit_resnet().items()}})
    with pytest.raises(WeightError, match=rf"{NAME}\.pth: its SHA-256 is .* as its publisher says"):
        fetch_weights(NAME)
    (mirror / f"{NAME}.pth").write_bytes((published.root / "tsm.pth").read_bytes())
    path = Path(fetch_weights(NAME))
    (mirror / f"{NAME}.pdparams").write_bytes(path.read_bytes())  # converted: the sum is not of it
    remove(NAME)
    assert fetch_weights(NAME)


def test_a_file_of_paddle_in_a_local_mirror_is_compared_too(published, tmp_path, monkeypatch):
    file = tmp_path / f"{NAME}.pdparams"
    file.write_bytes(b"weights")
    monkeypatch.setenv(named_weights.MIRROR, str(tmp_path))
    url = f"http://127.0.0.1:1/tsm.pdparams#sha256={digest_of(file)}"
    published(url=url, converter="paddlevideo")
    assert fetch_weights(NAME) == str(file)
    file.write_bytes(b"others")
    with pytest.raises(WeightError, match="its SHA-256 is .* as its publisher says"):
        fetch_weights(NAME)


def test_a_converted_file_of_a_mirror_needs_no_cache(published, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made in it
    file = tmp_path / f"{NAME}.pdparams"
    file.write_bytes(b"")
    monkeypatch.setenv(named_weights.MIRROR, str(tmp_path))
    assert fetch_weights(NAME) == str(file)


def test_files_that_leave_the_cache_meanwhile(published, tmp_path, monkeypatch):
    """Another process may remove weights at any time; they are not listed, and the newest are delivered."""
    published("tsm.pth", "old")
    published("tsm.pth", "gone")
    old, gone = Path(fetch_weights("old")), Path(fetch_weights("gone"))
    status = Path.stat

    def removed_meanwhile(path, **options):
        if path == gone:
            path.unlink(missing_ok=True)
        return status(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", removed_meanwhile)
        assert [entry.name for entry in cached()] == ["old"]
    only_writer = named_weights.only_writer

    def refusing(folder, **options):
        if folder == old.parent:
            raise OutputError("cannot be written")
        return only_writer(folder, **options)

    monkeypatch.setattr(named_weights, "only_writer", refusing)
    monkeypatch.setenv(named_weights.LIMIT, "0")
    assert Path(fetch_weights(NAME)).is_file()
    assert old.is_file()


def test_weights_used_longest_ago_make_room(published, http_store, tmp_path, monkeypatch):
    names = ["first", "second", "third"]
    for name in names:
        published("tsm.pth", name)
    for age, name in enumerate(reversed(names[:2])):
        os.utime(fetch_weights(name), (1e9 - age, 1e9 - age))
    fetch_weights("first")  # used now, so the second one goes
    size = cached()[0].num_bytes
    monkeypatch.setenv(named_weights.LIMIT, str(2.5 * size / 1e9))
    fetch_weights("third")
    assert {entry.name for entry in cached()} == {"first", "third"}
    assert len(in_cache(tmp_path, "source.json")) == 3  # the sum of the second is still compared
    http_store.reset()
    for limit in ("much", "nan", "inf", "-1"):
        monkeypatch.setenv(named_weights.LIMIT, limit)
        with pytest.raises(WeightError, match=f"PADDLEVIDEO_FAST_WEIGHTS_GB={limit}: is no number of gigab"):
            fetch_weights("second")
    assert http_store.num_requests == 0


def test_the_command_lists_and_removes(published, capsys, tmp_path):
    zoo = COMMANDS["zoo"].start
    url = published()
    fetch_weights(NAME)
    assert zoo(["--cached"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.split()[0] == NAME
    assert line.endswith(url)
    assert total.startswith("1 name, ")
    assert zoo(["--cached", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == [NAME]
    assert zoo(["--remove", NAME]) == 0
    assert in_cache(tmp_path) == []
    for name in (NAME, "../weights"):
        assert zoo(["--remove", name]) == 2
        assert "is not in the cache; paddlevideo-fast zoo --cached  lists" in capsys.readouterr().err


def test_a_file_of_the_name_goes_before(published, http_store):
    Path(NAME).write_bytes(b"")
    assert fetch_weights(NAME) == NAME
    assert http_store.num_requests == 0
    assert not named_weights.is_name(NAME)


def test_what_is_not_of_the_name_does_not_hide_it(published):
    for other in (f"{NAME}.mp4", f"{NAME}.pdparams", f"{NAME}.txt"):
        Path(other).write_bytes(b"")
    assert named_weights.is_name(NAME)
    Path(NAME).mkdir()
    assert fetch_weights(NAME) != NAME
    Path(NAME).rmdir()
    assert set(named_weights.PROGRAM_SUFFIXES) == set(PROGRAM_SUFFIXES)
    for suffix in PROGRAM_SUFFIXES:
        Path(f"{NAME}{suffix}").write_bytes(b"")
        assert not named_weights.is_name(NAME)
        Path(f"{NAME}{suffix}").unlink()


def test_names_that_are_none():
    with pytest.raises(WeightError, match="8x9: there is no such file, and no weights .* slowfast_8x8"):
        find_weights("slowfast_8x9")
    with pytest.raises(WeightError, match="published it: pre-train it.*; .*paddlevideo-fast zoo  lists"):
        fetch_weights("hiera_t_k400_pretrained")
    for path in ("slowfast_8x9.pdparams", "./slowfast_8x9"):
        with pytest.raises(WeightError, match=r"there is no such file; check the path; paths start"):
            load_weights(build_model(section_2d(), load_pretrained=False), path)
    assert not any(map(named_weights.is_name, ("", "[", "tsm_motion", "a/b", "x.onnx")))


class Hub(MemoryFileSystem):
    """What huggingface_hub registers for hf://, with a store in memory."""

    protocol = "hf"
    store, pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path):
        return f"/{path.removeprefix('hf://').strip('/')}"


def test_files_of_hugging_face(published, monkeypatch):
    url = "hf://owner/repo/model.safetensors"
    published(url=url)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(MissingExtraError, match=r"hf://.* needs the package 'huggingface_hub'.*\[hf\]"):
            fetch_weights(NAME)
    start_anew(monkeypatch, (2.0, 3, 1.0, 0.01))
    monkeypatch.setattr(fsspec, "get_filesystem_class", {"hf": Hub}.get)
    Hub().pipe_file("owner/repo/model.safetensors", (published.root / "tsm.pth").read_bytes())
    assert fetch_weights(NAME)
    assert Path(fetch_weights(url)).read_bytes() == (published.root / "tsm.pth").read_bytes()


@pytest.mark.parametrize("name", weight_names())
def test_every_name_has_a_file_a_converter_and_a_network(name):
    """Converters are tested beside the networks; here, that a name arrives at the right one."""
    if "package" in sources_of_weights().get(name, {}):
        pytest.skip("of a package")
    source = source_of(name)
    assert source.url.startswith("https://")
    assert Path(source.url).suffix in (".pth", ".pyth", ".pkl", ".bin", ".safetensors", ".pdparams")
    if not source.config:
        assert not source.converter
        assert source.url.endswith(f"{name}.pdparams")
        return
    network = load_config(built_in(source.config), source.options)["MODEL"]
    assert network["framework"] in RECOGNIZERS
    backbone = BACKBONES.get(network["backbone"]["name"])
    assert source.converter in {*CONVERTERS, *backbone.converters}
    own = published_results().get(name)
    assert own is None or source.url in {result.weights for result in own}
    assert own is None or not source.options or all(result.options for result in own)


def test_every_published_file_has_a_name_of_its_own():
    urls = [source.url for source in map(source_of, weight_names()) if source]
    assert {result.weights for result in read_metafiles()} <= set(urls)
    best, other, third = (source_of(f"tsm_ssv2_videos{end}") for end in ("", "@mit-tsm", "@mit-tsm-2"))
    assert (best.converter, other.converter, other.options) == ("mmaction2", "mit-tsm", ())
    assert third.options == ("MODEL.backbone.depth=101",)
    assert source_of("tsm_ssv2_videos@mit-tsm-3") is source_of("tsm_motion@mit-tsm") is None
    assert named_weights.is_name("tsm_ssv2_videos@mit-tsm-2")
    with pytest.raises(WeightError, match="did you mean .*tsm_ssv2_videos@mit-tsm"):
        fetch_weights("tsm_ssv2_videos@mit")


def test_predict_takes_a_name_with_the_keys_of_its_publisher(tmp_path, monkeypatch):
    name = "slow_ssv2_videos"
    assert source_of(name).options
    file = tmp_path / f"{name}.pdparams"
    file.write_bytes(b"")
    monkeypatch.setenv(named_weights.MIRROR, str(tmp_path))
    args = Namespace(model=name, config=None, override=["model_name=mine"])
    assert flags._has_weights(name)
    config, weights = flags.network_of(args)
    assert weights == file
    expected = load_config(built_in(name), [*source_of(name).options, "model_name=mine"])
    assert config == expected


OF_ORIGINALS = {  # lists of the tensors of original networks, and the names of weights with the same tensors
    "mmaction2_tsm_r50_8f": (
        *("tsm_k400_videos", "tsm_k400_videos@mmaction2", "tsm_k400_videos_16f", "tsm_ssv2_videos"),
        *("tsm_ucf101_frames", "tsm_ucf101_frames@mmaction2", "tsm_ssv2_videos_16f"),
    ),
    "mmaction2_tsm_r101": ("tsm_ssv2_videos@mmaction2",),
    "mmaction2_tsn_r50": (
        *("tsn_k400_videos", "tsn_k400_videos@mmaction2-2", "tsn_k400_videos@mmaction2-3"),
        *("tsn_ucf101_frames", "tsn_ssv2_videos", "tsn_ssv2_videos@mmaction2"),
    ),
    "mmaction2_tsn_r101": ("tsn_k400_videos@mmaction2",),
    "mmaction2_i3d_r50": ("i3d_32x2",),
    "mmaction2_slow_r50": ("slow_8x8@mmaction2", "slow_8x8@mmaction2-2", "slow_ucf101_videos"),
    "mmaction2_slowfast_r50_4x16": ("slowfast_4x16@mmaction2",),
    "mmaction2_slowfast_r50": ("slowfast_8x8@mmaction2-2",),
    "mmaction2_slowfast_r101": ("slowfast_8x8@mmaction2",),
    "mmaction2_timesformer_div": ("timesformer_k400_videos@mmaction2",),
    "mmaction2_timesformer_joint": ("timesformer_k400_videos@mmaction2-2",),
    "mmaction2_timesformer_space": ("timesformer_k400_videos@mmaction2-3",),
    "mit_tsm_r50_8f": ("tsm_k400_videos@mit-tsm", "tsm_k400_largebatch", "tsm_ssv2_videos@mit-tsm"),
    "mit_tsm_r50_16f": ("tsm_k400_videos_16f@mit-tsm", "tsm_ssv2_videos_16f@mit-tsm"),
    "mit_tsm_r101": ("tsm_ssv2_videos@mit-tsm-2",),
    "paddlevideo_tsm_r50_8f": (
        *("tsm_k400_frames", "tsm_ucf101_frames@paddlevideo", "tsm_ucf101_frames@paddlevideo-2"),
        "TSM_k400",
    ),
    "paddlevideo_tsn_r50": ("tsn_k400_frames", "tsn_k400_frames@paddlevideo"),
    "paddlevideo_slowfast_8x8": ("slowfast_multigrid@paddlevideo",),
    "pyslowfast_slowfast_4x16_r50": ("slowfast_4x16",),
    "pyslowfast_slowfast_8x8_r50": (
        *("slowfast_8x8", "slowfast_8x8@pyslowfast", "slowfast_8x8_k400", "slowfast_multigrid"),
        *("slowfast_16x8_ssv2_videos", "slowfast_16x8_ssv2_videos@pyslowfast"),
    ),
    "pyslowfast_slow_8x8_r50": ("slow_8x8", "slow_8x8@pyslowfast", "slow_8x8_k400"),
    "pyslowfast_i3d_8x8_r50": ("i3d_8x8", "i3d_8x8_k400"),
    "pyslowfast_mvitv2_s": ("mvitv2_s_16x4",),
    "pyslowfast_x3d_m": ("x3d_xs", "x3d_s", "x3d_m"),
    "pyslowfast_x3d_l": ("x3d_m@pyslowfast",),
    "pytorchvideo_slowfast_4x16": ("slowfast_4x16@pytorchvideo",),
    "pytorchvideo_slowfast_r50": ("slowfast_8x8@pytorchvideo-2", "slowfast_ssv2_videos"),
    "pytorchvideo_slowfast_r101": ("slowfast_8x8@pytorchvideo",),
    "pytorchvideo_slow_r50": ("slow_8x8@pytorchvideo", "slow_ssv2_videos"),
    "pytorchvideo_i3d_r50": ("i3d_8x8@pytorchvideo",),
    "pytorchvideo_r2plus1d_r50": ("r2plus1d_r50_16x4",),
    "pytorchvideo_x3d_s": ("x3d_xs@pytorchvideo", "x3d_s@pytorchvideo", "x3d_m@pytorchvideo"),
    "torchvision_r2plus1d_18": ("r2plus1d_r18_16x2",),
    "hf_videomae_vits_8x112": ("videomae_vit_s_k400_videos", "videomae_vit_s_ssv2_videos"),
    "hf_videomae_base": (
        *("videomae_vit_b_k400_videos", "videomae_vit_b_ssv2_videos", "videomae_vit_b_k400"),
    ),
    "hf_vjepa2_vitl": ("vjepa2_vitl",),
    "hf_vjepa2_vitl_probe": ("probe_vjepa2_vitl",),
    "videomaev2_small": ("videomaev2_vit_s_k710",),
    "videomaev2_base": ("videomaev2_vit_b_k710",),
    "hiera_base": ("hiera_b_16x4",),
    "hiera_base_plus": ("hiera_bplus_16x4",),
    "hiera_large": ("hiera_l_16x4",),
    "mae_hiera_base": ("hiera_b_k400_pretrained",),
    "mae_hiera_base_plus": ("hiera_bplus_k400_pretrained",),
    "mae_hiera_large": ("hiera_l_k400_pretrained",),
    "swin2d_tiny": ("swin_tiny_patch4_window7_224",),
    "swin2d_small": ("swin_small_patch4_window7_224",),
    "swin2d_base": ("swin_base_patch4_window7_224",),
    "videoswin_tiny": ("videoswin_tiny_k400_videos",),
    "videoswin_small": ("videoswin_small_k400_videos",),
    "videoswin_base": ("videoswin_base_k400_videos@swin",),
    "paddleclas_MobileNetV2": ("MobileNetV2_ssld_pretrained",),
    "paddleclas_MobileNetV3_large_x1_0": ("MobileNetV3_large_x1_0_ssld_pretrained",),
    "paddleclas_PPLCNetV2_base": ("PPLCNetV2_base_ssld_pretrained",),
    "paddleclas_ViT_base_patch16_224": ("ViT_base_patch16_224_pretrained",),
}
# Files of PaddleVideo and PaddleClas without a config of their own: a config that starts from each
STARTS = {
    "ResNet50_pretrain": "tsm_k400_frames",
    "ResNet50_vd_ssld_v2_pretrained": "pptsm_k400_frames_uniform",
    "ResNet101_vd_ssld_pretrained": "pptsm_k400_frames_dense_r101",
    "MobileNetV2_ssld_pretrained": "pptsm_mv2_k400_videos_uniform",
    "MobileNetV3_large_x1_0_ssld_pretrained": "pptsm_mv3_k400_frames_uniform",
    "PPLCNetV2_base_ssld_pretrained": "pptsm_lcnet_k400_8frames_uniform",
    "ViT_base_patch16_224_pretrained": "timesformer_k400_videos",
    "TSM_k400": "tsm_k400_frames",
    "ppTSM_k400_uniform": "pptsm_k400_frames_uniform",
}
# Files whose tensors have our names: PaddleVideo's, and those that it made of PaddleClas' ResNets
OF_OURS = {
    name for name in weight_names() if (source_of(name) or NONE).converter == "paddlevideo" or name in STARTS
}.difference(*OF_ORIGINALS.values())
# Encoders alone: their files have no classifier that fits
ENCODERS = re.compile(r"(hiera|swin)_\w+_(k400_pretrained|224)|vjepa2_vitl|(ResNet|Mobile|PPLC|ViT_)\w+")
# What a file of ImageNet lacks: classes of videos, and what looks along time
NOT_OF_IMAGES = re.compile(r"(out|fc)\.(weight|bias)|time_embed|blocks\.\d+\.temporal_fc\.(weight|bias)")
MOST_NUMBERS = 150e6  # of a file that is written; the networks of size L have more and are only converted


def test_every_name_arrives_in_the_test_below():
    of_packages = {name for name, entry in sources_of_weights().items() if "package" in entry}
    assert {*weight_names()} == OF_OURS.union(of_packages, *OF_ORIGINALS.values())


def expanded(tensors):
    """Names and shapes, of which `{0-11}` and `{weight,bias}` in a name make several."""
    names = {}
    for pattern, shape in tensors.items():
        match = re.search(r"\{(.*?)\}", pattern)
        if not match:
            names[pattern] = shape
            continue
        first, dash, last = match[1].partition("-")
        values = range(int(first), int(last) + 1) if dash else match[1].split(",")
        names.update(
            expanded({f"{pattern[: match.start()]}{v}{pattern[match.end() :]}": shape for v in values})
        )
    return names


def tensors_of_original(reference, classes):
    """Zeros with the names and shapes of an original network, for another number of classes."""
    for lists in ("original_names", "state_names"):
        if reference in (names := load(lists)):
            break
    state = expanded((names[reference] if reference in names else load(reference))["state"])
    return {
        key: np.zeros([classes if size == 400 else size for size in shape], "float32")
        for key, shape in state.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        *((name, reference) for reference, names in OF_ORIGINALS.items() for name in names),
        *((name, None) for name in sorted(OF_OURS)),
    ],
)
def test_a_file_of_full_size_arrives_in_its_network(name, reference, http_store, tmp_path, monkeypatch):
    """A file has the tensors of the original network; a file of PaddleVideo has the tensors of ours.

    Each list of `tests/reference/original_names.json` says which code it comes from.
    """
    source = source_of(name)
    config = source.config or STARTS[name]
    network = load_config(built_in(config), source.options)["MODEL"]
    for module in (vjepa2, attentive_head):
        monkeypatch.setattr(module, "shrink_residuals", lambda blocks: None)
    with paddle.LazyGuard():  # memory without values: to draw them takes longer than all the rest
        model = build_model(network, load_pretrained=False)
        whole = model.backbone if ENCODERS.fullmatch(name) else model
        if reference:
            tensors = tensors_of_original(reference, network["head"].get("num_classes", 400))
        else:
            tensors = {key: np.zeros(value.shape, "float32") for key, value in whole.state_dict().items()}
        if sum(value.size for value in tensors.values()) > MOST_NUMBERS:
            conversion = convert_state(source.converter, tensors, model)
            assert conversion.is_whole, conversion.problems()
            return
        serve(name, source, tensors, http_store, tmp_path, monkeypatch)
        is_imagenet = str(reference).startswith("paddleclas_")
        report = load_weights(whole, name, strict=not is_imagenet)
    lacking = {*whole.state_dict()}.difference(report.loaded, report.copied)
    assert not lacking or is_imagenet and all(map(NOT_OF_IMAGES.fullmatch, lacking))
    assert cached()[0].name == name


def serve(name, source, tensors, http_store, tmp_path, monkeypatch):
    """A server has the tensors as the file of the name."""
    folder = tmp_path / "server"
    folder.mkdir()
    suffix = Path(source.url).suffix
    file = folder / f"{name}{suffix}"
    if suffix == ".pdparams":
        paddle.save(tensors, str(file))
    else:
        write_zip(file, {"state_dict": tensors})
    monkeypatch.setattr(named_weights, "_PIECE_BYTES", 2**23)
    monkeypatch.setattr(named_weights, "_expected", lambda source, address: "")  # checksums are tested above
    monkeypatch.setenv(named_weights.MIRROR, http_store.publish(folder))
