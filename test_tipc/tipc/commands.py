"""From a text to the commands of its stages; nothing is run here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from test_tipc.tipc.text import NULL, Line, Text, TipcError

MODES = (
    "lite_train_lite_infer",
    "lite_train_whole_infer",
    "whole_train_whole_infer",
    "whole_infer",
    "benchmark_train",
)
AMP_WORDS = ["--amp", "--amp_level", "O2"]
_LITE_STEPS = 30  # of an epoch
# the export that follows a trainer, by the names of their lines
_EXPORTS = {
    "trainer_1": "norm_export",
    "trainer_2": "quant_export",
    "trainer_3": "fpgm_export",
    "trainer_4": "distill_export",
    "trainer_5": "norm_export",
    "trainer_6": "export2",
}
_TRUE, _FALSE = ("True", "gpu"), ("False", "cpu")


class Trainer(NamedTuple):
    """A training command, and the export command for its weights.

    Attributes:
        name: name of the trainer in the text.
        line: line of the training in the text.
        words: words of the training command.
        export: line of the export.
    """

    name: str
    line: Line
    words: list[str]
    export: Line


class Prediction(NamedTuple):
    """A way to predict.

    Attributes:
        name: name of its log.
        words: words of the command; empty where the prediction is skipped.
        skipped: why it is skipped; None where it is not.
    """

    name: str
    words: list[str]
    skipped: str | None = None


def script_words(line: Line) -> list[str]:
    """A line's command, whose first word is a script.

    PaddleVideo's `main.py` is `tools/main.py` here.

    Raises:
        TipcError: there is no such file.
    """
    words = line.words()
    if words and not Path(words[0]).is_file():
        if not Path("tools", words[0]).is_file():
            raise TipcError(f"{line.place}: {words[0]}: no such file; paths begin at the current folder")
        words[0] = f"tools/{words[0]}"
    return words


def trainers(text: Text) -> list[Trainer]:
    """The trainers that the line `trainer` chooses.

    Raises:
        TipcError: the line names a trainer that the text does not have.
    """
    known: dict[str, Trainer] = {}
    for name, export in _EXPORTS.items():
        line = text[name]
        if line.given:
            known.setdefault(line.key, Trainer(line.key, line, script_words(line), text[export]))
    if "to_static_train" in text.lines:
        line = text["trainer_1"]
        words = [*script_words(line), *text["to_static_train"].words()]
        known["to_static_train"] = Trainer("to_static_train", line, words, text["norm_export"])
    line = text["trainer"]
    missing = [name for name in line.choices if name not in known]
    if missing:
        raise TipcError(
            f"{line.place}: trainer {', '.join(missing)}: has no command; known: {', '.join(known)}"
        )
    return [known[name] for name in line.choices]


def amp_words(line: Line, choice: str) -> list[str]:
    """The words that a precision adds to a training command.

    Raises:
        TipcError: the precision is none of null, fp32, fp16.
    """
    if choice not in (NULL, "fp32", "fp16"):
        raise TipcError(f"{line.place}: {choice}: expected {NULL}, fp32 or fp16")
    return AMP_WORDS if choice == "fp16" else []


def use_gpu_words(text: Text, number: int) -> list[str]:
    """The option that chooses the device of entry `number` of gpu_list, where the text has such an option."""
    line = text["train_use_gpu"]
    choices = line.choices
    return line.option(choices[min(number, len(choices) - 1)])


def train_words(text: Text, mode: str, words: list[str], folder: Path) -> list[str]:
    """A training that writes to `folder`: small, except in whole_train modes."""
    result = [*words, *text["output_dir"].option(folder), *text["pretrained"].option()]
    if not mode.startswith("whole_train"):
        for name in ("epochs", "train_batch_size", "train_option", "lite_data"):
            result += text[name].option()
        if not any(word.startswith("--max_iters") for word in words):
            result.append(f"--max_iters={_LITE_STEPS}")
    return result


def eval_words(text: Text, mode: str, weights: Path, folder: Path) -> list[str]:
    """The evaluation command; None where the text has none. In lite_infer modes it reads the small data."""
    words = script_words(text["eval"])
    if words:
        words += [*text["eval_weights"].option(weights), *text["output_dir"].option(folder)]
        words += text["lite_data"].option() if mode.endswith("lite_infer") else []
    return words


def export_words(text: Text, export: Line, weights: Path, folder: Path) -> list[str]:
    """The export command; None where the text has none. The prediction looks for the program by this name."""
    words = script_words(export)
    if words:
        words += [*text["export_weights"].option(weights), *text["export_folder"].option(folder)]
        if not any(word.startswith("--save_name") for word in words):
            words.append(f"--save_name={_program(text).name}")
    return words


def predictions(text: Text, folder: Path, num_gpus: int, prefix: str) -> Iterator[Prediction]:
    """All combinations of the values between bars; a combination that cannot run here has the reason.

    Empty where the text has no prediction command.

    Raises:
        TipcError: `--use_gpu` has a value that says neither CPU nor GPU.
    """
    line = text["use_gpu"]
    for use_gpu in line.choices if text["inference"].given else ():
        if use_gpu in _FALSE:
            yield from _on_cpu(text, folder, f"{prefix}_cpu", use_gpu)
        elif use_gpu in _TRUE:
            yield from _on_gpu(text, folder, f"{prefix}_gpu", use_gpu, num_gpus)
        else:
            raise TipcError(f"{line.place}: {line.key}: '{use_gpu}': expected True or False")


def infer_models(text: Text) -> list[tuple[Path, Line | None]]:
    """The weights of whole_infer and the export of each; without one the path is a folder with a program.

    Raises:
        TipcError: the text names no weights, or the weights are quantised.
    """
    line, exports, quant = text["infer_model"], text["infer_export"], text["infer_quant"]
    if not line.given:
        raise TipcError(f"{line.place}: infer_model: whole_infer needs weights, or a folder with a program")
    if any(choice not in ("False", NULL) for choice in quant.choices):
        raise TipcError(f"{quant.place}: infer_quant: quantised programs are not supported; use False")
    commands = [Line(exports.place, exports.key, choice) for choice in exports.choices]
    if len(commands) != len(line.choices):
        raise TipcError(
            f"{exports.place}: infer_export: {len(commands)} commands for {len(line.choices)} models"
        )
    return [
        (Path(model), command if command.given else None) for model, command in zip(line.choices, commands)
    ]


def _program(text: Text) -> Path:
    """The value of --model_file without its ending, because the ending depends on the version of Paddle."""
    line = text["model_file"]
    if not line.given:
        raise TipcError(f"{line.place}: {line.key}: give the name of the exported program, such as inference")
    return Path(re.sub(r"\.(pdmodel|json)$", "", line.value))


def _on_cpu(text: Text, folder: Path, prefix: str, use_gpu: str) -> Iterator[Prediction]:
    for precision in text["precision"].choices:
        if precision not in ("fp32", NULL):
            yield Prediction(f"{prefix}_precision_{precision}", [], f"{precision} needs a GPU")
            continue
        names = ("use_mkldnn", "cpu_threads", "batch_size")
        for mkldnn, threads, batch in itertools.product(*(text[name].choices for name in names)):
            name = f"{prefix}_usemkldnn_{mkldnn}_threads_{threads}_precision_{precision}_batchsize_{batch}"
            chosen = dict(zip(names, (mkldnn, threads, batch)), use_gpu=use_gpu, precision=precision)
            yield Prediction(name, _predict_words(text, folder, chosen))


def _on_gpu(text: Text, folder: Path, prefix: str, use_gpu: str, num_gpus: int) -> Iterator[Prediction]:
    if not num_gpus:
        yield Prediction(prefix, [], "Paddle finds no GPU here")
        return
    for tensorrt, precision in itertools.product(text["use_tensorrt"].choices, text["precision"].choices):
        name = f"{prefix}_usetrt_{tensorrt}_precision_{precision}"
        if tensorrt == "True" or precision not in ("fp32", "fp16", NULL):
            yield Prediction(name, [], "TensorRT and integers are not supported")
            continue
        for batch in text["batch_size"].choices:
            chosen = {"use_tensorrt": tensorrt, "precision": precision}
            chosen.update(batch_size=batch, use_gpu=use_gpu)
            yield Prediction(f"{name}_batchsize_{batch}", _predict_words(text, folder, chosen))


def _predict_words(text: Text, folder: Path, chosen: dict[str, str]) -> list[str]:
    words = script_words(text["inference"])
    for name, value in chosen.items():
        words += text[name].option(value)
    words += text["model_file"].option(folder / _program(text))
    if text["params_file"].given:
        words += text["params_file"].option(folder / text["params_file"].value)
    return [*words, *text["input_file"].option(), *text["benchmark"].option()]
