"""Videos in tar shards: every sample is that of the file, and what is wrong with a shard is named."""

import contextlib
import gzip
import json
import shutil
import tarfile

import av  # noqa: F401  before Paddle, whose bundled zlib else breaks its import on 2.6
import numpy as np
import pytest

from paddlevideo_fast.apps.doctor.reading import other_forms
from paddlevideo_fast.errors import AnnotationError, LoaderError, ShardError
from paddlevideo_fast.extensions.dali.planner import _jitters_of as require_files_for_dali
from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.sources.remote import block_cache
from paddlevideo_fast.sources.tar.tar_shards import TarShard
from paddlevideo_fast.sources.tar.web_dataset import samples_of, shard_paths
from tests.loader.building import dataset_of, loader_of, write_tar
from tests.support.fresh_stores import start_anew

CROPS = [{"RandomCrop": {"target_size": 32}}, {"RandomFlip": None}]
NUM_CLIPS = 7
MANY_BYTES = 2**18  # of what a video may have in the tests that count bytes


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    kept = block_cache.DiskBlocks(tmp_path / "cache", 2**24, 2**14)
    start_anew(monkeypatch, (10.0, 3, 3.0, 0.02), kept)


@pytest.fixture(scope="module")
def files(tmp_path_factory, make_clip):
    """Seven clips as files with a list, and in three shards in the same order."""
    root = tmp_path_factory.mktemp("web")
    lines, members = [], []
    for number in range(NUM_CLIPS):
        path = make_clip(root / f"{number}.mp4", 12 + number, size=(80, 60))
        lines.append(f"{number}.mp4 {number % 3}\n")
        members.append(
            [(f"walk/{number}.mp4", path.read_bytes()), (f"walk/{number}.cls", b"%d" % (number % 3))]
        )
    (root / "videos.list").write_text("".join(lines))
    (root / "shards").mkdir()
    for shard in range(3):
        write_tar(root / f"shards/{shard:05}.tar", sum(members[3 * shard : 3 * shard + 3], []))
    return root


def loader(files, shards="shards", num_workers=0, training=True, decode=None, **options):
    """Of the shards, or with `shards=None` of the files."""
    keys = {name: options.pop(name) for name in (*KEYS,) if name in options}
    if shards is None:
        dataset = dataset_of(
            files / "videos.list", transform=CROPS, training=training, data_prefix=str(files), **keys
        )
    else:
        shards = shards if "://" in str(shards) else files / shards
        keys = {"format": "WebDataset", "decode": decode, **keys}
        dataset = dataset_of(shards, transform=CROPS, training=training, **keys)
    return loader_of(dataset, num_workers=num_workers, **options)


KEYS = (
    "label_key",
    "class_names",
    "num_classes",
    "clips_per_video",
    "split_by",
    "shuffle_window",
    "data_prefix",
)


def assert_same(first, second, count=None):
    first, second = list(first), list(second)
    assert len(first) == len(second) == (count or len(first))
    for one, other in zip(first, second):
        for name in ("clips", "labels", "ids", "views"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# --- the same samples as of files


@pytest.mark.smoke
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_files(files, num_workers):
    for options in ({}, {"clips_per_video": 2}, {"rank": 1, "world_size": 2}):
        right = loader(files, None, **options)
        with contextlib.closing(loader(files, num_workers=num_workers, **options)) as read:
            for epoch in (0, 1):
                assert_same(read.epoch(epoch), right.epoch(epoch))
            assert_same(read.epoch(1, start_batch=1), list(right.epoch(1))[1:])
    assert_same(loader(files, training=False).epoch(0), loader(files, None, training=False).epoch(0), 4)


def test_whole_shards_for_each_rank(files):
    ranks = [loader(files, split_by="shard", shuffle=False, rank=rank, world_size=2) for rank in range(2)]
    assert [sum((batch.ids.tolist() for batch in rank.epoch(0)), []) for rank in ranks] == [
        [0, 1, 2, 6],
        [3, 4, 5],
    ]


def test_a_damaged_video_is_replaced_in_training_and_left_out_in_evaluation(files, tmp_path):
    shutil.copytree(files / "shards", tmp_path / "shards")
    members = [("a.mp4", b"no video"), ("a.cls", b"1"), ("b.mp4", b""), ("b.cls", b"2")]
    write_tar(tmp_path / "shards" / "9.tar", members)
    batches = list(loader(tmp_path).epoch(0))
    assert sum(map(len, batches)) == NUM_CLIPS + 2
    failed = {path.rpartition("/")[2]: cause for batch in batches for path, cause in batch.failures}
    assert set(failed) == {"9.tar:a.mp4", "9.tar:b.mp4"}
    assert "not a video" in failed["9.tar:a.mp4"]
    assert "is empty (0 bytes)" in failed["9.tar:b.mp4"]
    assert sum(map(len, loader(tmp_path, training=False).epoch(0))) == NUM_CLIPS


def test_a_tar_that_is_cut_off_while_it_is_in_use(files, tmp_path):
    path = shutil.copy(files / "shards" / "00000.tar", tmp_path)
    shard = TarShard(str(path), LRUCache(4))
    (first, *_, last) = samples_of(shard)
    opened = shard.open(*last[:3])
    with open(path, "r+b") as file:
        file.truncate(last.offset + last.size - 1)
    for read in (opened.read, lambda: shard.open(*last[:3])):
        with pytest.raises(Exception, match=r"^walk/2\.mp4: .*was cut off while it was in use"):
            read()
    assert len(shard.open(*first[:3]).read()) == first.size


# --- labels


def dataset(path, members=None, **keys):
    if members is not None:
        write_tar(path, members)
    return dataset_of(path, transform=CROPS, format="WebDataset", **keys)


def labels_of(path, members, **keys):
    return [record.labels for record in dataset(path, members, **keys).records]


def test_labels(tmp_path):
    names = tmp_path / "classes.txt"
    names.write_text("walk\nrun fast\njump\n")
    shard = tmp_path / "0.tar"
    members = [("a.mp4", b""), ("a.cls", b"run fast\n"), ("b.webm", b""), ("b.json", b'{"label": "jump"}')]
    members += [("c.json", b'{"caption": "x", "labels": [2, "walk"]}'), ("c.MP4", b"")]
    members += [("d.avi", b""), ("d.txt", b"a caption"), ("d.jpg", b""), ("d.cls", b" 1 "), ("d.json", b"[]")]
    members += [("notes/README.md", b""), ("._a.mp4", b""), ("no_ending", b""), ("e.jpg", b"")]
    found = labels_of(shard, members, class_names=str(names), num_classes=3)
    assert found == [(1,), (2,), (0, 2), (1,)]
    (batch,) = loader_of(dataset(shard, num_classes=0), batch_size=4).epoch(0)  # labels are not read
    assert len(batch) == 0
    assert len(batch.failures) == 4

    members = [("a.mp4", b""), ("a.cls", b"0"), ("a.json", b'{"label": 1, "class": {"x": 1}, "verb": 2}')]
    assert labels_of(shard, members) == [(0,)]
    assert labels_of(shard, members, label_key="label") == [(1,)]
    assert labels_of(shard, members, label_key="verb") == [(2,)]
    with pytest.raises(AnnotationError, match=r"0\.tar: 'a': its label is \{'x': 1\}, expected the number"):
        dataset(shard, label_key="class")
    assert labels_of(shard, [("a.mp4", b""), ("a.json", b'{"labels": []}')], num_classes=3) == [()]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.mp4": b""}, r"'a': has no \.cls or \.json, which says its label"),
        ({"x/a.cls": b"1"}, r"'x/a': has a label and no video \(\.avi"),
        ({"a.mp4": b"", "a.mkv": b"", "a.cls": b"1"}, r"'a': has both a\.mp4 and a\.mkv"),
        (
            {"v.1.mp4": b"", "v.2.mp4": b"", "v.1.cls": b"1"},
            r"'v': has both .*; a sample ends at the first dot",
        ),
        ([("a.mp4", b""), ("a.cls", b"1"), ("a.cls", b"1")], r"'a': has both a\.cls and a\.cls"),
        ({"a.mp4": b"", "a.cls": b""}, r"'a': its label is ''"),
        ({"a.mp4": b"", "a.cls": b"-1"}, r"a\.mp4: label '-1' is a name, and nothing says its number"),
        ({"a.mp4": b"", "a.cls": b"\xff"}, r"'a': .*can't decode byte"),
        ({"a.mp4": b"", "a.json": b"{"}, r"'a': Expecting property name"),
        ({"a.mp4": b"", "a.json": b"[" * 10**5}, r"'a': "),
        ({"a.mp4": b"", "a.json": b"[1]"}, r"'a': its \.json has no key 'label' or 'labels' .*, but \[1\]"),
        ({"a.mp4": b"", "a.json": b'{"txt": 1}'}, r"no key .*, but 'txt'; label_key names another key"),
        ({"a.mp4": b"", "a.json": b'{"label": true}'}, r"'a': its label is True, expected the number"),
        ({"a.mp4": b"", "a.json": b'{"label": [1, 2.5]}'}, r"'a': its label is 2\.5"),
        ({"a.txt": b""}, r"no video \(\.avi"),
    ],
)
def test_wrong_members(tmp_path, members, message):
    with pytest.raises(AnnotationError, match=rf"^\S*0\.tar:.*{message}"):
        dataset(tmp_path / "0.tar", members)


def test_wrong_decoders(files):
    for decode, name in (
        ({"name": "VideoDecoder", "backend": "cv2"}, "cv2"),
        ("FrameDecoder", "FrameDecoder"),
    ):
        with pytest.raises(LoaderError, match=f"WebDataset: {name} reads no videos in shards; set backend"):
            loader(files, decode=decode)


def test_what_else_reads_files_is_told(files):
    dataset = loader(files).dataset
    assert other_forms(dataset, 4) == []
    with pytest.raises(LoaderError, match="DALI reads video files; WebDataset opens something else"):
        require_files_for_dali(dataset)
    assert dataset.files == [f"{files}/shards/{number:05}.tar" for number in range(3)]


# --- tars


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_of_all_formats(tmp_path, format):
    names = ["a", "b/" * 40 + "c", "../../etc/passwd", "/root/x", "./d"]
    if format != tarfile.USTAR_FORMAT:
        names += ["long" * 80 + "/" + "x" * 200, "视频", "\udcff"]
    members = [
        pair
        for name in names
        for pair in ((f"{name}.mp4", name.encode("utf-8", "replace")), (f"{name}.cls", b"1"))
    ]
    folder = tarfile.TarInfo("folder.mp4")
    folder.type = tarfile.DIRTYPE
    write_tar(tmp_path / "0.tar", [(folder, b""), *members], format)
    before = sorted(tmp_path.rglob("*"))
    shard = TarShard(str(tmp_path / "0.tar"), LRUCache(4))
    samples = samples_of(shard)
    assert [sample.name for sample in samples] == [f"{name}.mp4" for name in names]
    for name, sample in zip(names, samples):
        assert shard.open(*sample[:3]).read() == name.encode("utf-8", "replace")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_refused(tmp_path, kind):
    link = tarfile.TarInfo("b.mp4")
    link.type, link.linkname = kind, "a.mp4"
    members = [("a.mp4", b"x"), ("a.cls", b"1"), (link, b""), ("b.cls", b"1")]
    with pytest.raises(
        AnnotationError, match=r"0\.tar: b\.mp4: is a link or sparse file; write the tar with"
    ):
        dataset(tmp_path / "0.tar", members)


def test_damaged_tars(files, tmp_path):
    good = (files / "shards" / "00000.tar").read_bytes()
    shard = tmp_path / "0.tar"
    samples = samples_of(TarShard(str(files / "shards" / "00000.tar"), LRUCache(4)))
    headers = [sample.offset - 512 for sample in samples]
    broken = bytearray(good)
    broken[headers[1] + 3] ^= 1
    for content, message in (
        (b"", "is no tar, or is damaged or cut off: empty file; write or copy it again"),
        (b"x" * 2000, "is no tar"),
        (good[: headers[2]], f"cut off: neither a member nor the end is at byte {headers[2]}"),
        (good[: headers[2] + 600], "unexpected end of data"),
        (good[: headers[1] + 100], "is damaged or cut off"),
        (bytes(broken), f"neither a member nor the end is at byte {headers[1]}"),
        (gzip.compress(good), "is compressed, and only a plain .tar is read: unpack it"),
        (good[: headers[2]] + bytes(20000), f"only zeros from byte {headers[2]} on"),
        (good[: headers[2]] + bytes(512) + good[headers[2] :], "neither a member nor the end"),
        (good + b"x" * 512, "is no tar, or is damaged"),
    ):
        shard.write_bytes(content)
        with pytest.raises(ShardError, match=rf"^{shard}: .*{message}"):
            dataset(shard)
    shard.unlink()
    with pytest.raises(ShardError, match="cannot be read: No such file"):
        dataset(shard)
    shard.mkdir()
    with pytest.raises(ShardError, match="cannot be read: Is a directory"):
        dataset(shard)


def test_tars_in_one_file(files, tmp_path):
    """`cat a.tar b.tar`; some writers end a tar with two blocks, others fill up a record."""
    parts = [(files / "shards" / f"0000{number}.tar").read_bytes() for number in (0, 1)]
    samples = [
        sample.name
        for number in (0, 1)
        for sample in samples_of(TarShard(str(files / "shards" / f"0000{number}.tar"), LRUCache(4)))
    ]
    for ends in (b"", bytes(1024), bytes(10240)):
        first = parts[0].rstrip(b"\0") if ends else parts[0]
        first += bytes(-len(first) % 512) + ends
        (tmp_path / "0.tar").write_bytes(first + parts[1])
        shard = TarShard(str(tmp_path / "0.tar"), LRUCache(4))
        found = samples_of(shard)
        assert [sample.name for sample in found] == samples
        last = found[-1]
        assert shard.open("", last.offset, last.size).read() in parts[1]


def test_a_member_is_called_what_stands_behind_the_first_dot(tmp_path):
    """As in webdataset, `seg.cls` is no label."""
    members = [("a.mp4", b""), ("a.cls", b"1"), ("a.seg.cls", b"7"), ("a.other.json", b"{")]
    assert labels_of(tmp_path / "0.tar", members, num_classes=3) == [(1,)]
    with pytest.raises(AnnotationError, match=r"'a': has no \.cls or \.json, which says its label"):
        dataset(tmp_path / "0.tar", [("a.mp4", b""), ("a.seg.cls", b"1")])


def test_headers_that_lie_do_not_hang_or_take_memory(tmp_path):
    write_tar(tmp_path / "0.tar", [("a.mp4", b"x"), ("a.cls", b"1")])
    content = bytearray((tmp_path / "0.tar").read_bytes())
    for at, size in ((0, -1024), (0, 2**40), (1024, 2**40), (1024, 2**24 + 512)):
        lying = bytearray(content)
        header = tarfile.TarInfo.frombuf(bytes(content[at : at + 512]), "utf-8", "strict")
        header.size = max(size, 0)
        lying[at : at + 512] = header.tobuf(tarfile.GNU_FORMAT)[:512]
        if size < 0:
            lying[at + 124 : at + 136] = b"\xff" + (256**11 + size).to_bytes(11, "big")
            sum_ = sum(lying[at : at + 512]) - sum(lying[at + 148 : at + 156]) + 8 * 32
            lying[at + 148 : at + 156] = b"%06o\0 " % sum_
        (tmp_path / "0.tar").write_bytes(lying)
        with pytest.raises(ShardError, match=r"0\.tar: "):
            dataset(tmp_path / "0.tar")


# --- which shards


def test_patterns_folders_and_lists(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    all_three = [f"shards/{number:05}.tar" for number in range(3)]
    for text in ("shards", "shards/{00000..00002}.tar", "shards/*.tar", "shards/{00000,00001,00002}.tar"):
        assert shard_paths(text) == all_three
    assert shard_paths("s3://b/{a,b}-{8..10}.tar") == [
        f"s3://b/{a}-{n}.tar" for a in "ab" for n in (8, 9, 10)
    ]
    (tmp_path / "some.txt").write_text("shards/00002.tar\n\nshards/{00000..00001}.tar\nhttp://a/b.tar?x=1\n")
    assert shard_paths(str(tmp_path / "some.txt")) == [all_three[2], *all_three[:2], "http://a/b.tar?x=1"]
    (tmp_path / "{0..1}.tar").touch()
    assert shard_paths(f"{tmp_path}/{{0..1}}.tar") == [f"{tmp_path}/{{0..1}}.tar"]
    (tmp_path / "below.list").write_text("00001.tar\n")
    assert shard_paths(str(tmp_path / "below.list"), "shards") == ["shards/00001.tar"]


def test_shards_that_are_not_there(tmp_path):
    for text, message in (
        ("nowhere", "No such file or directory; expected a folder of .tar, .* paths start from the current"),
        ("*.tar", "there is no .tar; expected"),
        (str(tmp_path), "there is no .tar; expected"),
        ("{0..999999999}.tar", "names more than 1,000,000 shards"),
        ("{0..999}{0..9999}.tar", "names more than"),
        ("{5..3}.tar", "there is no .tar"),
    ):
        with pytest.raises(AnnotationError, match=message):
            shard_paths(text)
    for number in (0, 3):
        (tmp_path / f"{number:05}-of-00004.tar").touch()
    with pytest.raises(
        AnnotationError, match=r"2 of 4 shards are missing, the first one is 00001-of-00004\.tar; copy them"
    ):
        shard_paths(str(tmp_path))


# --- URLs and the index


def wide_shard(folder):
    """A shard of 12 videos that are mostly zeros."""
    members = []
    for number in range(12):
        members += [(f"{number:03}.json", b'{"label": 1, "caption": "%s"}' % (b"x" * 500))]
        members += [(f"{number:03}.mp4", bytes(MANY_BYTES)), (f"{number:03}.txt", b"a caption")]
    folder.mkdir()
    write_tar(folder / "0.tar", members)
    return folder


def test_few_bytes_are_fetched_for_the_headers(http_store, tmp_path):
    url = http_store.publish(wide_shard(tmp_path / "set")) + "0.tar"
    read = loader(tmp_path, url)
    assert len(read.dataset) == 12
    assert http_store.num_requests <= 12 + 3  # a jump over each video, the state, the end
    assert http_store.num_bytes < 15 * 2**13
    assert read.dataset.is_remote
    read.dataset.fetch([next(iter(read.batch_sampler.batches(0)))[0]])
    assert http_store.num_bytes < 15 * 2**13 + MANY_BYTES + 2 * 2**14


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_batches_of_a_url_with_faults(kind, files, request):
    store = request.getfixturevalue(f"{kind}_store")
    url = store.publish(files / "shards")
    pattern = url + "{00000..00002}.tar" if kind == "http" else url.rstrip("/")
    for number, fault in enumerate(("reset", "cut", "throttled", "error", "close")):
        store.fault(fault, "*.tar", times=1, after=3 * number)
    for num_workers in (0, 2):
        with contextlib.closing(loader(files, pattern, num_workers)) as read:
            assert_same(read.epoch(0), loader(files, None).epoch(0), 4)
    assert {request["fault"] for request in store.requests} > {"reset", "cut"}
    store.reset()
    assert_same(loader(files, pattern).epoch(1), loader(files, None).epoch(1))
    # only headers: the videos are in the cache
    assert max(request["num_bytes"] for request in store.requests) <= 2**13


def test_a_url_that_fails(http_store, files, tmp_path):
    shutil.copytree(files / "shards", tmp_path / "shards")
    url = http_store.publish(tmp_path / "shards")
    with pytest.raises(AnnotationError, match="expected a folder of .tar"):
        loader(files, url)
    with pytest.raises(ShardError, match=r"9\.tar: cannot be read: there is no such object"):
        loader(files, url + "9.tar")
    read = loader(files, url + "{00000..00002}.tar", training=False)
    path = tmp_path / "shards" / "00001.tar"
    path.write_bytes(path.read_bytes())
    failed = [failure for batch in read.epoch(0) for failure in batch.failures]
    assert len(failed) == 3
    assert all("was changed while it was in use" in cause for _, cause in failed)


def test_the_index_is_kept(http_store, files, tmp_path, caplog, monkeypatch):
    from paddlevideo_fast.loader import build_dataset

    shutil.copytree(files / "shards", tmp_path / "shards")
    url = http_store.publish(tmp_path / "shards") + "{00000..00002}.tar"
    pipeline = {"decode": {"name": "VideoDecoder"}, "sample": {"name": "Sampler", "num_seg": 3, "seg_len": 1}}

    def records(path, **keys):
        section = {"format": "WebDataset", "file_path": str(path), **keys}
        made = build_dataset(section, pipeline, training=True, seed=0, index_cache=str(tmp_path / "index"))
        return [(record.labels, record.position) for record in made.records]

    first = records(url)
    assert len(list((tmp_path / "index").iterdir())) == 3
    http_store.reset()
    assert records(url) == first
    assert http_store.num_requests == 3  # which version there is
    monkeypatch.setattr(TarShard, "members", None)
    with pytest.raises(TypeError):
        records(tmp_path / "shards")
    monkeypatch.undo()
    assert records(tmp_path / "shards") == first
    write_tar(tmp_path / "shards" / "00001.tar", [("a.mp4", b"x"), ("a.cls", b"2")])
    assert len(records(tmp_path / "shards")) == len(records(url)) == NUM_CLIPS - 2
    for file in (tmp_path / "index").iterdir():
        file.write_text(json.dumps([1]))
    assert len(records(tmp_path / "shards")) == NUM_CLIPS - 2
    assert "is damaged and is made anew" in caplog.text
