"""Token merging against brute force, in a network, a test, a program and predictions."""

import json
import re

import numpy as np
import paddle
import pytest

from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.token_merging.merging import (
    attend_by_size,
    match_tokens,
    merge,
    merging_block,
)
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.layers.attention import SelfAttention
from tests.support.json_lines import entries_of

MODEL = {
    "framework": "RecognizerTransformer",
    "backbone": {"name": "VideoMAEViT", "embed_dim": 24, "depth": 3, "num_heads": 2, "patch_size": 4},
    "head": {"name": "VideoMAEHead", "num_classes": 4, "in_channels": 24, "std": 0.5},
}
OPTIMIZER = {"name": "AdamW", "learning_rate": 0.001, "weight_decay": 0.05}
NUM_TOKENS = 2 * 7 * 7


@pytest.fixture
def config(tiny_config, tmp_path):
    path = tmp_path / "vit.yaml"
    sections = {"MODEL": MODEL, "OPTIMIZER": OPTIMIZER, "epochs": 1}
    path.write_text(json.dumps({"_BASE_": str(tiny_config), **sections}))
    return path


def logits_of(config, clips, *overrides):
    paddle.seed(0)
    model = build_model(load_config(str(config), list(overrides))["MODEL"], load_pretrained=False)
    model.eval()
    with paddle.no_grad():
        return model(clips).numpy()


@pytest.mark.parametrize("num_merged", [1, 5, 8])
def test_the_matching_is_that_of_brute_force(num_merged):
    keys = np.random.default_rng(num_merged).normal(size=(3, 17, 6)).astype("float32")
    match = match_tokens(paddle.to_tensor(keys), num_merged)
    for number, clip in enumerate(keys):
        unit = clip / np.linalg.norm(clip, axis=1, keepdims=True)
        best = []
        for place, even in enumerate(unit[::2]):
            cosines = [float(even @ odd) for odd in unit[1::2]]
            best.append((max(cosines), place, int(np.argmax(cosines))))
        best.sort(reverse=True)
        assert match.merged[number].tolist() == [place for _, place, _ in best[:num_merged]]
        assert match.targets[number].tolist() == [target for *_, target in best[:num_merged]]
        assert match.kept[number].tolist() == [place for _, place, _ in best[num_merged:]]


def test_a_merged_token_is_the_mean_of_what_it_stands_for():
    rng = np.random.default_rng(0)
    tokens, sizes = (
        rng.normal(size=(2, 9, 5)).astype("float32"),
        rng.integers(1, 4, (2, 9, 1)).astype("float32"),
    )
    match = match_tokens(paddle.to_tensor(rng.normal(size=(2, 9, 4)).astype("float32")), 3)
    found, counts = (each.numpy() for each in merge(paddle.to_tensor(tokens), paddle.to_tensor(sizes), match))
    assert found.shape == (2, 6, 5)
    np.testing.assert_allclose(counts.sum(axis=(1, 2)), sizes.sum(axis=(1, 2)))
    for number in range(2):
        groups = [[2 * place] for place in match.kept[number].tolist()] + [[2 * odd + 1] for odd in range(4)]
        for place, target in zip(match.merged[number].tolist(), match.targets[number].tolist()):
            groups[2 + target].append(2 * place)
        for place, group in enumerate(groups):
            weights = sizes[number, group]
            mean = (tokens[number, group] * weights).sum(0) / weights.sum()
            np.testing.assert_allclose(found[number, place], mean, rtol=1e-5, atol=1e-6)
            assert counts[number, place, 0] == weights.sum()


def test_attention_by_size_is_that_of_as_many_equal_tokens():
    attention = SelfAttention(8, 2)
    attention.eval()
    tokens, sizes = paddle.randn([2, 5, 8]), [1, 3, 1, 2, 4]
    repeated = tokens.index_select(paddle.to_tensor(np.repeat(np.arange(5), sizes)), axis=1)
    wanted = attention(repeated).numpy()[:, np.cumsum([0, *sizes[:-1]])]
    counts = paddle.to_tensor(np.float32(sizes)).reshape([1, 5, 1]).tile([2, 1, 1])
    found = attend_by_size(attention, tuple(attention.heads(tokens)), counts)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_sizes_sum_to_the_tokens_in_every_layer_and_the_last_ones_merge_half(config):
    model = build_model(load_config(str(config))["MODEL"], load_pretrained=False)
    model.eval()
    with paddle.no_grad():
        tokens, sizes, lengths = *model.backbone.tokens(paddle.randn([2, 3, 4, 28, 28])), None, []
        for block in model.backbone.blocks:
            tokens, sizes = merging_block(block, tokens, sizes, 40)
            lengths.append(tokens.shape[1])
            np.testing.assert_allclose(sizes.sum(axis=[1, 2]).numpy(), NUM_TOKENS, rtol=1e-6)
    assert lengths == [58, 29, 15]


def test_one_token_is_left_as_it_is(config):
    block = build_model(load_config(str(config))["MODEL"], load_pretrained=False).backbone.blocks[0]
    block.eval()
    with paddle.no_grad():
        token = paddle.randn([2, 1, 24])
        merged, sizes = merging_block(block, token, None, 4)
        np.testing.assert_allclose(merged.numpy(), block(token).numpy(), rtol=1e-5, atol=1e-6)
    assert sizes.numpy().tolist() == [[[1.0]], [[1.0]]]


def test_none_is_the_plain_network_and_few_are_nearly_it(config):
    clips = paddle.randn([3, 3, 4, 28, 28])
    plain = logits_of(config, clips)
    np.testing.assert_array_equal(logits_of(config, clips, "merge_tokens=0"), plain)
    framework = ["MODEL.framework=TokenMerging", "MODEL.num_merged=0"]
    np.testing.assert_array_equal(logits_of(config, clips, *framework), plain)
    few, many = (logits_of(config, clips, f"merge_tokens={number}") for number in (2, 45))
    assert 0 < np.abs(few - plain).max() < np.abs(many - plain).max()


def test_tokens_that_are_equal_merge_without_a_difference(config):
    """A clip of one colour has equal tokens but for their positions, which are taken out here."""
    paddle.seed(0)
    model = build_model(load_config(str(config), ["merge_tokens=20"])["MODEL"], load_pretrained=False)
    model.eval()
    same = paddle.tile(paddle.randn([2, 1, 24]), [1, NUM_TOKENS, 1])
    model.backbone.tokens = lambda clips: (same,)
    with paddle.no_grad():
        merged = model(paddle.zeros([2, 3, 4, 28, 28])).numpy()
        plain = model.head(model.backbone.encode(same)).numpy()
    np.testing.assert_allclose(merged, plain, rtol=1e-4, atol=1e-5)


def test_an_explanation_sees_the_plain_network(config):
    clips = paddle.randn([2, 3, 4, 28, 28])
    paddle.seed(0)
    model = build_model(load_config(str(config), ["merge_tokens=20"])["MODEL"], load_pretrained=False)
    model.eval()
    np.testing.assert_array_equal(model(clips).numpy(), logits_of(config, clips))


@pytest.mark.slow
def test_test_export_and_predict(config, tmp_path, motion_data, capfd):
    out = tmp_path / "out"
    assert main(["train", str(config), "--output", str(out)]) == 0
    video = str(next((motion_data / "valid").rglob("*.mp4")))
    capfd.readouterr()
    assert main(["test", str(config), "-w", str(out), "--merge_tokens", "20"]) == 0
    (merged,) = re.findall("test top1.*", capfd.readouterr().err)
    assert main(["test", str(config), "-w", str(out)]) == 0
    (plain,) = re.findall("test top1.*", capfd.readouterr().err)
    assert merged != plain

    program = tmp_path / "inference"
    flags = ["-w", str(out), "--output", str(program), "--merge_tokens", "20"]
    assert main(["export", str(config), *flags]) == 0  # which compares the program with the network
    found = {}
    for name, words in {
        "program": [str(program)],
        "weights": [str(out), "--merge_tokens", "20"],
        "plain": [str(out)],
    }.items():
        capfd.readouterr()
        assert main(["predict", *words, "-i", video, "--json"]) == 0
        (entry,) = entries_of(capfd.readouterr().out)
        found[name] = {each["class_id"]: each["score"] for each in entry["top"]}
    assert found["program"] == pytest.approx(found["weights"], abs=1e-5)
    assert found["program"] != pytest.approx(found["plain"], abs=1e-5)
    assert {path.name for path in (out / "inference").glob("*.yaml")} == {"tiny.yaml", "tiny_merged20.yaml"}
    assert main(["predict", str(program), "-i", video, "--merge_tokens", "8"]) == 2
    assert "--merge_tokens: is for weights, and MODEL is an exported model" in capfd.readouterr().err


def test_more_than_half_of_the_tokens(config):
    text = "merge_tokens=50: a layer merges at most half of the 98 tokens of a clip; give at most 49"
    with pytest.raises(ConfigError, match=text):
        logits_of(config, paddle.randn([1, 3, 4, 28, 28]), "merge_tokens=50")


WRONG = [
    (["MODEL.backbone={name: VJEPA2, embed_dim: 24, depth: 1, num_heads: 2}"], "VJEPA2 with VideoMAEHead"),
    (["RLT={}"], "is a RunLengthRecognizer of"),
    (["MODEL.head={name: AttentiveHead, num_classes: 4, in_channels: 24, num_heads: 2}"], "AttentiveHead"),
]


@pytest.mark.parametrize(("overrides", "words"), WRONG)
def test_networks_that_do_not_merge(config, overrides, words):
    with pytest.raises(ConfigError, match=f"merge_tokens=4: merges tokens of VideoMAEViT .*{words}"):
        load_config(str(config), [*overrides, "merge_tokens=4"])


def test_a_training_does_not_merge(config, assert_refused):
    assert_refused(config, "merge_tokens: is for test, export and predict; leave it out", "merge_tokens=4")
