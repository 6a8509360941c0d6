"""Networks that leave tokens out: their outputs, gradients and programs, on decoded videos."""

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.run_length.packing import Packing, packed_by
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.modeling.layers.attention import attend
from paddlevideo_fast.modeling.recompute import recompute_stages
from tests.modeling.networks import normal

SIZES = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 14}
HEADS = {
    "mean": {"name": "VideoMAEHead", "num_classes": 5, "in_channels": 24},
    "probe": {"name": "AttentiveHead", "num_classes": 5, "in_channels": 24, "depth": 1, "num_heads": 3},
}
NETWORKS = [(backbone, head) for backbone in ("VideoMAEViT", "VJEPA2") for head in HEADS]


def network(backbone, head, framework="RunLengthRecognizer", **options):
    """A network whose attention is not the same everywhere: its weights are larger than first weights."""
    paddle.seed(5)
    sizes = {**SIZES, **{key: options.pop(key) for key in ("drop_path_rate",) if key in options}}
    model = build_model(
        {"framework": framework, "backbone": {"name": backbone, **sizes}, "head": HEADS[head], **options}
    )
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.ndim == 2:
            parameter.set_value(parameter * 5)
    model.eval()
    return model


@pytest.fixture(scope="module")
def clips(real_clips_dir):
    """Three clips [3, 3, 8, 56, 56] of real videos, of which different numbers of tokens stay."""
    frames = []
    for name in ("ucf_example.avi", "mma_demo.mp4", "pancake.mkv"):
        with open_video(str(real_clips_dir / name)) as video:
            frames.append(video.read(range(8))[:, 20:76, 20:76])
    frames[1][3:] = frames[1][3]
    clips = Preprocess(layout="NCTHW")(np.stack(frames))
    lengths = network("VideoMAEViT", "mean").packing(clips).lengths
    assert len(set(lengths)) == 3
    assert max(lengths) > 20
    return clips


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_where_nothing_repeats_the_outputs_are_those_without_rlt(backbone, head):
    plain, ours = (network(backbone, head, each) for each in ("RecognizerTransformer", "RunLengthRecognizer"))
    noise = normal(2, 3, 8, 56, 56)
    assert ours.packing(noise).lengths == [64, 64]
    expected = plain(noise).numpy()
    assert np.abs(ours(noise).numpy() - expected).max() < 1e-5
    ours.threshold = None
    np.testing.assert_array_equal(ours(noise).numpy(), expected)


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_a_clip_has_the_logits_that_it_has_alone(backbone, head, clips):
    model = network(backbone, head, learned_lengths=2)
    model.run_lengths.set_value(normal(2, 24))
    together = model(clips).numpy()
    alone = np.concatenate([model(clips[number : number + 1]).numpy() for number in range(3)])
    assert np.abs(together - alone).max() < 1e-5
    model.threshold = None
    assert np.abs(model(clips).numpy() - together).max() > 1e-3


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_tokens_that_stay_go_through_the_blocks_as_they_do_by_themselves(backbone, head, clips):
    """The blocks get the tokens that stay of one clip, and nothing of the rest reaches the logits."""
    model = network(backbone, head)
    for number in range(3):
        clip = clips[number : number + 1]
        tokens, *positions = model.backbone.tokens(clip)
        slots = paddle.to_tensor(np.flatnonzero(model.packing(clip).stays.numpy()[0]))
        some = paddle.index_select(tokens, slots, axis=1)
        of_some = [paddle.index_select(each, slots, axis=1) for each in positions]
        expected = model.head(model.backbone.encode(some, *of_some)).numpy()
        assert np.abs(model(clip).numpy() - expected).max() < 1e-5


def test_attention_of_a_packed_sequence_is_that_of_each_clip():
    stays = np.random.default_rng(0).random((4, 3, 40)) < 0.6
    packing = Packing(paddle.to_tensor(stays))
    lengths = packing.lengths
    sequences = [normal(sum(lengths), 1, 2, 8) for _ in range(3)]
    expected, begin = [], 0
    for length in lengths:
        heads = [each[begin : begin + length].transpose([1, 0, 2, 3]) for each in sequences]
        expected.append(attend(*heads).numpy()[0])
        begin += length
    expected = np.concatenate(expected)
    for way in (packing._clip_by_clip, packing._padded_attend):
        found = way(sequences, 0.0, 8**-0.5, False).numpy()[:, 0]
        assert np.abs(found - expected).max() < 1e-6
    with packed_by(packing):
        assert np.abs(attend(*sequences).numpy()[:, 0] - expected).max() < 1e-6
    assert attend(*(each[:5].transpose([1, 0, 2, 3]) for each in sequences)).shape == [1, 5, 2, 8]


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_gradients_are_those_of_the_clips_alone(backbone, head, clips):
    model = network(backbone, head, learned_lengths=3)

    def gradients(batches):
        for batch in batches:
            model(batch).square().sum().backward()
        found = {name: each.grad.numpy() for name, each in model.named_parameters() if each.grad is not None}
        model.clear_gradients()
        return found

    together = gradients([clips])
    alone = gradients([clips[number : number + 1] for number in range(3)])
    assert together.keys() == {name for name, _ in model.named_parameters()}
    for name, value in together.items():
        assert np.isfinite(value).all(), name
        assert np.abs(value - alone[name]).max() < 1e-4 * max(np.abs(alone[name]).max(), 1e-2), name


@pytest.mark.parametrize("backbone", ["VideoMAEViT", "VJEPA2"])
def test_blocks_that_run_once_more_in_the_backward_pass_keep_the_clips_apart(backbone, clips):
    found = []
    for recompute in (False, True):
        model = network(backbone, "mean", drop_path_rate=0.5)
        model.train()
        if recompute:
            recompute_stages(model)
        paddle.seed(7)
        model(clips).square().sum().backward()
        found.append({name: each.grad.numpy() for name, each in model.named_parameters()})
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def test_stochastic_depth_leaves_out_a_branch_of_a_whole_clip(clips):
    model = network("VideoMAEViT", "mean", drop_path_rate=0.5)
    packing, drop_path = model.packing(clips), model.backbone.blocks[1].drop_path
    drop_path.train()
    ones = paddle.ones([sum(packing.lengths), 1, 24])
    seen = set()
    for _ in range(20):
        with packed_by(packing):
            parts = np.split(drop_path(ones).numpy()[:, 0, 0], np.cumsum(packing.lengths)[:-1])
        assert all(len(set(part)) == 1 for part in parts)
        seen.add(tuple(part[0] for part in parts))
    assert {value for each in seen for value in each} == {0.0, 2.0}
    assert len(seen) > 4


def test_lengths_of_runs_start_at_nothing_and_are_learned(clips):
    model, plain = network("VideoMAEViT", "mean", learned_lengths=2), network("VideoMAEViT", "mean")
    np.testing.assert_array_equal(model(clips).numpy(), plain(clips).numpy())
    model(clips).square().sum().backward()
    assert all(np.abs(row).max() > 0 for row in model.run_lengths.grad.numpy())  # of 1, and of 2 or more


def test_without_a_threshold_each_token_has_the_length_of_one(clips):
    options = {"learned_lengths": 2}
    models = [network("VideoMAEViT", "mean", threshold=threshold, **options) for threshold in (None, 0.0)]
    for model in models:
        model.run_lengths.set_value(normal(2, 24))
    noise = normal(2, 3, 8, 56, 56)  # nothing in it repeats
    np.testing.assert_allclose(*(model(noise).numpy() for model in models), atol=1e-6)
    assert models[0].packing(clips).lengths == [4 * 16] * 3
    assert np.abs(models[0](clips).numpy() - models[1](clips).numpy()).max() > 1e-3


def test_maps_of_what_was_left_out_are_those_of_its_run(clips):
    model = network("VideoMAEViT", "mean")
    packing = model.packing(clips)
    tokens = normal(sum(packing.lengths), 1, 24)
    maps = model.backbone.maps(tokens, clips).numpy().reshape(3, 4, 16, 24)
    values = iter(tokens.numpy()[:, 0])
    stays = packing.grid.numpy()
    for clip in range(3):
        last = {}
        for time in range(4):
            for square in range(16):
                if stays[clip, time, square]:
                    last[square] = next(values)
                np.testing.assert_array_equal(maps[clip, time, square], last[square])


def test_views_in_a_row_are_clips_of_their_own(clips):
    views = {"test": {"num_seg": 4}}
    model = network("VideoMAEViT", "mean", runtime_cfg=views)
    halves = [model(clips[:, :, part]).numpy() for part in (slice(0, 4), slice(4, 8))]
    assert np.abs(model(clips).numpy() - np.mean(halves, axis=0)).max() < 1e-6
    with pytest.raises(ConfigError, match="clips are 2 views in a row, and features are of one view"):
        model.features(clips)


@pytest.mark.parametrize(("backbone", "head"), NETWORKS)
def test_a_program_leaves_out_what_repeats(backbone, head, clips, tmp_path):
    model = network(backbone, head, learned_lengths=2)
    model.run_lengths.set_value(normal(2, 24))
    noise = normal(2, 3, 8, 56, 56)
    expected = [model(each).numpy() for each in (clips, clips[:1], noise)]
    spec = [InputSpec([None, 3, 8, 56, 56], "float32", name="clips")]
    static = paddle.jit.to_static(model, input_spec=spec, full_graph=True)
    paddle.jit.save(static, str(tmp_path / "program"))
    program = paddle.jit.load(str(tmp_path / "program"))
    for each, logits in zip((clips, clips[:1], noise), expected):
        assert np.abs(program(each).numpy() - logits).max() < 1e-5


def test_stored_features_are_the_means_of_what_stays(clips):
    model = network("VideoMAEViT", "mean")
    pooled = model.head.pool(*model.features(clips))
    np.testing.assert_allclose(model.head.classify(pooled).numpy(), model(clips).numpy(), atol=1e-6)
    with pytest.raises(ConfigError, match="AttentiveHead: takes tokens, and with RLT each clip has another"):
        network("VideoMAEViT", "probe").features(clips)
