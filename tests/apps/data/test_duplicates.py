"""`data check --duplicates`: copies of encoded videos are found, others are not; the index, brute force."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from itertools import combinations
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data import fingerprints
from paddlevideo_fast.apps.data.fingerprints import RATE, Prints, Video
from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.data.matching import Match, align, candidates, distance, groups, matches
from paddlevideo_fast.apps.data.motion import render_clip
from paddlevideo_fast.errors import PaddleVideoFastError
from tests.support.json_lines import entries_of
from tests.support.numbered_clips import write_matrix

NUM_FRAMES, FPS = 72, 24


def scene(seed: int, name: str = "right") -> np.ndarray:
    """Three seconds: uint8 [72, 96, 96, 3]."""
    return render_clip(name, NUM_FRAMES, 96, np.random.default_rng([7, seed]))


def write(path, frames, crf=23, fps=FPS):
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"crf": str(crf), "preset": "ultrafast", "x264-params": "log-level=-1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps), options=options)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24")))
        container.mux(stream.encode())


def with_logo(frames):
    made = frames.copy()
    made[:, 4:18, 66:92] = 255
    made[:, 8:14, 70:88] = (200, 0, 0)
    return made


def scaled(frames, size):
    return np.stack([cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A video, copies of each kind, and others: two of the same kind of motion, one of nothing but black."""
    folder = tmp_path_factory.mktemp("videos")
    first = scene(0)
    write(folder / "a.mp4", first, crf=18)
    write(folder / "worse.mp4", first, crf=38)
    write(folder / "small.mp4", scaled(first, (64, 48)))
    write(folder / "cut.mp4", first[25:])
    write(folder / "logo.mp4", with_logo(first))
    write(folder / "mirrored.mp4", first[:, :, ::-1])
    for seed, name in ((1, "right"), (2, "right"), (3, "grow")):
        write(folder / f"other{seed}.mp4", scene(seed, name))
    write(folder / "large.mp4", scaled(scene(1, "right"), (128, 128)))
    write(folder / "black.mp4", np.zeros_like(first))
    (folder / "broken.mp4").write_text("no video")
    return folder


def run(capsys, *words):
    code = check(["--duplicates", "--workers=1", *map(str, words)])
    return SimpleNamespace(code=code, **capsys.readouterr()._asdict())


def pairs_of(file):
    return {
        frozenset(video["path"].rpartition("/")[2] for video in pair["videos"]): pair
        for pair in map(json.loads, file.read_text().splitlines())
    }


COPIES = ("a.mp4", "worse.mp4", "small.mp4", "cut.mp4", "logo.mp4", "mirrored.mp4")


def test_a_copy_that_its_header_mirrors_is_found(root, tmp_path, capsys):
    for name, matrix in (("a.mp4", (1, 0, 0, 1)), ("flipped.mp4", (-1, 0, 0, 1))):
        shutil.copy(root / "a.mp4", tmp_path / name)
        write_matrix(tmp_path / name, matrix)
    (tmp_path / "x.list").write_text("a.mp4 0\nflipped.mp4 0\n")
    output = tmp_path / "pairs.jsonl"
    assert run(capsys, tmp_path / "x.list", "--data_prefix", tmp_path, "--output_file", output).code == 1
    (pair,) = pairs_of(output).values()
    assert pair["is_mirrored"]


def test_copies_of_each_kind_are_found_and_others_are_not(root, tmp_path, capsys):
    (tmp_path / "x.list").write_text("".join(f"{path.name} 0\n" for path in sorted(root.glob("*.mp4"))))
    output = tmp_path / "out" / "pairs.jsonl"
    clean = tmp_path / "clean.list"
    words = (tmp_path / "x.list", "--data_prefix", root, "--output_file", output, "--write_clean", clean)
    done = run(capsys, *words)
    assert done.code == 1
    found = pairs_of(output)
    expected = {frozenset((one, other)) for one in COPIES for other in COPIES if one < other}
    assert set(found) == {*expected, frozenset(("other1.mp4", "large.mp4"))}
    for pair, one in found.items():
        assert one["kind"] == "duplicate"
        assert one["is_mirrored"] == ("mirrored.mp4" in pair)
        offset_sec = 25 / FPS * ("cut.mp4" in pair)
        assert abs(one["offset_sec"]) == pytest.approx(offset_sec, abs=1.01 / RATE)
        assert one["length_sec"] == pytest.approx(3 - offset_sec, abs=1.01 / RATE)
    kept = [line.split()[0] for line in clean.read_text().splitlines()]
    assert kept == ["a.mp4", "black.mp4", "large.mp4", "other2.mp4", "other3.mp4"]
    assert f"bad: {tmp_path}/x.list:3: {root}/broken.mp4: " in done.out
    assert (output.parent / "pairs.failures.txt").read_text().count("\n") == 1
    assert "1 show nothing but black or flat pictures: not compared" in done.err
    assert (
        "compared: 11, leaks: 0, pairs with conflicting labels: 0, groups: 2, copies in them: 6" in done.out
    )
    groups_of = [line for line in done.out.splitlines() if line.startswith(("group", "  copy"))]
    assert groups_of[0] == f"group 1 of 2: {tmp_path}/x.list:1: {root}/a.mp4"
    assert len(groups_of) == 8


def test_leaks_come_first_then_conflicting_labels(root, tmp_path, capsys):
    (tmp_path / "train.csv").write_text(
        "path,label,group\nother1.mp4,4,\na.mp4,1;2,\n\nlogo.mp4,3,\nother3.mp4,0,\nlarge.mp4,4,x\n"
    )
    (tmp_path / "valid.list").write_text("other2.mp4 0\nother3.mp4 1\n")
    (tmp_path / "test.jsonl").write_text('{"path": "worse.mp4", "label": 1, "end_frame": 60}\n')
    train, clean = tmp_path / "train.csv", tmp_path / "clean.csv"
    against = [tmp_path / "valid.list", tmp_path / "test.jsonl"]
    given = (train, "--data_prefix", root, "--against", *against, "--write_clean", clean)
    done = run(capsys, *given)
    assert done.code == 1
    kinds = [line.split()[0] for line in done.out.splitlines() if line.split()[0] != "videos:"]
    assert kinds == ["leak:", "leak:", "leak:", "conflicting", *["group", "copy:"] * 2, "videos", f"{clean}:"]
    lines = [line for line in done.out.splitlines() if line.startswith(("leak", "conf"))]
    assert lines[0].startswith(f"leak: {train}:3: {root}/a.mp4 is in {against[1]}:1: {root}/worse.mp4, 0 to")
    assert lines[1].startswith(f"leak: {train}:5: {root}/logo.mp4 is in {against[1]}:1: ")
    assert lines[2].startswith(f"leak: {train}:6: {root}/other3.mp4 is in {against[0]}:2: ")
    assert "a.mp4 with label 1, 2 and " in lines[3]
    assert "logo.mp4 with label 3 (" in lines[3]
    assert clean.read_text() == "path,label,group\nlarge.mp4,4,x\n"
    printed = entries_of(run(capsys, *given, "--json").out)
    assert [one["kind"] for one in printed] == [
        *["leak"] * 3,
        "conflict",
        "group",
        "group",
        "summary",
        "list",
    ]
    assert [(one["line"], one["labels"]) for one in printed[0]["videos"]] == [(3, [1, 2]), (1, [1])]
    assert (printed[6]["num_leaks"], printed[6]["num_copies"], printed[7]["num_lines"]) == (3, 2, 1)
    assert check(["--list", str(clean), "--data_prefix", str(root), "--workers=1"]) == 0


def people(kind: str, colour: tuple[int, int, int], size: float, phase: float) -> np.ndarray:
    """Three seconds of a person before a wall, uint8 [72, 240, 320, 3]; the wall is always the same."""
    rng = np.random.default_rng(5)
    rough = cv2.resize(
        rng.normal(0, 40, (6, 8, 3)).astype(np.float32), (320, 240), interpolation=cv2.INTER_CUBIC
    )
    wall = (np.array([150, 120, 100]) + rough + rng.normal(0, 6, rough.shape)).clip(0, 255).astype(np.uint8)
    noise, frames = np.random.default_rng([len(kind), int(100 * phase)]), []
    for number in range(72):
        frame, turn = wall.copy(), 2 * np.pi * (number / FPS + phase)
        jump = int(18 * size * abs(np.sin(1.2 * turn))) if kind == "jump" else 0
        lift = {"wave": 90 + 60 * np.sin(1.5 * turn), "box": 10 + 50 * np.sin(2 * turn), "stand": -70.0}
        arm = np.deg2rad(lift.get(kind, 90 * abs(np.sin(1.2 * turn))))
        x, hip, neck = 160, int(220 - 60 * size - jump), int(220 - 120 * size - jump)
        for side in (-1, 1):
            cv2.line(frame, (x, hip), (x + side * int(12 * size), 220 - jump), (40, 40, 90), int(10 * size))
            end = (int(x + side * 45 * size * np.cos(arm)), int(neck - 45 * size * np.sin(arm)))
            cv2.line(frame, (x, neck), end, colour, int(8 * size))
        cv2.line(frame, (x, hip), (x, neck), colour, int(24 * size))
        cv2.circle(frame, (x, neck - int(16 * size)), int(13 * size), (200, 160, 130), -1)
        frames.append((frame + noise.normal(0, 3, frame.shape)).clip(0, 255).astype(np.uint8))
    return np.stack(frames)


def test_people_at_one_wall_are_no_copies(tmp_path, capsys):
    folder, kinds = tmp_path / "videos", ("wave", "jump", "stand")
    for kind in kinds:
        for number, (colour, size, phase) in enumerate(
            (((180, 40, 40), 0.6, 0), ((40, 60, 190), 0.66, 0.13))
        ):
            write(folder / f"{kind}_{number}.mp4", people(kind, colour, size, phase))
        first = people(kind, (180, 40, 40), 0.6, 0)
        write(folder / f"{kind}_0_worse.mp4", first, crf=36)
        write(folder / f"{kind}_0_small.mp4", scaled(first[:, :, ::-1], (160, 120)))
    clean, output = tmp_path / "clean.list", tmp_path / "pairs.jsonl"
    names = sorted(path.name for path in folder.iterdir())
    (tmp_path / "x.list").write_text("".join(f"{name} {kinds.index(name.split('_')[0])}\n" for name in names))
    words = (tmp_path / "x.list", "--data_prefix", folder, "--output_file", output, "--write_clean", clean)
    done = run(capsys, *words)
    same = [[f"{kind}_0{end}.mp4" for end in ("", "_worse", "_small")] for kind in kinds]
    assert set(pairs_of(output)) == {frozenset(pair) for copies in same for pair in combinations(copies, 2)}
    kept = {
        line.split()[0][:-4].rpartition("_0")[0] or line.split()[0] for line in clean.read_text().splitlines()
    }
    assert kept == {*kinds, *(f"{kind}_1.mp4" for kind in kinds)}
    assert "look alike, and what moves in them differs: they are not taken for copies" in done.err


def test_a_second_run_and_a_larger_list_read_new_files_only(root, tmp_path, capsys, monkeypatch):
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("other1.mp4", "other2.mp4", "other3.mp4"):
        shutil.copy(root / name, videos)
    read = []
    real = fingerprints._prints

    def noted(reader):
        read.append(reader.path.rpartition("/")[2])
        if read[-1] == "other3.mp4" and len(read) == 3:
            raise KeyboardInterrupt
        return real(reader)

    monkeypatch.setattr(fingerprints, "_prints", noted)
    words = (videos, "--output_file", tmp_path / "pairs.jsonl")
    with pytest.raises(KeyboardInterrupt):
        run(capsys, *words)
    assert run(capsys, *words).code == 0
    assert read == ["other1.mp4", "other2.mp4", "other3.mp4", "other3.mp4"]
    shutil.copy(root / "large.mp4", videos)
    shutil.copy(root / "black.mp4", videos / "other2.mp4")
    read.clear()
    done = run(capsys, *words)
    assert done.code == 1
    assert sorted(read) == ["large.mp4", "other2.mp4"]
    assert f"group 1 of 1: {videos}/large.mp4" in done.out
    assert not list(tmp_path.glob(".journal*"))


def test_spans_of_a_file_are_its_parts(root, tmp_path, capsys):
    lines = [("a.mp4", 0, 2), ("a.mp4", 1, 3), ("a.mp4", 0, 2), ("other1.mp4", 9, 10), ("cut.mp4", 0, 1)]
    rows = [dict(zip(("path", "label", "start_sec", "end_sec"), (p, 0, a, b))) for p, a, b in lines]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "pairs.jsonl"
    done = run(capsys, tmp_path / "x.jsonl", "--data_prefix", root, "--output_file", output)
    found = [[video["line"] for video in json.loads(line)["videos"]] for line in output.open()]
    assert found == [[1, 3], [1, 5], [2, 5], [3, 5]]  # not 1 and 2, which are meant to overlap
    assert "other1.mp4: the span 9 to 10 s is not inside the video" in done.out


def test_folders_of_frames(root, tmp_path, capsys):
    for name, frames in (("one", scene(0)), ("two", scaled(scene(0), (48, 48))), ("three", scene(5))):
        (tmp_path / name).mkdir()
        for number, frame in enumerate(frames, 1):
            cv2.imwrite(str(tmp_path / name / f"img_{number:05}.jpg"), frame[:, :, ::-1])
    (tmp_path / "x.list").write_text("".join(f"{name} 72 0\n" for name in ("one", "two", "three")))
    done = run(capsys, tmp_path / "x.list", "--kind=frames", "--data_prefix", tmp_path)
    assert "groups: 1, copies in them: 1\n" in done.out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x.list --against x.list", "--against x.list: is the list itself"),
        ("x.list --against ./x.list", "--against x.list: is the list itself"),
        ("x.list --against none.list", "none.list: no such file or folder"),
        ("none.list", "none.list: no such file or folder"),
        ("", "LIST is missing"),
        ("x.list --list x.list", "LIST: is given twice"),
        ("x.list --write_clean x.list", "--write_clean x.list: would replace a list"),
        ("x.list --against y.list --output_file y.list", "--output_file y.list: would replace a list"),
        ("x.list --output_file z --write_clean z", "--output_file z: is the file of --write_clean, too"),
        ("x.list --job 0/2", "--output_file is missing"),
    ],
)
def test_a_wrong_command_line_is_one_message(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y"):
        (tmp_path / f"{name}.list").write_text("a.mp4 0\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PaddleVideoFastError) as caught:
        check(["--duplicates", *given.split()])
    assert str(caught.value).startswith(message)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(PaddleVideoFastError, match="--write_clean needs --duplicates"):
        check(["x.list", "--write_clean", "z.list"])


# --- fingerprints


def test_the_fingerprint_of_a_mirrored_video_follows_from_its_own(root):
    own, mirrored = (Video(str(root / name), None, "", "pyav").do() for name in ("a.mp4", "mirrored.mp4"))
    one, other = own.prints(None), mirrored.prints(None)
    assert len(one.frame_hashes) == 3 * RATE
    assert distance(one.mirrored().frame_hashes, other.frame_hashes).mean() < 2
    assert distance(one.frame_hashes, other.frame_hashes).mean() > 16
    assert all(np.array_equal(*both) for both in zip(one.mirrored().mirrored(), one))


def test_looks_and_motions_of_what_shows_nothing(root):
    black = Video(str(root / "black.mp4"), None, "", "pyav").do().prints(None)
    assert not black.frame_hashes.any()
    assert not black.motion_hashes.any()
    assert align(black, black) is None


# --- the index and the alignment


def random_prints(rng, length, still=0.2):
    looks, motions = rng.integers(1, 2**64, (2, length), np.uint64)
    motions[rng.random(length) < still] = 0
    return Prints(looks, motions)


def flipped(rng, hashes, num_bits):
    """Hashes with other bits in `num_bits` random places."""
    bits = np.array(
        [
            np.bitwise_or.reduce(np.uint64(1) << places)
            for places in (rng.choice(64, num_bits, replace=False).astype(np.uint64) for _ in hashes)
        ]
    )
    return hashes ^ bits


@pytest.mark.parametrize("num_bits", [1, 2, 3])
def test_the_index_finds_what_brute_force_finds(num_bits):
    rng = np.random.default_rng(num_bits)
    videos = [random_prints(rng, 1) for _ in range(400)]
    near = [(flipped(rng, video.frame_hashes, num_bits), video.motion_hashes) for video in videos[:200]]
    videos += [Prints(*each) for each in near]
    videos += [video.mirrored() for video in videos[200:250]]
    looks = np.concatenate([video.frame_hashes for video in videos])
    mirrored = np.concatenate([video.mirrored().frame_hashes for video in videos])
    near = np.minimum(distance(looks[:, None], looks), distance(looks[:, None], mirrored)) <= num_bits
    brute = {(one, other) for one, other in np.argwhere(near).tolist() if one < other}
    assert len(brute) == 250
    assert brute <= set(map(tuple, candidates(videos).tolist()))


def test_distance_is_the_number_of_other_bits():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 2**64, (2, 50), np.uint64)
    expected = [bin(a ^ b).count("1") for a, b in zip(one.tolist(), other.tolist())]
    assert distance(one, other).tolist() == expected


def test_a_picture_that_thousands_share_makes_few_pairs():
    rng = np.random.default_rng(0)
    card = random_prints(rng, 12)
    videos = [Prints(*map(np.concatenate, zip(card, random_prints(rng, 30)))) for _ in range(1000)]
    copy = Prints(flipped(rng, videos[5].frame_hashes, 4)[8:], flipped(rng, videos[5].motion_hashes, 4)[8:])
    found = candidates([*videos, copy]).tolist()
    assert len(found) < 1000 * 60
    assert [5, 1000] in found
    assert align(videos[0], videos[1]) is None


def test_align_gives_offset_and_length():
    rng = np.random.default_rng(0)
    one = random_prints(rng, 60)
    part = Prints(flipped(rng, one.frame_hashes[20:44], 5), one.motion_hashes[20:44])
    assert align(one, part) == Match(2.5, 3.0, False)
    assert align(part, one) == Match(-2.5, 3.0, False)
    assert align(one, part).reversed() == align(part, one)
    assert align(one, part.mirrored()) == Match(2.5, 3.0, True)
    assert align(one, random_prints(rng, 60)) is None


def test_long_videos_are_aligned():
    rng = np.random.default_rng(0)
    one = random_prints(rng, 1800 * RATE)
    part = Prints(flipped(rng, one.frame_hashes[4000:10000], 5), one.motion_hashes[4000:10000])
    assert align(one, part) == Match(500.0, 750.0, False)
    assert align(one, random_prints(rng, 6000)) is None


def test_the_same_scene_with_another_motion_is_no_copy():
    rng = np.random.default_rng(0)
    looks = np.repeat(rng.integers(1, 2**64, 1, np.uint64), 40)
    moving, other, still = (rng.integers(1, 2**64, 40, np.uint64) for _ in range(3))
    still[:] = 0
    assert align(Prints(looks, moving), Prints(looks, moving)) == Match(0.0, 5.0, False)
    assert align(Prints(looks, moving), Prints(looks, other)) is None
    assert align(Prints(looks, moving), Prints(looks, still)) is None
    assert align(Prints(looks, still), Prints(looks, still)) == Match(0.0, 5.0, False)


def test_all_pairs_of_a_group_are_found():
    rng = np.random.default_rng(0)
    one = random_prints(rng, 40, still=0)
    videos = [Prints(flipped(rng, one.frame_hashes, 2), one.motion_hashes) for _ in range(40)]
    found = matches([*videos, random_prints(rng, 40)], lambda one, other: True)
    assert len(found) == 40 * 39 // 2


def test_groups():
    assert groups([(4, 5), (0, 3), (3, 7), (1, 2), (2, 5)]) == [[0, 3, 7], [1, 2, 4, 5]]
    assert groups([]) == []
