"""What RUNTIME, threads and the profiler do to a real process."""

import dataclasses
import json
import os
import subprocess
import sys

import paddle
import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.cli import main
from paddlevideo_fast.config import RunSpec, load_config, startup
from paddlevideo_fast.config.settings import RuntimeSettings
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.machine import available_cores
from tests.support.launching import ROOT

# What each option is in the environment of Paddle, for a value that is not the default.
FLAGS = {
    "allocator_strategy": ("naive_best_fit", "FLAGS_allocator_strategy", "naive_best_fit"),
    "fraction_of_gpu_memory_to_use": (0.5, "FLAGS_fraction_of_gpu_memory_to_use", "0.5"),
    "cudnn_exhaustive_search": (True, "FLAGS_cudnn_exhaustive_search", "True"),
    "conv_workspace_size_limit": (1024, "FLAGS_conv_workspace_size_limit", "1024"),
    "cudnn_batchnorm_spatial_persistent": (True, "FLAGS_cudnn_batchnorm_spatial_persistent", "True"),
    "enable_cublas_tensor_op_math": (True, "FLAGS_enable_cublas_tensor_op_math", "True"),
    "tf32": (False, "NVIDIA_TF32_OVERRIDE", "0"),
}
# The rest of the section: a test below, tests/extensions/static_graph (build_strategy and cinn),
# and tests/modeling/test_recompute.py.
OTHERS = {"cpu_affinity", "build_strategy", "cinn", "recompute"}

CHILD = """
import ctypes, json, os, re, sys
from paddlevideo_fast.config.startup import prepare_process

prepare_process(*json.loads(sys.argv[1]))
environment = dict(os.environ)
import paddle

known = [name for name in environment if name in paddle.base.core.globals().keys()]
openmp = re.search(r"/\\S+/lib[ig]omp\\S*", open("/proc/self/maps").read()).group()
found = {
    "environment": environment,
    "flags": paddle.get_flags(known),
    "cores": sorted(os.sched_getaffinity(0)),
    "threads": ctypes.CDLL(openmp).omp_get_max_threads(),
}
print(json.dumps(found))
"""


@pytest.fixture
def child():
    """Prepares a process, imports Paddle in it, and tells what Paddle has got."""

    def run(config=None, overrides=(), **environment):
        names = ("OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE")
        clean = {k: v for k, v in os.environ.items() if k not in names and not k.startswith("FLAGS_")}
        command = [sys.executable, "-c", CHILD, json.dumps([config and str(config), list(overrides)])]
        done = subprocess.run(
            command,
            env={**clean, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def own_environment(monkeypatch):
    """An environment that ends with the test."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FLAGS_")}
    monkeypatch.setattr(os, "environ", variables)
    return variables


def section(**options):
    return [f"RUNTIME={json.dumps(options)}"]


def test_every_option_is_tested_here():
    names = {field.name for field in dataclasses.fields(RuntimeSettings)}
    assert names == set(FLAGS) | OTHERS


def test_the_flags_reach_paddle(tiny_config, child):
    overrides = section(**{name: value for name, (value, _, _) in FLAGS.items()})
    written = {"FLAGS_init_allocated_mem": "True", "FLAGS_use_pinned_memory": "False"}
    found = child(tiny_config, [*overrides, "num_threads=3"], **written)
    assert found["threads"] == 3
    for _, variable, text in FLAGS.values():
        assert found["environment"][variable] == text
    # the CPU build has two of them; those that a build has have taken the values
    expected = {
        "FLAGS_allocator_strategy": "naive_best_fit",
        "FLAGS_fraction_of_gpu_memory_to_use": 0.5,
        "FLAGS_init_allocated_mem": True,  # as Paddle reads what is written here
        "FLAGS_use_pinned_memory": False,
    }
    if paddle.is_compiled_with_cuda():
        expected.update(
            FLAGS_conv_workspace_size_limit=1024,
            FLAGS_cudnn_batchnorm_spatial_persistent=True,
            FLAGS_cudnn_exhaustive_search=True,
            FLAGS_enable_cublas_tensor_op_math=True,
        )
    assert found["flags"] == expected


@pytest.mark.slow
@pytest.mark.smoke
def test_all_cores_compute_unless_something_else_is_said(tiny_config, child):
    assert child()["threads"] == len(available_cores())
    assert child(tiny_config, ["num_threads=3"], OMP_NUM_THREADS="5")["threads"] == 5


def test_a_process_is_pinned_before_paddle_starts_its_threads(tiny_config, child):
    core = available_cores()[-1]
    found = child(tiny_config, section(cpu_affinity=[core]))
    assert found["cores"] == [core]
    assert found["threads"] == 1


@pytest.mark.parametrize(
    ("wanted", "cores", "size", "shares"),
    [
        (None, range(4), 1, [[0, 1, 2, 3]]),
        ("spread", range(4), 2, [[0, 1], [2, 3]]),
        ("spread", [1, 3, 5, 7, 9], 2, [[1, 3], [5, 7, 9]]),
        ([6, 2, 4], range(8), 3, [[2], [4], [6]]),
        ("spread", range(2), 3, [[0], [0], [1]]),
    ],
)
def test_processes_of_a_machine_share_its_cores(own_environment, wanted, cores, size, shares):
    settings = RuntimeSettings(cpu_affinity=wanted)
    found = []
    for rank in range(size):
        own_environment.update(PADDLE_LOCAL_RANK=str(rank), PADDLE_LOCAL_SIZE=str(size))
        found.append(startup.cores_of_process(settings, list(cores)))
    assert found == shares


def test_each_process_of_a_machine_gets_as_many_threads_as_its_cores(
    own_environment, monkeypatch, tiny_config
):
    pinned = []
    monkeypatch.setattr(startup, "available_cores", lambda: list(range(6)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    own_environment.update(PADDLE_LOCAL_RANK="1", PADDLE_LOCAL_SIZE="2")
    own_environment.pop("OMP_NUM_THREADS", None)
    startup.prepare_process(str(tiny_config), section(cpu_affinity="spread"))
    assert (pinned, own_environment["OMP_NUM_THREADS"]) == ([[3, 4, 5]], "3")
    own_environment.pop("OMP_NUM_THREADS")
    startup.prepare_process()
    assert (len(pinned), own_environment["OMP_NUM_THREADS"]) == (1, "3")


def test_what_is_set_already_wins(own_environment, tiny_config):
    own_environment["FLAGS_allocator_strategy"] = "auto_growth"
    startup.prepare_process(str(tiny_config), section(allocator_strategy="naive_best_fit"))
    assert own_environment["FLAGS_allocator_strategy"] == "auto_growth"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("cpu_affinity=every", "'spread' or list of int"),
        ("cpu_affinity=[-1]", "at least 0"),
        ("allocator_strategy=fast", "'auto_growth' or 'naive_best_fit'"),
        ("fraction_of_gpu_memory_to_use=92", "from 0 to 1"),
        ("cudnn_exhaustive_search=3", "bool"),
        ("conv_workspace_size_limit=0", "at least 1"),
        ("cudnn_batchnorm_spatial_persistent=often", "bool"),
        ("enable_cublas_tensor_op_math=1", "bool"),
        ("tf32=off-ish", "bool"),
        ("build_strategy={enable_addto: 3}", "bool"),
        ("build_strategy=[enable_addto]", "mapping"),
        ("cinn=always", "bool"),
        ("cudnn_exaustive_search=true", "did you mean 'cudnn_exhaustive_search'?"),
    ],
)
def test_a_wrong_value_is_named_and_leaves_the_process_alone(own_environment, tiny_config, option, expected):
    before = dict(own_environment)
    startup.prepare_process(str(tiny_config), [f"RUNTIME.{option}"])
    assert {k: v for k, v in own_environment.items() if k != "OMP_NUM_THREADS"} == {
        k: v for k, v in before.items() if k != "OMP_NUM_THREADS"
    }
    with pytest.raises(ConfigError) as error:
        load_config(str(tiny_config), [f"RUNTIME.{option}"])
    (problem,) = error.value.problems
    assert problem.startswith(f"-o #1  RUNTIME.{option.partition('=')[0]}")
    assert expected in problem


@pytest.mark.parametrize("cores", [[], [0, 4096]])
def test_cores_that_are_not_there(tiny_config, capfd, cores):
    assert main(["-c", str(tiny_config), "-o", f"RUNTIME.cpu_affinity={cores}"]) == 2
    assert f"RUNTIME.cpu_affinity={cores}: this process may use the cores " in capfd.readouterr().err


@pytest.mark.parametrize("name", RuntimeSettings.gpu_only)
def test_an_option_for_gpus_is_refused_on_a_cpu(own_environment, tiny_config, tmp_path, name):
    cfg = load_config(str(tiny_config), section(**{name: FLAGS[name][0]}))
    with pytest.raises(ConfigError) as error:
        check_evaluation(RunSpec.of(cfg))
    assert error.value.problems == [
        f"-o #1  RUNTIME.{name}: it is for GPUs, and Paddle computes on the CPU here; take it out"
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="a GPU build has all of the flags")
def test_a_flag_that_paddle_has_not_got(own_environment, monkeypatch, tiny_config):
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    overrides = section(fraction_of_gpu_memory_to_use=0.5, cudnn_exhaustive_search=True, tf32=False)
    cfg = load_config(str(tiny_config), overrides)
    with pytest.raises(ConfigError) as error:
        check_evaluation(RunSpec.of(cfg))
    late = "Paddle reads it at its import, which came first; start through paddlevideo-fast train, or set"
    assert [problem.partition("  ")[2] for problem in error.value.problems] == [
        f"RUNTIME.fraction_of_gpu_memory_to_use: {late} FLAGS_fraction_of_gpu_memory_to_use in the "
        "environment",
        # this is the CPU build
        f"RUNTIME.cudnn_exhaustive_search: Paddle {paddle.__version__} has no FLAGS_cudnn_exhaustive_search; "
        "take it out",
        f"RUNTIME.tf32: {late} NVIDIA_TF32_OVERRIDE in the environment",
    ]
    startup.prepare_process(str(tiny_config), overrides)
    overrides = section(fraction_of_gpu_memory_to_use=0.5, tf32=False)
    check_evaluation(RunSpec.of(load_config(str(tiny_config), overrides)))
