"""The command line on a GPU: every option of RUNTIME, resume, multigrid, export, two processes."""

import os

import numpy as np
import paddle
import pytest

from tests.gpu.conftest import REHEARSAL
from tests.integration.conftest import TINY
from tests.support.forking import Fresh
from tests.support.launching import MAIN, ROOT, overriding

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
FEATURES = {
    "amp O1": ["--amp"],
    "amp O2": ["--amp", "--amp_level", "O2"],
    "bfloat16": ["--amp", "--amp_dtype", "bfloat16"],
    "channels last": ["-o", "MODEL.backbone.data_format=NHWC", "-o", "MODEL.head.data_format=NHWC"],
    "static graph": ["-o", "to_static=true"],
    "moving average": ["-o", "EMA={decay: 0.99}"],
    "precise batch norm": ["-o", "PRECISEBN={preciseBN_interval: 1, num_iters_preciseBN: 2}"],
    "accumulation": ["-o", "accumulate_steps=2"],
}


@pytest.fixture(scope="module")
def train(device, motion_dataset, tmp_path_factory):
    """Trains the tiny network, or goes on in a folder; gives the folder of the output."""

    def run(*words, folder=None, processes=1, environment=()):
        folder = folder or tmp_path_factory.mktemp("run")
        config = folder / "tiny.yaml"
        config.write_text(TINY.format(data=motion_dataset.root, output=folder / "out"))
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", processes] if processes > 1 else []
        command = [*launch, MAIN, "-c", config, "-o", "MODEL.head.num_classes=8", *words]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **dict(environment)}
        done = Fresh(variables).run(command, ROOT, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return folder / "out"

    return run


def parameters(folder):
    state = paddle.load(str(folder / "tiny_epoch_00002.pdparams"), return_numpy=True)
    return {name: np.asarray(value, np.float64) for name, value in state.items()}


def test_all_options_of_runtime_train(train):
    on_cpu = ("allocator_strategy", "recompute", "cpu_affinity")
    options = {name: value for name, value in RUNTIME.items() if not REHEARSAL or name in on_cpu}
    train(
        *overriding(
            *(f"RUNTIME.{name}={value}" for name, value in options.items()), "epochs=1", "max_iters=2"
        )
    )


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_trains_and_validates(train, feature):
    if REHEARSAL and "amp" in feature:
        pytest.skip("a CPU trains in bfloat16 only")
    train(*FEATURES[feature], "-o", "epochs=1", "--max_iters", "2", "--validate")


DETERMINISTIC = {"FLAGS_cudnn_deterministic": "1", "NVIDIA_TF32_OVERRIDE": "0"}


@pytest.fixture(scope="module")
def whole_run(train):
    return train("--max_iters", "3", environment=DETERMINISTIC)


def close(one, other, tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_a_resumed_run_takes_the_same_steps(train, whole_run):
    again = train("--max_iters", "3", environment=DETERMINISTIC)
    (again / "tiny_epoch_00002.pdparams").unlink()
    (again / "tiny_epoch_00002.json").unlink()
    train("--max_iters", "3", "-o", "resume=auto", folder=again.parent, environment=DETERMINISTIC)
    close(parameters(again), parameters(whole_run), 1e-5)


@pytest.mark.parametrize(
    "words", [[], ["-o", "DISTRIBUTED.sharding_degree=2"], ["-o", "DISTRIBUTED.sync_bn=true"]], ids=str
)
def test_two_processes_do_what_one_does(train, whole_run, words):
    if not REHEARSAL and paddle.device.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if REHEARSAL:
        pytest.skip("over gloo tests/integration does it")
    found = train(
        *words, "-o", "DATASET.batch_size=2", "--max_iters", "3", processes=2, environment=DETERMINISTIC
    )
    if words and "sync_bn" in words[1]:
        close(parameters(found), parameters(whole_run), 1e-3)
