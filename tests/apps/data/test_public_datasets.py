"""The scripts of Kinetics-400, UCF101 and Something-Something V2 on small trees of the sets' own layouts."""

import json
import shutil
from pathlib import Path

import pytest

from paddlevideo_fast.apps.data.public_datasets import k400, ssv2, ucf101
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest, build_dataset, read_class_names
from tests.support.json_lines import entries_of

REPO = Path(__file__).resolve().parents[3]
CONFIGS = REPO / "configs" / "recognition" / "tsm"
HEADER = "label,youtube_id,time_start,time_end,split\n"


@pytest.fixture(scope="module")
def clip(make_clip, tmp_path_factory):
    """A real video of each container that the sets have."""
    root = tmp_path_factory.mktemp("clips")
    codecs = {".mp4": "libx264", ".avi": "mpeg4", ".webm": "libvpx-vp9"}
    return {ending: make_clip(root / f"clip{ending}", 8, codec=codec) for ending, codec in codecs.items()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, text, windows=False):
    """Writes a file, `windows` with a byte order mark and that system's line ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if windows:
        text = "\ufeff" + text.replace("\n", "\r\n")
    path.write_bytes(text.encode())


def put(clip, *paths):
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clip[path.suffix], path)


def put_frames(*folders, count=2):
    for folder in map(Path, folders):
        folder.mkdir(parents=True)
        for number in range(1, count + 1):
            (folder / f"img_{number:05}.jpg").write_bytes(b"")


def lines(path):
    return Path(path).read_text(encoding="utf-8").splitlines()


# --- Kinetics-400


def k400_annotations(root=Path("data/k400/annotations")):
    """As the official files are: quotes where a name has spaces, other columns behind."""
    train = [
        '"petting animal (not cat)",aaaaaaaaaa0,10,20,train',
        '"massaging person\'s head",aaaaa_aaaa1,0,10,train',
        "zumba,-aaaaaaaaa2,1234,1244,train",
        '"answering, or not",aaaaaaaaaa3,5.0,15.0,train',
    ]
    write(root / "train.csv", HEADER.replace("\n", ",is_cc\n") + "".join(f"{row},0\n" for row in train))
    write(root / "validate.csv", HEADER + "zumba,bbbbbbbbbb0,1,11,validate\n")
    write(root / "test.csv", "youtube_id,time_start,time_end,split\ncccccccccc0,1,11,test\n")


def test_k400_in_flat_folders(here, clip, capsys):
    k400_annotations()
    put(
        clip,
        "data/k400/videos/train/aaaaaaaaaa0_000010_000020.mp4",
        "data/k400/videos/train/aaaaa_aaaa1_000000_000010.mp4",
        "data/k400/videos/train/aaaaaaaaaa3_000006_000016.mp4",
        "data/k400/videos/replacement/replacement_for_corrupted_k400/aaaaa_aaaa1_000000_000010.mp4",
        "data/k400/videos/val/bbbbbbbbbb0_000001_000011.mp4",
        "data/k400/videos/test/cccccccccc0_000001_000011.mp4",
    )
    assert k400([]) == 0
    assert lines("data/k400/class_names.txt") == [
        "answering, or not",
        "massaging person's head",
        "petting animal (not cat)",
        "zumba",
    ]
    assert lines("data/k400/train.list") == [
        "train/aaaaaaaaaa0_000010_000020.mp4 2",
        "replacement/replacement_for_corrupted_k400/aaaaa_aaaa1_000000_000010.mp4 1",
    ]
    assert lines("data/k400/val.list") == ["val/bbbbbbbbbb0_000001_000011.mp4 3"]
    missing = ["-aaaaaaaaa2_001234_001244", "aaaaaaaaaa3_000005_000015"]
    assert lines("data/k400/train_missing.txt") == missing
    assert not Path("data/k400/val_missing.txt").exists()
    said = capsys.readouterr()
    assert "data/k400/train.list: 2 of 4 clips" in said.out
    assert "4 classes, not the 400 of Kinetics-400" in said.err
    assert f"2 of 4 clips are not in data/k400/videos, such as {missing[0]}" in said.err
    assert "see whether all archives are unpacked" in said.err


@pytest.mark.parametrize("space", [" ", "_"])
def test_k400_in_class_folders_trains(here, clip, space):
    k400_annotations()
    names = ["petting animal (not cat)", "massaging person's head", "zumba", "answering, or not"]
    ids = ["aaaaaaaaaa0_000010_000020", "aaaaa_aaaa1", "-aaaaaaaaa2", "aaaaaaaaaa3_000005_000015"]
    for name, stem in zip(names, ids):
        put(clip, f"data/k400/videos/train/{name.replace(' ', space)}/{stem}.mp4")
    put(clip, "data/k400/videos/val/zumba/bbbbbbbbbb0.mp4")
    assert k400(["--shuffle"]) == 0
    cfg = load_config(CONFIGS / "tsm_k400_videos.yaml")
    dataset = build_dataset(cfg["DATASET"]["train"], cfg["PIPELINE"]["train"], training=True, seed=0)
    labels = {record.path.rsplit("/", 1)[1]: record.label for record in dataset.records}
    assert labels == {f"{stem}.mp4": label for stem, label in zip(ids, (2, 1, 3, 0))}
    assert dataset[ClipRequest(index=0, epoch=0)].clip.shape == (8, 224, 224, 3)
    valid = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=0)
    assert [record.label for record in valid.records] == [3]
    assert read_class_names("data/k400/class_names.txt", 4) == sorted(names)


def test_k400_frames(here, capsys):
    k400_annotations()
    # With .mp4 at the end, as PaddleVideo's folders of frames have it.
    put_frames("data/k400/rawframes/zumba/-aaaaaaaaa2_001234_001244.mp4", count=3)
    put_frames("data/k400/rawframes/zumba/bbbbbbbbbb0_000001_000011")
    Path("data/k400/rawframes/zumba/aaaaaaaaaa0_000010_000020").mkdir()
    assert k400(["--kind=frames", "--json"]) == 0
    assert lines("data/k400/train_frames.list") == ["zumba/-aaaaaaaaa2_001234_001244.mp4 3 3"]
    assert lines("data/k400/val_frames.list") == ["zumba/bbbbbbbbbb0_000001_000011 2 3"]
    out, err = capsys.readouterr()
    assert "aaaaaaaaaa0_000010_000020: no frame 'img_*', left out" in err
    train, valid, names = entries_of(out)
    assert train == {"file": "data/k400/train_frames.list", "num_lines": 1, "num_clips": 4}
    assert (valid["num_lines"], names["num_classes"]) == (1, 4)
    assert not Path("data/k400/train.list").exists()
    cfg = load_config(CONFIGS / "tsm_k400_frames.yaml")
    data = build_dataset(cfg["DATASET"]["train"], cfg["PIPELINE"]["train"], training=True, seed=0)
    assert [(record.num_frames, record.label) for record in data.records] == [(3, 3)]


def test_k400_a_split_alone_and_what_a_later_run_leaves(here, clip, capsys):
    k400_annotations(Path("csv"))
    put(clip, "mp4/bbbbbbbbbb0_000001_000011.mp4")
    options = ["--root=mp4", "--annotations=csv", "--output=lists"]
    assert k400(options) == 0
    assert not Path("lists/train.list").exists()
    assert len(lines("lists/train_missing.txt")) == 4
    assert "none of the 4 clips is in mp4; the list is not written" in capsys.readouterr().err
    rest = ["aaaaaaaaaa0_000010_000020", "aaaaa_aaaa1", "-aaaaaaaaa2", "aaaaaaaaaa3"]
    put(clip, *(f"mp4/{name}.mp4" for name in rest))
    assert k400(options) == 0
    assert len(lines("lists/train.list")) == 4
    assert not Path("lists/train_missing.txt").exists()


def test_k400_bom_windows_line_ends_and_quoted_everything(here, clip):
    rows = '"label","youtube_id","time_start","time_end"\n"zumba","aaaaaaaaaa0","10","20"\n\n'
    write(Path("data/k400/annotations/train.csv"), rows, windows=True)
    write(Path("data/k400/annotations/val.csv"), rows.replace("aaa0", "aaa1"), windows=True)
    put(clip, "data/k400/videos/aaaaaaaaaa0.mp4", "data/k400/videos/aaaaaaaaaa1.mp4")
    assert k400([]) == 0
    assert lines("data/k400/val.list") == ["aaaaaaaaaa1.mp4 0"]


def test_k400_wrong_folders(here, clip):
    def problem(*options):
        with pytest.raises(PaddleVideoFastError) as caught:
            k400(list(options))
        return str(caught.value)

    assert problem() == "data/k400/annotations: has no train.csv"
    k400_annotations()
    assert problem() == "data/k400/videos: no such folder"
    Path("data/k400/videos").mkdir()
    assert problem().endswith("expected aaaaaaaaaa0_000010_000020.*, found nothing")
    put(clip, "data/k400/videos/one.mp4", "data/k400/videos/.two.mp4", "data/k400/videos/.cache/three.mp4")
    put(clip, "data/k400/videos/four/folders/are too/deep.mp4")
    assert problem().endswith("found 1 others, such as data/k400/videos/one.mp4")
    put_frames("data/k400/rawframes/one")
    assert "expected aaaaaaaaaa0_000010_000020/img_00001.jpg, found 1 others" in problem("--kind=frames")
    put(clip, "data/k400/videos/a/zumba.mp4", "data/k400/videos/b/zumba.mp4")
    assert "a/zumba.mp4 and data/k400/videos/b/zumba.mp4 are both 'zumba'; keep one" in problem()
    shutil.copy("data/k400/annotations/validate.csv", "data/k400/annotations/val.csv")
    assert problem() == "data/k400/annotations: has val.csv and validate.csv; keep one"
    assert not list(Path("data/k400").glob("*.*"))


# --- UCF101


def ucf101_annotations(windows=False):
    root = Path("data/ucf101/annotations")
    write(root / "classInd.txt", "1 Hammering\n2 HammerThrow\n", windows)
    for split in (1, 2, 3):
        train = [f"Hammering/v_Hammering_g0{split}_c01.avi 1\n", "HammerThrow/v_HammerThrow_g04_c01.avi 2\n"]
        write(root / f"trainlist0{split}.txt", "".join(train), windows)
        write(root / f"testlist0{split}.txt", f"Hammering/v_Hammering_g0{split}_c02.avi\n", windows)


@pytest.mark.parametrize("folder", ["videos/", "videos/UCF-101/"])
def test_ucf101(here, clip, folder, capsys):
    ucf101_annotations(windows=True)
    for name in (
        "Hammering/v_Hammering_g01_c01",
        "Hammering/v_Hammering_g01_c02",
        "HammerThrow/v_HammerThrow_g04_c01",
    ):
        put(clip, f"data/ucf101/{folder}{name}.avi")
    assert ucf101([]) == 0
    # As in classInd.txt; sorted() has these two the other way round.
    assert lines("data/ucf101/class_names.txt") == ["Hammering", "HammerThrow"]
    root = here / "data/ucf101" / folder
    throw = f"{root}/HammerThrow/v_HammerThrow_g04_c01.avi 1"
    hammering = f"{root}/Hammering/v_Hammering_g01_c01.avi 0"
    assert lines("data/ucf101/ucf101_train_split_1_videos.txt") == [hammering, throw]
    assert lines("data/ucf101/ucf101_train_split_3_videos.txt") == [throw]
    assert lines("data/ucf101/ucf101_train_split_3_videos_missing.txt") == ["v_Hammering_g03_c01"]
    assert not Path("data/ucf101/ucf101_val_split_2_videos.txt").exists()
    assert "val_split_2_videos.txt: none of the 1 clips is in data/ucf101/videos" in capsys.readouterr().err
    cfg = load_config(CONFIGS / "tsm_ucf101_videos.yaml")
    dataset = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=0)
    assert dataset[ClipRequest(index=0, epoch=0)].clip.shape == (8, 224, 224, 3)
    assert dataset.records[0].label == 0


def test_ucf101_frames_of_one_split(here):
    ucf101_annotations()
    for name in (
        "Hammering/v_Hammering_g02_c01",
        "Hammering/v_Hammering_g02_c02",
        "HammerThrow/v_HammerThrow_g04_c01",
    ):
        put_frames(f"frames/{name}", count=4)
    assert ucf101(["--kind=frames", "--root=frames", "--splits", "2"]) == 0
    names = {path.name for path in Path("data/ucf101").glob("*.txt")}
    expected = [f"ucf101_{part}_split_2_rawframes.txt" for part in ("train", "val")]
    assert names == {"class_names.txt", *expected}
    assert lines(f"data/ucf101/{expected[1]}") == [f"{here}/frames/Hammering/v_Hammering_g02_c02 4 0"]


# --- Something-Something V2

TEMPLATES = [
    "Pretending to put [something] into [something]",
    "Putting [something], [something] and [something] on the table",
    "Poking [something] so lightly that it doesn't or almost doesn't move",
]


def ssv2_annotations(prefix):
    root = Path("data/ssv2/annotations")
    names = [template.replace("[", "").replace("]", "") for template in TEMPLATES]
    # Not in the order of the numbers: the numbers decide.
    write(root / f"{prefix}labels.json", json.dumps({names[2]: "2", names[0]: "0", names[1]: "1"}))
    train = [
        {"id": str(100 + n), "template": TEMPLATES[n], "label": "x", "placeholders": []} for n in (2, 0, 1)
    ]
    write(root / f"{prefix}train.json", json.dumps(train))
    write(root / f"{prefix}validation.json", json.dumps([{"id": 200, "template": TEMPLATES[1]}]))
    write(root / f"{prefix}test.json", json.dumps([{"id": "300"}]))


@pytest.mark.parametrize("prefix", ["something-something-v2-", ""])
def test_ssv2(here, clip, prefix):
    ssv2_annotations(prefix)
    put(clip, *(f"data/ssv2/videos/{name}.webm" for name in (100, 101, 200, 300)))
    assert ssv2([]) == 0
    assert lines("data/ssv2/train.list") == ["100.webm 0", "101.webm 1"]
    assert lines("data/ssv2/train_missing.txt") == ["102"]
    assert lines("data/ssv2/val.list") == ["200.webm 1"]
    cfg = load_config(CONFIGS / "tsm_ssv2_videos.yaml")
    dataset = build_dataset(cfg["DATASET"]["train"], cfg["PIPELINE"]["train"], training=True, seed=0)
    assert [record.label for record in dataset.records] == [0, 1]
    assert dataset[ClipRequest(index=0, epoch=0)].clip.shape == (8, 224, 224, 3)
    assert lines("data/ssv2/class_names.txt") == [
        "Pretending to put something into something",
        "Putting something, something and something on the table",
        "Poking something so lightly that it doesn't or almost doesn't move",
    ]


def test_ssv2_elsewhere_behind_links_and_shuffled(here, clip):
    ssv2_annotations("")
    put(clip, *(f"disk/{name}.webm" for name in (100, 101, 102, 200)))
    Path("data/ssv2/videos").mkdir()
    Path("data/ssv2/videos/part").symlink_to(here / "disk")
    assert ssv2([]) == 0
    plain = lines("data/ssv2/train.list")
    assert plain == ["part/102.webm 2", "part/100.webm 0", "part/101.webm 1"]
    shuffled = []
    for output in ("a", "b", "c", "d"):
        assert ssv2(["--shuffle", f"--output={output}"]) == 0
        shuffled.append(lines(f"{output}/train.list"))
    assert shuffled == [shuffled[0]] * 4
    assert shuffled[0] != plain
    assert sorted(shuffled[0]) == sorted(plain)


def test_ssv2_frames(here):
    ssv2_annotations("")
    put_frames("data/ssv2/rawframes/101", "data/ssv2/rawframes/200", count=5)
    assert ssv2(["--kind=frames"]) == 0
    assert lines("data/ssv2/train_frames.list") == ["101 5 1"]
    assert lines("data/ssv2/val_frames.list") == ["200 5 1"]
    cfg = load_config(CONFIGS / "tsm_ssv2_frames.yaml")
    dataset = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=0)
    assert [(record.num_frames, record.label) for record in dataset.records] == [(5, 1)]


# --- what is wrong


@pytest.mark.parametrize(
    ("tool", "file", "text", "message"),
    [
        (k400, "train.csv", "", "@:1: lacks the columns label, time_end, time_start, youtube_id"),
        (k400, "train.csv", HEADER, "@: lists no clip"),
        (k400, "train.csv", HEADER.replace("label,", ""), "@:1: lacks the columns label"),
        (k400, "train.csv", HEADER + "\nzumba,a,1,2\n", "@:3: expected the columns label,youtube_id"),
        (k400, "train.csv", HEADER + "a, b,a,1,2,train\n", "@:2: expected the columns label,youtube_id"),
        (k400, "train.csv", HEADER + "zumba,a,one,2,train\n", "@:2: time_start or time_end is no number: o"),
        (k400, "train.csv", HEADER + "zumba,a,inf,2,train\n", "@:2: time_start or time_end is no number"),
        (k400, "train.csv", HEADER + ",a,1,2,train\n", "@:2: label or youtube_id is empty"),
        (k400, "train.csv", HEADER + "zumba,a,1,2,test\n", "@:2: is of the split 'test', exp"),
        (k400, "train.csv", HEADER + '"zumba"!,a,1,2,train\n', "@:2: ',' expected after '\"'"),
        (k400, "train.csv", HEADER + '"zumba,a,1,2,train\n', "@:2: unexpected end of data"),
        (k400, "train.csv", HEADER + "zumba,a,1,2,train\nyoga,a,1,2,train\n", "@:3: 'a_000001_000002' is"),
        (k400, "validate.csv", HEADER + "zumba,-aaaaaaaaa2,1234,1244,val\n", "@:2: '-aaaaaaaaa2_0"),
        (k400, "validate.csv", HEADER + "juggling,b,1,2,val\n", "@:2: class 'juggling' is not in"),
        (ucf101, "classInd.txt", "one Run\n", "@:1: expected 'number class', found 'one Run'"),
        (ucf101, "classInd.txt", "1 Hammering\n\n3 Run\n", "@: expected the numbers 1 to 2"),
        (ucf101, "classInd.txt", "1 Run\n2 Run\n", "@:2: number or class is there twice"),
        (ucf101, "classInd.txt", "", "@: expected the numbers 1 to 1"),
        (ucf101, "trainlist02.txt", "\n", "@: lists no clip"),
        (ucf101, "trainlist02.txt", "v_Hammering_g01_c01.avi 1\n", "@:1: expected 'class/video'"),
        (ucf101, "trainlist02.txt", "Run/v_Run_g01_c01.avi\n", "@:1: class 'Run' is not in"),
        (ucf101, "trainlist02.txt", "Hammering/v_a.avi 2\n", "@:1: 'Hammering' has number 1 in"),
        (ucf101, "testlist01.txt", "Hammering/v_Hammering_g01_c01.avi\n", "is listed at data/ucf101"),
        (ucf101, "testlist03.txt", None, "@: no such file"),
        (ssv2, "labels.json", '{"a": "0",\n"b": }', "@:2: is no valid JSON"),
        (ssv2, "labels.json", '["a"]', "@: expected an object of class names with the numbers 0, 1"),
        (ssv2, "labels.json", '{"a": "1"}', "@: expected an object of class names"),
        (ssv2, "labels.json", '{"a": "first"}', "@: expected an object of class names"),
        (ssv2, "labels.json", "{}", "@: expected an object of class names"),
        (ssv2, "labels.json", '{"a": "0"}', "train.json: entry 1: class 'Poking something so lightly"),
        (ssv2, "train.json", "", "@:1: is no valid JSON"),
        (ssv2, "train.json", "{}", "@: expected a list of objects"),
        (ssv2, "train.json", "[]", "@: lists no clip"),
        (ssv2, "train.json", '[{"id": "1"}]', "@: entry 1: expected an object with 'id' and 'template'"),
        (ssv2, "train.json", '["1"]', "@: entry 1: expected an object"),
        (ssv2, "train.json", '[{"id": "1", "template": 3}]', "@: entry 1: expected an object"),
        (ssv2, "validation.json", json.dumps([{"id": 100, "template": TEMPLATES[0]}]), "@: entry 1: '100'"),
        (ssv2, "validation.json", None, "has no something-something-v2-validation.json or @"),
    ],
)  # fmt: skip
def test_wrong_annotations(here, tool, file, text, message):
    """In the message, @ stands for the file."""
    k400_annotations()
    ucf101_annotations()
    ssv2_annotations("")
    path = Path(f"data/{tool.__name__}/annotations") / file
    path.unlink()
    if text is not None:
        write(path, text)
    with pytest.raises(PaddleVideoFastError) as caught:
        tool([])
    assert message.replace("@", file) in str(caught.value)


def test_annotations_that_are_no_text(here):
    ssv2_annotations("")
    Path("data/ssv2/annotations/train.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PaddleVideoFastError, match=r"train\.json: is not text in UTF-8"):
        ssv2([])


# --- as a user runs them


@pytest.mark.parametrize("name", ["k400", "ucf101", "ssv2"])
def test_as_a_command(name, run_script, tmp_path):
    script = f"data/{name}/build_lists.py"
    done = run_script(script, "--annotations", tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ToolError: {tmp_path}")
    assert "Traceback" not in done.stderr
