"""Weight files: what Paddle writes is read, nothing in a file is run, and the report says what fitted."""

import os
import pickle

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import build_model, load_weights, read_weights
from paddlevideo_fast.modeling.backbones import ResNetSlow, ResNetTweaksTSN
from paddlevideo_fast.modeling.backbones.resnet import name_of_paddleclas
from paddlevideo_fast.modeling.weights import candidate_names, restored_state, stored_state
from paddlevideo_fast.registry import WEIGHT_RECORDS
from tests.support.torch_writer import Runs


def randomised(model):
    rng = np.random.default_rng(5)
    for value in model.state_dict().values():
        value.set_value(rng.uniform(0.5, 1.5, value.shape).astype("float32"))
    return model


def arrays(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def same(first, second):
    return set(first) == set(second) and all(np.array_equal(first[k], second[k]) for k in first)


@pytest.mark.smoke
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_paddle_saves_is_read(make_model, tmp_path, protocol):
    model = randomised(make_model())
    path = tmp_path / "model.pdparams"
    paddle.save(model.state_dict(), str(path), protocol=protocol)
    assert same(read_weights(path), arrays(model))
    other = make_model()
    report = load_weights(other, path, strict=True)
    assert same(arrays(other), arrays(model))
    assert len(report.loaded) == len(model.state_dict())
    assert report.missing == report.unexpected == report.mismatched == []


@pytest.mark.smoke
def test_the_state_of_an_optimizer_is_read(tmp_path):
    layer = paddle.nn.Linear(3, 2)
    rate = paddle.optimizer.lr.PiecewiseDecay([1, 2], [0.1, 0.01, 0.001])
    optimizer = paddle.optimizer.Adam(rate, parameters=layer.parameters())
    layer(paddle.ones([1, 3])).sum().backward()
    optimizer.step()
    path = tmp_path / "model.pdopt"
    paddle.save(optimizer.state_dict(), str(path))
    read, expected = read_weights(path), paddle.load(str(path))
    assert set(read) == set(expected) - {"StructuredToParameterName@@"}
    assert read["LR_Scheduler"] == expected["LR_Scheduler"]
    for name in set(read) - {"LR_Scheduler"}:
        np.testing.assert_array_equal(read[name], np.asarray(expected[name]))


def test_nested_tensors_and_numpy_scalars_are_read(tmp_path):
    path = tmp_path / "nested.pdparams"
    nested = {"master": {"a": paddle.arange(3)}, "rate": np.float64(0.5), "epoch": 3}
    paddle.save(nested, str(path))
    read = read_weights(path)
    np.testing.assert_array_equal(read["master"]["a"], [0, 1, 2])
    assert (read["rate"], read["epoch"]) == (0.5, 3)


@pytest.mark.smoke
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_file_is_refused_and_nothing_runs(make_model, tmp_path, protocol):
    trace = tmp_path / "trace"
    attacks = [
        {"a": Runs(os.system, f"touch {trace}")},
        {"a": Runs(eval, f"open({str(trace)!r}, 'w')")},
        {"a": Runs(getattr, np.ndarray, "tofile")},
        Runs(exec, f"open({str(trace)!r}, 'w')"),
    ]
    for attack in attacks:
        path = tmp_path / "bad.pdparams"
        path.write_bytes(pickle.dumps(attack, protocol=protocol))
        with pytest.raises(WeightError, match=r"bad\.pdparams.*refers to"):
            read_weights(path)
        with pytest.raises(WeightError):
            load_weights(make_model(), path)
    assert not trace.exists()


def test_files_that_are_no_weights_are_refused(tmp_path):
    with pytest.raises(WeightError, match=r"no such file"):
        read_weights(tmp_path / "none.pdparams")
    with pytest.raises(WeightError, match="cannot be read"):
        read_weights(tmp_path)
    good = pickle.dumps({"a": np.arange(100.0)})
    contents = [b"", b"hello", good[: len(good) // 2], pickle.dumps([1, 2]), os.urandom(200)]
    contents.append(pickle.dumps({"a": np.array([None, {}], dtype=object)}))
    for content in contents:
        path = tmp_path / "broken.pdparams"
        path.write_bytes(content)
        with pytest.raises(WeightError, match=r"broken\.pdparams"):
            read_weights(path)


@pytest.mark.smoke
def test_imagenet_weights_reach_the_backbone(section, make_model, tmp_path):
    source = randomised(make_model())
    path = tmp_path / "imagenet.pdparams"
    state = arrays(source.backbone)
    paddle.save({**state, "out.weight": np.zeros((64, 1000), "float32")}, str(path))
    model = build_model(section(pretrained=str(path)))
    assert same(arrays(model.backbone), state)
    assert model.load_report.unexpected == ["out.weight"]
    assert "out.weight" in model.load_report.summary()
    assert build_model(section(pretrained=str(path)), load_pretrained=False).load_report is None


@pytest.mark.parametrize("wrap", ["backbone.{}", "_layers.backbone.{}", "_layers.{}", "{}"])
def test_prefixes_come_and_go(make_model, tmp_path, wrap):
    state = arrays(randomised(make_model()).backbone)
    path = tmp_path / "wrapped.pdparams"
    paddle.save({wrap.format(name): value for name, value in state.items()}, str(path))
    model = make_model()
    for network in (model.backbone, model):
        report = load_weights(network, path)
        assert same(arrays(model.backbone), state)
        assert not report.unexpected
    assert report.missing == ["head.fc.weight", "head.fc.bias"]


def test_paddleclas_names_are_understood():
    plain, tweaked = ["res2a", "res2b", "res3a"], ["bb_0_0", "bb_0_1", "bb_1_0"]
    stem, stem_of_three = ["conv"], ["conv1_1", "conv1_2", "conv1_3"]
    translated = name_of_paddleclas
    assert translated("blocks.2.conv1.conv.weight", stem, plain) == "res3a.conv1._conv.weight"
    assert translated("stem.0.bn._mean", stem, plain) == "conv._batch_norm._mean"
    assert translated("blocks.2.short.bn.bias", stem_of_three, tweaked) == "bb_1_0.short._batch_norm.bias"
    assert translated("blocks.3.conv0.conv.weight", stem, plain) == "blocks.3.conv0.conv.weight"
    network = ResNetTweaksTSN(layers=18, width=4)
    assert "backbone.conv1_3._conv.weight" in candidate_names("stem.2.conv.weight", network)
    slow = ResNetSlow(width_per_group=4)
    assert "s3.pathway0_res1.branch2.a.weight" in candidate_names("res3b.conv0._conv.weight", slow)
    assert "backbone.s1.pathway0_stem._bn._mean" in candidate_names("stem.0.bn._mean", slow)


def test_other_classes_are_told_apart(make_model, tmp_path):
    path = tmp_path / "k400.pdparams"
    paddle.save(randomised(make_model(num_classes=9)).state_dict(), str(path))
    model = make_model(num_classes=3)
    before = arrays(model)
    with pytest.raises(
        WeightError, match=r"(?s)num_classes.*head\.fc\.weight \(file \[64, 9\], network \[64, 3\]\)"
    ):
        load_weights(model, path, strict=True)
    assert same(arrays(model), before)
    report = load_weights(model, path)
    assert [name for name, _, _ in report.mismatched] == ["head.fc.weight", "head.fc.bias"]
    assert load_weights(model.backbone, path).unexpected == ["head.fc.weight", "head.fc.bias"]


def test_a_file_that_fits_nowhere_is_an_error(make_model, tmp_path):
    path = tmp_path / "other.pdparams"
    paddle.save({"encoder.weight": np.zeros(3, "float32")}, str(path))
    with pytest.raises(WeightError, match="nothing in it fits"):
        load_weights(make_model(), path)


def test_a_missing_weight_is_an_error_if_strict(make_model, tmp_path):
    model = make_model()
    state = arrays(model)
    del state["backbone.conv._conv.weight"]
    path = tmp_path / "partial.pdparams"
    paddle.save(state, str(path))
    with pytest.raises(WeightError, match=r"backbone\.conv\._conv\.weight"):
        load_weights(model, path, strict=True)


@pytest.mark.parametrize(("num_lost", "level"), [(0, "INFO"), (1, "INFO"), (9, "WARNING"), (-1, "WARNING")])
def test_a_partial_load_is_a_warning_with_names(section, make_model, tmp_path, caplog, num_lost, level):
    """How many of the 51 tensors that do not start at zero are lost; -1: all but one."""
    path = tmp_path / "part.pdparams"
    state = arrays(randomised(make_model(depth=50).backbone))
    lost = [name for name in state if not name.endswith(("_mean", "bias"))]
    lost = lost[1:] if num_lost < 0 else [name for name in lost if "batch_norm" in name][:num_lost]
    paddle.save({name: value for name, value in state.items() if name not in lost}, str(path))
    with caplog.at_level("INFO", "paddlevideo_fast"):
        report = build_model(section(depth=50, pretrained=str(path))).load_report
    assert set(report.missing) == set(lost)
    (record,) = [one for one in caplog.records if "weights from" in one.message]
    assert record.levelname == level
    assert ("of the network; check MODEL.backbone against the file" in record.message) == (level == "WARNING")
    assert sum(name in record.message for name in lost) == min(len(lost), 20 if level == "WARNING" else 6)


class Halved:
    """A record of a plug-in: files hold a part of each weight, and networks may have one tensor more."""

    def __init__(self, factor):
        self.factor = factor

    @classmethod
    def read(cls, entry, path):
        return cls(entry["factor"])

    def completed(self, content, loading):
        loading.report.notes["halved"] = f"times {self.factor}"
        whole = {name: value * np.float32(self.factor) for name, value in content.items()}
        return loading.matched(whole)

    def stored(self, state):
        return {**{name: value / self.factor for name, value in state.items()}, "Halved@@": {"factor": 2}}

    def adds(self, name):
        return name == "extra"


def test_the_record_of_a_plug_in_completes_its_files(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr(WEIGHT_RECORDS, "_entries", {**WEIGHT_RECORDS._entries, "Halved@@": Halved})
    model, plain, path = randomised(make_model()), make_model(), tmp_path / "halved.pdparams"
    paddle.save(arrays(model), str(tmp_path / "whole.pdparams"))
    before = arrays(model)
    model.weight_record = Halved(2)
    paddle.save(stored_state(model), str(path))
    report = load_weights(plain, path, strict=True)
    assert isinstance(report.record, Halved)
    assert "  halved             times 2" in report.summary()
    assert same(arrays(plain), before)
    assert same(restored_state(plain, read_weights(path), str(path)), before)
    assert plain.weight_record.factor == 2
    model.add_parameter("extra", model.create_parameter([2]))
    load_weights(model, tmp_path / "whole.pdparams", strict=True)
    with pytest.raises(WeightError, match="does not fit this network"):
        load_weights(model, path, strict=True)


def test_a_record_that_nothing_knows_is_one_sentence(make_model, tmp_path):
    path = tmp_path / "strange.pdparams"
    paddle.save({**make_model().state_dict(), "Strange@@": {}}, str(path))
    for load in (load_weights, lambda model, path: restored_state(model, read_weights(path), str(path))):
        with pytest.raises(WeightError, match=r"strange\.pdparams: unknown weight record 'Strange@@'"):
            load(make_model(), path)
