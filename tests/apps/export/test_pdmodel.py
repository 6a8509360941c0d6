"""Programs in the format of Paddle 2, which Paddle 3 writes on request: read by both."""

import re
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.apps.predict.program import PADDLE_SUFFIXES, open_program
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.modeling import build_model
from tests.apps.conftest import close, logits_of

WRITTEN = Path(__file__).parents[2] / "reference/pdmodel"
"""What `write` wrote with Paddle 3.3.1, and the network's logits of `clips()`: logits.npy."""
NETWORK = ("tsm_motion", ["MODEL.backbone.width=2", "MODEL.head.in_channels=16", "DATASET.valid=null"])
writes_json = pytest.mark.skipif(PADDLE_SUFFIXES[0] != ".json", reason="this Paddle writes .pdmodel anyway")


def write(folder, write_format):
    """Exports a network with weights of the seed 0, and gives its files and its logits."""
    cfg = load_config(*NETWORK)
    paddle.seed(0)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    for parameter in model.parameters():
        if not parameter.numpy().any():
            parameter.set_value(paddle.uniform(parameter.shape, min=0.2, max=0.5))
    model.eval()
    weights = folder / "w.pdparams"
    paddle.save(model.state_dict(), str(weights))
    files = export_model(cfg, weights, folder, "tsm", ExportOptions(program=write_format))
    return files, logits_of(model, clips())


def clips():
    return np.random.default_rng(0).standard_normal((2, 8, 3, 56, 56)).astype("float32")


def operators(program):
    names = (
        rb"conv2d|batch_norm|temporal_shift|pool2d|reduce_mean|matmul_v2|elementwise_[a-z]+|flatten_[a-z_]+"
    )
    return set(re.findall(names, program.read_bytes()))


@pytest.mark.smoke
def test_paddle_2_and_3_read_what_paddle_3_wrote():
    found = open_program(WRITTEN / "tsm.pdmodel").run(clips())
    assert close(found, np.load(WRITTEN / "logits.npy"))


@writes_json
def test_the_old_format_is_written_on_request_and_replaces_the_new_one(tmp_path):
    files, _ = write(tmp_path, "json")
    assert files.program.suffix == ".json"
    files, expected = write(tmp_path, "pdmodel")
    assert {file.suffix for file in tmp_path.glob("tsm.*")} == {".pdmodel", ".pdiparams", ".yaml"}
    assert close(open_program(tmp_path / "tsm").run(clips()), expected)
    assert operators(files.program) == operators(WRITTEN / "tsm.pdmodel")  # which Paddle 2 was seen to read
    again, expected = write(tmp_path, None)
    assert again.program.suffix == ".json"
    assert close(open_program(tmp_path / "tsm").run(clips()), expected)
    assert not files.program.exists()


@pytest.mark.skipif(PADDLE_SUFFIXES[0] == ".json", reason="this Paddle writes .json")
@pytest.mark.smoke
def test_paddle_2_cannot_write_the_new_format(tmp_path):
    with pytest.raises(
        ProgramError, match=r"--program_format json: Paddle 2.* writes .pdmodel; use Paddle 3 for it"
    ):
        write(tmp_path, "json")
