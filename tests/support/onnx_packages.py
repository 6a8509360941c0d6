"""Whether the extra `onnx` is installed: its tests are skipped, by name, where it is not."""

import importlib.util

import pytest

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("paddle2onnx", "onnxruntime"))
OPSET_VERSION = 13 if HAS_ONNX else None

needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="ONNX is not installed: pip install -e '.[onnx]'")
