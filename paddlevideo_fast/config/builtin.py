"""The configs that come with the package. A user names one by its stem, from any folder."""

import difflib
import os
from pathlib import Path

CONFIG_FILE = "config.yaml"  # of a folder that stands for its config
_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """`configs/`: in the package where it is installed, beside the package in a clone."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def built_in_configs() -> dict[str, Path]:
    """The built-in configs by name, in the order of their paths; those to inherit from are left out."""
    return {path.stem: path for path in sorted(config_folder().glob("[!_]*/**/*.yaml"))}


def find_config(path: str, name: str = "") -> str:
    """The path of the config that a user means: a file, the `config.yaml` of a folder, or a built-in config.

    Args:
        path: the file or folder; returned as it is where there is no config of any of these.
        name: of the built-in config; "": the path.
    """
    if os.path.isfile(path):
        return path
    inside = os.path.join(path, CONFIG_FILE)
    return inside if os.path.isfile(inside) else built_in(name or path) or path


def built_in(name: str) -> str | None:
    """The path of a built-in config, or None.

    Args:
        name: its name, or its path in a clone, `configs/recognition/tsm/tsm_k400_videos.yaml`.
    """
    if name.startswith("configs/"):
        path = os.path.join(config_folder().parent, name)
        return path if os.path.isfile(path) else None
    file = built_in_configs().get(name)
    return str(file) if file else None


def hint_at_configs(name: str) -> str:
    """A clause that says which built-in config may be meant by a path that is not there; may be empty."""
    names = list(built_in_configs())
    stem = Path(name).stem
    if stem in names:
        return f"; the built-in config is called {stem}"
    if not name or name != stem:
        return ""
    near = [other for other in names if stem.lower() in other] or difflib.get_close_matches(stem, names)
    near.sort(key=lambda other: not other.startswith(stem))
    hint = f"did you mean {', '.join(near[:5])}?" if near else "paddlevideo-fast zoo  lists them"
    return f"; no built-in config has this name, either; {hint}"
