"""A place to run texts in: the repository's folders, or tools that only pretend."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from test_tipc.tipc import running  # noqa: E402
from test_tipc.tipc.running import Machine  # noqa: E402

# Stands for all tools. Appends what it is called with to `calls`; fails where `broken` has the stage's name.
FAKE_TOOL = """
import os, sys
from pathlib import Path
name, words = Path(sys.argv[0]).stem, sys.argv[1:]
stage = {"export_model": "export", "predict": "predict"}.get(name, "eval" if "--test" in words else name)
stage = "train" if stage in ("main", "launch") else stage
with open("calls", "a") as calls:
    calls.write(" ".join([stage, *words]) + "\\n")
print("what", stage, "says")
if stage in Path("broken").read_text().split():
    sys.exit(3)
if stage == "train":
    folder = Path(next(word.split("=", 1)[1] for word in words if word.startswith("output_dir=")))
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in ("00001", "00002"):
        (folder / f"Net_epoch_{epoch}.pdparams").write_text(epoch)
    for step in range(int(os.environ.get("FAKE_STEPS", "0"))):
        ips = 1.0 if step < 5 else 10.0 + 10.0 * (step % 2)
        loss = 2 - step / 10
        print(f"epoch:[1/1] train step:{step:<4d} loss: {loss:7.5f} lr: 0.1 ips: {ips:.5f} instance/sec")
"""


class Workplace(NamedTuple):
    root: Path
    text: Path

    def change(self, key: str, value: str) -> None:
        """Gives the first line with this key another value."""
        lines = self.text.read_text().splitlines()
        number = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
        lines[number] = f"{key}:{value}"
        self.text.write_text("\n".join(lines) + "\n")

    def calls(self) -> list:
        """The stages that were run, with their arguments."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def stages(self) -> list:
        """The names of the stages that were run."""
        return [call.split()[0] for call in self.calls()]

    def break_stages(self, *stages: str) -> None:
        """From now on these fail."""
        (self.root / "broken").write_text(" ".join(stages))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """The current folder, with tools that pretend, TSM's text and a machine without a GPU."""
    (tmp_path / "tools").mkdir()
    for name in ("main", "launch", "export_model", "predict"):
        (tmp_path / f"tools/{name}.py").write_text(FAKE_TOOL)
    text = tmp_path / "tsm.txt"
    shutil.copy(ROOT / "test_tipc/configs/TSM/train_infer_python.txt", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.delenv("BENCHMARK_LOG_DIR", raising=False)
    monkeypatch.setattr(running, "_ask", lambda python: Machine(0, "1.2.3", "abc"))
    place = Workplace(tmp_path, text)
    place.break_stages()
    return place


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a user's clone has and these scripts need."""
    root = tmp_path_factory.mktemp("clone")
    for folder in ("configs", "tools", "data", "test_tipc"):
        made = ("motion*", "k400", "ucf101", "ssv2", "output", "__pycache__")
        kept = shutil.ignore_patterns(*made, *(["data"] if folder == "test_tipc" else []))
        shutil.copytree(ROOT / folder, root / folder, ignore=kept)
    return root


@pytest.fixture(scope="session")
def bash(repository: Path) -> Callable[..., subprocess.CompletedProcess]:
    """`bash(script, *words)` in the copy of the repository; nothing that it has started stays behind."""

    def run(script: str, *words: Any) -> subprocess.CompletedProcess:
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("MKL_DEBUG_CPU_TYPE", None)  # the stored results are those of Paddle's own choice
        environment["PADDLEVIDEO_FAST_MKL"] = "off"
        command = ["bash", f"test_tipc/{script}", *map(str, words)]
        process = subprocess.Popen(
            command,
            cwd=repository,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=400)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    return run
