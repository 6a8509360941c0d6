"""Videos with text on their frames, read back pixel by pixel."""

import shutil
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from matplotlib import font_manager
from PIL import ImageFont

from paddlevideo_fast.apps.predict.annotated import Caption, CaptionPainter, annotate
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.extensions.report import drawings
from paddlevideo_fast.extensions.report.drawings import lettering
from paddlevideo_fast.extensions.report.output import targets

FONT = lettering(["left"]).font_file
LEFT = [Caption(0, "left  0.91")]
NTSC = Fraction(30000, 1001)


def written(clip, path, captions=LEFT):
    with open_video(clip) as video:
        annotate(video, captions, FONT, path)
    return path


def frames_of(path):
    with open_video(path) as video:
        return np.array(list(video)), video.avg_fps


def distance(one, other):
    return np.abs(one.astype(int) - other).mean()


@pytest.mark.parametrize("fps", [25, NTSC])
def test_an_mp4_has_all_frames_with_the_text_of_their_time(make_clip, tmp_path, fps):
    clip = make_clip(tmp_path / "clip.mp4", 24, (320, 256), fps=fps, bframes=2)
    captions = [Caption(0, "left  0.91"), Caption(10 / float(fps), "turn_right  0.55")]
    before, fps_before = frames_of(clip)
    after, fps_after = frames_of(written(clip, tmp_path / "out.mp4", captions))
    assert after.shape == before.shape == (24, 256, 320, 3)
    assert fps_after == fps_before == float(fps)
    text = np.s_[:22, :80]
    for number, (one, other) in enumerate(zip(before, after)):
        assert distance(one[28:], other[28:]) < 4  # below the text
        assert distance(one[:22, 200:], other[:22, 200:]) < 4  # beside it
        assert distance(one[text], other[text]) > 40
        assert other[text].max() > 240
        assert distance(one[28:], after[number - 1][28:]) > 8  # each frame is another one
    painter = CaptionPainter(FONT, 320, 256)
    for number in (0, 9, 10, 23):
        apart = []
        for caption in captions:
            expected = before[number].copy()
            painter.draw(expected, caption.text)
            apart.append(distance(expected[text], after[number][text]))
        right = number >= 10
        assert apart[right] < 8
        assert apart[not right] > 15


def test_small_and_turned_videos_and_wide_pixels(make_clip, tmp_path):
    small = make_clip(tmp_path / "small.mp4", 4, (64, 48))
    frames, _ = frames_of(written(small, tmp_path / "large.mp4"))
    assert frames.shape == (4, 240, 320, 3)
    assert distance(frames[2, 60:], cv2.resize(frames_of(small)[0][2], (320, 240))[60:]) < 8
    turned = make_clip(tmp_path / "turned.mp4", 4, (322, 240), rotation=90)
    frames, _ = frames_of(written(turned, tmp_path / "upright.mp4"))
    assert frames.shape == (4, 322, 240, 3)
    assert distance(frames[2, 40:], frames_of(turned)[0][2][40:]) < 4
    odd = make_clip(tmp_path / "odd.mp4", 2, (301, 255), pix_fmt="yuv444p")
    assert frames_of(written(odd, tmp_path / "even.mp4"))[0].shape == (2, 256, 300, 3)


def test_pixels_that_are_not_square_become_square(make_clip, tmp_path):
    for turns, aspect, size in ((0, 4 / 3, (320, 240)), (90, 3 / 4, (240, 320))):
        wide = make_clip(
            tmp_path / f"{turns}.mp4", 3, (240, 240), options={"x264-params": "sar=4/3"}, rotation=turns
        )
        with open_video(wide) as video, VideoPart(video, 1, 2) as part:
            assert (part.width, part.height) == (video.width, video.height) == (240, 240)
            assert part.pixel_aspect == video.pixel_aspect == pytest.approx(aspect)
        with av.open(str(written(wide, tmp_path / "square.mp4"))) as result:
            track = result.streams.video[0]
            assert (track.width, track.height) == size
            assert track.sample_aspect_ratio in (None, 0, 1)


def test_a_file_is_written_whole_or_not_at_all(make_clip, broken_videos, tmp_path):
    out = tmp_path / "out" / "video.mp4"
    with pytest.raises(VideoDecodeError, match="damaged"):
        written(broken_videos["damaged"], out)
    assert list(out.parent.iterdir()) == []
    clip = make_clip(tmp_path / "clip.mp4", 6, (320, 256))
    written(clip, out)
    data = out.read_bytes()

    def interrupted(frames):
        yield next(iter(frames))
        raise KeyboardInterrupt

    with open_video(clip) as video, pytest.raises(KeyboardInterrupt):
        annotate(video, [Caption(0, "left")], FONT, out, progress=interrupted)
    assert [path.name for path in out.parent.iterdir()] == ["video.mp4"]
    assert out.read_bytes() == data
    with pytest.raises(PaddleVideoFastError, match="cannot be written"):
        written(clip, out / "below_a_file.mp4")


def test_a_size_that_the_encoder_cannot_write_is_told(make_clip, tmp_path):
    ribbon = make_clip(tmp_path / "ribbon.mp4", 2, (1200, 16))
    with pytest.raises(PaddleVideoFastError, match=r"cannot be written as MP4 of 18000×240 pixels"):
        written(ribbon, tmp_path / "out.mp4")


def test_a_long_text_is_cut_and_stays_inside():
    frame = np.full((240, 256, 3), 100, np.uint8)
    CaptionPainter(FONT, 256, 240).draw(frame, "a name that goes on and on, " * 10 + "0.91")
    changed = (frame != 100).any(axis=(1, 2))
    assert 10 < changed.sum() < 40
    columns = np.flatnonzero((frame > 200).any(axis=(0, 2)))
    assert 200 < columns[-1] < 254


def test_a_font_for_every_script(monkeypatch, caplog):
    known = lettering(["прыжок", "saut élevé"])
    assert (known.font_file.name, known.names) == ("DejaVuSans.ttf", ["прыжок", "saut élevé"])
    rare = "\u1d81"  # matplotlib brings two fonts; this is in the other one
    found = lettering(["left", rare])
    assert found.names == ["left", rare]
    assert found.font_file != known.font_file
    masks = [ImageFont.truetype(str(found.font_file), 30).getmask(text) for text in (rare, "\U0010fffd")]
    assert bytes(masks[0]) != bytes(masks[1])  # it is no box
    assert not caplog.records
    monkeypatch.setattr(drawings, "_system_fonts", lambda: iter([FONT.parent / "missing.ttf"]))
    lacking = lettering(["left", "向左移动"])
    assert (lacking.font_file, lacking.names) == (known.font_file, ["left", "class 1"])
    assert len(caplog.records) == 1
    assert "1 of them are shown as numbers" in caplog.text


def test_fonts_that_matplotlib_has_not_listed_are_found(monkeypatch, tmp_path):
    """Its list may be older than the fonts of the system."""
    rare = "\u1d81"
    newer = shutil.copy(lettering([rare]).font_file, tmp_path / "New-Regular.ttf")
    listed = [entry for entry in font_manager.fontManager.ttflist if Path(entry.fname) == FONT]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", listed)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(newer)])
    assert lettering(["left", rare]) == (newer, ["left", rare])


def test_targets_keep_folders_and_never_meet_a_source(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    sources = [root / name for name in ("a.mp4", "b/a.avi", "b/a.mkv", "b/c.mp4")]
    names = [path.relative_to(out).as_posix() for path in targets(sources, root, out, ".mp4")]
    assert names == ["a.mp4", "b/a.avi.mp4", "b/a.mkv.mp4", "b/c.mp4"]
    with pytest.raises(PaddleVideoFastError, match=r"in/a.mp4: is an input, which is never overwritten"):
        targets(sources, root, root, ".mp4")
    assert targets(sources[1:2], root, root, ".mp4") == [root / "b/a.mp4"]
    twice = [root / name for name in ("a.avi", "a.mkv", "a.avi.mkv")]
    with pytest.raises(PaddleVideoFastError, match=r"a.avi.mp4: would be written for both"):
        targets(twice, root, out, ".mp4")
    root.mkdir()
    (root / "a.mp4").write_bytes(b"video")
    out.symlink_to(root)
    with pytest.raises(PaddleVideoFastError, match="is an input"):
        targets(sources, root, out, ".mp4")
