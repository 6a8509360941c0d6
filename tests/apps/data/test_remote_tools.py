"""The data tools read from URLs and write to them what they write to folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.apps.data import command as data
from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import build, check
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.report import report
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.cli import run_command
from paddlevideo_fast.jobs import executor
from tests.support.content import content
from tests.support.stores import Store


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_clip: Any) -> Path:
    root = tmp_path_factory.mktemp("set")
    for name in ("walk/a.mp4", "walk/b.mp4", "run/c.mp4"):
        (root / name).parent.mkdir(exist_ok=True)
        make_clip(root / name, 10)
    (root / "run" / "d.mp4").write_text("no video")
    (root / "train.list").write_text("walk/a.mp4 1\nrun/c.mp4 0\nrun/d.mp4 0\nwalk/b.mp4 1\n")
    return root


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _files(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if name != "provenance.json"}


def _objects(store: Store, url: str) -> dict[str, bytes]:
    return {name: store.get(url + name) for name in store.names(url) if name != "provenance.json"}


def _run(tool: Callable[..., int], *words: Any) -> int:
    return run_command(tool, [*map(str, words), "--workers", "1"])


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        (prepare_list, ["--short_side", "48", "--preset", "intra"]),
        (pack, ["--short_side", "0", "--shard_size", "2"]),
        (extract, []),
    ],
)
def test_outputs_are_those_of_a_folder(
    s3_store: Store, videos: Path, tmp_path: Path, tool: Any, options: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = s3_store.publish(videos), f"{s3_store.url}{tool.__name__}/"
    here = tmp_path / "here"
    lists = ["--list", videos / "train.list", "--data_prefix", videos]
    assert _run(tool, *lists, "--output", here, *options) == 1
    remote = ["--list", f"{source}train.list", "--data_prefix", source, "--output", output, *options]
    assert _run(tool, *remote, "--dry_run") == 0
    assert "to read: 4 videos\n" in capsys.readouterr().out
    assert not s3_store.names(output)
    assert _run(tool, *remote) == 1
    expected, found = _files(here), _objects(s3_store, output)
    assert sorted(found) == sorted(expected)
    for name in expected:
        if name == "prepared.jsonl":
            mine, theirs = (
                [json.loads(line) for line in data.splitlines()] for data in (expected[name], found[name])
            )
            for one, other in zip(mine, theirs):
                assert other.pop("source") == f"{source}{one['name']}"
                assert one.pop("source").endswith(one["name"])
                assert isinstance(other.pop("mtime_ns"), str)
                del one["mtime_ns"]
                assert one == other
        elif not name.endswith("failures.txt"):
            assert found[name] == expected[name], name
    s3_store.reset()
    assert _run(tool, *remote) == 1  # what is done is not done again
    stored = [one["path"] for one in s3_store.requests if one["method"] == "PUT"]
    assert not [path for path in stored if path.endswith((".mp4", ".data", ".jpg"))]
    assert _run(tool, *remote, "--dry_run") == 0
    assert "done already: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tool", "options"),
    [(prepare_list, ["--preset", "intra"]), (pack, ["--shard_size", "1"]), (extract, []), (check, [])],
)
def test_shares_of_several_machines_are_merged(
    s3_store: Store, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Any, options: Any
) -> None:
    """The store has what a run of all puts there; a merge before the last share is done is refused."""
    source = s3_store.publish(videos)
    given = ["--list", f"{source}train.list", "--data_prefix", source, *options]

    def words(name: str) -> list[str]:
        folder = f"{s3_store.url}{name}/{tool.__name__}/"
        return [
            *given,
            *(["--output_file", f"{folder}clean.list"] if tool is check else ["--output", folder]),
        ]

    def on_machine(name: str, *more: str) -> int:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return run_command(tool, [*words("shares"), *more])

    assert _run(tool, *words("all")) == 1
    assert on_machine("first", "--job", "0/2", "--workers", "1") == 0
    assert on_machine("third", "--merge") == 2
    assert on_machine("second", "--job", "1/2", "--workers", "1") == 0
    assert on_machine("third", "--merge") == 1
    found, expected = (_objects(s3_store, f"{s3_store.url}{name}/") for name in ("shares", "all"))
    assert found == expected
    assert len(found) > 1
    assert not [name for name in s3_store.names(f"{s3_store.url}shares/") if "/." in name]


def test_check_and_list(s3_store: Store, videos: Path, tmp_path: Path, capsys: Any) -> None:
    source = s3_store.publish(videos)
    clean = f"{s3_store.url}clean.list"
    words = ["--list", f"{source}train.list", "--data_prefix", source, "--output_file", clean]
    assert _run(check, *words) == 1
    assert s3_store.get(clean) == b"walk/a.mp4 1\nrun/c.mp4 0\nwalk/b.mp4 1\n"
    assert f"bad: {source}run/d.mp4: not a video" in capsys.readouterr().out
    assert _run(check, f"{source}walk") == 0
    local = tmp_path / "lists"
    for place, root in ((local, videos), (f"{s3_store.url}lists", source)):
        words = ["--root", root, "--kind", "video", "--output", place, "--relative", "--valid_share", "0"]
        assert run_command(build, [*map(str, words)]) == 0
    assert _objects(s3_store, f"{s3_store.url}lists/") == _files(local)


def test_wrong_outputs_are_told_in_one_sentence(
    http_store: Store, s3_store: Store, videos: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(videos, tmp_path / "set")
    words = ["--list", videos / "train.list", "--data_prefix", videos]
    for output, told in (
        (f"{http_store.url}out", "a web server does not list folders"),
        ("s3://no-such-bucket/out", "PaddleVideoFastError: "),
        ("s4://bucket/out", "fsspec has no driver for s4://"),
        ("s3://user:secret-word@bucket/out", "user name and password"),
    ):
        assert data.main(["pack", *map(str, words), "--workers", "1", "--output", output]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "secret-word" not in error
        assert len(error.strip().splitlines()) == 1


def test_urls_in_a_list_need_a_folder_above_them(http_store: Store, tmp_path: Path, capsys: Any) -> None:
    listed = tmp_path / "urls.list"
    listed.write_text(f"{http_store.url}walk/a.mp4 1\n")
    assert _run(prepare_list, "--list", listed, "--output", tmp_path / "out", "--preset", "intra") == 2
    assert "urls.list:1: " in (error := capsys.readouterr().err)
    assert "is a URL; give the URL above all videos as --data_prefix" in error


def test_a_store_that_takes_no_files_is_told_before_the_work(
    s3_store: Store, videos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executor, "_do", lambda *given: pytest.fail("works before it looks at its output"))
    given = ["--list", videos / "train.list", "--data_prefix", videos]
    for tool in (check, report, prepare_list, pack):
        output = "--output_file" if tool is check else "--output"
        assert _run(tool, *given, output, "s3://there-is-no-such-bucket/out") == 2
        assert "there-is-no-such-bucket" in capsys.readouterr().err
