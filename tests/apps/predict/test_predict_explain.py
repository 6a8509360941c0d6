"""`predict --explain` on real encoded videos, of weights and of exported programs."""

import copy
import shutil

import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.apps.predict import explanations
from paddlevideo_fast.apps.predict.explanations import by_occlusion
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.extensions.report.explain import by_grad_cam
from paddlevideo_fast.modeling import Preprocess
from tests.support.json_lines import entries_of

FLOAT32, UINT8 = ExportOptions("float32"), ExportOptions("uint8")


@pytest.fixture(autouse=True)
def large_boxes(monkeypatch):
    """Occlusion by 27 boxes."""
    whole = explanations.occlusion
    monkeypatch.setattr(
        explanations, "occlusion", lambda *args, **options: whole(*args, box=(0.5,) * 3, **options)
    )


@pytest.fixture
def videos(motion_videos, tmp_path):
    """Two clips, one of them in a folder, and a file that is no video."""
    folder = tmp_path / "videos"
    (folder / "more").mkdir(parents=True)
    shutil.copy(motion_videos / "valid/000000.mp4", folder / "a.mp4")
    shutil.copy(motion_videos / "valid/000001.mp4", folder / "more/b.mp4")
    (folder / "text.mp4").write_text("no video")
    return folder


def rows_of(path):
    """The frames and the heat of a picture, below its title; what is white around them is cut off."""
    picture = cv2.imread(str(path)).astype(int)
    assert min(picture.shape[:2]) > 200
    full = np.flatnonzero((picture.min(axis=2) < 250).mean(axis=1) > 0.8)
    lower = full[np.flatnonzero(np.diff(full) > 1)[-1] + 1] if (np.diff(full) > 1).any() else None
    assert lower is not None, "one row of frames"
    height = min(lower - full[0], full[-1] + 1 - lower) - 4
    return picture[full[0] : full[0] + height], picture[lower : lower + height]


def test_weights_are_explained_by_grad_cam_and_programs_by_occlusion(trained, predict, videos, tmp_path):
    run, folder, out = trained("tsm"), tmp_path / "run", tmp_path / "pictures"
    folder.mkdir()
    shutil.copy(run.weights, folder / "TSM_motion_best.pdparams")
    copy.deepcopy(run.cfg).save(folder / "config.yaml")
    pictures = {}
    for model, name in ((folder, "weights"), (folder / "inference", "program")):
        words = ("-i", videos, "--json", "-b", 2, "--num_readers", 2, "--explain", out / name)
        code, text, err = predict(model, *words)
        assert (code, err.count("text.mp4: cannot be decoded")) == (1, 1)
        entries = entries_of(text)
        assert [entry.get("explanation") for entry in entries] == [
            f"{out}/{name}/a.png",
            f"{out}/{name}/more/b.png",
            None,
        ]
        pictures[name] = [rows_of(entry["explanation"]) for entry in entries[:2]]
    for (frames, heat), (same, other) in zip(*pictures.values()):
        assert np.abs(frames - same).max() == 0
        assert np.abs(frames - heat).mean() > 5
        assert np.abs(heat - other).mean() > 1  # by another method


def test_gradcam_of_a_program_and_other_wrong_flags(exported, predict, videos):
    program = exported("tsm", FLOAT32).program
    for flags, words in (
        (("--explain", "x", "--explain_by", "gradcam"), "gradcam needs the network; give MODEL as weights"),
        (("--explain", "x", "--window_sec", "1"), "--explain: explains whole files; leave out --window_sec"),
        (("--explain", "x", "--enable_benchmark", "1"), "leave out --window_sec, --annotated and --explain"),
        (("--explain_by", "occlusion"), "--explain_by: needs --explain"),
    ):
        code, out, err = predict(program, "-i", videos, *flags)
        assert (code, out) == (2, "")
        assert words in err
    code, _, err = predict(program, "-i", "-", "--window_sec", "1", "--explain", "x")
    assert (code, "--explain: is for files, not for live input" in err) == (2, True)


def test_a_picture_that_cannot_be_made_is_an_error_of_its_file(exported, predict, videos):
    program = exported("tsm", UINT8).program
    blocked = videos.parent / "pictures"
    (blocked / "a.png").mkdir(parents=True)
    code, out, err = predict(program, "-i", videos, "--json", "--explain", blocked)
    entries = entries_of(out)
    assert code == 1
    assert "a.png: cannot be written" in entries[0]["error"]
    assert entries[1]["explanation"] == f"{blocked}/more/b.png"
    assert "explanation" not in entries[0]


@pytest.mark.parametrize("options", [FLOAT32, UINT8], ids=lambda options: options.input_dtype)
def test_a_program_gives_the_scores_of_clips(exported, motion_videos, options):
    predictor = Predictor(exported("tsm", options).program)
    path = motion_videos / "valid/000000.mp4"
    pixels = predictor.pixels_of(path)
    assert (pixels.shape, pixels.dtype) == ((8, 56, 56, 3), np.uint8)
    scores = predictor.scores_of(np.stack([pixels, pixels[::-1]]))
    (prediction,) = predictor.predict([path])
    np.testing.assert_allclose(scores[0], prediction.scores, rtol=1e-4, atol=1e-6)
    assert not np.allclose(scores[0], scores[1], atol=1e-6)


@pytest.mark.slow
def test_the_first_of_several_views_in_a_row_is_explained(trained, tmp_path, motion_videos):
    """Three crops, which the program takes as one clip."""
    run = trained("tsm")
    cfg = copy.deepcopy(run.cfg)
    cfg["PIPELINE"]["valid"]["transform"][:1] = [
        {"Scale": {"short_size": 56}},
        {"UniformCrop": {"target_size": 56}},
    ]
    predictor = Predictor(export_model(cfg, run.weights, tmp_path).program)
    clip = predictor.pixels_of(motion_videos / "valid/000000.mp4")
    assert len(clip) == 24
    assert by_occlusion(predictor)(clip, 1).shape == (8, 56, 56)
    heat = by_grad_cam(run.model, Preprocess(*run.normalization, "NTCHW"))(clip[:8], 1)
    assert heat.shape == (8, 56, 56)
