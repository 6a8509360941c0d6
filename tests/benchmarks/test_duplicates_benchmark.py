"""The benchmark of copies, made small: each kind of copy is found beside its original."""

from benchmarks import duplicates


def test_copies_and_simulated_lists_are_counted(make_clip, tmp_path, monkeypatch):
    make_clip(tmp_path / "clip.mp4", 60, size=(160, 96))
    monkeypatch.setattr(duplicates, "_CLIPS", ("clip.mp4",))
    monkeypatch.setattr(duplicates, "_NUM_COPIES", 7)
    result = duplicates.run(clips=tmp_path, videos=6, simulated=[60])
    assert result["real"] == 1
    assert {kind: row["copies"] for kind, row in result["kinds"].items()} == dict.fromkeys(
        duplicates.COPIES, 1
    )
    assert result["recall"] >= 5 / 6
    assert result["precision"] == 1
    assert result["pairs"] == result["right"] >= 7
    assert [(row["videos"], row["recall"], row["wrong"]) for row in result["lists"]] == [(60, 1.0, 0)]
