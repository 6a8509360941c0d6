"""Lists with named fields: what they say, and what is wrong with them."""

import json

import pytest

from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.loader import ClipRequest, VideoRecord
from paddlevideo_fast.loader.annotations import read_frame_list, read_video_list
from paddlevideo_fast.loader.tables import list_rows
from tests.loader.building import dataset_of
from tests.support.numbered_clips import read_number, write_clip

SAMPLE = {"name": "Sampler", "num_seg": 1, "seg_len": 4, "valid_mode": True}


@pytest.fixture
def write(tmp_path):
    def to_file(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to_file


@pytest.fixture
def names(write):
    return write("classes.txt", "walk\nrun, fast\njump\n")


def test_both_formats_say_the_same(write, names):
    lines = [
        {"path": "a.mp4", "label": 2},
        {"path": "视频 b.mp4", "label": ["run, fast", 0], "start_sec": 1.5, "end_sec": 2},
        {"path": "c.mp4", "label": "walk", "start_frame": 7, "weight": 2.5, "group": "anna", "end_sec": None},
        {"path": "d.mp4", "label": 1, "end_frame": 9, "num_frames": 9},
    ]
    table = (
        "path,Label,start_sec,end_sec,start_frame,end_frame,weight,group,num_frames\r\n"
        "a.mp4,2,,,,,,,\r\n\r\n"
        '视频 b.mp4,"run, fast;0",1.5,2,,,,,\r\n'
        "c.mp4,walk,,,7,,2.5,anna,\r\n"
        "d.mp4,1,,,,9,,,9\r\n"
    )
    expected = [
        VideoRecord("root/a.mp4", (2,)),
        VideoRecord("root/视频 b.mp4", (0, 1), span=Span(1.5, 2, "sec")),
        VideoRecord("root/c.mp4", (0,), span=Span(7, None), weight=2.5, group="anna"),
        VideoRecord("root/d.mp4", (1,), span=Span(0, 9)),
    ]
    listed = write("x.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    for file in (listed, write("x.CSV", table)):
        records = read_video_list(file, "root", ".mp4", names)
        assert [record.labels for record in records] == [record.labels for record in expected]
        for record, other in zip(records, expected):
            assert record == VideoRecord(**{**vars(other), "line": record.line})
    assert [record.line for record in records] == [2, 4, 5, 6]


def test_background_has_no_label(write):
    (record,) = read_video_list(write("x.jsonl", '{"path": "a", "label": []}'))
    assert record.labels == ()
    with pytest.raises(ValueError):
        record.label  # noqa: B018


def test_folders_of_frames(write):
    text = '{"path": "a", "label": 1, "num_frames": 9, "start_frame": 3, "end_frame": 9}\n'
    (record,) = read_frame_list(write("x.jsonl", text))
    assert (record.num_frames, record.span, record.frames_suffix) == (9, Span(3, 9), "img_{:05}.jpg")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"path": "a", "label": 0, "start": 3}', "unknown key 'start'; did you mean"),
        ('{"path": "a"}', "the key 'label' is missing"),
        ('{"path": "a", "label": 0', "is no JSON object: Expecting"),
        ('["a", 0]', "expected an object such as"),
        ('{"path": "a", "label": 0, "label": 1}', "is no JSON object: it has the key 'label' twice"),
        ('{"path": "", "label": 0}', "path is '', expected a text"),
        ('{"path": "a", "label": true}', "label is True, expected the number of a class"),
        ('{"path": "a", "label": -1}', "label is -1, expected the number of a class"),
        ('{"path": "a", "label": "rum, fast"}', "label 'rum, fast' is not among the 3 .*did you mean"),
        ('{"path": "a", "label": 0, "start_sec": "1"}', "start_sec is '1', expected a number"),
        ('{"path": "a", "label": 0, "end_sec": NaN}', "end_sec is nan, expected a number"),
        ('{"path": "a", "label": 0, "start_sec": 2, "end_sec": 2}', "the span is empty: start_sec 2, end"),
        ('{"path": "a", "label": 0, "start_frame": 9, "end_frame": 4}', "the span ends before it starts"),
        ('{"path": "a", "label": 0, "start_frame": 1.5}', "start_frame is 1.5, expected an integer"),
        ('{"path": "a", "label": 0, "start_sec": 1, "end_frame": 4}', "a span in seconds and one in frames"),
        ('{"path": "a", "label": 0, "end_frame": 9, "num_frames": 8}', "0 to 9 frames is not inside"),
        ('{"path": "a", "label": 0, "weight": -1}', "weight is -1, expected 0 or more"),
        ('{"path": "a", "label": 0, "group": 7}', "group is 7, expected a text"),
        ('{"path": "a", "label": 1' + 30 * "0" + "}", "label is 10+, expected the number of a class"),
        ("[" * 100000, "is no JSON object"),
    ],
)  # fmt: skip
def test_wrong_lines_are_named(write, names, line, cause):
    file = write("x.jsonl", '{"path": "a", "label": 0}\n\n' + line + "\n")
    with pytest.raises(AnnotationError, match=rf"x.jsonl:3: .*{cause}"):
        read_video_list(file, class_names=names)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("path,class\na,0\n", "x.csv:1: unknown column 'class'"),
        ("path\na\n", "x.csv:1: the column 'label' is missing"),
        ("path,label,path\na,0,b\n", "x.csv:1: has a column twice: path, label, path"),
        ("path,label\na,0\na,b,c\n", "x.csv:3: has 3 cells, the header 2 columns: put a text with commas"),
        ("path,label\na,\n", "x.csv:2: label is missing"),
        ('path,label\n"a,0\nb,1\n', "x.csv:2: is no row of a CSV file"),
        ("path,label,start_sec\na,0,1:30\n", "x.csv:2: start_sec is '1:30', expected a number"),
        ("path,label,end_sec\na,0,inf\n", "x.csv:2: end_sec is inf, expected a number"),
        ("path,label\na," + 200000 * "9" + "\n", "x.csv:2: is no row of a CSV file: field larger"),
        ("\n", "x.csv: the list is empty"),
    ],
)
def test_wrong_tables_are_named(write, text, cause):
    with pytest.raises(AnnotationError, match=cause):
        read_video_list(write("x.csv", text))


def test_names_need_a_file_of_names(write, names):
    file = write("x.csv", "path,label\na,walk\n")
    with pytest.raises(AnnotationError, match=r"x.csv:2: label 'walk' is a name, and nothing says"):
        read_video_list(file)
    with pytest.raises(AnnotationError, match="gone.txt: cannot be read"):
        read_video_list(file, class_names="gone.txt")


def test_images_have_no_seconds(write):
    with pytest.raises(AnnotationError, match=r"x.csv:2: images have no times.*give start_frame"):
        read_frame_list(write("x.csv", "path,label,num_frames,start_sec\na,0,9,1\n"))
    with pytest.raises(AnnotationError, match=r"x.csv:2: num_frames is missing"):
        read_frame_list(write("x.csv", "path,label\na,0\n"))


def test_a_sample_sees_its_span_alone(write, tmp_path):
    write_clip(tmp_path / "a.mp4", 24)
    file = write("x.csv", "path,label,start_sec,end_sec\na.mp4,0,0.16,0.32\na.mp4,0,0.16,9\n")
    dataset = dataset_of(file, SAMPLE, data_prefix=str(tmp_path))
    (sample,) = dataset.load([ClipRequest(0, 0)])
    with dataset.open(dataset.records[0]) as whole:
        part = dataset.part(whole, dataset.records[0])
        assert [read_number(frame) for frame in part] == [4, 5, 6, 7]
    assert {read_number(frame) for frame in sample.clip} <= {4, 5, 6, 7}
    (incident,) = dataset.load([ClipRequest(1, 0)])[0].incidents
    cause = "x.csv:3: the span 0.16 to 9 s is not inside the video, which lasts 0.96 s"
    assert incident.cause.endswith(cause)


def test_metadata_of_hugging_face(write, names, tmp_path, monkeypatch):
    """`file_name`, whose path starts from the folder of the file; other columns are passed over."""
    table = 'file_name,labels,caption,fps\nvideos/a.mp4,walk;2,"a street, at night",25\n/b.mp4,1,,\ns3://b/c.mp4,0,,\n'
    rows = [
        {"file_name": "videos/a.mp4", "label": ["walk", 2], "caption": {"en": "a street"}, "fps": None},
        {"file_name": "/b.mp4", "label": 1},
        {"file_name": "s3://b/c.mp4", "label": 0, "objects": [1]},
    ]
    listed = write("metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for file in (write("metadata.csv", table), listed):
        records = read_video_list(file, class_names=names)
        paths = [f"{tmp_path}/videos/a.mp4", "/b.mp4", "s3://b/c.mp4"]
        assert [record.path for record in records] == paths
        assert [record.labels for record in records] == [(0, 2), (1,), (0,)]
        assert read_video_list(file, "root", class_names=names)[0].path == "root/videos/a.mp4"
    monkeypatch.chdir(tmp_path)
    assert read_video_list("metadata.csv", class_names=names)[0].path == "./videos/a.mp4"


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("x.csv", "file_name,caption\na.mp4,x\n", "x.csv:1: the column 'label' is missing"),
        ("x.csv", "file_name,path,label\na.mp4,a.mp4,1\n", "x.csv:1: has a column twice: path, path, label"),
        ("x.csv", "path,label,caption\na.mp4,1,x\n", "x.csv:1: unknown column 'caption'"),
        ("x.csv", "path,label,\na.mp4,1,x\n", "x.csv:1: unknown column ''"),
        ("x.jsonl", '{"file_name": "a.mp4", "label": 1, "labels": 2}', "x.jsonl:1: has a key twice"),
        ("x.jsonl", '{"file_name": null, "label": 1}', "x.jsonl:1: path is missing"),
    ],
)
def test_wrong_metadata(write, name, text, cause):
    with pytest.raises(AnnotationError, match=cause):
        read_video_list(write(name, text))


def test_a_csv_of_a_spreadsheet_that_has_semicolons(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text(
        '\ufeffpath;label;start_sec;end_sec\n"a, b.mp4";walk;1.5;2\nc.mp4;"run;walk";;\n', "utf-8"
    )
    first, second = list_rows(str(file))
    assert (first.path, first.labels, first.span) == ("a, b.mp4", ("walk",), Span(1.5, 2, "sec"))
    assert (second.path, second.labels, second.span) == ("c.mp4", ("run", "walk"), None)
    file.write_text("path;label\na.mp4;run;walk\n")
    with pytest.raises(AnnotationError, match="x.csv:2: has 3 cells, the header 2 columns: put a text with"):
        list(list_rows(str(file)))


def test_a_label_with_zeros_before_it_is_a_name(tmp_path):
    (tmp_path / "x.csv").write_text("path,label\na.mp4,001\nb.mp4,1\nc.mp4,0\nd.mp4,007;2\n")
    labels = [row.labels for row in list_rows(str(tmp_path / "x.csv"))]
    assert labels == [("001",), (1,), (0,), ("007", 2)]
