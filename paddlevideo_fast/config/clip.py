"""The keys `num_frames` and `crop_size`: written out wherever a config describes the clip.

They say what the clips of training are. A part of the data, or a transform, that has another size keeps its
ratio: a test at 256 pixels after a training at 224 becomes one at 128 after 112. A network says by the names
of its arguments what has to follow: `num_seg` and `num_frames`, `crop_size` and `img_size`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.types import KeyPath, arguments_of
from paddlevideo_fast.registry import BACKBONES, HEADS, SAMPLERS, TRANSFORMS

_SPLITS = ("train", "valid", "test")
_OF_NETWORK = {"num_frames": ("num_seg", "num_frames"), "crop_size": ("crop_size", "img_size")}
_CROPS = ("target_size", "crop_size")
_SIDES = (*_CROPS, "short_size", "min_size", "max_size", "height", "width")
_ONE_OF_SEGMENT = ("linspace_sample", "select_left", "dense_sample")  # whose Sampler leaves seg_len aside


def expand_clip(config: Config) -> None:
    """Puts `num_frames` and `crop_size` into PIPELINE and MODEL, and takes the keys out.

    What they set has their file and line in later messages.

    Raises:
        ConfigError: there is nothing to set, or the sampler cannot take so many frames.
    """
    for key, changes in (("num_frames", _frames), ("crop_size", _sides)):
        value = config.pop(key, None)
        if value is not None:
            origin = f"{config.where(key)}  {key}={value}"
            for path, new in [*changes(config, value), *_of_network(config["MODEL"], key, value, ("MODEL",))]:
                _put(config, path, new)
                config.origins[path] = origin


def _put(config: Config, path: KeyPath, value: Any) -> None:
    """Sets the value at a path; the mappings and lists on the way are copied, as YAML may share them."""
    container: Any = config
    for part in path[:-1]:
        below = container[part]
        container[part] = list(below) if isinstance(below, list) else dict(below or {})
        container = container[part]
    container[path[-1]] = value


def _frames(config: Config, value: int) -> Iterator[tuple[KeyPath, Any]]:
    """What `num_frames` sets in PIPELINE."""
    trained = 0
    for path, sampler in _samplers(config):
        arguments = arguments_of(SAMPLERS.get(sampler["name"]))
        own, name, unit = _frames_of(sampler, set(arguments))
        if not name:
            text = f"{sampler['name']} has no argument num_frames or num_seg; set what it has at {path[1]}"
            raise config.error(f"num_frames={value}", text)
        trained = trained or own
        if own % trained:  # such as 25 segments in the test of a network that trains with 3
            continue
        wanted = value * (own // trained)
        if wanted % unit:
            key = f"{'.'.join(map(str, path))}.seg_len"
            raise config.error(f"num_frames={value}", f"no multiple of the {unit} frames of {key}")
        yield (*path, name), wanted // unit


def _samplers(config: Config) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    for split in _SPLITS:
        section = (config.get("PIPELINE") or {}).get(split) or {}
        part = "decode_sampler" if section.get("decode_sampler") else "sample"
        if section.get(part):
            yield ("PIPELINE", split, part), section[part]


def _frames_of(sampler: Mapping[str, Any], arguments: set[str]) -> tuple[int, str, int]:
    """Frames of a clip, the argument that sets them ("": none), and how many frames 1 of it is."""
    if "num_frames" in arguments:
        return sampler["num_frames"], "num_frames", 1
    if "num_seg" not in arguments:
        return 1, "", 1
    in_row = not sampler.get("frame_interval") and any(sampler.get(way) for way in _ONE_OF_SEGMENT)
    seg_len = 1 if in_row else sampler.get("seg_len", 1)
    if sampler["num_seg"] == 1 and seg_len > 1:
        return seg_len, "seg_len", 1
    return sampler["num_seg"] * seg_len, "num_seg", seg_len


def _sides(config: Config, value: int) -> Iterator[tuple[KeyPath, Any]]:
    """What `crop_size` sets in PIPELINE."""
    sizes = [(path, size) for split in _SPLITS for path, size in _sizes(config, split)]
    crops = [(path, size) for path, size in sizes if path[-1] in _CROPS]
    if not crops:
        text = "no transform of PIPELINE has a target_size, so nothing cuts clips to a size"
        raise config.error(f"crop_size={value}", text)
    trained = [size for path, size in crops if path[1] == crops[0][0][1]][-1]  # the last crop counts
    factor = value / (trained if isinstance(trained, int) else trained[0])
    for path, size in sizes:
        sides = [max(1, round(side * factor)) for side in ([size] if isinstance(size, int) else size)]
        yield path, sides[0] if isinstance(size, int) else sides


def _sizes(config: Config, split: str) -> Iterator[tuple[KeyPath, Any]]:
    """Sizes in pixels of the transforms of a part of the data."""
    steps = ((config.get("PIPELINE") or {}).get(split) or {}).get("transform") or ()
    for index, step in enumerate(steps):
        for name, given in step.items():
            for argument in arguments_of(TRANSFORMS.get(name)).values():
                size = (given or {}).get(argument.name, argument.default)
                if argument.name in _SIDES and isinstance(size, (int, list, tuple)):
                    yield ("PIPELINE", split, "transform", index, name, argument.name), size


def _of_network(section: Any, key: str, value: int, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """What a key sets in MODEL."""
    if isinstance(section, list):
        for index, item in enumerate(section):
            yield from _of_network(item, key, value, (*path, index))
    if isinstance(section, Mapping):
        name = section.get("name")
        found = [each.get(str(name)) for each in (BACKBONES, HEADS) if str(name) in each]
        known = arguments_of(found[0]) if found else {}
        for argument in _OF_NETWORK[key]:
            default = known[argument].default if argument in known else None
            if isinstance(section.get(argument, default), int):
                yield (*path, argument), value
        for below, item in section.items():
            yield from _of_network(item, key, value, (*path, below))
