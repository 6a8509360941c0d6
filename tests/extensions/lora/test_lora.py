"""LoRA: what it computes, what trains, what its files hold, and files that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError, WeightError
from paddlevideo_fast.extensions.lora.files import base_of, is_lora
from paddlevideo_fast.extensions.lora.lora import Lora
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.modeling.stages import learned_parameters
from paddlevideo_fast.modeling.weights import read_weights, stored_state
from tests.modeling.networks import normal, section_of
from tests.modeling.test_pyramid import MVIT, SWIN

OTHERS = {"swin": (SWIN, "I3DHead"), "mvit": (MVIT, "TransformerHead")}
CLIPS = normal(2, 3, 4, 32, 32)


def network(name="videomae", **backbone):
    if name not in OTHERS:
        return build_model(section_of(name, **backbone))
    own, head = OTHERS[name]
    section = {
        "framework": "RecognizerTransformer",
        "head": {"name": head, "num_classes": 3, "in_channels": 16},
    }
    return build_model({**section, "backbone": {**own, **backbone}})


def with_lora(folder: Path, name="videomae", **settings):
    """A network that has started from `base.pdparams` of the folder, and its logits before LoRA."""
    paddle.seed(5)
    whole = folder / "base.pdparams"
    paddle.save(network(name).state_dict(), str(whole))
    model = network(name, pretrained=str(whole))
    model.eval()
    before = model(CLIPS).numpy()
    lora = Lora(**{"rank": 4, **settings}).add_to(model)
    names = [f"backbone.{each}" for each in model.load_report.loaded]
    lora.keep_base(model, base_of(whole, "backbone"), names)
    return model, before


def train_a_step(model):
    model.train()
    rate = 0.05
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters())
    for _ in range(3):  # A learns once B is not zero
        model.loss(model(CLIPS), paddle.to_tensor([0, 2])).backward()
        optimizer.step()
        optimizer.clear_grad()
    model.eval()


@pytest.fixture
def small(tmp_path):
    """A trained file with LoRA, `small.pdparams`, beside its base."""
    model, _ = with_lora(tmp_path)
    train_a_step(model)
    paddle.save(stored_state(model), str(tmp_path / "small.pdparams"))
    return tmp_path / "small.pdparams"


@pytest.mark.parametrize("name", ["videomae", "timesformer", "swin", "mvit", "hiera"])
def test_lora_starts_as_its_base_and_its_small_file_is_the_merged_network(name, tmp_path):
    model, before = with_lora(tmp_path, name)
    model.eval()
    np.testing.assert_array_equal(model(CLIPS).numpy(), before)
    start = {key: value.numpy() for key, value in model.state_dict().items()}
    train_a_step(model)
    own = {key for key in learned_parameters(model) if is_lora(key)}
    head = {key for key in start if key.startswith(tuple(f"{each}." for each in model.stages["head"].layers))}
    changed = {key for key, value in model.state_dict().items() if (value.numpy() != start[key]).any()}
    assert own <= changed <= own | head
    assert all(model.backbone.state_dict()[key[9:]].shape[-1] == 4 for key in own if key.endswith("lora_a"))
    file = tmp_path / "small.pdparams"
    paddle.save(stored_state(model), str(file))
    assert set(read_weights(file)) == {*own, *head, "LoRA@@"}
    plain, unmerged = network(name), network(name)
    assert load_weights(plain, file, strict=True).record.base.path == str(tmp_path / "base.pdparams")
    Lora(rank=4).add_to(unmerged)
    load_weights(unmerged, file, strict=True)
    plain.eval()
    unmerged.eval()
    expected = model(CLIPS).numpy()
    assert plain.state_dict().keys() == network(name).state_dict().keys()
    np.testing.assert_array_equal(unmerged(CLIPS).numpy(), expected)
    np.testing.assert_allclose(plain(CLIPS).numpy(), expected, atol=1e-5)
    assert np.abs(expected - before).max() > 1e-3


def test_a_base_is_found_where_it_was_beside_the_file_or_as_pretrained(small, tmp_path):
    base = tmp_path / "base.pdparams"
    there = network()
    load_weights(there, small, strict=True)
    (tmp_path / "moved").mkdir()
    base.rename(tmp_path / "moved" / "other.pdparams")
    with pytest.raises(WeightError, match=r"base\.pdparams' is missing \(SHA-256 .*: put that file back, or"):
        load_weights(network(), small)
    moved = network(pretrained=str(tmp_path / "moved" / "other.pdparams"))
    load_weights(moved, small, strict=True)
    small.rename(tmp_path / "moved" / "small.pdparams")
    (tmp_path / "moved" / "other.pdparams").rename(tmp_path / "moved" / "base.pdparams")
    beside = network()
    load_weights(beside.backbone, tmp_path / "moved" / "small.pdparams", strict=True)
    for key, value in there.backbone.state_dict().items():
        np.testing.assert_array_equal(moved.backbone.state_dict()[key].numpy(), value.numpy())
        np.testing.assert_array_equal(beside.backbone.state_dict()[key].numpy(), value.numpy())
    paddle.save(network().state_dict(), str(base))
    (tmp_path / "moved" / "small.pdparams").rename(small)
    with pytest.raises(WeightError, match=r"only what LoRA trained, and '.*base\.pdparams' is another file"):
        load_weights(network(), small)


def test_a_merged_file_is_a_base_itself(small, tmp_path):
    """A second training starts from what the first has learned, and its file names the first one's."""
    model = network(pretrained=str(small))
    lora = Lora(rank=2, train=["head"]).add_to(model)
    lora.keep_base(model, base_of(small, "backbone"), [f"backbone.{e}" for e in model.load_report.loaded])
    train_a_step(model)
    paddle.save(stored_state(model), str(tmp_path / "second.pdparams"))
    plain = network()
    load_weights(plain, tmp_path / "second.pdparams", strict=True)
    plain.eval()
    np.testing.assert_allclose(plain(CLIPS).numpy(), model(CLIPS).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"depth": 1}, r"\[4, 72\] for backbone\.blocks\.1\.attn\.qkv, and here it has no such layer"),
        ({"embed_dim": 48}, r"holds LoRA of another network: matrices \[24, 4\] and \[4, 72\] .*\[48, 144\]"),
    ],
)
def test_a_file_of_another_backbone_is_refused(small, backbone, message):
    section = section_of("videomae", **backbone)
    section["head"]["in_channels"] = backbone.get("embed_dim", 24)
    with pytest.raises(WeightError, match=message):
        load_weights(build_model(section), small, strict=True)


@pytest.mark.parametrize(
    "base", [{"path": 1, "sha256": "", "size": 1, "part": "backbone"}, {"path": ""}, [1]]
)
def test_a_damaged_record_is_one_sentence(small, base):
    content = read_weights(small)
    content["LoRA@@"]["base"] = base
    paddle.save(content, str(small))
    with pytest.raises(WeightError, match=r"its entry LoRA@@ is damaged; take another checkpoint"):
        load_weights(network(), small)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"layers": ["*attn.qkv", "qkv"]},
            r"LORA\.layers\.1=qkv: fits no linear layer; there are backbone\.p",
        ),
        ({"rank": 25}, r"LORA\.rank=25: larger than a side of the weight \[24, 72\] of backbone\.blocks\.0"),
        ({"train": ["haed"]}, r"LORA\.train\.0=haed: fits no stage"),
        ({"layers": ["head"]}, r"LORA\.layers\.0=head: fits no linear layer"),
    ],
)
def test_wrong_settings_name_their_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        Lora(**settings).add_to(network())
