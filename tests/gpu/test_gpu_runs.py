"""Whole runs on a GPU: precisions, layouts, static graphs, all keys of RUNTIME, resume, export, two ranks."""

import json
import os
import shutil

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import deviation_of
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.config.settings import RuntimeSettings
from paddlevideo_fast.engine import has_dtype
from tests.gpu.conftest import REHEARSAL
from tests.support.forking import Fresh
from tests.support.json_lines import entries_of
from tests.support.launching import MAIN, ROOT, overriding
from tests.support.runs import TINY

RUNTIME = {
    "allocator_strategy": "auto_growth",
    "fraction_of_gpu_memory_to_use": "0.5",
    "cudnn_exhaustive_search": "true",
    "conv_workspace_size_limit": "512",
    "cudnn_batchnorm_spatial_persistent": "true",
    "enable_cublas_tensor_op_math": "true",
    "tf32": "false",
    "recompute": "true",
    "cpu_affinity": "spread",
}
STATIC = ["-o", "to_static=true"]
CINN = [*STATIC, "-o", "RUNTIME.cinn=true"]
CHANNELS_LAST = ["-o", "MODEL.backbone.data_format=NHWC", "-o", "MODEL.head.data_format=NHWC"]
BFLOAT16, FLOAT16 = (["--amp", "--amp_dtype", dtype] for dtype in ("bfloat16", "float16"))
O2 = ["--amp_level", "O2"]
# Options, and the largest relative difference of their losses from the losses in float32; None: not compared.
WAYS = {
    "amp as the device has it": (["--amp"], 0.1),
    "bfloat16 O1": (BFLOAT16, 0.1),
    "bfloat16 O2": ([*BFLOAT16, *O2], 0.1),
    "float16 O1": (FLOAT16, 0.03),
    "float16 O2": ([*FLOAT16, *O2], 0.03),
    "channels last": (CHANNELS_LAST, 0.01),
    "channels last, amp": ([*CHANNELS_LAST, "--amp"], 0.1),
    "to_static": (STATIC, 0.01),
    "to_static, bfloat16": ([*STATIC, *BFLOAT16], 0.1),
    "to_static, float16": ([*STATIC, *FLOAT16], 0.03),
    "CINN": (CINN, 0.01),
    "CINN, amp": ([*CINN, "--amp"], 0.1),
    "recompute": (["-o", "RUNTIME.recompute=true"], 0.01),
    "two micro-batches a step": (["-o", "accumulate_steps=2"], None),
    "moving average": (["-o", "EMA={decay: 0.99}"], None),
    "precise batch norm": (["-o", "PRECISEBN={preciseBN_interval: 1, num_iters_preciseBN: 2}"], None),
}


def reason_against(words):
    """Why a run with these options is skipped here; None: it is not."""
    if "RUNTIME.cinn=true" in words and not paddle.is_compiled_with_cinn():
        return f"this Paddle {paddle.__version__} is built without CINN"
    if REHEARSAL and "float16" in words:
        return "a CPU trains in float32 and bfloat16 only"
    if REHEARSAL and "--amp" in words and "to_static=true" in words:
        return "a CPU rounds to bfloat16 between the operators, which a static graph does not show"
    if "--amp" in words and "to_static=true" in words and paddle.__version__.startswith("2."):
        return f"graphs of Paddle {paddle.__version__} know amp in float16 alone"
    formats = [each for each in ("bfloat16", "float16") if each in words] or ["bfloat16", "float16"]
    if not REHEARSAL and "--amp" in words and not any(map(has_dtype, formats)):
        return f"this GPU cannot train in {' or '.join(formats)}"
    return None


@pytest.fixture(scope="module")
def written(device, motion_dataset, tmp_path_factory):
    """Writes the config of a tiny network; returns its folder and the first words of the command."""

    def write(folder=None):
        folder = folder or tmp_path_factory.mktemp("run")
        config = folder / "tiny.yaml"
        config.write_text(TINY.format(data=motion_dataset.root, output=folder / "out"))
        return folder, ["train", "-c", str(config), "-o", "MODEL.head.num_classes=8"]

    return write


@pytest.fixture(scope="module")
def train(written):
    """Trains the tiny network in this process, in a new or a given folder; returns the output's folder."""

    def run(*words, folder=None):
        folder, command = written(folder)
        assert main([*command, *map(str, words)]) == 0
        return folder / "out"

    return run


@pytest.fixture(scope="module")
def launch(written):
    """Trains in new processes, which read the environment; returns the folder of the output."""

    def run(*words, processes=1, environment=()):
        folder, command = written()
        starter = ["-m", "paddle.distributed.launch", "--nproc_per_node", processes] if processes > 1 else []
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **dict(environment)}
        done = Fresh(variables).run([*starter, MAIN, *command[1:], *words], ROOT, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return folder / "out"

    return run


def losses_in(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def parameters(folder, epoch=2):
    state = paddle.load(str(folder / f"tiny_epoch_{epoch:05}.pdparams"), return_numpy=True)
    return {name: np.asarray(value) for name, value in state.items()}


# A few steps without dropout, whose random numbers may depend on the precision.
SHORT = ("-o", "epochs=1", "-o", "MODEL.head.drop_ratio=0", "--max_iters", "3", "--validate")


@pytest.fixture(scope="module")
def in_float32(train):
    return losses_in(train(*SHORT))


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_compute_trains_and_validates(train, in_float32, way, figure):
    words, tolerance = WAYS[way]
    if reason := reason_against(words):
        pytest.skip(reason)
    found = losses_in(train(*SHORT, *words))
    assert np.isfinite(found).all()
    if tolerance is not None:
        deviation = deviation_of(found, in_float32)
        figure("losses deviate by", deviation)
        assert deviation <= tolerance


def test_all_options_of_runtime_train(launch):
    settings = RuntimeSettings
    assert {*settings.paddle_flags, *settings.gpu_only} <= RUNTIME.keys()
    options = {key: value for key, value in RUNTIME.items() if not REHEARSAL or key not in settings.gpu_only}
    overrides = (f"RUNTIME.{name}={value}" for name, value in options.items())
    launch(*overriding(*overrides, "epochs=1", "max_iters=2"))


@pytest.mark.parametrize("words", [[], BFLOAT16, FLOAT16], ids=["float32", "bfloat16", "float16"])
def test_a_resumed_run_is_the_same_run(train, same_kernels, words, tmp_path):
    if reason := reason_against(words):
        pytest.skip(reason)
    words = [*words, "--max_iters", "3"]
    whole = train(*words)
    resumed = tmp_path / "out"
    shutil.copytree(whole, resumed)
    for path in resumed.glob("tiny_epoch_00002.*"):
        path.unlink()
    train(*words, "-o", "resume=auto", folder=tmp_path)
    expected, found = parameters(whole), parameters(resumed)
    assert [name for name, value in found.items() if (value != expected[name]).any()] == []


def test_an_exported_program_predicts_as_on_a_cpu(train, device, motion_dataset, tmp_path, capfd, figure):
    program, name = tmp_path / "program", motion_dataset.valid_list.read_text().split()[0]
    assert main(["export", str(train(*SHORT)), "--output", str(program)]) == 0

    def scores_on(where):
        capfd.readouterr()
        words = ["-i", str(motion_dataset.root / name), "--json", "--top_k", "8", "--device", where]
        assert main(["predict", str(program), *words]) == 0
        (entry,) = entries_of(capfd.readouterr().out)
        return {each["name"]: each["score"] for each in entry["top"]}

    expected, found = scores_on("cpu"), scores_on(device.partition(":")[0])
    assert len(expected) == 8
    assert found.keys() == expected.keys()
    deviation = deviation_of([found[name] for name in expected], [*expected.values()])
    figure("probabilities deviate by", deviation)
    assert deviation < 5e-3


DETERMINISTIC = {"FLAGS_cudnn_deterministic": "1", "NVIDIA_TF32_OVERRIDE": "0"}


RANKS = {
    "plain": [],
    "amp": ["--amp"],
    "sharded optimizer": ["-o", "DISTRIBUTED.sharding_degree=2"],
    "sync batch norm": ["-o", "DISTRIBUTED.sync_bn=true"],
}


@pytest.mark.parametrize("way", RANKS)
def test_two_ranks_over_nccl(launch, figure, way):
    """Their losses are finite. If batch norms see all clips, the parameters are those of one process."""
    if REHEARSAL:
        pytest.skip("over gloo tests/integration does it")
    if paddle.device.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    words = [*RANKS[way], "--max_iters", "3", "-o", "DATASET.batch_size=2"]
    found = launch(*words, processes=2, environment=DETERMINISTIC)
    assert np.isfinite(losses_in(found)).all()
    if way == "sync batch norm":
        expected = parameters(launch("--max_iters", "3", environment=DETERMINISTIC))
        deviation = max(deviation_of(value, expected[name]) for name, value in parameters(found).items())
        figure("parameters deviate by", deviation)
        assert deviation < 1e-3
