"""Which GPU a process has: one that is there, and of its own. Without GPUs."""

import json

import paddle
import pytest

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import distribution
from paddlevideo_fast.engine.distribution import Distribution, make_distribution
from paddlevideo_fast.errors import DistributionError
from tests.support.launching import Job

# Ranks that Paddle tells of the GPUs of their environment. `sys.argv[2]` has a GPU's number for each rank.
SCRIPT = """
import json, os, sys
import numpy as np
import paddlevideo_fast  # before Paddle
import paddle
from paddlevideo_fast.engine import distribution
from paddlevideo_fast.errors import DistributionError

folder, numbers = sys.argv[1], json.loads(sys.argv[2])
rank, world_size = distribution.launched_rank()
parallel_env = distribution.dist.ParallelEnv

class OnGpus(parallel_env):
    device_id = numbers[rank]

distribution.dist.ParallelEnv = OnGpus
try:
    distribution._refuse_shared_gpu(rank, world_size)
    told = ""
except DistributionError as error:
    told = str(error)
distribution.dist.ParallelEnv = parallel_env
sums = [] if told else distribution.FleetDistribution().all_sum([rank]).tolist()  # by the same store
json.dump([told, sums], open(f"{folder}/{rank}.json", "w"))
"""


def told_to_ranks(numbers, folder, **environment):
    script = folder / "run.py"
    script.write_text(SCRIPT)
    with Job([script, folder, json.dumps(numbers)], len(numbers), folder / "job", environment) as job:
        job.succeed()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(numbers))]


@pytest.mark.parametrize(
    ("numbers", "told"),
    [([1, 0, 1], "the ranks 0, 2 have the same GPU, 7 of 127.0.0.1: start one process"), ([1, 0], "")],
)
def test_ranks_of_one_gpu_are_refused_and_others_connect(tmp_path, numbers, told):
    found = told_to_ranks(numbers, tmp_path, CUDA_VISIBLE_DEVICES="4,7")
    assert [text.partition(" for each")[0] for text, _ in found] == [told] * len(numbers)
    assert [sums for _, sums in found] == [[] if told else [1]] * len(numbers)


@pytest.fixture
def machine(monkeypatch):
    """`machine(named, found)`: a GPU build in a machine of two GPUs, of which CUDA finds `found`."""

    def make(named, found):
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: found)
        monkeypatch.setattr(distribution, "installed_gpus", lambda: ["a GPU", "a GPU"])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)

    return make


@pytest.mark.parametrize(
    ("named", "found", "message"),
    [
        ("", 0, "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it"),
        ("7", 0, "CUDA_VISIBLE_DEVICES=7: CUDA finds 0 of these 1 GPUs"),
        ("0,7", 1, "CUDA_VISIBLE_DEVICES=0,7: CUDA finds 1 of these 2 GPUs"),
        ("0,0", 0, "CUDA_VISIBLE_DEVICES=0,0: CUDA finds 0 of these 2 GPUs"),
    ],
)
def test_gpus_that_cuda_does_not_find_are_refused(machine, named, found, message):
    machine(named, found)
    with pytest.raises(DistributionError, match=message):
        make_distribution(DistributedSettings())


@pytest.mark.parametrize(
    ("named", "found"), [("0", 1), ("1,0", 2), ("-1", 0), ("1,-1,0", 1), ("GPU-8f0a", 1)]
)
def test_gpus_that_are_there_are_taken_and_none_where_none_is_asked_for(machine, named, found):
    machine(named, found)
    assert type(make_distribution(DistributedSettings())) is Distribution
