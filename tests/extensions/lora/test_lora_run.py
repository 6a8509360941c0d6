"""Training, resuming, testing, averaging and exporting with LoRA, by the command line."""

import json

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.predict.program import open_program
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.extensions.lora.files import RECORD
from paddlevideo_fast.extensions.lora.lora import Lora
from paddlevideo_fast.modeling import build_model, load_weights, read_weights
from tests.modeling.networks import normal
from tests.support.launching import overriding

NETWORK = {"name": "VideoMAEViT", "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 7}
HEAD = {"name": "VideoMAEHead", "num_classes": 4, "in_channels": 24}
SECTIONS = {
    "LORA": {"rank": 4},
    "EMA": {"decay": 0.9},
    "OPTIMIZER": {"name": "AdamW", "learning_rate": 0.01, "weight_decay": 0.05},
    "save_every_steps": 2,
    "keep_last": None,
}


@pytest.fixture(scope="module")
def made(motion_data, tiny_text, run_main, tmp_path_factory):
    """A folder with lora.yaml, base.pdparams and `out`, a run of two epochs."""
    root = tmp_path_factory.mktemp("lora")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "out"))
    paddle.seed(2)
    backbone = {**NETWORK, "pretrained": str(root / "base.pdparams")}
    model = {"framework": "RecognizerTransformer", "backbone": backbone, "head": HEAD}
    whole = build_model(model, load_pretrained=False)
    paddle.save(whole.state_dict(), str(root / "base.pdparams"))
    (root / "lora.yaml").write_text(json.dumps({"_BASE_": "tiny.yaml", "MODEL": model, **SECTIONS}))
    done = run_main(root / "lora.yaml")
    assert (
        "LoRA of rank 4, scale 16, on 4 linear layers: 0.0013 M of 0.02278 M parameters train (5.71%); "
        "gradients and optimizer state take 0.01 MiB, and 0.25 MiB where all train"
    ) in done.stderr
    return root


def logits(model):
    model.eval()
    return model(normal(2, 3, 4, 28, 28)).numpy()


def test_files_hold_the_small_part_and_name_the_base(made):
    for name in ("best", "epoch_00002"):
        weights = read_weights(made / f"out/tiny_{name}.pdparams")
        small = {key for key in weights if key.endswith((".lora_a", ".lora_b"))}
        assert set(weights) - small == {
            f"head.{a}.{b}" for a in ("fc", "fc_norm") for b in ("weight", "bias")
        } | {RECORD}
        assert len(small) == 8
        assert weights[RECORD]["base"]["path"] == str(made / "base.pdparams")
    kept = {key for key in read_weights(made / "out/tiny_epoch_00002.pdopt") if key.startswith("backbone")}
    assert all(".lora_" in key for key in kept)


def test_a_run_resumed_inside_an_epoch_goes_on_bit_for_bit(made, assert_resumes):
    assert_resumes(made / "out", "tiny_step_00000008", made / "lora.yaml")


def test_export_and_average_give_the_network_of_the_small_files(made, tmp_path):
    out, config = made / "out", load_config(made / "lora.yaml")
    assert main(["average", str(out), "--last", "2"]) == 0
    mean = read_weights(out / "tiny_average_last2.pdparams")
    ends = []
    for number in (1, 2):
        plain = build_model(config["MODEL"], load_pretrained=False)
        load_weights(plain, out / f"tiny_epoch_0000{number}.pdparams", strict=True)
        ends.append({key: value.numpy() for key, value in plain.state_dict().items()})
    assert mean.keys() == ends[0].keys()
    for key, value in mean.items():  # the mean of the networks, not of A and of B
        np.testing.assert_allclose(value, (ends[0][key] + ends[1][key]) / 2, atol=1e-6, err_msg=key)
    small = [read_weights(out / f"tiny_epoch_0000{number}.pdparams") for number in (1, 2)]
    layer = next(key for key in small[0] if key.endswith(".lora_a")).removesuffix(".lora_a")
    a, b = ((small[0][f"{layer}.{each}"] + small[1][f"{layer}.{each}"]) / 2 for each in ("lora_a", "lora_b"))
    apart = read_weights(made / "base.pdparams")[f"{layer}.weight"] + 16 / 4 * (a @ b)
    assert np.abs(apart - mean[f"{layer}.weight"]).max() > 1e-5
    assert main(["test", str(out), "-w", str(out / "tiny_average_last2.pdparams")]) == 0
    assert main(["export", str(out), "--output", str(tmp_path / "exported")]) == 0
    unmerged = build_model(config["MODEL"], load_pretrained=False)
    Lora(rank=4).add_to(unmerged)
    load_weights(unmerged, out / "tiny_best.pdparams", strict=True)
    expected = logits(unmerged)
    program = open_program(tmp_path / "exported" / "tiny")
    found = program.run(normal(2, 3, 4, 28, 28).numpy())
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max() + 1e-6
    assert np.abs(logits(build_model(config["MODEL"])) - expected).max() > 1e-3


def test_a_run_begins_from_whole_weights_or_goes_on_with_matrices(made, run_main, tmp_path):
    plain = overriding(
        "MODEL.backbone.pretrained=null", "epochs=1", "max_iters=2", "validate=false", "EMA=null"
    )
    base, first, second = made / "base.pdparams", tmp_path / "first", tmp_path / "second"
    run_main(made / "lora.yaml", "-w", base, *plain, *overriding(f"output_dir={first}"))
    small = first / "tiny_epoch_00001.pdparams"
    record = read_weights(small)[RECORD]
    assert (record["base"]["path"], record["base"]["part"]) == (str(base), "network")
    run_main(made / "lora.yaml", "-w", small, *plain, *overriding(f"output_dir={second}"))
    assert read_weights(second / "tiny_epoch_00001.pdparams")[RECORD] == record
    model = build_model(load_config(made / "lora.yaml")["MODEL"], load_pretrained=False)
    assert load_weights(model, second / "tiny_epoch_00001.pdparams", strict=True).record.base is not None


def test_what_the_base_lacks_is_told_and_is_in_the_file(made, run_main, tmp_path):
    lacking, name = tmp_path / "lacking.pdparams", "backbone.blocks.1.mlp.fc2.bias"
    weights = read_weights(made / "base.pdparams")
    paddle.save({key: value for key, value in weights.items() if key != name}, str(lacking))
    base = overriding(f"MODEL.backbone.pretrained={lacking}", "epochs=1", "max_iters=1", "validate=false")
    done = run_main(made / "lora.yaml", *base, *overriding(f"output_dir={tmp_path / 'out'}"))
    assert f"LORA.train: the base lacks {name}: kept at first values" in done.stderr
    assert name in read_weights(tmp_path / "out/tiny_epoch_00001.pdparams")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["MODEL.backbone.pretrained=null"],
            "LORA: trains beside weights that stay as they are; name these in",
        ),
        (
            ["FINETUNE={freeze: [head]}"],
            "FINETUNE: LORA freezes all but its matrices and LORA.train; leave one",
        ),
        (
            ["features=somewhere"],
            "LORA: the backbone does not run in a training on features; leave LORA or f",
        ),
        (["LORA.rank=0"], "LORA.rank"),
        (["resume=OUT", "LORA.scale=8"], "was trained with LORA.scale=16; set it, in place of 8"),
        (["resume=OUT", "LORA.rank=2"], "does not fit the model: 8 tensors are missing or of another shape"),
        (["resume=OUT", "LORA=null"], "holds LoRA matrices that this run does not have"),
    ],
)
def test_what_does_not_fit_is_one_sentence(made, assert_refused, tmp_path, options, message):
    options = [option.replace("OUT", str(made / "out")) for option in options]
    assert_refused(made / "lora.yaml", message, *options, f"output_dir={tmp_path / 'out'}")
