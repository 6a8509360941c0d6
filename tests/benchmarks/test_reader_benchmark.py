"""The benchmark of the readers tells right frames from wrong ones, and compares like with like."""

import importlib.util

import av
import numpy as np
import pytest

from benchmarks import reader as bench
from paddlevideo_fast.errors import PaddleVideoFastError

HAS_DECORD = importlib.util.find_spec("decord") is not None


def test_wrong_frames_are_counted(make_clip, tmp_path):
    path = str(make_clip(tmp_path / "clip.mp4", 20))
    check = bench.Check(bench._in_sequence(path))
    frames = bench._ours(path, [3, 8, 19])
    assert check.count_wrong(frames, [3, 8, 19]) == 0
    assert check.count_wrong(frames, [3, 9, 0]) == 2
    assert check.count_wrong(np.rot90(frames, axes=(1, 2)), [3, 8, 19]) == 3


def test_ours_is_right_where_others_fail(make_clip, tmp_path):
    """On an MPEG-TS file with open groups some readers are wrong or give up; the run goes on."""
    make_clip(tmp_path / "open_gop.ts", 40, bframes=3, options={"x264-params": "open-gop=1"})
    rows = bench.run(tmp_path, rounds=1)["rows"]
    ours = [row for row in rows if row["reader"] == "ours"]
    assert [(row["wrong"], row["error"]) for row in ours] == [(0, None), (0, None)]


@pytest.fixture
def two_streams(tmp_path):
    """An MP4 file with a small video stream and then a large one that runs the other way."""
    pictures = np.random.default_rng(0).integers(0, 256, (12, 6, 10, 3), np.uint8)
    path = tmp_path / "two.mp4"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("libx264", rate=25) for _ in range(2)]
        for stream, scale in zip(streams, (8, 16)):
            stream.height, stream.width, stream.pix_fmt = 6 * scale, 10 * scale, "yuv420p"
        for stream, scale, order in zip(streams, (8, 16), (1, -1)):
            for picture in pictures[::order]:
                large = picture.repeat(scale, 0).repeat(scale, 1)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(large, format="rgb24")))
            container.mux(stream.encode())
    return path


def test_a_copy_has_our_stream_alone(two_streams, make_clip, tmp_path):
    (tmp_path / "copies").mkdir()
    copy = bench.stream_alone(two_streams, tmp_path / "copies")
    with av.open(str(copy)) as container:
        assert len(container.streams) == 1
    assert np.array_equal(bench._in_sequence(str(copy)), bench._in_sequence(str(two_streams)))
    assert bench.stream_alone(make_clip(tmp_path / "one.mp4", 5), tmp_path / "copies") is None


def test_of_several_streams_the_same_one_is_compared_too(two_streams):
    result = bench.run(two_streams.parent, rounds=2)
    rows = {(row["clip"], row["reader"]): row for row in result["rows"] if row["pattern"] == "sparse-8"}
    assert {clip for clip, _ in rows} == {"two.mp4", "two (stream 1).mp4"}
    assert all(row["wrong"] == 0 for (_, reader), row in rows.items() if reader == "ours")
    if HAS_DECORD:
        as_is, alone = rows["two.mp4", "decord"], rows["two (stream 1).mp4", "decord"]
        assert (as_is["wrong"], alone["wrong"]) == (as_is["frames"], 0)  # it reads the large stream
        means = result["means"]["sparse-8"]
        assert means["as_is"]["ours"] == pytest.approx(rows["two.mp4", "ours"]["ratio"])
        assert means["one_stream"]["ours"] == pytest.approx(rows["two (stream 1).mp4", "ours"]["ratio"])


def test_missing_videos_are_named(make_clip, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PaddleVideoFastError, match=r"no prepared video of clip\.mp4"):
        bench.run(clip.parent, tmp_path / "empty", rounds=1)
    with pytest.raises(PaddleVideoFastError, match="has no video that decodes"):
        bench._videos(tmp_path / "empty")
    with pytest.raises(PaddleVideoFastError, match=r"clip\.mp4: no such folder of videos"):
        bench._videos(clip)
