"""The settings that are no component: those of the run, of the DATASET section, and of a few small sections.

The fields are the schema, as a component's constructor is.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Dict, Literal, Mapping, Optional, Type, TypeVar, Union

from paddlevideo_fast.config.types import Count, PositiveInt, Range, Share
from paddlevideo_fast.errors import ConfigError

Settings = TypeVar("Settings")
Split = Literal["train", "valid", "test"]
NumWorkers = Union[Count, Literal["auto"]]


def settings_from(cls: Type[Settings], section: Optional[Mapping[str, Any]]) -> Settings:
    """Builds a settings dataclass from those keys of `section` that are its fields."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in (section or {}).items() if key in names})


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What a run does besides its model and its data: keys at the top level of a config.

    Args:
        model_name: names the output folder and the checkpoint files.
        epochs: how many epochs to train.
        output_dir: folder of checkpoints, logs and the resolved config; empty for `output/<model_name>`.
        seed: seed of weights, shuffling, sampling and augmentation.
        log_interval: training steps between two log lines.
        log_level: the least severe level that is shown.
        validate: evaluate on DATASET.valid while training.
        val_interval: epochs between two evaluations; the last epoch is always evaluated.
        save_interval: epochs between two checkpoints; the last epoch is always saved.
        save_every_steps: also save after this many training steps, within the epoch; null for never.
        keep_last: how many checkpoints stay on disk, the best weights not counted; null for all.
        resume: `auto` continues from the newest checkpoint of the output folder, if there is one; a path
            continues from that checkpoint; null starts anew.
        resume_epoch: continue after this epoch of the output folder; 0 starts anew.
        weights: weight file to start from, or to evaluate; a path or an URL.
        max_iters: stop each epoch and each evaluation after this many steps; null for no limit.
        accumulate_steps: batches whose gradients are averaged in one update of the weights.
        num_threads: CPU threads of the process that computes; null for one on each of its cores.
        to_static: train the network as a static graph, which Paddle builds from its code.
        profiler_options: measure the operators of some steps, as the flag `-p` does; null for never.
        train_dali: read the clips of training and validation through NVIDIA DALI, on the device that
            computes.
        multigrid: train in the schedule that MULTIGRID describes; without it that section has no effect.
        amp: train and evaluate in mixed precision, as `amp_level` and `amp_dtype` say.
        amp_level: what computes in 16 bits. O1: convolutions and linear layers, and what follows them without
            harm; O2: all but norms and the loss.
        amp_dtype: the 16-bit format; null for float16 on a GPU and bfloat16 on a CPU.
        use_visualdl: write curves, clips and settings for VisualDL.
        report: write `report.html` at the end of training and of a test.
    """

    model_name: str
    epochs: PositiveInt
    output_dir: str = ""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 1234
    log_interval: PositiveInt = 10
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    validate: bool = False
    val_interval: PositiveInt = 1
    save_interval: PositiveInt = 10
    save_every_steps: Optional[PositiveInt] = None
    keep_last: Optional[PositiveInt] = None
    resume: Optional[str] = None
    resume_epoch: Count = 0
    weights: Optional[str] = None
    max_iters: Optional[PositiveInt] = None
    accumulate_steps: PositiveInt = 1
    num_threads: Optional[PositiveInt] = None
    to_static: bool = False
    profiler_options: Optional[str] = None
    train_dali: bool = False
    multigrid: bool = False
    amp: bool = False
    amp_level: Literal["O1", "O2"] = "O1"
    amp_dtype: Optional[Literal["float16", "bfloat16"]] = None
    use_visualdl: bool = True
    report: bool = True

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "use_gpu": "the device is chosen by what the installed Paddle offers",
        "use_npu": "only CPU and GPU are supported",
        "use_xpu": "only CPU and GPU are supported",
        "inference_model_dir": "training and testing do not use it",
        "quant_output_dir": "quantization is not done here",
    }

    def __post_init__(self) -> None:
        if not self.output_dir:
            object.__setattr__(self, "output_dir", f"output/{self.model_name}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Takes the run's keys from the top level of a checked config."""
        return settings_from(cls, config)


@dataclasses.dataclass(frozen=True)
class DatasetSettings:
    """How clips become batches: the keys of DATASET beside its `train`, `valid` and `test`.

    Args:
        batch_size: clips a training step and process.
        valid_batch_size: clips a step when evaluating during training; null for `batch_size`.
        test_batch_size: clips a step when testing.
        num_workers: processes that decode for each training process; 0 decodes in the process itself, `auto`
            measures at the start how many are of use. With `train_dali`: threads of DALI.
        valid_num_workers: the same when evaluating during training; null for `num_workers`.
        test_num_workers: the same when testing; null for `num_workers`.
        worker_affinity: `spread` pins each worker to a core of its own and leaves the first core to the
            training process; null leaves it to the system.
        stall_timeout_sec: when no batch has come for so many seconds, a warning names the files that the
            workers are at.
        stall_limit_sec: when no batch has come for so many seconds, the run stops; null for never.
        class_names: text file with the name of each class, one a line; null for their numbers.
        max_bad_share: share of the files of a list that may fail to decode before the run stops.
    """

    batch_size: PositiveInt = 8
    valid_batch_size: Optional[PositiveInt] = None
    test_batch_size: PositiveInt = 8
    num_workers: NumWorkers = 0
    valid_num_workers: Optional[NumWorkers] = None
    test_num_workers: Optional[NumWorkers] = None
    worker_affinity: Optional[Literal["spread"]] = None
    stall_timeout_sec: Annotated[float, Range(0.1)] = 60.0
    stall_limit_sec: Optional[Annotated[float, Range(0.1)]] = None
    class_names: Optional[str] = None
    max_bad_share: Share = 0.1

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "shuffle_valid": "the order does not change the result of an evaluation",
    }
    refused_arguments: ClassVar[Dict[str, str]] = dict.fromkeys(
        ("quant", "batch_nums"),
        "this is a config of post-training quantization, for a program that is exported already. It is "
        "not done here, and there is nothing to train; take the config that the program was trained with",
    )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DatasetSettings:
        """Takes the loader's keys from the DATASET section of a checked config."""
        return settings_from(cls, config.get("DATASET"))

    def batch_size_of(self, split: Split) -> int:
        """Clips a step for "train", "valid" or "test"."""
        valid = self.batch_size if self.valid_batch_size is None else self.valid_batch_size
        return {"train": self.batch_size, "valid": valid, "test": self.test_batch_size}[split]

    def num_workers_of(self, split: Split) -> NumWorkers:
        """Decoding processes for "train", "valid" or "test"."""
        own = {"train": None, "valid": self.valid_num_workers, "test": self.test_num_workers}[split]
        return self.num_workers if own is None else own


@dataclasses.dataclass(frozen=True)
class EmaSettings:
    """Evaluation and checkpoints of a moving average of the weights: the EMA section.

    Args:
        decay: share of the average that is kept at a step.
    """

    decay: Annotated[float, Range(0.0, 1.0)] = 0.9999

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optional[EmaSettings]:
        """The EMA section of a checked config, None where it has none."""
        section = config.get("EMA")
        return None if section is None else settings_from(cls, section)


@dataclasses.dataclass(frozen=True)
class PreciseBNSettings:
    """Batch-norm statistics of the training data as a whole: the PRECISEBN section.

    Args:
        preciseBN_interval: in epochs; they are also taken after the last one.
        num_iters_preciseBN: batches that they are taken from, at most; the training data ends them sooner.
    """

    preciseBN_interval: PositiveInt = 5
    num_iters_preciseBN: PositiveInt = 200

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optional[PreciseBNSettings]:
        """The PRECISEBN section of a checked config, None where it has none."""
        section = config.get("PRECISEBN")
        return None if section is None else settings_from(cls, section)


@dataclasses.dataclass(frozen=True)
class GradientAccumulation:
    """The GRADIENT_ACCUMULATION section: accumulation given by the batch it has to reach.

    Args:
        global_batch_size: clips that one update of the weights is made of, over all processes.
    """

    global_batch_size: PositiveInt

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "num_iters": "it follows from global_batch_size, DATASET.batch_size and the number of processes",
    }


def clips_of_update(config: Mapping[str, Any], world_size: int = 1) -> int:
    """How many clips one update of the weights is made of, over all processes and accumulated batches."""
    batch_size = DatasetSettings.from_config(config).batch_size
    return batch_size * world_size * accumulation_of(config, world_size)


def accumulation_of(config: Mapping[str, Any], world_size: int = 1) -> int:
    """How many steps add up to one update of the weights.

    Args:
        config: a checked config.
        world_size: the number of training processes.

    Raises:
        ConfigError: both ways to say it are used, or the batch sizes do not divide.
    """
    section = config.get("GRADIENT_ACCUMULATION")
    if section is None:
        return RunSettings.from_config(config).accumulate_steps
    key = "GRADIENT_ACCUMULATION.global_batch_size"
    wanted = settings_from(GradientAccumulation, section).global_batch_size
    place = getattr(config, "where", lambda path: "config")(tuple(key.split(".")))
    if "accumulate_steps" in config:
        raise ConfigError([f"{place}  {key}: accumulate_steps is set too; keep one of the two"])
    batch = DatasetSettings.from_config(config).batch_size * world_size
    if wanted % batch:
        raise ConfigError(
            [
                f"{place}  {key}={wanted}: no multiple of the {batch} clips of one step "
                f"(DATASET.batch_size {batch // world_size} on {world_size} processes)"
            ]
        )
    return wanted // batch
