"""The settings of a run: a dataclass for every section of a config that names no component.

The fields are the schema, as the constructor of a component is, and their texts are in the config reference.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from paddlevideo_fast.config.types import Count, PositiveInt, Range, Share, Size
from paddlevideo_fast.errors import Problem, Problems
from paddlevideo_fast.machine import gpu_number

if TYPE_CHECKING:
    from paddlevideo_fast.config.document import Config

Settings = TypeVar("Settings")
SplitName = Literal["train", "valid", "test"]
NumWorkers = Annotated[int, Range(0, 1024)] | Literal["auto"]
_FOLLOWS = "it follows from DATASET and PIPELINE"


def settings_from(cls: type[Settings], section: Mapping[str, Any] | None) -> Settings:
    """The dataclass `cls` of a checked section; keys that are no fields of it are left out."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in (section or {}).items() if key in names})


@dataclass(frozen=True)
class RunSettings:
    """What a run does besides its model and its data: keys at the top level of a config.

    Args:
        model_name: names the checkpoint files.
        epochs: how many epochs to train.
        output_dir: folder of checkpoints, logs and the resolved config. A run moves the files of an earlier
            run in it to `earlier-1/`. Empty: `output/NAME`, with the name of the config's file, or of its
            folder if the file is called `config.yaml`; a further run takes `output/NAME_2`, and so on. To a
            URL goes what is new with each checkpoint and at the end, see the page on remote data.
        seed: seed of weights, shuffling, sampling and augmentation.
        log_interval: training steps between two log lines.
        log_level: the least severe level that is shown.
        validate: evaluate on DATASET.valid while training; null: if that section is there.
        val_interval: epochs between two evaluations; the last epoch is always evaluated.
        save_interval: epochs between two checkpoints; the last epoch is always saved.
        save_every_steps: also save after this many training steps, within the epoch; null for never.
        keep_last: how many checkpoints stay on disk: the newest, and with them the best weights, which are
            not counted. null for all.
        resume: `auto` continues from the newest checkpoint of the output folder, if there is one; without
            `output_dir` it is the folder of the newest run. A path continues from that checkpoint; null
            starts anew.
        resume_epoch: continue after this epoch of the output folder; 0 starts anew.
        num_frames: frames of a clip. Sets them in each part of PIPELINE and in the network, where it has to
            know them. A part with a multiple of the training's frames keeps the ratio. The sampling rate
            stays, so that a longer clip of a DecodeSampler lasts longer. null: as PIPELINE says.
        crop_size: side of the training clips in pixels. Sets it in PIPELINE and in the network; all other
            sizes of PIPELINE follow in proportion. null: as PIPELINE says.
        weights: weight file to start from, or to evaluate; a path or an URL.
        max_iters: stop each epoch and each evaluation after this many steps; null for no limit.
        accumulate_steps: batches whose gradients are averaged in one update of the weights.
        num_threads: CPU threads of the process that computes; null for one on each of its cores.
        multigrid: train in the schedule that MULTIGRID describes; without it that section has no effect.
        amp: train and evaluate in mixed precision, as `amp_level` and `amp_dtype` say.
        amp_level: what computes in 16 bits. O1: convolutions and linear layers, and what follows them without
            harm; O2: all but norms and the loss.
        amp_dtype: the 16-bit format; null for bfloat16, and for float16 on a GPU that lacks it (compute
            capability below 8.0).
        imports: modules, and files relative to this config, that register components of your own. Those of
            the files that it inherits are imported, too.
        paths: where the relative paths of this file's DATASET start from (`file_path`, `data_prefix` and
            `class_names`). `config`: the folder of this file, so that the folder can be moved; `cwd`: the
            working folder.
    """

    model_name: str
    epochs: PositiveInt
    output_dir: str = ""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 1234
    log_interval: PositiveInt = 10
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    validate: bool | None = None
    val_interval: PositiveInt = 1
    save_interval: PositiveInt = 10
    save_every_steps: PositiveInt | None = None
    keep_last: PositiveInt | None = 5
    resume: str | None = None
    resume_epoch: Count = 0
    num_frames: Size | None = None
    crop_size: Size | None = None
    weights: str | None = None
    max_iters: PositiveInt | None = None
    accumulate_steps: PositiveInt = 1
    num_threads: Size | None = None
    multigrid: bool = False
    amp: bool = False
    amp_level: Literal["O1", "O2"] = "O1"
    amp_dtype: Literal["float16", "bfloat16"] | None = None
    imports: Sequence[str] = ()
    paths: Literal["cwd", "config"] = "cwd"

    ignored_arguments: ClassVar[dict[str, str]] = {
        "use_gpu": "the device is chosen by what the installed Paddle offers",
        "use_npu": "only CPU and GPU are supported",
        "use_xpu": "only CPU and GPU are supported",
        "inference_model_dir": "training and testing do not use it",
        "quant_output_dir": "`export --onnx --int8` quantizes",
    }

    def problems(self, config: "Config") -> Problems:
        """Keys of mixed precision without `amp`. Beside `amp: false` they may stand."""
        for key in ("amp_level", "amp_dtype") if not config.holds("amp") else ():
            if config.holds(key):
                yield Problem(f"{key}={getattr(self, key)}", "has no effect without amp; add --amp")


@dataclass(frozen=True)
class DatasetSettings:
    """The data, and how it becomes batches.

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
        stall_timeout_sec: seconds without a batch after which a warning names the files that the workers are
            reading.
        stall_limit_sec: seconds without a batch after which the run stops; null for never.
        class_names: text file with the name of each class, one a line; null for their numbers.
        index_cache: folder for the indexes of long videos (1000 frames or more, or 64 MiB), and of those that
            only decoding indexes. A video whose index is there is opened without being read from end to end.
            For WebDataset, what the headers of its shards say. null keeps none.
        max_bad_share: share of the files of a list that may fail to decode before the run stops.
    """

    batch_size: Size = 8
    valid_batch_size: Size | None = None
    test_batch_size: Size = 8
    num_workers: NumWorkers = 0
    valid_num_workers: NumWorkers | None = None
    test_num_workers: NumWorkers | None = None
    worker_affinity: Literal["spread"] | None = None
    stall_timeout_sec: Annotated[float, Range(0.1)] = 60.0
    stall_limit_sec: Annotated[float, Range(0.1)] | None = None
    class_names: str | None = None
    index_cache: str | None = None
    max_bad_share: Share = 0.1

    ignored_arguments: ClassVar[dict[str, str]] = {
        "shuffle_valid": "the order does not change the result of an evaluation"
    }
    refused_arguments: ClassVar[dict[str, str]] = dict.fromkeys(
        ("quant", "batch_nums"),
        "this is a config of post-training quantization, for a program that is exported already, and there "
        "is nothing to train; take the config that the program was trained with, and `export --onnx --int8`",
    )

    def batch_size_of(self, split: SplitName) -> int:
        """Clips a step for "train", "valid" or "test"."""
        valid = self.batch_size if self.valid_batch_size is None else self.valid_batch_size
        return {"train": self.batch_size, "valid": valid, "test": self.test_batch_size}[split]

    def num_workers_of(self, split: SplitName) -> NumWorkers:
        """Decoding processes for "train", "valid" or "test"."""
        own = {"train": None, "valid": self.valid_num_workers, "test": self.test_num_workers}[split]
        return self.num_workers if own is None else own


@dataclass(frozen=True)
class PipelineSettings:
    """How the frames of a clip are chosen and resized: the plain keys of PIPELINE.train, .valid and .test.

    Args:
        resample: what becomes of the pixels that a frame loses when it shrinks. `antialias` averages them in.
            `bilinear` leaves most of them out, as PaddleVideo and PaddleX do: with a Scale and one crop it
            gives their pixels, bit for bit.
    """

    resample: Literal["antialias", "bilinear"] = "antialias"


@dataclass(frozen=True)
class GradientAccumulation:
    """Several steps for one update of the weights, given by the clips of an update.

    Args:
        global_batch_size: clips that one update of the weights is made of, over all processes.
    """

    global_batch_size: PositiveInt

    ignored_arguments: ClassVar[dict[str, str]] = {
        "num_iters": "it follows from global_batch_size, DATASET.batch_size and the number of processes"
    }


@dataclass(frozen=True)
class RuntimeSettings:
    """How Paddle uses the machine; null leaves an option as Paddle has it, if its text says no other default.

    The page on performance says when each helps.

    Args:
        cpu_affinity: CPU cores of the training processes of this machine, dealt out evenly: a list of their
            numbers, or `spread` for all that the processes may use.
        allocator_strategy: `auto_growth` takes memory as it is needed, `naive_best_fit` in large pieces.
        fraction_of_gpu_memory_to_use: size of a large piece, as a share of the GPU's memory; GPU only.
        cudnn_exhaustive_search: time cuDNN's algorithms for each new shape and keep the fastest; GPU only.
            null: true, but false with multigrid's short cycle, and with FLAGS_cudnn_deterministic.
        conv_workspace_size_limit: MiB that a cuDNN algorithm may use on the side; GPU only. null: a sixteenth
            of the GPU's memory, at most 4096.
        cudnn_batchnorm_spatial_persistent: cuDNN's faster batch norm, which may overflow; GPU only. null:
            true with `amp`.
        enable_cublas_tensor_op_math: tensor cores in cuBLAS, with their rounding; GPU only.
        tf32: false makes cuBLAS and cuDNN compute float32 in float32; GPU only.
        build_strategy: switches of `paddle.static.BuildStrategy`, with `to_static`.
        cinn: compile the static graph by CINN, with `to_static`.
        recompute: keep less for the backward pass, which computes the layers of all stages of the network
            once more, or of the stages in this list: less memory for more time, and the same result.
    """

    cpu_affinity: Literal["spread"] | list[Count] | None = None
    allocator_strategy: Literal["auto_growth", "naive_best_fit"] | None = None
    fraction_of_gpu_memory_to_use: Share | None = None
    cudnn_exhaustive_search: bool | None = None
    conv_workspace_size_limit: PositiveInt | None = None
    cudnn_batchnorm_spatial_persistent: bool | None = None
    enable_cublas_tensor_op_math: bool | None = None
    tf32: bool | None = None
    build_strategy: dict[str, bool] | None = None
    cinn: bool = False
    recompute: bool | list[str] = False

    paddle_flags: ClassVar[tuple[str, ...]] = (
        "allocator_strategy",
        "fraction_of_gpu_memory_to_use",
        "cudnn_exhaustive_search",
        "conv_workspace_size_limit",
        "cudnn_batchnorm_spatial_persistent",
        "enable_cublas_tensor_op_math",
    )
    gpu_only: ClassVar[tuple[str, ...]] = (*paddle_flags[1:], "tf32")

    def environment(self) -> dict[str, str]:
        """The options that Paddle and the libraries below it read from the environment, as its variables."""
        variables = {
            f"FLAGS_{name}": str(getattr(self, name))
            for name in self.paddle_flags
            if getattr(self, name) is not None
        }
        if self.tf32 is not None:
            variables["NVIDIA_TF32_OVERRIDE"] = str(int(self.tf32))
        return variables

    def problems(self, config: "Config") -> Problems:
        """Options that cannot take effect on this machine, and flags that Paddle does not know."""
        import paddle  # not earlier: it is imported after the variables of `environment` are set

        on_cpu = gpu_number(paddle.get_device()) is None
        flags = paddle.base.core.globals().keys()
        for variable in self.environment():
            name = variable[6:] if variable.startswith("FLAGS_") else "tf32"
            text = ""
            if on_cpu and name in self.gpu_only:
                text = "it is for GPUs, and Paddle computes on the CPU here; take it out"
            elif name != "tf32" and variable not in flags:
                text = f"Paddle {paddle.__version__} has no {variable}; take it out"
            elif variable not in os.environ:
                text = (
                    "Paddle reads it at its import, which came first; start through paddlevideo-fast train, "
                )
                text += f"or set {variable} in the environment"
            if text:
                yield Problem(f"RUNTIME.{name}", text)


@dataclass(frozen=True)
class StorageSettings:
    """How files at URLs are read, and what is kept here. Credentials are none of the keys; see remote data.

    Args:
        cache_dir: folder on a local disk for what is read from stores. All processes of the machine may share
            it, of several runs too; the next epoch and the next run find what is there. null keeps nothing on
            disk: each epoch reads everything anew.
        cache_gb: largest size of this folder in 10^9 bytes; what was used least recently goes first.
        frames_cache: folder on a local disk for decoded frames. All runs of the machine may share it; what
            one has decoded, others need not. For video files that `pyav` reads. null keeps none.
        frames_cache_gb: largest size of this folder in 10^9 bytes; a frame takes 1.5 bytes a pixel.
        block_kb: KiB of a block, the least that is fetched and kept. Clips of single frames fetch fewer bytes
            in small blocks; clips of many frames make fewer requests in large ones.
        prefetch: batches that each process of the run fetches into the cache before they are made; 0: none.
        timeout_sec: seconds after which a request that has no answer is sent again.
        away_after_sec: seconds without any answer from a store after which the run stops.
    """

    cache_dir: str | None = None
    cache_gb: Annotated[float, Range(0.001)] = 50.0
    frames_cache: str | None = None
    frames_cache_gb: Annotated[float, Range(0.001)] = 50.0
    block_kb: Annotated[int, Range(4, 65536)] = 256
    prefetch: Annotated[int, Range(0, 1000)] = 16
    timeout_sec: Annotated[float, Range(0.1)] = 30.0
    away_after_sec: Annotated[float, Range(0.1)] = 300.0

    def problems(self, config: "Config") -> Problems:
        """Settings of caches that are not there."""
        of_cache = {"cache_dir": ("cache_gb", "block_kb", "prefetch"), "frames_cache": ("frames_cache_gb",)}
        for folder, keys in of_cache.items():
            for key in keys if getattr(self, folder) is None else ():
                if config.holds(f"STORAGE.{key}"):
                    yield Problem(f"STORAGE.{key}", f"has no effect without {folder}", is_error=False)


@dataclass(frozen=True)
class MultigridSettings:
    """Small clips in large batches first; used with `multigrid` or the flag `--multigrid`.

    Args:
        LONG_CYCLE: train whole epochs at each shape of `long_cycle_factors` in turn, once per stage of the
            learning-rate schedule.
        SHORT_CYCLE: change the side from step to step, through `short_cycle_factors` and the full side.
        epoch_factor: epochs of the run for each epoch of the plain training, which `epochs` and the learning
            rate describe.
        bn_base_size: clips over which a batch norm takes its statistics. Larger batches are split; smaller
            batches of several processes are put together.
        long_cycle_factors: for each shape, from small to large, the share of the frames and the share of the
            side: `[0.25, 0.7071]`, or `value: [0.25, 0.7071]` as PaddleVideo writes it.
        short_cycle_factors: shares of the side.
        lr_scaling: how the learning rate grows with the batch of the long cycle: `linear`, as the paper;
            `sqrt`; `none`.
        finish: share of the epochs at the end that train on clips as configured alone. 0: as the paper.
    """

    LONG_CYCLE: bool = False
    SHORT_CYCLE: bool = False
    epoch_factor: Annotated[float, Range(0.01)] = 1.0
    bn_base_size: Size = 8
    long_cycle_factors: Sequence[tuple[Share, Share] | dict[str, tuple[Share, Share]]] = (
        (0.25, 0.5**0.5),
        (0.5, 0.5**0.5),
        (0.5, 1.0),
        (1.0, 1.0),
    )
    short_cycle_factors: Sequence[Share] = (0.5, 0.5**0.5)
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    finish: Annotated[float, Range(0.0, 0.99)] = 0.0

    ignored_arguments: ClassVar[dict[str, str]] = {
        "default_batch_size": _FOLLOWS,
        "default_temporal_size": _FOLLOWS,
        "default_crop_size": _FOLLOWS,
        "long_cycle_sampling_rate": "it follows from the phase's frames, so that clips last as long",
        "EVAL_FREQ": "val_interval says when to evaluate",
    }

    @property
    def long_factors(self) -> list[tuple[float, float]]:
        """(share of the frames, share of the side) of each shape of the long cycle; none without one."""
        pairs = [item["value"] if isinstance(item, Mapping) else item for item in self.long_cycle_factors]
        return [(frames, side) for frames, side in pairs] if self.LONG_CYCLE else []

    @property
    def short_factors(self) -> list[float]:
        """Shares of the side that a short cycle passes; none without one."""
        return list(self.short_cycle_factors) if self.SHORT_CYCLE else []

    def problems(self, config: "Config") -> Problems:
        """What has no effect in a multigrid training."""
        if not config.get("multigrid"):
            return
        if not self.long_factors and not self.short_factors:
            text = "has no effect: MULTIGRID turns on neither LONG_CYCLE nor SHORT_CYCLE"
            yield Problem("multigrid", text, is_error=False)
        elif self.lr_scaling != "linear" and not self.long_factors:
            text = "has no effect without LONG_CYCLE: the short cycle never changes the learning rate"
            yield Problem("MULTIGRID.lr_scaling", text, is_error=False)


@dataclass(frozen=True)
class DistributedSettings:
    """How the processes of a run work together; without effect on one process.

    Args:
        comm_buffer_size: MB of gradients that travel in one message.
        last_comm_buffer_size: MB of the last message of a step, which no computation hides.
        find_unused_parameters: look at each step for parameters that the loss does not depend on; only a
            network that leaves some of them out needs it.
        allreduce_dtype: format of the gradients in all_reduce. 16 bits halve the messages, and these are sent
            after the backward pass instead of during it.
        sharding_degree: processes that share one copy of the optimizer's state; 1 keeps a copy on each.
        sync_bn: batch norms take the statistics of a step over the clips of all processes.
        one_process_ips: clips a second of one process alone. With it the log shows the scaling efficiency:
            the run's clips a second, divided by what as many independent processes reach.
    """

    comm_buffer_size: Annotated[float, Range(0.001)] = 25.0
    last_comm_buffer_size: Annotated[float, Range(0.001)] = 1.0
    find_unused_parameters: bool = False
    allreduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    sharding_degree: Size = 1
    sync_bn: bool = False
    one_process_ips: Annotated[float, Range(0.001)] | None = None

    refused_arguments: ClassVar[dict[str, str]] = {
        "fp16_allreduce": "Paddle's strategy of this name changes static graphs only; use allreduce_dtype",
        "localsgd": "Paddle has local SGD for static graphs only, and training runs in dynamic mode",
    }


# Sections of settings: key to the field of `RunSpec`, the dataclass, and whether the section is None, not its
# defaults, where the config leaves it out.
SECTIONS: dict[str, tuple[str, type, bool]] = {
    "GRADIENT_ACCUMULATION": ("accumulation", GradientAccumulation, True),
    "MULTIGRID": ("multigrid", MultigridSettings, True),
    "DISTRIBUTED": ("distributed", DistributedSettings, False),
    "RUNTIME": ("runtime", RuntimeSettings, False),
    "STORAGE": ("storage", StorageSettings, False),
}
