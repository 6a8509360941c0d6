"""Log line, metrics.jsonl, averages."""

import json
import logging
import re

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import evaluate
from paddlevideo_fast.engine.callbacks import Recorder
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, VisualDLSink
from paddlevideo_fast.engine.state import StepRecord, StepWindow
from paddlevideo_fast.metrics import CenterCropMetric


def test_the_log_line_is_paddlevideos(make_trainer, caplog):
    logging.getLogger("paddlevideo_fast").propagate = True
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        make_trainer([Recorder([ConsoleSink()], interval=4)], epochs=1).fit()
    lines = [record.getMessage() for record in caplog.records if "train step" in record.getMessage()]
    number = r"\d+\.\d{5}"
    line = (
        rf"epoch:\[  1/1  \] train step:0    loss: {number} lr: 0\.100000 top1: {number} top5: {number} "
        rf"batch_cost: {number} sec, reader_cost: {number} sec, ips: {number} instance/sec, eta: 0:00:00"
    )
    assert len(lines) == 2
    assert re.fullmatch(line, lines[0]), lines[0]


@pytest.mark.parametrize("half_line", ["", '{"step": 3, "ki'])
def test_metrics_jsonl_repeats_no_step_after_a_resume(tmp_path, half_line):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.open(0, 0)
    for step in (1, 2, 3):
        sink.write({"kind": "train", "step": step})
    sink.write({"kind": "valid", "step": 2, "epoch": 1})  # the run died before the epoch's checkpoint
    sink.close()
    with path.open("a") as file:
        file.write(half_line)
    sink.open(2, 0)
    sink.write({"kind": "train", "step": 3, "again": True})
    sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[-1]["again"]


def test_visualdl_gets_every_number(make_trainer, tmp_path):
    from visualdl import LogReader

    make_trainer([Recorder([VisualDLSink(tmp_path)], interval=3)], epochs=1).fit()
    files = list(tmp_path.glob("vdlrecords*"))
    assert len(files) == 1
    reader = LogReader(file_path=str(files[0]))
    assert [point.id for point in reader.get_data("scalar", "train/loss")] == [1, 4]


def test_window_accuracy_against_brute_force():
    rng = np.random.default_rng(3)
    logits, labels = rng.standard_normal((64, 9)).astype("float32"), rng.integers(0, 9, 64)
    window, averages = StepWindow(), {}
    window.add(StepRecord(1, paddle.to_tensor(0.5), [paddle.to_tensor(logits)], [labels], list(range(64))))
    window.drain(averages, None)
    order = np.argsort(-logits, axis=1)
    assert averages["top1"].mean == np.mean(order[:, 0] == labels)
    assert averages["top5"].mean == np.mean((order[:, :5] == labels[:, None]).any(axis=1))


def test_evaluation_counts_what_does_not_decode(make_trainer):
    trainer = make_trainer(dropout=0.0)
    loader = trainer.make_loader(None)
    seen = []

    class WithFailures:
        def __len__(self):
            return len(loader) + 1

        def epoch(self, epoch, start_batch=0):
            for batch in loader.epoch(epoch):
                batch.failures = [("bad.mp4", "cut short")]
                yield batch
            none = batch.ids[:0]
            yield type(batch)(batch.clips[:0], batch.labels[:0], none, none, [("worse.mp4", "empty")])

    metrics = evaluate(trainer.model, WithFailures(), trainer.preprocess, CenterCropMetric(), seen.extend)
    assert (metrics["num_samples"], metrics["num_failed"]) == (24, 7)
    assert seen[-1] == ("worse.mp4", "empty")
    logits = trainer.model(trainer.preprocess(loader.clips)).numpy()
    assert metrics["top1"] == pytest.approx(np.mean(logits.argmax(1) == loader.labels))
    assert trainer.model.training
