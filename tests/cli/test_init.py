"""`paddlevideo-fast init`: from a folder, a CSV or a list to lists and a config that trains."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import cv2
import paddle
import pytest

from paddlevideo_fast.assembly.data import data_identity, make_split
from paddlevideo_fast.assembly.features import file_states
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.spec import RunSpec
from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.preparation import init_dataset
from paddlevideo_fast.preparation.init_dataset import Probe, split


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
    """`run(words)`: the exit code of the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: main(["init", *map(str, words), "--workers", "1"])


def lists(folder: Path):
    return {
        side: [line.rsplit(" ", 1) for line in (folder / f"{side}.list").read_text("utf-8").splitlines()]
        for side in ("train", "valid")
    }


def test_a_folder_of_classes(run, folder, tmp_path, capfd):
    assert run(folder, "--output", "my_set", "--group", r"game_(\d)") == 1  # a file does not decode
    out, err = capfd.readouterr()
    names = {"train.list", "valid.list", "classes.txt", "config.yaml", "data_set.png", "failures.txt"}
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
    assert cv2.imread(str(tmp_path / "my_set/data_set.png")).shape[1] > 500
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
    run(folder, "--output", "my_set")
    told = capfd.readouterr().out
    path = tmp_path / "my_set" / "config.yaml"
    config = load_config(path)
    assert config["MODEL"]["head"]["num_classes"] == 2
    assert config["epochs"] == config["OPTIMIZER"]["learning_rate"]["max_epoch"] == 60
    assert config["DATASET"]["batch_size"] == 4  # of 8 in the recipe: there are 16 clips
    assert not any("RandomFlip" in step for step in config["PIPELINE"]["train"]["transform"])
    assert "next: paddlevideo-fast train my_set" in told
    again = f"next: paddlevideo-fast init {folder} --output my_set_head --recipe tsm_ucf101_videos"
    for words in (again, "next: paddlevideo-fast features my_set_head --output my_set_head/features"):
        assert words in told
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
    for number, video in enumerate(videos[20:]):
        shutil.copy(video, folder / "打球" / f"new_{number}.mp4")
    run(folder, "--output", "my_set")
    after = lists(tmp_path / "my_set")
    for side, lines in before.items():
        assert [line for line in lines if line not in after[side]] == []
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + len(videos[20:])
    assert load_config(config)["seed"] == 7
    assert "config.yaml is kept" in capfd.readouterr().out


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
    table = tmp_path / "all.csv"
    names = ('"swim, fast"', "run/jump")
    rows = [f'"{video}",{names[number % 2]}' for number, video in enumerate(videos[:8])]
    table.write_text("\n".join(["Path,Label", *rows]))
    assert run(table, "--output", "out") == 0
    assert (tmp_path / "out/classes.txt").read_text() == "run/jump\nswim, fast\n"
    labels = Counter(label for lines in lists(tmp_path / "out").values() for _, label in lines)
    assert labels == {"0": 4, "1": 4}
    words = ["--classes", motion_dataset.root / "classes.txt", "--valid", motion_dataset.valid_list]
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
    for name in ("1", "2", "3"):
        put(videos[0], tmp_path / "set" / name / "1.mp4")
    assert run("set", "--output", "out") == 0
    shutil.copytree(tmp_path / "set/1", tmp_path / "set/10")
    assert run("set", "--output", "out") == 0
    assert (tmp_path / "out/classes.txt").read_text() == "1\n2\n3\n10\n"


def test_given_names_that_move_classes_are_refused(run, folder, tmp_path, capfd):
    run(folder, "--output", "my_set")
    names = tmp_path / "names.txt"
    names.write_text("打球\nturn left\n", "utf-8")
    assert run(folder, "--output", "my_set", "--classes", names) == 2
    assert "class 0 is 'turn left' in my_set/classes.txt and '打球' here" in "".join(capfd.readouterr())
    names.write_text("turn left\n打球\nnew\n", "utf-8")
    assert run(folder, "--output", "my_set", "--classes", names) == 1  # a file does not decode
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
    table = tmp_path / "x.csv"
    rows = [f"{video},{'ab'[number % 2]},cam {number // 4}" for number, video in enumerate(videos[:24])]

    def write(rows):
        table.write_text("\n".join(["path,label,group", *rows]))

    def sides():
        lists = {side: (tmp_path / f"out/{side}.jsonl").read_text() for side in ("train", "valid")}
        return {json.loads(line)["group"]: side for side, text in lists.items() for line in text.splitlines()}

    write(rows)
    assert run(table, "--output", "out") == 0
    before = sides()
    capfd.readouterr()
    write([*rows, *(f"{video},a,cam 9" for video in videos[24:28])])
    assert run(table, "--output", "out", "--seed", "5", "--valid_share", "0.5") == 0
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
    assert "--recipe slowfast_ucf101_videos fine-tunes trained weights" in capfd.readouterr().out


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
    assert RunSpec.for_training(config).clips_of_update() == sizes[0]


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
        (["set", "--recipe", "tsm_k400"], "tsm_k400  there is no such file"),
        (["set", "--recipe", "tsm_k400_frames"], "reads frames; take a config for videos"),
        (["set", "--classes", "few.txt"], "few.txt: lacks the class 'b'"),
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
    found = {
        side: [json.loads(line) for line in (tmp_path / f"out/{side}.jsonl").read_text().splitlines()]
        for side in ("train", "valid")
    }
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
    found = {
        side: [
            json.loads(line)["label"] for line in (tmp_path / f"out/{side}.jsonl").read_text().splitlines()
        ]
        for side in ("train", "valid")
    }
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
    for number, video in enumerate(videos[:12]):
        put(video, tmp_path / "here/videos" / "ab"[number % 2] / f"{number}.mp4")
    assert run("here/videos", "--output", "here/my_set", "--recipe", "slowfast") == 0
    text = (tmp_path / "here/my_set/config.yaml").read_text()
    assert str(tmp_path) not in text
    assert "_BASE_: slowfast_motion" in text or paddle.get_device() != "cpu"

    def identity(config):
        """What a run compares before it resumes, and stored features before they are read."""
        spec = RunSpec.of(config)
        split = make_split(spec, "train", "NCTHW", Distribution())
        return data_identity(spec, split), file_states(split.dataset)

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
