"""Pre-training on a list without labels, in the trainer of all runs, and fine-tuning from its checkpoint."""

import json

import numpy as np
import pytest

from paddlevideo_fast.apps.predict.recipe import recipe_of
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine import load_checkpoint
from paddlevideo_fast.errors import ConfigError
from tests.support.launching import overriding

NETWORK = {"name": "VideoMAEViT", "embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 7}
DECODER = {
    "name": "VideoMAEDecoder",
    "in_channels": 16,
    "embed_dim": 8,
    "depth": 1,
    "num_heads": 1,
    "patch_size": 7,
}
MODEL = {"framework": "Pretrain", "backbone": NETWORK, "head": DECODER, "mask_ratio": 0.75}
ADAM = {"name": "AdamW", "learning_rate": 0.01, "weight_decay": 0.05, "beta2": 0.95}


def write_config(root, motion_data, tiny_text, name, **sections):
    base = root / "tiny.yaml"
    base.write_text(tiny_text.format(data=motion_data, output=root / name))
    sections = {"OPTIMIZER": ADAM, **sections}
    (root / f"{name}.yaml").write_text(json.dumps({"_BASE_": "tiny.yaml", **sections}))
    return root / f"{name}.yaml"


@pytest.fixture(scope="module")
def root(motion_data, tiny_text, tmp_path_factory):
    """A folder with a pre-training run of two epochs, on a list that has no labels."""
    root = tmp_path_factory.mktemp("pretraining")
    lines = (motion_data / "train.list").read_text().splitlines()
    (root / "bare.list").write_text("".join(f"{line.split()[0]}\n" for line in lines))
    config = write_config(
        *(root, motion_data, tiny_text, "pretrained"),
        MODEL=MODEL,
        METRIC={"name": "LossMetric"},
        DATASET={"train": {"file_path": str(root / "bare.list")}},
    )
    assert main(["train", "-c", str(config), "-o", "report=true", "-o", "num_threads=1"]) == 0
    return root


def test_validation_and_selection_are_by_the_loss_of_the_reconstruction(root):
    records = [json.loads(line) for line in (root / "pretrained/metrics.jsonl").read_text().splitlines()]
    assert not any(name.startswith(("top", "hit")) for record in records for name in record)
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert losses[1] < losses[0]
    assert records[-1]["best_loss"] == losses[1]
    best = load_checkpoint(str(root / "pretrained/tiny_epoch_00002")).weights
    assert any(name.startswith("head.blocks.0") for name in best)


def test_the_report_shows_reconstructions(root):
    page = (root / "pretrained/report.html").read_text()
    assert page.count("clip, visible, reconstruction</figcaption>") == 4
    assert "Confusion" not in page


def test_a_resumed_run_is_the_same_run(root, assert_resumes):
    assert_resumes(root / "pretrained", "tiny_epoch_00001", root / "pretrained.yaml")


def test_fine_tuning_starts_from_the_checkpoint(root, motion_data, tiny_text, caplog):
    model = {
        "framework": "RecognizerTransformer",
        "backbone": {**NETWORK, "pretrained": str(root / "pretrained/tiny_best.pdparams")},
        "head": {"name": "VideoMAEHead", "num_classes": 4, "in_channels": 16},
    }
    config = write_config(root, motion_data, tiny_text, "tuned", MODEL=model)
    options = overriding("epochs=1", "max_iters=1", "OPTIMIZER.learning_rate=0.0")
    assert main(["train", "-c", str(config), *options]) == 0
    encoder = load_checkpoint(str(root / "pretrained/tiny_epoch_00002")).weights
    tuned = load_checkpoint(str(root / "tuned/tiny_epoch_00001")).weights
    taken = [name for name in encoder if name.startswith("backbone.")]
    assert len(taken) == 2 + 4 + 1 + 2 + 2 + 4
    for name in taken:
        np.testing.assert_array_equal(tuned[name], encoder[name], err_msg=name)


def test_hiera_learns_to_restore_its_mask_units_and_resumes(root, motion_data, tiny_text, assert_resumes):
    own = {"num_frames": 4, "crop_size": 24, "mask_unit": 8, "q_pool": 1}
    encoder = {"name": "Hiera", "embed_dim": 8, "depths": [1, 1, 1], **own}
    decoder = {"name": "HieraDecoder", "in_channels": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    config = write_config(
        *(root, motion_data, tiny_text, "hiera"),
        MODEL={**MODEL, "backbone": encoder, "head": {**decoder, **own, "num_stages": 3}},
        METRIC={"name": "LossMetric"},
        DATASET={"train": {"file_path": str(root / "bare.list")}},
        OPTIMIZER={**ADAM, "learning_rate": 0.002},
        crop_size=24,
    )
    assert main(["train", "-c", str(config), "-o", "num_threads=1", "-o", "epochs=3"]) == 0
    records = [json.loads(line) for line in (root / "hiera/metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    assert losses[2] < losses[1] < losses[0]
    assert_resumes(root / "hiera", "tiny_epoch_00001", config, "-o", "epochs=3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("METRIC.name=CenterCropMetric", "measures classes, and Pretrain has none; take LossMetric"),
        ("MIX={name: Mixup}", "mixes labels, and Pretrain has none"),
        ("to_static=true", "Pretrain draws masks outside the graph"),
    ],
)
def test_what_does_not_fit_is_told(root, override, message, assert_refused):
    assert_refused(root / "pretrained.yaml", message, override)


def test_a_pretrained_network_is_no_program(root):
    config = load_config(str(root / "pretrained.yaml"))
    with pytest.raises(ConfigError, match="Pretrain gives no scores; fine-tune a classifier"):
        recipe_of(config)
