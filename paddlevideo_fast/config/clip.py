"""The keys `num_frames` and `crop_size`: written out wherever a config describes the clip.

They say what the clips of training are. A part of the data, or a transform, that has another size keeps its
ratio: a test at 256 pixels after a training at 224 becomes one at 128 after 112. A component says by the
annotations of its arguments what has to follow; see `Role`.
"""

from collections.abc import Iterator
from typing import Any

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.sections import arguments_in, build
from paddlevideo_fast.config.types import KeyPath, Role
from paddlevideo_fast.registry import SAMPLERS

_SAMPLER_KEYS = ("sample", "decode_sampler")


def expand_clip(config: Config) -> None:
    """Puts `num_frames` and `crop_size` into PIPELINE and MODEL, and takes the keys out.

    What they set has their file and line in later messages.

    Raises:
        ConfigError: there is nothing to set, or the sampler cannot take so many frames.
    """
    frames = (Role.FRAMES, Role.FIXED_FRAMES, Role.VIEW_FRAMES)
    for key, roles, changes in (("num_frames", frames, _frames), ("crop_size", (Role.CROP_SIZE,), _sides)):
        value = config.pop(key, None)
        if value is not None:
            origin = f"{config.where(key)}  {key}={value}"
            network = [path for path, own in _values(config, "MODEL", *roles) if isinstance(own, int)]
            for path, new in [*changes(config, value), *((path, value) for path in network)]:
                _put(config, path, new)
                config.origins[path] = origin


def _values(config: Config, section: str, *roles: Role) -> Iterator[tuple[KeyPath, Any]]:
    """The arguments in a section that have one of the roles."""
    for each in arguments_in(config, section):
        for name, value in each.with_role(*roles).items():
            if value is not None:
                yield (*each.path, name), value


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
    for each in [each for each in arguments_in(config, "PIPELINE") if each.path[-1] in _SAMPLER_KEYS]:
        arguments, own = each.with_role(Role.FRAMES), build(SAMPLERS, each.given).num_frames
        if not arguments:
            text = f"{each.given['name']} marks no argument as the frames of a clip; set it at {each.path[1]}"
            raise config.error(f"num_frames={value}", text)
        trained = trained or own
        if own % trained:  # such as 25 segments in the test of a network that trains with 3
            continue
        # a clip is as long as one of the arguments says, or as their product
        name = next((name for name, count in arguments.items() if count == own), next(iter(arguments)))
        wanted, unit = value * (own // trained), own // arguments[name]
        if wanted % unit:
            text = f"no multiple of the {unit} frames of {each.key([*arguments][-1])}"
            raise config.error(f"num_frames={value}", text)
        yield (*each.path, name), wanted // unit


def _sides(config: Config, value: int) -> Iterator[tuple[KeyPath, Any]]:
    """What `crop_size` sets in PIPELINE."""
    crops = [*_values(config, "PIPELINE", Role.CROP_SIZE)]
    if not crops:
        text = "no transform of PIPELINE has a target_size, so nothing cuts clips to a size"
        raise config.error(f"crop_size={value}", text)
    trained = [size for path, size in crops if path[1] == crops[0][0][1]][-1]  # the last crop counts
    factor = value / (trained if isinstance(trained, int) else trained[0])
    for path, size in [*crops, *_values(config, "PIPELINE", Role.LENGTH)]:
        sides = [max(1, round(side * factor)) for side in ([size] if isinstance(size, int) else size)]
        yield path, sides[0] if isinstance(size, int) else sides
