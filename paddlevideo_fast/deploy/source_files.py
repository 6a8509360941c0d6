"""Files of weights of any toolkit to names and arrays."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any, Dict, Mapping, Union

import numpy as np

from paddlevideo_fast.deploy.torch_files import read_torch_pickles, read_torch_zip, starts_as_torch_pickle
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling.array_pickles import array_of
from paddlevideo_fast.modeling.pickles import PickleError
from paddlevideo_fast.modeling.weights import map_file, read_arrays

_STATES = ("state_dict", "model_state", "model_state_dict", "model", "blobs")
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "|u1",
    "BOOL": "|b1",
}


def read_source(path: Union[str, Path]) -> Dict[str, np.ndarray]:
    """Names to arrays of a file of weights, told apart by its content, and nothing in it is run.

    It may be PyTorch's zip or pickles, safetensors, or a pickle of arrays as Paddle and Caffe2 write; a whole
    checkpoint (`state_dict`, `model_state`, ...) or the weights alone. A wrapper's prefix that all names have
    (`module.`) is taken away.

    Raises:
        WeightError: missing, damaged, of another kind, or it refers to anything but arrays.
    """
    with map_file(path) as file:
        try:
            content = _content(file, path)
        except PickleError as exc:
            raise WeightError(
                f"{path}: is no file of weights, or a damaged one: it {exc}; nothing of it was run. Where it "
                "can be trusted, save its weights alone: torch.save(model.state_dict(), path)"
            ) from exc
    state = _state(content)
    arrays = {str(name): value for name, value in state.items() if isinstance(value, np.ndarray)}
    if not arrays:
        raise WeightError(
            f"{path}: has no arrays under names; its keys are {', '.join(map(str, state))[:200]}"
        )
    return _unwrapped(arrays)


def _content(file: mmap.mmap, path: Union[str, Path]) -> Any:
    if file[:4] == b"PK\x03\x04":
        return read_torch_zip(path)
    if starts_as_torch_pickle(file):
        return read_torch_pickles(file)
    if file[257:262] == b"ustar":
        raise PickleError("is a tar archive, as PyTorch wrote until 2017")
    if file[8:9] == b"{":
        return _safetensors(file)
    return read_arrays(file)


def _state(content: Any) -> Mapping[Any, Any]:
    if not isinstance(content, Mapping):
        return {type(content).__name__: content}
    for key in _STATES:
        if isinstance(content.get(key), Mapping):
            return content[key]
    return content


def _unwrapped(arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in arrays):
            arrays = {name[len(prefix) :]: value for name, value in arrays.items()}
    return arrays


def _safetensors(file: mmap.mmap) -> Dict[str, np.ndarray]:
    """A JSON header (its length first) with type, shape and place of each tensor, then the numbers.

    Raises:
        PickleError: a header that is not so, or tensors that reach out of the file or share data.
    """
    start = 8 + int.from_bytes(file[:8], "little")
    try:
        header: Dict[str, Any] = json.loads(file[8:start])
        arrays, used = {}, 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            used += max(end - begin, 0)
            if not 0 <= begin <= end <= len(file) - start or used > len(file) - start:
                raise PickleError(f"has the tensor '{name[:40]}', which reaches out of the file")
            data = file[start + begin : start + end]
            if entry["dtype"] == "BF16":
                upper_half = array_of(data, np.dtype("<u2"), entry["shape"])
                arrays[name] = np.left_shift(upper_half, 16, dtype="<u4").view("<f4")
            else:
                arrays[name] = array_of(data, np.dtype(_SAFETENSORS[entry["dtype"]]), entry["shape"])
    except PickleError:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise PickleError(f"has a damaged header: {exc or type(exc).__name__}") from exc
    return arrays
