"""From a config of PaddleX to ours.

PaddleX hands over a YAML file of PaddleVideo with two more sections, `Global` and `Infer`. What they say goes
to the keys that mean it here; what is left is a config like any other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.config.load import apply_overrides, read_with_bases
from paddlevideo_fast.errors import AnnotationError, ConfigError
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import did_you_mean

logger = get_logger(__name__)

Task = Literal["train", "test", "export"]
RUN_FOLDER = "paddlevideo_fast"  # our own files, beside the config.yaml and train.log that PaddleX writes
NUM_KEPT = 5  # folders epoch_N that stay

# Keys of Global and the keys here that mean the same. `use_visuald` is how PaddleX spells it when it trains.
_MEANINGS = {
    "to_static": "to_static",
    "seed": "seed",
    "use_visualdl": "use_visualdl",
    "use_visuald": "use_visualdl",
    "use_dali": "train_dali",
    "eval_during_train": "validate",
}
_READ_ELSEWHERE = {
    *("checkpoints", "pretrained_model", "output_dir", "device", "uniform_output_enabled", "pdx_model_name"),
    *("save_inference_dir", "algorithm"),  # the command line says where to export to
    *("log_ranks", "print_mem_info"),  # for PaddleX's benchmarks
    *("inference_model_dir", "infer_videos", "use_gpu", "enable_mkldnn"),  # for its inference
}


@dataclass(frozen=True)
class Order:
    """What PaddleX asks for beside a training.

    Attributes:
        output: folder of best_model/, epoch_N/ and train_result.json.
        uniform_output: whether PaddleX wants these.
        weights: the file of `Global.pretrained_model`.
        model_name: PaddleX's name of the model.
        topk: classes that a prediction shows.
        labels: file with the names of the classes, lines `0 name`; None: there is none that fits.
    """

    output: Path
    uniform_output: bool
    weights: str | None
    model_name: str | None
    topk: int
    labels: str | None


def is_paddlex_config(path: str | Path) -> bool:
    """Whether a file is a config of PaddleX; a file that cannot be read is none."""
    try:
        return isinstance(read_with_bases(str(path)).get("Global"), dict)
    except ConfigError:
        return False


def device_of(path: str | Path, overrides: Sequence[str]) -> str:
    """The device that a config of PaddleX asks for, such as "cpu"; empty where it names none."""
    config = read_with_bases(str(path))
    apply_overrides(config, overrides)
    return str(config["Global"].get("device") or "").partition(":")[0]


def load_paddlex_config(path: str | Path, overrides: Sequence[str], task: Task) -> tuple[Config, Order]:
    """Reads a config of PaddleX as a checked config, and what PaddleX asks for beside it.

    Args:
        path: the YAML file.
        overrides: `KEY.PATH=VALUE` texts; they may set keys of Global, too.
        task: what the config is for: the weights mean another thing in each.

    Raises:
        ConfigError: with all problems of the file.
        WeightError: the weights to train from cannot be downloaded or read.
    """
    settings: dict[str, Any] = {}
    infer: dict[str, Any] = {}

    def translate(config: Config) -> None:
        settings.update(_taken(config, "Global"))
        infer.update(_taken(config, "Infer"))
        _translate(config, settings)

    config = load_config(path, overrides, translate=translate)
    output = Path(config["output_dir"]).parent
    weights, checkpoint = (_given(settings.get(key)) for key in ("pretrained_model", "checkpoints"))
    if task == "train" and checkpoint is not None:
        own = _own_checkpoint(checkpoint, output, config["model_name"])
        _set(config, "resume", own, ("Global", "checkpoints"))
    elif weights is not None and task != "export" and not config.get("weights"):  # -w goes before
        _set_weights(config, weights, task)
    post = _taken(infer, "PostProcess")
    topk = post.get("topk")
    order = Order(
        output=output,
        uniform_output=settings.get("uniform_output_enabled", True) is not False,
        weights=weights,
        model_name=settings.get("pdx_model_name") or settings.get("algorithm"),
        topk=topk if isinstance(topk, int) else 1,
        labels=_labels(config, post.get("class_id_map_file")),
    )
    if order.labels is not None:
        config["DATASET"] = {**config["DATASET"], "class_names": order.labels}
    return config, order


def _translate(config: Config, settings: Mapping[str, Any]) -> None:
    """Puts what Global says under the keys that mean it here."""
    config.pop("INFERENCE", None)
    for key, value in settings.items():
        if key not in {*_MEANINGS} | _READ_ELSEWHERE:
            hint = did_you_mean(str(key), sorted({*_MEANINGS} | _READ_ELSEWHERE))
            warn_once(logger, config.problem(f"Global.{key}", f"unknown key{hint}; it has no effect"))
        elif key in _MEANINGS and value is not None:
            _set(config, _MEANINGS[key], value, ("Global", key))
    output = Path(str(config.get("output_dir") or settings.get("output_dir") or "output")).expanduser()
    _set(config, "output_dir", str(output / RUN_FOLDER), ("Global", "output_dir"))
    config.setdefault("keep_last", NUM_KEPT)
    config.setdefault("validate", False)
    _read_as_paddlex_does(config)


def _taken(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.pop(name, None)
    return dict(section) if isinstance(section, Mapping) else {}


def _set(config: Config, key: str, value: Any, origin: tuple[str, ...]) -> None:
    """Sets a key; problems of its value name the line of PaddleX's key."""
    config[key] = value
    config.origins[(key,)] = config.where(origin)


def _given(path: Any) -> str | None:
    """A path of PaddleX, which may be null; "null" behind a folder is a null that it made a path of."""
    text = str(path or "")
    return None if not text or Path(text).name == "null" else text


def _read_as_paddlex_does(config: Config) -> None:
    """Videos are resized as PaddleX's predictor resizes them, and decoded by our own reader."""
    pipelines = config.get("PIPELINE")
    for section in pipelines.values() if isinstance(pipelines, dict) else ():
        if isinstance(section, dict):
            section.setdefault("resample", "bilinear")
            decode = section.get("decode")
            if isinstance(decode, dict) and decode.get("backend") == "decord":
                del decode["backend"]


def _own_checkpoint(path: str, output: Path, model_name: str) -> str:
    """The checkpoint of our run that `epoch_N/epoch_N` is a copy of, or `path` where it comes from elsewhere.

    The run then goes on with its curves and log.
    """
    prefix = Path(re.sub(r"\.pdparams$", "", path))
    match = re.fullmatch(r"epoch_(\d+)", prefix.name)
    if match and prefix.parent.parent.resolve() == output.resolve():
        own = output / RUN_FOLDER / f"{model_name}_epoch_{int(match[1]):05d}"
        if Path(f"{own}.json").is_file():
            return str(own)
    return str(prefix)


def _set_weights(config: Config, path: str, task: Task) -> None:
    """Weights to test, or to train from: with other classes, all but the last layer's."""
    origin = ("Global", "pretrained_model")
    if task == "test" or _num_classes(path) == _classes_of(config["MODEL"]):
        _set(config, "weights", path, origin)
        return
    logger.info("%s has other classes: the last layer starts anew", path)
    config["MODEL"] = {**config["MODEL"], "backbone": {**config["MODEL"]["backbone"], "pretrained": path}}


def _classes_of(model: Mapping[str, Any]) -> int:
    from paddlevideo_fast.modeling import classes_of

    return classes_of(model)


def _num_classes(path: str) -> int | None:
    """Outputs of the last layer of a weight file; None where that is not clear."""
    from paddlevideo_fast.modeling.weights import fetch_weights, read_weights

    last = re.compile(r"(?:(?:head|backbone|_layers)\.)*(?:fc|projection)\.bias")
    weights = read_weights(fetch_weights(path))
    sizes = {value.shape[0] for name, value in weights.items() if last.fullmatch(name)}
    return sizes.pop() if len(sizes) == 1 else None


def _labels(config: Config, path: Any) -> str | None:
    """The file of the classes' names, if it fits the network; numbers stand for names otherwise."""
    from paddlevideo_fast.loader import read_class_names

    if not path or not Path(str(path)).is_file():
        return None
    try:
        read_class_names(str(path), _classes_of(config["MODEL"]))
    except AnnotationError as error:
        warn_once(logger, f"{error}; numbers stand for the names")
        return None
    return str(path)
