"""What is run, in which order, and what a failure leads to, with tools that pretend."""

import json
import re

import pytest

from test_tipc.run import main
from test_tipc.tipc import running
from test_tipc.tipc.running import Machine

LITE = "lite_train_lite_infer"
STATUS = "test_tipc/output/TSM/{}/results_python.log"
GOOD = ["train", "eval", "export", *["predict"] * 8]


def train_infer(place, mode=LITE, *more):
    return main(["train_infer", str(place.text), mode, *more])


def status(place, mode=LITE):
    return (place.root / STATUS.format(mode)).read_text().splitlines()


def kinds(lines):
    """How the lines of a status log begin, and how often each."""
    first = [re.match(r"Run successfully|Run failed|Skipped|Not run", line)[0] for line in lines]
    return {kind: first.count(kind) for kind in set(first)}


def test_all_stages_run_in_order(workplace):
    assert train_infer(workplace) == 0
    assert workplace.stages() == GOOD
    train, evaluation, export, first, *_ = workplace.calls()
    folder = f"test_tipc/output/TSM/{LITE}/norm_train_gpus_-1_autocast_null_nodes_1"
    assert f"output_dir={folder}" in train
    assert "--max_iters=30" in train
    assert "-o epochs=2" in train
    assert f"-w={folder}/Net_epoch_00002.pdparams" in evaluation
    assert "DATASET.test.file_path=test_tipc/data/motion/valid.list" in evaluation
    assert f"-p={folder}/Net_epoch_00002.pdparams -o={folder}" in export
    assert f"--model_file={folder}/inference " in first
    lines = status(workplace)
    assert kinds(lines) == {"Run successfully": 11, "Skipped": 3}  # fp16, predictions on a GPU, gpu_list 0
    for line in lines:
        assert line.startswith("Run successfully with command - TSM - ") or " - TSM - " in line
        if line.startswith("Run"):
            log = line.rpartition(" - ")[2]
            assert re.fullmatch(r"what \w+ says\n", (workplace.root / log).read_text())


@pytest.mark.parametrize(
    ("broken", "stages", "not_run"),
    [
        ("train", ["train"], "evaluation, export and prediction of norm_train"),
        ("eval", GOOD, None),  # nothing needs it
        ("export", ["train", "eval", "export"], "prediction of norm_train"),
        ("predict", GOOD, None),
    ],
)
def test_a_broken_stage_ends_with_1_and_what_needs_it_is_not_run(workplace, capsys, broken, stages, not_run):
    workplace.break_stages(broken)
    assert train_infer(workplace) == 1
    assert workplace.stages() == stages
    lines = status(workplace)
    failed = [line for line in lines if line.startswith("Run failed with command - TSM - ")]
    assert len(failed) == stages.count(broken)
    assert [line for line in lines if line.startswith("Not run")] == [
        line for line in lines if not_run and f"Not run - TSM - {not_run}" in line
    ]
    assert any(line.startswith("Not run") for line in lines) == (not_run is not None)
    shown = capsys.readouterr().out
    assert "exit code 3; the end of" in shown
    assert f"    what {broken} says" in shown


def test_a_training_without_weights_has_failed(workplace):
    workplace.change("train_model_name", "best.pdparams")
    assert train_infer(workplace) == 1
    assert workplace.stages() == ["train"]
    assert any(
        line.startswith("Run failed - TSM") and "wrote no weights" in line for line in status(workplace)
    )


def test_weights_of_an_earlier_run_are_not_taken_for_new_ones(workplace):
    assert train_infer(workplace) == 0
    folder = workplace.root / f"test_tipc/output/TSM/{LITE}/norm_train_gpus_-1_autocast_null_nodes_1"
    (folder / "Net_epoch_00009.pdparams").write_text("of a longer training")
    assert train_infer(workplace) == 0
    assert "Net_epoch_00002.pdparams" in workplace.calls()[-10]
    workplace.change("train_model_name", "Net_epoch_00009.pdparams")
    assert train_infer(workplace) == 1


def test_a_text_without_a_prediction_ends_with_the_export(workplace):
    workplace.change("inference", "null")
    assert train_infer(workplace) == 0
    assert workplace.stages() == GOOD[:3]


def test_outputs_that_cannot_be_written_end_with_1(workplace, capsys):
    (workplace.root / "test_tipc").write_text("a file where a folder should be")
    assert train_infer(workplace) == 1
    assert re.match(r"Run failed - .*test_tipc/output/TSM", capsys.readouterr().err)


def test_a_failure_of_one_training_leaves_the_others(workplace):
    tool = workplace.root / "tools/main.py"
    tool.write_text(tool.read_text().replace("sys.exit(3)", 'sys.exit(3 if "--amp" in words else 0)'))
    workplace.break_stages("train")
    tool.write_text(tool.read_text().replace("if stage in Path", 'if "--amp" in words and stage in Path'))
    workplace.change("Global.auto_cast", "fp16|null")
    assert train_infer(workplace) == 1
    assert workplace.stages() == ["train", *GOOD]
    assert "--amp --amp_level O2" in workplace.calls()[0]


def test_whole_modes_leave_the_sizes_to_the_config(workplace):
    assert train_infer(workplace, "whole_train_whole_infer") == 0
    train, evaluation, *_ = workplace.calls()
    assert not re.search(r"max_iters|epochs=|batch_size|file_path", train)
    assert "file_path" not in evaluation
    workplace.root.joinpath("calls").unlink()
    assert train_infer(workplace, "lite_train_whole_infer") == 0
    train, evaluation, *_ = workplace.calls()
    assert "--max_iters=30" in train
    assert "file_path" not in evaluation


def test_given_weights_are_exported_and_predicted(workplace, capsys):
    assert train_infer(workplace, "whole_infer") == 2
    assert "test_tipc/data/TSM.pdparams: no such file; run prepare.sh" in capsys.readouterr().err
    weights = workplace.root / "test_tipc/data/TSM.pdparams"
    weights.parent.mkdir(parents=True)
    weights.write_text("")
    assert train_infer(workplace, "whole_infer") == 0
    assert workplace.stages() == ["export", *["predict"] * 8]
    assert "-p=test_tipc/data/TSM.pdparams" in workplace.calls()[0]
    workplace.break_stages("export")
    assert train_infer(workplace, "whole_infer") == 1
    assert workplace.stages()[9:] == ["export"]


def test_gpus_are_used_where_they_are(workplace, monkeypatch):
    monkeypatch.setattr(running, "_ask", lambda python: Machine(2, "1.2.3", "abc"))
    workplace.change("gpu_list", "1|0,1|0,1,2|-1,-1")
    workplace.change("Global.use_gpu", "True|True")
    assert train_infer(workplace) == 0
    trainings = [call for call in workplace.calls() if call.startswith("train ")]
    assert len(trainings) == 2
    workers = f"test_tipc/output/TSM/{LITE}/norm_train_gpus_0,1_autocast_null_nodes_1_workers"
    assert trainings[1].startswith(f"train --gpus 0,1 --log_dir {workers} tools/main.py --validate")
    assert all(call.endswith("Global.use_gpu=True") for call in trainings)
    lines = status(workplace)
    assert any(line.startswith("Run successfully") and "CUDA_VISIBLE_DEVICES=1 " in line for line in lines)
    skipped = [line for line in lines if line.startswith("Skipped")]
    assert any(
        "gpus_0,1,2_" in line and "asks for GPU 0,1,2, and Paddle finds 2 here" in line for line in skipped
    )
    assert any("gpus_-1,-1_" in line and "CPU build" in line for line in skipped)
    assert len([line for line in lines if line.startswith("Run") and "_gpu_usetrt_False" in line]) == 8


def test_processes_and_machines_go_through_the_launcher(workplace, monkeypatch):
    monkeypatch.setenv("FLAGS_START_PORT", "17000")
    workplace.change("gpu_list", "-1,-1|198.51.100.1,127.0.0.1;-1,-1|127.0.0.1,198.51.100.1;-1")
    assert train_infer(workplace) == 0
    one, second, first = [call for call in workplace.calls() if call.startswith("train ")]
    assert one.startswith("train --nproc_per_node 2 --log_dir ")
    assert "--nnodes" not in one
    assert "--nproc_per_node 2" in second
    assert "--nnodes 2 --rank 1 --master 198.51.100.1:17000 --host 127.0.0.1 tools/main.py" in second
    assert "--nnodes 2 --rank 0 --master 127.0.0.1:17000 --host 127.0.0.1 tools/main.py" in first
    assert workplace.stages() == [*GOOD, "train", *GOOD]  # the weights of the second are on another machine
    assert any("its weights are on the first machine, 198.51.100.1" in line for line in status(workplace))


@pytest.mark.parametrize(
    ("change", "words", "expected"),
    [
        (None, [LITE, "0"], "lite_train_lite_infer takes nothing more: 0"),
        (("inference", "tools/none.py"), [LITE], "tsm.txt:40: tools/none.py: no such file"),
        (("gpu_list", "0|0,1"), [LITE], "nothing was run: all of it is skipped on this machine"),
        (("python", "python3.77"), [LITE], "tsm.txt:3: python3.77: no such program; set the variable PYTHON"),
    ],
)
def test_wrong_input_ends_with_2(workplace, monkeypatch, capsys, change, words, expected):
    monkeypatch.delenv("PYTHON")
    workplace.change("python", "python3" if change != ("python", "python3.77") else change[1])
    if change:
        workplace.change(*change)
    try:
        code = train_infer(workplace, *words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert expected in capsys.readouterr().err
    assert not workplace.calls()


def test_missing_files_and_folders_end_with_2(workplace, monkeypatch, capsys):
    assert main(["prepare", "nothing.txt", LITE]) == 2
    assert "nothing.txt: cannot be read" in capsys.readouterr().err
    (workplace.root / "empty").mkdir()
    monkeypatch.chdir(workplace.root / "empty")
    assert main(["prepare", str(workplace.text), LITE]) == 2
    assert "start the script from the repository's root" in capsys.readouterr().err


def test_a_training_is_timed(workplace, monkeypatch):
    monkeypatch.setenv("FAKE_STEPS", "9")
    workplace.change("flags", "FLAGS_a=1;FLAGS_b=x")
    assert main(["benchmark", str(workplace.text), "benchmark_train"]) == 0
    assert workplace.stages() == ["train"] * 4  # two precisions, each under the profiler as well
    profiled, timed, _, half = workplace.calls()
    assert "--validate" not in timed
    assert "-o epochs=4 -o DATASET.batch_size=8 --max_iters=8" in timed
    assert "--amp --amp_level O2" in half
    assert "state=CPU" in profiled
    assert profiled.endswith(";timer_only=True")
    folder = workplace.root / "test_tipc/output/TSM/benchmark_train"
    record = json.loads((folder / "index/paddlevideo_fast_TSM_bs8_fp32_DP_N1C1_speed").read_text())
    expected = {
        "model_name": "TSM_bs8_fp32_DP",
        "batch_size": 8,
        "fp_item": "fp32",
        "run_process_type": "SingleP",
        "run_mode": "DP",
        "convergence_value": 1.2,
        "convergence_key": "loss:",
        "ips": 13.333,  # equally many clips at 10 and at 20 a second
        "speed_unit": "instance/sec",
        "device_num": "N1C1",
        "frame_commit": "abc",
        "frame_version": "1.2.3",
        "device": "cpu",
    }
    assert record.items() >= expected.items()
    assert {"model_branch", "model_commit", "model_run_time"} <= set(record)
    lines = (folder / "benchmark_log/results.log").read_text().splitlines()
    assert sum(line.startswith("Run successfully") for line in lines) == 4
    assert any("FLAGS_a=1 FLAGS_b=x " in line for line in lines)
    assert any(line.startswith("ips: 13.333 instance/sec - TSM_bs8_fp32_DP_N1C1 - ") for line in lines)


def test_one_case_is_timed_over_two_processes(workplace, monkeypatch):
    monkeypatch.setenv("FAKE_STEPS", "9")
    monkeypatch.setenv("BENCHMARK_LOG_DIR", str(workplace.root / "logs"))
    case = "dynamicTostatic_bs4_fp16_DP_N1C2"
    assert main(["train_infer", str(workplace.text), "benchmark_train", case]) == 0
    (call,) = workplace.calls()
    assert call.startswith("train --nproc_per_node 2 ")
    assert "to_static=True" in call
    record = json.loads(
        (workplace.root / "logs/index/paddlevideo_fast_TSM_bs4_fp16_DP_N1C2_d2sT_speed").read_text()
    )
    assert (record["run_process_type"], record["batch_size"]) == ("MultiP", 4)


def test_timings_fail_where_they_say_nothing(workplace, monkeypatch, capsys):
    monkeypatch.setenv("PROFILING_TIMER_ONLY", "no")
    monkeypatch.setenv("FAKE_STEPS", "5")
    assert main(["benchmark", str(workplace.text), "benchmark_train", "dynamic_bs8_fp32_DP_N1C1"]) == 1
    assert workplace.stages() == ["train"]
    assert "has no more than 5 steps" in capsys.readouterr().out
    workplace.break_stages("train")
    assert main(["benchmark", str(workplace.text), "benchmark_train", "dynamic_bs8_fp32_DP_N1C1"]) == 1
    assert not (workplace.root / "test_tipc/output/TSM/benchmark_train/index").exists()


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("bs8", "bs8: expected dynamicTostatic, or one case"),
        ("dynamic_bs8_fp32_DP_N2C8", "expected dynamicTostatic"),
        ("dynamic_bs0_fp32_DP_N1C1", "are 1 or more"),
    ],
)
def test_an_unknown_case_ends_with_2(workplace, capsys, case, expected):
    assert main(["benchmark", str(workplace.text), "benchmark_train", case]) == 2
    assert expected in capsys.readouterr().err


def test_a_text_without_the_section_cannot_be_timed(workplace, capsys):
    lines = workplace.text.read_text()
    workplace.text.write_text(re.sub(r"=+train_benchmark_params(.|\n)*", "", lines))
    assert main(["benchmark", str(workplace.text), "benchmark_train"]) == 2
    assert "has no section train_benchmark_params" in capsys.readouterr().err
