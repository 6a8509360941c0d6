"""Training, resuming, testing, exporting and predicting with RLT, by the command line."""

import json

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.predict.program import open_program
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.extensions.run_length.extension import RunLength
from paddlevideo_fast.extensions.run_length.model import RunLengthRecognizer
from paddlevideo_fast.modeling import build_model, load_weights, read_weights
from tests.support.launching import overriding

BACKBONE = {"name": "VideoMAEViT", "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 7}
HEAD = {"name": "VideoMAEHead", "num_classes": 4, "in_channels": 24}
MODEL = {"framework": "RecognizerTransformer", "backbone": {**BACKBONE, "drop_path_rate": 0.2}, "head": HEAD}
SECTIONS = {
    "RLT": {"threshold": 0.2, "learned_lengths": 4},
    "EMA": {"decay": 0.9},
    "OPTIMIZER": {"name": "AdamW", "learning_rate": 0.01, "weight_decay": 0.05},
    "save_every_steps": 2,
    "keep_last": None,
}


@pytest.fixture(scope="module")
def made(motion_data, tiny_text, run_main, tmp_path_factory):
    """A folder with rlt.yaml and `out`, a run of two epochs."""
    root = tmp_path_factory.mktemp("rlt")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "out"))
    (root / "rlt.yaml").write_text(json.dumps({"_BASE_": "tiny.yaml", "MODEL": MODEL, **SECTIONS}))
    done = run_main(root / "rlt.yaml")
    assert "run-length tokens: those that differ by at most 0.2 from the one before are left" in done.stderr
    return root


def network(made, name="best"):
    model = build_model(load_config(made / "out")["MODEL"], load_pretrained=False)
    load_weights(model, made / f"out/tiny_{name}.pdparams", strict=True)
    model.eval()
    return model


def still(num_clips):
    """Normalised clips of which other parts stand still, float32 [N, 3, 4, 28, 28]."""
    clips = np.random.default_rng(0).standard_normal((num_clips, 3, 4, 28, 28)).astype("float32")
    for number, clip in enumerate(clips):
        clip[:, 1:, : 7 * number] = clip[:, :1, : 7 * number]
    return clips


def test_the_saved_config_gives_the_same_network(made):
    config = load_config(made / "out")
    assert config["RLT"] == SECTIONS["RLT"]
    model = network(made)
    assert isinstance(model, RunLengthRecognizer)
    assert model.threshold == 0.2
    assert model.packing(paddle.to_tensor(still(3))).lengths == [32, 28, 24]
    off = load_config(made / "out", ["RLT.threshold=null"])
    assert build_model(off["MODEL"]).threshold is None
    assert np.abs(read_weights(made / "out/tiny_best.pdparams")["run_lengths"]).max() > 0


def test_a_run_resumed_inside_an_epoch_goes_on_bit_for_bit(made, assert_resumes):
    assert_resumes(made / "out", "tiny_step_00000008", made / "rlt.yaml")


@pytest.mark.parametrize("flags", [[], ["--onnx"]])
def test_tests_and_programs_leave_out_the_same_tokens(flags, made, tmp_path):
    if flags:
        pytest.importorskip("paddle2onnx")
    model, clips = network(made), still(4)
    expected = model(paddle.to_tensor(clips)).numpy()
    assert main(["test", str(made / "out")]) == 0
    assert main(["export", str(made / "out"), "--output", str(tmp_path / "exported"), *flags]) == 0
    program = open_program(tmp_path / "exported" / ("tiny.onnx" if flags else "tiny"))
    for number in (1, 4):
        logits = program.run(clips[:number])
        assert np.abs(logits - expected[:number]).max() < 1e-5
    model.threshold = None
    assert np.abs(model(paddle.to_tensor(clips)).numpy() - expected)[1:].max() > 1e-4


def test_predict_takes_a_run(made, motion_data, capfd):
    video = next(motion_data.glob("valid/*.mp4"))
    assert main(["predict", str(made / "out"), "-i", str(video)]) == 0
    assert "left" in capfd.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["amp=true"],
        ["RUNTIME.recompute=true"],
        ["to_static=true"],
        ["MODEL.backbone={name: VJEPA2, embed_dim: 24, depth: 2, num_heads: 3, patch_size: 7}"],
        ["MODEL.head={name: AttentiveHead, num_classes: 4, in_channels: 24, depth: 1, num_heads: 3}"],
        ["MIX={name: Mixup}"],
        ["LORA={rank: 2}", "MODEL.backbone.pretrained=WEIGHTS"],
        ["MODEL.framework=Recognizer3D"],
    ],
)
def test_it_trains_with_other_options(made, run_main, tmp_path, options):
    weights = str(made / "out/tiny_best.pdparams")
    options = [option.replace("WEIGHTS", weights) for option in options]
    short = ["epochs=1", "EMA=null", f"output_dir={tmp_path / 'out'}", "log_interval=1"]
    done = run_main(made / "rlt.yaml", *overriding(*short, *options))
    assert "best weights" in done.stderr
    for name, value in read_weights(tmp_path / "out/tiny_best.pdparams").items():
        assert not isinstance(value, np.ndarray) or np.isfinite(value).all(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["RLT.threshold=-0.1"], "RLT.threshold"),
        (
            ["RLT.threshold=5"],
            "no pixels differ by more than 4.43, so the first tubelets alone would be left",
        ),
        (["RLT.treshold=0.1"], "RLT.treshold: unknown key; did you mean 'threshold'?"),
        (["MODEL.framework=Pretrain"], "MODEL.framework: Pretrain is no network that takes clips as tokens"),
        (
            [
                "MODEL.backbone={name: MViT, num_frames: 4, crop_size: 28, embed_dim: 8, depths: [1, 1], "
                "num_heads: 2}",
                "MODEL.head={name: TransformerHead, num_classes: 4, in_channels: 16}",
            ],
            "MODEL.backbone.name=MViT: its blocks do not attend over all tokens of a clip alone",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(made, assert_refused, tmp_path, options, message):
    assert_refused(made / "rlt.yaml", message, *options, f"output_dir={tmp_path / 'out'}")


def test_the_section_has_the_paper_s_threshold():
    assert RunLength() == RunLength(threshold=0.1, learned_lengths=0)
