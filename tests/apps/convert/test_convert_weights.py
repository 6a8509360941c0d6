"""Weights of other toolkits: each tensor accounted for, nothing written unless it fits our network."""

from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml

from paddlevideo_fast.apps.convert.command import KINDS
from paddlevideo_fast.apps.convert.convert import CONVERTERS, convert_file, convert_state
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import build_model, load_weights
from tests.support.json_lines import entries_of
from tests.support.torch_writer import write_pickles, write_zip


def section_2d(name="ResNetTSM", depth=18, classes=3):
    channels = 64 if depth < 50 else 256
    return {
        "framework": "Recognizer2D",
        "backbone": {"name": name, "depth": depth, "width": 8},
        "head": {"name": "TSMHead", "num_classes": classes, "in_channels": channels},
    }


def section_3d(name="ResNetSlowFast", **backbone):
    head = {"name": "I3DHead", "num_classes": 3, "in_channels": 256}
    if name == "ResNetSlowFast":
        backbone = {"alpha": 4, "beta": 4, **backbone}
        head = {"name": "SlowFastHead", "num_classes": 3, "width_per_group": 8, "beta": 4}
    backbone = {"name": name, "width_per_group": 8, "stage_blocks": [1, 2, 1, 1], **backbone}
    return {"framework": "Recognizer3D", "backbone": backbone, "head": head}


def arrays(shapes):
    rng = np.random.default_rng(1)
    return {name: rng.uniform(0.5, 1.0, shape).astype("float32") for name, shape in shapes.items()}


def torch_resnet(prefix="base_model.", shift=".net", blocks=(2, 2, 2, 2), width=8, bottleneck=False):
    """Names and arrays of a narrow ResNet as in torchvision, and of MIT's TSM on it."""
    shapes = {}

    def conv_bn(conv, norm, out, inner, size):
        shapes[f"{prefix}{conv}.weight"] = (out, inner, size, size)
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{prefix}{norm}.{leaf}"] = (out,)
        shapes[f"{prefix}{norm}.num_batches_tracked"] = ()

    conv_bn("conv1", "bn1", width, 3, 7)
    inner = width
    for stage, count in enumerate(blocks):
        channels = width * 2**stage
        out = channels * (4 if bottleneck else 1)
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            sizes = (1, 3, 1) if bottleneck else (3, 3)
            for number, size in enumerate(sizes, 1):
                source = inner if number == 1 else channels
                target = out if number == len(sizes) else channels
                net = shift if number == 1 else ""
                conv_bn(f"{at}.conv{number}{net}", f"{at}.bn{number}", target, source, size)
            if inner != out:
                conv_bn(f"{at}.downsample.0", f"{at}.downsample.1", out, inner, 1)
            inner = out
    return arrays(shapes), inner


def mit_resnet(classes=3, **options):
    state, channels = torch_resnet(**options)
    head = arrays({"new_fc.weight": (classes, channels), "new_fc.bias": (classes,)})
    return {f"module.{name}": value for name, value in {**state, **head}.items()}


def outcomes(result):
    return {row.source or row.target: row.outcome for row in result.rows}


@pytest.mark.smoke
@pytest.mark.parametrize("write", [write_zip, write_pickles])
def test_a_file_converts_and_loads_whole(tmp_path, write):
    model = build_model(section_2d())
    state = mit_resnet()
    write(tmp_path / "mit.pth", {"epoch": 3, "state_dict": state})
    result = convert_file("mit-tsm", tmp_path / "mit.pth", model, tmp_path / "new" / "ours.pdparams")
    assert result.is_whole
    assert len(result.rows) == len(state) + 5  # the shortcut that ResNet-18 has here
    report = load_weights(model, tmp_path / "new" / "ours.pdparams", strict=True)
    assert not report.unexpected
    shortcut = model.state_dict()["backbone.res2a.short._conv.weight"].numpy()
    np.testing.assert_array_equal(shortcut[:, :, 0, 0], np.eye(8))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ours.pdparams"]


@pytest.mark.smoke
def test_the_report_says_what_happened_to_each_tensor():
    state = {name[len("module.") :]: value for name, value in mit_resnet().items()}
    result = convert_state("mit-tsm", state, build_model(section_2d()))
    rows = {row.source: row for row in result.rows if row.source}
    assert set(rows) == set(state)
    assert rows["base_model.layer1.0.conv1.net.weight"].detail == "folds of axis 1 exchanged"
    assert rows["base_model.layer1.0.conv2.weight"].detail == "folds of axis 0 exchanged"
    assert rows["new_fc.weight"].detail == "folds of axis 1 exchanged, transposed"
    assert rows["new_fc.weight"].target == "head.fc.weight"
    assert rows["base_model.bn1.num_batches_tracked"].outcome == "ignored"
    assert "base_model.bn1.bias -> backbone.conv._batch_norm.bias [8]" in result.table()
    # one channel in eight, of the eight that reach the first block
    weight, source = result.weights["backbone.res2a.conv0._conv.weight"], rows
    expected = state["base_model.layer1.0.conv1.net.weight"][:, [1, 0, *range(2, 8)]]
    np.testing.assert_array_equal(weight, expected)
    assert source["base_model.layer1.0.conv1.net.weight"].shape == (8, 8, 3, 3)


def test_mmaction2s_names_of_0x_and_1x_give_the_same():
    model = build_model(section_2d())
    mit = {name[len("module.") :]: value for name, value in mit_resnet().items()}
    expected = convert_state("mit-tsm", mit, model).weights

    def mmaction2(name):
        name = name.replace("base_model.", "backbone.").replace("new_fc", "cls_head.fc_cls")
        for number in (1, 2):
            name = name.replace(f".conv{number}.net.", f".conv{number}.").replace(
                f".bn{number}.", f".b{number}."
            )
            shift = ".net" if number == 1 and ".layer" in name else ""
            name = name.replace(f".conv{number}.", f".conv{number}.conv{shift}.")
            name = name.replace(f".b{number}.", f".conv{number}.bn.")
        return name.replace(".downsample.0", ".downsample.conv").replace(".downsample.1", ".downsample.bn")

    result = convert_state("mmaction2", {mmaction2(name): value for name, value in mit.items()}, model)
    assert result.is_whole
    assert set(result.weights) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(result.weights[name], value)


def refusal(tmp_path, kind, state, section, **options):
    write_zip(tmp_path / "source.pth", state)
    with pytest.raises(WeightError, match=r"source\.pth") as caught:
        convert_file(kind, tmp_path / "source.pth", build_model(section), tmp_path / "x.pdparams", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["source.pth"]
    return str(caught.value)


@pytest.mark.smoke
def test_another_depth_is_told(tmp_path):
    message = refusal(tmp_path, "mit-tsm", mit_resnet(blocks=(3, 4, 6, 3)), section_2d())
    assert "left over" in message
    assert "'backbone.res2c.conv1._batch_norm.bias': the network has no such tensor" in message


def test_another_kind_of_network_is_told(tmp_path):
    plain = mit_resnet(shift="")
    assert "the file's does not (TSN)" in refusal(tmp_path, "mit-tsm", plain, section_2d())
    assert "the config's does not" in refusal(tmp_path, "mit-tsm", mit_resnet(), section_2d("ResNet"))
    message = refusal(tmp_path, "mit-tsm", mit_resnet(), section_2d(classes=5))
    assert "other shape module.new_fc.weight" not in message
    shapes = "other shape new_fc.weight -> head.fc.weight [3, 64]: the network has [64, 5]"
    assert f"{shapes}; see MODEL.head.num_classes" in message
    assert "choose another --from" in refusal(tmp_path, "pyslowfast", mit_resnet(), section_2d())
    extra = {**mit_resnet(), "module.base_model.layer1.0.nl.g.weight": np.zeros(1, "float32")}
    message = refusal(tmp_path, "mit-tsm", extra, section_2d())
    assert "left over   base_model.layer1.0.nl.g.weight [1]: this converter knows no such name" in message
    with pytest.raises(WeightError, match="mit-tsm"):
        convert_state("mit-tms", {}, build_model(section_2d()))


def test_what_fits_is_written_where_that_is_wanted(tmp_path):
    model = build_model(section_2d(classes=5))
    write_zip(tmp_path / "mit.pth", mit_resnet())
    result = convert_file("mit-tsm", tmp_path / "mit.pth", model, tmp_path / "x.pdparams", partial=True)
    assert not result.is_whole
    report = load_weights(model, tmp_path / "x.pdparams")
    assert report.missing == ["head.fc.weight", "head.fc.bias"]
    assert not report.unexpected


def test_imagenet_weights_reach_2d_and_3d_backbones():
    state, _ = torch_resnet("", "", bottleneck=True, blocks=(1, 2, 1, 1))
    state.update(arrays({"fc.weight": (1000, 256), "fc.bias": (1000,)}))
    section = section_2d(depth=50)
    section["backbone"]["stage_blocks"] = [1, 2, 1, 1]
    flat = convert_state("torchvision", state, build_model(section))
    assert flat.is_whole
    assert outcomes(flat)["fc.weight"] == "ignored"
    np.testing.assert_array_equal(flat.weights["backbone.conv._conv.weight"], state["conv1.weight"])
    inflated = convert_state("torchvision", state, build_model(section_3d("ResNetI3D")))
    assert inflated.is_whole
    stem = inflated.weights["backbone.s1.pathway0_stem._conv.weight"]
    assert stem.shape == (8, 3, 5, 7, 7)
    np.testing.assert_allclose(stem.sum(axis=2), state["conv1.weight"], rtol=1e-6)
    assert any(row.detail == "inflated to 5 frames" for row in inflated.rows)


def pyslowfast_names(model):
    """What PySlowFast calls the tensors of a 3D network, with arrays in PyTorch's layout."""
    leaves = {"_mean": "running_mean", "_variance": "running_var"}
    state = {}
    for ours, value in arrays({k: v.shape for k, v in model.state_dict().items()}).items():
        owner, _, leaf = ours.rpartition(".")
        name = f"{owner}.{leaves.get(leaf, leaf)}".replace("backbone.", "").replace(
            "head.fc", "head.projection"
        )
        name = name.replace("._conv_f2s.", ".conv_f2s.").replace("._conv.", ".conv.").replace("._bn.", ".bn.")
        state[name] = value.T if name == "head.projection.weight" else value
    return state


def caffe2_name(name):
    """Of a tensor of SlowFast in the model zoo's Caffe2 files."""
    owner, _, leaf = name.rpartition(".")
    leaf = {"running_mean": "rm", "running_var": "riv", "bias": "b", "weight": "w"}[leaf]
    if "bn" in owner.split(".")[-1] and leaf == "w":
        leaf = "s"
    fast = "t_" if "pathway1" in owner or "_fuse" in owner else ""
    parts = owner.split(".")
    if parts[0] == "head":
        return f"pred_{leaf}"
    if parts[0] == "s1":
        return f"{fast}res_conv1_bn_{leaf}" if parts[-1] == "bn" else f"{fast}conv1_{leaf}"
    norm = "_bn" if parts[-1].endswith("bn") else ""
    if parts[0].endswith("_fuse"):
        before = "pool1" if parts[0] == "s1_fuse" else f"res{parts[0][1]}_0_branch2c_bn"
        return f"{fast}{before}_subsample{norm}_{leaf}"
    block = parts[1].partition("_res")[2]
    layer = parts[-1].replace("_bn", "")
    return f"{fast}res{parts[0][1]}_{block}_branch{'1' if layer == 'branch1' else '2' + layer}{norm}_{leaf}"


def test_caffe2_files_of_the_model_zoo_convert():
    model = build_model(section_3d())
    state = pyslowfast_names(model)
    expected = convert_state("pyslowfast", state, model)
    assert expected.is_whole
    blobs = {caffe2_name(name): value for name, value in state.items()}
    assert len(blobs) == len(state)
    blobs.update(arrays({"lr": (1,), "model_iter": (1,), "conv1_w_momentum": (8, 3, 1, 7, 7)}))
    result = convert_state("pyslowfast", blobs, model)
    assert result.is_whole
    assert set(result.weights) == set(model.state_dict())
    for name, value in expected.weights.items():
        np.testing.assert_array_equal(result.weights[name], value)


def test_settings_and_pathways_are_told(tmp_path):
    state = pyslowfast_names(build_model(section_3d()))
    message = refusal(tmp_path, "pyslowfast", state, section_3d(fuse_bn_relu=False))
    assert "the network has no such tensor" in message
    message = refusal(tmp_path, "pyslowfast", state, section_3d(slow_frames="strided"))
    assert "set MODEL.backbone.slow_frames=spread" in message
    message = refusal(tmp_path, "pyslowfast", state, section_3d("ResNetI3D", conv1_stride_t=2))
    assert "set MODEL.backbone.conv1_stride_t=1" in message
    message = refusal(tmp_path, "pyslowfast", state, section_3d("ResNetSlow"))
    assert "the network has no such tensor" in message


def test_paddlevideos_files_keep_their_names(tmp_path):
    model = build_model(section_3d())
    state = {f"_layers.{name}": value.numpy() for name, value in model.state_dict().items()}
    paddle.save(state, str(tmp_path / "theirs.pdparams"))
    result = convert_file("paddlevideo", tmp_path / "theirs.pdparams", model, tmp_path / "x.pdparams")
    assert result.is_whole
    assert set(result.weights) == set(model.state_dict())


def test_a_target_that_cannot_be_written_is_told(tmp_path):
    write_zip(tmp_path / "mit.pth", mit_resnet())
    (tmp_path / "taken").mkdir()
    with pytest.raises(WeightError, match="taken: cannot be written"):
        convert_file("mit-tsm", tmp_path / "mit.pth", build_model(section_2d()), tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mit.pth", "taken"]


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A command line of the tool, in a folder with what it names."""
    monkeypatch.chdir(tmp_path)
    section = section_2d()
    section["backbone"]["stage_blocks"] = [2, 2, 2, 2]
    Path("model.yaml").write_text(yaml.safe_dump({"_BASE_": "tsm_motion", "MODEL": section}))
    write_zip("mit.pth", mit_resnet())
    return ["--from", "mit-tsm", "--src", "mit.pth", "-c", "model.yaml", "--to", "x.pdparams"]


@pytest.mark.smoke
def test_the_command_prints_every_tensor(words, run):
    code, out, err = run("convert", *words)
    assert code == 0, err
    lines = out.splitlines()
    assert "converted   new_fc.bias -> head.fc.bias [3]" in lines
    assert lines[-1] == "102 converted, 5 added, 20 ignored; written to x.pdparams"
    assert Path("x.pdparams").exists()


def test_the_command_refuses_a_partial_map_unless_told(words, run):
    code, _, err = run("convert", *words, "-o", "MODEL.head.num_classes=4")
    assert (code, "see MODEL.head.num_classes" in err) == (2, True)
    assert not Path("x.pdparams").exists()
    code, out, _ = run("convert", *words, "-o", "MODEL.head.num_classes=4", "--partial", "--json")
    (result,) = entries_of(out)
    others = [each for each in result["tensors"] if each["outcome"] == "other shape"]
    assert (code, result["file"], result["outcomes"]["other shape"]) == (0, "x.pdparams", len(others))
    assert any(each["shape"] == [3, 64] and "has [64, 4]" in each["detail"] for each in others)
    assert Path("x.pdparams").exists()
    assert list(CONVERTERS) == list(KINDS)
