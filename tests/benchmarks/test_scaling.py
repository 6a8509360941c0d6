"""tools/scaling.py: its model by hand and by simulation, its constants counted, its pages as it prints."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling import (
    VARIANTS,
    Cluster,
    Devices,
    Link,
    Workload,
    exposed_sec,
    flat_ring_sec,
    hierarchical_sec,
    node_reading_rate,
    predict,
    ring_sec,
)
from benchmarks.scaling_published import CLUSTERS, against_published, published_workloads
from paddlevideo_fast.config import load_config
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters

ROOT = Path(__file__).parents[2]
TSM = "configs/recognition/tsm/tsm_k400_videos.yaml"
I3D = "configs/recognition/i3d/i3d_8x8.yaml"
SMALL = Cluster("small", 2, 1.0, 1.0, 1.0, 4, network_gb_per_sec=0.5, network_latency_us=2.0)
WORK = Workload("net", 10_000_000, 0.3, 4, clip_bytes=1e6, read_sec=1e-3, source="here")


@pytest.fixture
def scaling(command, capsys):
    """`scaling(arguments)`: exit code, stdout and stderr of the command line."""

    def run(*arguments):
        code = command("scaling").main(list(arguments))
        return (code, *capsys.readouterr())

    return run


def test_two_nodes_of_three_by_hand():
    devices = Devices(2, 3, inside=Link(1.0, 100.0), between=Link(4.0, 50.0))
    # flat: 10 steps of 100 of the 600 bytes at 50 bytes a second; of three hops one goes between
    assert flat_ring_sec(600, devices) == pytest.approx(10 * (100 / 50 + (1 + 1 + 4) / 3))
    # inside: 4 steps of 200 bytes; between: 2 steps, in which the node sends 300 bytes
    assert hierarchical_sec(600, devices) == pytest.approx(4 * (1 + 200 / 100) + 2 * (4 + 300 / 50))


@pytest.mark.parametrize("num_members", [1, 2, 3, 7])
def test_a_ring_takes_the_steps_that_complete_the_sums(num_members):
    """Passes real chunks around until every member has every sum."""
    have = [
        [{member} for _ in range(num_members)] for member in range(num_members)
    ]  # member → chunk → whose values are in it
    steps = 0
    everyone = set(range(num_members))
    while any(chunk != everyone for member in have for chunk in member):
        sent = [
            ((member - steps) % num_members, set(have[member][(member - steps) % num_members]))
            for member in range(num_members)
        ]
        for member, (chunk, values) in enumerate(sent):
            have[(member + 1) % num_members][chunk] |= values
        steps += 1
    link = Link(1.0, 1e30)
    assert ring_sec(1.0, num_members, link) == pytest.approx(steps)


@given(st.floats(0, 10), st.integers(1, 12), st.floats(0, 10))
@settings(max_examples=200, deadline=None)
def test_overlap_is_that_of_a_queue(bucket_sec, num_buckets, backward_sec):
    end = 0.0
    for number in range(1, num_buckets + 1):
        end = max(end, backward_sec * number / num_buckets) + bucket_sec
    exposed = exposed_sec(bucket_sec, num_buckets, backward_sec)
    assert exposed == pytest.approx(end - backward_sec, abs=1e-9)
    assert bucket_sec - 1e-9 <= exposed <= num_buckets * bucket_sec + 1e-9


def test_a_step_by_hand():
    # 40 MB in two buckets of 20 MB; inside: 2 steps of 10 MB at 1 GB/s; between: 2 of 10 MB at 0.5 GB/s
    bucket_sec = 2 * (1e-6 + 0.01) + 2 * (2e-6 + 0.02)
    step = predict(WORK, SMALL, 4, "hierarchical")
    assert step["all_reduce_sec"] == pytest.approx(2 * bucket_sec)
    assert step["step_sec"] == pytest.approx(0.3 + 2 * bucket_sec)
    assert step["clips_per_sec"] == pytest.approx(16 / (0.3 + 2 * bucket_sec))
    assert step["efficiency"] == pytest.approx(0.3 / (0.3 + 2 * bucket_sec))
    # the backward pass takes 0.2 s: the first bucket is done when the second is ready
    overlapped = predict(WORK, SMALL, 4, "hierarchical_overlapped")
    assert overlapped["exposed_sec"] == pytest.approx(bucket_sec)
    # flat: 6 steps of 5 MB at 0.5 GB/s, every other hop between
    flat = predict(WORK, SMALL, 4, "ring")
    assert flat["all_reduce_sec"] == pytest.approx(2 * 6 * (1.5e-6 + 0.01))


@pytest.mark.parametrize(
    ("clip_bytes", "read_sec", "rate"), [(1e8, 1e-3, 10.0), (1e6, 0.5, 8.0), (1e6, 1e-3, 1000.0)]
)
def test_reading_limits_a_node(clip_bytes, read_sec, rate):
    work = Workload("net", 10_000_000, 0.3, 4, clip_bytes, read_sec, "here")
    assert node_reading_rate(work, SMALL) == pytest.approx(rate)
    for variant in VARIANTS:
        step = predict(work, SMALL, 4, variant)
        assert step["clips_per_sec"] <= 2 * rate * (1 + 1e-9)
        busy_sec = 0.3 + step["exposed_sec"]
        assert step["waiting_sec"] == pytest.approx(max(8 / rate - busy_sec, 0))
    alone = predict(work, SMALL, 1, "ring")
    assert alone["clips_per_sec"] == pytest.approx(min(rate, 4 / 0.3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "config", "overrides", "num_frames"),
    [
        (0, TSM, [], 8),
        (1, I3D, ["MODEL.backbone.inflate=3x1x1"], 16),
        (2, I3D, ["MODEL.backbone.inflate=3x3x3"], 16),
    ],
)
def test_the_published_networks_are_counted(index, config, overrides, num_frames):
    """At a side of 32 pixels; 224 is seven times that, and so all convolutions compute 49 times as much."""
    cfg = load_config(str(ROOT / config), [*overrides, "MODEL.backbone.pretrained=null"])
    model = build_model(cfg["MODEL"], load_pretrained=False)
    model.eval()
    frames, channels = (1, 2) if model.layout == "NTCHW" else (2, 1)
    shape = [1, 1, 1, 32, 32]
    shape[frames], shape[channels] = num_frames, 3
    with MacCounter(model) as counter, paddle.no_grad():
        model(paddle.zeros(shape))
    classifier = 2048 * 400
    tsm, workload = published_workloads()[0], published_workloads()[index]
    assert workload.num_parameters == count_parameters(model)
    macs = (counter.macs - classifier) * 49 + classifier
    assert workload.step_sec / tsm.step_sec == pytest.approx(macs / 32_697_909_248, rel=1e-9)


def test_the_published_figures():
    """What was published follows from its two times; what is predicted stays an upper bound of it."""
    efficiency, duration, first, second = against_published()
    assert efficiency["published"] == pytest.approx(2995 / (14 + 13 / 60) / 256)
    assert 0.82 < efficiency["published"] < 0.83
    assert duration["published"] == 853
    assert (first["published"], second["published"]) == (1.6, 2.9)
    for variant in VARIANTS:
        assert efficiency["predicted"][variant] > 0.8
        assert efficiency["deviation"][variant] > 0 > duration["deviation"][variant]
        for row in (efficiency, duration, first, second):
            assert row["deviation"][variant] == pytest.approx(
                row["predicted"][variant] / row["published"] - 1
            )
    assert published_workloads()[0].step_sec == pytest.approx(0.3594)


def test_the_pages_show_what_the_tool_prints(scaling):
    code, out, _ = scaling("--devices", "1,6,96,1536")
    assert code == 0
    for language in ("en", "zh-CN"):
        page = (ROOT / "docs" / language / "scaling.md").read_text(encoding="utf-8")
        for line in out.partition("\n")[2].partition("Assumed:")[0].splitlines():
            assert line.rstrip() in page
        efficiency, _, first, second = against_published()
        for row in (efficiency, first, second):
            for variant in ("ring", "hierarchical_overlapped"):
                assert f"{row['deviation'][variant]:+.0%}".replace("%", " %").replace("-", "−") in page


def test_the_config_of_a_run(scaling, config, tmp_path):
    folder = tmp_path / "new"
    code, out, err = scaling(
        *("-c", str(config(width=4)), "--measure", "--steps", "1", "--cluster", "ethernet"),
        *("--json", "--output", str(folder)),
    )
    assert code == 0, err
    result = json.loads(out)
    assert json.loads((folder / "scaling.json").read_text()) == result
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")
    (network,) = result["networks"]
    cfg = load_config(str(config(width=4)))
    assert network["num_parameters"] == count_parameters(build_model(cfg["MODEL"]))
    assert (network["name"], network["batch_size"], network["source"]) == ("measured", 4, "measured on cpu")
    assert network["clip_bytes"] == 4 * 36_000
    assert network["step_sec"] > 0
    assert result["published"] == []
    assert [point["devices"] for point in network["points"]] == CLUSTERS["ethernet"].usual_counts()


def test_a_cluster_from_a_file(scaling, config, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ndevices_per_node: 4\nlink_gb_per_sec: 10\nlink_latency_us: 5\nstorage_gb_per_sec: 2\n"
        "cores_per_node: 8\nnetwork_gb_per_sec: 1.25\nnetwork_latency_us: 30\n"
    )
    given = ("-c", str(config()), "--step-ms", "100", "--cluster", str(path))
    code, out, _ = scaling(*given, "--devices", "8", "--json", "--clip-kb", "500", "--read-ms", "80")
    assert code == 0
    (network,) = json.loads(out)["networks"]
    assert (network["step_sec"], network["clip_bytes"], network["read_sec"]) == (0.1, 500e3, 0.08)
    (point,) = network["points"]
    assert point["nodes"] == 2
    assert point["ring"]["clips_per_sec"] == pytest.approx(2 * 8 / 0.08)  # the cores of two nodes
    assert "*: limited by reading" in scaling(*given, "--devices", "8", "--read-ms", "80")[1]


def test_a_store_limits_by_bandwidth_and_by_latency():
    near = dataclasses.replace(SMALL, store_gb_per_sec=0.4, store_latency_ms=1e-6)
    block = 2**18  # each of 8 frames brings one along
    assert node_reading_rate(WORK, near) == pytest.approx(0.4e9 / (1e6 + 8 * block))
    far = dataclasses.replace(SMALL, store_gb_per_sec=1e6, store_latency_ms=2000.0)
    assert node_reading_rate(WORK, far) == pytest.approx(2 * 32 / (8 * 2.0))
    plenty = dataclasses.replace(SMALL, store_gb_per_sec=1e6, store_latency_ms=1e-6)
    assert node_reading_rate(WORK, plenty) == node_reading_rate(WORK, SMALL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\n", "devices_per_node: missing"),
        ("nam: x\n", "nam: unknown key"),
        ("link_gb_per_sec: -1\n", "link_gb_per_sec=-1: expected float, from 1e-09 to 1e+09"),
        ("storage_gb_per_sec: .inf\n", "storage_gb_per_sec=inf: expected float"),
        ("- 1\n", "expected keys and values: name, devices_per_node"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_wrong_cluster_files_are_one_message(scaling, tmp_path, text, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    code, out, err = scaling("--cluster", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("ConfigError:")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "nowhere"], "--cluster nowhere: neither a file nor one of server, ethernet, summit"),
        (["--cluster", "server", "--devices", "16"], "is one node of 8 devices; 16 need a network"),
        (["--devices", "7"], "7 devices do not fill nodes of 6"),
    ],
)
def test_wrong_arguments_are_one_message(scaling, arguments, words):
    code, out, err = scaling(*arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    "arguments", [["-c", TSM], ["--measure"], ["--step-ms", "-3"], ["--devices", "0"], ["--read-ms", "nan"]]
)
def test_the_parser_refuses(scaling, arguments):
    with pytest.raises(SystemExit) as stopped:
        scaling(*arguments)
    assert stopped.value.code == 2
