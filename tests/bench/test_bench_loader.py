"""The benchmark of the loader reads real clips on all its sides, and all sides give the same pixels."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from paddlevideo_fast.bench import loader
from paddlevideo_fast.bench.clips import write_clips
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import BadSampleShareError


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"), num_clips=2, num_frames=16)


def test_it_measures_all_sides(clips, capsys):
    parser = argparse.ArgumentParser()
    loader.add_arguments(parser)
    options = ["--workers", "0", "2", "--batch-size", "1", "--batches", "3", "--rounds", "2", "--json"]
    assert loader.main(parser.parse_args(["--clips", *map(str, clips), *options])) == 0
    result = json.loads(capsys.readouterr().out)
    found = {(row["source"], row["workers"], row["side"]) for row in result["rows"]}
    assert found == {(s, w, side) for s in ("read", "made") for w in (0, 2) for side in loader.SIDES}
    for row in result["rows"]:
        low, high = row["spread"]
        assert 0 < low <= row["batches_per_sec"] <= high
        assert row["cpu_ms"] > 0 < row["start_ms"]
        if row["side"] == "float32":
            assert row["ratio"] == row["cpu_ratio"] == 1
    assert loader.table(result).count("float32") == 4


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
        loader.run([tmp_path / "empty.mp4"])


def test_the_made_clips_decode(clips):
    with open_video(clips[0]) as reader:
        assert (reader.num_frames, *reader.read([0]).shape) == (16, 1, 256, 340, 3)
