import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.sources.packed.packed import open_shards
from tests.support.content import content
from tests.support.json_lines import entries_of

SCRIPT = "data/pack_frames.py"
REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def videos(tmp_path_factory, make_clip):
    """Five clips of 96×64, 10 to 14 frames, with a list of names without their ending."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(5):
        make_clip(root / f"clip {number}.mp4", 10 + number, size=(96, 64), fps=20 + number)
    (root / "videos.list").write_text("".join(f"clip {number} {number % 2}\n" for number in range(5)))
    return root


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of four images with a list: JPEG files of 80×60, PNG files of 80×60, JPEG files of 160×120."""
    root = tmp_path_factory.mktemp("folders")
    rng = np.random.default_rng(0)
    for name, size in (("jpeg", (80, 60)), ("png", (80, 60)), ("large", (160, 120))):
        (root / name).mkdir()
        for number in range(1, 5):
            picture = cv2.resize(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8), size)
            data = cv2.imencode(".png" if name == "png" else ".jpg", picture)[1].tobytes()
            (root / name / f"img_{number:05}.jpg").write_bytes(data)
    (root / "frames.list").write_text("jpeg 4 0\npng 4 1\nlarge 3 2\n")
    return root


def pack(run_script, source, output, *options, check=True):
    kind = "frames" if (source / "frames.list").exists() else "video"
    fixed = (f"--kind={kind}", f"--data_prefix={source}", f"--output={output}", "--workers=1")
    ending = ("--suffix=.mp4",) if kind == "video" else ()
    return run_script(
        SCRIPT, "--list", source / f"{kind.rstrip('s')}s.list", *fixed, *ending, *options, check=check
    )


def frames_of(folder):
    """All frames of a set by the name of their video."""
    return {
        name: np.stack(list(shard.open(video)))
        for shard in open_shards(folder)
        for video, name in enumerate(shard.directory.names)
    }


def test_videos(videos, run_script, tmp_path, frame_number):
    done = pack(run_script, videos, tmp_path / "out", "--shard_size=2", "--short_side=32", "--quality=95")
    shards = open_shards(tmp_path / "out")
    assert [len(shard) for shard in shards] == [2, 2, 1]
    frames = frames_of(tmp_path / "out")
    assert list(frames) == [f"clip {number}" for number in range(5)]
    for number, pictures in enumerate(frames.values()):
        assert pictures.shape == (10 + number, 32, 48, 3)
        assert [frame_number(picture) for picture in pictures] == list(range(10 + number))
        with open_video(videos / f"clip {number}.mp4") as reader:
            exact = np.stack([cv2.resize(frame, (48, 32), interpolation=cv2.INTER_AREA) for frame in reader])
        assert np.abs(pictures.astype(int) - exact).mean() < 6
        shard = shards[number // 2]
        assert shard.directory.videos["label"][number % 2] == number % 2
        assert shard.open(number % 2).avg_fps == pytest.approx(20 + number)
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.data"))
    assert f"5 videos, 60 frames in 3 shards; {num_bytes / 1e6:.1f} MB" in done.stdout
    assert f"{num_bytes / 60 / 1000:.1f} kB a frame" in done.stdout


def test_frames_are_never_enlarged(videos, run_script, tmp_path):
    done = pack(run_script, videos, tmp_path / "out", "--json")
    (result,) = entries_of(done.stdout)
    assert (result["num_videos"], result["num_frames"], result["num_shards"]) == (5, 60, 1)
    assert frames_of(tmp_path / "out")["clip 0"].shape[1:3] == (64, 96)


def test_folders(folders, run_script, tmp_path):
    pack(run_script, folders, tmp_path / "out", "--short_side=60")
    shard = open_shards(tmp_path / "out")[0]
    files = [path.read_bytes() for path in sorted((folders / "jpeg").iterdir())]
    assert [bytes(image) for image in shard.images(0, [0, 1, 2, 3])] == files
    frames = frames_of(tmp_path / "out")
    assert {name: pictures.shape for name, pictures in frames.items()} == {
        "jpeg": (4, 60, 80, 3), "png": (4, 60, 80, 3), "large": (3, 60, 80, 3)
    }  # fmt: skip
    with open_video(folders / "png") as reader:
        assert np.abs(frames["png"].astype(int) - np.stack(list(reader))).mean() < 4
    pack(run_script, folders, tmp_path / "as they are", "--short_side=0")
    copies = [bytes(image) for image in open_shards(tmp_path / "as they are")[0].images(2, [0, 1, 2])]
    assert copies == [path.read_bytes() for path in sorted((folders / "large").iterdir())[:3]]


def test_failures_are_left_out_and_listed(folders, run_script, tmp_path):
    source = tmp_path / "source"
    for name in ("jpeg", "cut", "mixed"):
        (source / name).mkdir(parents=True)
        for path in (folders / "jpeg").iterdir():
            (source / name / path.name).write_bytes(path.read_bytes())
    cut = source / "cut" / "img_00003.jpg"
    cut.write_bytes(cut.read_bytes()[:-20])
    large = folders / "large" / "img_00001.jpg"
    (source / "mixed" / "img_00002.jpg").write_bytes(large.read_bytes())
    (source / "frames.list").write_text("cut 4 0\njpeg 4 1\nmixed 4 2\ngone 4 0\njpeg 5 3\n")
    for _ in range(2):  # packing, and finding it packed
        done = pack(run_script, source, tmp_path / "out", "--shard_size=2", check=False)
        assert done.returncode == 1
        assert (tmp_path / "out" / "failures.txt").read_text().splitlines() == [
            f"cut\t{cut}: the image is cut off",
            "mixed\tthe frame size changes from 80×60 to 160×120",
            "gone\tno such folder",
            f"jpeg\t{source}/jpeg/img_00005.jpg: cannot be read: No such file or directory",
        ]
        assert "4 of 5 videos failed" in done.stderr
        assert "Traceback" not in done.stderr
    names = [shard.directory.names for shard in open_shards(tmp_path / "out")]
    assert names == [["jpeg"], [], []]


def test_complete_shards_stay_and_others_are_packed(videos, run_script, tmp_path):
    out = tmp_path / "out"
    pack(run_script, videos, out, "--shard_size=2")
    before = content(out)
    (out / "00000.data").write_bytes(before["00000.data"][:-1])
    (out / "00002.index").unlink()
    (out / ".saving-99999999-00002.data").write_bytes(b"half")
    kept = os.stat(out / "00001.data").st_mtime_ns
    done = pack(run_script, videos, out, "--shard_size=2")
    assert "shards: 1 of 3 are done already" in done.stderr
    assert "packed again" in done.stderr
    assert content(out) == before
    assert os.stat(out / "00001.data").st_mtime_ns == kept


def test_another_list_or_size_needs_overwrite(videos, run_script, tmp_path):
    out = tmp_path / "out"
    pack(run_script, videos, out, "--shard_size=1")
    before = content(out)
    for option in ("--short_side=32", "--quality=80", "--shard_size=2"):
        done = pack(run_script, videos, out, "--shard_size=1", option, check=False)
        assert done.returncode == 2
        assert "was packed from another list or with other options: give --overwrite" in done.stderr
        assert content(out) == before
    (out / "00003.data").unlink()
    pack(run_script, videos, out, "--shard_size=3", "--short_side=32", "--overwrite")
    shards = ["00000.data", "00000.index", "00001.data", "00001.index"]
    assert sorted(content(out)) == [*shards, "provenance.json"]
    assert frames_of(out)["clip 4"].shape == (14, 32, 48, 3)
