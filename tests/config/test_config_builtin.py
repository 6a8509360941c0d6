"""Configs that come with the package are found by name, from any folder."""

from collections import Counter
from pathlib import Path

import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.builtin import built_in_configs, config_folder
from paddlevideo_fast.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def problem_of(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path, check=False)
    (problem,) = caught.value.problems
    return problem


def test_no_two_have_one_name():
    paths = [path for path in CONFIGS.rglob("*.yaml") if "_base_" not in path.parts]
    assert Counter(path.stem for path in paths).most_common(1)[0][1] == 1
    assert sorted(built_in_configs().values()) == sorted(paths)
    assert config_folder() == CONFIGS


@pytest.mark.parametrize("name", ["tsm_k400_videos", "configs/recognition/tsm/tsm_k400_videos.yaml"])
def test_a_name_is_found_with_its_bases(name):
    config = load_config(name, check=False)
    assert config.path == str(CONFIGS / "recognition/tsm/tsm_k400_videos.yaml")
    assert config["MODEL"]["backbone"]["name"] == "ResNetTSM"


def test_a_file_wins(tmp_path):
    (tmp_path / "tsm_motion").write_text("model_name: mine\n")
    (tmp_path / "tsn_motion").mkdir()
    assert load_config("tsm_motion", check=False) == {"model_name": "mine"}
    assert load_config("tsn_motion", check=False)["model_name"] == "TSN_motion"


def test_a_folder_stands_for_its_config(tmp_path):
    (tmp_path / "my_set").mkdir()
    (tmp_path / "mine.yaml").write_text("_BASE_: my_set\nepochs: 2\n")
    assert problem_of("my_set") == "my_set  the folder has no config.yaml"
    (tmp_path / "my videos/walk").mkdir(parents=True)
    (tmp_path / "my videos/walk/a.mp4").write_bytes(b"")
    said = "the folder has no config.yaml; make a set of its videos with  paddlevideo-fast init 'my videos' "
    assert problem_of("my videos") == f"my videos  {said}--output my_set"
    (tmp_path / "my_set" / "config.yaml").write_text("epochs: 1\nseed: 3\n")
    assert load_config("my_set", check=False).path == "my_set/config.yaml"
    assert load_config("mine.yaml", check=False) == {"epochs": 2, "seed": 3}


def test_a_config_in_the_folder_above_is_named_as_the_folder(tmp_path, monkeypatch):
    (tmp_path / "my_set/below").mkdir(parents=True)
    (tmp_path / "my_set/config.yaml").write_text("epochs: 1\n")
    monkeypatch.chdir(tmp_path / "my_set/below")
    assert load_config("..", check=False).name == "my_set"


def test_a_key_of_a_section_at_the_top_says_the_section():
    for key, places in {
        "batch_size": "DATASET.batch_size",
        "lr": "OPTIMIZER.learning_rate",
        "num_classes": "MODEL.head.num_classes",
        "patience": "SELECTION.patience",
        "suffix": "DATASET.train.suffix or DATASET.valid.suffix or DATASET.test.suffix",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config("tsm_motion", [f"{key}=4"])
        assert caught.value.problems == [f"-o #1  {key}: unknown key; did you mean {places}?"]


def test_a_config_inherits_from_a_name(tmp_path):
    (tmp_path / "mine.yaml").write_text("_BASE_: tsm_motion\nepochs: 1\n")
    config = load_config("mine.yaml", check=False)
    assert (config["epochs"], config["model_name"]) == (1, "TSM_motion")
    assert config.where(("model_name",)).startswith(str(CONFIGS))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("tsm_k400", "either; did you mean tsm_k400_frames, tsm_k400_frames_nhwc"),
        ("tsm_motoin", "no built-in config has this name, either; did you mean tsm_motion, tsn_motion"),
        ("something", "no built-in config has this name, either; paddlevideo-fast zoo  lists them"),
        ("tsm_motion.yaml", "there is no such file; the built-in config is called tsm_motion"),
        ("configs/quickstart/tsm.yaml", "there is no such file; paths start from the current folder, "),
        ("_base_", "no built-in config has this name"),
    ],
)
def test_what_is_not_there_is_one_sentence_with_near_names(path, words):
    assert words in problem_of(path)


def test_an_inherited_name_that_is_wrong(tmp_path):
    (tmp_path / "mine.yaml").write_text("_BASE_: tsm_motoin\n")
    assert "_BASE_='tsm_motoin': there is no file tsm_motoin; no built-in" in problem_of("mine.yaml")
