"""The key `paths` of a config file: where the relative paths of its data start from."""

import os

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.errors import shown
from paddlevideo_fast.io.urls import absolute, join

PATHS = "paths"
_KEYS = ("file_path", "data_prefix", "class_names")


def place_paths(own: Config) -> None:
    """Takes `paths` out of a file's own content; with `paths: config` makes its data's paths absolute.

    Args:
        own: the content of one file, without what it inherits.

    Raises:
        ConfigError: the key has another value.
    """
    choice = own.pop(PATHS, "cwd")
    if choice not in ("cwd", "config"):
        raise own.error(f"{PATHS}={shown(choice)}", "expected cwd or config")
    data = own.get("DATASET")
    if choice == "cwd" or not isinstance(data, dict):
        return
    folder = os.path.dirname(own.path or "")
    parts = [data, *(data.get(split) for split in ("train", "valid", "test"))]
    for section in [part for part in parts if isinstance(part, dict)]:
        for key in _KEYS:
            if isinstance(section.get(key), str):
                section[key] = absolute(join(folder, section[key]))
