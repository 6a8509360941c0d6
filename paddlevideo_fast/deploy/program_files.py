"""The files of a program: which they are, whether they are still those of the export, and how they open."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Dict, Iterable, Mapping, Optional, Sequence, Union

import paddle

from paddlevideo_fast.deploy.onnx_program import OnnxProgram
from paddlevideo_fast.deploy.paddle_program import PaddleProgram
from paddlevideo_fast.deploy.program import Program, ProgramOptions
from paddlevideo_fast.errors import ProgramError

# The one that the installed Paddle writes comes first.
PADDLE_SUFFIXES = (".pdmodel", ".json") if paddle.__version__.startswith("2.") else (".json", ".pdmodel")
PARAMS_SUFFIX = ".pdiparams"
ONNX_SUFFIX = ".onnx"
PROGRAM_SUFFIXES = (*PADDLE_SUFFIXES, ONNX_SUFFIX)


def find_program(model_file: Union[str, Path]) -> Path:
    """The file of a program, whose ending may be left out; Paddle's comes before ONNX.

    Raises:
        ProgramError: there is none.
    """
    path = Path(model_file)
    with_endings = [] if path.suffix in PROGRAM_SUFFIXES else [f"{path}{end}" for end in PROGRAM_SUFFIXES]
    for candidate in (*map(Path, with_endings), path):
        if candidate.is_file():
            return candidate
    raise ProgramError(f"{path}: there is no such file; tools/export_model.py writes it")


def settings_file(model_file: Union[str, Path]) -> Path:
    """Where export puts what prediction needs to know of a program.

    Raises:
        ProgramError: there is no such program.
    """
    return find_program(model_file).with_suffix(".yaml")


def open_program(
    model_file: Union[str, Path],
    params_file: Optional[Union[str, Path]] = None,
    options: Optional[ProgramOptions] = None,
    checksums: Optional[Mapping[str, int]] = None,
) -> Program:
    """Loads an exported network.

    Args:
        model_file: .json or .pdmodel for Paddle Inference, .onnx for onnxruntime; the ending may be left out.
        params_file: of a program for Paddle Inference; None: next to it.
        options: how it is run.
        checksums: see `ProgramSettings`.

    Raises:
        ProgramError: a file is missing, not the one that was exported, or no program; or it cannot run so.
        MissingExtraError: onnxruntime is needed and not installed.
    """
    model_file, options = find_program(model_file), options or ProgramOptions()
    if model_file.suffix not in PROGRAM_SUFFIXES:
        raise ProgramError(f"{model_file}: is no program; expected one of {', '.join(PROGRAM_SUFFIXES)}")
    params = None
    if model_file.suffix != ONNX_SUFFIX:
        params = Path(params_file or model_file.with_suffix(PARAMS_SUFFIX))
    elif params_file is not None:
        raise ProgramError(f"params_file {params_file}: {model_file} has its weights in it; leave it out")
    files = [model_file] if params is None else [model_file, params]
    if params is not None and not params.is_file():
        raise ProgramError(f"{params}: there is no such file; tools/export_model.py writes it")
    if checksums is not None:
        _check_files(files, checksums)
    if params is None:
        return OnnxProgram(model_file, options)
    return PaddleProgram(model_file, params, options)


def checksums_of(files: Iterable[Path]) -> Dict[str, int]:
    """CRC-32 of files, by their endings."""
    return {path.suffix: _checksum(path) for path in files}


def _checksum(path: Path) -> int:
    value = 0
    try:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                value = zlib.crc32(part, value)
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read: {error.strerror or error}") from error
    return value


def _check_files(files: Sequence[Path], checksums: Mapping[str, int]) -> None:
    settings = files[0].with_suffix(".yaml").name
    for path in files:
        if path.suffix not in checksums:
            raise ProgramError(
                f"{path}: {settings} is of an export that wrote {', '.join(checksums)} only; export it again"
            )
        if _checksum(path) != checksums[path.suffix]:
            raise ProgramError(
                f"{path}: is damaged, or of another export than {settings}; copy the files of one export "
                "together, or export it again"
            )
