"""test_tipc/compare_results.py on logs as tools/predict.py writes them."""

import json

import pytest

from test_tipc.compare_results import main, read_stored, stored_text

SCORES = {"a.mp4": {3: 0.75, 1: 0.25}, "b.mp4": {1: 0.6, 3: 0.4}}


@pytest.fixture
def write_log(tmp_path):
    """`write_log(name, scores)`: a log with a warning before the predictions and the times behind them."""

    def write(name, scores=SCORES):
        entries = [
            {"path": path, "top": [{"class_id": k, "name": str(k), "score": v} for k, v in classes.items()]}
            for path, classes in scores.items()
        ]
        lines = "".join(f"{json.dumps(entry)}\n" for entry in entries)
        text = f"WARNING: [x]\n{lines}preprocess_time(ms): 1.0\n"
        (tmp_path / name).write_text(text)

    return write


@pytest.fixture
def compare(tmp_path, capsys):
    """Runs the script on all logs of the folder; exit code and what it printed."""

    def run(*words):
        code = main(
            [f"--gt_file={tmp_path}/results_*.txt", f"--log_file={tmp_path}/python_infer_*.log", *words]
        )
        return code, "".join(capsys.readouterr())

    return run


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text(stored_text(SCORES))
    assert read_stored(path) == SCORES
    assert path.read_text().startswith("Current video file: a.mp4\n\ttop-1 class: 3\n\ttop-1 score: 0.75")


def test_results_are_compared_within_tolerances(tmp_path, write_log, compare):
    (tmp_path / "results_fp32.txt").write_text(stored_text(SCORES))
    write_log("python_infer_1_precision_fp32.log", SCORES)
    assert compare()[0] == 0
    write_log("python_infer_2_precision_fp32.log", {**SCORES, "b.mp4": {1: 0.6, 3: 0.402}})
    code, shown = compare()
    assert code == 1
    assert "python_infer_1_precision_fp32.log and" in shown
    assert "b.mp4: class 3: 0.400000 stored, 0.402000 predicted" in shown
    assert compare("--atol=0.01")[0] == 0
    assert compare("--atol=0", "--rtol=0.01")[0] == 0
    write_log("python_infer_2_precision_fp32.log", {"a.mp4": {3: float("nan")}})
    code, shown = compare()
    assert code == 1
    assert "class 1: 0.250000 stored, not among the predicted classes" in shown
    assert "class 3: 0.750000 stored, nan predicted" in shown
    assert "b.mp4: no prediction" in shown


def test_a_top_1_file_of_paddlevideo_is_read(tmp_path, write_log, compare):
    lines = "Current video file: a.mp4\n\ttop-1 class: 3\n\ttop-1 score: 0.7500001\n"
    (tmp_path / "results_fp32.txt").write_text(lines)
    write_log("python_infer_precision_fp32.log", SCORES)
    assert compare()[0] == 0


def test_results_are_stored(tmp_path, write_log, compare):
    write_log("python_infer_precision_fp32.log", SCORES)
    target = tmp_path / "new/results_fp32.txt"
    words = [f"--gt_file={target}", f"--log_file={tmp_path}/*.log"]
    assert main([*words, "--write"]) == 0
    assert read_stored(target) == SCORES
    assert main(words) == 0


GOOD = {"results_fp32.txt": stored_text(SCORES).encode()}


@pytest.mark.parametrize(
    ("stored", "log", "expected"),
    [
        ({"results_fp16.txt": GOOD["results_fp32.txt"]}, SCORES, "Skipped: no stored results of fp32"),
        ({"results_fp16.txt": GOOD["results_fp32.txt"]}, SCORES, "nothing was compared"),
        ({**GOOD, "results_old_fp32.txt": GOOD["results_fp32.txt"]}, SCORES, "results of fp32; name one"),
        ({"results_fp32.txt": b""}, SCORES, "has no lines `top-1 class"),
        ({"results_fp32.txt": b"\xff\x00"}, SCORES, "has no lines `top-1 class"),
        ({"results_fp32.txt": b"top-1 class: x"}, SCORES, "invalid literal"),
        ({"results_fp32.txt": None}, SCORES, "results_fp32.txt"),  # a folder
        (GOOD, "no predictions here", "has no predictions; the text's inference line needs --json"),
        (GOOD, '{"path": "a", "error": "damaged"}\n', "is no log of complete predictions"),
        (GOOD, None, "python_infer_*.log: no such file"),
    ],
)
def test_what_cannot_be_compared_ends_with_2(tmp_path, write_log, compare, stored, log, expected):
    for name, content in stored.items():
        (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_bytes(content)
    if log is SCORES:
        write_log("python_infer_precision_fp32.log")
    elif log is not None:
        (tmp_path / "python_infer_precision_fp32.log").write_text(log)
    code, shown = compare()
    assert (code, expected in shown) == (2, True)
