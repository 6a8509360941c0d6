"""Programs, weights and videos by URL: export, predict, convert and features read and write them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.config import load_config
from paddlevideo_fast.extensions.features.compute import compute_features
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.modeling import load_weights
from tests.apps.conftest import ROOT
from tests.support.json_lines import entries_of
from tests.support.stores import Store


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_export_and_predict(
    s3_store: Store, trained: Any, exported: Any, motion_videos: Path, tmp_path: Path, predict: Any
) -> None:
    run = trained("tsm")
    weights = tmp_path / "weights"
    weights.mkdir()
    shutil.copy(run.weights, weights / "best.pdparams")
    url = s3_store.publish(weights)
    output = f"{s3_store.url}programs"
    files = export_model(run.cfg, f"{url}best.pdparams", output)
    assert [str(file) for file in files.all] == [f"{output}/{file.name}" for file in files.all]
    assert set(s3_store.names(f"{output}/")) == {file.name for file in files.all}
    folder = tmp_path / "videos"
    folder.mkdir()
    for video in sorted((motion_videos / "valid").glob("*.mp4"))[:2]:
        shutil.copy(video, folder)
    videos = s3_store.publish(folder)
    local = exported("tsm", ExportOptions())
    expected = entries_of(predict("-i", folder, "--model_file", local.program, "--json")[1])
    program = str(files.program.with_suffix(""))
    found = entries_of(predict("-i", videos, "--model_file", program, "--json")[1])
    assert [entry.pop("path") for entry in found] == [videos + Path(one.pop("path")).name for one in expected]
    assert found == expected
    code, _, err = predict("-i", f"{videos}nowhere.mp4", "--model_file", program)
    assert (code, f"{videos}nowhere.mp4: there is no such file or folder" in err) == (2, True)


def test_convert(s3_store: Store, trained: Any, tmp_path: Path, run: Any) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    shutil.copy(trained("tsm").weights, folder / "theirs.pdparams")
    source, target = f"{s3_store.publish(folder)}theirs.pdparams", f"{s3_store.url}ours/x.pdparams"
    words = ["convert", "--from", "paddlevideo", "-c", "tsm_motion", "--to", target]
    code, out, _ = run(*words, "--src", source)
    assert (code, f"written to {target}" in out) == (0, True)
    assert not load_weights(trained("tsm").model, target, strict=True).missing
    code, _, err = run(*words, "--src", f"{source}x")
    assert (code, f"{source}x: there is no such file; check the path" in err) == (2, True)


def test_features(
    s3_store: Store, trained: Any, motion_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, url = trained("tsm"), s3_store.publish(motion_videos)
    found = {}
    for data, output in ((f"{motion_videos}/", str(tmp_path / "here")), (url, f"{s3_store.url}features")):
        overrides = [f"weights={run.weights}", "DATASET.num_workers=0"]
        for split in ("train", "valid"):
            overrides += [
                f"DATASET.{split}.file_path={data}{split}.list",
                f"DATASET.{split}.data_prefix={data}",
            ]
        cfg = load_config(str(ROOT / "configs/quickstart/tsm_motion.yaml"), overrides)
        found[output] = compute_features(cfg, as_path(output))
    here, there = found.values()
    assert [str(part.folder) for part in there] == [
        f"{s3_store.url}features/{part.folder.name}" for part in here
    ]
    for part in here:
        arrays = sorted(part.folder.glob("*.npy"))
        assert arrays
        for array in arrays:
            stored = s3_store.get(f"{s3_store.url}features/{part.folder.name}/{array.name}")
            assert stored == array.read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # as on another machine
    s3_store.reset()
    compute_features(cfg, as_path(output))
    assert not any(request["method"] == "GET" and ".mp4" in request["path"] for request in s3_store.requests)
