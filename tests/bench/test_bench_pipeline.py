"""The benchmark of the pipeline: both paths show the same pictures, and all kinds are measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.bench import pipeline as bench
from paddlevideo_fast.bench.classic import classic_clip
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest, Pipeline, VideoRecord
from paddlevideo_fast.loader.decoders import VideoDecoder

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def clips(tmp_path_factory, make_clip):
    root = tmp_path_factory.mktemp("bench")
    return [str(make_clip(root / f"{name}.mp4", 40, size=(144, 128))) for name in ("one", "two")]


@pytest.mark.smoke
@pytest.mark.parametrize("name", bench.RECIPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_classic_path_shows_the_same(clips, name, seed):
    recipe = bench.RECIPES[name]
    classic = classic_clip(clips[0], *recipe, (MEAN, STD), np.random.default_rng(seed))
    record = VideoRecord(clips[0], 0)
    ours = Pipeline(VideoDecoder(), *recipe)(record, ClipRequest(0, 0), np.random.default_rng(seed)).pixels
    assert classic.dtype == np.float32
    assert classic.shape == (len(ours), 3, 224, 224)
    pixels = (classic.transpose(0, 2, 3, 1) * np.float32(STD) + np.float32(MEAN)) * 255
    assert np.abs(pixels - ours).mean() < 4  # PIL and OpenCV weigh neighbours differently


@pytest.mark.smoke
def test_all_kinds_are_measured(clips, tmp_path, make_clip, run_script, capsys):
    prepared, packed = tmp_path / "prepared", tmp_path / "packed"
    for name in ("one", "two"):
        make_clip(prepared / f"{name}.mkv", 40, size=(144, 128), gop=6)
    (tmp_path / "list.txt").write_text("one.mp4 0\ntwo.mp4 0\n")
    options = ("--list", tmp_path / "list.txt", "--data_prefix", Path(clips[0]).parent, "--output", packed)
    run_script("data/pack_frames.py", *options)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    options = ["--prepared", str(prepared), "--packed", str(packed), "--rounds", "2", "--json"]
    assert bench.main(parser.parse_args([*clips, *options])) == 0
    result = json.loads(capsys.readouterr().out)
    rows = {(row["recipe"], row["kind"]): row for row in result["rows"]}
    assert list(rows) == [(recipe, kind) for recipe in bench.RECIPES for kind in bench.SOURCES]
    for (_, kind), row in rows.items():
        assert list(row["clips"]) == ["one.mp4", "two.mp4"]
        assert row["bytes"] > 0
        for item in row["clips"].values():
            assert item["ms"] > 0
            assert item["spread"][0] <= item["ratio"] <= item["spread"][1]
        assert kind != "classic" or row["ratio"] == 1
    assert rows["tsm", "jpeg"]["bytes"] > rows["tsm", "video"]["bytes"]
    assert "raw video, the classic way" in bench.table(result)


def test_what_is_missing_is_named(clips, tmp_path, monkeypatch):
    with pytest.raises(PaddleVideoFastError, match=r"has 0 files named one\.\*"):
        bench.run(clips, prepared=str(tmp_path))
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PaddleVideoFastError, match="needs decord"):
        bench.run(clips)
