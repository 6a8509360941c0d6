"""Lines of lists that are written read as what was written."""

import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddlevideo_fast.decode import Span
from paddlevideo_fast.jobs.list_lines import json_line, list_line, row_of
from paddlevideo_fast.loader import VideoRecord
from paddlevideo_fast.loader.annotations import read_video_list
from paddlevideo_fast.log import printable


@settings(max_examples=20)
@given(path=st.text() | st.binary().map(os.fsdecode))
@example(path="\ufeffa.mp4")
@example(path="a\rb.mp4\r")
@example(path="a\x85\u2028b.mp4")
def test_a_line_of_a_list_reads_as_the_path_that_was_written(tmp_path_factory, path):
    path = path.replace("\0", "")  # no name of a file has it
    lines = [list_line(path, 7), list_line("next", 8)]
    assert printable(path).isprintable()
    if lines[0] is None:
        assert path != path.strip() or "\n" in path or path.startswith("\ufeff") or not path
        return
    list_file = tmp_path_factory.getbasetemp() / "any.list"
    list_file.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    records = read_video_list(str(list_file))
    assert [(record.path, record.label) for record in records] == [(path, 7), ("next", 8)]


def test_an_object_of_a_list_reads_as_the_record_that_was_written(tmp_path):
    records = [
        VideoRecord("root/a.mp4", (2,), line=1),
        VideoRecord("root/视频 b.mp4", (0, 1), line=2, span=Span(1.5, 2, "sec")),
        VideoRecord("root/c.mp4", (0,), line=3, span=Span(7, None), weight=2.5, group="anna"),
        VideoRecord("root/d.mp4", (), line=4, span=Span(0, 9)),
    ]
    written = tmp_path / "y.jsonl"
    lines = (json_line(row_of(record, record.path, record.span)) for record in records)
    written.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert [vars(record) for record in read_video_list(str(written))] == [vars(record) for record in records]
