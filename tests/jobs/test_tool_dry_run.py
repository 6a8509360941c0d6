"""`--dry_run` of the tools that store videos: what it counts and estimates, and that it writes nothing."""

import re
import shutil
import tempfile

import pytest

from paddlevideo_fast.apps.data import frames, packing, videos
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.jobs import dry_run
from tests.support.json_lines import entries_of

TOOLS = {
    "extract": ("frames", frames.Task, "*/*.jpg"),
    "prepare": ("mp4", videos.Task, "*.mp4"),
    "pack": ("shards", packing.Task, "*.data"),
}
each_tool = pytest.mark.parametrize("tool", TOOLS)
NUM_FRAMES = {number: 30 + 12 * number for number in range(6)}  # 360 in all


@pytest.fixture
def root(make_clip, tmp_path, monkeypatch):
    """Six videos of growing length with a list; temporary folders go to `temporary`."""
    for number, num_frames in NUM_FRAMES.items():
        make_clip(tmp_path / "videos" / f"{number}.mp4", num_frames, size=(160, 120))
    (tmp_path / "all.list").write_text("".join(f"{number}.mp4 0\n" for number in NUM_FRAMES))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


@pytest.fixture
def run(root, capsys):
    """Function that runs a tool on the list: exit code, stdout, stderr."""

    def start(tool, *more, name="all.list"):
        words = ["--list", root / name, "--data_prefix", root / "videos", "--output", root / "out"]
        words += ["--shard_size", 2] if tool == "pack" else []
        capsys.readouterr()
        code = main(["data", tool, *map(str, [*words, "--workers", 1, *more])])
        return (code, *capsys.readouterr())

    return start


def listing(root):
    paths = sorted(root.rglob("*"))
    return [(path, path.stat().st_mtime_ns if path.is_file() else None) for path in paths]


def number(pattern, text):
    value, unit = re.search(pattern + r"([\d.]+) ?(bytes|KB|MB)?", text).groups()
    return float(value) * {"bytes": 1, "KB": 1e3, "MB": 1e6, None: 1}[unit]


@each_tool
@pytest.mark.parametrize("num_frames", [300, 24])
def test_it_says_what_a_run_reads_and_writes(run, root, tool, num_frames, monkeypatch):
    monkeypatch.setattr(dry_run, "_NUM_FRAMES", num_frames)
    before = listing(root)
    code, out, _ = run(tool, "--dry_run")
    assert (code, listing(root)) == (0, before)
    size = sum(path.stat().st_size for path in (root / "videos").iterdir())
    assert number("to read: 6 videos, ", out) == pytest.approx(size, rel=0.01)
    assert f"from {root / 'videos'}\n" in out
    assert "of 6 videos" + (" in 3 shards" if tool == "pack" else "") in out
    assert re.search(r"time: about \d+ s with 1 process, by 3 of the videos", out)
    assert out.endswith("\ndry run: nothing was written\n")
    assert number("about ", out) == pytest.approx(sum(NUM_FRAMES.values()), rel=0.3)
    assert run(tool)[0] == 0
    written = sum(path.stat().st_size for path in (root / "out").rglob(TOOLS[tool][2]))
    estimate = number(r"of 6 videos(?: in 3 shards)?, ", out)
    assert written / 1.7 < estimate < written * 1.7

    before = listing(root)
    code, out, _ = run(tool, "--dry_run")
    assert (code, listing(root)) == (0, before)
    total = "3 of 3 shards" if tool == "pack" else "6 of 6 videos"
    assert f"done already: {total}\n" in out
    assert "nothing but lists and notes" in out
    (result,) = entries_of(run(tool, "--dry_run", "--json")[1])
    assert result["done_already"]["num_done"] == result["done_already"]["num_all"] == int(total.split()[0])
    assert result["to_write"] == {"folder": str(root / "out"), "num_bytes": 0}


@each_tool
def test_what_is_done_already_is_left_out(run, root, tool):
    run(tool)
    for name in ("4", "5", "4.mp4", "5.mp4", "00002.data", "00002.index"):
        path = root / "out" / name
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    before = listing(root)
    _, out, _ = run(tool, "--dry_run")
    assert listing(root) == before
    assert f"done already: {'2 of 3 shards' if tool == 'pack' else '4 of 6 videos'}\n" in out
    assert "to read: 2 videos" in out
    assert number("about ", out) == NUM_FRAMES[4] + NUM_FRAMES[5]
    if tool != "prepare":
        _, out, _ = run(tool, "--dry_run", "--overwrite")
        assert listing(root) == before
        assert "to read: 6 videos" in out


@each_tool
def test_wrong_input_ends_as_in_a_run(run, root, tool, monkeypatch):
    def both(*more, **options):
        real, dry = run(tool, *more, **options), run(tool, *more, "--dry_run", **options)
        assert real[0] == dry[0] == 2
        assert real[2] == dry[2]
        return dry[2]

    assert "none.list" in both(name="none.list")
    (root / "out").write_text("a file")
    assert "is a file; give a folder" in both()
    (root / "out").unlink()
    (root / "out").mkdir()
    (root / "out" / "provenance.json").write_text("{")
    assert "is damaged" in both()
    (root / "out" / "provenance.json").unlink()
    assert "--merge: " in both("--merge")
    if tool != "prepare":
        run(tool)
        assert "give --overwrite" in both("--short_side", "60")


@each_tool
def test_ctrl_c_leaves_nothing(run, root, tool, monkeypatch):
    def interrupted(task):
        raise KeyboardInterrupt

    monkeypatch.setattr(TOOLS[tool][1], "do", interrupted)
    before = listing(root)
    assert run(tool, "--dry_run")[0] == 130
    assert listing(root) == before


def test_videos_that_fail_are_named_and_a_full_disk_is_a_warning(run, root, monkeypatch):
    monkeypatch.setattr(dry_run, "free_bytes", lambda folder: 2000)
    (root / "videos" / "0.mp4").unlink()
    (root / "videos" / "1.mp4").write_text("no video")
    code, out, err = run("pack", "--dry_run")
    assert code == 0
    assert "; 1 of them are missing or empty" in out
    assert f"failed: {root / 'videos' / '1.mp4'}" in err
    assert "free there: 2 KB\n" in out
    assert "the disk is too small for that" in err
    (root / "bad.list").write_text("0.mp4 0\n1.mp4 0\n")
    _, out, _ = run("pack", "--dry_run", name="bad.list")
    assert "unknown, as none of 2 videos that were tried decodes" in out


def test_parts_and_folders_of_frames(run, root, capsys):
    (root / "parts.jsonl").write_text(
        "".join(
            f'{{"path": "5.mp4", "label": 0, "start_frame": {10 * part}, "end_frame": {10 * part + 10}}}\n'
            for part in range(8)
        )
    )
    _, out, _ = run("prepare", "--dry_run", name="parts.jsonl")
    assert "to read: 8 parts of 1 video" in out
    assert "about 80 frames of 8 videos" in out
    ends = {0: 30, 3: 2, 4: 2, 5: 2}  # most of the smallest file
    lines = [
        f'{{"path": "{name}.mp4", "label": 0, "start_frame": 0, "end_frame": {end}}}\n'
        for name, end in ends.items()
    ]
    (root / "spans.jsonl").write_text("".join(lines))
    _, out, _ = run("extract", "--dry_run", name="spans.jsonl")
    assert "about 36 frames of 4 videos" in out
    assert run("extract")[0] == 0
    words = ["--kind", "frames", "--data_prefix", root / "out", "--output", root / "packed", "--dry_run"]
    capsys.readouterr()
    assert main(["data", "pack", *map(str, [root / "out" / "all.list", *words])]) == 0
    out = capsys.readouterr().out
    assert "to read: 6 folders of frames, " in out
    assert not (root / "packed").exists()
