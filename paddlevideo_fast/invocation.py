"""How this process was started, and so how its user types another command.

The texts of the package name a command as `paddlevideo-fast export`. Whoever has started a script of a clone,
or `python -m paddlevideo_fast`, reads the command in that form: help, errors and log go through `as_started`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict

PROGRAM = "paddlevideo-fast"

# The scripts of a clone that start the same functions.
SCRIPTS: Dict[str, str] = {
    "train": "tools/main.py",
    "test": "tools/main.py --test",
    "launch": "tools/launch.py",
    "export": "tools/export_model.py",
    "predict": "tools/predict.py",
    "convert": "tools/convert_weights.py",
    "doctor": "tools/doctor.py",
    "plan": "tools/multigrid_plan.py",
    "plot": "tools/plot_run.py",
    "data list": "data/build_file_list.py",
    "data check": "data/check_videos.py",
    "data prepare": "data/prepare_videos.py",
    "data extract": "data/extract_rawframes.py",
    "data pack": "data/pack_frames.py",
    "data motion": "data/make_motion_dataset.py",
    "data k400": "data/k400/build_lists.py",
    "data ucf101": "data/ucf101/build_lists.py",
    "data ssv2": "data/ssv2/build_lists.py",
}

# PaddleVideo's users and PaddleX start these by the script at the root.
_MAIN = Path(__file__).resolve().parents[1] / "main.py"
_MAIN_SCRIPTS = {**SCRIPTS, "train": "main.py", "test": "main.py --test"}

_COMMAND = re.compile(rf"\b{PROGRAM}((?: data)? [a-z0-9]+)?\b")


def program(name: str) -> str:
    """What help and usage call a command: `paddlevideo-fast export`, or the script that was started."""
    return re.sub(r"^python (?!-m )", "", as_started(f"{PROGRAM} {name}"))


def as_started(text: str) -> str:
    """A text in which `paddlevideo-fast NAME` becomes what the user of this process types for it."""
    started = Path(sys.argv[0] if sys.argv else "").resolve()
    if started.as_posix().endswith("/paddlevideo_fast/__main__.py"):
        return _COMMAND.sub(rf"python -m {__package__}\1", text)
    scripts = _MAIN_SCRIPTS if started == _MAIN else SCRIPTS
    if started != _MAIN and not started.as_posix().endswith(tuple(f"/{name}" for name in SCRIPTS.values())):
        return text

    def script(match: re.Match[str]) -> str:
        found = scripts.get((match[1] or "").strip())
        return f"python {found}" if found else match[0]

    return _COMMAND.sub(script, text)
