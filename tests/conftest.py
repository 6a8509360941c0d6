"""Clips and small data sets that tests in every folder use. All are made here, with PyAV."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import av
import cv2
import numpy as np
import pytest
from hypothesis import settings

from paddlevideo_fast import log, registry
from paddlevideo_fast.machine import tune_process
from tests.support import numbered_clips
from tests.support.forking import Fresh, Template
from tests.support.numbered_clips import draw, read_number, write_clip, zero_packets
from tests.support.tiers import (  # noqa: F401  hooks
    WHOLE_TREE,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
    pytest_runtest_call,
)

if TYPE_CHECKING:
    from tests.support.stores import Store

REPO = Path(__file__).resolve().parent.parent

tune_process()  # as the commands that tests start: numbers of both are compared

# No test is about time, and a run of the suite can be had again.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A job in a shell's background ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Makes what a test has printed text that pytest-xdist can send: names of files may hold any bytes."""
    report = (yield).get_result()
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode("utf-8")) for title, text in report.sections
    ]


@pytest.fixture(autouse=True)
def _untouched_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away what an earlier run of the command line left on the package's logger, and its warnings."""
    monkeypatch.setattr(log, "_warned", set())
    logger = logging.getLogger("paddlevideo_fast")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _untouched_registries() -> Iterator[None]:
    """Takes back the components of users that a test has registered, also in registries of annexes."""
    before = {id(one): set(one._entries) for one in _registries()}
    yield
    for one in _registries():
        for name in set(one._entries) - before.get(id(one), set()):
            if not registry.is_own(one._entries[name]):
                gone = one._entries.pop(name).__module__
                if gone.startswith("plugin_"):  # so that its file registers again
                    sys.modules.pop(gone, None)


def _registries() -> list[registry.Registry]:
    own = (module for name, module in list(sys.modules.items()) if name.startswith("paddlevideo_fast."))
    values = [value for module in own for value in vars(module).values()]
    return list({id(each): each for each in values if type(each) is registry.Registry}.values())


@pytest.fixture(autouse=True)
def _untouched_environment() -> Iterator[None]:
    """Takes back what a command that ran in this process has set for itself, such as the devices it sees."""
    before, policy = dict(os.environ), os.sched_getscheduler(0)
    yield
    assert os.sched_getscheduler(0) == policy  # a thread at a real-time priority starves all others
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _untouched_signals() -> Iterator[None]:
    """Takes back handlers: a run that SIGTERM stopped ignores it then, and so would children of a pool."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def _http_server() -> Iterator[Store]:
    from tests.support import stores

    with stores.http_store() as store:
        yield store


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[Store]:
    from tests.support import stores

    with stores.s3_store() as store:
        yield store


@pytest.fixture
def http_store(_http_server: Store) -> Store:
    """A plain HTTP server with ranges; see `tests/support/stores.py`."""
    _http_server.reset()
    return _http_server


@pytest.fixture
def s3_store(_s3_server: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An S3-compatible server and the environment that leads to it; see `tests/support/stores.py`."""
    _s3_server.reset()
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server


class MotionDataset(NamedTuple):
    root: Path
    train_list: Path
    valid_list: Path
    classes: tuple[str, ...]


class RawFrames(NamedTuple):
    root: Path
    list_file: Path
    num_frames: int


@pytest.fixture(scope="session", autouse=True)
def _kept_clips(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each kind of clip is encoded once in a run, whatever test and whatever process asks for it."""
    base = tmp_path_factory.getbasetemp()
    numbered_clips.kept_clips = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "clips"


def _make_clip(path: Any, *args: Any, **kwargs: Any) -> Path:
    write_clip(path, *args, **kwargs)
    return Path(path)


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., Path]:
    """`write_clip`, which numbers the frames; gives the path."""
    return _make_clip


@pytest.fixture(scope="session")
def frame_number() -> Callable[[np.ndarray], int | None]:
    """Function from a decoded frame of `make_clip` to its number; None where it is unclear."""
    return read_number


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Forks processes that have imported Paddle already, on one thread, from this tree.

    Paddle 2 starts a thread when it is imported, which a fork would lose: there, processes start anew.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    import paddlevideo_fast  # noqa: F401, I001  Paddle 2.6 must come after it
    import paddle

    if paddle.__version__.startswith("2."):
        yield Fresh(environment)
        return
    with Template(tmp_path_factory.mktemp("template"), environment) as process:
        yield process


@pytest.fixture(scope="session")
def run_script(template: Fresh) -> Callable[..., subprocess.CompletedProcess]:
    """Function that runs a script of the repository: `run_script("data/x.py", *args, check=True)`."""

    def run(script: str, *args: Any, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess:
        whole = os.environ.get(WHOLE_TREE)
        if whole and script.startswith("data/"):  # the tools for data are an annex
            command = [sys.executable, str(Path(whole, script)), *map(str, args)]
            environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run(command, cwd=whole, env=environment, capture_output=True, text=True)
        else:
            done = template.run([REPO / script, *args], REPO, os.environ, timeout)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def motion_dataset(tmp_path_factory: pytest.TempPathFactory, run_script: Any) -> MotionDataset:
    """A motion data set: 32 training and 16 validation clips, 8 classes, 16 frames of 32×32."""
    root = tmp_path_factory.mktemp("motion") / "set"
    options = {"train": 32, "valid": 16, "size": 32, "frames": 16, "workers": 1}
    run_script("data/make_motion_dataset.py", "--output", root, *(f"--{k}={v}" for k, v in options.items()))
    classes = tuple((root / "classes.txt").read_text().split())
    return MotionDataset(root, root / "train.list", root / "valid.list", classes)


@pytest.fixture(scope="session")
def rawframes_dataset(tmp_path_factory: pytest.TempPathFactory) -> RawFrames:
    """Six folders of 12 frames `img_00001.jpg` …, three classes; list lines `folder num_frames label`."""
    root = tmp_path_factory.mktemp("rawframes")
    lines = []
    for clip in range(6):
        folder = root / f"class{clip % 3}" / f"clip{clip}"
        folder.mkdir(parents=True)
        for number in range(12):
            bgr = cv2.cvtColor(draw(number, 80, 48), cv2.COLOR_RGB2BGR)
            assert cv2.imwrite(str(folder / f"img_{number + 1:05}.jpg"), bgr)
        lines.append(f"{folder.relative_to(root)} 12 {clip % 3}\n")
    list_file = root / "frames.list"
    list_file.write_text("".join(lines))
    return RawFrames(root, list_file, 12)


@pytest.fixture(scope="session")
def broken_videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that do not decode, by what is wrong with them; `one_frame` alone is intact."""
    root = tmp_path_factory.mktemp("broken")
    files = {
        name: root / f"{name}.mp4" for name in ("empty", "text", "truncated", "damaged", "folder", "missing")
    }
    files["empty"].write_bytes(b"")
    files["text"].write_text("This is a text file with an unfortunate name.\n" * 20)
    files["folder"].mkdir()
    path = _make_clip(root / "intact.mp4", 40, container_options={"movflags": "faststart"})
    intact = path.read_bytes()
    files["truncated"].write_bytes(intact[: len(intact) * 2 // 3])
    files["damaged"].write_bytes(zero_packets(path, 26, 31))
    bgr = cv2.cvtColor(draw(0, 80, 48), cv2.COLOR_RGB2BGR)
    for kind in ("jpg", "png"):
        files[f"picture_{kind}"] = root / f"picture_{kind}.mp4"
        files[f"picture_{kind}"].write_bytes(cv2.imencode(f".{kind}", bgr)[1].tobytes())
    files["audio_only"] = root / "audio_only.mp4"
    with av.open(str(files["audio_only"]), "w") as container:
        sound = container.add_stream("aac", rate=16000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 16000
        container.mux(sound.encode(silence))
        container.mux(sound.encode())
    files["one_frame"] = _make_clip(root / "one_frame.mp4", 1)
    return files


@pytest.fixture(scope="session")
def real_clips_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of intact and damaged clips: real ones where they lie beside the repository, else generated.

    The file `corrupted.mp4` is damaged; all others are intact.
    """
    shared = Path(os.environ.get("PADDLEVIDEO_FAST_CLIPS", REPO.parent / "shared" / "clips"))
    if shared.is_dir():
        return shared
    root = tmp_path_factory.mktemp("clips")
    _make_clip(root / "ucf_example.avi", 60, (160, 120), codec="mpeg4", gop=60)
    _make_clip(root / "mma_demo.mp4", 80, (170, 128), gop=40, bframes=3, audio=True)
    _make_clip(root / "pancake.mkv", 70, (160, 90), gop=30)
    _make_clip(root / "rot90.mov", 3, (160, 90), rotation=90)
    data = bytearray((root / "mma_demo.mp4").read_bytes())
    data[len(data) // 3 : len(data) // 3 + 2000] = bytes(2000)
    (root / "corrupted.mp4").write_bytes(data)
    return root
