"""OpenCV of any of its packages, from 4.8 on; where it cannot work, a message says why and what to type."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import image_folder
from paddlevideo_fast.decode.opencv import check_opencv
from paddlevideo_fast.errors import EXIT_USER_ERROR, InstallationError
from tests.support.forking import Fresh

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("ending", [".jpg", ".png"])
def test_images_without_imread_color_rgb(ending, monkeypatch):
    """OpenCV before 4.11 gives all pictures in BGR."""
    ramp = np.linspace(0, 255, 48 * 32 * 3).reshape(32, 48, 3).astype(np.uint8)
    data = cv2.imencode(ending, ramp)[1].tobytes()
    expected = image_folder.decode_image(data, "x")
    monkeypatch.setattr(image_folder, "_RGB", None)
    np.testing.assert_array_equal(image_folder.decode_image(data, "x"), expected)


def _install(folder: Path, package: str, version: str) -> None:
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def _write_cv2(folder: Path, text: str) -> None:
    (folder / "cv2").mkdir(parents=True)
    (folder / "cv2/__init__.py").write_text(text)


@pytest.mark.annex
def test_a_mixture_of_two_packages_that_does_not_work(tmp_path):
    """As a user meets it: a command of a shell."""
    _write_cv2(tmp_path, "raise ImportError('libGL.so.1: cannot open shared object file')")
    _install(tmp_path, "opencv-contrib-python", "4.10.0.84")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for words in (["data", "check", "--list", "x"], ["train", "-c", "tsm_motion"]):
        done = Fresh(environment).run([ROOT / "paddlevideo_fast/__main__.py", *words], tmp_path)
        assert done.returncode == EXIT_USER_ERROR
        shown = done.stdout + done.stderr
        assert "InstallationError: OpenCV cannot be imported (ImportError: libGL.so.1" in shown
        assert "opencv-contrib-python 4.10.0.84" in shown
        assert "pip uninstall -y" in shown
        assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ({}, "4.7.0 is too old; no package of it is installed: type  pip install"),
        (
            {"opencv-python": "4.7.0.72"},
            "installed: opencv-python 4.7.0.72. Type  pip uninstall -y opencv-python ",
        ),
        (
            {"opencv-python": "4.7.0.72", "opencv-contrib-python": "4.10.0.84"},
            "keep one of them: opencv-python 4.7.0.72, opencv-contrib-python 4.10.0.84. "
            "Type  pip uninstall -y opencv-python opencv-contrib-python  and then  pip install",
        ),
    ],
)
def test_an_old_version(packages, message, tmp_path, monkeypatch):
    _write_cv2(tmp_path, "__version__ = '4.7.0'")
    for package, version in packages.items():
        _install(tmp_path, package, version)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cv2")
    with pytest.raises(InstallationError) as raised:
        check_opencv()
    assert message in str(raised.value)
