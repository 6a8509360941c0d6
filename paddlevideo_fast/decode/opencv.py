"""Says what to do where OpenCV cannot be used: four packages write the same folder `cv2/`."""

import importlib
import importlib.util
import re
from importlib import metadata

from paddlevideo_fast.errors import InstallationError

_LOWEST = (4, 8)
_PACKAGES = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)


def check_opencv() -> None:
    """Imports OpenCV.

    Raises:
        InstallationError: `cv2` cannot be imported, or is older than 4.8; the message names the installed
            packages of OpenCV and the commands that leave one of them.
    """
    try:
        version = importlib.import_module("cv2").__version__
        if tuple(map(int, re.findall(r"\d+", version)[:2])) >= _LOWEST:
            return
        problem, cause = f"OpenCV {version} is too old", None
    except Exception as error:  # a mixture of two packages may fail in any way
        problem, cause = f"OpenCV cannot be imported ({type(error).__name__}: {error})", error
    raise InstallationError(f"{problem}; {_advice()}") from cause


def _advice() -> str:
    versions = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    installed = [f"{name} {versions[name]}" for name in _PACKAGES if name in versions]
    new = "pip install 'opencv-python-headless>=4.8'"
    pinned = next((one for one in installed if one.startswith("opencv-contrib-python ")), None)
    if pinned and importlib.util.find_spec("paddlex"):
        new = f"pip install {pinned.replace(' ', '==')}"  # PaddleX wants this version
    if not installed:
        return f"no package of it is installed: type  {new}"
    names = " ".join(one.split()[0] for one in installed)
    several = "these packages write the same folder cv2/, keep one of them"
    reason = several if len(installed) > 1 else "installed"
    return f"{reason}: {', '.join(installed)}. Type  pip uninstall -y {names}  and then  {new}"
