"""Untrimmed footage: clips from between spans in training, windows in evaluation."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.apps.data.facts import _facts_of
from paddlevideo_fast.apps.init.init_dataset import _probe_part
from paddlevideo_fast.config import Config, check_config
from paddlevideo_fast.config.sections import ROOT, Group
from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.stored_index import learned_indexes
from paddlevideo_fast.errors import AnnotationError, ConfigError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.jobs import executor
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import VideoDecoder
from paddlevideo_fast.sources.untrimmed import records
from paddlevideo_fast.sources.untrimmed.records import between
from tests.loader.building import dataset_of
from tests.support.exact_corpus import write_corpus_clip
from tests.support.numbered_clips import read_number, write_clip

ONLY_DATA = Group({"DATASET": ROOT.members["DATASET"]})
SPANS = [("a.mp4", 0, 10, 20), ("a.mp4", 1, 40, 52), ("b.mp4", 2, 0, 30)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("untrimmed")
    write_clip(root / "a.mp4", 60)
    write_clip(root / "b.mp4", 50)
    write_clip(root / "full.mp4", 12)
    rows = [dict(zip(("path", "label", "start_frame", "end_frame"), span)) for span in SPANS]
    (root / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "classes.txt").write_text("walk\nrun\njump\nnothing\n")
    return root


def make(root, training=True, name="x.jsonl", **keys):
    names = str(root / "classes.txt")
    return dataset_of(root / name, training=training, data_prefix=str(root), class_names=names, **keys)


def numbers(sample):
    return [read_number(frame) for frame in sample.clip]


def test_clips_from_between_spans(root):
    dataset = make(root, background={"share": 0.75, "label": "nothing"})
    assert len(dataset) == 12  # 9 of 12
    added = dataset.records[3:]
    assert Counter(record.path.rpartition("/")[2] for record in added) == {"a.mp4": 6, "b.mp4": 3}
    assert {record.labels for record in added} == {(3,)}
    taken = {"a": {*range(10, 20), *range(40, 52)}, "b": set(range(30))}
    seen = {"a": set(), "b": set()}
    for epoch in range(12):
        for index in range(3, 12):
            (sample,) = dataset.load([ClipRequest(index, epoch)])
            if epoch < 1:  # a function of seed, epoch and index
                (again,) = make(root, background={"share": 0.75, "label": 3}).load(
                    [ClipRequest(index, epoch)]
                )
                assert numbers(again) == numbers(sample)
            name = dataset.records[index].path[-5]
            assert not taken[name] & set(numbers(sample))
            assert sample.label == 3
            seen[name] |= set(numbers(sample))
    assert seen["a"] & set(range(10))
    assert len(seen["a"] & set(range(20, 40))) > 10
    assert len(seen["b"]) > 8


def test_the_place_is_uniform_over_all_gaps(root):
    rng = np.random.default_rng(0)
    with open_video(str(root / "a.mp4")) as video:
        firsts = Counter(between(video, [Span(4, 8), Span(20, 24)], rng).first for _ in range(5200))
        assert set(firsts) == {0, *range(8, 17), *range(24, 57)}
        assert min(firsts.values()) > 70  # 121 on average
        assert between(video, [Span(0, 20), Span(15, 58)], rng).num_frames == 2  # the only gap is shorter
        with pytest.raises(VideoDecodeError, match="has no frame between its spans"):
            between(video, [Span(0, 30), Span(30, None)], rng)


def test_no_class_is_all_zero(root):
    dataset = make(root, num_classes=3, background={"share": 0.25})
    (sample,) = dataset.load([ClipRequest(3, 0)])
    assert sample.label.tolist() == [0, 0, 0]


def test_windows_have_the_classes_of_the_spans_that_they_show(root):
    dataset = make(root, training=False, windows={"length_sec": 0.4, "label": "nothing"})
    found = [(record.path[-5], record.span.start, record.labels) for record in dataset.records]
    assert found == [
        ("a", 0, (3,)), ("a", 10, (0,)), ("a", 20, (3,)), ("a", 30, (3,)), ("a", 40, (1,)), ("a", 50, (3,)),
        ("b", 0, (2,)), ("b", 10, (2,)), ("b", 20, (2,)), ("b", 30, (3,)), ("b", 40, (3,)),
    ]  # fmt: skip
    (sample,) = dataset.load([ClipRequest(1, 0)])
    assert set(numbers(sample)) <= set(range(10, 20))
    several = make(root, training=False, num_classes=3, windows={"length_sec": 1.6, "stride_sec": 0.4})
    assert [(one.path[-5], one.span.start, one.labels) for one in several.records] == [
        ("a", 0, (0,)), ("a", 10, (0, 1)), ("a", 20, (1,)), ("b", 0, (2,)), ("b", 10, (2,)),
    ]  # fmt: skip
    one_class = make(root, training=False, windows={"length_sec": 1.6, "stride_sec": 0.4})
    assert [one.labels for one in one_class.records] == [(0,), (0,), (1,), (2,), (2,)]


@pytest.fixture
def in_processes(monkeypatch):
    """Function after which two processes open the files of a list, from the first one on."""

    def begin():
        monkeypatch.setattr(executor, "_ALONE_SEC", 0.0)
        monkeypatch.setattr(records, "_num_processes", lambda dataset: 2)

    learned_indexes.clear()
    yield begin
    learned_indexes.clear()


def test_processes_give_the_same_windows(real_clips_dir, tmp_path, in_processes, monkeypatch, capsys):
    """MP4, Matroska, AVI, MPEG-PS and MPEG-TS, of which two are decoded for their indexes; one is cut off."""
    names = ("h264_open_gop.ts", "mpeg2.mpg", "h264_interlaced.mp4")
    generated = [str(write_corpus_clip(tmp_path, name).path) for name in names]
    real = [str(real_clips_dir / name) for name in ("mma_demo.mp4", "pancake.mkv", "ucf_example.avi")]
    cut_off = tmp_path / "cut.mp4"
    cut_off.write_bytes(Path(real[0]).read_bytes()[:9000])
    files = [*real, str(cut_off), *generated]
    rows = [{"path": file, "label": n % 3, "start_frame": 0, "end_frame": 9} for n, file in enumerate(files)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened, open_source = [], VideoDecoder.open_source
    monkeypatch.setattr(
        VideoDecoder, "open_source", lambda self, path: opened.append(path) or open_source(self, path)
    )

    def windows():
        dataset = dataset_of(tmp_path / "x.jsonl", windows={"length_sec": 0.3, "label": 3})
        return dataset.records

    expected = windows()
    assert opened == files
    assert [one.path for one in expected if one.span is None] == [str(cut_off)]
    assert capsys.readouterr().err == ""
    learned_indexes.clear()
    opened.clear()
    in_processes()
    assert windows() == expected
    assert opened == []  # in this process
    assert f"videos indexed: {len(files)}/{len(files)}, " in capsys.readouterr().err
    for file in generated[1:]:
        source = VideoSource(file)
        assert learned_indexes.get((file, source.state())) is not None


def test_processes_report_the_first_wrong_file_and_store_indexes(root, tmp_path, in_processes):
    rows = ["path,label,start_frame,end_frame", "b.mp4,0,0,9", "a.mp4,0,0,99", "full.mp4,0,0,98"]
    (root / "wrong.csv").write_text("\n".join(rows))
    (root / "long.csv").write_text("path,label,start_frame,end_frame\nlong.mp4,0,0,9\na.mp4,0,0,9\n")
    write_clip(root / "long.mp4", 1000, size=(40, 32))
    in_processes()
    for _ in range(3):  # whichever comes first
        with pytest.raises(AnnotationError, match=r"wrong.csv:3: .*a.mp4.* 0 to 99 frames"):
            make(root, training=False, name="wrong.csv", windows={"length_sec": 1})
    indexes = tmp_path / "indexes"
    make(root, False, "long.csv", windows={"length_sec": 1}, index_cache=str(indexes))
    assert len(list(indexes.glob("*.npz"))) == 1


def test_ranks_share_the_cores_of_a_machine(root, monkeypatch):
    dataset = make(root)
    monkeypatch.setattr(records, "num_cores", lambda: 6)
    monkeypatch.setattr(records.os, "cpu_count", lambda: 8)
    assert records._num_processes(dataset) == 6
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "4")
    assert records._num_processes(dataset) == 2
    dataset.decoder.reader = "nvdec"
    assert records._num_processes(dataset) == 1


def test_frames_that_two_annotators_marked_count_once(root):
    spans = [(0, 0, 4), (0, 0, 4), (1, 4, 10), (0, 10, 22), (0, 12, 24), (2, 27, 60), (2, 26, 57)]
    rows = [{"path": "a.mp4", "label": label, "start_frame": a, "end_frame": b} for label, a, b in spans]
    (root / "merged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def labels_of(**keys):
        windows = {"length_sec": 0.4, "label": "nothing"}
        dataset = make(root, training=False, name="merged.jsonl", windows=windows, **keys)
        return [one.labels for one in dataset.records]

    assert labels_of() == [(1,), (0,), (3,), (2,), (2,), (2,)]
    assert labels_of(num_classes=4) == [(0, 1), (0,), (3,), (2,), (2,), (2,)]


def test_lengths_are_times_where_the_frame_rate_changes(root):
    """2 s at 25 frames a second, then 2 s at 5: of 60 frames 45 are of the first 1.8 s."""
    kept = [*range(50), *range(50, 100, 5)]
    write_clip(root / "rates.mkv", 100, gop=1, arrange=lambda packets: [packets[n] for n in kept])
    (root / "rates.csv").write_text(
        "path,label,start_sec,end_sec\nrates.mkv,0,0,1.8\nrates.mkv,1,1.8,4\nrates.mkv,2,2,3\n"
    )
    whole = make(root, training=False, name="rates.csv", windows={"length_sec": 4})
    assert [(one.labels, one.span[:2]) for one in whole.records] == [((1,), (0, 60))]
    halves = make(root, training=False, name="rates.csv", num_classes=3, windows={"length_sec": 2})
    assert [(one.labels, one.span[:2]) for one in halves.records] == [((0,), (0, 50)), ((1, 2), (50, 60))]
    with open_video(str(root / "rates.mkv")) as video:
        parts = [between(video, [Span(2, 3, "sec")], np.random.default_rng(seed)) for seed in range(40)]
        assert {part.num_frames for part in parts} == {25, 5}
        assert all(part.end_sec() == pytest.approx(1, abs=0.21) for part in parts)
        facts = _facts_of(video, with_sheet=False)
        assert (facts.length_sec, facts.fps) == (pytest.approx(4, abs=0.01), pytest.approx(15, abs=0.04))
        assert _facts_of(video.part(Span(2, 4, "sec")), False).length_sec == pytest.approx(2, abs=0.01)
        assert _probe_part(root, video, Span(2, 4, "sec"), full=False).seconds == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize(
    ("training", "keys", "cause"),
    [
        (True, {"background": {"share": 0.5}}, "background.label is missing: with a softmax"),
        (True, {"background": {"share": 0.5, "label": "wall"}}, "'wall' is not among the 4 names .*did you"),
        (True, {"windows": {"length_sec": 1}}, "windows are for DATASET.valid and .test"),
        (False, {"background": {"share": 0.5}}, "background is for DATASET.train"),
        (False, {"windows": {"length_sec": 0}}, "window_sec is 0, expected a number of seconds above 0"),
        (False, {"windows": {"length_sec": 0.01}}, "a window of 0.01 s is shorter than one of its frames"),
        (True, {"background": {"share": 0.5}, "name": "plain.list"}, "no video has spans"),
        (False, {"windows": {"length_sec": 1}, "name": "far.csv"}, "far.csv:2: .*0 to 99 frames is"),
    ],
)  # fmt: skip
def test_wrong_settings(root, training, keys, cause):
    (root / "plain.list").write_text("a.mp4 0\n")
    (root / "far.csv").write_text("path,label,end_frame\na.mp4,0,99\n")
    with pytest.raises(PaddleVideoFastError, match=cause):
        make(root, training, **keys)


def test_the_check_of_a_config_names_the_keys_of_both():
    train = {"format": "VideoDataset", "file_path": "a", "background": {"share": 1, "part": 2}}
    valid = {**train, "background": None, "windows": {"stride_sec": "x"}}
    with pytest.raises(ConfigError) as caught:
        check_config(Config({"DATASET": {"train": train, "valid": valid}}), ONLY_DATA)
    assert caught.value.problems == [
        "config  DATASET.train.background.share=1: expected float, at least 0.001 and below 1",
        "config  DATASET.train.background.part: unknown key; known: label, share",
        "config  DATASET.valid.windows.stride_sec='x': expected float, at least 0.001 or null",
        "config  DATASET.valid.windows.length_sec: missing; expected float, at least 0.001",
    ]
