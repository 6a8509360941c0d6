"""What a config says, parsed once: a frozen record with a typed field for every section."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from paddlevideo_fast.config import settings
from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.sections import NamedItem, has_section, options_of
from paddlevideo_fast.config.settings import SplitName, settings_from
from paddlevideo_fast.errors import Problem, Problems, SettingError
from paddlevideo_fast.log import get_logger, warn_once

if TYPE_CHECKING:
    from paddlevideo_fast.engine.extension import Extension

_LOGGER = get_logger(__name__)

ComponentSection = Mapping[str, Any]
Work = TypeVar("Work", bound=Callable[..., Any])
Option = TypeVar("Option", bound="Extension")


def placed(work: Work) -> Work:
    """Decorates a function of a `RunSpec`: the problems that it raises get file and line of their keys."""

    @functools.wraps(work)
    def run(spec: RunSpec, *args: Any, **options: Any) -> Any:
        with spec.config.placing():
            return work(spec, *args, **options)

    return cast(Work, run)


@dataclass(frozen=True)
class SplitSpec:
    """One part of the data.

    Attributes:
        name: "train", "valid" or "test".
        dataset: its section in DATASET; empty where there is none.
        pipeline: its section in PIPELINE.
    """

    name: SplitName
    dataset: ComponentSection
    pipeline: Mapping[str, Any]

    def problems(self, run: settings.RunSettings, batch_size: int, where: Callable[[str], str]) -> Problems:
        """Several clips of each video that do not divide a batch or the epochs.

        Args:
            run: has the epochs.
            batch_size: of the training.
            where: a key and where it was written.
        """
        key, clips = f"DATASET.{self.name}.clips_per_video", self.dataset.get("clips_per_video", 1)
        if self.name != "train":
            if clips > 1:
                text = "is for training; an evaluation sees several clips of a video with num_ensemble_views"
                yield Problem(f"{key}={clips}", text)
            return
        if batch_size % clips:
            text = f"no multiple of {where(key)}={clips}: a batch holds all clips of a video"
            yield Problem(f"DATASET.batch_size={batch_size}", text)
        rest = run.epochs % clips
        if run.epochs < clips:
            text = f"{where(key)} is {clips}: only as many epochs together read every video"
            yield Problem(f"epochs={run.epochs}", text)
        elif rest and not run.multigrid:
            text = f"no multiple of {where(key)}={clips}: the last {rest} read a part of the videos only"
            yield Problem(f"epochs={run.epochs}", f"{text}; is that meant?", is_error=False)


@dataclass(frozen=True)
class RunSpec:
    """What a run does, section by section.

    Sections that name a component stay mappings, from which `build` makes it; settings are dataclasses. What
    a config leaves out is None, or the defaults where a section only changes defaults.

    Attributes:
        config: where it all was written; it is saved with the run, and it places problems.
        run: the keys at the top level.
        data: the plain keys of DATASET.
        splits: the parts of the data that have a pipeline.
        model, optimizer, metric, mix: the sections MODEL, OPTIMIZER, METRIC and MIX.
        callbacks: the user's own, items of the list CALLBACKS.
        extensions: the options of the run, in the order in which they take part.
        accumulation: the clips that an update of the weights has to reach.
        multigrid: the section MULTIGRID; without `run.multigrid` it has no effect.
        distributed: how the processes work together.
        runtime: how Paddle uses the machine.
        storage: how files at URLs are read.
    """

    config: Config
    run: settings.RunSettings
    data: settings.DatasetSettings
    splits: Mapping[SplitName, SplitSpec]
    model: ComponentSection
    optimizer: ComponentSection | None
    metric: ComponentSection | None
    mix: ComponentSection | None
    callbacks: Sequence[NamedItem]
    extensions: tuple[Extension, ...]
    accumulation: settings.GradientAccumulation | None
    multigrid: settings.MultigridSettings | None
    distributed: settings.DistributedSettings
    runtime: settings.RuntimeSettings
    storage: settings.StorageSettings

    @classmethod
    def of(cls, config: Config) -> RunSpec:
        """Parses a checked config."""
        sections: dict[str, Any] = {
            field: None if is_optional and config.get(key) is None else settings_from(kind, config.get(key))
            for key, (field, kind, is_optional) in settings.SECTIONS.items()
        }
        run = settings_from(settings.RunSettings, config)
        run = replace(
            run,
            output_dir=run.output_dir or f"output/{config.name or run.model_name}",
            validate=config.holds("DATASET.valid") if run.validate is None else run.validate,
        )
        return cls(
            config=config,
            run=run,
            data=settings_from(settings.DatasetSettings, config.get("DATASET")),
            splits=_splits(config),
            model=config["MODEL"],
            optimizer=config.get("OPTIMIZER"),
            metric=config.get("METRIC"),
            mix=config.get("MIX"),
            callbacks=config.get("CALLBACKS") or (),
            extensions=_extensions(config),
            **sections,
        )

    @classmethod
    def for_training(cls, config: Config) -> RunSpec:
        """The spec of a config that is to be trained.

        Raises:
            ConfigError: training, or the validation that belongs to it, lacks a section.
        """
        config.require("training", "OPTIMIZER", "DATASET.train")
        spec = cls.of(config)
        if spec.run.validate:
            config.require("validate", "DATASET.valid")
        return spec

    def extension(self, kind: type[Option]) -> Option | None:
        """The option of a kind; None where the run goes without it."""
        return next((each for each in self.extensions if isinstance(each, kind)), None)

    def in_folder(self, output_dir: str) -> RunSpec:
        """The same run with another output folder, which the saved config names, too."""
        config = copy(self.config)
        config["output_dir"] = output_dir
        return replace(self, config=config, run=replace(self.run, output_dir=output_dir))

    def holds(self, key: str) -> bool:
        """Whether the config has something at a dotted key; null and an empty section are nothing."""
        return self.config.holds(key)

    def where(self, key: str) -> str:
        """A key and where it was written, for a message."""
        return f"{key} ({self.config.where(key)})"

    def warn(self, key: str, text: str) -> None:
        """Logs, once, what is doubtful about a key, and where it was written."""
        warn_once(_LOGGER, self.config.problem(key, text))

    @placed
    def accumulate_steps(self, world_size: int = 1) -> int:
        """How many steps of `world_size` processes add up to one update of the weights.

        Raises:
            ConfigError: both ways to say it are used, or the clips of an update are no multiple of those of a
                step.
        """
        if self.accumulation is None:
            return self.run.accumulate_steps
        key = "GRADIENT_ACCUMULATION.global_batch_size"
        if "accumulate_steps" in self.config:
            raise SettingError(key, "accumulate_steps is set too; keep one of the two")
        wanted, clips = self.accumulation.global_batch_size, self.data.batch_size * world_size
        if wanted % clips:
            raise SettingError(
                f"{key}={wanted}",
                f"no multiple of the {clips} clips of one step "
                f"(DATASET.batch_size {self.data.batch_size} on {world_size} processes)",
            )
        return wanted // clips

    def global_batch_size(self, world_size: int = 1) -> int:
        """How many clips one update of the weights is made of, over all processes and accumulated batches."""
        return self.data.batch_size * world_size * self.accumulate_steps(world_size)


def _extensions(config: Config) -> tuple[Extension, ...]:
    """The options of a run; those that another one takes the place of are left out."""
    options: dict[str, Extension] = {}
    for cls, name in options_of(config).items():
        option = cls.of(config.get(name) if has_section(cls, name) else config, config)
        if option is not None:
            options[name] = option
    replaced = {key for option in options.values() for key in option.replaces}
    return tuple(option for name, option in options.items() if name not in replaced)


def _splits(config: Config) -> dict[SplitName, SplitSpec]:
    data, pipelines = config.get("DATASET") or {}, config.get("PIPELINE") or {}
    names: Any = [name for name in ("train", "valid", "test") if pipelines.get(name)]
    return {name: SplitSpec(name, data.get(name) or {}, pipelines[name]) for name in names}
