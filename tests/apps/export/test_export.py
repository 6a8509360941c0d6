"""Checkpoints to programs of Paddle Inference."""

import copy
import os
import re
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml

from paddlevideo_fast.apps.export.export import ExportOptions, clip_shape, export_model
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import PADDLE_SUFFIXES, PaddleProgram, ProgramOptions, open_program
from paddlevideo_fast.apps.predict.recipe import read_recipe, recipe_of
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import (
    AnnotationError,
    ConfigError,
    PaddleVideoFastError,
    ProgramError,
    WeightError,
)
from tests.apps.conftest import close, logits_of
from tests.support.forking import Fresh
from tests.support.json_lines import entries_of

ROOT = Path(__file__).resolve().parents[3]
PROGRAM_SUFFIX = PADDLE_SUFFIXES[0]


def test_free_axes_take_other_shapes(trained, tmp_path):
    run = trained("tsm")
    options = ExportOptions(input_shape=[-1, -1, -1])
    files = export_model(run.cfg, run.weights, tmp_path, options=options)
    assert read_recipe(files.settings).settings.input_shape == [8, -1, -1], "the network mixes its 8 frames"
    clips = np.random.default_rng(6).standard_normal((1, 8, 3, 48, 64)).astype("float32")
    assert close(open_program(files.program, files.params).run(clips), logits_of(run.model, clips))
    for num_frames in (4, 16):
        other = ExportOptions(input_shape=[num_frames, 48, 64])
        with pytest.raises(ProgramError, match=f"T is {num_frames}, and MODEL.backbone.num_seg is 8"):
            export_model(run.cfg, run.weights, tmp_path, options=other)
    slowfast = trained("slowfast")
    with pytest.raises(ProgramError, match="give T a number"):
        export_model(slowfast.cfg, slowfast.weights, tmp_path, options=options)
    transformer, options = trained("timesformer"), ExportOptions(input_shape=[8, -1, -1])
    with pytest.raises(ProgramError, match="VisionTransformer is for clips of one size"):
        export_model(transformer.cfg, transformer.weights, tmp_path, options=options)


def test_the_settings_say_what_prediction_needs(trained, tmp_path):
    run = trained("slowfast")
    names = tmp_path / "classes.txt"
    names.write_bytes("\ufeff".encode() + b"".join(b"class %d\r\n" % number for number in range(8)))
    options = ExportOptions("uint8", class_names=names)
    recipe = read_recipe(export_model(run.cfg, run.weights, tmp_path, "net", options).settings)
    settings = recipe.settings
    facts = (settings.model_name, settings.num_classes, settings.input_dtype)
    assert facts == ("SlowFast_motion", 8, "uint8")
    assert settings.class_names == [f"class {number}" for number in range(8)]
    assert settings.input_shape == [8, 40, 40]
    assert {path.suffix for path in tmp_path.iterdir()} == {PROGRAM_SUFFIX, ".pdiparams", ".txt", ".yaml"}
    assert settings.num_ensemble_views == 1  # the default of SFVideoDataset
    assert settings.cpu_runtime == "onednn"
    assert recipe.section == run.cfg["PIPELINE"]["valid"]
    assert recipe.dataset().pipeline.normalization == run.normalization


def test_a_config_of_frame_folders_is_exported_for_videos():
    cfg = load_config(str(ROOT / "configs/recognition/tsm/tsm_k400_frames.yaml"))
    recipe = recipe_of(cfg)
    assert recipe.section["decode"] == {"name": "VideoDecoder"}
    assert clip_shape(recipe) == [8, 224, 224]


@pytest.mark.parametrize(
    ("config", "split", "shape"),
    [
        ("slowfast/slowfast_4x16.yaml", "test", [32, 256, 256]),
        ("tsn/tsn_k400_videos.yaml", "test", [250, 224, 224]),
    ],
)
def test_the_shape_is_that_of_one_view(config, split, shape):
    recipe = recipe_of(load_config(str(ROOT / "configs/recognition" / config)), split)
    assert clip_shape(recipe) == shape


def test_a_program_with_other_logits_is_not_kept(trained, tmp_path, monkeypatch, caplog):
    run = trained("tsm")
    intact = PaddleProgram.run
    monkeypatch.setattr(PaddleProgram, "run", lambda self, clips: intact(self, clips) * 1.001)
    with caplog.at_level("INFO"), pytest.raises(ProgramError, match="not the network's"):
        export_model(run.cfg, run.weights, tmp_path / "new" / "folder")
    said = caplog.text.partition("wrote ")[2]  # before the comparison
    assert re.match(r"TSM_motion\.\w+ .*TSM_motion\.pdiparams \([\d.]+ [KM]B\)", said)
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_is_one_error(trained, tmp_path):
    run = trained("tsm")
    names = tmp_path / "classes.txt"
    names.write_text("only one\n")
    cases = [
        (WeightError, tmp_path / "missing.pdparams", ExportOptions()),
        (WeightError, trained("slowfast").weights, ExportOptions()),
        (AnnotationError, run.weights, ExportOptions(class_names=names)),
        (AnnotationError, run.weights, ExportOptions(class_names=tmp_path / "missing.txt")),
        (ProgramError, run.weights, ExportOptions(input_shape=[8, 0, 56])),
    ]
    for expected, weights, options in cases:
        with pytest.raises(expected):
            export_model(run.cfg, weights, tmp_path / "out", options=options)
    for name in ("a/b", "../b", str(tmp_path / "b"), ".."):
        with pytest.raises(ProgramError, match="no name of a file"):
            export_model(run.cfg, run.weights, tmp_path / "out", name)
    cfg = copy.deepcopy(run.cfg)
    del cfg["PIPELINE"]["valid"]
    with pytest.raises(ConfigError, match=r"PIPELINE\.valid"):
        export_model(cfg, run.weights, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_programs_are_one_error(trained, tmp_path):
    run = trained("tsm")
    files = export_model(run.cfg, run.weights, tmp_path)
    with pytest.raises(ProgramError, match="no such file"):
        open_program(tmp_path / "missing.json", files.params)
    (tmp_path / "damaged.json").write_bytes(files.program.read_bytes()[:-40])
    (tmp_path / "text.pdmodel").write_text("no program")
    with pytest.raises(ProgramError, match="cannot load it"):
        open_program(tmp_path / "damaged.json", files.params)
    with pytest.raises(ProgramError, match="no model"):
        open_program(tmp_path / "text.pdmodel", files.params)
    with pytest.raises(ProgramError, match="no model"):
        open_program(files.settings, files.params)
    with pytest.raises(ProgramError, match="does not run on"):
        open_program(files.program, files.params).run(np.zeros((1, 8, 5, 56, 56), "float32"))
    if not paddle.is_compiled_with_cuda():
        for options, told in (
            (ProgramOptions(providers=("cuda",)), "cuda: this Paddle is built for CPUs"),
            (ProgramOptions(providers=("tensorrt",)), "tensorrt: this Paddle is built for CPUs"),
            (ProgramOptions(precision="fp16"), "needs a GPU"),
        ):
            with pytest.raises(PaddleVideoFastError, match=told):
                open_program(files.program, files.params, options)
        program = open_program(files.program, files.params, ProgramOptions(providers=("tensorrt", "cpu")))
        assert program.provider == "cpu"


def test_damaged_and_mixed_files_are_refused(trained, tmp_path):
    run = trained("tsm")
    files = export_model(run.cfg, run.weights, tmp_path / "a")
    other = export_model(run.cfg, run.weights, tmp_path / "b", options=ExportOptions("uint8"))
    intact = files.params.read_bytes()
    assert Predictor(files.program, shutil.copy(files.params, tmp_path / "elsewhere.pdiparams"))
    changed = bytearray(intact)
    changed[len(intact) // 2] ^= 1
    for content in (intact[: len(intact) // 2], bytes(changed)):
        files.params.write_bytes(content)
        with pytest.raises(ProgramError, match=r"a/TSM_motion\.pdiparams: is damaged, or of another export"):
            Predictor(files.program)
    files.params.write_bytes(intact)
    files.program.write_bytes(other.program.read_bytes())
    with pytest.raises(ProgramError, match="is damaged, or of another export"):
        Predictor(files.program)
    settings = yaml.safe_load(files.settings.read_text())
    assert set(settings.pop("checksums")) == {PROGRAM_SUFFIX, ".pdiparams"}
    settings["input_dtype"] = "uint8"
    files.settings.write_text(yaml.safe_dump(settings))  # as exports before the checksums wrote it
    assert Predictor(files.program)


def test_the_lines_of_paddle_itself_stay_off_the_console(trained, tmp_path):
    """In a new process: Paddle reads how much it may say when it is imported."""
    words = ["-m", "paddlevideo_fast", "export", "tsm_motion", "-w", trained("tsm").weights]
    environment = {name: value for name, value in os.environ.items() if name != "GLOG_minloglevel"}
    done = Fresh({**environment, "PYTHONPATH": str(ROOT)}).run(
        [*words, "--output", tmp_path / "out"], tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^[IWE]\d{4} |\.cc:\d+", done.stdout + done.stderr, re.MULTILINE), done.stderr


def test_the_command(trained, tmp_path, run):
    words = ["export", "-c", "tsm_motion", "-w", trained("tsm").weights, "--output", tmp_path / "out"]
    code, out, _ = run(*words, "--save_name", "net", "--override", "seed=1", "--json")
    written = [entry["file"] for entry in entries_of(out)]
    assert code == 0
    assert [Path(path).name for path in written] == [f"net{PROGRAM_SUFFIX}", "net.pdiparams", "net.yaml"]
    assert all(Path(path).is_file() for path in written)
    code, _, err = run(*words[:4], tmp_path / "missing.pdparams")
    assert (code, "missing.pdparams: there is no such file" in err) == (2, True)
