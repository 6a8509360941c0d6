import os

import pytest

from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.loader import VideoRecord, check_labels
from paddlevideo_fast.loader.annotations import read_frame_list, read_video_list, require_files
from paddlevideo_fast.loader.class_names import read_class_names
from paddlevideo_fast.log import printable
from tests.fuzz_config import limits


def _list(tmp_path, text):
    path = tmp_path / "some.list"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.smoke
def test_video_list(tmp_path):
    text = "a 0\n\n  two words.mp4\t3  \r\n/else/where.mp4 1\n视频.mp4 2"
    records = read_video_list(_list(tmp_path, text), data_prefix="videos", suffix=".mp4")
    assert records == [
        VideoRecord("videos/a.mp4", 0, line=1),
        VideoRecord("videos/two words.mp4", 3, line=3),
        VideoRecord("/else/where.mp4", 1, line=4),
        VideoRecord("videos/视频.mp4", 2, line=5),
    ]


def test_frame_list(tmp_path):
    for suffix in ("frame{:03}.png", "{}", "{0}/{0:3d}.png", "{{x}}_{:d}"):
        records = read_frame_list(_list(tmp_path, "some folder 12 4\n"), "root", suffix)
        assert records == [VideoRecord("root/some folder", 4, 12, suffix, 1)]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_video_list, "\n \n", ": the list is empty"),
        (read_frame_list, "dir 0\n", ":1: expected 'folder num_frames label'"),
        (read_frame_list, "dir 0 1\n", ":1: num_frames is 0"),
        (read_frame_list, "\ndir x 1\n", ":2: num_frames is 'x'"),
    ],
)
def test_bad_lists(tmp_path, read, text, message):
    path = _list(tmp_path, text)
    with pytest.raises(AnnotationError, match=f"{path}{message}"):
        read(path)


NO_FORMATS = (
    "img_00001.jpg", "img_{:05", "img_{name}.jpg", "", "{}{}", "{1}", "{0}{}", "{:99999999999}", "{:<9}",
    "{:e}", "{:{}}", "{0.real}", "{0.__class__}", "{0[0]}", "{!r}", "{!r:>99999999}", "{:.99999999999}",
    "{:,}", "x" * 2**20,
)  # fmt: skip


@pytest.mark.parametrize("suffix", NO_FORMATS, ids=range(len(NO_FORMATS)))
def test_suffix_that_names_no_frames(tmp_path, suffix):
    with pytest.raises(AnnotationError, match="suffix"):
        read_frame_list(_list(tmp_path, "dir 3 0\n"), suffix=suffix)


def test_unreadable_lists(tmp_path):
    with pytest.raises(AnnotationError, match="no such list"):
        read_video_list(str(tmp_path / "nowhere.list"))
    (tmp_path / "binary.list").write_bytes("a.mp4 0\n".encode("utf-16"))
    with pytest.raises(AnnotationError, match="the list cannot be read: it holds NUL bytes; save it as text"):
        read_video_list(str(tmp_path / "binary.list"))
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    with limits(None, 200 * 2**20):
        for name, cause in (
            ("/dev/zero", "it is a pipe or a device; write the content to a file"),
            (tmp_path / "pipe", "it is a pipe or a device; write the content to a file"),
            (tmp_path / "sparse", "it is larger than 1,073,741,824 bytes"),
        ):
            with pytest.raises(AnnotationError, match=f"{name}: the list cannot be read: {cause}$"):
                read_video_list(str(name))
        with pytest.raises(AnnotationError, match="x /dev/zero: cannot be read: it is a pipe or a device"):
            read_class_names("/dev/zero", 2, "x")
        with pytest.raises(
            AnnotationError, match="sparse: cannot be read: it is larger than 16,777,216 bytes"
        ):
            read_class_names(tmp_path / "sparse", 2)


@pytest.mark.parametrize(
    "text", ["x" * 2**20, "a.mp4 " + "9" * 2**20, "a.mp4 1" + "0" * 26, "a.mp4 " + "x" * 2**20]
)
def test_a_line_is_not_repeated_in_full(tmp_path, text):
    with pytest.raises(AnnotationError, match=":1: ") as caught:
        read_video_list(_list(tmp_path, text))
    assert len(str(caught.value)) < 500


def test_one_class_a_video_is_one_label():
    records = [VideoRecord("a", (1,), line=1), VideoRecord("b", (0, 2), line=2), VideoRecord("c", (), line=4)]
    check_labels(records, 3, "x.list", any_number=True)
    message = r"x.list:2: has 2 labels, and with a softmax a video has one class: .* MODEL.head.activation"
    with pytest.raises(AnnotationError, match=message):
        check_labels(records, 3, "x.list")
    with pytest.raises(AnnotationError, match="x.list:4: has no label, and with a softmax"):
        check_labels(records[::2], 3, "x.list")
    with pytest.raises(AnnotationError, match="x.list:2: label 2 with num_classes 2"):
        check_labels(records, 2, "x.list", any_number=True)
    with pytest.raises(AnnotationError, match="x.list: none of its 1 videos has a label"):
        check_labels(records[2:], 3, "x.list", any_number=True)


def test_a_list_is_looked_through_by_its_folders(tmp_path, monkeypatch):
    path = _list(tmp_path, "".join(f"class{number % 40}/{number}.mp4 0\n" for number in range(2400)))
    (tmp_path / "class39").mkdir()
    (tmp_path / "class39/2399.mp4").touch()
    records = read_video_list(path, str(tmp_path))
    assert require_files(records, path, str(tmp_path)) is records  # one file is enough
    require_files(read_video_list(path), path)  # the files themselves are named when they are opened
    records = read_video_list(path, str(tmp_path / "wrong"))
    looked_at = []
    monkeypatch.setattr("os.path.isdir", lambda folder: looked_at.append(folder))
    monkeypatch.setattr("os.path.exists", lambda file: looked_at.append(file))
    first = f"the first would be {tmp_path}/wrong/class0/0.mp4"
    text = f"^{path}: none of its 2400 files is below data_prefix '{tmp_path}/wrong'; {first}; check"
    with pytest.raises(AnnotationError, match=text):
        require_files(records, path, str(tmp_path / "wrong"))
    assert len(looked_at) == 40


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("视频 👩.mp4", "视频 👩.mp4"),
        ("a\nb\t\x1b[31m", "a\\nb\\t\\x1b[31m"),
        ("\udcff\udce9", "\\xff\\xe9"),
        ("\u202eab\ud800", "\\u202eab\\ud800"),
    ],
)
def test_what_does_not_print_is_an_escape(name, text):
    assert printable(name) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("some.list", "a.mp4\ntwo words.mp4\nlabelled.mp4 7\n"),
        ("some.csv", "path\na.mp4\ntwo words.mp4\nlabelled.mp4\n"),
        (
            "some.jsonl",
            '{"path": "a.mp4"}\n{"path": "two words.mp4"}\n{"path": "labelled.mp4", "label": "x"}\n',
        ),
    ],
)
def test_a_list_may_lack_labels_where_none_are_needed(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    records = read_video_list(str(path), labelled=False)
    assert [record.path for record in records] == ["a.mp4", "two words.mp4", "labelled.mp4"]
    assert [record.labels for record in records] == [()] * 3
    with pytest.raises(AnnotationError, match="label"):
        read_video_list(str(path))


def test_a_frame_list_may_lack_labels_where_none_are_needed(tmp_path):
    path = _list(tmp_path, "a 30\nmy folder 31\nb 32 1\n")
    records = read_frame_list(path, labelled=False)
    found = [(record.path, record.num_frames, record.labels) for record in records]
    assert found == [("a", 30, ()), ("my folder", 31, ()), ("b", 32, ())]
    text = r"some.list:1: expected 'folder num_frames \[label\]', found 'a'"
    with pytest.raises(AnnotationError, match=text):
        read_frame_list(_list(tmp_path, "a\n"), labelled=False)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "a.list",
            "a.mp4 0\nb.mp4\nc.mp4 -1\nd.mp4 x\ne.mp4 1\n",
            {2: "expected 'path", 3: "is -1", 4: "is 'x'"},
        ),
        (
            "a.jsonl",
            '{"path": "a", "label": 0}\n{"path"\n[]\n{"path": "a", "label": -1}\n',
            {2: "no JSON", 3: "expected an object", 4: "label"},
        ),
        ("a.csv", "path,label\na,0\nb\nc,0,1\n", {3: "has 1 cells", 4: "has 3 cells"}),
    ],
)
def test_all_malformed_lines_are_named(tmp_path, name, text, found):
    (tmp_path / name).write_text(text)
    with pytest.raises(AnnotationError) as caught:
        read_video_list(str(tmp_path / name))
    lines = str(caught.value).split("\n  ")
    assert len(lines) == len(found)
    for line, (number, said) in zip(lines, found.items()):
        assert line.startswith(f"{tmp_path / name}:{number}: ")
        assert said in line


def test_of_many_malformed_lines_the_first_are_named(tmp_path):
    with pytest.raises(AnnotationError, match=r"^(\S+:\d+: .*\n  ){20}\.\.\. and 30 more lines$"):
        read_video_list(_list(tmp_path, "a.mp4\n" * 50))
