"""Training, test and wrong inputs of videos that show two motions at once."""

import csv
import json
import re

import numpy as np
import pytest

pytestmark = pytest.mark.annex  # the report writes what they read

SEVERAL = {
    "METRIC: {{name: CenterCropMetric}}": "METRIC: {{name: MeanAveragePrecision}}\nMIX: {{name: VideoMix}}",
    "num_classes: 4,": "num_classes: 8, activation: sigmoid, ls_eps: 0.1,",
    "train.list": "train.jsonl",
    "valid.list": "valid.jsonl",
    "report: false": "report: true",
}


@pytest.fixture(scope="module")
def text(tiny_text):
    """A config to fill in, `text.format(data=..., output=...)`."""
    found = tiny_text
    for before, after in SEVERAL.items():
        assert before in found
        found = found.replace(before, after)
    return found


@pytest.fixture(scope="module")
def two_motions(tmp_path_factory, run_script):
    """72 training clips and 12 for validation."""
    folder = tmp_path_factory.mktemp("two_motions") / "set"
    options = ("--motions=2", "--train=72", "--valid=12", "--size=32", "--frames=8", "--workers=1")
    run_script("data/make_motion_dataset.py", "--output", folder, *options)
    return folder


@pytest.fixture(scope="module")
def whole(text, two_motions, run_main, tmp_path_factory):
    """A run of two epochs that nothing interrupts: its config, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "several.yaml").write_text(text.format(data=two_motions, output=folder / "out"))
    done = run_main(folder / "several.yaml")
    return folder / "several.yaml", done.stderr


@pytest.mark.slow
@pytest.mark.smoke
def test_the_log_the_records_and_the_page_show_map(whole, records):
    config, printed = whole
    out = config.parent / "out"
    assert re.search(r"train step:0    loss: \S+ lr: \S+ hit1: \d\.\d{5} batch_cost", printed)
    assert re.search(
        r"val loss_avg: \S+ mAP_avg: \S+ mAP_micro_avg: \S+ hit1_avg: .*; best epoch so far: \d+ \(mAP: ",
        printed,
    )
    assert "top1" not in printed
    valid = [record for record in records(out) if record["kind"] == "valid"]
    assert valid[-1]["best_mAP"] == max(record["mAP"] for record in valid)
    page = (out / "report.html").read_text()
    for words in ("Thresholds, all classes", "curve-valid-mAP", "mAP_micro", "best threshold"):
        assert words in page
    assert "Confusion matrix" not in page


def test_a_test_writes_the_precision_of_each_class(whole, run_main, records):
    config, _ = whole
    out = config.parent / "out"
    run_main(config, "--test", "-w", str(out / "tiny_best.pdparams"))
    metrics = json.loads((out / "test" / "metrics.json").read_text())
    best = max(record["mAP"] for record in records(out) if record["kind"] == "valid")
    assert metrics["mAP"] == pytest.approx(best, abs=1e-9)
    with (out / "test" / "per_class.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert np.mean([float(row["AP"]) for row in rows if row["AP"]]) == pytest.approx(metrics["mAP"], abs=1e-5)
    with (out / "test" / "thresholds.csv").open() as file:
        curve = [row for row in csv.DictReader(file) if row["label"] == "0"]
    assert [float(row["threshold"]) for row in curve] == pytest.approx(np.linspace(0, 1, 101))
    assert float(curve[0]["recall"]) == 1
    lines = (out / "test" / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 12
    for line in lines:
        entry = json.loads(line)
        assert len(entry["label"]) == len(entry["name"]) == 2
        assert all(one["score"] >= 0.5 for one in entry["predicted"])
    assert not (out / "test" / "confusion.csv").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["METRIC={name: CenterCropMetric}"],
            "METRIC.name=CenterCropMetric: is for heads with softmax, and the head has sigmoid; take MeanAv",
        ),
        (
            ["MODEL.head.activation=softmax"],
            "METRIC.name=MeanAveragePrecision: is for heads with sigmoid, and the head has softmax; take C",
        ),
        (
            ["MODEL.head.activation=softmax", "METRIC={name: CenterCropMetric}"],
            "train.jsonl:1: has 2 labels, and with a softmax a video has one class: write one label, or set",
        ),
        (
            ["MODEL.head.loss_cfg={name: CrossEntropyLoss}"],
            "MODEL.head.activation=sigmoid: CrossEntropyLoss is a loss of softmax; set activation to softmax",
        ),
        (["MODEL.head.num_classes=7"], "label 7 with num_classes 7: labels go from 0 to 6"),
    ],
)
def test_wrong_inputs_are_told_in_one_message(whole, assert_refused, tmp_path, overrides, message):
    assert_refused(whole[0], message, f"output_dir={tmp_path / 'out'}", *overrides)
