"""Training on packed shards in a store is training on the same shards on a disk, bit for bit."""

import shutil
import signal

import pytest

from tests.support.launching import MAIN, fleet_runs, overriding

FAULTS = ("reset", "cut", "short", "long", "throttled", "error", "close", "flipped", "unranged")


@pytest.fixture(scope="module")
def packed_motion(motion_data, tmp_path_factory, run_script):
    """The 24 training clips in four shards."""
    folder = tmp_path_factory.mktemp("packed_motion")
    options = ("--kind=video", "--workers=1", "--shard_size=6", f"--data_prefix={motion_data}")
    run_script("data/pack_frames.py", "--list", motion_data / "train.list", "--output", folder, *options)
    return folder


@pytest.fixture
def train(tiny_text, motion_data, tmp_path, job, http_store, s3_store):
    """`train(name, data, …)`: starts a run whose output is in tmp_path / name, as a `Job`."""

    def start(name, data, *, num_ranks=1, workers=0, options=()):
        config = tmp_path / f"{name}.yaml"
        config.write_text(tiny_text.format(data=motion_data, output=tmp_path / name))
        settings = overriding(
            "DATASET.train.format=PackedFrameDataset",
            f"DATASET.train.file_path={data}",
            "DATASET.train.data_prefix=null",
            "DATASET.train.shuffle_window=9",
            f"DATASET.batch_size={4 // num_ranks}",
            f"DATASET.num_workers={workers}",
            f"STORAGE={{cache_dir: {tmp_path / 'cache'}, block_kb: 4}}",
            *("save_every_steps=1", "validate=false", "use_visualdl=false"),
            *options,
        )
        environment = {**s3_store.environment, "XDG_CACHE_HOME": str(tmp_path / "cache-home")}
        return job(f"{name}-job", [MAIN, "-c", config, *settings], num_ranks, environment=environment)

    return start


def reads(store):
    """Requests for bytes of the shards."""
    return [request for request in store.requests if request["path"].endswith((".data", ".index"))]


@pytest.mark.slow
def test_one_process(packed_motion, train, assert_same_run, tmp_path, http_store, s3_store, wait_for_step):
    """HTTP without workers and with faults; S3 with two workers, killed in the second epoch and resumed."""
    train("local", packed_motion).succeed()

    url = http_store.publish(packed_motion)
    http_store.delay_sec = 0.02
    for number, fault in enumerate(FAULTS):
        http_store.fault(fault, "*.data", times=1, after=number)  # every other request
    train("http", url).succeed()
    assert_same_run(tmp_path / "local", tmp_path / "http")
    assert {request["fault"] for request in reads(http_store)} >= set(FAULTS)
    # the second epoch is in the cache: two epochs read little more than the set, faults and openings included
    total = sum(path.stat().st_size for path in packed_motion.iterdir())
    assert sum(request["num_bytes"] for request in reads(http_store)) < 1.5 * total
    shutil.rmtree(tmp_path / "cache")

    url = s3_store.publish(packed_motion)
    s3_store.delay_sec = 0.02
    s3_store.fault("error", "*.data", times=3, after=2)
    s3_store.fault("reset", "*.data", times=2, after=8)
    killed = train("s3", url, workers=2)
    wait_for_step(tmp_path / "s3", 8, killed.processes[0])  # an epoch has six steps
    killed.send(signal.SIGKILL)
    killed.wait()
    assert {request["fault"] for request in reads(s3_store)} >= {"error", "reset"}
    s3_store.reset()
    told = train("s3", url, workers=2, options=["resume=auto"]).succeed()[0]
    assert "epoch 2, step " in told
    assert_same_run(tmp_path / "local", tmp_path / "s3")
    # what was read before the kill has stayed: the rest of the second epoch needs only the directories
    assert not [
        request
        for request in reads(s3_store)
        if request["path"].endswith(".data") and request["num_bytes"] > 1
    ]


@pytest.mark.parametrize(("fault", "status", "workers"), [("denied", 403, 0), ("unauthorised", 401, 2)])
def test_data_that_are_refused_end_the_run(packed_motion, train, http_store, fault, status, workers):
    """At once, in its middle, with one sentence."""
    url = http_store.publish(packed_motion)
    http_store.fault(fault, "*.data", after=2)
    refused = train("refused", url, workers=workers)
    assert refused.wait() == [2], refused.report()
    (told,) = refused.outputs()
    assert told.count(f"the store answers {status}: check the credentials") == 1
    assert "Traceback" not in told
    assert 0 < sum(request["fault"] == fault for request in reads(http_store)) < 8  # nothing is tried again


@pytest.mark.slow
@pytest.mark.skipif(not fleet_runs(), reason="fleet needs an older protobuf")
def test_two_processes(packed_motion, train, assert_same_run, tmp_path, s3_store):
    """S3 with two workers a process, which share the cache of the machine."""
    train("local", packed_motion, num_ranks=2).succeed()
    url = s3_store.publish(packed_motion)
    s3_store.delay_sec = 0.02
    train("s3", url, num_ranks=2, workers=2).succeed()
    assert_same_run(tmp_path / "local", tmp_path / "s3")
    ranges = [(request["path"], request["range"]) for request in reads(s3_store) if request["num_bytes"] > 1]
    assert len(set(ranges)) > 4
    total = sum(path.stat().st_size for path in packed_motion.glob("*.data"))
    fetched = sum(request["num_bytes"] for request in reads(s3_store) if request["path"].endswith(".data"))
    assert fetched < 2 * total  # of two epochs; processes may fetch the same block at the same moment


@pytest.mark.slow
def test_output_in_a_store(packed_motion, train, tmp_path, s3_store):
    """Weights that a user deletes to free the disk stay in the store, also when the next run is refused."""
    options = [f"output_dir={s3_store.url}runs/first", "keep_last=null"]
    train("first", packed_motion, options=options).succeed()
    stored = s3_store.names(f"{s3_store.url}runs/first/")
    assert {"tiny_epoch_00001.json", "tiny_epoch_00002.pdparams", "metrics.jsonl"} <= set(stored)
    weights = list((tmp_path / "cache-home").rglob("*.pd*"))
    assert weights
    for path in weights:
        path.unlink()
    refused = train("first", packed_motion, options=options)
    assert refused.wait() == [2], refused.report()
    assert s3_store.names(f"{s3_store.url}runs/first/") == stored
    train("first", packed_motion, options=[*options, "resume=auto"]).succeed()
    assert s3_store.names(f"{s3_store.url}runs/first/") == stored
