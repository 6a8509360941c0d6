"""The text format of TIPC: sections of `key:value` lines, whose meaning comes from their order.

Many keys are the option that a value is given with (`-o epochs:2` becomes `-o epochs=2`), so the meaning of a
line is its place in the section. The other keys are fixed, and reveal a line that is missing or misplaced.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paddlevideo_fast.errors import PaddleVideoFastError

NULL = "null"
_OPTION = None  # in place of a fixed key: whatever stands there is the option

# section -> name of each line, in order -> its fixed key
_SECTIONS: dict[str, dict[str, str | None]] = {
    "train_params": {
        "model_name": "model_name",
        "python": "python",
        "gpu_list": "gpu_list",
        "train_use_gpu": _OPTION,
        "auto_cast": _OPTION,
        "epochs": _OPTION,
        "output_dir": _OPTION,
        "train_batch_size": _OPTION,
        "pretrained": _OPTION,
        "train_model_name": "train_model_name",
        "train_option": _OPTION,
        "lite_data": _OPTION,
        "trainer": "trainer",
        "trainer_1": _OPTION,
        "trainer_2": _OPTION,
        "trainer_3": _OPTION,
        "trainer_4": _OPTION,
        "trainer_5": _OPTION,
        "trainer_6": _OPTION,
    },
    "eval_params": {"eval": "eval", "eval_weights": _OPTION},
    "infer_params": {
        "export_folder": _OPTION,
        "export_weights": _OPTION,
        "norm_export": "norm_export",
        "quant_export": "quant_export",
        "fpgm_export": "fpgm_export",
        "distill_export": "distill_export",
        "export1": _OPTION,
        "export2": _OPTION,
        "inference_dir": _OPTION,
        "infer_model": "infer_model",
        "infer_export": "infer_export",
        "infer_quant": "infer_quant",
        "inference": "inference",
        "use_gpu": _OPTION,
        "use_mkldnn": _OPTION,
        "cpu_threads": _OPTION,
        "batch_size": _OPTION,
        "use_tensorrt": _OPTION,
        "precision": _OPTION,
        "model_file": _OPTION,
        "input_file": _OPTION,
        "save_log": _OPTION,
        "benchmark": _OPTION,
        "params_file": _OPTION,
    },
    "infer_benchmark_params": {"random_infer_input": "random_infer_input"},
    "train_benchmark_params": {
        "bench_batch_size": "batch_size",
        "fp_items": "fp_items",
        "bench_epochs": "epoch",
        "profiler": _OPTION,
        "flags": "flags",
        "max_iters": "max-iters",
    },
    "to_static_train_benchmark_params": {"to_static_train": "to_static_train"},
}
_REQUIRED = ("train_params", "eval_params", "infer_params")


class TipcError(PaddleVideoFastError):
    """A text, an argument or a machine that a pipeline cannot run with."""


@dataclass(frozen=True)
class Line:
    """One line of a text.

    Attributes:
        place: `file:number`.
        key: in front of the first colon.
        value: behind it.
    """

    place: str
    key: str
    value: str

    @property
    def given(self) -> bool:
        """Whether there is a value: neither empty nor null."""
        return self.value not in ("", NULL)

    @property
    def choices(self) -> list[str]:
        """The values between bars, `a|b`."""
        return [choice.strip() for choice in self.value.split("|")]

    def option(self, value: object | None = None) -> list[str]:
        """The words of `key=value` on a command line; none where the key or the value is null.

        Args:
            value: another value; None: that of the line.
        """
        text = self.value if value is None else shlex.quote(str(value))
        return [] if NULL in (self.key, text) or not text else self.split(f"{self.key}={text}")

    def words(self) -> list[str]:
        """The value as the words of a command."""
        return self.split(self.value) if self.given else []

    def split(self, text: str) -> list[str]:
        """Words as a shell takes them.

        Raises:
            TipcError: a quote is left open.
        """
        try:
            return shlex.split(text)
        except ValueError as error:
            raise TipcError(f"{self.place}: {error}: {text}") from None


@dataclass(frozen=True)
class Text:
    """A text that has been read.

    Attributes:
        path: the file.
        lines: by name.
    """

    path: Path
    lines: Mapping[str, Line]

    def __getitem__(self, name: str) -> Line:
        """The line of this name.

        Raises:
            TipcError: it belongs to a section that the text does not have.
        """
        if name not in self.lines:
            section = next(section for section, names in _SECTIONS.items() if name in names)
            raise TipcError(f"{self.path}: has no section {section}, which this needs")
        return self.lines[name]

    @property
    def model_name(self) -> str:
        """Under which the outputs are."""
        return self["model_name"].value


def read_text(path: Path) -> Text:
    """Reads a text.

    Raises:
        TipcError: it cannot be read, or a line is not the one that belongs there.
    """
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TipcError(f"{path}: cannot be read: {error}") from None
    sections: dict[str, list[Line]] = {}
    current: list[Line] | None = None
    for number, row in enumerate(rows, 1):
        place = f"{path}:{number}"
        heading = re.fullmatch(r"=+(\w+)=+", row.strip())
        if heading:
            if heading[1] not in _SECTIONS or heading[1] in sections:
                known = ", ".join(_SECTIONS)
                raise TipcError(f"{place}: section {heading[1]}: expected, once each: {known}")
            current = sections.setdefault(heading[1], [])
        elif row.strip() and row.strip() != "##":
            key, colon, value = row.partition(":")
            if current is None or not colon:
                raise TipcError(f"{place}: expected a line `key:value` below `===train_params===`: {row}")
            current.append(Line(place, key.strip(), value.strip()))
    missing = [name for name in _REQUIRED if name not in sections]
    if missing:
        raise TipcError(f"{path}: has no section {', '.join(missing)}")
    lines: dict[str, Line] = {}
    for section, found in sections.items():
        lines.update(_named(path, section, found))
    return Text(path, lines)


def _named(path: Path, section: str, found: list[Line]) -> dict[str, Line]:
    """The lines of a section by name.

    Raises:
        TipcError: one is missing, one too many, or in the wrong place.
    """
    expected = _SECTIONS[section]
    for line, key in zip(found, expected.values()):
        if key is not None and line.key != key:
            raise TipcError(
                f"{line.place}: key {line.key}: expected {key}; the lines of a section have a fixed order"
            )
    if len(found) != len(expected):
        last = found[-1].place if found else path
        raise TipcError(
            f"{last}: section {section} has {len(found)} lines, expected {len(expected)}; "
            "a line without a meaning stays as null:null"
        )
    return dict(zip(expected, found))
