"""extract_rawframes: complete folders or none, continued after an interruption, failures listed."""

import shutil

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import open_frames, open_video

SCRIPT = "data/extract_rawframes.py"


@pytest.fixture
def videos(make_clip, tmp_path):
    root = tmp_path / "videos"
    for number in range(4):
        make_clip(root / f"class{number % 2}" / f"v_{number}.mp4", 10 + number, bframes=2)
    return root


def test_extracts_all_frames(videos, run_script, frame_number, tmp_path):
    out = tmp_path / "frames"
    run_script(SCRIPT, videos, out, "--level", 2, "--num_worker", 2)
    assert (out / "rawframes.list").read_text().splitlines() == [
        "class0/v_0 10 0", "class0/v_2 12 0", "class1/v_1 11 1", "class1/v_3 13 1",
    ]  # fmt: skip
    with open_frames(str(out / "class1/v_3")) as reader:
        assert [frame_number(frame) for frame in reader] == list(range(13))
    assert not (out / "failures.txt").exists()
    assert sorted(path.name for path in out.iterdir()) == [
        "class0",
        "class1",
        "provenance.json",
        "rawframes.list",
    ]


def test_runs_again_only_what_is_missing(videos, run_script, tmp_path):
    out = tmp_path / "frames"
    run_script(SCRIPT, videos, out, "--resume")
    kept = out / "class0/v_0/img_00001.jpg"
    before = kept.stat().st_mtime_ns
    (out / "class0/v_2/img_00007.jpg").unlink()
    shutil.rmtree(out / "class1/v_3")
    leftover = out / "class1/.saving-99999999-v_3"
    leftover.mkdir()
    (leftover / "img_00001.jpg").write_bytes(b"half")
    run_script(SCRIPT, videos, out)
    assert kept.stat().st_mtime_ns == before
    assert len(list((out / "class0/v_2").iterdir())) == 12
    assert len(list((out / "class1/v_3").iterdir())) == 13
    assert not leftover.exists()


def test_goes_on_after_bad_videos(videos, broken_videos, run_script, tmp_path):
    out = tmp_path / "frames"
    for kind in ("empty", "text", "truncated", "damaged"):
        shutil.copy(broken_videos[kind], videos / "class1" / f"{kind}.mp4")
    done = run_script(SCRIPT, videos, out, check=False)
    assert done.returncode == 1
    assert "4 of 8 videos failed" in done.stderr
    assert "Traceback" not in done.stderr
    failures = (out / "failures.txt").read_text()
    assert all(f"{kind}.mp4\t" in failures for kind in ("empty", "text", "truncated", "damaged"))
    assert len((out / "rawframes.list").read_text().splitlines()) == 4
    assert sorted(path.name for path in (out / "class1").iterdir()) == ["v_1", "v_3"]


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (["--new_short", 24], (24, 40)),
        (["--short-side", 96], (96, 160)),
        (["--new_width", 30, "--new_height", 20], (20, 30)),
    ],
)
def test_resize(options, shape, videos, run_script, tmp_path):
    run_script(SCRIPT, videos / "class0", tmp_path / "out", "--level", 1, *options)
    assert cv2.imread(str(tmp_path / "out/v_0/img_00001.jpg")).shape[:2] == shape
    assert (tmp_path / "out/rawframes.list").read_text() == "v_0 10\nv_2 12\n"


def test_another_size_is_no_silent_success(videos, run_script, tmp_path):
    options = [SCRIPT, videos / "class0", tmp_path / "out", "--level", 1, "--new_short"]
    run_script(*options, 24)
    done = run_script(*options, 32, check=False)
    assert done.returncode == 2
    assert "short_side 24" in done.stderr
    assert "--overwrite" in done.stderr
    run_script(*options, 32, "--overwrite")
    assert cv2.imread(str(tmp_path / "out/v_0/img_00001.jpg")).shape[0] == 32
    run_script(*options, 32)


def test_png_is_exact_and_ext_selects_videos(videos, run_script, tmp_path):
    shutil.copy(videos / "class0/v_0.mp4", videos / "class0/other.mkv")
    run_script(SCRIPT, videos, tmp_path / "out", "--ext", "mp4", "--out_format", "png", "--num_gpu", 1)
    assert not (tmp_path / "out/class0/other").exists()
    frames = open_frames(str(tmp_path / "out/class0/v_0"), "img_{:05}.png").read(range(10))
    with open_video(videos / "class0/v_0.mp4") as video:
        assert np.array_equal(video.read(range(10)), frames)


def test_options_without_effect_say_so(videos, run_script, tmp_path):
    done = run_script(SCRIPT, videos, tmp_path / "out", "--use_opencv", "--num_gpu", 2)
    assert "warning: --use_opencv has no effect" in done.stderr
    assert "warning: --num_gpu has no effect" in done.stderr
