"""The one table of what may be added to the core: a name in a config, a path or a command → its module.

A module is imported when its name is used, and registers what it has. Nothing else in the core names the
module of an annex. An annex that is not installed has no names here: the core works without the folders
`extensions/`, `sources/`, `jobs/` and `apps/`.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

# kind → name → module below `paddlevideo_fast`. Most kinds are those of a registry, in which the module
# registers the name; for the others, the caller of `load` says what it takes from the module. Extensions, the
# core's first, stand in the order in which they take part in a run.
_TABLE: dict[str, dict[str, str]] = {
    "file system": {"://": "sources.remote.paths"},  # all schemes
    "extension": {
        "FINETUNE": "engine.callbacks.finetune",
        "EMA": "engine.callbacks.ema",
        "PRECISEBN": "engine.callbacks.precise_bn",
        "SELECTION": "engine.callbacks.evaluation",
        "features": "extensions.features.extension",
        "features_memory_gb": "extensions.features.extension",
        "RLT": "extensions.run_length.extension",
        "LORA": "extensions.lora.lora",
        "merge_tokens": "extensions.token_merging.merging",
        "DISTILLATION": "extensions.distillation.extension",
        "report": "extensions.report.extension",
        "TRACKERS": "extensions.trackers.trackers",
        "use_visualdl": "extensions.trackers.trackers",
        "train_dali": "extensions.dali.extension",
        "DALI_LOADER": "extensions.dali.extension",
        "profiler_options": "extensions.profiler.profiling",
        "to_static": "extensions.static_graph.extension",  # last: it takes the network as the others leave it
    },
    "dataset": {
        "PackedFrameDataset": "sources.packed.dataset",
        "WebDataset": "sources.tar.web_dataset",
    },
    "reader": {name: f"sources.readers.{name}" for name in ("cv2", "decord", "nvdec")},
    "process": {"cpu": "extensions.cpu.tuning"},
    "run": {
        "failure detector": "extensions.failure_detector.failure_detector",
        "sharded optimizer": "extensions.sharding.sharding",
        "progress bar": "extensions.progress.bar",
    },
    "transform": {
        "ColorJitter": "extensions.augmentation.colours",
        "RandAugment": "extensions.augmentation.transforms",
        "RandomBrightness": "extensions.augmentation.colours",
        "RandomErasing": "extensions.augmentation.transforms",
        "RandomGamma": "extensions.augmentation.colours",
        "RandomHue": "extensions.augmentation.colours",
        "RandomSaturation": "extensions.augmentation.colours",
    },
    "record field": dict.fromkeys(("box", "track", "track_id", "picture"), "sources.tracks.records"),
    "record section": {
        "tracks": "sources.tracks.records",
        "background": "sources.untrimmed.records",
        "windows": "sources.untrimmed.records",
    },
    "storage": {
        "frames_cache": "sources.frame_cache.frame_cache",
        "index_cache": "sources.index_cache.index_cache",
    },
    "recognizer": {
        "Pretrain": "extensions.pretraining.model",
        "TokenMerging": "extensions.token_merging.merging",
        "RecognizerDistillation": "extensions.distillation.model",
        "RunLengthRecognizer": "extensions.run_length.model",
    },
    "backbone": {"EfficientNetLite": "extensions.efficientnet.network", "Hiera": "extensions.hiera.network"},
    "operators": {"cpu": "extensions.cpu.operators", "convolution": "extensions.cpu.convolutions"},
    "head": {
        "HieraDecoder": "extensions.pretraining.hiera",
        "VideoMAEDecoder": "extensions.pretraining.model",
    },
    "weights": {"by name": "apps.zoo.named_weights"},
    "weight record": {"LoRA@@": "extensions.lora.files"},
    "advice": {
        "list": "apps.zoo.zoo",
        "flag": "apps.zoo.other_flags",
        "test": "extensions.report.overlap",
        "task": "apps.zoo.other_tasks",
    },
    "flag": {"--dry_run": "apps.doctor.dry_run", "--folds": "apps.folds.folds"},
}


class CommandRow(NamedTuple):
    """A subcommand of `paddlevideo-fast`.

    Attributes:
        module: that has it, below `paddlevideo_fast`.
        text: what it does, for the list of commands.
        parser: name of the function that makes its parser.
        function: name of the function that does the work of a command line.
        goes_on: flags that name what the command writes piece by piece, with blanks between them. Where one
            is given, the same command line goes on with the work after Ctrl-C.
        is_group: it is a group of commands.
    """

    module: str
    text: str
    parser: str = "build_parser"
    function: str = "run"
    goes_on: str = ""
    is_group: bool = False


# in the order in which the help lists them
_COMMANDS = {
    "init": CommandRow("apps.init.command", "make lists and a config from a folder of videos"),
    "train": CommandRow("cli.train", "train a network"),
    "test": CommandRow("cli.train", "evaluate weights on the test set", "build_test_parser"),
    "features": CommandRow("extensions.features.command", "compute features to train on", goes_on="output"),
    "average": CommandRow("apps.average.command", "average the weights of checkpoints"),
    "export": CommandRow("apps.export.command", "export a trained network for deployment"),
    "predict": CommandRow("apps.predict.command", "predict the classes of videos"),
    "serve": CommandRow("apps.serve.command", "answer requests for predictions over HTTP"),
    "convert": CommandRow("apps.convert.command", "convert weights of another toolkit"),
    "doctor": CommandRow("apps.doctor.command", "say where the time of a training goes"),
    "plan": CommandRow("apps.doctor.plan_command", "show what a multigrid run does and costs"),
    "launch": CommandRow("apps.launch.command", "start the processes of a run on several devices"),
    "config": CommandRow("cli.config", "show a config as it is run, or copy one to change it", is_group=True),
    "zoo": CommandRow("apps.zoo.command", "list the built-in configs with what they need"),
    "completion": CommandRow("apps.completion.command", "print a script for completion in a shell"),
    "data": CommandRow("apps.data.command", "make lists, check, re-encode and pack data sets", is_group=True),
}
# extensions that take part in a run whose config does not name them
ALWAYS = ("SELECTION", "report", "TRACKERS", "to_static")


@functools.cache
def modules_of(kind: str) -> Mapping[str, str]:
    """Name → dotted name of the module, for everything of a kind that is installed."""
    return {
        name: f"{__package__}.{module}" for name, module in _TABLE.get(kind, {}).items() if _is_there(module)
    }


def commands() -> dict[str, CommandRow]:
    """The subcommands that are installed."""
    rows = {name: row for name, row in _COMMANDS.items() if _is_there(row.module)}
    return {name: row._replace(module=f"{__package__}.{row.module}") for name, row in rows.items()}


def load(kind: str, name: str) -> ModuleType | None:
    """Imports the module that has `name`; None for a name that is not in the table."""
    module = modules_of(kind).get(name)
    return importlib.import_module(module) if module else None


def _is_there(module: str) -> bool:
    """Whether the folder of a module is installed."""
    return _finds(f"{__package__}.{module.partition('.')[0]}")


@functools.cache
def _finds(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
