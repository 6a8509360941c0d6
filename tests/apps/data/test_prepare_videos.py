"""prepare_videos: every frame kept, as good and as easy to enter as asked for, once and completely."""

import os
import shutil
import sys
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data.encoding import PrepareError, _check
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.packets import nonref_test
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.jobs.run import json_lines
from paddlevideo_fast.loader.annotations import read_video_list
from tests.support.content import run_and_kill
from tests.support.exact_corpus import CORPUS, write_corpus_clip
from tests.support.forking import Fresh
from tests.support.json_lines import entries_of
from tests.support.numbered_clips import read_number

REPO = Path(__file__).resolve().parents[3]
SCRIPT = "data/prepare_videos.py"


@pytest.fixture
def prepare(run_script, tmp_path):
    """Function that prepares clips below `tmp_path/videos`, labels 0, 1, …: output folder, process."""

    def run(*clips, check=True, options=()):
        lines = [f"{clip.relative_to(tmp_path / 'videos')} {label}\n" for label, clip in enumerate(clips)]
        (tmp_path / "x.list").write_text("".join(lines))
        out = tmp_path / "prepared"
        command = ["--list", tmp_path / "x.list", "--data_prefix", tmp_path / "videos", "--output", out]
        done = run_script(SCRIPT, *command, "--workers", 1, *options, check=check)
        assert "Traceback" not in done.stderr
        return out, done

    return run


@pytest.fixture
def videos(make_clip, tmp_path):
    return [
        make_clip(tmp_path / "videos" / f"class{n % 2}" / f"v {n}.avi", 10 + n, codec="mpeg4")
        for n in range(3)
    ]


def frames_of(path):
    with open_video(path) as reader:
        return reader.read(range(reader.num_frames))


def packets_of(path):
    """The video's stream, and its packets in decoding order."""
    with av.open(str(path)) as container:
        return container.streams.video[0].codec_context, [p for p in container.demux(video=0) if p.size]


def psnr(one, other):
    return 10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2))


@pytest.mark.parametrize(("preset", "gop"), [("sparse", 8), ("dense", 32), ("intra", 1)])
def test_frames_stay_and_groups_are_closed(preset, gop, prepare, make_clip, frame_number, tmp_path):
    source = make_clip(tmp_path / "videos" / "a.mkv", 75, gop=250, bframes=3, audio=True)
    out, _ = prepare(source, options=["--preset", preset])
    before, after = frames_of(source), frames_of(out / "a.mp4")
    assert [frame_number(frame) for frame in after] == list(range(75))
    assert psnr(before, after) >= 34
    with av.open(str(out / "a.mp4")) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        assert container.streams.video[0].average_rate == 25
    _, packets = packets_of(out / "a.mp4")
    keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
    assert keys == list(range(0, 75, gop))
    for key in keys:  # closed: nothing after a key picture is shown before it, and nothing before it after
        assert all(packet.pts > packets[key].pts for packet in packets[key + 1 :])
        assert all(packet.pts < packets[key].pts for packet in packets[:key])
    data = (out / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_nothing_depends_on_b_pictures(prepare, make_clip, tmp_path):
    out, _ = prepare(make_clip(tmp_path / "videos" / "a.mp4", 64), options=["--preset", "dense"])
    with av.open(str(out / "a.mp4")) as container:
        frames = list(container.decode(video=0))
    kinds = {frame.pts: frame.pict_type for frame in frames}
    codec, packets = packets_of(out / "a.mp4")
    skipped = {packet.pts for packet in packets if nonref_test(codec)(packet)}
    assert skipped == {pts for pts, kind in kinds.items() if kind == av.video.frame.PictureType.B}
    assert 8 <= len(skipped) < 64


@pytest.mark.slow
def test_real_clips_in_no_more_bytes(real_clips_dir, run_script, tmp_path):
    names = [
        name for name in ("mma_demo.mp4", "pancake.mkv", "nasa.mp4") if (real_clips_dir / name).is_file()
    ]
    (tmp_path / "x.list").write_text("".join(f"{name} 0\n" for name in names))
    command = ["--list", tmp_path / "x.list", "--data-prefix", real_clips_dir, "--output", tmp_path / "out"]
    run_script(SCRIPT, *command, "--preset", "sparse")
    bytes_before = bytes_after = 0
    for name in names:
        source, target = real_clips_dir / name, (tmp_path / "out" / name).with_suffix(".mp4")
        bytes_before += source.stat().st_size
        bytes_after += target.stat().st_size
        with open_video(source) as video:
            width, height = video.square_size
        after = frames_of(target)
        assert after.shape[1:3] == (height - height % 2, width - width % 2)
        before = np.stack([cv2.resize(frame, after.shape[2:0:-1]) for frame in frames_of(source)])
        assert psnr(before, after) >= 35
    assert bytes_after <= bytes_before


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(make_clip, tmp_path):
    """With any number of workers, and whatever is in new memory: MALLOC_PERTURB_ tells glibc what."""
    root = tmp_path / "videos"
    make_clip(root / "a.mp4", 40, size=(340, 180))
    make_clip(root / "b.mkv", 24, size=(322, 242), codec="mpeg4")
    make_clip(root / "c.mov", 10, size=(272, 160), rotation=90)
    (tmp_path / "x.list").write_text("a.mp4 0\nb.mkv 1\nc.mov 2\n")
    made = []
    for preset in ("sparse", "dense"):
        for filling, workers in (("1", 1), ("170", 3)):
            out = tmp_path / f"{preset} {filling}"
            options = {"list": tmp_path / "x.list", "data_prefix": root, "output": out, "preset": preset}
            options["workers"] = workers
            words = [REPO / SCRIPT, *(f"--{name}={value}" for name, value in options.items())]
            assert Fresh({**os.environ, "MALLOC_PERTURB_": filling}).run(words, REPO).returncode == 0
            made.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert len(made[0]) == 6
    assert made[0] == made[1]
    assert made[2] == made[3]
    assert made[0] != made[2]


def test_a_copy_that_lacks_frames_or_shifts_them(make_clip, tmp_path):
    source = make_clip(tmp_path / "a.mp4", 12)
    with PyAVReader(str(source)) as reader:
        times = reader.timing
    _check(source, times)
    with pytest.raises(PrepareError, match="has 13 frames, of which 12 can be read back"):
        _check(source, times._replace(ticks=range(13)))
    with pytest.raises(PrepareError, match="at other times"):
        _check(source, times._replace(ticks=[*range(11), 12]))


@pytest.mark.parametrize(
    ("size", "expected"),
    [((320, 240), (64, 48)), ((240, 322), (48, 64)), ((60, 40), (60, 40)), ((81, 49), (64, 48))],
)
def test_short_side(size, expected, prepare, make_clip, frame_number, tmp_path):
    source = make_clip(tmp_path / "videos" / "a.mp4", 20, size=size, pix_fmt="yuv444p")
    if size == (81, 49):
        expected = (80, 48)
    out, _ = prepare(source, options=["--short_side", 48])
    after = frames_of(out / "a.mp4")
    assert after.shape == (20, expected[1], expected[0], 3)
    assert [frame_number(frame) for frame in after] == list(range(20))
    before = [cv2.resize(frame, expected, interpolation=cv2.INTER_AREA) for frame in frames_of(source)]
    assert np.abs(np.mean(after.astype(float) - before, axis=(0, 1, 2))).max() < 1.5


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_goes_into_the_pixels(degrees, prepare, make_clip, tmp_path):
    source = make_clip(tmp_path / "videos" / "a.mov", 12, size=(96, 64), rotation=degrees)
    out, _ = prepare(source)
    with av.open(str(out / "a.mp4")) as container:
        assert next(container.decode(video=0)).rotation == 0
    assert psnr(frames_of(source), frames_of(out / "a.mp4")) >= 34


@pytest.mark.parametrize(
    "options",
    [
        {"pix_fmt": "yuvj420p"},
        {"pix_fmt": "yuv420p10le"},
        {"options": {"colorspace": "bt709", "color_primaries": "bt709", "color_trc": "bt709"}},
        {"options": {"colorspace": "bt709", "color_range": "pc"}, "size": (96, 64), "rotation": 90},
        {"codec": "libx264rgb", "pix_fmt": "rgb24"},
        {"codec": "libvpx-vp9", "options": {"color_range": "pc"}, "size": (97, 65)},
        {"codec": "mjpeg", "pix_fmt": "yuvj422p"},
        {"codec": "ffv1", "pix_fmt": "gray"},
    ],
    ids=["full range", "10 bit", "BT.709", "BT.709 full range, turned", "RGB", "VP9", "JPEG", "grey"],
)
def test_colours_stay(options, prepare, make_clip, tmp_path):
    source = make_clip(tmp_path / "videos" / ("a.mov" if "rotation" in options else "a.mkv"), 12, **options)
    out, _ = prepare(source)
    after = frames_of(out / "a.mp4")
    before = np.stack([cv2.resize(frame, after.shape[2:0:-1]) for frame in frames_of(source)])
    assert np.abs(np.mean(after.astype(float) - before, axis=(0, 1, 2))).max() < 1.5
    assert psnr(before, after) >= 28


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_variable_frame_rate(ending, prepare, make_clip, tmp_path):
    source = make_clip(tmp_path / "videos" / f"a.{ending}", 30, variable_rate=True, bframes=2)

    def times_sec(path):
        _, packets = packets_of(path)
        return np.sort([float(packet.pts * packet.time_base) for packet in packets])

    out, _ = prepare(source)
    before, after = times_sec(source), times_sec(out / "a.mp4")
    assert np.abs((before - before[0]) - (after - after[0])).max() < 0.001
    assert len({round(step, 2) for step in np.diff(after)}) > 3


@pytest.mark.parametrize("fps", [24, 30])
def test_rounded_times_become_even(fps, prepare, make_clip, tmp_path):
    source = make_clip(tmp_path / "videos" / "a.mkv", 20, fps=fps)  # Matroska rounds to milliseconds
    out, _ = prepare(source)
    assert len(set(np.diff(sorted(packet.pts for packet in packets_of(out / "a.mp4")[1])))) == 1
    with open_video(out / "a.mp4") as reader:
        assert reader.avg_fps == fps


@pytest.mark.slow
def test_the_frames_of_odd_files(run_script, tmp_path):
    """Edit lists, open groups, hidden and packed frames, lost packets: what the file shows, in its order."""
    clips = {}
    for name in CORPUS:
        folder = tmp_path / "videos" / Path(name).suffix[1:]
        folder.mkdir(parents=True, exist_ok=True)
        clips[f"{folder.name}/{name}"] = write_corpus_clip(folder, name)
    (tmp_path / "x.list").write_text("".join(f"{name} 0\n" for name in clips))
    out = tmp_path / "out"
    options = ["--list", tmp_path / "x.list", "--data_prefix", tmp_path / "videos", "--output", out]
    run_script(SCRIPT, *options)
    for name, clip in clips.items():
        frames = frames_of((out / name).with_suffix(".mp4"))
        upright = [np.rot90(frame, clip.rotation // 90) for frame in frames]
        assert [read_number(frame) for frame in upright] == clip.numbers, name


def test_a_new_list_without_failures(prepare, videos, broken_videos, make_clip, tmp_path):
    root = tmp_path / "videos"
    for kind in ("empty", "text", "truncated", "damaged", "audio_only"):
        shutil.copy(broken_videos[kind], root / f"{kind}.mp4")
    (root / "frames").mkdir()
    tiny = make_clip(root / "tiny.mp4", 3, size=(16, 8))
    bad = [*(root / f"{kind}.mp4" for kind in ("empty", "text", "truncated", "damaged", "audio_only"))]
    bad += [root / "frames", root / "missing.mp4", tiny]
    out, done = prepare(videos[0], *bad, videos[1], videos[2], check=False)
    assert done.returncode == 1
    assert "8 of 11 videos failed" in done.stderr
    assert (out / "x.list").read_text().splitlines() == [
        "class0/v 0.mp4 0", "class1/v 1.mp4 9", "class0/v 2.mp4 10",
    ]  # fmt: skip
    failures = dict(line.split("\t") for line in (out / "x.failures.txt").read_text().splitlines())
    assert set(failures) == {str(path) for path in bad}
    assert all(failures.values())
    assert "folder" in failures[str(root / "frames")]
    assert "too small" in failures[str(tiny)]
    records = read_video_list(str(out / "x.list"), str(out))
    assert [len(frames_of(record.path)) for record in records] == [10, 11, 12]
    assert not list(out.rglob(".*"))
    assert sorted(path.name for path in out.glob("*.mp4")) == []


def test_one_video_on_two_lines(prepare, videos):
    out, _ = prepare(videos[0], videos[1], videos[0])
    assert (out / "x.list").read_text().splitlines() == [
        "class0/v 0.mp4 0",
        "class1/v 1.mp4 1",
        "class0/v 0.mp4 2",
    ]
    assert len((out / "prepared.jsonl").read_text().splitlines()) == 2


def test_does_again_only_what_changed(prepare, videos, make_clip):
    out, done = prepare(*videos)
    assert "3 videos, 3 of them new" in done.stdout
    made = [out / "class0/v 0.mp4", out / "class1/v 1.mp4", out / "class0/v 2.mp4"]
    before = [path.stat().st_mtime_ns for path in made]
    make_clip(videos[1], 15, codec="mpeg4")
    made[2].write_bytes(b"half")
    with (out / "prepared.jsonl").open("a") as file:
        file.write('{"name": "class0/v 0.mp4", "sour')  # what a killed run leaves
    out, done = prepare(*videos)
    assert "3 videos, 2 of them new" in done.stdout
    assert made[0].stat().st_mtime_ns == before[0]
    assert [len(frames_of(path)) for path in made] == [10, 15, 12]
    _, done = prepare(*videos, options=["--json"])
    (result,) = entries_of(done.stdout)
    assert (result["folder"], result["num_videos"], result["num_new"]) == (str(out), 3, 0)
    assert result["bytes_after"] == sum(path.stat().st_size for path in made)
    _, done = prepare(*videos, options=["--preset", "intra"])
    assert "3 videos, 3 of them new" in done.stdout
    assert all(packet.is_keyframe for path in made for packet in packets_of(path)[1])


def test_goes_on_after_being_killed(make_clip, run_script, tmp_path):
    names = [f"v{number}.mp4" for number in range(8)]
    for name in names:
        make_clip(tmp_path / "videos" / name, 60, size=(160, 96))
    (tmp_path / "x.list").write_text("".join(f"{name} 0\n" for name in names))
    out = tmp_path / "out"
    options = ["--list", tmp_path / "x.list", "--data_prefix", tmp_path / "videos", "--output", out]
    run_and_kill([sys.executable, REPO / SCRIPT, *options, "--workers", 2], out, "[!.]*.mp4", 1)
    noted = {entry["name"] for entry in json_lines(out / "prepared.jsonl")}
    assert not (out / "x.list").exists()
    for path in out.glob("[!.]*.mp4"):
        assert len(frames_of(path)) == 60
    kept = {name: (out / name).stat().st_mtime_ns for name in noted}
    done = run_script(SCRIPT, *options, "--workers", 2)
    assert f"8 videos, {8 - len(noted)} of them new" in done.stdout
    assert {name: (out / name).stat().st_mtime_ns for name in noted} == kept
    assert sorted(path.name for path in out.iterdir()) == [
        "prepared.jsonl",
        "provenance.json",
        *names,
        "x.list",
    ]
