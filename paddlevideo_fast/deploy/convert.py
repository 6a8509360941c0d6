"""Files of weights of other toolkits to files that load here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Union

import numpy as np
import paddle

from paddlevideo_fast.deploy.converters import convert_mit_tsm, convert_mmaction2_tsm, convert_pyslowfast
from paddlevideo_fast.errors import WeightError

CONVERTERS: Dict[str, Callable[[Mapping[str, np.ndarray]], Dict[str, np.ndarray]]] = {
    "mit_tsm": convert_mit_tsm,
    "mmaction2_tsm": convert_mmaction2_tsm,
    "pyslowfast": convert_pyslowfast,
}


def convert_file(source: Union[str, Path], target: Union[str, Path], kind: str) -> Dict[str, np.ndarray]:
    """Converts a weight file and writes it as .pdparams.

    Args:
        source: a PyTorch file, which needs the package torch to be read, or an .npz of the same names.
        target: path of the new file; its folder must exist.
        kind: a key of `CONVERTERS`.

    Returns:
        What was written.

    Raises:
        WeightError: the file cannot be read or holds other weights, or there is no such converter.
    """
    if kind not in CONVERTERS:
        raise WeightError(f"no converter '{kind}'; known: {', '.join(CONVERTERS)}")
    try:
        converted = CONVERTERS[kind](read_foreign_weights(source))
    except WeightError as exc:
        raise WeightError(f"{source}: {exc}") from exc
    paddle.save(converted, str(target))
    return converted


def read_foreign_weights(source: Union[str, Path]) -> Dict[str, np.ndarray]:
    """Names to arrays of a PyTorch file or an .npz; nothing in the file is run.

    Raises:
        WeightError: it cannot be read, or torch is needed and missing.
    """
    if str(source).endswith(".npz"):
        try:
            with np.load(source, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError) as exc:
            raise WeightError(f"cannot be read: {exc}") from exc
    try:
        import torch
    except ImportError as exc:
        raise WeightError(
            "reading a PyTorch file needs torch: type  pip install torch  or save the arrays with "
            "numpy.savez(path, **{name: tensor.numpy()}) where torch is"
        ) from exc
    try:
        content: Any = torch.load(str(source), map_location="cpu", weights_only=True)
    except Exception as exc:  # torch has many ways to say that a file is no weight file
        raise WeightError(f"cannot be read: {exc}") from exc
    return {name: tensor.numpy() for name, tensor in content.get("state_dict", content).items()}
