"""The DALI_LOADER section: PaddleVideo's keys, and what becomes of them."""

import sys
from pathlib import Path

import pytest

from paddlevideo_fast.assembly import plan_run
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import MissingExtraError
from paddlevideo_fast.extensions.dali.extension import Dali

TSN = Path(__file__).with_name("data_dali.yaml").read_text()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tsn.yaml"
    path.write_text(TSN)
    return path


@pytest.mark.smoke
def test_it_becomes_the_usual_sections(path, tmp_path, warnings):
    config = load_config(path, ["train_dali=true", "DALI_LOADER.file_path=mine.list", "DALI_LOADER.seglen=2"])
    assert RunSpec.of(config).extension(Dali)
    assert config["DATASET"]["train"] == {"format": "VideoDataset", "file_path": "mine.list"}
    assert config["DATASET"]["batch_size"] == 32
    assert config["DATASET"]["test"]["file_path"] == "val.list"
    train = config["PIPELINE"]["train"]
    assert train["sample"] == {"name": "Sampler", "num_seg": 3, "seg_len": 2}
    assert [next(iter(step)) for step in train["transform"]] == [
        "Scale", "RandomCrop", "RandomFlip", "Normalization",
    ]  # fmt: skip
    assert "DALI_LOADER" not in config
    config.save(tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert warnings == []


def test_without_the_flag_it_has_no_effect(path, warnings):
    config = load_config(path)
    assert "train" not in config["DATASET"]
    text = "DALI_LOADER: has no effect without --train_dali (train_dali: True)"
    assert warnings == [f"{path}:6  {text}"]


def test_decoded_frames_are_not_kept_where_dali_decodes(tmp_path, caplog):
    options = ["train_dali=true", f"STORAGE.frames_cache={tmp_path}/frames", "num_frames=4"]
    plan_run(RunSpec.for_training(load_config("tsm_motion", options)))
    for part in ("train", "valid"):
        assert f"STORAGE.frames_cache: has no effect on DATASET.{part}: DALI decodes it" in caplog.text


def test_a_missing_dali_is_named_with_its_extra(monkeypatch):
    from paddlevideo_fast.extensions.dali.graph import import_dali

    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingExtraError, match=r"nvidia-dali-cuda1[123]0.*paddlevideo_fast\[dali1[123]0\]"):
        import_dali()


def test_places_of_its_values_are_named(path, tmp_path):
    """Errors after the expansion once named the file of the data that the section had replaced."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "_BASE_: tsn.yaml\nDATASET: {train: {format: VideoDataset, file_path: other.list}}\n"
        "PIPELINE: {train: {decode: {name: VideoDecoder}, sample: {name: Sampler, num_seg: 3, seg_len: 1},"
        " transform: [{Scale: {short_size: 256}}, {RandomCrop: {target_size: 224}}]}}\n"
    )
    config = load_config(mine, ["train_dali=true"])
    line = TSN.split("\n").index("DALI_LOADER:") + 1
    assert config.where("DATASET.train.file_path") == f"{path}:{line + 2}"
    assert config.where("DATASET.batch_size") == f"{path}:{line + 1}"
    assert config.where("DATASET.train.format") == config.where("PIPELINE.train.sample") == f"{path}:{line}"
    assert config.where("DATASET.test.file_path").startswith(f"{path}:")
