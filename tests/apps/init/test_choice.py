"""What `init` decides by itself: the recipe, what its training takes here, and which videos stay together."""

import json
import re
import shutil

import av
import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.init import choice, init_dataset
from paddlevideo_fast.apps.init.init_dataset import Found
from paddlevideo_fast.apps.init.together import copies, likely_pattern, united
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.decode import open_video


@pytest.fixture(scope="module")
def videos(motion_dataset):
    lines = motion_dataset.train_list.read_text().splitlines()
    return [motion_dataset.root / line.rsplit(" ", 1)[0] for line in lines][:16]


@pytest.fixture
def folder(tmp_path, videos):
    """Two classes of eight videos each; the last of the first class is a mirrored copy of its first."""
    for number, video in enumerate(videos):
        place = tmp_path / "videos" / ("run" if number < 8 else "walk") / f"{number}.mp4"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, place)
    mirrored(videos[0], tmp_path / "videos/run/7.mp4")
    return tmp_path / "videos"


def mirrored(video, target):
    """Writes a video mirrored from left to right."""
    with open_video(str(video)) as reader:
        write(np.stack([*reader])[:, :, ::-1], target, round(reader.avg_fps))


def write(frames, target, rate=10):
    with av.open(str(target), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def sides(folder):
    return {
        line.rsplit(" ", 1)[0]: side
        for side in ("train", "valid")
        for line in (folder / f"{side}.list").read_text().splitlines()
    }


def test_copies_are_groups_of_clips(folder):
    clips = [Found(path, ("run",)) for path in sorted((folder / "run").iterdir())]
    assert copies(clips, 1) == [[0, 7]]


@pytest.mark.parametrize("seed", range(6))
def test_copies_stay_on_one_side(folder, tmp_path, seed, capfd):
    words = ["init", folder, "--output", tmp_path / "set", "--no_measure", "--workers", 1, "--seed", seed]
    assert main([*map(str, words), "--valid_share", "0.5"]) == 0
    found = sides(tmp_path / "set")
    assert found["run/0.mp4"] == found["run/7.mp4"]
    told = capfd.readouterr().out
    assert "videos that show the same as another one: 2, such as run/0.mp4 and run/7.mp4" in told
    assert main([*map(str, words), "--valid_share", "0.5", "--copies", "ignore"]) == 0
    assert "show the same" not in capfd.readouterr().out


def test_copies_on_both_sides_of_a_given_split_are_told(folder, tmp_path, capfd):
    for name in ("0.mp4", "7.mp4"):
        side = "train" if name == "0.mp4" else "val"
        for label in ("run", "walk"):
            place = tmp_path / "split" / side / label / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / label / (name if label == "run" else "8.mp4"), place)
    assert main(["init", str(tmp_path / "split"), "--output", str(tmp_path / "set"), "--no_measure"]) == 0
    told = capfd.readouterr().out
    assert "copies are in training and in validation, which makes validation too good: 2 groups" in told


def test_groups_that_share_a_clip_become_one():
    assert united(["a", "a", "b", "c", "d"], [[1, 2], [2, 3]]) == ["a", "a", "a", "a", "d"]
    assert united(["a", "b"], []) == ["a", "b"]


@pytest.mark.parametrize(
    ("paths", "groups"),
    [
        (["run/person1_1.mp4", "run/person1_2.mp4", "run/person2_1.mp4", "run/person2_2.mp4"], 2),
        (
            [
                "run/v_run_g01_c01.avi",
                "run/v_run_g01_c02.avi",
                "run/v_run_g02_c01.avi",
                "run/v_run_g02_c02.avi",
            ],
            2,
        ),
        (["run/clip_001.mp4", "run/clip_002.mp4", "run/clip_003.mp4", "run/clip_004.mp4"], None),
        (["run/a.mp4", "run/b.mp4", "run/c.mp4"], None),
        (["run/Camera-1 morning.mp4", "run/Camera-1 noon.mp4", "run/camera-2.mp4", "run/camera-2b.mp4"], 2),
    ],
)
def test_names_that_suggest_groups(paths, groups):
    pattern = likely_pattern(paths, ["run"] * len(paths))
    if groups is None:
        assert pattern is None
    else:
        found = [re.search(pattern, path) for path in paths]
        assert len({match[0] if not match.groups() else match[1] for match in found}) == groups


def test_names_that_suggest_groups_are_told_with_what_to_type(tmp_path, videos, capfd):
    for number, video in enumerate(videos):
        place = (
            tmp_path / "videos" / ("run" if number < 8 else "walk") / f"person{number // 2 % 4}_{number}.mp4"
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, place)
    words = ["init", str(tmp_path / "videos"), "--output", str(tmp_path / "set"), "--no_measure"]
    assert main(words) == 0
    told = capfd.readouterr().out
    (pattern,) = re.findall(r"--group '(.*?)'\n", told)
    assert "names suggest that videos belong together, in 4 groups" in told
    shutil.rmtree(tmp_path / "set")
    assert main([*words, "--group", pattern]) == 0
    found = sides(tmp_path / "set")
    people = {
        side: {re.search("person(.)", path)[1] for path in found if found[path] == side}
        for side in found.values()
    }
    assert not people["train"] & people["valid"]
    assert "names suggest" not in capfd.readouterr().out


def test_weights_and_the_camera_decide(monkeypatch):
    def names(has_gpu, **changes):
        traits = choice.Traits(
            **{"num_videos": 60, "still": 0.1, "seconds": 4.0, "short_side": 64, **changes}
        )
        return [each.network for each in choice.choices(has_gpu, traits)]

    monkeypatch.setattr(choice, "has_weights", lambda name: True)
    assert names(False) == ["tsm_lite0", "tsm", "x3d"]
    assert choice.advice(False, "init") == ""
    monkeypatch.setattr(choice, "has_weights", lambda name: False)
    assert names(False) == ["tsm", "x3d"]
    assert names(False, still=0.6) == ["x3d", "tsm"]
    assert names(False, still=0.6, short_side=240) == ["tsm", "x3d"]  # 64 pixels show too little of it
    assert names(False, still=0.6, seconds=90.0) == ["tsm", "x3d"]  # a clip of X3D is too short a part
    assert 'pip install "paddlevideo_fast[weights]"' in choice.advice(False, "init")
    assert names(True)[0] == "tsm"
    assert choice.advice(True, "init") == ""


def test_the_share_of_the_picture_that_stays(tmp_path):
    """Half of the picture moves, the other half has noise alone."""
    rng = np.random.default_rng(0)
    frames = rng.integers(90, 110, (9, 64, 64, 3)).astype("uint8")
    for number, frame in enumerate(frames):
        frame[:, :32] = 25 * number
    write(frames, tmp_path / "half.mp4")
    found = [Found(tmp_path / "half.mp4", ("a",))]
    for full in (False, True):
        (probed,) = init_dataset.probe(found, 1, full).values()
        assert probed.still == pytest.approx(0.5, abs=0.05)


def test_many_videos_train_a_head_on_a_cpu(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(choice, "has_weights", lambda name: True)
    words = ["init", str(folder), "--no_measure", "--workers", "1", "--output"]
    assert main([*words, str(tmp_path / "few")]) == 0
    few = capfd.readouterr().out
    assert "recipe: tsm_lite0_small fine-tunes weights of ImageNet\n" in few
    assert re.search(
        r"instead: only the head trains, on stored features:  \S+ features .* and then .* train ", few
    )
    assert "next: paddlevideo-fast features" not in few
    monkeypatch.setattr(choice, "_MOST_TUNED", 10)
    assert main([*words, str(tmp_path / "many")]) == 0
    many = capfd.readouterr().out
    assert "only its head trains, on stored features, since there are many videos for a CPU\n" in many
    assert re.search(r"instead: the whole network trains:  \S+ train ", many)
    features, training = re.findall("next: (.*)  #", many)[:2]
    assert features.startswith("paddlevideo-fast features")
    assert "-o features=" in training


def test_weights_need_few_epochs_on_a_cpu(folder, tmp_path, capfd):
    words = [str(folder), "--output", str(tmp_path / "set"), "--no_measure", "--workers", "1"]
    assert main(["init", *words, "--recipe", "tsm_lite0"]) == 0
    assert load_config(tmp_path / "set")["epochs"] == 20  # and 60 from random weights
    assert "recipe: tsm_lite0_small as you have said" in capfd.readouterr().out


@pytest.mark.slow
def test_the_time_that_init_names_is_near_the_time_of_the_training(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(choice, "has_weights", lambda name: False)
    monkeypatch.setattr(choice, "_STILL", 2.0)  # no camera stands still
    named = []
    measured = choice.training_times
    monkeypatch.setattr(choice, "training_times", lambda *words: named.append(measured(*words)) or named[-1])
    assert main(["init", str(folder), "--output", str(tmp_path / "set"), "--workers", "1"]) == 0
    told = capfd.readouterr().out
    assert re.search(
        r"recipe: tsm_small trains a small network from random weights; training takes about", told
    )
    assert re.search(
        r"instead: x3d .*; training takes about .*:  paddlevideo-fast init .* --recipe x3d\n", told
    )
    assert len(named) == 2
    assert all(named)
    assert {path.name for path in (tmp_path / "set").glob("*.yaml")} == {"config.yaml"}
    assert paddle.get_device()  # the trial has left the process as it was


def test_a_set_that_cannot_train_has_no_time(folder, tmp_path):
    assert (
        main(["init", str(folder), "--output", str(tmp_path / "set"), "--no_measure", "--workers", "1"]) == 0
    )
    config = tmp_path / "set/config.yaml"
    config.write_text(config.read_text() + "DISTRIBUTED: {nonsense: 1}\n")
    assert choice.training_times(config, 4) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "about 10 s"), (61, "about 60 s"), (600, "about 10 min"), (9000, "about 2.5 h")],
)
def test_times_in_words(seconds, words):
    assert choice.Times(seconds, 0).in_words(False) == choice.Times(0, seconds).in_words(True) == words


def test_a_recipe_whose_weights_are_published_downloads_them_by_name(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["init", str(folder), "--no_measure", "--workers", "1", "--recipe", "tsm_ucf101_videos"]
    assert main([*words, "--output", "set"]) == 0
    assert load_config("set")["MODEL"]["backbone"]["pretrained"] == "TSM_k400"
    told = capfd.readouterr().out
    assert "training starts from the weights TSM_k400, and downloads them first" in told
    assert "is missing" not in told
    (tmp_path / "data").mkdir()
    (tmp_path / "data/TSM_k400.pdparams").touch()
    assert main([*words, "--output", "other"]) == 0
    assert load_config("other")["MODEL"]["backbone"]["pretrained"] == "data/TSM_k400.pdparams"


def test_tracks_of_a_list_reach_the_new_lists(folder, tmp_path):
    tracks = folder / "001"
    tracks.write_text(
        "frame,id,x1,y1,x2,y2\n" + "".join(f"{n},{i},2,2,20,20\n" for n in range(8) for i in (1, 2))
    )
    rows = [
        f"{side}/{number}.mp4,{side},001,{person}"
        for side, numbers in (("run", range(6)), ("walk", range(8, 14)))
        for number in numbers
        for person in (1, 2)
    ]
    (folder / "people.csv").write_text("\n".join(["path,label,track,track_id", *rows]) + "\n")
    words = [
        "init",
        str(folder / "people.csv"),
        "--output",
        str(tmp_path / "set"),
        "--no_measure",
        "--workers",
        "1",
    ]
    assert main(words) == 0
    written = [
        json.loads(line)
        for side in ("train", "valid")
        for line in (tmp_path / f"set/{side}.jsonl").read_text().splitlines()
    ]
    assert len(written) == 24
    assert {(row["track"], str(row["track_id"])) for row in written} == {("001", "1"), ("001", "2")}


def test_a_recipe_that_init_chose_is_chosen_anew(folder, tmp_path, monkeypatch, capfd):
    words = ["init", str(folder), "--output", str(tmp_path / "set"), "--no_measure", "--workers", "1"]
    monkeypatch.setattr(choice, "has_weights", lambda name: False)
    assert main([*words, "--copies", "ignore"]) == 0
    (tmp_path / "set/config.yaml").unlink()
    monkeypatch.setattr(choice, "has_weights", lambda name: True)
    capfd.readouterr()
    assert main(words) == 0
    told = capfd.readouterr().out
    assert "recipe: tsm_lite0_small fine-tunes weights of ImageNet" in told
    assert "as before: --copies ignore" in told
