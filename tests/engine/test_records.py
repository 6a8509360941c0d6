"""Log line, metrics.jsonl, averages."""

import json
import re
import time
from dataclasses import replace

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import Distribution, Evaluator, MixedPrecision, Precision
from paddlevideo_fast.engine.callbacks import Callback, Recorder
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink
from paddlevideo_fast.engine.state import StepRecord, StepWindow
from paddlevideo_fast.extensions.report.drawings import curve_figures
from paddlevideo_fast.extensions.trackers.trackers import TrackedRun, VisualDL
from paddlevideo_fast.loader import DecodeFailure
from paddlevideo_fast.metrics import CenterCropMetric
from tests.support.fake_device import FakeDevice
from tests.support.gpu_amp import gpu_amp
from tests.support.small_runs import Changed


def test_the_log_line_is_paddlevideos(make_trainer, caplog):
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        make_trainer([Recorder([ConsoleSink()], interval=4)], epochs=1).fit()
    lines = [record.getMessage() for record in caplog.records if "train step" in record.getMessage()]
    number = r"\d+\.\d{5}"
    line = (  # of three classes, so without top5; what follows is ours
        rf"epoch:\[  1/1  \] train step:0    loss: {number} lr: 0\.100000 top1: {number} "
        rf"batch_cost: {number} sec, reader_cost: {number} sec, ips: {number} instance/sec, eta: "
    )
    assert len(lines) == 2
    # the first step starts workers and fills caches: its time says nothing about the steps to come
    norm = r", grad_norm: \d+\.\d+"
    assert re.fullmatch(line + "not known yet" + norm, lines[0]), lines[0]
    assert re.fullmatch(line.replace("step:0   ", "step:4   ") + r"0:00:0\d" + norm, lines[1]), lines[1]


def test_the_efficiency_is_what_the_processes_reach_of_as_many_alone(make_trainer, caplog):
    class Written(ConsoleSink):
        def write(self, record):
            records.append(record)
            super().write(record)

    class Four(Distribution):
        world_size = 4

    records = []
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        make_trainer(
            [Recorder([Written()], interval=4, one_process_ips=1000.0)], epochs=1, distribution=Four()
        ).fit()
    first = records[0]
    assert first["efficiency"] == first["ips"] / 4000.0
    assert f", efficiency: {first['efficiency']:.1%}" in caplog.text


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


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_valid_json(loss, tmp_path):
    sink = JsonLinesSink(tmp_path / "metrics.jsonl")
    sink.open(0, 0)
    sink.write({"kind": "train", "step": 1, "epoch": 1, "loss": 0.5, "num_skipped": 0})
    sink.write({"kind": "train", "step": 2, "epoch": 1, "loss": loss, "num_skipped": 1})
    sink.close()

    def refused(constant):
        raise ValueError(f"{constant} is no JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    records = [json.loads(line, parse_constant=refused) for line in text.splitlines()]
    assert [record["loss"] for record in records] == [0.5, None]
    assert [record["num_skipped"] for record in records] == [0, 1]
    assert curve_figures(records) == curve_figures(records[:1])


def test_visualdl_gets_every_number(make_trainer, tmp_path):
    from visualdl import LogReader

    board = VisualDL(TrackedRun("m", tmp_path, {}))
    make_trainer([Recorder([board], interval=3)], epochs=1).fit()
    files = list(board.folder.glob("vdlrecords*"))
    assert len(files) == 1
    reader = LogReader(file_path=str(files[0]))
    assert [point.id for point in reader.get_data("scalar", "train/loss")] == [1, 4]


def curves_in(folder):
    """Tag → [(step, value)] of the one event file of a folder, as VisualDL reads it."""
    from visualdl import LogReader

    (path,) = folder.glob("vdlrecords*")
    reader = LogReader(file_path=str(path))
    assert reader.get_tags()["hyper_parameters"] == ["hparam"]
    assert len(reader.get_data("hyper_parameters", "hparam")) == 1
    assert len(reader.get_data("meta_data", "meta_data_tag")) >= 1
    return {
        tag: [(point.id, point.value) for point in reader.get_data("scalar", tag)]
        for tag in reader.get_tags()["scalar"]
    }


@pytest.mark.parametrize("num_files", [0, 1, 2])
def test_visualdl_shows_what_metrics_jsonl_holds_and_what_follows(tmp_path, num_files):
    """Also where a start was killed while it wrote, and where earlier starts have left several files."""
    folder = tmp_path / "vdl"
    folder.mkdir()
    for number in range(num_files):
        (folder / f"vdlrecords.{number:010d}.log").write_bytes(bytes(range(100)))
    records = [{"kind": "train", "step": step, "loss": float(step)} for step in (1, 2)]
    records += [{"kind": "valid", "step": 2, "epoch": 1, "top1": 0.5, "loss": None}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    board = VisualDL(TrackedRun("m", tmp_path, {}, {"seed": 1}, "top1"))
    board.open(2, 1)
    board.write({"kind": "train", "step": 3, "loss": 3.0})
    curves = curves_in(folder)
    assert curves == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "valid/epoch": [(2, 1.0)],
        "valid/top1": [(2, 0.5)],
    }


def test_window_accuracy_against_brute_force():
    rng = np.random.default_rng(3)
    logits, labels = rng.standard_normal((64, 9)).astype("float32"), rng.integers(0, 9, 64)
    window, averages = StepWindow(Distribution()), {}
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
            return 2 * len(loader) + 1

        def epoch(self, epoch, start_batch=0):
            for number, batch in enumerate(loader.epoch(epoch)):
                failed = DecodeFailure(f"bad{number}.mp4", "failed", "cut short")
                batch.incidents = [failed, DecodeFailure.replaced("damaged.mp4", 2)]
                yield batch
                batch.incidents = [failed]
                yield batch  # another view
            none = batch.ids[:0]
            worse = DecodeFailure("worse.mp4", "failed", "empty")
            yield type(batch)(batch.clips[:0], batch.labels[:0], none, none, [worse])

    metrics = Evaluator(WithFailures(), trainer.preprocess, on_incidents=seen.append).run(
        trainer.model, CenterCropMetric()
    )
    assert (metrics["num_samples"], metrics["num_failed"], metrics["num_replaced"]) == (24, 7, 12)
    assert [(path, kind) for path, kind, *_ in seen[0]] == [
        ("bad0.mp4", "failed"),
        ("damaged.mp4", "replaced"),
    ]
    assert seen[-1] == [("worse.mp4", "failed", "empty", 0)]
    logits = trainer.model(trainer.preprocess(loader.clips)).numpy()
    assert metrics["top1"] == pytest.approx(np.mean(logits.argmax(1) == loader.labels))
    assert trainer.model.training


def test_replaced_frames_are_counted_and_shown_once_an_epoch(make_trainer, caplog):
    seen = []
    trainer = make_trainer([Recorder([ConsoleSink()])], on_incidents=seen.extend)
    loader = trainer.make_loader(None)

    def damaged(batch, epoch):
        frames = {"a.mp4": 1 + epoch, "b.mp4": 1}.items()
        yield replace(batch, incidents=[DecodeFailure.replaced(*each) for each in frames])

    trainer.make_loader = lambda phase: Changed(loader, damaged)
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        trainer.fit()
    ends = [record.getMessage() for record in caplog.records if "END epoch" in record.getMessage()]
    assert [re.search(r"sec, (\d+) damaged frames replaced$", line).group(1) for line in ends] == ["12", "18"]
    found = {(incident.path, incident.num_frames) for incident in seen}
    assert found == {("a.mp4", 1), ("a.mp4", 2), ("b.mp4", 1)}


class Clock:
    """A clock that only stands still unless it is told to go on."""

    def __init__(self):
        self.now_sec = 0.0

    def __call__(self):
        return self.now_sec


@pytest.mark.parametrize("accumulate_steps", [1, 3])
def test_reader_cost_is_the_wait_for_data_and_nothing_else(make_trainer, monkeypatch, accumulate_steps):
    """The loader takes 3 s a batch, the host 5 s a micro-batch, the device ends 7 s after a record is due."""
    clock, records = Clock(), []
    monkeypatch.setattr(time, "perf_counter", clock)

    class Kept(Sink):
        def write(self, record):
            records.append(record)

    trainer = make_trainer([Recorder([Kept()], interval=1)], epochs=1, accumulate_steps=accumulate_steps)
    loader, drain, preprocess = trainer.make_loader(None), trainer.drain, trainer.preprocess

    def slow(batch, epoch):
        clock.now_sec += 3
        yield batch

    def slow_loader(phase):
        return Changed(loader, slow)

    def compute(clips):
        clock.now_sec += 5
        return preprocess(clips)

    def wait_for_device():
        clock.now_sec += 7
        return drain()

    trainer.make_loader, trainer.preprocess, trainer.drain = slow_loader, compute, wait_for_device
    trainer.fit()
    steps = [record for record in records if record["kind"] == "train"]
    assert len(steps) == 6 // accumulate_steps
    for step in steps:
        assert step["reader_cost"] == 3 * accumulate_steps
        assert step["batch_cost"] == 8 * accumulate_steps + 7
        assert step["ips"] == 4 * accumulate_steps / step["batch_cost"]


def scaling_by(scale):
    with gpu_amp():
        precision = MixedPrecision("O1", "float16")
    precision.set_state_dict({**precision.state_dict(), "scale": [scale]})
    return precision


@pytest.mark.parametrize("precision", [Precision(), scaling_by(1024.0)])
def test_the_norm_of_the_gradients_is_that_before_clipping(make_trainer, precision):
    class Kept(Sink):
        def write(self, record):
            records.append(record)

    class Watching(Callback):
        def step_begin(self, trainer):
            asked.append(trainer.wants_gradient_norm)

    records, asked, norms = [], [], []
    step = precision.optimizer_step

    def watched(optimizer, model):
        optimizer._grad_clip = paddle.nn.ClipGradByGlobalNorm(1e-3)
        gradients = [each.grad.numpy() / np.float32(precision.scale) for each in model.parameters()]
        norms.append(np.sqrt(sum((each.astype("float64") ** 2).sum() for each in gradients)))
        return step(optimizer, model)

    precision.optimizer_step = watched
    callbacks = [Recorder([Kept()], interval=4), Watching()]
    make_trainer(callbacks, epochs=1, precision=precision, accumulate_steps=1).fit()
    assert asked == [True, False, False, False, True, False]  # it costs time, so not in each step
    found = [record["grad_norm"] for record in records if record["kind"] == "train"]
    np.testing.assert_allclose(found, [norms[0], norms[4]], rtol=1e-5)
    assert min(found) > 0.01


def test_on_a_gpu_a_record_has_its_memory(make_trainer, caplog, monkeypatch):
    class Written(ConsoleSink):
        def write(self, record):
            records.append(record)
            super().write(record)

    records, cuda = [], paddle.device.cuda
    make_trainer([Recorder([Written()])], epochs=1).fit()
    assert not any(name.startswith("memory") for name in records.pop(0))
    for name, gib in (("memory_allocated", 1.5), ("memory_reserved", 4), ("max_memory_allocated", 3.25)):
        monkeypatch.setattr(cuda, name, lambda number, gib=gib: int(gib * 2**30) if number == 0 else 0)
    with caplog.at_level("INFO", logger="paddlevideo_fast"), FakeDevice().installed():
        make_trainer([Recorder([Written()])], epochs=1).fit()
    found = {name: value for name, value in records[1].items() if name.startswith("memory")}
    assert found == {"memory_mb": 1536, "memory_reserved_mb": 4096, "memory_peak_mb": 3328}
    assert ", memory: 1.5 GiB, reserved: 4.0 GiB, peak: 3.2 GiB" in caplog.text
