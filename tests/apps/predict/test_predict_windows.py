"""Long videos window by window, on real encoded videos."""

from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict.annotated import CaptionPainter
from paddlevideo_fast.apps.predict.predictor import (
    Prediction,
    Predictor,
    Unread,
    Window,
    WindowedPrediction,
    Windowing,
)
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.image_folder import FrameFolderReader
from paddlevideo_fast.decode.reader import VideoPart, VideoReader
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest
from tests.support.json_lines import entries_of

REQUEST = ClipRequest(0, 0)


@pytest.fixture(scope="module")
def program(exported):
    return exported("tsm", ExportOptions()).program


@pytest.fixture
def seen(monkeypatch):
    """The frames, uint8 [T, H, W, 3], of each read of a part of a video, while a test runs."""
    reads = []
    read = VideoPart.read

    def noted(self, indices):
        reads.append(read(self, indices))
        return read(self, indices)

    monkeypatch.setattr(VideoPart, "read", noted)
    return reads


class Timed(VideoReader):
    """A video whose frames are shown at given times."""

    def __init__(self, times, fps=0.0):
        self.path, self.num_frames, self.avg_fps, self._times = "v.mp4", len(times), fps, np.array(times)

    def times_sec(self):
        return self._times

    def _decode(self, wanted):
        raise AssertionError("frames are read")


def regular(num_frames, fps):
    return Timed(np.arange(num_frames) / fps, fps)


@pytest.mark.parametrize(
    ("num_frames", "fps", "windowing", "starts", "length"),
    [
        (100, 25.0, Windowing(1), [0, 1, 2, 3], 1),
        (110, 25.0, Windowing(1), [0, 1, 2, 3, 3.4], 1),
        (11, 1.0, Windowing(4, 3), [0, 3, 6, 7], 4),
        (20, 25.0, Windowing(1), [0], 0.8),
        (25, 25.0, Windowing(1), [0], 1),
        (26, 25.0, Windowing(1, 0.04), [0, 0.04], 1),
        (100, 10.0, Windowing(1, 4), [0, 4, 8, 9], 1),
        (2398, 29.97, Windowing(10), [0, 10, 20, 30, 40, 50, 60, 70.013347], 10),
    ],
)
def test_windows_cover_the_video(num_frames, fps, windowing, starts, length):
    windows = windowing.cut(regular(num_frames, fps))
    assert [window.start_sec for window in windows] == starts
    assert [window.end_sec for window in windows] == pytest.approx([start + length for start in starts])
    for window in windows:
        inside = [f for f in range(num_frames) if window.start_sec <= f / fps + 1e-5 < window.end_sec]
        assert [*range(window.first, window.stop)] == inside
    assert windows[-1].stop == num_frames


def test_windows_are_cut_by_the_times_of_frames(tmp_path):
    """3 s at 10 frames a second, then 3 s at 30; and a film that stands still from 2 s to 7 s."""
    two_rates = Timed([*np.arange(30) / 10, *(3 + np.arange(90) / 30)], 20.0)
    assert [window[:2] for window in Windowing(1).cut(two_rates)] == [
        (0, 10), (10, 20), (20, 30), (30, 60), (60, 90), (90, 120),
    ]  # fmt: skip
    pause = Timed([*np.arange(50) / 25, *(7 + np.arange(25) / 25)], 25.0)
    assert Windowing(2).cut(pause) == [
        Window(0, 50, 0, 2), Window(49, 50, 2, 4), Window(49, 50, 4, 6), Window(50, 75, 6, 8),
    ]  # fmt: skip
    with pytest.raises(
        VideoDecodeError, match="says no frame rate, so nothing says when its frames are shown"
    ):
        Windowing(1).cut(FrameFolderReader(tmp_path, num_frames=3))


def test_wrong_lengths_are_refused():
    for values in ((0,), (-1,), (float("nan"),), (float("inf"),), (1, 0), (1, -2)):
        with pytest.raises(PaddleVideoFastError, match=r"_sec is .*, expected a number of seconds above 0"):
            Windowing(*values)
    with pytest.raises(ProgramError, match=r"v.mp4: a window of 0.03 s is shorter than one of its frames"):
        Windowing(0.03).cut(regular(100, 25.0))
    with pytest.raises(ProgramError, match="a stride of 0.01 s"):
        Windowing(1, 0.01).cut(regular(100, 25.0))


def windowed(tops, windows):
    """A prediction with the class and the score of each window, out of three classes."""
    parts = []
    for class_id, score in tops:
        scores = np.full(3, (1 - score) / 2, np.float32)
        scores[class_id] = score
        parts.append(Prediction("v.mp4", scores, np.zeros((1, 3), np.float32), ["a", "b", "c"]))
    return WindowedPrediction(parts[0], windows, parts)


def test_each_moment_is_of_the_window_with_the_nearest_middle():
    cases = [
        (100, Windowing(2.5), [0, 2.5, 5, 7.5, 10]),
        (11, Windowing(0.4, 0.3), None),
        (100, Windowing(1, 4), None),
        (7, Windowing(0.3, 0.1), None),
        (30, Windowing(5), [0, 3]),
    ]
    for num_frames, windowing, expected in cases:
        windows = windowing.cut(regular(num_frames, 10.0))
        edges = windowed([(0, 0.9)] * len(windows), windows).edges_sec
        assert expected in (None, edges)
        assert edges[-1] == num_frames / 10
        for number, (start, end) in enumerate(zip(edges, edges[1:])):
            assert start < end
            for moment in np.linspace(start, end, 9):
                distances = [abs(moment - (one.start_sec + one.end_sec) / 2) for one in windows]
                assert distances[number] <= min(distances) + 1e-5


def test_windows_of_one_class_are_merged():
    windows = Windowing(1).cut(regular(45, 10.0))
    tops = [(2, 0.5), (2, 0.75), (0, 0.5), (2, 0.75), (2, 0.5)]
    segments = windowed(tops, windows).segments()
    assert [(s.start_sec, s.end_sec, s.best.name, s.best.score) for s in segments] == [
        (0.0, 2.0, "c", 0.625),
        (2.0, 3.0, "a", 0.5),
        (3.0, 4.5, "c", 0.625),
    ]


@pytest.mark.smoke
@pytest.mark.parametrize("bframes", [0, 2])
def test_a_part_of_a_video_has_its_frames(make_clip, frame_number, tmp_path, bframes):
    with open_video(make_clip(tmp_path / "v.mp4", 60, gop=13, bframes=bframes)) as video:
        for first, stop in ((20, 37), (0, 60), (59, 60)):
            with VideoPart(video, first, stop) as part:
                assert (part.num_frames, part.width, part.height) == (stop - first, 80, 48)
                wanted = [stop - first - 1, 0, (stop - first) // 2]
                assert [frame_number(picture) for picture in part.read(wanted)] == [first + i for i in wanted]
                assert [frame_number(picture) for picture in part] == list(range(first, stop))
                with pytest.raises(VideoDecodeError, match="out of range"):
                    part.read([stop - first])
            with pytest.raises(VideoDecodeError, match="closed"):
                part.read([0])
        assert frame_number(video.read([41])[0]) == 41  # still open
        for first, stop in ((-1, 4), (4, 4), (50, 61)):
            with pytest.raises(ValueError):
                VideoPart(video, first, stop)


def test_replaced_frames_of_a_part_are_counted(broken_videos):
    with open_video(broken_videos["damaged"], on_corrupt="nearest") as video:
        video.read(range(40))
        total = video.num_replaced
        assert total > 0
        parts = [VideoPart(video, first, first + 10) for first in range(0, 40, 10)]
        for part in parts:
            part.read(range(10))
        assert sum(part.num_replaced for part in parts) == total


@pytest.mark.smoke
def test_each_window_is_read_as_validation_reads_a_video(program, make_clip, frame_number, tmp_path, seen):
    predictor = Predictor(program)
    sample = predictor.recipe.dataset().pipeline.sample
    long = make_clip(tmp_path / "long.mp4", 100, (96, 64), gop=30, bframes=2)
    (result,) = predictor.predict_windows([long], Windowing(1.2, 1), batch_size=3)
    spans = [(0, 1.2), (1, 2.2), (2, 3.2), (2.8, 4)]
    assert result.windows == [Window(round(25 * a), round(25 * b), a, b) for a, b in spans]
    for window, frames in zip(result.windows, seen):
        expected = window.first + sample.sample(30, 25.0, REQUEST, None)
        assert [frame_number(picture) for picture in frames] == expected.tolist()


def joined_packets(clips, path):
    """Writes clips of one encoder one after the other, as they are compressed."""
    with av.open(str(path), "w") as output:
        stream, ticks = None, 0
        for clip in clips:
            with av.open(str(clip)) as source:
                track = source.streams.video[0]
                stream = stream or output.add_stream_from_template(track)
                packets = [packet for packet in source.demux(track) if packet.size]
                for packet in packets:
                    packet.pts, packet.dts, packet.stream = packet.pts + ticks, packet.dts + ticks, stream
                    output.mux(packet)
                ticks += track.duration
    return path


def test_windows_of_joined_clips_are_the_clips(program, motion_videos, tmp_path):
    clips = sorted(motion_videos.glob("valid/*.mp4"))[:3]
    joined = joined_packets(clips, tmp_path / "joined.mp4")
    predictor = Predictor(program)
    (result,) = predictor.predict_windows([joined], Windowing(16 / 24), batch_size=2)
    alone = list(predictor.predict(clips))
    assert [window[:2] for window in result.windows] == [(0, 16), (16, 32), (32, 48)]
    for part, expected in zip(result.parts, alone):
        # not to the last bit: MKL's kernels differ with the size of the batch
        assert np.allclose(part.logits, expected.logits, rtol=1e-5, atol=0)
    assert np.allclose(result.whole.scores, np.mean([one.scores for one in alone], axis=0), atol=1e-5)
    assert result.scores.shape == result.whole.logits.shape == (3, 8)


def test_one_window_is_the_whole_video_and_a_bad_file_is_told(program, motion_videos, broken_videos):
    predictor = Predictor(program)
    clip = next(motion_videos.glob("valid/*.mp4"))
    bad = [
        broken_videos[name]
        for name in ("missing", "text", "truncated", "damaged", "picture_png", "audio_only")
    ]
    results = list(predictor.predict_windows([*bad, clip], Windowing(60)))
    for path, result in zip(bad, results):
        assert isinstance(result, Unread)
        assert str(path) in str(result.error)
    whole = next(predictor.predict([clip]))
    assert np.array_equal(results[-1].whole.scores, whole.scores)
    assert results[-1].windows == [Window(0, 16, 0, pytest.approx(16 / 24, abs=1e-6))]
    (result,) = predictor.predict_windows([clip], Windowing(0.001))
    assert "shorter than one of its frames" in str(result.error)


def test_windows_are_read_ahead_over_all_videos(program, make_clip, broken_videos, tmp_path, monkeypatch):
    """The results are those of reading in turn; a video that fails costs its own only; all are closed."""
    clips = [make_clip(tmp_path / f"{name}.mp4", 60, (96, 64), gop=12) for name in "abc"]
    clips[1:1] = [broken_videos["text"], broken_videos["damaged"]]
    predictor, opened = Predictor(program), []
    open_one = predictor.open
    monkeypatch.setattr(predictor, "open", lambda path: opened.append(open_one(path)) or opened[-1])
    in_turn = list(predictor.predict_windows(clips, Windowing(0.4, 0.1), 2))
    assert len(opened) == 4
    ahead = list(predictor.predict_windows(clips, Windowing(0.4, 0.1), 2, num_readers=3))
    assert [type(result) for result in ahead] == [type(result) for result in in_turn]
    for result, expected in zip(ahead, in_turn):
        assert result.path == expected.path
        if isinstance(result, Unread):
            assert str(result.error) == str(expected.error)
        else:
            assert result.windows == expected.windows
            assert np.array_equal(result.whole.logits, expected.whole.logits)
    some = predictor.predict_windows(clips, Windowing(0.4, 0.1), num_readers=2)
    assert next(some).path == str(clips[0])
    some.close()
    assert len(opened) > 8
    assert all(video._closed for video in opened)


@pytest.fixture
def predict(program, run):
    """Function that runs `paddlevideo-fast predict` with this program."""
    return partial(run, "predict", "--model_file", program)


def test_the_command_lists_windows_and_segments(predict, make_clip, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 60, (64, 64))
    words = ["-i", clip, "--window_sec", "1", "--stride_sec", "0.4", "--top_k", "3", "--batch_size", "2"]
    code, out, err = predict(*words, "--json")
    (entry,) = entries_of(out)
    assert (code, err) == (0, "")
    spans = [(window["start_sec"], window["end_sec"]) for window in entry["windows"]]
    assert spans == [(0.0, 1.0), (0.4, 1.4), (0.8, 1.8), (1.2, 2.2), (1.4, 2.4)]
    assert {len(window["top"]) for window in entry["windows"]} == {3}
    assert len(entry["top"]) == 3
    ends = [segment["end_sec"] for segment in entry["segments"]]
    assert [segment["start_sec"] for segment in entry["segments"]] == [0.0, *ends[:-1]]
    assert ends[-1] == 2.4
    lines = predict(*words)[1].splitlines()
    assert lines[0] == str(clip)
    assert lines[4] == "  windows"
    best = entry["windows"][4]["top"][0]
    assert lines[9].split() == ["1.40", "-", "2.40", "s", f"{best['score']:.5f}", best["name"]]
    assert lines[10] == "  segments"
    assert len(lines) == 11 + len(entry["segments"])


def test_pictures_of_a_folder_keep_its_folders(predict, make_clip, broken_videos, tmp_path):
    folder = tmp_path / "in"
    make_clip(folder / "a.mp4", 30, (64, 64))
    make_clip(folder / "sub" / "a.avi", 30, (64, 64), codec="mpeg4")
    (folder / "b.mp4").write_bytes(broken_videos["text"].read_bytes())
    words = ["-i", folder, "--window_sec", "0.5"]
    code, out, err = predict(*words, "--annotated", tmp_path / "out", "--timeline", tmp_path / "times")
    assert (code, err.count("Error"), out.count("segments")) == (1, 1, 2)
    for folder_out, ending in ((tmp_path / "out", "mp4"), (tmp_path / "times", "png")):
        files = sorted(path.relative_to(folder_out).as_posix() for path in folder_out.rglob("*.*"))
        assert files == [f"a.{ending}", f"sub/a.{ending}"]
    with open_video(tmp_path / "out" / "sub" / "a.mp4") as video:
        assert (video.num_frames, video.avg_fps, video.width) == (30, 25.0, 240)
    code, out, err = predict(*words, "--annotated", folder)  # nothing runs
    assert (code, out) == (2, "")
    assert "a.mp4: is an input, which is never overwritten" in err
    code, out, err = predict(*words, "--annotated", tmp_path / "none", "--timeline", tmp_path / "one.png")
    assert (code, out) == (2, "")
    assert "is one picture, and there are 3 videos" in err
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    code, out, err = predict(*words, "--annotated", tmp_path / "file" / "below")
    assert (code, out, err.count("cannot be written: Not a directory")) == (2, "", 1)


def test_frames_carry_the_class_of_their_time(predict, motion_videos, tmp_path, monkeypatch):
    drawn = []
    draw = CaptionPainter.draw

    def noted(self, frame, text):
        drawn.append(text)
        draw(self, frame, text)

    monkeypatch.setattr(CaptionPainter, "draw", noted)
    clips = sorted(motion_videos.glob("valid/*.mp4"))[:2]
    film = joined_packets(clips, tmp_path / "film.mp4")
    words = ["-i", film, "--annotated", tmp_path / "out", "--class_names", motion_videos / "classes.txt"]
    (entry,) = entries_of(predict(*words, "--window_sec", 16 / 24, "--json")[1])
    best = [window["top"][0] for window in entry["windows"]]
    assert drawn == [f"{top['name']}  {top['score']:.2f}" for top in best for _ in range(16)]
    drawn.clear()
    (entry,) = entries_of(predict(*words, "--json")[1])
    top = entry["top"][0]
    assert drawn == [f"{top['name']}  {top['score']:.2f}"] * 32
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["film.mp4"]


def test_times_of_a_film_with_a_pause_and_two_rates(predict, make_clip, tmp_path):
    """25 frames a second with a pause from 0.52 s to 2 s, and from 3 s on 5 a second."""
    kept = [*range(13), *range(50, 75), *range(75, 125, 5)]
    film = make_clip(
        tmp_path / "film.mkv", 125, (64, 64), gop=1, arrange=lambda packets: [packets[n] for n in kept]
    )
    words = ["-i", film, "--window_sec", "1", "--annotated", tmp_path / "out", "--timeline", tmp_path / "out"]
    (entry,) = entries_of(predict(*words, "--json")[1])
    assert [window["start_sec"] for window in entry["windows"]] == [0, 1, 2, 3, 4]
    assert entry["windows"][-1]["end_sec"] == entry["segments"][-1]["end_sec"] == pytest.approx(5)
    with open_video(film) as video, open_video(tmp_path / "out" / "film.mp4") as copy:
        windows = Windowing(1).cut(video)
        assert [window[:2] for window in windows] == [(0, 13), (12, 13), (13, 38), (38, 43), (43, 48)]
        np.testing.assert_allclose(copy.times_sec(), np.array(kept) / 25, atol=0.001)
        assert copy.num_frames == len(kept)


@pytest.mark.slow
def test_real_clips_together(predict, real_clips_dir, tmp_path):
    words = ["--window_sec", "2", "--stride_sec", "2.5", "--json", "-b", "4"]
    out = tmp_path / "out"
    code, text, err = predict("-i", real_clips_dir, *words, "--timeline", out, "--annotated", out)
    entries = entries_of(text)
    intact = [Path(entry["path"]).stem for entry in entries if "error" not in entry]
    assert {Path(entry["path"]).name for entry in entries if "error" in entry} == {"corrupted.mp4"}
    assert (code, err.count("VideoDecodeError"), len(err.splitlines())) == (1, 1, 1)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{stem}.{ending}" for stem in intact for ending in ("mp4", "png")
    )
    for entry in entries:
        if "error" in entry:
            continue
        assert entry["windows"][0]["start_sec"] == 0.0
        with open_video(entry["path"]) as video, open_video(out / f"{Path(entry['path']).stem}.mp4") as copy:
            assert entry["windows"][-1]["end_sec"] == pytest.approx(video.end_sec())
            assert copy.end_sec() == pytest.approx(video.end_sec(), abs=0.001)
            assert copy.num_frames == video.num_frames
            assert copy.avg_fps == pytest.approx(video.avg_fps, rel=1e-3)
            assert (copy.width > copy.height) == (video.width > video.height)


def test_a_frame_that_only_the_annotated_video_needs_is_damaged(predict, make_clip, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 40, (64, 64), gop=1)
    with av.open(str(clip)) as source:
        packet = [packet for packet in source.demux(video=0) if packet.size][20]
    data = bytearray(clip.read_bytes())
    data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    clip.write_bytes(data)
    words = ["-i", clip, "--json"]
    assert predict(*words)[0] == 0
    code, out, err = predict(*words, "--annotated", tmp_path / "out")
    (entry,) = entries_of(out)
    assert (code, len(entry["top"])) == (2, 5)
    assert "frame 20 is damaged or missing" in entry["error"]
    assert err.count(entry["error"]) == 1
    assert not list(tmp_path.glob("out/*"))


def test_an_interrupted_run_keeps_what_is_done(predict, make_clip, tmp_path, monkeypatch):
    for name in ("a", "b"):
        make_clip(tmp_path / "in" / f"{name}.mp4", 12, (64, 64))
    frames = VideoPart.frames

    def interrupted(self, *args, **options):
        if self.path.endswith("b.mp4"):
            raise KeyboardInterrupt
        return frames(self, *args, **options)

    monkeypatch.setattr(VideoPart, "frames", interrupted)
    words = ["-i", tmp_path / "in", "--window_sec", "1", "--annotated", tmp_path / "out", "--json"]
    code, out, err = predict(*words)
    assert (code, err) == (130, "interrupted\n")
    assert [Path(entry["path"]).name for entry in entries_of(out)] == ["a.mp4"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.mp4"]


def test_an_input_is_not_overwritten_and_windows_have_a_length(predict, make_clip, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 12, (64, 64))
    as_picture = (tmp_path / "clip.PNG").absolute()
    as_picture.write_bytes(clip.read_bytes())
    code, _, err = predict("-i", as_picture, "--window_sec", "1", "--timeline", as_picture)
    assert (code, err.count("clip.PNG: is an input, which is never overwritten")) == (2, 1)
    assert as_picture.read_bytes() == clip.read_bytes()
    for flags in ("-1", "0", "nan", "1 --stride_sec 0", "0.01", "1 --stride_sec 0.01"):
        code, out, err = predict("-i", clip, "--window_sec", *flags.split())
        assert (code, out, len(err.splitlines())) == (2, "", 1), flags
