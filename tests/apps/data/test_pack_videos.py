"""`data pack --format webdataset`: videos as they are in tar shards, which training reads."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest
import webdataset as wds

from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.decode.source import VideoSource
from tests.loader.building import dataset_of
from tests.support.content import content, run_and_kill
from tests.support.stores import Store

SCRIPT = "data/pack_frames.py"
REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def videos(tmp_path_factory, make_clip):
    """Five clips in two folders, with a list."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(5):
        make_clip(root / f"class {number % 2}" / f"clip.{number}.mp4", 10 + number, size=(96, 64))
    lines = [f"class {number % 2}/clip.{number}.mp4 {number % 2}\n" for number in range(5)]
    (root / "videos.list").write_text("".join(lines))
    return root


@pytest.fixture
def pack(run_script, videos):
    """`pack(output, …)`: packs the five clips, two in a shard."""

    def run(output, *options, listed=None, check=True):
        fixed = ("--format=webdataset", "--workers=1", "--shard_size=2", f"--data_prefix={videos}")
        listed = listed or videos / "videos.list"
        return run_script(SCRIPT, "--list", listed, "--output", output, *fixed, *options, check=check)

    return run


def members(folder):
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found |= {info.name: tar.extractfile(info).read() for info in tar}
    return found


def records(path, **keys):
    crop = [{"CenterCrop": {"target_size": 32}}]
    return dataset_of(path, transform=crop, format="WebDataset", **keys).records


def test_videos_with_labels(videos, pack, tmp_path):
    out = tmp_path / "out"
    done = pack(out)
    num_bytes = sum(path.stat().st_size for path in out.glob("*.tar"))
    assert f"5 videos in 3 shards; {num_bytes / 1e6:.1f} MB" in done.stdout
    assert sorted(path.name for path in out.glob("*.tar")) == [f"0000{n}-of-00003.tar" for n in range(3)]
    expected = {}
    for number in range(5):
        key = f"0000000{number}_clip_{number}"
        file = videos / f"class {number % 2}" / f"clip.{number}.mp4"
        expected |= {f"{key}.mp4": file.read_bytes(), f"{key}.cls": b"%d" % (number % 2)}
    assert members(out) == expected
    with tarfile.open(out / "00000-of-00003.tar") as tar:
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in tar} == {
            (0, 0, 0, "", 0o644)
        }
    assert [record.labels for record in records(out)] == [(0,), (1,), (0,), (1,), (0,)]
    pack(tmp_path / "again", "--workers=2")
    assert content(out) == content(tmp_path / "again")


def test_without_the_library_one_sentence_says_what_to_install(videos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "webdataset", None)
    words = ["data", "pack", f"--list={videos / 'videos.list'}", f"--data_prefix={videos}"]
    assert main([*words, f"--output={tmp_path / 'out'}", "--format=webdataset"]) == 2
    error = capsys.readouterr().err
    assert "data pack --format webdataset needs the package 'webdataset', which is not installed" in error
    assert 'pip install "paddlevideo_fast[webdataset]"' in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_webdataset_reads_them(pack, tmp_path):
    pack(tmp_path)
    shards = str(tmp_path / "{00000..00002}-of-00003.tar")
    samples = [(one["__key__"], one["mp4"], one["cls"]) for one in wds.WebDataset(shards, shardshuffle=False)]
    found = members(tmp_path)
    keys = [f"0000000{number}_clip_{number}" for number in range(5)]
    assert samples == [(key, found[f"{key}.mp4"], found[f"{key}.cls"]) for key in keys]


def test_shards_of_webdataset_are_read(videos, tmp_path):
    with wds.ShardWriter(str(tmp_path / "%05d.tar"), maxcount=2, verbose=0) as writer:
        for number in range(5):
            video = (videos / f"class {number % 2}" / f"clip.{number}.mp4").read_bytes()
            writer.write({"__key__": f"a/{number}", "mp4": video, "json": {"label": number % 2, "fps": 25}})
    assert [record.labels for record in records(tmp_path)] == [(0,), (1,), (0,), (1,), (0,)]


def test_several_labels_and_names(videos, pack, tmp_path):
    names = tmp_path / "classes.txt"
    names.write_text("walk\nrun\njump\n")
    listed = tmp_path / "x.jsonl"
    rows = [{"path": "class 0/clip.0.mp4", "label": ["jump", 0]}, {"path": "class 1/clip.1.mp4", "label": []}]
    rows += [{"path": "class 0/clip.2.mp4", "label": "run", "weight": 2}]
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = pack(tmp_path / "out", f"--classes={names}", listed=listed)
    assert "shards hold no weights and no groups" in done.stderr
    assert [record.labels for record in records(tmp_path / "out", num_classes=3)] == [(0, 2), (), (1,)]


def test_what_cannot_be_read_is_left_out(videos, pack, tmp_path):
    listed, out = tmp_path / "x.list", tmp_path / "out"
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "a.txt").write_bytes(b"x")
    good = (videos / "videos.list").read_text()
    listed.write_text(f"gone.mp4 0\n{tmp_path}/empty.mp4 0\n{tmp_path}/a.txt 1\n{good}")
    for _ in range(2):
        done = pack(out, listed=listed, check=False)
        assert done.returncode == 1
        assert "3 of 8 videos failed" in done.stderr
        causes = [line.split("\t")[1] for line in (out / "failures.txt").read_text().splitlines()]
        assert causes[:2] == ["no such file", "the file is empty (0 bytes)"]
        assert causes[2].startswith("its name ends in none of .avi")
    assert "shards: 4 of 4 are done already" in done.stderr
    assert len(records(out)) == 5


def test_a_video_that_ends_early_leaves_nothing(videos, tmp_path, monkeypatch):
    from paddlevideo_fast.apps.data.tar_packing import Task, _Video

    found = [_Video(f"{n}", str(videos / f"class {n % 2}" / f"clip.{n}.mp4"), (n,)) for n in range(3)]
    check = VideoSource.check
    monkeypatch.setattr(VideoSource, "check", lambda self: check(self) + 2**16 * ("clip.1" in self.name))
    done = Task(str(tmp_path), "0.tar", "", found).do()
    assert done.num_bytes == (tmp_path / "0.tar").stat().st_size
    ((path, cause),) = done.failures
    assert path.endswith("clip.1.mp4")
    assert "changed while it was read: unexpected end of data" in cause
    assert sorted(members(tmp_path)) == ["0.cls", "0.mp4", "2.cls", "2.mp4"]


def test_complete_shards_stay_and_others_are_packed(videos, pack, tmp_path):
    out = tmp_path / "out"
    pack(out)
    before, kept = content(out), (out / "00001-of-00003.tar").stat().st_mtime_ns
    (out / "00000-of-00003.tar").write_bytes(b"cut")
    (out / "00002-of-00003.tar").unlink()
    (out / ".saving-99999999-00002.tar").write_bytes(b"half")
    done = pack(out)
    assert "shards: 1 of 3 are done already" in done.stderr
    assert content(out) == before
    assert (out / "00001-of-00003.tar").stat().st_mtime_ns == kept


def test_another_list_or_size_needs_overwrite(videos, pack, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.list"
    pack(out)
    before = content(out)
    other.write_text((videos / "videos.list").read_text().replace("4.mp4 0", "4.mp4 7"))
    for options in ({"listed": other}, {}):
        done = pack(out, *([] if options else ["--shard_size=1"]), check=False, **options)
        assert done.returncode == 2
        assert "was packed from another list or with other options: give --overwrite" in done.stderr
        assert content(out) == before
    pack(out, "--shard_size=3", "--overwrite")
    assert sorted(path.name for path in out.glob("*.tar")) == ["00000-of-00002.tar", "00001-of-00002.tar"]


def test_jobs_of_an_array(pack, tmp_path):
    pack(tmp_path / "whole")
    for share in ("0/2", "1/2"):
        assert not (tmp_path / "out" / "shards.jsonl").exists()
        pack(tmp_path / "out", f"--shard={share}")
    done = pack(tmp_path / "out", "--merge")
    assert "5 videos in 3 shards" in done.stdout
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_killed_run_goes_on(videos, pack, tmp_path):
    listed = tmp_path / "videos.list"
    listed.write_text((videos / "videos.list").read_text() * 60)
    out, whole = tmp_path / "out", tmp_path / "whole"
    options = ("--shard_size=2", "--workers=2", f"--data_prefix={videos}", "--format=webdataset")
    command = [sys.executable, REPO / SCRIPT, "--list", listed, "--output", out, *options]
    run_and_kill(command, out, "[0-9]*.tar", 40)  # outcomes are noted some at a time
    complete = len(list(out.glob("[0-9]*.tar")))
    assert 3 <= complete < 150
    done = pack(out, listed=listed)
    assert "of 150 are done already" in done.stderr
    pack(whole, listed=listed)
    assert content(out) == content(whole)


def test_from_and_to_a_store(videos, pack, tmp_path, http_store: Store, s3_store: Store):
    pack(tmp_path / "local")
    url = http_store.publish(videos)
    http_store.fault("cut", "*.mp4", times=2, after=1)
    out = f"{s3_store.url}packed"
    for _ in range(2):
        done = pack(out, f"--data_prefix={url}", "--workers=0")
    assert "shards: 3 of 3 are done already" in done.stderr
    for name, expected in content(tmp_path / "local").items():
        if name.endswith((".tar", ".jsonl")):
            assert s3_store.get(f"{out}/{name}") == expected


@pytest.mark.parametrize(
    "flag", ["--kind=frames", "--short_side=32", "--quality=5", "--margin=2", "--estimate"]
)
def test_flags_of_frames_are_refused(pack, tmp_path, flag):
    done = pack(tmp_path / "out", flag, check=False)
    assert done.returncode == 2
    assert f"{flag.partition('=')[0]}: --format webdataset stores files of videos as they are" in done.stderr
    assert not (tmp_path / "out").exists()


def test_spans_are_refused(pack, tmp_path):
    listed = tmp_path / "x.jsonl"
    listed.write_text('{"path": "class 0/clip.0.mp4", "label": 1, "end_sec": 1}\n')
    done = pack(tmp_path / "out", listed=listed, check=False)
    assert done.returncode == 2
    assert f"{listed}:1: has a span, and videos are stored as they are" in done.stderr
