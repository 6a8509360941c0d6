"""Prediction through oneDNN, in a process of its own: what goes wrong in Paddle there is a crash."""

import subprocess
import sys

import numpy as np
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict import program
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.errors import ProgramError
from tests.apps.conftest import close, logits_of
from tests.support.json_lines import entries_of


def test_a_network_with_leaky_relu_predicts_through_onednn(exported, motion_videos, run_script):
    model = exported("pptsm", ExportOptions()).program.with_suffix("")
    video = sorted((motion_videos / "valid").glob("*.mp4"))[0]
    words = ("-i", video, "--model_file", model, "--use_gpu", "False", "--json", "--top_k", 8)
    shown = run_script("tools/predict.py", *words, "--enable_mkldnn", "True").stdout
    found = entries_of(shown)  # and no line of Paddle's own
    scores = {top["class_id"]: top["score"] for top in found[0]["top"]}
    (expected,) = Predictor(model).predict([video])
    assert [scores[number] for number in range(8)] == pytest.approx(expected.scores.tolist(), abs=1e-5)


def test_paddle_prints_nothing_at_the_first_run(exported, capfd):
    """With oneDNN, Paddle 3 names its check of a mean on stdout, whatever its level of logging."""
    path = exported("tsm", ExportOptions("float32")).program
    opened = program.open_program(path, options=program.ProgramOptions(use_mkldnn=True))
    capfd.readouterr()
    for _ in range(2):
        opened.run(np.zeros((1, 8, 3, 40, 40), "float32"))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("network", "runtime"), [("slowfast", "onednn"), ("swin", "paddle")])
def test_predict_takes_what_is_fastest_on_a_cpu(network, runtime, exported, monkeypatch):
    files, opened = exported(network, ExportOptions()), []
    monkeypatch.setattr(
        program, "PaddleProgram", lambda file, params, options, provider: opened.append(options) or options
    )
    settings = read_recipe(files.settings).settings
    without = program.ProgramOptions(use_mkldnn=False)
    model = files.program.with_suffix("")
    for path, options in ((model, None), (files.program, None), (model, without)):
        program.open_program(path, None, options, settings.checksums, settings.cpu_runtime)
    assert settings.cpu_runtime == runtime
    assert [bool(options.use_mkldnn) for options in opened] == [runtime == "onednn", False, False]


def test_a_program_that_onednn_does_not_load_is_an_error_with_the_way_out(exported, monkeypatch):
    def create_predictor(config):
        raise RuntimeError("(InvalidArgument) no such operator")  # as of transformers on Paddle 3.3.1

    path = exported("tsm", ExportOptions("float32")).program
    monkeypatch.setattr(program.inference, "create_predictor", create_predictor)
    with pytest.raises(ProgramError, match="with oneDNN, leave enable_mkldnn out: .*no such operator"):
        program.open_program(path, options=program.ProgramOptions(use_mkldnn=True))
    with pytest.raises(ProgramError, match="cannot load it: .*no such operator"):
        program.open_program(path)


_PADDLES_OWN_PASSES = """
import sys
import numpy
from paddle import inference
config = inference.Config(sys.argv[1], sys.argv[2])
config.disable_gpu()
config.enable_mkldnn()
predictor = inference.create_predictor(config)
predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(numpy.load(sys.argv[3]))
predictor.run()
numpy.save(sys.argv[4], predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu())
"""


def test_our_programs_run_on_onednn_with_all_of_paddles_passes(exported, trained, tmp_path):
    """As PaddleX and any other caller of Paddle Inference runs them."""
    files = exported("pptsm", ExportOptions())
    clips = np.random.default_rng(3).standard_normal((2, 8, 3, 40, 40)).astype("float32")
    np.save(tmp_path / "clips.npy", clips)
    words = (files.program, files.params, tmp_path / "clips.npy", tmp_path / "logits.npy")
    command = [sys.executable, "-c", _PADDLES_OWN_PASSES, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"
    assert close(np.load(tmp_path / "logits.npy"), logits_of(trained("pptsm").model, clips))
