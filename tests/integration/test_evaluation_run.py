"""--test and the reports, through the command line on real encoded clips, and in a browser."""

import csv
import json
import re
import shutil
from types import SimpleNamespace

import av
import numpy as np
import paddle
import pytest
from visualdl import LogReader

from paddlevideo_fast import cli
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.engine import CheckpointStore
from paddlevideo_fast.engine.state import TrainerState
from paddlevideo_fast.extensions.report import extension, results
from paddlevideo_fast.extensions.report.extension import make_naming
from paddlevideo_fast.extensions.report.results import ReportedRun, Reporting
from paddlevideo_fast.extensions.report.tables import Naming
from paddlevideo_fast.modeling import build_model, load_weights
from tests.support.browser import Browser
from tests.support.launching import overriding

CLASSES = ["left", "right", "up", "down"]


def run(config, *overrides, test=None):
    """The exit code of tools/main.py."""
    flags = ["--test", "-w", str(test)] if test else []
    return cli.main(["-c", str(config), *overriding(*overrides), *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, motion_data, tiny_text):
    """The output folder of a run of two epochs, tested on its best weights, and the config."""
    root = tmp_path_factory.mktemp("evaluation")
    config = root / "tiny.yaml"
    config.write_text(tiny_text.format(data=motion_data, output=root / "out"))
    options = (f"DATASET.class_names={motion_data / 'classes.txt'}", "report=true")
    assert run(config, *options) == 0
    assert run(config, *options, test=root / "out/tiny_best.pdparams") == 0
    return root / "out", config


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_test_leaves_its_files(trained, motion_data):
    folder = trained[0] / "test"
    names = {"confusion.csv", "confusion.png", "metrics.json", "per_class.csv", "predictions.jsonl"}
    assert {path.name for path in folder.iterdir()} == {*names, "report.html", "vdl", "worst.csv"}
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    lines = [line.split() for line in (motion_data / "valid.list").read_text().splitlines()]
    assert [row["path"] for row in rows] == [str(motion_data / path) for path, _ in lines]
    assert [row["label"] for row in rows] == [int(label) for _, label in lines]
    assert [row["name"] for row in rows] == [CLASSES[row["label"]] for row in rows]
    assert metrics["top1"] == np.mean([row["top"][0]["label"] == row["label"] for row in rows])
    classes = read_csv(folder / "per_class.csv")
    assert [row["name"] for row in classes] == CLASSES
    assert metrics["mean_class_acc"] == pytest.approx(np.mean([float(row["top1"]) for row in classes]))
    assert (folder / "confusion.png").read_bytes().startswith(b"\x89PNG")
    valid = [json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()]
    best = max((record for record in valid if record["kind"] == "valid"), key=lambda record: record["top1"])
    for name in ("top1", "mean_class_acc"):  # the same weights on the same videos
        assert metrics[name] == best[name]


def test_the_numbers_come_before_the_pictures(trained, tmp_path, monkeypatch, capfd):
    """Without a report no picture is drawn and nothing is explained; the tables stay."""
    output, config = trained
    logged = []
    monkeypatch.setattr(results, "confusion_picture", lambda *_: logged.extend(capfd.readouterr()) or b"")
    options = (f"output_dir={tmp_path / 'out'}", "use_visualdl=false")
    assert run(config, *options, "report=true", test=output / "tiny_best.pdparams") == 0
    assert "INFO: test top1: " in "".join(logged)
    logged.clear()
    monkeypatch.setattr(extension, "by_grad_cam", lambda *_: pytest.fail("nobody looks at heat maps"))
    assert run(config, *options, "report=false", test=output / "tiny_best.pdparams") == 0
    assert not logged
    assert (tmp_path / "out/test/confusion.csv").exists()


def test_scores_that_are_no_numbers_make_no_tables(trained, tmp_path, capfd):
    output, config = trained
    weights = paddle.load(str(output / "tiny_best.pdparams"))
    weights["head.fc.bias"] = paddle.full_like(weights["head.fc.bias"], float("nan"))
    paddle.save(weights, str(tmp_path / "diverged.pdparams"))
    options = ("report=false", f"output_dir={tmp_path / 'out'}")
    assert run(config, *options, test=tmp_path / "diverged.pdparams") == 2
    told = "".join(capfd.readouterr())
    assert "top1: 0.0" in told  # a NaN is never right
    assert re.search(r"diverged.pdparams: the scores of \d+ videos, such as .*mp4, are not finite", told)
    assert not (tmp_path / "out/test").exists()


def test_the_reports_show_the_run(trained):
    training = (trained[0] / "report.html").read_text(encoding="utf-8")
    records = [json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()]
    for kind, name in (("train", "loss"), ("train_epoch", "top1"), ("valid", "top1"), ("train", "lr")):
        path = re.search(rf'<g id="curve-{kind}-{name}">\s*<path d="([^"]*)"', training)
        points = len(re.findall(r"[ML] ", path[1]))
        # matplotlib leaves points out that lie on the line between their neighbours
        assert 2 <= points <= sum(record["kind"] == kind for record in records)
    for text in (training, (trained[0] / "test/report.html").read_text(encoding="utf-8")):
        assert text.count("<figure>") == 8  # the clips of the 8 videos
        assert text.count("data:image/jpeg;base64,") == 16  # with what decided below
        assert len(re.findall(r'alt="frames of [^"]*, what decided"', text)) == 8
        assert text.count("data:image/png;base64,") == 1
        for word in ("CenterCropMetric", "mean_class_acc", paddle.__version__, *CLASSES):
            assert word in text
        assert "<details><summary>as it was used" in text  # folded
        shown = text.partition("as it was used")[0]
        assert "top5" not in shown  # it is always 1 with four classes
        assert shown.count("95 % interval") >= 1
        worst = text.partition('id="hardest"')[2].partition("<h2")[0]
        ranks = re.findall(r'<td class="number">(\d+)</td>', worst)[1::3]
        assert all(int(rank) > 1 for rank in ranks)
    best = max((record for record in records if record["kind"] == "valid"), key=lambda record: record["top1"])
    assert training.count('id="best-epoch"') == 2  # of loss and top-1
    assert f"best: epoch {best['epoch']}" in training


@pytest.mark.parametrize(
    ("text", "shown"), [("left\nright\n", ["left", "right"]), ("a\nb\nc\n", ["0", "1"]), (None, ["0", "1"])]
)
def test_names_beside_the_list_are_shown_where_the_config_has_none(tmp_path, text, shown):
    """As in the quick start; a file of another number of names is left aside."""
    if text is not None:
        (tmp_path / "classes.txt").write_text(text)
    spec = SimpleNamespace(config=Config({"DATASET": {"train": {"file_path": str(tmp_path / "train.list")}}}))
    dataset = SimpleNamespace(records=[])
    assert make_naming(spec, 2, dataset).classes == shown


def test_the_end_of_a_training_names_its_results_and_the_next_command(trained):
    out = trained[0]
    *_, report, best, test, export, predict = (out / "train.log").read_text(encoding="utf-8").splitlines()
    assert report.endswith(f"report: {out / 'report.html'}")
    assert f"best weights: {out / 'tiny_best.pdparams'} (top1 0." in best
    chosen = r"epoch \d, chosen from 2 validations; last: top1 \S+, epoch 2, "
    assert re.search(chosen + r"95 % interval 0\.\d+ to \S+ of 8 samples\)$", best)
    assert test.endswith(f"test:    paddlevideo-fast test {out}")
    assert export.endswith(f"export:  paddlevideo-fast export {out}")
    assert predict.endswith(f"predict: paddlevideo-fast predict {out} -i new_video.mp4")


def test_a_test_says_which_videos_the_weights_know(trained, motion_data, tmp_path, capfd):
    out, config = trained
    told = (out / "test/report.html").read_text(encoding="utf-8")
    chose = "8 of the 8 tested videos chose these weights in validation (top1 0."
    assert chose in told
    options = ("report=false", f"output_dir={tmp_path / 'out'}")

    def said(weights, file):
        tested = f"DATASET.test.file_path={file}"
        assert run(config, *options, tested, test=weights) == 0
        return "".join(capfd.readouterr())

    best, last = out / "tiny_best.pdparams", out / "tiny_epoch_00002.pdparams"
    text = said(best, motion_data / "valid.list")
    assert chose in text
    assert "chosen from 2 validations; last: top1 0." in text
    assert "Expect less on new videos" in text
    assert "tested videos" not in said(last, motion_data / "valid.list")
    mixed = tmp_path / "mixed.list"
    lines = [(motion_data / name).read_text().splitlines() for name in ("train.list", "valid.list")]
    mixed.write_text("\n".join([*lines[0][:3], *lines[1][:2]]))
    assert "3 of the 5 tested videos are in DATASET.train; 2 of the 5 tested videos chose" in said(
        best, mixed
    )
    assert "3 of the 5 tested videos are in DATASET.train. Expect" in said(last, mixed)


def test_resume_of_a_finished_run_leaves_its_report(trained, motion_data, tmp_path):
    out, config = trained
    shutil.copytree(out, tmp_path / "out")
    report = tmp_path / "out/report.html"
    before = report.stat().st_mtime_ns, report.read_bytes()
    options = (f"DATASET.class_names={motion_data / 'classes.txt'}", "report=true", "resume=auto")
    assert run(config, *options, f"output_dir={tmp_path / 'out'}") == 0
    assert (report.stat().st_mtime_ns, report.read_bytes()) == before
    report.unlink()  # as after a kill between the last checkpoint and the report
    assert run(config, *options, f"output_dir={tmp_path / 'out'}") == 0
    assert "Training of tiny" in report.read_text(encoding="utf-8")


def test_a_run_that_was_stopped_in_its_last_evaluation_gets_a_new_report(trained, tmp_path):
    """A finished run went on for more epochs. The last start takes no step, and ends an epoch."""
    shutil.copy(trained[0] / "metrics.jsonl", tmp_path)
    (tmp_path / "report.html").write_text("of the first epochs", encoding="utf-8")
    data = SimpleNamespace(file_path="train.list")
    naming = Naming(["0", "1", "2", "3"], [])
    reporting = Reporting(
        ReportedRun("tiny", tmp_path, "", True, False),
        data,
        data,
        naming,
        None,
        CheckpointStore(tmp_path, "tiny"),
    )
    trainer = SimpleNamespace(state=TrainerState(epoch=3, step=8, step_in_epoch=2))
    reporting.fit_begin(trainer)
    trainer.state.epoch, trainer.state.step_in_epoch = 4, 0
    reporting.fit_end(trainer)
    assert "Training of tiny" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_visualdl_has_scalars_clips_curves_and_hyperparameters(trained):
    for folder, kind, pictures, number in (
        (trained[0] / "vdl", "valid", {"train", "valid"}, 2),
        (trained[0] / "test/vdl", "test", {"test"}, 1),
    ):
        (file,) = folder.glob("vdlrecords.*")
        reader = LogReader(file_path=str(file))
        tags = reader.get_tags()
        assert len(reader.get_data("scalar", f"{kind}/top1")) == number
        assert f"{kind}/mean_class_acc" in tags["scalar"]
        assert {tag.partition("/")[0] for tag in tags["image"]} == pictures


def test_visualdl_has_each_point_once_after_a_resume(trained, motion_data, tmp_path):
    """After a kill between the second epoch's records and its checkpoint, and with nothing left to train."""
    shutil.copytree(trained[0], tmp_path / "out")
    for path in (tmp_path / "out").glob("tiny_epoch_00002.*"):
        path.unlink()
    options = (f"DATASET.class_names={motion_data / 'classes.txt'}", "report=false", "resume=auto")

    def points(folder):
        (file,) = folder.glob("vdlrecords.*")
        reader = LogReader(file_path=str(file))
        times = ("ips", "batch_cost", "reader_cost", "sec")
        return {
            tag: [(point.id, point.value) for point in reader.get_data("scalar", tag)]
            for tag in reader.get_tags()["scalar"]
            if tag.rpartition("/")[2] not in times
        }

    before = points(trained[0] / "vdl")
    assert len(before["valid/top1"]) == 2
    for _ in range(2):
        assert run(trained[1], *options, f"output_dir={tmp_path / 'out'}") == 0
        assert points(tmp_path / "out/vdl") == before


@pytest.mark.parametrize("board", ["true", "false"])
def test_a_run_without_a_page_draws_nothing_for_it(board, trained, tmp_path, monkeypatch):
    """And it goes on from a run that had one."""
    shutil.copytree(trained[0], tmp_path / "out", ignore=shutil.ignore_patterns("*_epoch_00002.*", "vdl"))
    before = (tmp_path / "out/report.html").read_bytes()
    monkeypatch.setattr(results, "confusion_picture", lambda *_: pytest.fail("a picture nobody sees"))
    options = ("report=false", f"use_visualdl={board}", "resume=auto", f"output_dir={tmp_path / 'out'}")
    assert run(trained[1], *options) == 0
    assert (tmp_path / "out/tiny_epoch_00002.json").is_file()
    assert (tmp_path / "out/report.html").read_bytes() == before
    assert (tmp_path / "out/vdl").exists() == (board == "true")


def test_an_earlier_test_is_moved_aside(trained, tmp_path):
    out, config = trained
    before = (out / "test/predictions.jsonl").read_text()
    options = (f"output_dir={tmp_path}", "use_visualdl=false")
    for _ in range(2):
        assert run(config, *options, test=out / "tiny_best.pdparams") == 0
    assert not (tmp_path / "test/report.html").exists()
    assert not (tmp_path / "test/vdl").exists()
    assert (tmp_path / "earlier-1/test/predictions.jsonl").exists()
    assert (out / "test/predictions.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("text", "words"), [("one\ntwo\n", "has 2 names, the model 4 classes"), (None, "cannot be read")]
)
def test_wrong_class_names_are_found_at_the_start(trained, tmp_path, capfd, text, words):
    out, config = trained
    if text:
        (tmp_path / "names.txt").write_text(text)
    options = (f"DATASET.class_names={tmp_path / 'names.txt'}", f"output_dir={tmp_path / 'out'}")
    for test in (None, out / "tiny_best.pdparams"):
        assert run(config, *options, test=test) == 2
        assert words in "".join(capfd.readouterr())
        assert not (tmp_path / "out/metrics.jsonl").exists()
        assert not (tmp_path / "out/test").exists()


def read_all(path):
    """uint8 [T, H, W, 3] of a whole video, frame after frame."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def softmax(logits):
    exponents = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


VIEWS = {
    # name: transforms, the crops they make of 48×36, views, DATASET.test arguments
    "25x10": (["TenCrop: {target_size: 28}"], 10, 25),
    "10x3": (["MultiCenterCrop: {target_size: 28}"], 3, 10),
    "1x1": (["CenterCrop: {target_size: 28}"], 1, 1),
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory, make_clip):
    """Two videos of 53 and 54 frames, 48×36, and their list."""
    root = tmp_path_factory.mktemp("videos")
    paths = [make_clip(root / f"{number}.mp4", 53 + number, size=(48, 36)) for number in range(2)]
    (root / "test.list").write_text("".join(f"{path} {number}\n" for number, path in enumerate(paths)))
    return root, paths


def crops_of(frames, kind):
    """All crops of the frames, by slices."""
    high, wide = frames.shape[1] - 28, frames.shape[2] - 28
    places = {
        "25x10": [(x, y) for y in (0, high // 4 * 4) for x in (0, wide // 4 * 4)]
        + [(wide // 4 * 2, high // 4 * 2)],
        "10x3": [(wide // 2, high // 2), (0, high // 2), (wide, high // 2)],
        "1x1": [(wide // 2, high // 2)],
    }[kind]
    for x, y in places:
        crop = frames[:, y : y + 28, x : x + 28]
        yield crop
        if kind == "25x10":
            yield crop[:, :, ::-1]


@pytest.mark.parametrize("kind", VIEWS)
def test_views_and_crops_against_brute_force(trained, videos, tmp_path, kind):
    """Scores of the command line, and of every frame decoded, cropped and averaged by hand."""
    out, config = trained
    root, paths = videos
    transforms, num_crops, num_views = VIEWS[kind]
    weights = out / "tiny_best.pdparams"
    dataset = (
        f"DATASET.test={{format: VideoDataset, file_path: {root / 'test.list'}, "
        f"num_ensemble_views: {num_views}, num_spatial_crops: {num_crops}}}"
    )
    transform = f"PIPELINE.test.transform=[{{{transforms[0]}}}, Image2Array: ]"
    options = (f"output_dir={tmp_path}", "METRIC={name: MultiCropMetric}", "use_visualdl=false")
    assert run(config, dataset, transform, *options, test=weights) == 0
    rows = [json.loads(line) for line in (tmp_path / "test/predictions.jsonl").read_text().splitlines()]

    model = build_model(load_config(str(config))["MODEL"], load_pretrained=False)
    load_weights(model, weights, strict=True)
    model.eval()
    for path, row in zip(paths, rows):
        frames = read_all(path)
        length = len(frames) / 4
        scores = []
        for view in range(num_views):
            indices = [int(length * (view + 0.5) / num_views + length * segment) for segment in range(4)]
            clips = np.stack(list(crops_of(frames[indices], kind)))
            clips = (clips / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
            with paddle.no_grad():
                logits = model(paddle.to_tensor(clips.transpose(0, 1, 4, 2, 3).astype("float32")))
            scores += list(softmax(logits.numpy()))
        assert row["num_views"] == len(scores) == num_views * num_crops
        expected = np.mean(scores, axis=0)
        assert {top["label"]: top["score"] for top in row["top"]} == pytest.approx(
            dict(enumerate(expected)), abs=2e-5
        )


def test_the_reports_in_a_browser(trained, tmp_path):
    with Browser(tmp_path / "profile") as browser:
        for page, curves in ((trained[0] / "report.html", 7), (trained[0] / "test/report.html", 0)):
            browser.open(page.as_uri())
            lengths = browser.value(
                "[...document.querySelectorAll('svg g[id^=curve-] path')].map(p => p.getTotalLength())"
            )
            drawn = browser.value("document.querySelectorAll('svg g[id^=curve-]').length")
            assert drawn == curves
            assert sum(length > 10 for length in lengths) >= curves
            pictures = browser.value("[...document.images].map(i => i.complete && i.naturalWidth > 50)")
            assert pictures == [True] * 17
            box = browser.value("document.documentElement.scrollWidth <= window.innerWidth")
            assert box, "the page is wider than the window"
        assert browser.problems == []
