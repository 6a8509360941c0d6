"""All that only shows is broken at once: a training and a test still end with their results."""

import pytest

from paddlevideo_fast.cli import main
from paddlevideo_fast.extensions.report import results
from paddlevideo_fast.extensions.trackers.trackers import VisualDL
from paddlevideo_fast.modeling import complexity


class OutOfOrder(Exception):
    """No error that anybody expects."""


def broken(*args, **options):
    raise OutOfOrder


@pytest.mark.slow
@pytest.mark.parametrize("parts", [["clips"], ["pictures", "page", "board", "count"]])
def test_a_run_goes_on_without_what_shows(tiny_config, tmp_path, records, monkeypatch, parts):
    tiny_config.write_text(
        tiny_config.read_text().replace("report: false", "epochs: 1").replace("epochs: 2", "")
    )
    out = tmp_path / "out"
    if "clips" in parts:
        monkeypatch.setattr(results, "contact_sheet", broken)
    if "pictures" in parts:
        monkeypatch.setattr(results, "confusion_picture", broken)
    if "page" in parts:
        monkeypatch.setattr(results, "render", broken)
    if "board" in parts:
        monkeypatch.setattr(VisualDL, "_add", broken)
    if "count" in parts:
        monkeypatch.setattr(complexity, "_CONVOLUTIONS", None)
    assert main(["-c", str(tiny_config)]) == 0
    log = (out / "train.log").read_text()
    told = [line.split("WARNING: ")[1].split(" fails")[0] for line in log.splitlines() if "left out" in line]
    if parts == ["clips"]:
        assert told == ["Reporting"]
    else:
        assert told == ["VisualDL", "Complexity", "the confusion matrix", "Reporting"]
    assert {line["kind"] for line in records(out)} == {"train", "train_epoch", "valid"}
    assert (out / "tiny_epoch_00001.json").exists()
    assert main(["-c", str(tiny_config), "--test", "-w", f"{out}/tiny_best.pdparams"]) == 0
    made = {path.name for path in (out / "test").iterdir()}
    tables = {"predictions.jsonl", "per_class.csv", "worst.csv", "confusion.csv", "metrics.json"}
    shown = {"confusion.png", "report.html"} if parts == ["clips"] else set()
    assert made - {"vdl"} == tables | shown
