"""The benchmarks of clips, made small: they tell right from wrong, and compare like with like."""

import importlib.util

import av
import numpy as np
import pytest

from benchmarks import duplicates, loader, pipeline, reader_trials
from benchmarks import reader as bench
from benchmarks.measuring import write_clips
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import BadSampleShareError, PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest, Pipeline, VideoRecord
from tests.support.judged_readers import ANOTHER, REFUSED, RIGHT, SPOILT, Given, judge, outcome_of

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


@pytest.mark.parametrize("name", ["center", "random"])
def test_crops_show_the_same_part(make_clip, tmp_path, name):
    """By our loader's resampling and by OpenCV's plain one; an exact reader gives no wrong crop."""
    path = make_clip(tmp_path / "clip.mp4", 20, size=(480, 320))
    frames = bench._in_sequence(str(path))
    crop = bench._crop_of(frames, bench.CROPS[name], np.random.default_rng(0))
    ours = bench._ours(str(path), [3, 8], crop)
    assert ours.shape == (2, 224, 224, 3)
    assert np.abs(ours - crop.cut(frames[[3, 8]]).astype(int)).mean() < 8
    rows = bench.run(tmp_path, rounds=1, crop=name)["rows"]
    assert all(row["wrong"] == 0 for row in rows if row["reader"] == "ours")
    assert bench.Check(crop.cut(frames)).count_wrong(crop.cut(frames[[3, 9]]), [3, 8]) == 1


def test_missing_videos_are_named(make_clip, tmp_path):
    clip = make_clip(tmp_path / "clip.mp4", 5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PaddleVideoFastError, match=r"no prepared video of clip\.mp4"):
        bench.run(clip.parent, tmp_path / "empty", rounds=1)
    with pytest.raises(PaddleVideoFastError, match="leave --crop center out"):
        bench.run(clip.parent, tmp_path, crop="center")
    with pytest.raises(PaddleVideoFastError, match="has no video that decodes"):
        bench._videos(tmp_path / "empty")
    with pytest.raises(PaddleVideoFastError, match=r"clip\.mp4: no such folder of videos"):
        bench._videos(clip)


# --- The benchmark of copies, made small: each kind of copy is found beside its original


def test_copies_are_counted(make_clip, tmp_path, monkeypatch):
    make_clip(tmp_path / "clip.mp4", 60, size=(160, 96))
    monkeypatch.setattr(duplicates, "_CLIPS", ("clip.mp4",))
    monkeypatch.setattr(duplicates, "_NUM_COPIES", 7)
    result = duplicates.run(clips=tmp_path, videos=6)
    assert result["real"] == 1
    assert {kind: row["copies"] for kind, row in result["kinds"].items()} == dict.fromkeys(
        duplicates.COPIES, 1
    )
    assert result["recall"] >= 5 / 6
    assert result["precision"] == 1
    assert result["pairs"] == result["right"] >= 7


# --- The sides of the loader's benchmark give the same pixels


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"), num_clips=2, num_frames=16)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_sides_give_the_same_clips(clips, tmp_path, num_workers):
    dataset = loader._dataset(clips, 4, tmp_path)
    sides = {name: make(dataset, 2, num_workers) for name, make in loader.SIDES.items()}
    pixels = [batch.clips.copy() for batch in sides["uint8"].epoch()]
    assert [batch.shape for batch in pixels] == [(2, 8, 224, 224, 3)] * 2
    for batch, (clip, label) in zip(pixels, sides["uint8 paddle"].epoch()):
        np.testing.assert_array_equal(clip.numpy(), batch)
        assert label.numpy().tolist() == [[0], [0]]
    for ours, (classic, _) in zip(sides["uint8 + norm"].epoch(), sides["float32"].epoch()):
        assert classic.numpy().dtype == ours.dtype == np.float32
        np.testing.assert_allclose(classic.numpy(), ours, atol=1e-5)
    for side in sides.values():
        side.close()


def test_a_clip_that_does_not_decode_is_named(tmp_path):
    (tmp_path / "empty.mp4").write_bytes(b"")
    with pytest.raises(BadSampleShareError, match=r"empty\.mp4: "):
        loader.run([tmp_path / "empty.mp4"], workers=[0], batch_size=1, batches=2, rounds=1)


def test_the_made_clips_decode(clips):
    with open_video(clips[0]) as reader:
        assert (reader.num_frames, *reader.read([0]).shape) == (16, 1, 256, 340, 3)


# --- Both paths of the pipeline's benchmark show the same pictures


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, make_clip):
    root = tmp_path_factory.mktemp("pipeline")
    return [str(make_clip(root / f"{name}.mp4", 40, size=(144, 128))) for name in ("one", "two")]


@pytest.mark.smoke
@pytest.mark.parametrize("name", pipeline.RECIPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_classic_path_shows_the_same(pair, name, seed):
    recipe = pipeline.RECIPES[name]
    classic = pipeline.classic_clip(pair[0], *recipe, (MEAN, STD), np.random.default_rng(seed))
    record = VideoRecord(pair[0], 0)
    with open_video(pair[0]) as reader:
        rngs = [np.random.default_rng(seed)]
        (clip,) = Pipeline(*recipe)(reader, record, [ClipRequest(0, 0)], rngs)
    ours = clip.pixels
    assert classic.dtype == np.float32
    assert classic.shape == (len(ours), 3, 224, 224)
    pixels = (classic.transpose(0, 2, 3, 1) * np.float32(STD) + np.float32(MEAN)) * 255
    assert np.abs(pixels - ours).mean() < 4  # PIL and OpenCV weigh neighbours differently


def test_what_is_missing_is_named(pair, tmp_path, monkeypatch):
    with pytest.raises(PaddleVideoFastError, match=r"has 0 files named one\.\*"):
        pipeline.run(pair, prepared=str(tmp_path))
    monkeypatch.setattr(pipeline.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PaddleVideoFastError, match="needs decord"):
        pipeline.run(pair)


# --- Trials of reading forth and back: what counts as right, and the cost of a tree against itself


def test_a_trial_tells_other_frames_and_other_pixels(tmp_path):
    (trial,) = reader_trials.sequence_trials(tmp_path, 1, seed=0)
    assert trial.group == "joined"
    assert outcome_of("ours", trial) == RIGHT
    with open_video(trial.path) as reader:
        count = reader.num_frames
        frames = [reader.read([int(position * count) for position in positions]) for positions in trial.reads]
    for change, outcome in (
        (lambda frame: frame, RIGHT),
        (lambda frame: frame[..., ::-1], SPOILT),  # the number is still read
        (lambda frame: np.full_like(frame, 128), SPOILT),
        (lambda frame: None, REFUSED),
    ):
        changed = [list(read) for read in frames]
        changed[3] = None if change(frames[3][0]) is None else [*map(change, frames[3])]
        assert judge(trial, Given(count, changed)) == outcome
    later = [[*read[1:], frames[0][0]] for read in frames[1:]]
    assert judge(trial, Given(count, [frames[0], *later])) == ANOTHER
