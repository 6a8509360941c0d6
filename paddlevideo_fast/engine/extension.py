"""What a run may have besides its core: an object for each option, with its section of the config as fields.

A run is a page: plan, folder, build, fit. At each of these it asks its extensions in their order, and names
none of them. First come the extensions in the order of the table in `annexes`, then those of plug-ins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paddlevideo_fast.config.settings import settings_from
from paddlevideo_fast.errors import Problem, Problems

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.data import Split
    from paddlevideo_fast.assembly.plan import RunPlan
    from paddlevideo_fast.assembly.testing import FinishedTest
    from paddlevideo_fast.config import Config
    from paddlevideo_fast.config.settings import SplitName
    from paddlevideo_fast.engine.protocols import Objective, Preprocess
    from paddlevideo_fast.engine.trainer import Callback
    from paddlevideo_fast.loader.build import MakeLoader
    from paddlevideo_fast.modeling.preprocess import Layout
    from paddlevideo_fast.modeling.weights import WeightReport


@dataclass(frozen=True)
class Extension:
    """An option of a training run; a method does nothing unless a subclass overrides it.

    A subclass is a frozen dataclass, registered under its section of the config, as in
    `@EXTENSIONS.register("EMA")`. Its fields are the keys of the section, and the config reference has its
    docstring. A subclass that is registered under names of its fields has these keys at the top level of the
    config instead.

    An object holds settings alone. What it makes for a run goes into the `TrainingSetup`. What a checkpoint
    has to keep is the state of a callback: `Callback.state_dict` and `Callback.tensors`.

    Attributes:
        excludes: keys that cannot be set beside this option, each with the reason.
        replaces: keys of options that have no effect beside this one, each with the reason; they are left out
            of the run with a warning.
        brings_weights: `on_model` gives the backbone its weights, so no pretrained ones are loaded.
        needs_weights: keys, each with the reason why the run needs weights to start from.
        is_of_one_start: the option is about one start of a run, so the saved config is without it.
    """

    excludes: ClassVar[Mapping[str, str]] = {}
    replaces: ClassVar[Mapping[str, str]] = {}
    brings_weights: ClassVar[bool] = False
    needs_weights: ClassVar[Mapping[str, str]] = {}
    is_of_one_start: ClassVar[bool] = False

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> Extension | None:
        """The option as a checked config has it; None where the run goes without.

        Args:
            section: of the option; None where the config has none. The whole config, where the keys of the
                option are at its top level.
            config: the whole.
        """
        return None if section is None else settings_from(cls, section)

    @classmethod
    def expand(cls, config: Config) -> None:
        """Writes what a checked config says in the short form of this option as other sections, in place."""

    def problems(self, plan: RunPlan) -> Problems:
        """What does not fit the rest of the run, before there is an output folder."""
        yield from ()

    def clashes(self, config: Config) -> Problems:
        """An error for each key of `excludes` that a config sets, and a warning for each of `replaces`."""
        excluded = [key for key in self.excludes if config.at(key) not in (None, False)]
        yield from (Problem(key, self.excludes[key]) for key in excluded)
        for key, reason in self.replaces.items():
            if config.holds(key):
                yield Problem(key, f"has no effect: {reason}", is_error=False)

    def clip_of_network(self, num_frames: int, crop_size: int) -> tuple[int, int]:
        """Frames and side in pixels of the training clips that the network takes.

        Args:
            num_frames: of the clips of PIPELINE.train.
            crop_size: of these clips; 0: not known.
        """
        return num_frames, crop_size

    def on_clips(self, name: SplitName, preprocess: Preprocess, layout: Layout) -> Preprocess:
        """What makes the input of the network out of the clips of a part, in place of `preprocess`.

        Args:
            name: of the part of the data, "train", "valid" or "test".
            preprocess: from uint8 clips [N, T, H, W, 3] to float32.
            layout: of these.
        """
        return preprocess

    def on_model(self, setup: TrainingSetup) -> None:
        """Changes `setup.model`, which has its pretrained weights, and no optimizer yet."""

    def on_weights(self, setup: TrainingSetup, report: WeightReport) -> None:
        """Follows the loading of the run's `weights` into `setup.model`; not where it goes on."""

    def on_data(self, setup: TrainingSetup, name: SplitName, split: Split) -> Split:
        """The part `name` of the data ("train" or "valid") that the run shall use in place of `split`."""
        return split

    def loader_of(self, name: SplitName) -> MakeLoader | None:
        """What makes the loader of a part of the data in place of worker processes; None: not this option."""
        return None

    def objective(self, setup: TrainingSetup) -> Objective | None:
        """What gives the loss in place of the model, by the first option that has one; None: not this one."""
        return None

    def callbacks(self, setup: TrainingSetup) -> Iterable[Callback]:
        """Callbacks of the run, which has its validation data and its output folder; see `Callback.slot`."""
        return ()

    def begin(self, setup: TrainingSetup) -> None:
        """Checks the run, which has all its weights, before it writes to its output folder."""

    def tested(self, test: FinishedTest) -> None:
        """Writes what is wanted of a test of weights, on rank 0."""
