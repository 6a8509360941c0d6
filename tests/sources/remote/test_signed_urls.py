"""Commands over lists of signed URLs print and write nothing of the signatures."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.cli.commands import main
from tests.support.dask_cluster import dask_cluster
from tests.support.launching import overriding
from tests.support.stores import Store

SECRET = "hunter2"
SIGNATURES = [f"?X-Amz-Signatur%65={SECRET}", f"?apikey={SECRET}", f";token={SECRET}", f"#sig={SECRET}"]


class Signed:
    """Lists of signed URLs in a folder, and what commands over them print and write there.

    Attributes:
        folder: where commands write.
        url: the folder of the videos.
        lists: the folder of the lists, which hold the signatures.
    """

    def __init__(self, folder: Path, url: str, lists: Path) -> None:
        self.folder, self.url, self.lists = folder, url, lists
        self.printed = ""

    def run(self, *words: Any, code: int = 0) -> None:
        """Runs a command that ends with a code; what it prints goes to `printed`."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            found = main([str(word) for word in words])
        self.printed += out.getvalue()
        assert found == code, out.getvalue()

    def leaks(self) -> list[str]:
        """Where the secret is: lines that were printed, and files and their names."""
        found = [line for line in self.printed.splitlines() if SECRET in line]
        for path in self.folder.rglob("*"):
            if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes()):
                found.append(str(path.relative_to(self.folder)))
        return found


@pytest.fixture
def signed(http_store: Store, motion_data: Path, tmp_path: Path, monkeypatch: Any, capfd: Any) -> Any:
    folder, lists = tmp_path / "written", tmp_path / "lists"
    folder.mkdir()
    lists.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (motion_data / "broken.mp4").write_text("no video")
    url = http_store.publish(motion_data)
    for name in ("train", "valid"):
        lines = (motion_data / f"{name}.list").read_text().splitlines() + ["broken.mp4 0", "gone.mp4 1"]
        signed_lines = []
        for number, line in enumerate(lines):
            path, label = line.split()
            signed_lines.append(f"{url}{path}{SIGNATURES[number % len(SIGNATURES)]} {label}\n")
        (lists / f"{name}.list").write_text("".join(signed_lines))
    yield Signed(folder, url, lists)
    (motion_data / "broken.mp4").unlink()
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err


def test_the_data_tools(signed: Signed) -> None:
    listed, prefix = signed.lists / "valid.list", signed.url
    options = ["--list", listed, "--workers", "1"]
    signed.run("data", "check", *options, code=1)
    assert "gone.mp4?…: there is no such object" in signed.printed
    clean = signed.lists / "clean.list"
    signed.run("data", "check", *options, "--output_file", clean, code=1)
    assert clean.read_text() == "".join(listed.read_text().splitlines(keepends=True)[:-2])
    assert "warning: " in signed.printed
    assert "clean.list: has the URLs as they were, with what may be a signature" in signed.printed
    failures = (signed.lists / "clean.failures.txt").read_text()
    failed = [line.partition("\t")[0] for line in failures.splitlines()]
    assert failed == [f"{prefix}broken.mp4", f"{prefix}gone.mp4"]
    packed = signed.folder / "packed"
    signed.run("data", "pack", *options, "--output", packed, code=1)
    assert f"{prefix}gone.mp4\t" in (packed / "failures.txt").read_text()
    below = ["--data_prefix", prefix]
    signed.run("data", "extract", *options, *below, "--output", signed.folder / "frames", code=1)
    assert "broken\t" not in signed.printed
    words = [*options, *below, "--preset", "intra", "--output", signed.folder / "prepared"]
    signed.run("data", "prepare", *words, code=1)
    prepared = (signed.folder / "prepared" / "valid.list").read_text().split()
    assert prepared[0].endswith(".mp4")
    assert len(prepared) == 16
    signed.run("data", "pack", *options, "--output", packed, "--job", "0/1")
    assert signed.leaks() == []


def test_a_cluster_and_its_journals(signed: Signed) -> None:
    listed = signed.lists / "valid.list"
    with dask_cluster(signed.folder, 1) as cluster:
        words = [
            "--list",
            listed,
            "--scheduler",
            cluster.address,
            "--output_file",
            signed.folder / "clean.list",
        ]
        signed.run("data", "check", *words, "--job", "0/1")
    assert list(signed.folder.glob(".journal-*"))
    assert signed.leaks() == []


def test_files_that_differ_in_their_queries_alone(signed: Signed) -> None:
    listed = signed.lists / "two.list"
    listed.write_text(f"{signed.url}get?id=1&k={SECRET} 0\n{signed.url}get?id=2&k={SECRET} 1\n")
    signed.run("data", "pack", "--list", listed, "--output", signed.folder / "two", code=2)
    assert "two.list:2: " in signed.printed
    assert "get is in the list with another query, too" in signed.printed
    assert signed.leaks() == []


@pytest.mark.slow
def test_training_and_what_follows(signed: Signed, tiny_text: str, motion_data: Path) -> None:
    config = signed.folder / "tiny.yaml"
    output = signed.folder / "out"
    config.write_text(tiny_text.format(data=motion_data, output=output))
    settings = ["epochs=1", "report=true", "DATASET.max_bad_share=0.5", "DATASET.num_workers=1"]
    settings.append(f"STORAGE.cache_dir={signed.folder / 'blocks'}")
    for name, listed in (("train", "train"), ("valid", "valid"), ("test", "valid")):
        settings += [
            f"DATASET.{name}.file_path={signed.lists}/{listed}.list",
            f"DATASET.{name}.data_prefix=null",
        ]
    words = ["-c", config, *overriding(*settings)]
    signed.run("train", *words)
    assert "gone.mp4?…" in signed.printed
    assert "gone.mp4?…\t" in (output / "bad_samples.txt").read_text()
    weights = output / "tiny_best.pdparams"
    signed.run("test", *words, "-w", weights)
    signed.run("features", *words, "-w", weights, "--output", signed.folder / "features", code=1)
    signed.run("doctor", *words)
    signed.run("export", "-c", config, "-w", weights, "--output", signed.folder / "program")
    program = signed.folder / "program" / "tiny"
    video = (signed.lists / "valid.list").read_text().split()[0]
    pictures = ["--annotated", signed.folder / "annotated", "--json"]
    signed.run("predict", "-i", video, "--model_file", program, *pictures)
    (annotated,) = (signed.folder / "annotated").rglob("*.*")
    assert annotated.name == Path(video.partition("?")[0]).name
    signed.run("predict", "-i", f"{signed.url}gone.mp4?sig={SECRET}", "--model_file", program, code=2)
    assert signed.leaks() == []


def test_configs_with_signatures_are_refused(signed: Signed, tiny_text: str, motion_data: Path) -> None:
    config = signed.folder / "tiny.yaml"
    config.write_text(tiny_text.format(data=motion_data, output=signed.folder / "out"))
    for signature in SIGNATURES:
        url = f"{signed.url}train.list{signature}"
        signed.run("train", "-c", config, "-o", f"DATASET.train.file_path={url}", code=2)
        signed.run("train", "-c", config, "-w", f"{signed.url}best.pdparams{signature}", code=2)
    assert signed.printed.count("the URL holds a query, fragment or parameter that may be") == 8
    assert signed.leaks() == []
