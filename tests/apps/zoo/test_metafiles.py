"""The metafiles: each published result names a config that is its network, and can be converted."""

import importlib.util
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from paddlevideo_fast.apps.convert.convert import CONVERTERS
from paddlevideo_fast.config import load_config
from paddlevideo_fast.loader import build_pipeline
from paddlevideo_fast.registry import RECOGNIZERS

ROOT = Path(__file__).resolve().parents[3]
NUM_CLASSES = {"Kinetics-400": 400, "UCF101": 101, "Something-Something V2": 174}
CONVERTER_OF = {
    "Hiera": "hiera",
    "Hugging Face": "huggingface",
    "MIT": "mit-tsm",
    "MMAction2": "mmaction2",
    "PaddleVideo": "paddlevideo",
    "PySlowFast": "pyslowfast",
    "PyTorchVideo": "pytorchvideo",
    "torchvision": "torchvision",
    "Video Swin": "swin",
}
ENDINGS = (".bin", ".safetensors", ".pth", ".pyth", ".pkl", ".pdparams")

spec = importlib.util.spec_from_file_location("model_zoo", ROOT / "tools" / "model_zoo.py")
model_zoo = sys.modules["model_zoo"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model_zoo)
RESULTS = model_zoo.read_metafiles()


@pytest.fixture
def warnings(monkeypatch):
    """The warnings of the config check."""
    seen = []
    monkeypatch.setattr("paddlevideo_fast.config.document._LOGGER.log", lambda _, text: seen.append(text))
    return seen


@pytest.mark.parametrize("page", model_zoo.PAGES, ids=lambda page: page.parent.name)
def test_the_pages_are_what_the_metafiles_say(page):
    text = page.read_text(encoding="utf-8")
    assert model_zoo.updated(text, RESULTS) == text, "type  python tools/model_zoo.py"
    for result in RESULTS:
        assert f"]({result.weights}) |" in text


def test_every_folder_of_configs_has_a_metafile():
    for folder in {path.parent for path in (ROOT / "configs" / "recognition").glob("*/*.yaml")}:
        configs = [path.relative_to(ROOT).as_posix() for path in folder.rglob("*.yaml")]
        assert any(result.config in configs for result in RESULTS), folder


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.weights.rsplit("/", 1)[1])
def test_a_result(result, warnings):
    network = result.name.split()[0].lower().replace("-only", "").replace("v2", "")
    assert network.replace("(2+1)", "2plus1").partition("-")[0] in result.config
    assert 0 < result.top1 < (result.top5 or 100) <= 100
    assert CONVERTER_OF[result.toolkit] == result.converter
    assert result.converter in CONVERTERS
    assert result.weights.endswith(ENDINGS)
    for address in (result.source, result.weights, result.paper):
        parts = urlsplit(address)
        assert parts.scheme == "https"
        assert "." in parts.netloc
        assert len(parts.path) > 1
    config = load_config(ROOT / result.config, result.options)
    assert warnings == []
    recognizer = RECOGNIZERS.get(config["MODEL"]["framework"])
    assert recognizer.classes_of(config["MODEL"]) == NUM_CLASSES[result.data]
    for part in ("train", "valid"):
        assert frames_of(config, part) == result.frames.replace(", dense", "")


@pytest.mark.parametrize(
    "result",
    [result for result in RESULTS if (result.data == "Something-Something V2") != (result.views == "25×10")],
    ids=lambda result: result.weights.rsplit("/", 1)[1],
)
def test_the_config_tests_as_the_publisher_did(result):
    """So they do where the recipe is the publisher's; ten crops, half of them mirrored, are not for hands."""
    config = load_config(ROOT / result.config, result.options)
    test, pipeline = config["DATASET"]["test"], config["PIPELINE"]["test"]
    names = {name for step in pipeline["transform"] for name in step}
    if "TenCrop" in names:
        assert result.views == f"{pipeline['sample']['num_seg']}×10"
    else:
        num_crops = test.get("num_spatial_crops") or build_pipeline(pipeline).num_views
        assert result.views == f"{test.get('num_ensemble_views', 1)}×{num_crops}"


def frames_of(config, part):
    """As the results have them: frames, or the slow frames × the distance between them.

    Videos of Something-Something are read whole: there the distance is the one in the name of the network.
    """
    pipeline = config["PIPELINE"][part]
    sampler = pipeline.get("decode_sampler") or pipeline["sample"]
    if "num_seg" in sampler:
        return str(sampler["num_seg"])
    alpha = config["MODEL"]["backbone"].get("alpha", 1)
    return f"{sampler['num_frames'] // alpha}×{sampler.get('sampling_rate', 8 // alpha) * alpha}"


def test_what_a_metafile_may_not_have(tmp_path):
    path = tmp_path / "configs" / "recognition" / "x" / "metafile.yml"
    path.parent.mkdir(parents=True)
    text = (ROOT / "configs/recognition/i3d/metafile.yml").read_text(encoding="utf-8")
    path.write_text(text.replace("top5:", "topfive:", 1), encoding="utf-8")
    with pytest.raises(TypeError, match="topfive"):
        model_zoo.read_metafiles(tmp_path / "configs")
