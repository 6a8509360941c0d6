"""What the installed DALI can decode, and how it is asked for single frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Tuple

from paddlevideo_fast.errors import MissingExtraError
from paddlevideo_fast.loader.errors import LoaderError

DEVICES = {"cpu": "a CPU", "gpu": "a GPU"}


@dataclass(frozen=True)
class Generation:
    """DALI from one version on.

    Args:
        since: (major, minor) of the first version.
        cpu: codecs that it decodes on a CPU, tried with files of each.
        gpu: codecs that it decodes on a GPU, from its documentation; not run.
        selects_frames: its decoder takes frame numbers. The others decode whole videos.
    """

    since: Tuple[int, int]
    cpu: FrozenSet[str]
    gpu: FrozenSet[str]
    selects_frames: bool

    def codecs(self, device: str) -> FrozenSet[str]:
        """The codecs for "cpu" or "gpu"."""
        return self.cpu if device == "cpu" else self.gpu


_NVDEC = frozenset({"h264", "hevc", "vp8", "vp9", "mjpeg", "av1", "mpeg4"})
GENERATIONS = (
    Generation((1, 34), frozenset({"h264", "hevc"}), frozenset({"h264", "hevc"}), selects_frames=False),
    Generation((1, 53), frozenset({"h264", "hevc", "vp8", "vp9", "mjpeg"}), _NVDEC, selects_frames=True),
    Generation((2, 0), frozenset({"vp8", "vp9", "mjpeg"}), _NVDEC, selects_frames=True),
)


def import_dali() -> Any:
    """The module `nvidia.dali`.

    Raises:
        MissingExtraError: it is not installed.
        LoaderError: it is older than what this loader knows.
    """
    try:
        import nvidia.dali as dali
        import nvidia.dali.fn
        import nvidia.dali.types  # noqa: F401
    except ImportError as error:
        if not (error.name or "").startswith("nvidia"):
            raise
        extra = extra_for_cuda()
        package = f"nvidia-dali-cuda{extra[-3:]}"
        raise MissingExtraError(package, extra, "reading videos with DALI") from error
    if version_of(dali) < GENERATIONS[0].since:
        raise LoaderError(f"DALI {dali.__version__} is too old: 1.34 is the first that can be used")
    return dali


def extra_for_cuda() -> str:
    """The extra of setup.py whose DALI fits the CUDA that Paddle was built for."""
    import paddle

    major = str(paddle.version.cuda()).partition(".")[0]
    return {"11": "dali110", "13": "dali130"}.get(major, "dali120")


def version_of(dali: Any) -> Tuple[int, int]:
    """(major, minor) of an imported DALI."""
    major, minor = dali.__version__.split(".")[:2]
    return int(major), int(minor)


def generation_of(dali: Any) -> Generation:
    """What an imported DALI can do."""
    return [item for item in GENERATIONS if item.since <= version_of(dali)][-1]


def require_codec(dali: Any, device: str, codec: str, path: str) -> None:
    """Checks that this DALI decodes a codec on this device; a file of another can end its process.

    Raises:
        LoaderError: it does not; the message says which would.
    """
    able = generation_of(dali).codecs(device)
    if codec in able:
        return
    others = _who_decodes(codec)
    raise LoaderError(
        f"{path}: DALI {dali.__version__} does not decode {codec} on {DEVICES[device]}, only "
        f"{', '.join(sorted(able))}; {codec} is decoded by {others or 'no DALI'}, and by the loader "
        "that is used without --train_dali"
    )


def _who_decodes(codec: str) -> str:
    found: Dict[str, list] = {device: [] for device in DEVICES}
    for number, item in enumerate(GENERATIONS):
        last = number + 1 == len(GENERATIONS)
        name = f"{item.since[0]}.{item.since[1]}" + (" and newer" if last else "")
        for device, names in found.items():
            if codec in item.codecs(device):
                names.append(name)
    return " and ".join(
        f"DALI {', '.join(names)} on {DEVICES[device]}" for device, names in found.items() if names
    )
