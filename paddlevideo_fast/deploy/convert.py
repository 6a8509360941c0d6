"""Files of weights of other toolkits to files that load here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Union

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.deploy.conversion import Conversion, convert
from paddlevideo_fast.deploy.converters import CONVERTERS, Network
from paddlevideo_fast.deploy.source_files import read_source
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.registry import did_you_mean


def convert_state(kind: str, state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Weights of another toolkit for `model`; see `convert_file`.

    Args:
        kind: a key of `CONVERTERS`.
        state: names of the other toolkit to arrays.
        model: a recognizer.

    Raises:
        WeightError: there is no such converter, or nothing of it fits.
    """
    if kind not in CONVERTERS:
        raise WeightError(f"no converter '{kind}'{did_you_mean(kind, CONVERTERS)}")
    if not hasattr(model, "backbone"):
        raise WeightError(
            "the config has several networks; give the config of the one that the weights are of"
        )
    result = convert(CONVERTERS[kind](state, Network(model)))
    if not result.weights:
        raise WeightError(
            f"nothing in it has the names of '{kind}' and fits the config's network; choose another --from "
            f"({', '.join(CONVERTERS)}) or config\n{result.problems()}"
        )
    return result


def convert_file(
    kind: str,
    source: Union[str, Path],
    model: nn.Layer,
    target: Union[str, Path],
    partial: bool = False,
) -> Conversion:
    """Converts a file of weights for `model` and writes it as .pdparams.

    Args:
        kind: a key of `CONVERTERS`.
        source: a file of PyTorch (.pth, .pt, .pyth), safetensors, Caffe2 or Paddle.
        model: the recognizer that is to load the new file; its own weights stay what they are.
        target: path of the new file.
        partial: write what fits even where something is left over, missing or of another shape.

    Returns:
        What was written, and the report.

    Raises:
        WeightError: the file cannot be read, or the map is not whole and `partial` is off. Nothing is written
            then.
    """
    try:
        result = convert_state(kind, read_source(source), model)
        if not (result.is_whole or partial):
            raise WeightError(
                f"does not fit the config's network ({result.summary()}); nothing was written. Change the "
                f"config, or write what fits with --partial\n{result.problems()}"
            )
    except WeightError as exc:
        message = str(exc)
        raise WeightError(message if message.startswith(str(source)) else f"{source}: {message}") from exc
    _write(result.weights, Path(target))
    return result


def _write(weights: Mapping[str, np.ndarray], target: Path) -> None:
    unfinished = target.with_name(target.name + ".part")
    try:
        paddle.save(dict(weights), str(unfinished))
        os.replace(unfinished, target)
    except OSError as exc:
        raise WeightError(f"{target}: cannot be written: {exc.strerror or exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)
