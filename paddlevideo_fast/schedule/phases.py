"""The phases of a run: spans of epochs with one batch size and one shape of clips."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ShortShape:
    """A step of the short cycle.

    Attributes:
        batch_multiplier: factor on the phase's batch size.
        crop_size: side of the crop in pixels.
    """

    batch_multiplier: int
    crop_size: int


@dataclass(frozen=True)
class Phase:
    """A span of epochs under one setting. Ordinary training is one phase; multigrid is many.

    Attributes:
        start_epoch: first epoch, from 0.
        end_epoch: one past the last epoch.
        batch_multiplier: factor on the configured batch size.
        num_frames: frames of a clip; None: as configured.
        crop_size: side of the crop in pixels; None: as configured.
        sampling_rate: frames of the video from one frame of the clip to the next; None: as configured.
        short_cycle: shapes that steps take in turn before a step at the phase's own shape; empty: all steps
            have the phase's own shape.
        bn_splits: parts of a device's batch that batch norms treat as batches of their own.
        bn_sync_devices: how many devices, consecutive in rank, batch norms treat as one.

    Raises:
        ValueError: the span is empty or starts before 0, a number is below 1, or batch norms would split
            batches and share them.
    """

    start_epoch: int
    end_epoch: int
    batch_multiplier: int = 1
    num_frames: int | None = None
    crop_size: int | None = None
    sampling_rate: float | None = None
    short_cycle: tuple[ShortShape, ...] = ()
    bn_splits: int = 1
    bn_sync_devices: int = 1

    def __post_init__(self) -> None:
        numbers = self.batch_multiplier, self.bn_splits, self.bn_sync_devices
        split_and_shared = min(self.bn_splits, self.bn_sync_devices) > 1
        if not 0 <= self.start_epoch < self.end_epoch or min(numbers) < 1 or split_and_shared:
            raise ValueError(f"not a phase: {self}")

    def steps_in_words(self, global_batch_size: int) -> str:
        """The clips of its steps, such as "64 clips of 4×80×80, 32 of 4×113×113, at rates up to 4".

        Args:
            global_batch_size: clips of an optimizer step without multigrid, over all processes.
        """
        (multiplier, crop), *others = self._in_turn()
        first = f"{multiplier * global_batch_size} clips of {self.num_frames}×{crop}×{crop}"
        rest = [f"{times * global_batch_size} of {self.num_frames}×{side}×{side}" for times, side in others]
        return f"{', '.join([first, *rest])}, at rates up to {self.sampling_rate:g}"

    def _in_turn(self) -> list[tuple[int, int]]:
        """Factor on the configured batch size, and side of the crop, of the steps that it takes in turn."""
        steps = (*self.short_cycle, ShortShape(1, self.crop_size or 0))
        return [(self.batch_multiplier * step.batch_multiplier, step.crop_size) for step in steps]

    @property
    def shape(self) -> str:
        """The shapes of its batches, as checkpoints keep them."""
        if self.num_frames is None:
            return "as configured"
        crops = ", ".join(f"batch ×{multiplier} of {crop} px" for multiplier, crop in self._in_turn())
        return f"{self.num_frames} frames at rates up to {self.sampling_rate:g}, {crops}"


def plain_phases(epochs: int, bn_sync_devices: int = 1) -> list[Phase]:
    """Training at one shape for `epochs` epochs (at least 1)."""
    return [Phase(0, epochs, bn_sync_devices=bn_sync_devices)]
