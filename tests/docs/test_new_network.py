"""docs/uniformerv2.patch, of docs/*/extending.md: it adds a network to the toolkit, and the network works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCH = (ROOT / "docs" / "uniformerv2.patch").read_text(encoding="utf-8")
MAX_FILES = 4  # that a new network touches

# Runs in a copy of the toolkit with the patch: a step through the network, and a file of its authors.
PROGRAM = r"""
import re
import numpy as np, paddle
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.apps.convert.convert import convert_state
from paddlevideo_fast.modeling import build_model

small = {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_global": 2}
overrides = [f"MODEL.backbone.{key}={value}" for key, value in small.items()] + ["MODEL.head.in_channels=32"]
cfg = load_config("configs/recognition/uniformerv2/uniformerv2_b_k400_videos.yaml", overrides)
paddle.seed(0)
model = build_model(RunSpec.of(cfg).model)
model.eval()
logits = model(paddle.randn([2, 3, 4, 32, 32]))
assert logits.shape == [2, 400] and float(logits.std()) > 0
logits.sum().backward()

# the authors' names and shapes of the same layers, as in their slowfast/models/uniformerv2_model.py
THEIRS = (
    (r"^head\.fc\.", "transformer.proj.2."),
    (r"^backbone\.norm\.", "transformer.proj.0."),
    (r"^backbone\.(temporal_cls_token|balance)", r"transformer.\1"),
    (r"^backbone\.blocks\.(\d+)\.", r"transformer.resblocks.\1."),
    (r"^backbone\.global_blocks\.(\d+)\.dpe\.", r"transformer.dpe.\1."),
    (r"^backbone\.global_blocks\.(\d+)\.", r"transformer.dec.\1."),
    (r"^backbone\.", ""),
    (r"\.lmhra([12])\.", r".lmhra\1.pos_embed."),
    (r"\.attn\.qkv\.", ".attn.in_proj_"),
    (r"\.attn\.proj\.", ".attn.out_proj."),
    (r"\._mean$", ".running_mean"),
    (r"\._variance$", ".running_var"),
)
linear = {name for name, layer in model.named_sublayers() if isinstance(layer, paddle.nn.Linear)}
rng, wanted, file = np.random.default_rng(0), {}, {}
for name, tensor in model.state_dict().items():
    value = wanted[name] = rng.normal(size=tensor.shape).astype("float32")
    theirs = name
    for pattern, text in THEIRS:
        theirs = re.sub(pattern, text, theirs)
    is_matrix = value.ndim == 2 and name.rpartition(".")[0] in linear
    file[theirs] = value.T if is_matrix else value
found = convert_state("pyslowfast", file, model)
assert not found.problems(), found.problems()
assert found.weights.keys() == wanted.keys(), wanted.keys() ^ found.weights.keys()
for name, value in wanted.items():
    np.testing.assert_array_equal(found.weights[name], value, err_msg=name)
print("converted", len(wanted))
"""


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """A copy of the toolkit with the patch of the page, and the files that it touches."""
    folder = tmp_path_factory.mktemp("patched")
    for name in ("paddlevideo_fast", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    apply = ["git", "apply", "--verbose", "-"]
    told = subprocess.run(apply, cwd=folder, input=PATCH, text=True, capture_output=True, check=True)
    return folder, re.findall(r"^Applied patch (\S+) cleanly", told.stderr, re.M)


def test_a_network_touches_few_files(patched):
    _, files = patched
    assert 2 < len(files) <= MAX_FILES
    assert PATCH.count("\n+++ ") == len(files)


def test_the_network_of_the_patch_computes_and_takes_its_authors_weights(patched):
    folder, _ = patched
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^converted \d\d+$", done.stdout, re.M)


def test_the_patch_is_in_the_style_of_the_toolkit(patched):
    folder, files = patched
    modules = [name for name in files if name.endswith(".py")]
    for words in (["check", *modules], ["format", "--check", *modules]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
