"""`num_frames` and `crop_size` set the clip in the pipeline and in the network."""

import paddle
import pytest

from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.cli import train
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.modeling import Preprocess, build_for_clips
from paddlevideo_fast.registry import BACKBONES, LEARNING_RATES, SAMPLERS, TRANSFORMS


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tsm_motion", (16, 40)),
        ("slowfast_motion", (16, 56)),
        ("mvit_motion", (16, 56)),
        ("x3d_motion", (4, 56)),
        ("vit_motion", (16, 56)),
        ("swin_motion", (12, 42)),
    ],
)
def test_a_line_sets_pipeline_and_network(name, sizes, tmp_path, make_clip):
    """A real clip of that shape goes through the network."""
    make_clip(tmp_path / "a.mp4", 20, (96, 80))
    (tmp_path / "a.list").write_text("a.mp4 0\n")
    frames, side = sizes
    cfg = load_config(name, [f"num_frames={frames}", f"crop_size={side}"])
    assert "num_frames" not in cfg
    assert "crop_size" not in cfg
    plan = plan_run(RunSpec.of(cfg))
    section = {"format": "VideoDataset", "file_path": str(tmp_path / "a.list"), "data_prefix": str(tmp_path)}
    model = build_for_clips(cfg["MODEL"], load_pretrained=False)
    model.eval()
    for split in ("train", "valid", "test"):
        dataset = build_dataset(section, plan.pipelines[split], training=False, seed=0)
        clip = dataset[ClipRequest(0, 0)].clip
        assert clip.shape == (frames, side, side, 3), split
    preprocess = Preprocess(*dataset.pipeline.normalization, model.layout)
    with paddle.no_grad():
        assert model(preprocess(clip[None])).shape[0] == 1


def test_other_sizes_keep_their_ratio():
    cfg = load_config("tsn_k400_videos", ["num_frames=6", "crop_size=112"])
    train, test = cfg["PIPELINE"]["train"], cfg["PIPELINE"]["test"]
    assert train["sample"]["num_seg"] == 6
    assert test["sample"]["num_seg"] == 25  # no multiple of the 3 segments of training
    assert train["transform"][0]["Scale"]["short_size"] == 128
    assert {"TenCrop": {"target_size": 112}} in test["transform"]
    x3d = load_config("x3d_s", ["crop_size=80"])
    assert x3d["MODEL"]["head"]["crop_size"] == 80
    assert {"MultiCrop": {"target_size": 91, "test_mode": True}} in x3d["PIPELINE"]["test"]["transform"]
    assert load_config("x3d_s", ["crop_size=160", "num_frames=13"]) == load_config("x3d_s")


def test_a_network_that_leaves_its_argument_out_gets_it():
    cfg = load_config("timesformer_k400_videos", ["num_frames=16", "crop_size=96"])
    assert (cfg["MODEL"]["backbone"]["num_seg"], cfg["MODEL"]["backbone"]["img_size"]) == (16, 96)


@pytest.mark.parametrize(
    ("name", "override", "expected"),
    [
        ("vit_motion", "crop_size=30", "  PIPELINE.train.transform.1.RandomCrop.target_size: clips of"),
        ("vit_motion", "num_frames=5", "  PIPELINE.train.sample.num_seg: clips of 5 frames do not divide"),
        ("tsm_motion", "num_frames=0", ": expected int, from 1 to"),
        ("seg_len_4", "num_frames=6", ": no multiple of the 4 frames of PIPELINE.train.sample.seg_len"),
        ("no_crop", "crop_size=9", ": no transform of PIPELINE has a target_size"),
    ],
)
def test_what_cannot_be_names_the_key(tmp_path, monkeypatch, name, override, expected):
    monkeypatch.chdir(tmp_path)
    base = "_BASE_: tsm_motion\n"
    sampler = "{name: Sampler, num_seg: 2, seg_len: 4, select_left: false}"
    (tmp_path / "seg_len_4.yaml").write_text(f"{base}PIPELINE: {{train: {{sample: {sampler}}}}}\n")
    empty = ", ".join(f"{part}: {{transform: []}}" for part in ("train", "valid", "test"))
    (tmp_path / "no_crop.yaml").write_text(f"{base}PIPELINE: {{{empty}}}\n")
    path = f"{name}.yaml" if (tmp_path / f"{name}.yaml").exists() else name
    with pytest.raises(ConfigError) as caught:
        plan_run(RunSpec.of(load_config(path, [override])))
    assert f"-o #1  {override}{expected}" in str(caught.value)


PARTS = """
from collections.abc import Sequence
from dataclasses import dataclass

from paddlevideo_fast.config.types import CropSize, Epochs, FixedFrames, FrameDivisor, NumFrames
from paddlevideo_fast.config.types import Pixels, SideDivisor
from paddlevideo_fast.loader.sampling import UniformSampler
from paddlevideo_fast.loader.transforms import Geometric
from paddlevideo_fast.modeling import Backbone
from paddlevideo_fast.registry import BACKBONES, LEARNING_RATES, SAMPLERS, TRANSFORMS
from paddlevideo_fast.solver import LearningRate

@BACKBONES.register()
class OwnNetwork(Backbone):
    data_format = "NCHW"
    out_channels = 512
    def __init__(
        self,
        frames: FixedFrames | None = 8,
        every: FrameDivisor = 2,
        patch: SideDivisor = 4,
        size: CropSize = 56,
    ):
        super().__init__()

@SAMPLERS.register()
class OwnSampler(UniformSampler):
    def __init__(self, count: NumFrames):
        super().__init__(count)

@TRANSFORMS.register()
class OwnCrop(Geometric):
    def __init__(self, side: CropSize, margin: Pixels = 14):
        self.side = side
    def apply(self, geometry, rng):
        geometry.resize(self.side, self.side)

@LEARNING_RATES.register()
@dataclass(eq=False)
class OwnRate(LearningRate):
    drops: Sequence[Epochs]
    until: Epochs
    end_argument = "until"
    def _curve(self, epoch):
        return 0.1
"""
OWN = """
_BASE_: tsm_motion
imports: ./parts.py
epochs: 4
MODEL: {backbone: {name: OwnNetwork}}
OPTIMIZER: {learning_rate: {name: OwnRate, drops: [2, 3], until: 4}}
PIPELINE:
  train: &own
    sample: {name: OwnSampler, count: 8}
    transform: [OwnCrop: {side: 56}, Image2Array:]
  valid: *own
  test: *own
"""


@pytest.fixture
def own_config(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "own.yaml").write_text(OWN)
    registries = [BACKBONES, SAMPLERS, TRANSFORMS, LEARNING_RATES]
    before = [(registry, dict(registry._entries)) for registry in registries if registry.names()]
    yield str(tmp_path / "own.yaml")
    for registry, entries in before:
        registry._entries = entries


def test_components_of_plug_ins_take_part_by_their_annotations(own_config):
    cfg = load_config(own_config, ["num_frames=12", "crop_size=28"])
    assert cfg["MODEL"]["backbone"] == {"name": "OwnNetwork", "frames": 12, "size": 28}
    for pipeline in cfg["PIPELINE"].values():
        assert pipeline["sample"]["count"] == 12
        assert pipeline["transform"][0] == {"OwnCrop": {"side": 28, "margin": 7}}
    plan_run(RunSpec.of(cfg))
    args = train.build_parser().parse_args([own_config, "--epochs", "8"])
    rate = load_config(own_config, train.overrides_of(args)[0])["OPTIMIZER"]["learning_rate"]
    assert (rate["drops"], rate["until"]) == ([4, 6], 8)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("every=3", "sample.count: clips of 8 frames do not divide into MODEL.backbone.every=3"),
        ("frames=4", "sample.count: clips have 8 frames, and MODEL.backbone.frames (-o #1) is 4"),
        ("patch=5", "OwnCrop.side: clips of 56 pixels do not divide into MODEL.backbone.patch (-o #1)=5"),
    ],
)
def test_components_of_plug_ins_are_compared(own_config, override, expected):
    with pytest.raises(ConfigError) as caught:
        plan_run(RunSpec.of(load_config(own_config, [f"MODEL.backbone.{override}"])))
    assert expected in str(caught.value)


def test_an_index_that_is_none_names_what_there_is():
    with pytest.raises(ConfigError, match=r"'7' is no index of this list \(0 'RandomCrop', 1 'Image"):
        load_config("tsm_motion", ["PIPELINE.train.transform.7.RandomCrop.target_size=1"])
