"""Clips along boxes and tracks: where they are, from which file, and what is wrong with it."""

import json
import pickle

import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import AnnotationError, LoaderError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.extensions.dali.planner import _jitters_of
from paddlevideo_fast.jobs.list_lines import json_line
from paddlevideo_fast.jobs.run import ToolError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.tables import list_rows
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from paddlevideo_fast.sources.tracks.files import read_tracks
from paddlevideo_fast.sources.tracks.records import BoxCrops
from tests.loader.building import dataset_of, loader_of
from tests.support.numbered_clips import read_number
from tests.support.tracked_people import (
    HEADER,
    LENGTH,
    SIDE,
    SIZE,
    corner,
    mot,
    rows_of,
    ultralytics,
    write_people,
)

DENSE = {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 2, "target_fps": 25}
SCALE = [{"Scale": {"short_size": SIDE, "fixed_ratio": False}}, {"CenterCrop": {"target_size": SIDE}}]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("tracks")
    write_people(root / "a.mp4")
    both = [row for number in range(LENGTH) for person in (1, 2) for row in rows_of([number], person)]
    (root / "a.csv").write_text(ultralytics(both))
    (root / "a.txt").write_text(mot(both))
    return root


def dataset(root, *fields, sample=DENSE, transform=SCALE, training=False, **keys):
    """The data set of a list with a line for each of `fields`, without a margin unless `keys` say so."""
    rows = [{"path": "a.mp4", "label": 0, **each} for each in fields]
    (root / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"tracks": {"margin": 0}, **keys}
    return dataset_of(root / "x.jsonl", sample, transform, training, data_prefix=str(root), **keys)


def clip(data, index=0, epoch=0, **keys):
    sample = data[ClipRequest(index, epoch, **keys)]
    assert sample.clip is not None, sample.incidents[0].cause
    return sample.clip


def cause(data, index=0):
    sample = data[ClipRequest(index, 0)]
    assert sample.clip is None
    return sample.incidents[0].cause


def numbers(frames):
    return [read_number(frame) for frame in frames]


@pytest.mark.parametrize("file", ["a.csv", "a.txt"])
def test_each_frame_shows_the_person_at_the_same_place(root, file):
    data = dataset(root, *({"track": file, "track_id": person} for person in (1, 2)), training=True)
    for epoch in range(6):
        first, second = (numbers(clip(data, person, epoch)) for person in (0, 1))
        assert all(0 <= number < LENGTH for number in first), (
            first
        )  # read at all: the square is exactly there
        assert all(500 <= number < 500 + LENGTH for number in second), second
        with open_video(root / "a.mp4") as reader:
            whole = reader.read(first)
        for frame, picture, number in zip(clip(data, 0, epoch), whole, first):  # nothing is resampled
            left, top = corner(number)
            np.testing.assert_array_equal(frame, picture[top : top + SIDE, left : left + SIDE])


def test_both_forms_give_equal_clips(root):
    data = dataset(root, *({"track": f, "track_id": 2} for f in ("a.csv", "a.txt")), tracks={"margin": 0.3})
    np.testing.assert_array_equal(clip(data, 0), clip(data, 1))
    one, other = (read_tracks(str(root / f)) for f in ("a.csv", "a.txt"))
    assert [*one] == [*other] == [1, 2]
    np.testing.assert_array_equal(one[2].boxes, other[2].boxes)
    np.testing.assert_array_equal(one[2].frames, other[2].frames)


def test_a_box_between_two_rows_moves_evenly(root):
    (root / "sparse.csv").write_text(
        ultralytics(rows_of([0, 10, 20]))
    )  # corner(): whole steps at even frames
    sample = {"name": "UniformSampler", "num_frames": 21}
    data = dataset(root, {"track": "sparse.csv"}, sample=sample)
    middle = numbers(clip(data))
    assert [middle[number] for number in range(0, 21, 2)] == list(range(0, 21, 2))


def test_a_long_gap_ends_a_piece_and_clips_show_the_longest(root):
    (root / "gap.csv").write_text(ultralytics(rows_of([*range(8), *range(20, 38)])))
    sample = {"name": "UniformSampler", "num_frames": 6}
    whole = dataset(root, {"track": "gap.csv"}, sample=sample)
    assert numbers(clip(whole))[0] <= 4
    cut = dataset(root, {"track": "gap.csv"}, sample=sample, tracks={"margin": 0, "max_gap": 12})
    assert min(numbers(clip(cut))) >= 20
    early = dataset(root, {"track": "gap.csv", "end_frame": 15}, sample=sample, tracks={"max_gap": 12})
    reader = open_video(root / "a.mp4")
    assert early.part(reader, early.records[0]).num_frames == 8
    none = {"track": "gap.csv", "start_frame": 10, "end_frame": 18}
    data = dataset(root, none, sample=sample, tracks={"max_gap": 12})
    assert cause(data) == f"{root}/x.jsonl:1: the track of id 1 has no box in frames 10 to 17"


def test_spans_of_seconds_and_views_follow_the_track(root):
    span = {"track": "a.csv", "track_id": 1, "start_sec": 0.4, "end_sec": 1.2}
    sample = {**DENSE, "test_mode": True}
    data = dataset(root, span, sample=sample, num_ensemble_views=2)
    first, last = (numbers(clip(data, view=view, num_views=2)) for view in (0, 1))
    assert first[0] == 10
    assert last[0] > 10
    assert max(last) < 30
    batch = next(
        iter(loader_of(data, 2, num_workers=1).epoch(0))
    )  # from a worker process, both views at once
    assert [numbers(one) for one in batch.clips] == [first, last]


def test_a_fixed_box(root):
    left, top = corner(4)
    box = [left, top, left + SIDE, top + SIDE]
    fields = {"box": ",".join(map(str, box)), "start_frame": 4, "end_frame": 6}
    data = dataset(root, fields, {**fields, "box": box})
    for index in range(2):
        assert set(numbers(clip(data, index))) <= {4, 5}
    csv = "path,label,box\n" + f'a.mp4,0,"{fields["box"]}"\n'
    (root / "box.csv").write_text(csv)
    of_csv = dataset_of(root / "box.csv", DENSE, SCALE, data_prefix=str(root))  # the section has defaults
    assert of_csv[ClipRequest(0, 0)].clip.shape == (4, SIDE, SIDE, 3)


def test_boxes_of_another_picture_size(root):
    """As of a prepared video, which is smaller than the one that was tracked."""
    big = [(n, 1, 2 * x, 2 * y, 2 * (x + SIDE), 2 * (y + SIDE)) for n, _, x, y in rows_of(range(LENGTH))]
    (root / "big.csv").write_text(
        HEADER.replace("time,", "") + "".join(f"{','.join(map(str, r))}\n" for r in big)
    )
    data = dataset(root, {"track": "big.csv", "picture": [400, 240]}, {"track": "a.csv", "track_id": 1})
    np.testing.assert_array_equal(clip(data, 0), clip(data, 1))


def test_margin_and_padding():
    frame = np.arange(100 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(60, 100, 3)
    crops = BoxCrops(np.array([[0, 0, 20, 10], [50, 30, 60, 40.0], [90, 50, 100, 60]]), 0.2, 1.0)
    assert (crops.width, crops.height, crops.square_size) == (28, 28, (28, 28))
    np.testing.assert_array_equal(crops.cut(frame, 1), frame[21:49, 41:69])
    padded = np.pad(frame, ((30, 30), (30, 30), (0, 0)), mode="edge")
    np.testing.assert_array_equal(crops.cut(frame, 0), padded[30 - 9 : 30 + 19, 30 - 4 : 30 + 24])
    np.testing.assert_array_equal(crops.cut(frame, 2), padded[30 + 41 : 30 + 69, 30 + 81 : 30 + 109])


def test_pixels_that_are_not_square():
    """A box of 60×90 pixels of a picture that is read with half the width that it is shown with."""
    crops = BoxCrops(np.array([[10, 0, 40, 90.0]]), 0.0, pixel_aspect=2.0)
    assert (crops.width, crops.height, crops.square_size) == (45, 90, (90, 90))
    frame = np.zeros((100, 100, 3), np.uint8)
    frame[:, 10:40] = 255
    assert crops.cut(frame, 0)[0, :, 0].tolist() == [0] * 7 + [255] * 30 + [0] * 8


def test_frames_that_runs_share_make_the_same_clips(root, tmp_path):
    fields = [{"track": "a.csv", "track_id": person} for person in (1, 2)]
    shared = [dataset(root, *fields, frames_cache=FrameCache(tmp_path / "frames", 1.0)) for _ in range(2)]
    for index in range(2):
        expected = clip(dataset(root, *fields), index)
        for data in shared:
            np.testing.assert_array_equal(clip(data, index), expected)


def test_multigrid_flips_and_several_crops(root):
    fields = {"track": "a.csv", "track_id": 1}
    data = dataset(root, fields, transform=[*SCALE, {"RandomFlip": {"p": 1.0}}], training=True)
    flipped = clip(data)
    assert all(number is not None for number in numbers(flipped[:, :, ::-1]))
    assert clip(data, num_frames=2, crop_size=24).shape == (2, 24, 24, 3)
    views = dataset(root, fields, transform=[SCALE[0], {"TenCrop": {"target_size": SIDE}}])
    assert views.pipeline.num_views == 10
    assert clip(views).shape == (40, SIDE, SIDE, 3)


def test_clips_are_a_function_of_seed_epoch_and_index(root):
    fields = [{"track": "a.csv", "track_id": person} for person in (1, 2)]
    data, again = (dataset(root, *fields, training=True, clips_per_video=2) for _ in range(2))
    for epoch in range(2):
        batches = [
            list(loader_of(each, 2).epoch(epoch)) for each in (data, pickle.loads(pickle.dumps(again)))
        ]
        for one, other in zip(*batches):
            np.testing.assert_array_equal(one.clips, other.clips)
    assert repr(data.records[0].draw_part) == repr(again.records[0].draw_part)
    assert repr(data.records[0].draw_part) != repr(data.records[1].draw_part)
    assert repr(data.records[0].draw_part) != repr(dataset(root, *fields, tracks={}).records[0].draw_part)


LINE = "0,0,1,5,5,30,30\n"
WRONG_FILES = {
    "": "x.csv: the track file has no boxes",
    HEADER: "x.csv: the track file has no boxes",
    "frame,id,x1,y1\n"
    + LINE: "x.csv:1: the header has no x2, y2; expected the columns frame, id, x1, y1, x2, y2",
    "1,2,3,4\n": "x.csv:1: has 4 cells, expected at least 6",
    HEADER + "0,0,1,a,5,30,30\n": "x.csv:2: x1 is 'a', expected a number",
    HEADER + "0.5,0,1,5,5,30,30\n": "x.csv:2: frame is '0.5', expected an integer",
    HEADER + "-1,0,1,5,5,30,30\n": "x.csv:2: frame is -1, and frames count from 0",
    "0,1,5,5,30,30,1\n": "x.csv:1: frame is 0, and frames count from 1",
    HEADER + "0,0,1,nan,5,30,30\n": "x.csv:2: x1 is 'nan', expected a number",
    HEADER + LINE + "1,0,1,30,5,30,30\n": "x.csv:3: the box is empty: x2 30 is not above x1 30",
    "1,1,5,5,30,0,1\n": "x.csv:1: the box is empty: y2 5 is not above y1 5",
    HEADER
    + "4,0,1,5,5,30,30\n"
    + LINE: "x.csv:3: frame 0 of id 1 is not after the frame of line 2; sort the",
    "\0\0": "x.csv: the track file cannot be read: it holds NUL bytes",
}


@pytest.mark.parametrize("content", WRONG_FILES)
def test_wrong_track_files(root, content):
    (root / "x.csv").write_text(content)
    with pytest.raises(AnnotationError) as error:
        dataset(root, {"track": "x.csv"})
    assert str(error.value).startswith(f"{root}/x.jsonl:1: {root}/{WRONG_FILES[content]}")
    assert "\n" not in str(error.value)


WRONG_FIELDS = {
    "no such file": ({"track": "b.csv"}, "{root}/b.csv: there is no such track file"),
    "which id": ({"track": "a.csv"}, "{root}/a.csv has the ids 1, 2; say which one with track_id"),
    "absent id": (
        {"track": "a.csv", "track_id": 7},
        "track_id 7 is not in {root}/a.csv, which has the ids 1, 2",
    ),
    "no id": (
        {"track": "a.csv", "track_id": [1]},
        "track_id is [1], expected an integer",
    ),
    "both": ({"track": "a.csv", "box": "1,2,3,4"}, "has a box and a track; keep one of the two"),
    "id alone": ({"track_id": 1}, "has a track_id and neither a box nor a track"),
    "few numbers": ({"box": "1,2,3"}, "box is '1,2,3', expected numbers x1,y1,x2,y2"),
    "no numbers": ({"box": {"x": 1}}, "box is {{'x': 1}}, expected numbers x1,y1,x2,y2"),
    "empty box": ({"box": [9, 2, 3, 4]}, "the box is empty: x2 3 is not above x1 9"),
    "picture": ({"box": [1, 2, 3, 4], "picture": [0, 4]}, "picture is [0, 4], expected sizes above 0"),
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_wrong_fields_of_a_list(root, name):
    fields, text = WRONG_FIELDS[name]
    with pytest.raises(AnnotationError) as error:
        dataset(root, fields)
    assert str(error.value) == f"{root}/x.jsonl:1: {text.format(root=root)}"


def test_a_frame_beyond_the_video_and_a_box_outside_are_decode_failures(root):
    (root / "long.csv").write_text(ultralytics([*rows_of([0]), (LENGTH, 1, 5, 5)]))
    (root / "outside.txt").write_text("1,1,5,5,20,20,1\n9,1,500,5,20,20,1\n")
    boxes = [{"track": "long.csv"}, {"track": "outside.txt"}, {"box": "-30,5,-2,30"}]
    data = dataset(root, *boxes)
    beyond = f"{root}/long.csv:3: frame 40, counted from 0, is beyond the video, which has 40 frames"
    assert cause(data, 0) == f"{root}/x.jsonl:1: {beyond}"
    outside = "lies outside the picture of 200×120 pixels at frame"
    assert cause(data, 1).startswith(f"{root}/x.jsonl:2: the track of id 1 {outside}")
    assert cause(data, 2) == f"{root}/x.jsonl:3: the box {outside} 0"
    replaced = dataset(root, *boxes, {"track": "a.csv", "track_id": 1}, training=True, num_retries=50)
    sample = replaced[ClipRequest(0, 0)]
    assert sample.clip is not None  # another record takes its place, and the file is reported
    assert sample.incidents[0].cause == f"{root}/x.jsonl:1: {beyond}"


def test_settings_without_effect_and_pairs_that_exclude_each_other(root):
    with pytest.raises(LoaderError, match="tracks has no effect: no line has a box or a track"):
        dataset(root, {})
    fields = {"track": "a.csv", "track_id": 1, "start_frame": 0, "end_frame": 9}
    with pytest.raises(PaddleVideoFastError, match="windows and background are about whole pictures"):
        dataset(root, fields, windows={"length_sec": 0.4, "label": 0})
    with pytest.raises(PaddleVideoFastError, match="windows and background are about whole pictures"):
        dataset(root, fields, training=True, num_classes=2, background={"share": 0.5})


def test_a_part_of_a_reader_that_is_damaged_is_as_before(root):
    data = dataset(root, {"start_frame": 100, "end_frame": 110}, {"track": "a.csv", "track_id": 1})
    with open_video(root / "a.mp4") as reader, pytest.raises(VideoDecodeError, match=r"x\.jsonl:1: the span"):
        data.part(reader, data.records[0])


@pytest.mark.parametrize("tool", [prepare_list, pack, extract])
def test_tools_that_store_videos_anew_refuse_such_lists(root, tmp_path, tool):
    dataset(root, {"track": "a.csv", "track_id": 1})
    arguments = ["--list", root / "x.jsonl", "--data_prefix", root, "--output", tmp_path / "out"]
    with pytest.raises(ToolError, match=r"x\.jsonl:1: a box or a track is about the pictures and frames"):
        tool([*map(str, arguments)])
    (row,) = list_rows(str(root / "x.jsonl"))
    assert json.loads(json_line(row)) == {"path": "a.mp4", "label": 0, "track": "a.csv", "track_id": 1}


def test_dali_refuses_tracks(root):
    data = dataset(root, {"track": "a.csv", "track_id": 1}, training=True)
    with pytest.raises(LoaderError, match="DALI draws no clips from between spans and along tracks"):
        _jitters_of(data)


@pytest.mark.parametrize(("tool", "data"), [(prepare_list, "VideoDataset"), (pack, "PackedFrameDataset")])
def test_videos_that_were_stored_anew_with_the_size_of_the_earlier_pictures(root, tmp_path, tool, data):
    (root / "plain.csv").write_text("path,label\na.mp4,0\n")
    arguments = ["--list", root / "plain.csv", "--data_prefix", root, "--output", tmp_path / "new"]
    assert tool([*map(str, arguments), "--short_side", "60"]) == 0
    (line,) = (tmp_path / "new" / "plain.jsonl").read_text().splitlines()
    row = {**json.loads(line), "track": str(root / "a.csv"), "track_id": 1, "picture": SIZE}
    (tmp_path / "tracked.jsonl").write_text(json.dumps(row))
    keys = {"format": data, "data_prefix": str(tmp_path / "new"), "tracks": {"margin": 0}}
    smaller = clip(dataset_of(tmp_path / "tracked.jsonl", DENSE, SCALE, **keys))
    whole = clip(dataset(root, {"track": "a.csv", "track_id": 1}))
    assert numbers(smaller) == numbers(whole)


def test_folders_of_frames(root, tmp_path):
    with open_video(root / "a.mp4") as reader:
        for number, picture in enumerate(reader, start=1):
            (tmp_path / "a").mkdir(exist_ok=True)
            cv2.imwrite(str(tmp_path / "a" / f"img_{number:05}.jpg"), picture[..., ::-1])
    row = {"path": "a", "label": 0, "num_frames": LENGTH, "track": str(root / "a.txt"), "track_id": 2}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    keys = {"format": "FrameDataset", "data_prefix": str(tmp_path), "tracks": {"margin": 0}}
    frames = clip(dataset_of(tmp_path / "x.jsonl", DENSE, SCALE, **keys))
    assert numbers(frames) == numbers(clip(dataset(root, {"track": "a.csv", "track_id": 2})))
