"""An attentive probe that trains on stored tokens of a frozen transformer, by the command line."""

import json

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.predict.program import open_program
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.extensions.features.loader import StoredFeatures
from paddlevideo_fast.modeling import build_model, load_weights, read_weights
from tests.modeling.networks import normal
from tests.support.launching import overriding

ENCODER = {"name": "VideoMAEViT", "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 7}
PROBE = {"name": "AttentiveHead", "num_classes": 4, "in_channels": 24, "depth": 1, "num_heads": 2}


def compute_tokens(root, output, *options):
    words = ["--output", str(output), "--dtype", "float16"]
    assert main(["features", str(root / "probe.yaml"), *words, *options]) == 0


@pytest.fixture(scope="module")
def made(motion_data, tiny_text, tmp_path_factory):
    """A folder with probe.yaml, the encoder's encoder.pdparams, its tokens and `out`, a run on them."""
    root = tmp_path_factory.mktemp("probe")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "out"))
    backbone = {**ENCODER, "pretrained": str(root / "encoder.pdparams")}
    model = {"framework": "RecognizerTransformer", "backbone": backbone, "head": PROBE}
    paddle.seed(5)
    whole = build_model(model, load_pretrained=False)
    paddle.save(whole.state_dict(), str(root / "encoder.pdparams"))
    sections = {"MODEL": model, "FINETUNE": {"freeze": ["backbone"]}, "num_threads": 1}
    (root / "probe.yaml").write_text(json.dumps({"_BASE_": "tiny.yaml", **sections}))
    compute_tokens(root, root / "tokens")
    assert main(["train", str(root / "probe.yaml"), "-o", f"features={root / 'tokens'}"]) == 0
    return root


def test_the_features_are_all_tokens_of_a_clip(made):
    stored = StoredFeatures(made / "tokens/train")
    assert stored.features.dtype == np.float16
    assert stored.features[np.array([3])].shape == (1, 2 * 4 * 4, 24)


def test_the_whole_network_tests_as_the_probe_was_validated(made, tmp_path):
    out, given = made / "out", read_weights(made / "encoder.pdparams")
    weights = read_weights(out / "tiny_epoch_00002.pdparams")
    assert weights.keys() == given.keys()
    for key, value in weights.items():
        assert np.array_equal(value, given[key]) == key.startswith("backbone."), key
    options = overriding(f"output_dir={tmp_path}")
    assert main(["test", str(out), "-w", str(out / "tiny_epoch_00002.pdparams"), *options]) == 0
    found = json.loads((tmp_path / "test/metrics.json").read_text())
    *_, valid = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    assert valid["kind"] == "valid"
    assert found["loss"] == pytest.approx(valid["loss"], rel=1e-3)  # the tokens have three digits
    assert found["num_samples"] == valid["num_samples"] == 8


def test_the_exported_program_has_encoder_and_probe(made, tmp_path):
    out = made / "out"
    assert main(["export", str(out), "--output", str(tmp_path / "exported")]) == 0
    model = build_model(load_config(made / "probe.yaml")["MODEL"])
    load_weights(model, out / "tiny_best.pdparams", strict=True)
    model.eval()
    clips = normal(2, 3, 4, 28, 28)
    expected = model(clips).numpy()
    found = open_program(tmp_path / "exported/tiny").run(clips.numpy())
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max() + 1e-6


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "PIPELINE.train.transform.0.RandomCrop.target_size=21",
            "stale: PIPELINE.train.transform.0.RandomCrop.target_size was 28 when they",
        ),
        ("MODEL.backbone.depth=1", "stale: MODEL.backbone.depth was 2 when they"),
        ("MODEL.backbone.embed_dim=48", "in_channels=24: set it to 48, the channels that the backbone gives"),
    ],
)
def test_tokens_that_do_not_fit_are_told_in_a_sentence(made, assert_refused, tmp_path, option, message):
    output = f"output_dir={tmp_path / 'out'}"
    assert_refused(made / "probe.yaml", message, option, f"features={made / 'tokens'}", output)
