"""Training, resume and test on what each person of a video does."""

import json
import shutil

import pytest

from paddlevideo_fast.cli import main
from tests.support.launching import overriding
from tests.support.tracked_people import LENGTH, corner, ultralytics, write_people


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    """Two videos with two persons each, whose records have their tracks, and a record with a box."""
    folder = tmp_path_factory.mktemp("street")
    for name in "ab":
        write_people(folder / f"{name}.mp4")
    both = [(n, person, *corner(n, person)) for n in range(LENGTH) for person in (1, 2)]
    (folder / "all.csv").write_text(ultralytics(both))
    rows = [
        {"path": f"{name}.mp4", "label": label, "track": "all.csv", "track_id": person}
        for label, (name, person) in enumerate((name, person) for name in "ab" for person in (1, 2))
    ]
    rows += [{"path": "a.mp4", "label": 0, "box": [2, 4, 90, 60], "start_sec": 0.2}] * 4
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.list.jsonl").write_text(text)
    (folder / "valid.list.jsonl").write_text(text)
    return folder


@pytest.fixture
def config(street, tiny_text, tmp_path):
    text = tiny_text.format(data=street, output=tmp_path / "out").replace(".list}", ".list.jsonl}")
    path = tmp_path / "tiny.yaml"
    path.write_text(text.replace("target_size: 28", "target_size: 40"))
    return path


def test_a_run_that_is_resumed_equals_one_that_was_not(config, tmp_path, assert_same_run, run):
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert main(["-c", str(config)]) == 0
    shutil.copytree(out, whole)
    another = overriding("resume=auto", "epochs=3", "DATASET.train.tracks={margin: 0.5}")
    assert main(["-c", str(config), *another]) == 2  # other clips are another set
    assert main(["-c", str(config), *overriding("resume_epoch=1")]) == 0
    assert_same_run(whole, out)
    assert main(["-c", str(config), "--test", "-w", str(whole / "tiny_best.pdparams")]) == 0


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("margin: -1", "expected float"),
        ("marign: 0", "did you mean 'margin'"),
        ("max_gap: 0", "gap"),
    ],
)
def test_wrong_settings_name_the_key(config, assert_refused, keys, text):
    key = "DATASET.train.tracks"
    assert text in assert_refused(config, f"-o #1  {key}", f"{key}={{{keys}}}")


def test_multigrid_trains_along_tracks(config, run_main):
    text = config.read_text().replace(
        "epochs: 2", "epochs: 2\nMULTIGRID: {SHORT_CYCLE: true, LONG_CYCLE: false}"
    )
    config.write_text(text.replace("target_size: 40", "target_size: 32"))
    sample = "PIPELINE.train.sample={name: DecodeSampler, num_frames: 4, sampling_rate: 2}"
    run_main(config, "--multigrid", *overriding(sample, "DATASET.batch_size=2"))
