"""Files appear whole or not at all."""

import os
import subprocess
import sys

import pytest

from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.io.files import atomic_write, atomic_write_all, hint_at_working_folder, sweep
from paddlevideo_fast.loader.annotations import read_video_list


def test_a_file_takes_its_place_when_the_block_ends(tmp_path):
    path = tmp_path / "folder" / "list.txt"
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert not path.exists()
        assert partial.parent == path.parent
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_earlier_file(tmp_path, error):
    path = tmp_path / "list.txt"
    path.write_text("earlier")

    def write():
        with atomic_write(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_belong_together_have_a_mark(tmp_path, monkeypatch):
    """Without the mark the set is not complete: it goes first and comes last."""
    data, mark = tmp_path / "data", tmp_path / "mark"
    data.write_text("earlier")
    mark.write_text("earlier")
    seen = []

    def watched(source, target, replace=os.replace):
        seen.append((os.path.basename(target), mark.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    with atomic_write_all(data, mark) as (new_data, new_mark):
        new_data.write_text("new")
        new_mark.write_text("new")
        assert mark.read_text() == "earlier"
    assert seen == [("data", False), ("mark", False)]
    assert (data.read_text(), mark.read_text()) == ("new", "new")


def test_a_full_disk_is_noticed_before_the_earlier_files_go(tmp_path, monkeypatch):
    data, mark = tmp_path / "data", tmp_path / "mark"
    data.write_text("earlier")
    mark.write_text("earlier")

    def full(handle):
        raise OSError(28, "No space left on device")

    def write():
        with atomic_write_all(data, mark) as partials:
            for partial in partials:
                partial.write_text("new")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write()
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["earlier", "earlier"]


def test_left_overs_of_dead_processes_are_swept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getpid(), os.getppid()):
        (tmp_path / f".saving-{pid}-model.pdparams").write_bytes(b"half")
    (tmp_path / "model.pdparams").write_bytes(b"whole")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".saving-{os.getppid()}-model.pdparams",  # its writer runs
        "model.pdparams",
    ]


def test_a_message_about_a_relative_path_says_where_it_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hint_at_working_folder("data/a.list") == f"; paths start from the current folder, {tmp_path}"
    assert hint_at_working_folder(tmp_path / "a.list") == ""
    with pytest.raises(AnnotationError, match=rf"^data/a.list: .*current folder, {tmp_path}$"):
        read_video_list("data/a.list", None)
