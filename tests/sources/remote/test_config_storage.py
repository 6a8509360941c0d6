"""The section STORAGE, and what no config may hold."""

import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.engine.callbacks.evaluation import Selection
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.sources.remote import block_cache, stores
from tests.support.fresh_stores import start_anew

CONFIG = "configs/quickstart/tsm_motion.yaml"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    start_anew(monkeypatch, ())


def split_of(motion_dataset, *overrides):
    lists = [f"DATASET.{name}.file_path={motion_dataset.train_list}" for name in ("train", "valid")]
    prefix = [f"DATASET.{name}.data_prefix={motion_dataset.root}" for name in ("train", "valid")]
    config = load_config(CONFIG, [*lists, *prefix, *overrides])
    spec = RunSpec.of(config)
    return make_split(spec, "train", "NTCHW", Distribution(), pipelines=check_evaluation(spec, "train"))


def test_the_section_is_what_the_process_does(motion_dataset, tmp_path, caplog):
    settings = [f"STORAGE.cache_dir={tmp_path}/cache", "STORAGE.cache_gb=0.5", "STORAGE.away_after_sec=7"]
    split_of(motion_dataset, *settings, "STORAGE.timeout_sec=3")
    kept = block_cache._kept
    assert (kept.on_disk.folder, kept.on_disk.max_bytes) == (f"{tmp_path}/cache", 5 * 10**8)
    assert (stores._policy.timeout_sec, stores._policy.unreachable_sec) == (3.0, 7.0)
    assert "STORAGE.cache_dir has no effect on DATASET.train: none of its files lies at a URL" in caplog.text
    split_of(motion_dataset, "STORAGE.cache_gb=0.5")
    assert block_cache._kept is None
    assert "-o #5  STORAGE.cache_gb: has no effect without cache_dir" in caplog.text


@pytest.mark.parametrize("check", [True, False])
def test_urls_with_credentials_are_refused_unseen(check):
    overrides = [
        "DATASET.train.file_path=https://me:hunter2@host/train.list",
        "weights=https://host/w.pdparams?X-Amz-Signature=hunter3&x=1",
        "model_name=[https://me:hunter4@host/]",  # of the wrong kind, too
        "DATASET.valid.file_path=s3://bucket/valid.list?versionId=3",
    ]
    with pytest.raises(ConfigError) as caught:
        load_config(CONFIG, overrides, check=check)
    text = str(caught.value)
    assert "hunter" not in text
    assert "-o #1  DATASET.train.file_path: the URL holds a user name or password" in text
    assert "-o #2  weights: the URL holds a query, fragment or parameter that may be a signature" in text
    assert len(caught.value.problems) == 3
    assert load_config(CONFIG, ["weights=s3://bucket/w.pdparams"], check=False)["weights"].startswith("s3://")


def test_decoded_frames_are_kept_where_they_can_be(motion_dataset, tmp_path, caplog, monkeypatch):
    settings = [f"STORAGE.frames_cache={tmp_path}/frames", "STORAGE.frames_cache_gb=0.5"]
    blocks = split_of(motion_dataset, *settings).dataset.decoder.frames.blocks
    assert (blocks.folder, blocks.max_bytes) == (f"{tmp_path}/frames", 5 * 10**8)
    assert "no effect" not in caplog.text
    assert split_of(motion_dataset, "STORAGE.frames_cache_gb=0.5").dataset.decoder.frames is None
    assert "-o #5  STORAGE.frames_cache_gb: has no effect without frames_cache" in caplog.text
    monkeypatch.setattr(Selection, "loader_of", lambda self, name: lambda *_: None)
    assert split_of(motion_dataset, *settings).dataset.decoder.frames is None
