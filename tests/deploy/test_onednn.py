"""Prediction through oneDNN, in a process of its own: what goes wrong in Paddle there is a crash."""

from __future__ import annotations

import json

import pytest

from paddlevideo_fast.deploy.export import ExportOptions, export_model
from paddlevideo_fast.deploy.predictor import Predictor


def test_a_network_with_leaky_relu_predicts_through_onednn(trained, motion_videos, run_script, tmp_path):
    run = trained("pptsm")
    export_model(run.cfg, run.weights, tmp_path, "pptsm", ExportOptions("float32"))
    video = sorted((motion_videos / "valid").glob("*.mp4"))[0]
    words = ("-i", video, "--model_file", tmp_path / "pptsm", "--use_gpu", "False", "--json", "--top_k", 8)
    shown = run_script("tools/predict.py", *words, "--enable_mkldnn", "True").stdout
    found = json.loads(shown[shown.index("[\n") :])  # behind lines of Paddle's own
    scores = {top["class_id"]: top["score"] for top in found[0]["top"]}
    (expected,) = Predictor(tmp_path / "pptsm").predict([video])
    assert [scores[number] for number in range(8)] == pytest.approx(expected.scores.tolist(), abs=1e-5)
