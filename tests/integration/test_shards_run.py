"""Training on tar shards is training on the files they were made of, bit for bit."""

import shutil
import signal

import pytest
import webdataset as wds

from tests.support.launching import MAIN, overriding

FAULTS = ("reset", "cut", "short", "long", "throttled", "error", "close", "unranged")
PARTS = ("train", "valid", "test")
SAME = ("save_every_steps=1", "use_visualdl=false")


@pytest.fixture(scope="module")
def shards(motion_data, tmp_path_factory):
    """The training and the validation clips in shards of six, as the library webdataset writes them."""
    folder = tmp_path_factory.mktemp("shards")
    for name in ("train", "valid"):
        (folder / name).mkdir()
        with wds.ShardWriter(f"{folder}/{name}/%05d.tar", maxcount=6, verbose=0) as writer:
            for number, line in enumerate((motion_data / f"{name}.list").read_text().splitlines()):
                path, label = line.split()
                video = (motion_data / path).read_bytes()
                writer.write({"__key__": f"{number:08}", "mp4": video, "cls": int(label)})
    return folder


def from_shards(train, valid):
    """The overrides that take training and validation from shards."""
    text = "{{format: WebDataset, file_path: '{}'}}"
    return overriding(
        *(f"DATASET.{name}={text.format(path)}" for name, path in zip(PARTS, (train, valid, valid)))
    )


def test_losses_are_those_of_the_files(shards, tmp_path, run, assert_same_run, http_store):
    """From a folder, and from a web server with faults."""
    assert run(*overriding(*SAME)) == 0
    options = from_shards(shards / "train", shards / "valid")
    assert run(*options, *overriding(*SAME, f"output_dir={tmp_path}/tar")) == 0
    assert_same_run(tmp_path / "out", tmp_path / "tar")

    url = http_store.publish(shards)
    for number, fault in enumerate(FAULTS):
        http_store.fault(fault, "*.tar", times=1, after=2 * number + 1)
    options = from_shards(f"{url}train/{{00000..00003}}.tar", f"{url}valid/{{00000..00001}}.tar")
    cache = f"STORAGE={{cache_dir: {tmp_path / 'cache'}, block_kb: 4}}"
    assert run(*options, *overriding(*SAME, f"output_dir={tmp_path}/http", cache)) == 0
    assert {request["fault"] for request in http_store.requests} >= set(FAULTS)
    assert_same_run(tmp_path / "out", tmp_path / "http")


@pytest.mark.annex
def test_resuming_inside_an_epoch(shards, tiny_config, tmp_path, run_main, assert_resumes):
    options = [*from_shards(shards / "train", shards / "valid"), *overriding(*SAME, "keep_last=null")]
    run_main(tiny_config, *options)
    assert_resumes(tmp_path / "out", "tiny_step_00000008", tiny_config, *options)


@pytest.mark.slow
def test_survives_a_kill_beside_a_web_server(
    shards, tiny_text, motion_data, tmp_path, job, http_store, wait_for_step, assert_same_run
):
    """With faults, a slow server and two workers; in the second epoch."""
    url = http_store.publish(shards)
    options = from_shards(f"{url}train/{{00000..00003}}.tar", shards / "valid")
    cache = f"STORAGE={{cache_dir: {tmp_path / 'cache'}, block_kb: 4}}"

    def train(name, *more):
        config = tmp_path / f"{name}.yaml"
        config.write_text(tiny_text.format(data=motion_data, output=tmp_path / name))
        command = [MAIN, "-c", config, *options, *overriding(*SAME, cache, "DATASET.num_workers=2", *more)]
        return job(f"{name}-job", command, 1)

    train("whole").succeed()
    shutil.rmtree(tmp_path / "cache")
    http_store.delay_sec = 0.02
    for number, fault in enumerate(FAULTS):
        http_store.fault(fault, "*.tar", times=1, after=2 * number + 1)
    killed = train("killed")
    wait_for_step(tmp_path / "killed", 8, killed.processes[0])  # an epoch has six steps
    killed.send(signal.SIGKILL)
    killed.wait()
    assert "epoch 2, step " in train("killed", "resume=auto").succeed()[0]
    assert {request["fault"] for request in http_store.requests} >= set(FAULTS)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
