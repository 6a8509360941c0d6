"""A head that trains on stored features, and the features themselves, against the whole network."""

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import ConfigError, FeatureError
from paddlevideo_fast.extensions.features.compute import compute_features
from paddlevideo_fast.extensions.features.extension import Features
from paddlevideo_fast.extensions.features.loader import FeatureWriter, StoredFeatures, first_row
from paddlevideo_fast.extensions.features.model import HeadOnly
from paddlevideo_fast.modeling import build_model, load_weights
from paddlevideo_fast.modeling.weights import read_weights
from tests.support.content import content
from tests.support.json_lines import entries_of
from tests.support.launching import overriding

SLOWFAST = """
_BASE_: {base}
MODEL:
  framework: Recognizer3D
  backbone:
    {{name: ResNetSlowFast, depth: 50, alpha: 4, beta: 2, width_per_group: 4, fusion_kernel_sz: 5,
     stage_blocks: [1, 1, 1, 1]}}
  head: {{name: SlowFastHead, width_per_group: 4, beta: 2, num_classes: 4, crop_size: 32}}
DATASET:
  train: {{format: SFVideoDataset}}
  valid: {{format: SFVideoDataset, num_ensemble_views: 2, num_spatial_crops: 3}}
PIPELINE:
  train: {{sample: {{name: DecodeSampler, num_frames: 4, sampling_rate: 2}}}}
  valid:
    sample: {{name: DecodeSampler, num_frames: 4, sampling_rate: 1, test_mode: true}}
    transform:
      - JitterScale: {{min_size: 64, max_size: 64}}
      - MultiCrop: {{target_size: 64, test_mode: true}}
      - Image2Array: {{transpose: false}}
METRIC: {{name: MultiCropMetric}}
"""


@pytest.fixture(scope="module")
def made(motion_data, tiny_text, tmp_path_factory):
    """A folder with a trained network, two copies of its features, and a head trained on them."""
    root = tmp_path_factory.mktemp("features")
    config = root / "tiny.yaml"
    config.write_text(tiny_text.format(data=motion_data, output=root / "out"))
    assert main(["-c", str(config), "-o", "epochs=1"]) == 0
    shutil.move(root / "out" / "tiny_best.pdparams", root / "pretrained.pdparams")
    words = ["features", "-c", str(config), "-w", str(root / "pretrained.pdparams"), "--views=2"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*words, "--output", str(root / "features"), "--json"]) == 0
    parts = [(entry["folder"], entry["num_rows"]) for entry in entries_of(printed.getvalue())]
    assert parts == [(str(root / "features/train"), 48), (str(root / "features/valid"), 8)]
    assert main(["train", "-c", str(config), "-o", f"features={root / 'features'}"]) == 0
    return root


def compute(root, output, *overrides, views=1, config="tiny.yaml", **options):
    cfg = load_config(str(root / config), [f"weights={root / 'pretrained.pdparams'}", *overrides])
    return compute_features(cfg, root / output, views, **options)


def with_features(spec, name, split):
    plan = SimpleNamespace(precision=make_precision(spec.run))
    return spec.extension(Features).on_data(SimpleNamespace(spec=spec, plan=plan), name, split)


def assert_equal_logits(spec, name, model, epoch=0):
    """Compares each clip of an epoch, through the network and from the stored features."""
    split = make_split(spec, name, model.layout, Distribution())
    stored = with_features(spec, name, split)
    head, num_clips = HeadOnly(model), 0
    for network in (model, head):
        network.eval()
    for clips, features in zip(split.loader.epoch(epoch), stored.loader.epoch(epoch)):
        for key in ("ids", "views", "labels"):
            np.testing.assert_array_equal(getattr(clips, key), getattr(features, key))
        expected = model(split.preprocess(clips.clips)).numpy()
        found = head(stored.preprocess(features.clips)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert np.abs(expected).max() > 1e-3
        num_clips += len(clips)
    return num_clips


@pytest.mark.parametrize(("name", "epochs"), [("valid", [0]), ("train", [0, 1])])
def test_stored_features_give_the_logits_of_the_network(made, name, epochs):
    spec = RunSpec.of(load_config(str(made / "out/config.yaml")))
    model = build_model(spec.model)
    load_weights(model, made / "out/tiny_best.pdparams", strict=True)
    for epoch in epochs:  # a training has other clips in each, and the features have two copies
        assert assert_equal_logits(spec, name, model, epoch) == {"valid": 8, "train": 24}[name]


def test_views_crops_and_windows_of_a_3d_network_have_features(made):
    (made / "slowfast.yaml").write_text(SLOWFAST.format(base=made / "tiny.yaml"))
    spec = RunSpec.of(load_config(str(made / "slowfast.yaml"), [f"features={made / 'slow'}"]))
    paddle.seed(3)
    model = build_model(spec.model)
    paddle.save(model.state_dict(), str(made / "slow.pdparams"))
    found = compute(made, "slow", f"weights={made / 'slow.pdparams'}", config="slowfast.yaml")
    assert [(part.index.num_rows, part.index.shape) for part in found] == [(24, [192]), (48, [4, 192])]
    assert assert_equal_logits(spec, "valid", model) == 48


def test_a_checkpoint_holds_the_backbone_as_it_was_and_the_head_that_was_trained(made):
    given = read_weights(made / "pretrained.pdparams")
    for name in ("tiny_best", "tiny_epoch_00002"):
        weights = read_weights(made / "out" / f"{name}.pdparams")
        assert weights.keys() == given.keys()
        for key, value in weights.items():
            assert np.array_equal(value, given[key]) == key.startswith("backbone."), key


def test_a_head_learns_on_features_what_it_learns_through_the_frozen_network(made, tmp_path):
    overrides = [
        f"MODEL.backbone.pretrained={made / 'pretrained.pdparams'}",
        "FINETUNE={freeze: [backbone]}",
        f"output_dir={tmp_path}",
    ]
    assert main(["train", "-c", str(made / "tiny.yaml"), *overriding(*overrides)]) == 0
    kept = ("epoch", "step", "loss", "top1")  # dropout draws the same, and each epoch has its own clips
    one, other = (
        [
            [record[name] for name in kept]
            for record in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        ]
        for folder in (made / "out", tmp_path)
    )
    assert len(one) == 16
    np.testing.assert_allclose(one, other, rtol=1e-4)
    weights = [read_weights(folder / "tiny_epoch_00002.pdparams") for folder in (made / "out", tmp_path)]
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_test_of_the_whole_network_gives_the_validation_on_features(made, tmp_path):
    weights, config = made / "out/tiny_epoch_00002.pdparams", made / "out/config.yaml"
    options = overriding(f"output_dir={tmp_path}", "report=false")
    assert main(["test", "-c", str(config), "-w", str(weights), *options]) == 0
    found = json.loads((tmp_path / "test/metrics.json").read_text())
    *_, valid = (json.loads(line) for line in (made / "out/metrics.jsonl").read_text().splitlines())
    assert valid["kind"] == "valid"
    assert found["loss"] == pytest.approx(valid["loss"], rel=1e-5)
    for name in ("top1", "mean_class_acc", "num_samples"):
        assert found[name] == valid[name]


def test_a_training_on_features_resumes_exactly(made, assert_resumes):
    features = f"features={made / 'features'}"
    assert_resumes(made / "out", "tiny_epoch_00001", made / "tiny.yaml", "-o", features)


@pytest.fixture(scope="module")
def half(made):
    """Features of each frame in float16, two copies, in shards of five clips."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddlevideo_fast.extensions.features.loader._SHARD_BYTES", 5 * 4 * 32 * 2)
        train, _ = compute(made, "half", views=2, dtype="float16")
    assert (train.index.num_rows, train.index.shape, train.num_bytes) == (48, [4, 32], 48 * 4 * 32 * 2)
    return made / "half"


def test_shards_in_half_precision_hold_the_rounded_features(made, half):
    for name, num_shards in (("train", 10), ("valid", 2)):
        stored, exact = StoredFeatures(half / name), StoredFeatures(made / "features" / name)
        assert len(list((half / name).glob("features-*.npy"))) == num_shards
        rows = np.array([7, 0, 7, 4, 5])
        assert stored.features.dtype == np.float16
        np.testing.assert_array_equal(stored.features[rows], exact.features[rows].astype("float16"))
        np.testing.assert_array_equal(stored.features[6], stored.features[np.array([6])][0])
        np.testing.assert_array_equal(stored.labels, exact.labels)


def test_a_set_larger_than_memory_is_read_shard_by_shard(made, half):
    """Shards in a random order, and each only within a window; several processes share the order."""
    settings = [f"features={half}", "features_memory_gb=1.5e-6"]  # six clips
    spec = RunSpec.of(load_config(str(made / "tiny.yaml"), settings))
    split = with_features(spec, "train", make_split(spec, "train", "NTCHW", Distribution()))
    sampler = split.loader.batch_sampler
    assert sampler.window.size == 6
    orders = [[request.index for batch in sampler.batches(epoch) for request in batch] for epoch in (0, 1)]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == list(range(24))
        steps = [np.flatnonzero(np.array(order) // 5 == shard) for shard in range(5)]
        assert all(np.ptp(taken) < 5 + 6 for taken in steps)
        assert order != sorted(order, key=lambda index: order.index(index // 5 * 5))
    ranks = [
        make_split(
            spec, "train", "NTCHW", SimpleNamespace(rank=rank, world_size=2, is_main=False)
        ).loader.batch_sampler.mixing(sampler.window)
        for rank in (0, 1)
    ]
    parts = [[request.index for batch in rank.batches(0) for request in batch] for rank in ranks]
    assert [index for pair in zip(*parts) for index in pair] == orders[0]
    plain = make_split(spec, "train", "NTCHW", Distribution()).loader.batch_sampler
    roomy = RunSpec.of(load_config(str(made / "tiny.yaml"), settings[:1]))
    whole = with_features(roomy, "train", make_split(roomy, "train", "NTCHW", Distribution()))
    assert list(whole.loader.batch_sampler.batches(1)) == list(plain.batches(1)) != list(sampler.batches(1))


def test_a_training_on_shards_resumes_inside_an_epoch(made, half, run_main, assert_resumes, tmp_path):
    common = ("-o", f"features={half}", *overriding("features_memory_gb=1.5e-6", "save_every_steps=1"))
    common += tuple(overriding("keep_last=null"))
    run_main(made / "tiny.yaml", *common, *overriding(f"output_dir={tmp_path / 'run'}"))
    told = assert_resumes(tmp_path / "run", "tiny_step_00000003", made / "tiny.yaml", *common)
    assert "mixes 6 clips" in told


def alter(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)


def test_an_altered_shard_is_found_when_it_is_read(half, tmp_path):
    shutil.copytree(half / "train", tmp_path / "train")
    alter(tmp_path / "train/features-00003.npy")
    stored = StoredFeatures(tmp_path / "train", memory_bytes=0)
    assert stored.features[np.array([14, 20])].any()
    with pytest.raises(FeatureError, match=r"features-00003.npy: is altered"):
        stored.features[15]
    (tmp_path / "train/features-00009.npy").unlink()
    with pytest.raises(FeatureError, match=r"features-00009.npy: is missing"):
        StoredFeatures(tmp_path / "train", memory_bytes=0)


def test_features_that_do_not_fit_are_refused_before_the_first_is_computed(made, monkeypatch, caplog):
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        compute(made, "sized", views=2)
    assert "train: 48 rows of [4, 32] in float32, 24.6 KB" in caplog.text
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=20_000))
    problem = "28.7 KB are still to be written, and 20 KB are free there: take a folder on a larger disk; --d"
    with pytest.raises(FeatureError, match=problem):
        compute(made, "full", views=2)
    assert not list((made / "full").rglob("*.npy"))
    compute(made, "full", views=2, dtype="float16")
    with pytest.raises(FeatureError, match="stale: dtype was float16 when they .* and is float32 now"):
        compute(made, "full", views=2)


def test_a_feature_beyond_half_precision_is_named(made):
    weights = {name: np.array(value) for name, value in read_weights(made / "pretrained.pdparams").items()}
    state = {
        name: paddle.to_tensor(value * (1e7 if name.endswith("norm.weight") else 1))
        for name, value in weights.items()
    }
    paddle.save(state, str(made / "large.pdparams"))
    with pytest.raises(FeatureError, match="float16 ends at 65504: compute with --dtype float32"):
        compute(made, "large", f"weights={made / 'large.pdparams'}", dtype="float16")


def test_logits_are_the_scores_of_the_network(made, capfd):
    config, weights = made / "tiny.yaml", made / "out/tiny_best.pdparams"
    words = ["features", "-c", str(config), "-w", str(weights), "--output", str(made / "logits"), "--logits"]
    assert main(words) == 0
    assert "train: 24 logits of [4]" in capfd.readouterr().out
    spec = RunSpec.of(load_config(str(config), [f"features={made / 'logits'}"]))
    model = build_model(spec.model)
    load_weights(model, weights, strict=True)
    model.eval()
    split = make_split(spec, "train", "NTCHW", Distribution())
    stored = StoredFeatures(made / "logits/train")
    for requests, batch in zip(split.loader.batch_sampler.batches(0), split.loader.epoch(0)):
        rows = [first_row(split.dataset, 1, request.index, request) for request in requests]
        expected = model(split.preprocess(batch.clips)).numpy()
        np.testing.assert_allclose(stored.features[np.array(rows)], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(FeatureError, match="logits of a whole network, and a head trains on features"):
        with_features(spec, "train", split)
    assert main([*words[:3], *words[5:]]) == 2
    assert "logits need the weights of the whole network; give -w FILE" in capfd.readouterr().err


def files_of(folder):
    paths = [path for part in ("train", "valid") for path in sorted((folder / part).glob("*.[nj]*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("killed_at", [0, 1, 7, 13])
def test_a_killed_computation_goes_on_and_gives_the_same_files(made, monkeypatch, killed_at):
    output, add, num_calls = f"killed_{killed_at}", FeatureWriter.add, []

    def killed(self, *arguments):
        if len(num_calls) == killed_at:
            raise KeyboardInterrupt
        num_calls.append(arguments)
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "add", killed)
        patch.setattr(FeatureWriter, "close", lambda self: None)  # as after SIGKILL
        patch.setattr("paddlevideo_fast.extensions.features.loader._SAVE_SEC", 0.0)
        with pytest.raises(KeyboardInterrupt):
            compute(made, output, views=2)
    if killed_at:
        with pytest.raises(
            FeatureError, match=rf"{killed_at * 4 if killed_at < 12 else 4} of \d+ features are there"
        ):
            StoredFeatures(made / output / ("train" if killed_at < 12 else "valid"))
    compute(made, output, views=2)
    assert files_of(made / output) == files_of(made / "features")


def test_ctrl_c_prints_the_command_to_go_on(made, monkeypatch, capfd):
    weights = str(made / "pretrained.pdparams")
    words = ["features", "-c", str(made / "tiny.yaml"), "-w", weights, "--output", str(made / "stopped")]

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "close", interrupted)
        assert main([*words, "--views=2"]) == 130
    (line,) = re.findall("interrupted; to go on:  paddlevideo-fast (.*)", capfd.readouterr().err)
    assert main(shlex.split(line)) == 0
    assert files_of(made / "stopped") == files_of(made / "features")


def test_a_dry_run_says_what_is_left_and_writes_nothing(made, capfd):
    words = ["features", str(made / "tiny.yaml"), "-w", str(made / "pretrained.pdparams"), "--dry_run"]
    before = content(made)
    assert main([*words, "--output", str(made / "dry")]) == 0
    out = capfd.readouterr().out
    assert "train: 24 rows of [4, 32] in float32, 12.3 KB, of 24 records; 0 are there\n" in out
    assert "valid: 8 rows of [4, 32] in float32" in out
    assert re.search(r"\ndisk: 16.4 KB to write; free there: .*\ntime: about \d+ s on cpu\ndry run: ", out)
    assert main([*words, "--output", str(made / "features"), "--views=2", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert list(facts) == ["train", "valid", "disk", "time"]
    assert (facts["train"]["num_rows"], facts["train"]["num_done"]) == (48, 48)
    assert (facts["disk"]["num_bytes"], facts["time"]["seconds"]) == (0, 0)
    assert main([*words, "--output", str(made / "features"), "--views=3"]) == 2
    assert content(made) == before
    assert not (made / "dry").exists()


def test_videos_that_do_not_decode_are_incidents(made, motion_data, capfd):
    videos = [line.split() for line in (motion_data / "train.list").read_text().splitlines()]
    (made / "broken.mp4").write_text("no video")
    lines = [f"{motion_data / path} {label}" for path, label in videos[:8]] + [f"{made / 'broken.mp4'} 1"]
    (made / "broken.list").write_text("\n".join(lines))
    split = {"format": "VideoDataset", "file_path": str(made / "broken.list")}
    overrides = [f"DATASET.{name}={json.dumps(split)}" for name in ("train", "valid")]
    words = ["-c", str(made / "tiny.yaml"), "-w", str(made / "pretrained.pdparams"), *overriding(*overrides)]
    assert main(["features", *words, "--output", str(made / "with_broken")]) == 1
    assert "train: 9 features of [4, 32], 1 failed" in capfd.readouterr().out
    assert "broken.mp4" in (made / "with_broken/bad_samples.txt").read_text()
    spec = RunSpec.of(load_config(str(made / "tiny.yaml"), [*overrides, f"features={made / 'with_broken'}"]))
    for name in ("train", "valid"):
        split = make_split(spec, name, "NTCHW", Distribution())
        batches = list(with_features(spec, name, split).loader.epoch(0))
        assert {incident.path for batch in batches for incident in batch.incidents} == {
            str(made / "broken.mp4")
        }
        ids = [number for batch in batches for number in batch.ids.tolist()]
        assert 8 not in ids
        assert len(ids) == 8  # in training another takes its place, and the last, smaller batch is dropped


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["PIPELINE.train.transform.0.RandomCrop.target_size=24"],
            r"stale: PIPELINE.train.transform.0.RandomCrop.target_size was 28 when they .* and is 24 now",
        ),
        (["MODEL.backbone.shift_ratio=0.25"], r"stale: MODEL.backbone.shift_ratio was None .* is 0.25 now"),
        (["seed=7"], r"stale: seed was 1234 when they were computed, and is 7 now"),
        (["DATASET.train.file_path={data}/valid.list"], r"other videos or labels than .*valid.list has now"),
    ],
)
def test_features_of_another_config_are_refused(made, motion_data, overrides, problem):
    overrides = [text.format(data=motion_data) for text in overrides]
    spec = RunSpec.of(load_config(str(made / "tiny.yaml"), [*overrides, f"features={made / 'features'}"]))
    split = make_split(spec, "train", "NTCHW", Distribution())
    with pytest.raises(FeatureError, match=problem):
        with_features(spec, "train", split)
    with pytest.raises(FeatureError, match=problem):
        compute(made, "features", *overrides, views=2)


def test_features_of_a_replaced_video_are_refused(made, motion_data, tmp_path):
    """The list stays the same when a video is encoded anew under its name; the features once were used on."""
    lines = (motion_data / "train.list").read_text().splitlines()[:4]
    for line in lines:
        (tmp_path / line.split()[0]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(motion_data / line.split()[0], tmp_path / line.split()[0])
    (tmp_path / "train.list").write_text("\n".join(f"{tmp_path / line}" for line in lines))
    section = {"format": "VideoDataset", "file_path": str(tmp_path / "train.list")}
    overrides = [f"DATASET.{name}={json.dumps(section)}" for name in ("train", "valid")]
    compute(made, tmp_path / "features", *overrides)
    video = tmp_path / lines[2].split()[0]
    shutil.copy2(motion_data / lines[3].split()[0], video)
    problem = rf"stale: {video} was \d+ bytes of 20.* when they were computed, and is \d+ bytes of 20.* now"
    cfg = load_config(str(made / "tiny.yaml"), [*overrides, f"features={tmp_path / 'features'}"])
    split = make_split(RunSpec.of(cfg), "train", "NTCHW", Distribution())
    with pytest.raises(FeatureError, match=problem):
        with_features(RunSpec.of(cfg), "train", split)
    with pytest.raises(FeatureError, match=problem):
        compute(made, tmp_path / "features", *overrides)
    video.unlink()
    (tmp_path / "features/train/file_states.json").unlink()
    with pytest.raises(FeatureError, match="stale: a file of the list was in another state when"):
        with_features(RunSpec.of(cfg), "train", split)


def test_features_of_other_weights_are_refused(made, tmp_path, capfd):
    weights = {name: np.array(value) for name, value in read_weights(made / "pretrained.pdparams").items()}
    weights["backbone.conv._conv.weight"] += 1
    paddle.save(
        {name: paddle.to_tensor(value) for name, value in weights.items()}, str(tmp_path / "other.pdparams")
    )
    with pytest.raises(FeatureError, match="stale: they were computed with other weights"):
        compute(made, "features", f"weights={tmp_path / 'other.pdparams'}", views=2)
    options = overriding(f"features={made / 'features'}", f"output_dir={tmp_path / 'out'}")
    assert main(["-c", str(made / "tiny.yaml"), *options, "-w", str(tmp_path / "other.pdparams")]) == 2
    assert "another backbone than the one of the loaded weights gave these features" in capfd.readouterr().err


def test_altered_and_missing_features_are_refused(made, tmp_path):
    shutil.copytree(made / "features/valid", tmp_path / "valid")
    alter(tmp_path / "valid/features-00000.npy")
    with pytest.raises(FeatureError, match=r"features-00000.npy: is altered; remove the folder"):
        StoredFeatures(tmp_path / "valid")
    (tmp_path / "valid/index.json").write_text('{"format": 1, "failed": {}}')
    with pytest.raises(FeatureError, match=r"index.json: it is no index of features"):
        StoredFeatures(tmp_path / "valid")
    with pytest.raises(
        FeatureError, match=r"there are no features; compute them with  paddlevideo-fast features"
    ):
        StoredFeatures(tmp_path / "train")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([], "features of a network without training are of no use; give its weights with -w FILE"),
        (["train_dali=true"], "train_dali: features are computed through our own loader; leave it out"),
        (
            [
                "MODEL={framework: Recognizer2D, head: {name: MoViNetHead}, backbone: "
                "{name: PPTSM_MobileNetV3, num_seg: 4, class_num: 4}}"
            ],
            "MODEL.head.name=MoViNetHead: features need a recognizer whose head has a layer of its own",
        ),
    ],
)
def test_what_gives_no_features(made, tmp_path, overrides, problem):
    with pytest.raises(ConfigError) as caught:
        compute(made, tmp_path / "none", "weights=", *overrides)
    assert problem in str(caught.value)


def test_what_needs_clips_is_refused_in_training(made, capfd):
    short = "MULTIGRID={SHORT_CYCLE: true}", "OPTIMIZER.learning_rate=0.1"
    options = overriding(f"features={made / 'features'}", *short)
    assert main(["-c", str(made / "tiny.yaml"), "--multigrid", *options]) == 2
    assert "multigrid" in capfd.readouterr().err
    assert main(["-c", str(made / "tiny.yaml"), *overriding("features_memory_gb=2"), "--resume", "x"]) == 2
    assert "features_memory_gb" in capfd.readouterr().err
