"""Files that PyTorch and others wrote are read without them, number for number."""

import json
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.apps.convert.source_files import read_source
from paddlevideo_fast.errors import WeightError
from tests.support.torch_writer import write_pickles, write_zip

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["torch_zip.pth", "torch_pickles.pth", "torch.safetensors"])
def test_what_pytorch_wrote_is_read(name):
    """A checkpoint of PyTorch 2.13: slices, transposes, half, bfloat16, a parameter, an optimizer's state."""
    read = read_source(DATA / name)
    with np.load(DATA / "torch_expected.npz") as expected:
        assert set(read) == set(expected.files)
        for key in expected.files:
            assert read[key].dtype == expected[key].dtype, key
            np.testing.assert_array_equal(read[key], expected[key], key)
    assert "torch" not in sys.modules


@pytest.mark.parametrize("write", [write_zip, write_pickles])
@pytest.mark.parametrize("wrapper", ["", "module.", "model."])
@pytest.mark.parametrize("state", ["state_dict", "model_state", "module", "target_encoder", None])
def test_checkpoints_are_unwrapped(tmp_path, write, wrapper, state):
    arrays = {f"{wrapper}a.weight": np.arange(6, dtype="float32").reshape(2, 3).T}
    arrays[f"{wrapper}a.steps"] = np.array(7)
    write(tmp_path / "x.pth", {"epoch": 3, state: arrays} if state else arrays)
    read = read_source(tmp_path / "x.pth")
    assert set(read) == {"a.weight", "a.steps"}
    np.testing.assert_array_equal(read["a.weight"], [[0, 3], [1, 4], [2, 5]])
    assert read["a.steps"] == 7


def test_a_caffe2_pickle_of_python_2_is_read(tmp_path):
    blob = np.arange(3, dtype="float32")
    # Python 2 wrote bytes as text, protocol 2: SHORT_BINSTRING for the numbers
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01K\x03\x85"
        b"cnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x0c" + blob.tobytes() + b"tb"
    )
    (tmp_path / "x.pkl").write_bytes(b"\x80\x02}U\x05blobs}U\x07conv1_w" + array + b"ss.")
    np.testing.assert_array_equal(read_source(tmp_path / "x.pkl")["conv1_w"], blob)


def test_a_whole_pickled_module_is_named():
    with pytest.raises(
        WeightError, match=r"torch\.nn\.modules.*BatchNorm2d.*nothing of it was run.*state_dict"
    ):
        read_source(DATA / "torch_module.pth")


def test_files_without_weights_say_what_they_have(tmp_path):
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"epoch": 3, "name": "tsm"}, protocol=2))
    with pytest.raises(WeightError, match="epoch, name"):
        read_source(tmp_path / "x.pkl")
    with pytest.raises(WeightError, match="no such file"):
        read_source(tmp_path / "none.pth")
    header = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(WeightError, match=r"shape \[9\]"):
        read_source(tmp_path / "x.safetensors")
