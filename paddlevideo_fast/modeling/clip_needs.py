"""What the networks of a config need of their clips, compared with what PIPELINE makes of a video."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.sections import Arguments, arguments_in
from paddlevideo_fast.config.types import Role
from paddlevideo_fast.errors import Problem, Problems
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.layers.windows import nearest
from paddlevideo_fast.schedule import Phase


class ClipNeeds:
    """The frames and sides that the networks of MODEL take; a distillation has several networks.

    Args:
        config: a checked one.
    """

    def __init__(self, config: Config) -> None:
        self._where = config.where
        self._arguments = [*arguments_in(config, "MODEL")]
        self._backbones: list[tuple[str, str, type[Backbone]]] = [
            (each.key("name"), each.given["name"], each.cls)
            for each in self._arguments
            if issubclass(each.cls, Backbone)
        ]

    def _with_role(self, role: Role) -> list[tuple[str, str, int]]:
        """Key, key with its file and line, and value of each argument that has a role."""
        return [
            (key, f"{key} ({self._where(key)})", value)
            for each in self._arguments
            for name, value in each.with_role(role).items()
            if value and (key := each.key(name))
        ]

    def of_part(self, name: str, pipeline: Sequence[Arguments], num_frames: int, side: int) -> Problems:
        """What does not fit of the clips of PIPELINE.`name`.

        Args:
            name: of the part of the data.
            pipeline: the arguments of its components.
            num_frames: of the clips that a network gets.
            side: of these, in pixels.
        """
        sampled = (each.key(argument) for each in pipeline for argument in each.with_role(Role.FRAMES))
        yield from self.of_frames(next(sampled, f"PIPELINE.{name}.sample"), num_frames, name == "train")
        crops = (
            each.key(argument)
            for each in pipeline
            for argument in each.given.keys() & each.with_role(Role.CROP_SIZE)
        )
        *_, key = f"PIPELINE.{name}.transform", *crops  # the last one counts
        yield from self.of_side(key, side)
        yield from self.of_transforms(pipeline)

    def of_frames(self, key: str, num_frames: int, training: bool) -> Problems:
        """Clips, whose frames are set at `key`, that a network cannot take, or takes as several clips."""
        if misfit := self._misfit(num_frames):
            yield Problem(key, f"clips of {num_frames} frames {misfit}")
        for _, network, num_seg in self._with_role(Role.FIXED_FRAMES):
            text = f"clips have {num_frames} frames, and {network} is {num_seg}"
            # an evaluation may look at several clips of num_seg frames, one after the other
            if num_frames % num_seg or (training and num_frames != num_seg):
                yield Problem(key, f"{text}; give both the same, as -o num_frames=N does")
            elif num_frames != num_seg:
                text = f"{text}: {num_frames // num_seg} clips to the network; is that meant?"
                yield Problem(key, text, is_error=False)
        for _, view, of_view in self._with_role(Role.VIEW_FRAMES):
            if not training and num_frames % of_view:
                text = f"clips have {num_frames} frames, no multiple of the {of_view} of {view}"
                yield Problem(key, f"{text}; give both the same")

    def _misfit(self, num_frames: int) -> str:
        """Why no clips of `num_frames` frames, to be read after these words; "": a network can take them."""
        for key, _, divisor in self._with_role(Role.FRAME_DIVISOR):
            if num_frames % divisor:
                return f"do not divide into {key}={divisor}; {nearest(num_frames, divisor)} do"
        for _, name, network in self._backbones:
            if num_frames < network.least_frames:
                return f"are too few for {name}, which needs {network.least_frames}"
        return ""

    def of_side(self, key: str, side: int) -> Problems:
        """Clips, whose side in pixels is set at `key`, that a network cannot cut into patches."""
        for _, network, patch_size in self._with_role(Role.SIDE_DIVISOR):
            if side % patch_size:
                text = f"clips of {side} pixels do not divide into {network}={patch_size}"
                yield Problem(key, f"{text}; {nearest(side, patch_size)} do")

    def of_transforms(self, pipeline: Iterable[Arguments]) -> Problems:
        """Transforms that divide the frames otherwise than a network, as PackOutput between pathways."""
        for each in pipeline:
            for argument, divisor in each.with_role(Role.FRAME_DIVISOR).items():
                for key, network, value in self._with_role(Role.FRAME_DIVISOR):
                    if key.endswith(f".{argument}") and value != divisor:
                        text = f"{network} is {value}; give both the same"
                        yield Problem(f"{each.key(argument)}={divisor}", text)

    def of_multigrid(self, phases: Sequence[Phase]) -> Problems:
        """Shapes of the phases of a multigrid schedule that a network cannot take; a plain phase has none."""
        if not any(phase.num_frames for phase in phases):
            return
        for key, name, network in self._backbones:
            if not network.takes_multigrid:
                yield Problem(key, f"{name} takes clips of one size; leave multigrid out")
        long, short = "MULTIGRID.long_cycle_factors", "MULTIGRID.short_cycle_factors"
        for num_frames in sorted({phase.num_frames for phase in phases if phase.num_frames}, reverse=True):
            if misfit := self._misfit(num_frames):
                yield Problem(long, f"clips of {num_frames} frames {misfit}")
                return
        sides = {shape.crop_size: short for phase in phases for shape in phase.short_cycle}
        sides.update((phase.crop_size, long) for phase in phases if phase.crop_size)
        for side, key in sides.items():
            yield from self.of_side(key, side)
