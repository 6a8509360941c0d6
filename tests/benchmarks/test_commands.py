"""Every command of tools/benchmark.py runs and writes what it says; its numbers depend on the machine."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
import yaml

from benchmarks import (
    cpu,
    cpu_child,
    exactness,
    gpu,
    live,
    loader,
    paddlevideo,
    paddlevideo_runs,
    pipeline,
    programs,
    reader,
    scale,
    train,
    trainer,
)
from benchmarks.measuring import ROOT, as_text, in_turn, tsm_pipeline, write_clips
from paddlevideo_fast.apps.doctor.device_check import no_gpu
from paddlevideo_fast.apps.predict.program import ProgramOptions
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import BadSampleShareError, DistributionError, PaddleVideoFastError, UsageError
from paddlevideo_fast.machine import Gpu, num_cores
from paddlevideo_fast.sources.remote import block_cache
from tests.support.forking import Fresh
from tests.support.onnx_packages import needs_onnx


def test_every_benchmark_has_a_module_with_help(command, capsys):
    for name in command("benchmark").BENCHMARKS:
        with pytest.raises(SystemExit) as ended:
            command("benchmark").main([name, "--help"])
        assert ended.value.code == 0
        first, shown = importlib.import_module(f"benchmarks.{name}").__doc__.split(), capsys.readouterr().out
        assert shown.split()[:3] == first[:3]
        assert "what you may want" in shown


def test_an_unknown_benchmark_is_refused(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command("benchmark").main(["teleport"])
    assert ended.value.code == 2
    assert "shift" in capsys.readouterr().err


def test_wrong_input_is_one_message(command, capsys):
    assert command("benchmark").main(["train", "-c", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
    assert command("benchmark").main(["reader", "--rounds", "0"]) == 2
    assert "'0' is no whole number from 1 on" in capsys.readouterr().err


def test_without_a_gpu_its_benchmarks_are_one_message(command, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.programs.installed_gpus", list)
    monkeypatch.setattr("benchmarks.dali.installed_gpus", list)
    for words in (["programs", "--gpu"], ["dali", "--gpu", "0", "a.mp4"]):
        assert command("benchmark").main(words) == 2
        assert "the driver of NVIDIA lists" in capsys.readouterr().err


@pytest.mark.slow
@needs_onnx
def test_programs_on_a_gpu_are_timed_beside_the_cpu(monkeypatch):
    """Rehearsed on the CPU, with a small network."""
    monkeypatch.setattr(programs, "installed_gpus", lambda: [Gpu("a card", 90)])
    monkeypatch.setattr(programs, "ProgramOptions", lambda providers: ProgramOptions(providers=("cpu",)))
    monkeypatch.setattr(programs, "NETWORKS", {"small": ["../quickstart/tsm_motion.yaml"]})
    monkeypatch.setattr(programs, "write_clips", lambda folder, num_clips: write_clips(folder, num_clips, 4))
    result = programs.run(["small"], gpu=True)
    row = result["networks"]["small"]
    assert result["card"] == "a card"
    assert {batch: [*ms] for batch, ms in row["ms"].items()} == {
        "1": ["CPU", "CUDA", "CUDA, 16 bits"],
        "8": ["CUDA", "CUDA, 16 bits"],
    }
    assert row["deviation"]["CUDA"] == 0 < row["deviation"]["CUDA, 16 bits"] < 0.01
    assert row["new_shape_ms"].keys() == {"HEURISTIC", "EXHAUSTIVE"}
    assert min(row["new_shape_ms"].values()) > 0


@pytest.mark.slow
@needs_onnx
def test_windows_of_a_long_video_are_read_ahead_and_in_turn(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "NETWORKS", {"small": ["../quickstart/tsm_motion.yaml"]})
    monkeypatch.setattr(programs, "write_clips", lambda folder, num_clips: write_clips(folder, num_clips, 4))
    result = programs.run(["small"], long=write_clips(tmp_path, 2, 40), seconds=9, tiles=2, rounds=2)
    assert [(row["program"], row["side"]) for row in result["rows"]] == [
        (program, side) for program in ("onnxruntime", "Paddle") for side in ("in turn", "ahead")
    ]
    assert {row["windows"] for row in result["rows"]} == {3}
    assert [row["ratio"] for row in result["rows"][::2]] == [1, 1]
    assert all(row["spread"][0] <= row["sec"] <= row["spread"][1] for row in result["rows"])


def test_no_side_is_favoured():
    assert list(in_turn(["b", "a"], 2, warmup=1)) == [
        *[(-1, "b"), (-1, "a")],
        *[(0, "a"), (0, "b")],
        *[(1, "b"), (1, "a")],
    ]


def test_a_result_is_recorded_with_its_environment(measure, tmp_path):
    file = tmp_path / "new" / "shift.json"
    result = measure("shift", "--shape", 8, 8, 4, 4, "--repeats", 1, "--save", file)
    record = json.loads(file.read_text())
    assert record["result"] == result
    assert list(record) == ["command", "environment", "date", "revision", "result"]
    assert record["environment"]["machine"].startswith(f"{num_cores()} cores")
    assert record["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.smoke
def test_shift(measure, command, capfd):
    arguments = ["shift", "--shape", 8, 8, 4, 4, "--shape", 16, 8, 2, 2, "--repeats", 2]
    result = measure(*arguments)
    assert [(row["shape"], row["pass"], row["side"]) for row in result["rows"]] == [
        (shape, passes, side)
        for shape in ([8, 8, 4, 4], [16, 8, 2, 2])
        for passes in ("forward", "forward+backward")
        for side in ("ours", "paddle", "composed")
    ]
    assert command("benchmark").main(list(map(str, arguments))) == 0
    device, *_, head, first = capfd.readouterr().out.splitlines()[:7]
    assert device == "device: cpu"
    assert head.split() == ["shape", "pass", "side", "ms", "speedup", "mib"]
    assert first.startswith("8, 8, 4, 4   forward           ours")


def test_a_result_is_shown_as_text():
    """Single values come first; lists and mappings of rows are tables with the keys as their heads."""
    result = {
        "device": "cpu",
        "spread": [0.12345, 12345.6],
        "rows": [{"name": "a", "sec": 0.5}, {"name": "longer", "error": None}],
        "networks": {"tsm": {"1": {"now": {"step": [1.0, 2.0]}}}},
        "sides": {"plain": {"sec": 1.0}, "other": {"sec": 2.0}},
        "clips_per_sec": {"one": 4.0, "all": 7.0},
    }
    assert as_text(result) == "\n".join(
        [
            "device: cpu",
            "spread: 0.1235, 12346",
            "",
            "rows",
            "name    sec  error",
            "a       0.5",
            "longer       -",
            "",
            "networks, tsm, 1",
            "     step",
            "now  1, 2",
            "",
            "sides",
            "       sec",
            "plain  1",
            "other  2",
            "",
            "clips_per_sec",
            "one: 4",
            "all: 7",
        ]
    )


def test_remote(measure, monkeypatch):
    monkeypatch.setattr(block_cache, "_kept", None)
    options = ["--videos", 24, "--rounds", 1, "--step-ms", 1, "--workers", 0, "--delay-ms", 1]
    result = measure("remote", *options)
    local, ahead, asked, again = result["rows"]
    assert [row["side"] for row in result["rows"]] == ["local", "prefetch", "no prefetch", "second epoch"]
    assert local["mb_fetched"] == 0
    assert ahead["mb_fetched"] == pytest.approx(asked["mb_fetched"])  # each block once, whoever fetches it
    assert 0 < ahead["mb_fetched"] <= 1.01 * result["mb"]
    assert again["mb_fetched"] < 0.2 * ahead["mb_fetched"]


@pytest.mark.smoke
def test_trainer(measure):
    result = measure("trainer", "--steps", 2, "--rounds", 3, "--batch-size", 1)
    assert result["bare_steps_per_sec"] > 0 < result["trainer_steps_per_sec"]
    low, high = result["cost_spread"]
    assert low <= result["cost"] <= high


@pytest.mark.slow
def test_live():
    result = live.run(4 / 60, width=64, height=48)
    assert result["fast"]["num_windows"] >= 3
    assert result["slow"]["num_skipped"] > 0
    assert result["fast"]["seconds"] == 4


@pytest.mark.slow
def test_saving(measure):
    small = ["--parameters", 10_000, "--rounds", 1, "--kills", 3, "--killed-parameters", 200_000]
    result = measure("saving", *small)
    assert result["plain_sec"] > 0 < result["background_sec"]
    kills = result["kills"]
    assert kills["checkpoints"] == kills["whole"] >= 3
    assert kills["exact"]
    assert kills["count"] == 3


@pytest.mark.parametrize(("flags", "batches"), [([], "real"), (["--synthetic"], "synthetic")])
def test_train(config, measure, flags, batches):
    result = measure("train", "-c", config(), "--steps", 3, "--warmup", 1, *flags)
    assert (result["batches"], result["steps"]) == (batches, 3)
    assert result["clips_per_sec"] == pytest.approx(4 / result["step_sec"])
    assert 0 <= result["wait_share"] < 1
    assert result["memory_mib"] > 0


def test_train_without_a_clip_that_decodes(config, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    (tmp_path / "train.list").write_text("a.mp4 0\n" * 4)
    cfg = load_config(str(config(data=tmp_path, list=tmp_path / "train.list")))
    with pytest.raises(BadSampleShareError, match=r"train\.list .*a\.mp4"):
        train.training_rate(cfg, synthetic=True, steps=1, warmup=1)


@pytest.mark.slow
def test_settings_are_compared(config, measure, command, capfd):
    options = ["train", "-c", config(), "--steps", 1, "--warmup", 1, "--rounds", 1]
    result = measure(*options, "--side", "num_threads=1", "--side", "num_threads=2", "val_interval=2")
    first, second = result["rows"]
    assert (first["side"], second["side"]) == ("num_threads=1", "num_threads=2 val_interval=2")
    assert first["ratio"] == 1
    assert second["ratio"] == pytest.approx(second["clips_per_sec"] / first["clips_per_sec"])
    assert first["memory_mib"] > 0
    assert command("benchmark").main([*map(str, options), "--side", "no=1"]) == 2
    error = capfd.readouterr().err
    assert "a measuring process ended with code 2:" in error
    assert "no: unknown key" in error


@pytest.fixture
def forked(monkeypatch, template):
    """Has the processes of `cpu` and `gpu` forked from one that has imported Paddle."""

    def json_of_fork(words, **variables):
        given = {name: value for name, value in variables.items() if value is not None}
        done = template.run(words[1:], ROOT, {**os.environ, **given})
        if done.returncode:
            raise PaddleVideoFastError(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    monkeypatch.setattr(cpu, "json_of_process", json_of_fork)
    monkeypatch.setattr(train, "json_of_process", json_of_fork)


def test_every_setting_of_gpu_fits_its_networks():
    for setting in gpu.SETTINGS.values():
        for network in setting.networks:
            load_config(gpu.NETWORKS[network], ["amp=true", *setting.override])
    assert {name for setting in gpu.SETTINGS.values() for name in setting.networks} == gpu.NETWORKS.keys()


def test_gpu_is_rehearsed_on_the_cpu(measure, command, forked, monkeypatch, capfd):
    monkeypatch.setitem(gpu.SETTINGS, "wrong", gpu.Setting(["no=1"]))
    options = ["--steps", 1, "--warmup", 1, "--networks", "tsn"]
    result = measure("gpu", "--rehearse", *options, "--settings", "reading videos", "wrong")
    row, wrong = result["rows"]
    assert (row["network"], row["setting"], row["ratio"]) == ("tsn", "reading videos", 1)
    assert row["clips_per_sec"] > 0 <= row["wait_share"] < 1
    assert wrong.keys() == {"network", "setting", "error"}
    assert "no: unknown key" in wrong["error"]
    assert result["paddle"] == paddle.__version__
    if no_gpu():
        assert command("benchmark").main(["gpu", *map(str, options)]) == 2
        assert "--rehearse tries the benchmark on the CPU" in capfd.readouterr().err


@pytest.mark.slow
def test_gpu_measures_every_network(measure, forked):
    result = measure("gpu", "--rehearse", "--steps", 1, "--warmup", 1, "--settings", "defaults")
    assert {row["network"]: row.get("ratio") for row in result["rows"]} == dict.fromkeys(gpu.NETWORKS, 1.0)


@pytest.mark.slow
@needs_onnx
def test_runtimes_of_exported_networks(measure, forked):
    result = measure("cpu", "--runtimes", "--networks", "x3d_s", "--threads", 1, "--rounds", 1)
    assert set(result["networks"]["x3d_s"]["1"]) == set(cpu_child.RUNTIMES)
    assert result["networks"]["x3d_s"]["1"]["network"]["predict"][0] > 0


@pytest.mark.slow
def test_cpu(measure, forked):
    result = measure("cpu", "--networks", "x3d_s", "--threads", 1, "--rounds", 1)
    measured = result["networks"]["x3d_s"]["1"]
    assert set(measured) == {"now"}
    assert all(len(sides["step"]) == len(sides["predict"]) == 2 for sides in measured.values())


def test_a_process_of_cpu_that_measures_nothing_is_an_error(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('no room')")
    monkeypatch.setattr(cpu, "_CHILD", child)
    with pytest.raises(PaddleVideoFastError, match="code 1:\nno room"):
        cpu.run(["x3d_s"], [1], rounds=1)


def test_operators_of_cpu(monkeypatch):
    shapes = {"GELU": ((2, 3, 8), {}), "conv": ((1, 3, 2, 16, 16), {"out": 4, "kernel": (3, 3, 3)})}
    monkeypatch.setattr(cpu_child, "_SHAPES", shapes)
    assert set(cpu_child._ours_operators()) == set(shapes)


@pytest.mark.slow
def test_scale(measure):
    result = measure("scale", "--batch-size", 1, "--width", 4, "--steps", 2, "--rounds", 3)
    assert result["clips_per_sec"]["one"] > 0 < result["clips_per_sec"]["all"]
    low, high = result["speedup_spread"]
    assert low <= result["speedup"] <= high


def test_processes_of_scale_that_fail_are_one_error_with_their_output(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DistributionError, match="ended with code 3:\nno room"):
        scale.run(processes=2, batch_size=1, width=4, steps=1, rounds=1)


@pytest.mark.smoke
def test_reader(measure, make_clip, tmp_path):
    for folder in ("clips", "prepared"):
        make_clip(tmp_path / folder / "b_frames.mp4", 30, bframes=2)
    folders = ("--clips", tmp_path / "clips", "--prepared", tmp_path / "prepared")
    result = measure("reader", *folders, "--rounds", 2)
    has_decord = importlib.util.find_spec("decord") is not None
    readers = set(reader.READERS) - (set() if has_decord else {reader.BASELINE})
    for pattern in reader.PATTERNS:
        rows = [row for row in result["rows"] if row["pattern"] == pattern]
        assert {row["reader"] for row in rows} == readers
        assert [(row["error"], row["wrong"]) for row in rows] == [(None, 0)] * len(rows)
    means = result["means"]["32x2"]["as_is"]
    assert set(means) == (readers if has_decord else set())


def test_other_codecs(measure, monkeypatch, make_clip, tmp_path):
    make_clip(tmp_path / "clip.mp4", 12)
    monkeypatch.setattr(reader, "CODECS", {"MJPEG": reader.CODECS["MJPEG"]})
    result = measure("reader", "--clips", tmp_path, "--codecs", "--rounds", 1)
    ours = [row for row in result["rows"] if row["reader"] == "ours" and "MJPEG" in row["clip"]]
    assert [(row["clip"], row["wrong"], row["error"]) for row in ours] == [("clip, MJPEG.avi", 0, None)] * 2
    assert {row["clip"] for row in result["rows"]} == {"clip.mp4", "clip, MJPEG.avi"}


@pytest.mark.slow
@pytest.mark.smoke
def test_exactness(measure, capfd):
    names = ("h264.mp4", "h264_b_frames.avi", "h264_turned_90.mov")
    result = measure("exactness", *(part for name in names for part in ("--clip", name)))
    assert capfd.readouterr().err == ""
    rows = result["rows"]
    assert [(row["clip"], row["frames"]) for row in rows] == [(name, 60) for name in names]
    for row in rows:
        assert row["readers"]["ours"] == {"announced": 60, "wrong": 0, "errors": 0, "failure": None}
        assert row["readers"]["cv2 sequence"]["wrong"] == 0
    by_decord = [row["readers"]["decord"] for row in rows]
    assert by_decord[0]["wrong"] == 0 < by_decord[1]["wrong"] < 60
    assert result["sums"]["decord"]["wrong"] == sum(tally["wrong"] for tally in by_decord)
    assert (result["num_frames"], result["sums"]["ours"]["wrong"]) == (180, 0)
    assert list(result["sums"]) == list(exactness._READERS)


@pytest.mark.slow
@pytest.mark.smoke
def test_pipeline(measure, make_clip, run_script, tmp_path):
    clips, prepared, packed = (tmp_path / name for name in ("clips", "prepared", "packed"))
    for name in ("one", "two"):
        make_clip(clips / f"{name}.mp4", 40, size=(144, 128))
        make_clip(prepared / f"{name}.mkv", 40, size=(144, 128), gop=6)
    (tmp_path / "list.txt").write_text("one.mp4 0\ntwo.mp4 0\n")
    options = ("--list", tmp_path / "list.txt", "--data_prefix", clips, "--output", packed)
    run_script("data/pack_frames.py", *options)
    folders = ("--prepared", prepared, "--packed", packed)
    several = ("--clips-per-video", 3)
    result = measure("pipeline", *sorted(clips.iterdir()), *folders, *several, "--rounds", 2)
    rows = {(row["recipe"], row["kind"]): row for row in result["rows"]}
    assert list(rows) == [(recipe, kind) for recipe in pipeline.RECIPES for kind in pipeline.SOURCES]
    for (_, kind), row in rows.items():
        assert list(row["clips"]) == ["one.mp4", "two.mp4"]
        assert row["bytes"] > 0
        assert kind != "classic" or row["ratio"] == 1
    assert rows["tsm", "jpeg"]["bytes"] > rows["tsm", "video"]["bytes"]
    found = [(row["recipe"], row["number"]) for row in result["several"]]
    assert found == [(recipe, number) for recipe in pipeline.RECIPES for number in (1, 3)]
    for row in result["several"]:
        assert list(row["gains"]) == ["one.mp4", "two.mp4"]
        assert row["mib"] > 0
        assert row["number"] > 1 or row["gain"] == 1


@pytest.mark.slow
def test_loader(tmp_path):
    """Without workers: those of Paddle's own loader, the baseline, hang now and then on a busy machine."""
    clips = write_clips(tmp_path, num_clips=2, num_frames=16)
    options = ("--workers", 0, "--batch-size", 1, "--batches", 3, "--rounds", 2)
    words = [ROOT / "tools/benchmark.py", "loader", "--clips", *clips, *options, "--json"]
    done = Fresh(os.environ).run(words, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    found = {(row["source"], row["workers"], row["side"]) for row in result["rows"]}
    assert found == {(s, 0, side) for s in ("read", "made") for side in loader.SIDES}


def test_dali(measure, make_clip, tmp_path):
    pytest.importorskip("nvidia.dali", reason="DALI is not installed: pip install -e '.[dali120]'")
    clip = make_clip(tmp_path / "clip.mp4", 20, size=(340, 256), codec="mpeg4")  # no DALI decodes it on a CPU
    result = measure("dali", clip, "--recipe", "tsm", "--rounds", 2, "--batch-size", 2)
    _, cpu = result["rows"]
    assert [row["side"] for row in result["rows"]] == ["ours", "DALI on CPU"]
    assert 0 < cpu["difference"] < 4
    assert cpu["codec"] in ("h264", "vp9")


# a checkout of PaddleVideo in small: its registry, and the steps that its two configs name
_CHECKOUT = {
    "paddlevideo/__init__.py": "raise ImportError('of every task')",
    "paddlevideo/utils/registry.py": "class Registry(dict):\n    get = dict.__getitem__",
    "paddlevideo/loader/registry.py": "from ..utils import Registry\nPIPELINES = Registry()",
    "paddlevideo/loader/pipelines/decode.py": """
from ..registry import PIPELINES
class Decode:
    def __call__(self, sample):
        return {**sample, "frames": sample["filename"]}
PIPELINES["Decode"] = Decode""",
    "paddlevideo/loader/pipelines/sample.py": """
from ..registry import PIPELINES
class Pick:
    def __init__(self, number):
        self.number = number
    def __call__(self, sample):
        sum(range(10**5))
        return {**sample, "imgs": sample["frames"] * self.number}
PIPELINES["Pick"] = Pick""",
    "paddlevideo/loader/pipelines/decode_sampler.py": "",
    "paddlevideo/loader/pipelines/augmentations.py": "",
    **dict.fromkeys(
        ("configs/recognition/tsm/tsm_k400_videos.yaml", "configs/recognition/slowfast/slowfast.yaml"),
        "PIPELINE: {train: {decode: {name: Decode}, transform: [{Pick: {number: 2}}]}}",
    ),
}


def test_paddlevideo_is_measured_from_a_checkout(measure, tmp_path):
    with pytest.raises(PaddleVideoFastError, match="is no checkout of PaddleVideo"):
        paddlevideo.run([], paddlevideo=tmp_path)
    for name, text in _CHECKOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (clip,) = write_clips(tmp_path, 1, 70)
    found = measure("paddlevideo", clip, "--paddlevideo", tmp_path, "--rounds", 1)
    assert [row["recipe"] for row in found["rows"]] == ["tsm", "slowfast"]
    assert all(row["paddlevideo_ms"] > 0 < row["ms"] for row in found["rows"])


# PaddleVideo in small: a network of its config, and a script with its flags, which is ours
_SCRIPT = "import runpy, sys\nsys.argv[0] = {0!r}\nrunpy.run_path({0!r}, run_name='__main__')\n"


@pytest.mark.slow
def test_whole_runs_are_measured_from_a_checkout(measure, tmp_path):
    clips, checkout = write_clips(tmp_path, 5, 100), tmp_path / "checkout"
    words = ["paddlevideo_runs", *clips, "--paddlevideo", checkout, "--networks", "tsm", "--rounds", 1]
    with pytest.raises(PaddleVideoFastError, match="is no checkout of PaddleVideo"):
        paddlevideo_runs.run(clips, paddlevideo=checkout)
    (checkout / "paddlevideo/tasks").mkdir(parents=True)
    config = {
        "MODEL": trainer.MODEL,
        "DATASET": {split: {"format": "VideoDataset"} for split in ("train", "valid", "test")},
        "PIPELINE": {split: tsm_pipeline(112) for split in ("train", "valid", "test")},
        "OPTIMIZER": trainer.OPTIMIZER,
        "METRIC": {"name": "CenterCropMetric"},
    }
    file = checkout / "configs/recognition/tsm/tsm_k400_videos.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(config))
    words += ["--steps", 2, "--output", tmp_path / "runs"]
    (checkout / "main.py").write_text(_SCRIPT.format(str(ROOT / "tools/main.py")))
    found = measure(*words)
    assert [row["part"] for row in found["rows"]] == [
        *("start", "step", "epoch with validation", "training", "test")
    ]
    assert all(0 < row["cpu_ratio"] < 10 for row in found["rows"] if row["part"] != "start")
    assert found["losses"] == {"tsm": 0}  # both sides are ours
    assert min(found["mib"]["tsm"]) > 100


_TWO_RUNS = """
import json
from benchmarks import frames_cache
frames_cache._NUM_FRAMES = 40
frames_cache.CASES = (frames_cache.Case(frames_cache.SPARSE, 12, 2),)
print(json.dumps(frames_cache.run(None, copies=3, epochs=1)))
"""


@pytest.mark.slow
def test_runs_that_share_frames_have_the_losses_of_runs_that_do_not():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # Paddle is imported before the fork
    words = [sys.executable, "-c", _TWO_RUNS]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert (row["runs"], row["clips"], row["losses"]) == (2, 16, 2)
    assert row["kept_mb"] > 0
    assert row["without_ms"] > 0 < row["with_ms"]


def test_options_are_the_arguments_of_a_benchmark(command, capsys):
    def options(name, *words):
        module = importlib.import_module(f"benchmarks.{name}")
        return vars(command("benchmark").parser_of(name, module).parse_args(words))

    shown = {"as_json": False, "save": None}
    assert options("exactness", "--clip", "h264.mp4", "--clip", "vp9.webm", "wmv2.wmv") == {
        "clip": ["h264.mp4", "vp9.webm", "wmv2.wmv"],
        **shown,
    }
    words = ("a.mp4", "b.mp4", "--paddlevideo", "there", "--rounds", "3")
    paths = {"clips": [Path("a.mp4"), Path("b.mp4")], "paddlevideo": Path("there")}
    assert options("paddlevideo", *words) == {**paths, "rounds": 3, **shown}
    for wrong in (["exactness", "--clip", "none"], ["paddlevideo", "a.mp4"], ["explain", "--runs"]):
        with pytest.raises(UsageError):
            options(*wrong)
    with pytest.raises(SystemExit):
        options("shift", "--help")
    assert "timed calls a side; 0: as many as take about 3 seconds" in capsys.readouterr().out
