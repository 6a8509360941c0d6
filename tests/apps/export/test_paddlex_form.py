"""Folders that PaddleX runs: what is written, what is refused, and what prediction reads."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.apps.export.paddlex_form import PaddleXFolder
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import PADDLE_SUFFIXES
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError, ProgramError

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = {"name": "Sampler", "num_seg": 8, "seg_len": 1, "valid_mode": True}
SCALED = [
    {"Scale": {"short_size": 48}},
    {"CenterCrop": {"target_size": 40}},
    {"Image2Array": {}},
    {"Normalization": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}},
]
WRITTEN_ELSEWHERE = """
Global: {model_name: PP-TSMv2-LCNetV2_8frames_uniform}
Hpi: {backend_configs: {}}
PreProcess:
  transform_ops:
    - ReadVideo: {num_seg: 8, seg_len: 1, sample_type: uniform, target_size: 224}
    - Scale: {short_size: 48}
    - CenterCrop: {target_size: 40}
    - Image2Array: {data_format: tchw}
    - NormalizeVideo: {mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}
    - KeepKeys: {keep_keys: [video]}
PostProcess:
  Topk: {topk: 5, label_list: [a, b, c, d, e, f, g, 8]}
"""


def as_paddlex(run, **valid):
    """The config of a trained network with a pipeline that PaddleX can do, and changes of it."""
    cfg = load_config(run.cfg.path)
    cfg.update(run.cfg)
    form = {"sample": SAMPLE, "transform": SCALED, "resample": "bilinear"}
    cfg["PIPELINE"] = {**cfg["PIPELINE"], "valid": {**cfg["PIPELINE"]["valid"], **form, **valid}}
    return cfg


def exported(run, folder, options=None, **valid):
    options = options or ExportOptions(paddlex=PaddleXFolder("PP-TSM-R50_8frames_uniform", topk=3))
    return export_model(as_paddlex(run, **valid), run.weights, folder, options=options)


def test_the_folder_says_what_paddlex_reads_and_predicts_the_same(trained, motion_videos, tmp_path):
    run = trained("pptsm")
    (tmp_path / "inference.yaml").write_text("of an earlier export\n")
    files = exported(run, tmp_path)
    names = {f"inference{ending}" for ending in (PADDLE_SUFFIXES[0], ".pdiparams", ".yml")}
    assert names <= {path.name for path in tmp_path.iterdir()} <= {*names, "inference.pdiparams.info"}
    content = yaml.safe_load(files.settings.read_text())
    assert content["Global"] == {"model_name": "PP-TSM-R50_8frames_uniform"}
    assert content["PreProcess"]["transform_ops"] == [
        {"ReadVideo": {"num_seg": 8, "seg_len": 1, "sample_type": "uniform"}},
        {"Scale": {"short_size": 48}},
        {"CenterCrop": {"target_size": 40}},
        {"Image2Array": {"data_format": "tchw"}},
        {"NormalizeVideo": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}},
    ]
    assert content["PostProcess"] == {"Topk": {"topk": 3, "label_list": [str(n) for n in range(8)]}}

    own = export_model(as_paddlex(run), run.weights, tmp_path / "own", options=ExportOptions())
    videos = sorted((motion_videos / "valid").glob("*.mp4"))[:2]
    for expected, found in zip(
        Predictor(own.program).predict(videos), Predictor(tmp_path / "inference").predict(videos)
    ):
        np.testing.assert_array_equal(found.logits, expected.logits)


def test_names_of_the_classes_are_the_label_list(trained, tmp_path):
    names = [f"class {number}" for number in range(8)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    options = ExportOptions(paddlex=PaddleXFolder(), class_names=tmp_path / "names.txt")
    content = yaml.safe_load(exported(trained("tsm"), tmp_path, options).settings.read_text())
    assert content["PostProcess"]["Topk"]["label_list"] == names
    assert "Global" not in content


@pytest.mark.parametrize(
    ("valid", "reason"),
    [
        ({"sample": {**SAMPLE, "valid_mode": False}}, "middle frames of segments"),
        (
            {"sample": {**SAMPLE, "dense_sample": True}},
            "one clip of a video, and this config makes 10.*none of frame_interval",
        ),
        ({"sample": {"name": "DecodeSampler", "num_frames": 8, "sampling_rate": 2}}, "has DecodeSampler"),
        ({"transform": SCALED[1:]}, "the pipeline does CenterCrop"),
        ({"transform": [{"Scale": {"short_size": 48, "fixed_ratio": False}}, *SCALED[1:]]}, "fixed_ratio"),
        ({"transform": [SCALED[0], {"TenCrop": {"target_size": 40}}, *SCALED[2:]]}, "config makes 10"),
        ({"transform": [*SCALED[:2], {"RandomHue": {"p": 1.0}}, *SCALED[2:]]}, "changes no colours"),
    ],
)
def test_what_paddlex_cannot_do_is_refused_with_the_reason(trained, tmp_path, valid, reason):
    with pytest.raises(ProgramError, match=reason):
        exported(trained("tsm"), tmp_path, **valid)
    assert not any(tmp_path.iterdir())


def test_other_programs_are_refused_with_the_reason(trained, tmp_path):
    for name, options, reason in [
        ("slowfast", {}, "this network is 3D"),
        ("several", {}, "it gives a video one class, by softmax"),
        ("tsm", {"input_dtype": "uint8"}, "leave out --uint8"),
        ("tsm", {"input_shape": [8, -1, -1]}, "the shape that the pipeline"),
    ]:
        with pytest.raises(ProgramError, match=reason):
            exported(trained(name), tmp_path, ExportOptions(**options, paddlex=PaddleXFolder()))
    run = trained("tsm")
    with pytest.raises(ProgramError, match="files named 'inference'"):
        export_model(as_paddlex(run), run.weights, tmp_path, "tsm", ExportOptions(paddlex=PaddleXFolder()))


def test_prediction_reads_folders_that_paddlex_wrote(trained, motion_videos, tmp_path):
    run = trained("tsm")
    files = exported(run, tmp_path)
    files.settings.write_text(WRITTEN_ELSEWHERE)
    predictor = Predictor(tmp_path / "inference")
    settings = predictor.recipe.settings
    assert (settings.model_name, settings.num_classes) == ("PP-TSMv2-LCNetV2_8frames_uniform", 8)
    assert settings.class_names == [*"abcdefg", "8"]
    assert predictor.recipe.dataset().pipeline.resample == "bilinear"
    (found,) = predictor.predict(sorted((motion_videos / "valid").glob("*.mp4"))[:1])
    assert found.logits.shape == (1, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "label_list: [a, b, c, d, e, f, g, 8]",
            "",
            r"inference.yml.* PostProcess.Topk.label_list: the names",
        ),
        ("transform_ops:", "ops:", "PreProcess.transform_ops: a list of operations"),
        ("- CenterCrop: {target_size: 40}", "- Flip: {}", "'Flip': expected one of ReadVideo"),
        ("- Scale: {short_size: 48}", "- Scale: 3", "'Scale': expected one of"),
        ("- Scale: {short_size: 48}", "- Scale: {short_size: many}", "short_size='many': expected int"),
        ("sample_type: uniform", "sample_type: dense", "sample_type is not uniform"),
        ("num_seg: 8", "num_seg: 0", "num_seg=0: expected int, from 1 to 65536"),
        ("std: [0.25, 0.25, 0.25]", "deviation: 1", "unknown key for Normalization"),
    ],
)
def test_a_wrong_settings_file_is_one_clear_error(tmp_path, old, new, message):
    path = tmp_path / "inference.yml"
    assert old in WRITTEN_ELSEWHERE
    path.write_text(WRITTEN_ELSEWHERE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_recipe(path)
