"""Exported programs on real encoded videos."""

import copy
import importlib.util
import re
import shutil
from pathlib import Path
from threading import Event

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.apps.export.from_checkpoint import program_of_weights
from paddlevideo_fast.apps.predict.predictor import (
    BatchTime,
    Prediction,
    Predictor,
    Unread,
    Windowing,
    find_videos,
    timing,
)
from paddlevideo_fast.apps.predict.program import PaddleProgram
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError
from paddlevideo_fast.loader import build_dataset, build_loader
from paddlevideo_fast.modeling import Preprocess
from tests.support.json_lines import entries_of
from tests.support.onnx_packages import OPSET_VERSION, needs_onnx

FLOAT32, UINT8 = (ExportOptions(dtype, onnx_opset=OPSET_VERSION) for dtype in ("float32", "uint8"))


def validated(run, data, split="valid"):
    """Paths of DATASET.`split`, and the logits [N, V, num_classes] that an evaluation sees for them."""
    section = {**run.cfg["DATASET"][split], "file_path": str(data / "valid.list"), "data_prefix": str(data)}
    dataset = build_dataset(section, run.cfg["PIPELINE"][split], training=False, seed=0)
    loader = build_loader(dataset, batch_size=5, num_workers=0, shuffle=False, drop_last=False, seed=0)
    preprocess = Preprocess(*dataset.pipeline.normalization, run.model.layout)
    logits = [[] for _ in dataset.records]
    with paddle.no_grad():
        for batch in loader.epoch(0):
            for number, row in zip(batch.ids, run.model(preprocess(batch.clips)).numpy()):
                logits[number].append(row)
    return [record.path for record in dataset.records], np.array(logits)


@pytest.fixture
def files(exported, network, options):
    """The exports of a network, which several tests share."""
    return exported(network, options)


@pytest.mark.smoke
@pytest.mark.parametrize("network", ["tsm", "slowfast"])
@pytest.mark.parametrize("options", [FLOAT32, UINT8], ids=lambda options: options.input_dtype)
@pytest.mark.parametrize("form", ["program", pytest.param("onnx", marks=needs_onnx)])
def test_prediction_is_validation(trained, files, motion_videos, network, form):
    paths, expected = validated(trained(network), motion_videos)
    predictor = Predictor(getattr(files, form))
    predictions = list(predictor.predict(paths, batch_size=3))
    assert [prediction.path for prediction in predictions] == paths
    logits = np.array([prediction.logits for prediction in predictions])
    assert logits.shape == expected.shape == (20, 1, 8)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    best = [prediction.top(1)[0].class_id for prediction in predictions]
    assert best == expected[:, 0].argmax(axis=1).tolist()
    assert [time.num_files for time in predictor.times] == [3] * 6 + [2]


@pytest.mark.slow
def test_several_views_are_averaged_as_in_a_test(trained, tmp_path, motion_videos):
    run = trained("slowfast")
    cfg = copy.deepcopy(run.cfg)
    cfg["DATASET"]["test"].update(num_ensemble_views=2, num_spatial_crops=3)
    cfg["PIPELINE"]["test"]["decode_sampler"].update(test_mode=True, num_frames=8, sampling_rate=1)
    cfg["PIPELINE"]["test"]["transform"][0] = {"Scale": {"short_size": 48}}
    cfg["PIPELINE"]["test"]["transform"][1] = {"MultiCrop": {"target_size": 40, "test_mode": True}}
    files = export_model(cfg, run.weights, tmp_path, options=ExportOptions(split="test"))
    paths, expected = validated(run._replace(cfg=cfg), motion_videos, "test")
    predictions = list(Predictor(files.program).predict(paths[:3], batch_size=2))
    assert expected.shape == (20, 6, 8)
    for prediction, logits in zip(predictions, expected):
        assert np.abs(prediction.logits - logits).max() <= 1e-4 * np.abs(logits).max()
        scores = paddle.nn.functional.softmax(paddle.to_tensor(logits), axis=1).numpy().mean(axis=0)
        assert np.allclose(prediction.scores, scores, rtol=1e-4)
        assert prediction.top(1)[0].class_id == scores.argmax()


def test_a_program_of_free_shape_takes_videos_of_several_sizes(trained, tmp_path, make_clip):
    run = trained("tsm")
    cfg = copy.deepcopy(run.cfg)
    cfg["PIPELINE"]["valid"]["transform"][0] = {"Scale": {"short_size": 48, "fixed_ratio": False}}
    videos = [
        make_clip(tmp_path / f"{number}.mp4", 12, size)
        for number, size in enumerate(((64, 48), (96, 48), (64, 48)))
    ]
    options = ExportOptions(input_shape=[8, -1, -1])
    together = Predictor(export_model(cfg, run.weights, tmp_path / "free", options=options).program)
    alone = [next(together.predict([video])).logits for video in videos]
    for prediction, logits in zip(together.predict(videos, batch_size=3), alone):
        assert np.allclose(prediction.logits, logits, rtol=1e-4, atol=1e-6)
    fixed = Predictor(export_model(cfg, run.weights, tmp_path / "fixed").program)
    result = next(fixed.predict(videos[:1]))
    assert isinstance(result, Unread)
    assert "the model takes [8, 48, 48]" in str(result.error)


def test_the_command_on_real_clips(exported, predict, real_clips_dir):
    program = exported("tsm", FLOAT32).program
    code, out, err = predict("-i", real_clips_dir, "--model_file", program, "--json", "-b", "4")
    entries = entries_of(out)
    assert [entry["path"] for entry in entries] == [str(path) for path in find_videos(real_clips_dir)]
    for entry in entries:
        if Path(entry["path"]).name == "corrupted.mp4":
            assert "cannot be decoded" in entry["error"]
        else:
            scores = [score["score"] for score in entry["top"]]
            assert len(scores) == 5
            assert scores == sorted(scores, reverse=True)
            assert 0 < sum(scores) <= 1.0001
    assert code == 1
    assert err.count("VideoDecodeError") == 1
    code, out, err = predict("-i", real_clips_dir / "mma_demo.mp4", "--model_file", program)
    assert (code, len(out.splitlines()), err) == (0, 6, "")


def test_a_bad_file_is_one_error_and_the_others_go_on(exported, predict, make_clip, broken_videos, tmp_path):
    program = exported("tsm", FLOAT32).program
    make_clip(tmp_path / "a.mp4", 12, (64, 64))
    make_clip(tmp_path / "sub.mp4" / "c.AVI", 12, (64, 64), codec="mpeg4")  # a folder called like a video
    (tmp_path / "b.mp4").write_bytes(broken_videos["text"].read_bytes())
    (tmp_path / "notes.txt").write_text("no video")
    code, out, err = predict("-i", tmp_path, "--model_file", program, "--batch_size", "3", "--top_k", "2")
    assert code == 1
    assert [line for line in out.splitlines() if line[0] != " "] == [
        str(tmp_path / "a.mp4"),
        str(tmp_path / "sub.mp4" / "c.AVI"),
    ]
    assert len(out.splitlines()) == 6
    assert err.count("Error") == 1
    assert f"{tmp_path / 'b.mp4'}: cannot be decoded" in err
    for name in ("missing", "text", "truncated", "empty"):
        code, out, err = predict("-i", broken_videos[name], "--model_file", program)
        assert (code, out) == (2, ""), name
        assert len(err.splitlines()) == 1, name
        assert str(broken_videos[name]) in err
    assert predict("-i", broken_videos["folder"], "--model_file", program)[0] == 2  # an empty one
    small = make_clip(tmp_path / "small.mp4", 12, (32, 32))
    code, _, err = predict("-i", small, "--model_file", program)
    assert (code, err.count("TransformError")) == (2, 1)


def test_the_first_batches_do_not_count_in_times():
    slow, fast = BatchTime(2, 9.0, 9.0), BatchTime(2, 0.002, 0.004)
    assert timing([slow] * 3 + [fast] * 2, wall_sec=5.0) == (
        "preprocess_time(ms): 2.0, inference_time(ms): 4.0: median of 2 batches of 2 files; "
        "2.00 files a second in all"
    )
    assert "inference_time(ms): 9000.0: median of 3 batches" in timing([slow] * 3, 1.0)  # no others


def test_files_are_read_while_the_network_computes(exported, motion_videos, tmp_path, monkeypatch):
    """In order, with the same scores, and not further ahead than two batches."""
    (tmp_path / "text.mp4").write_text("no video")
    videos = [*sorted(motion_videos.glob("valid/*.mp4"))[:9], tmp_path / "text.mp4"]
    predictor = Predictor(exported("tsm", FLOAT32).program)
    in_turn = list(predictor.predict(videos, 2))
    third, read, whole = Event(), [], predictor.clips_of

    def clips_of(path):
        read.append(path)
        if len(read) > 2:
            third.set()
        return whole(path)

    run = predictor.program.run
    monkeypatch.setattr(predictor, "clips_of", clips_of)
    monkeypatch.setattr(predictor.program, "run", lambda clips: third.wait(60) and run(clips))
    ahead = list(predictor.predict(videos, 2, num_readers=2))
    assert [type(one) for one in ahead] == [*[Prediction] * 9, Unread]
    for one, other in zip(ahead[:-1], in_turn):
        assert one.path == other.path
        np.testing.assert_array_equal(one.scores, other.scores)
    read.clear()
    some = predictor.predict(videos, 1, num_readers=1)
    next(some)
    some.close()
    assert len(read) <= 4  # it, two ahead, and the one that the thread had begun


def test_class_names_and_a_config_in_place_of_the_settings(
    trained, exported, predict, motion_videos, tmp_path
):
    files = exported("tsm", FLOAT32)
    video = sorted(motion_videos.glob("valid/*.mp4"))[0]
    names = motion_videos / "classes.txt"
    words = ["-i", video, "--model_file", files.program, "--top_k", "8"]
    code, named, _ = predict(*words, "--class_names", names)
    assert code == 0
    assert {line.split()[-1] for line in named.splitlines()[1:]} == set(names.read_text().split())
    moved = [tmp_path / file.name for file in files[:2]]  # a program without the file next to it
    for source, target in zip(files, moved):
        target.write_bytes(source.read_bytes())
    words[3] = moved[0].with_suffix("")  # the ending may be left out
    code, _, err = predict(*words)
    assert (code, err.count("ConfigError")) == (2, 1)
    (tmp_path / "empty").mkdir()
    absent = "there is no such file or folder; name the output folder of a run, or a program that"
    for missing, told in (
        (tmp_path / "other", absent),
        ("", absent),
        (tmp_path / "empty", "holds no exported model"),
    ):
        code, _, err = predict("-i", video, "--model_file", missing)
        assert (code, err.count(told)) == (2, 1)
    config = ["--config", "tsm_motion", "-o", f"DATASET.class_names={names}"]
    code, out, _ = predict(*words, *config, "--use_gpu=False")
    assert (code, out) == (0, named)
    assert predict(*words, "--config", "slowfast_motion")[0] == 2


@needs_onnx
@pytest.mark.smoke
def test_the_command_takes_onnx(exported, predict, motion_videos):
    files = exported("tsm", FLOAT32)
    video = sorted(motion_videos.glob("valid/*.mp4"))[0]
    words = ["-i", video, "--json", "--cpu_threads", "1", "--model_file"]
    (expected,), (found,) = (entries_of(predict(*words, path)[1]) for path in files.programs)
    assert [score["name"] for score in found["top"]] == [score["name"] for score in expected["top"]]
    assert [score["score"] for score in found["top"]] == pytest.approx(
        [score["score"] for score in expected["top"]], rel=1e-4
    )
    for flags, told in (
        (["--device", "gpu"], "cuda"),
        (["--use_tensorrt", "True"], "tensorrt"),
        (["--provider", "tensorrt", "cuda"], "cuda"),
        (["--enable_mkldnn", "True"], "enable_mkldnn"),
        (["--params_file", files.params], "params_file"),
    ):
        code, out, err = predict(*words, files.onnx, *flags)
        assert (code, out) == (2, "")
        assert f"Error: {told}" in err.splitlines()[-1]


def test_benchmark_and_a_list_of_files(exported, predict, motion_videos, tmp_path):
    program = exported("tsm", FLOAT32).program
    videos = sorted(motion_videos.glob("valid/*.mp4"))
    words = ["--model_file", program, "--enable_benchmark", "True", "-b", "2"]
    code, out, _ = predict("-i", videos[0], *words)
    assert code == 0
    times = r"preprocess_time\(ms\): [\d.]+, inference_time\(ms\): [\d.]+"
    assert re.fullmatch(times + r": median of 5 batches of 2 files; [\d.]+ files a second in all\n", out)
    (tmp_path / "files.txt").write_text("".join(f"{video}\n" for video in videos))
    listed = ["-i", tmp_path / "files.txt", "--time_test_file", "True"]
    assert "median of 7 batches of 2 files" in predict(*listed, *words)[1]
    assert predict("-i", videos[0], "--time_test_file", "True", *words)[0] == 2
    (tmp_path / "files.txt").write_text("\n")
    code, out, err = predict(*listed, *words)
    assert (code, out) == (2, "")
    assert "files.txt: lists no video" in err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--device=gpu:x", "'gpu:x' is neither cpu, gpu nor gpu:N"),
        ("--device=gpu:1 --backend paddle", "--backend: is for a CPU"),
        ("--use_xpu=True", "unrecognized arguments: --use_xpu"),
        ("--precision=int8", "invalid choice: 'int8'"),
        ("--enable_mkldnn=perhaps", "'perhaps' is neither True nor False"),
        ("--provider=openvino", "invalid choice: 'openvino'"),
        ("--threshold=1.5", "'1.5' is no probability, from 0 to 1"),
        ("--device=cpu --use_gpu=False", "--device: says the same as --use_gpu"),
        ("--device=cpu --provider=cpu", "--provider: says where the program runs"),
        ("--device=cpu --use_tensorrt=True", "--use_tensorrt: runs on a GPU"),
        ("--override=model_name=x --import=./y.py", "--override: sets a key of --config, which is missing"),
        ("-w y.pdparams", "MODEL: is given twice"),
        ("--stride_sec 1", "--stride_sec: needs --window_sec"),
        ("--timeline t.png", "--timeline: needs --window_sec"),
        ("--window_sec two", "invalid float value: 'two'"),
        ("--window_sec 1 --enable_benchmark True", "--enable_benchmark: times whole files"),
        ("--when_slow drop", "a.mp4 is no live input"),
        ("-i -", "give --window_sec"),
        ("-i - --window_sec 1 --timeline x.png", "--timeline: is for files"),
        ("-i - --window_sec 1 --live_option framerate", "expected KEY=VALUE"),
    ],
)
def test_flags_that_do_not_fit_are_refused(predict, flags, told):
    code, _, err = predict("-i", "a.mp4", "--model_file", "x", *flags.split())
    assert code == 2
    assert told in err


def test_a_run_is_exported_once_and_its_program_predicts(trained, predict, motion_videos, tmp_path):
    run, folder = trained("tsm"), tmp_path / "output/mine"
    folder.mkdir(parents=True)
    weights, program = folder / "TSM_motion_best.pdparams", folder / "inference/TSM_motion.pdiparams"
    shutil.copy(run.weights, weights)
    cfg = copy.deepcopy(run.cfg)
    cfg.save(folder / "config.yaml")
    paths, expected = validated(run, motion_videos)

    def scores(*words):
        code, out, err = predict(*words, "-i", paths[0], "--json", "--top_k", "8")
        assert code == 0, err
        return {one["name"]: one["score"] for one in entries_of(out)[0]["top"]}, err

    found, err = scores(folder)
    probabilities = paddle.nn.functional.softmax(paddle.to_tensor(expected[0, 0])).numpy()
    assert np.allclose([found[str(number)] for number in range(8)], probabilities, rtol=1e-3, atol=1e-5)
    assert f"weights: {weights}" in err
    assert f"exporting the network to {folder}/inference/TSM_motion" in err
    has_onnx = all(map(importlib.util.find_spec, ("onnxruntime", "paddle2onnx")))
    assert program.with_suffix(".onnx").is_file() == has_onnx
    assert ("onnxruntime runs" if has_onnx else 'pip install "paddlevideo_fast[onnx]"') in err
    written = program.stat().st_mtime_ns
    assert scores("-w", weights)[0] == scores(folder / "inference")[0] == found
    assert program.stat().st_mtime_ns == written, "the program was reused"
    (folder / "class_names.txt").write_text("".join(f"motion {number}\n" for number in range(8)))
    cfg["DATASET"]["class_names"] = str(tmp_path / "moved/classes.txt")  # which are no more needed
    cfg.save(folder / "config.yaml")
    assert scores(folder)[0].keys() == {f"motion {number}" for number in range(8)}
    state = paddle.load(str(weights))
    first = next(name for name in state if name.startswith("head") and state[name].ndim == 1)
    state[first] = state[first] + paddle.arange(8, dtype="float32")
    paddle.save(state, str(weights))
    others = scores(folder)[0]
    assert others["motion 7"] > found["7"]
    shutil.copy(program, folder / "inference/other.pdiparams")
    assert "holds several models; name one" in predict(folder / "inference", "-i", paths[0])[2]
    (folder / "config.yaml").unlink()
    assert "give a config with -c" in predict(weights, "-i", paths[0])[2]


def test_a_network_that_is_not_converted_is_run_by_paddle(trained, tmp_path, monkeypatch, caplog):
    pytest.importorskip("paddle2onnx")
    pytest.importorskip("onnxruntime")

    def failing(*_):
        raise ProgramError("an operator is unknown")

    monkeypatch.setattr("paddlevideo_fast.apps.export.targets.write_onnx", failing)
    caplog.set_level("INFO")
    run = trained("tsm")
    weights = tmp_path / "mine.pdparams"
    shutil.copy(run.weights, weights)
    program = program_of_weights(run.cfg, weights, may_take_onnx=True)
    names = {file.suffix for file in program.parent.glob("mine.*")}
    assert {".pdiparams", ".yaml"} < names
    assert ".onnx" not in names
    assert "an operator is unknown" in caplog.text
    assert Predictor(program).program.model_file.suffix != ".onnx"


@needs_onnx
def test_threads_of_onnxruntime_that_have_no_work_sleep(exported):
    session = Predictor(exported("tsm", FLOAT32).onnx).program._session
    key = "session.intra_op.spin_duration_us"
    assert session.get_session_options().get_session_config_entry(key) == "1000"


def test_wrong_arguments_of_a_predictor_are_one_error(exported, motion_videos):
    program = exported("tsm", FLOAT32).program
    with pytest.raises(ProgramError, match="has 8 classes, and there are 2 class_names"):
        Predictor(program, class_names=["a", "b"])
    videos = sorted(motion_videos.glob("valid/*.mp4"))
    predictor = Predictor(program)
    for results in (predictor.predict(videos, 0), predictor.predict_windows(videos, Windowing(1.0), 0)):
        with pytest.raises(PaddleVideoFastError, match="batch_size is 0"):
            next(results)


def test_logits_that_are_not_finite_are_no_prediction(exported, predict, motion_videos, monkeypatch):
    program = exported("tsm", FLOAT32).program
    intact, calls = PaddleProgram.run, []

    def overflown(self, clips):
        calls.append(len(clips))
        return intact(self, clips) if len(calls) == 1 else np.full((len(clips), 8), np.nan, "float32")

    monkeypatch.setattr(PaddleProgram, "run", overflown)
    code, out, err = predict("-i", motion_videos / "valid", "--model_file", program, "--json")
    assert (code, err.count("logits that are not finite")) == (2, 1)
    assert len(entries_of(out)) == 1  # what was predicted before is not lost


def test_the_gpu_is_the_chosen_one_or_paddles(monkeypatch, exported):
    from paddle import inference

    from paddlevideo_fast.apps.predict import program

    files, numbers = exported("tsm", ExportOptions("uint8")), []
    optimized = []

    class Config(inference.Config):
        def enable_use_gpu(self, memory_mb, number, *precision):
            numbers.append(number)

        def enable_memory_optim(self):
            optimized.append(len(numbers))

    monkeypatch.setattr(program.inference, "Config", Config)
    monkeypatch.setattr(program.paddle, "get_device", lambda: "gpu:2")
    for options, number in ((program.ProgramOptions(), 2), (program.ProgramOptions(gpu=3), 3)):
        program._config(files.program, files.params, options, "cuda")
        on_onnx = program._onnx_providers("tensorrt", options)
        assert numbers.pop() == number
        assert [given["device_id"] for _, given in on_onnx[:2]] == [number, number]
    assert optimized == [1, 1]  # on each GPU, after it was chosen
    program._config(files.program, files.params, program.ProgramOptions(), "cpu")
    assert len(optimized) == 2
    monkeypatch.setattr(program.paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(program.paddle.device.cuda, "device_count", lambda: 3)
    with pytest.raises(
        program.ProviderError, match="there is no GPU 3; the GPUs here have the numbers 0 to 2"
    ):
        program._check_paddle_has("cuda", program.ProgramOptions(gpu=3))
