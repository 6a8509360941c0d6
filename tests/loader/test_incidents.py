import pytest

from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import BadSamples, DecodeFailure, incidents


def failed(*causes):
    return [DecodeFailure(path, "failed", cause) for path, cause in causes]


def test_each_file_is_named_once(tmp_path, caplog):
    path = tmp_path / "run" / "bad_samples.txt"
    bad = BadSamples(path, total=100)
    bad.add(failed(("a b.mp4", "no such\nfile"), ("a b.mp4", "again")))
    bad.add([])
    bad.add(failed(("a b.mp4", "and again"), ("c.mp4", "damaged")))
    assert path.read_text() == "a b.mp4\tno such file\nc.mp4\tdamaged\n"
    assert [record.message.split(" does")[0] for record in caplog.records] == ["a b.mp4", "c.mp4"]
    assert len(bad.causes) == 2


def test_each_line_is_read_once(tmp_path, monkeypatch):
    path, num_files, lines = tmp_path / "bad_samples.txt", 200, []
    kind = incidents._kind
    monkeypatch.setattr(incidents, "_kind", lambda *line: lines.append(line) or kind(*line))
    bad = BadSamples(path, total=10000)
    for number in range(num_files):
        bad.add(failed((f"{number}.mp4", "damaged")))
    assert len(lines) <= 4 * num_files  # not num_files² / 2
    assert path.read_text() == "".join(f"{number}.mp4\tdamaged\n" for number in range(num_files))


def test_two_splits_share_a_list_and_it_may_be_removed(tmp_path):
    path = tmp_path / "bad_samples.txt"
    train, valid = BadSamples(path, total=100), BadSamples(path, total=100)  # as a run and its resumption
    train.add(failed(("a.mp4", "damaged")))
    valid.add(failed(("a.mp4", "damaged"), ("b.mp4", "damaged")))
    train.add(failed(("b.mp4", "damaged"), ("c.mp4", "damaged")))
    assert path.read_text() == "a.mp4\tdamaged\nb.mp4\tdamaged\nc.mp4\tdamaged\n"
    path.unlink()
    valid.add(failed(("c.mp4", "damaged")))
    assert path.read_text() == "c.mp4\tdamaged\n"


def test_files_repaired_before_a_resume_do_not_count(tmp_path):
    path = tmp_path / "bad_samples.txt"
    path.write_text("".join(f"{number}.mp4\tdamaged\n" for number in range(20)))
    BadSamples(path, total=20).add(failed(("a.mp4", "damaged")))


def test_a_list_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    bad = BadSamples(tmp_path / "file" / "bad_samples.txt", total=9)
    bad.add(failed(("a.mp4", "damaged")))
    bad.add(failed(("b.mp4", "damaged")))
    assert caplog.text.count("bad_samples.txt' cannot be written: File exists") == 1
    assert list(bad.causes) == ["a.mp4", "b.mp4"]


def test_any_name_is_one_line(tmp_path):
    path = tmp_path / "bad_samples.txt"
    for _ in range(2):
        BadSamples(path, total=9).add(failed(("a\nb\tc\udcff.mp4", "damaged: a\nb\tc\udcff.mp4")))
    assert path.read_text() == "a\\nb\\tc\\xff.mp4\tdamaged: a b c\\xff.mp4\n"


@pytest.mark.smoke
def test_too_many_stop_the_run(tmp_path):
    path = tmp_path / "bad_samples.txt"
    bad = BadSamples(path, total=50, max_share=0.1)
    bad.add(failed(*((f"{number}.mp4", "damaged") for number in range(5))))
    with pytest.raises(BadSampleShareError, match=r"6 of 50 files .* more than max_bad_share 0\.1"):
        bad.add(failed(("last.mp4", "damaged")))
    assert "last.mp4" in path.read_text()


def test_a_small_list_survives_two(tmp_path):
    bad = BadSamples(None, total=4, max_share=0.0)
    bad.add(failed(("a", "x"), ("b", "x")))
    with pytest.raises(BadSampleShareError):
        bad.add(failed(("c", "x")))


def test_files_with_replaced_frames_are_listed_apart(tmp_path, caplog):
    path = tmp_path / "bad_samples.txt"
    bad = BadSamples(path, total=4, max_share=0.0)
    bad.add([DecodeFailure.replaced(*each) for each in (("a.mp4", 2), ("b.mp4", 1), ("c.mp4", 1))])
    bad.add([*failed(("a.mp4", "damaged")), DecodeFailure.replaced("a.mp4", 5)])
    cause = "frames of a clip do not decode, others took their place"
    lines = [f"a.mp4\treplaced: 2 {cause}", f"b.mp4\treplaced: 1 {cause}", f"c.mp4\treplaced: 1 {cause}"]
    assert path.read_text().splitlines() == [*lines, "a.mp4\tdamaged"]
    assert caplog.text.count("is damaged: replaced") == 3
    assert (list(bad.causes), bad.replaced["a.mp4"]) == (["a.mp4"], 2)
    BadSamples(path, total=4).add([DecodeFailure.replaced("a.mp4", 1)])
    assert len(path.read_text().splitlines()) == 4
