"""Checkpoints of a run whose output_dir is a URL go there whole, and a run elsewhere goes on from them."""

import json

import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, load_checkpoint
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.state import TrainerState
from paddlevideo_fast.errors import CheckpointError, ObjectError, PaddleVideoFastError, StoreAwayError
from paddlevideo_fast.sources.remote import stores
from paddlevideo_fast.sources.remote.sync import Mirror
from tests.support.fresh_stores import start_anew
from tests.support.small_runs import save


@pytest.fixture
def on_machine(s3_store, tmp_path, monkeypatch):
    """Function that gives the prepared store of a run on a machine, by the machine's name."""
    start_anew(monkeypatch, (2.0, 3, 2.0, 0.01))

    def prepared(name, run="first"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        store = CheckpointStore(f"{s3_store.url}{tmp_path.name}/{run}", "m")
        store.prepare()
        return store

    return prepared


def names(s3_store, store):
    return set(s3_store.names(f"{store.mirror.url}/"))


FIRST = {f"m_epoch_00001{ending}" for ending in (".json", ".pdopt", ".pdparams")}
SECOND = {name.replace("1", "2") for name in FIRST}


def test_a_run_goes_on_elsewhere(s3_store, on_machine):
    here = on_machine("here")
    save(here, "epoch_00001", 1.0, 1, 1)
    save(here, "epoch_00002", 2.0, 2, 2)
    here.save_weights("best", {"fc.weight": paddle.full([2, 2], 3.0)})
    (here.folder / "train.log").write_text("a line\n")
    (here.folder / "vdl").mkdir()
    (here.folder / "vdl" / "records").write_bytes(b"curves")
    here.upload()
    assert names(s3_store, here) == FIRST | SECOND | {"m_best.pdparams", "train.log", "vdl/records"}
    put = [one["path"].rpartition("/")[2] for one in s3_store.requests if one["method"] == "PUT"]
    assert put.index("m_epoch_00001.json") > put.index("m_epoch_00001.pdopt")  # its mark comes last
    assert put.count("m_epoch_00001.pdparams") == 1

    there = on_machine("there")
    assert (there.folder / "train.log").read_text() == "a line\n"
    checkpoint = there.checkpoint_to_resume("auto", None, Distribution())
    assert checkpoint.weights["fc.weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert checkpoint.prefix == str(there.folder / "m_epoch_00002")
    assert not (there.folder / "m_epoch_00001.pdparams").exists()  # only what is needed is fetched
    assert (there.folder / "m_best.pdparams").exists()
    save(there, "epoch_00003", 4.0, 3, 3)
    there.remove_all_but(1)
    there.upload()
    left = {name for name in names(s3_store, here) if name.startswith("m_epoch")}
    assert left == {name.replace("1", "3") for name in FIRST}

    other = on_machine("third", "second")
    named = other.checkpoint_to_resume(f"{here.mirror.url}/m_epoch_00003.pdparams", None, Distribution())
    newest = other.checkpoint_to_resume(here.mirror.url, None, Distribution())
    assert named.state["trainer"] == newest.state["trainer"] == {"step": 3, "epoch": 3}


def test_a_checkpoint_in_the_store_has_the_records_of_its_steps(s3_store, on_machine, monkeypatch):
    """Killed after any request: where the mark of a checkpoint is there, so are the lines before it."""
    store = on_machine("here")
    original, seen = stores.put, []

    def put(file, url):
        original(file, url)
        marks = sum(name.endswith(("0001.json", "0002.json")) for name in names(s3_store, store))
        file = f"{store.mirror.url}/metrics.jsonl"
        there = s3_store.get(file).decode() if "metrics.jsonl" in names(s3_store, store) else ""
        seen.append((marks, there.count("\n")))

    monkeypatch.setattr(stores, "put", put)
    for epoch in (1, 2):
        with open(store.folder / "metrics.jsonl", "a") as lines:
            lines.write('{"kind": "train"}\n' * 3)
        save(store, f"epoch_0000{epoch}", step=epoch, epoch=epoch)
    assert max(marks for marks, _ in seen) == 2
    assert all(lines >= 3 * marks for marks, lines in seen), seen


def test_an_earlier_run_is_not_written_over(s3_store, on_machine):
    save(on_machine("here"), "epoch_00001", 1.0, 1, 1)
    there = on_machine("there")
    with pytest.raises(CheckpointError, match=f"output_dir {there.mirror.url}: holds an earlier run"):
        there.archive_earlier_run(TrainerState(), None)
    assert names(s3_store, there) >= FIRST


def test_what_the_store_did_not_take_is_kept(s3_store, on_machine):
    here = on_machine("here")
    save(here, "epoch_00001", 1.0, 1, 1)
    s3_store.fault("error", method="PUT")
    with pytest.raises((StoreAwayError, ObjectError)):
        save(here, "epoch_00002", 2.0, 2, 2)
    s3_store.reset()
    assert not SECOND & names(s3_store, here)
    again = on_machine("here")
    assert load_checkpoint(again.latest()).state["trainer"]["step"] == 2
    again.upload()
    assert names(s3_store, here) >= FIRST | SECOND


def test_a_checkpoint_that_is_cut_off_on_its_way_is_none(s3_store, on_machine):
    here = on_machine("here")
    s3_store.fault("error", "*.json", method="PUT")
    with pytest.raises((StoreAwayError, ObjectError)):
        save(here, "epoch_00001", 1.0, 1, 1)
    s3_store.reset()
    assert names(s3_store, here) >= FIRST - {"m_epoch_00001.json"}
    assert on_machine("there").latest() is None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://no-such-bucket/run", "no-such-bucket"),
        ("s4://bucket/run", "fsspec has no driver for s4://"),
        ("http://127.0.0.1:1/run", "a web server does not list folders"),
        ("s3://user:secret-word@bucket/run", "user name and password"),
    ],
)
def test_a_url_that_cannot_be_written_is_told_first(on_machine, url, told):
    with pytest.raises(PaddleVideoFastError, match=told) as caught:
        CheckpointStore(url, "m").prepare()
    assert "secret-word" not in str(caught.value)


def test_no_credentials_are_kept(s3_store, on_machine):
    here = on_machine("here")
    save(here, "epoch_00001", 1.0, 1, 1)
    here.upload()
    secrets = [s3_store.environment[name].encode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    for path in here.folder.rglob("*"):
        assert path.is_dir() or not any(secret in path.read_bytes() for secret in secrets)
    assert json.loads((here.folder / "m_epoch_00001.json").read_text())["files"]


@pytest.mark.parametrize("resume", [None, "auto"])
def test_what_a_user_deletes_here_stays_in_the_store(s3_store, on_machine, resume):
    """Weights are deleted to free the disk; the same command, refused or not, keeps those in the store."""
    here = on_machine("here")
    save(here, "epoch_00001", 1.0, 1, 1)
    save(here, "epoch_00002", 2.0, 2, 2)
    here.save_weights("best", {"fc.weight": paddle.full([2, 2], 3.0)})
    for path in here.folder.glob("*.pd*"):
        path.unlink()

    again = on_machine("here")
    checkpoint = again.checkpoint_to_resume(resume, None, Distribution())
    if resume:
        again.archive_earlier_run(TrainerState(epoch=2, step=2), checkpoint)
    else:
        with pytest.raises(CheckpointError, match="holds an earlier run"):
            again.archive_earlier_run(TrainerState(), None)
    again.upload()
    assert names(s3_store, again) == FIRST | SECOND | {"m_best.pdparams"}

    again.remove_all_but(1)  # on purpose: also what is only in the store
    again.upload()
    assert names(s3_store, again) == SECOND | {"m_best.pdparams"}


def test_what_moves_aside_leaves_the_store(s3_store, on_machine):
    here = on_machine("here")
    (here.folder / "train.log").write_text("a line\n")
    (here.folder / "vdl").mkdir()
    (here.folder / "vdl" / "records").write_bytes(b"curves")
    here.upload()
    here.archive_earlier_run(TrainerState(), None)
    (here.folder / "train.log").write_text("another run\n")
    here.upload()
    assert names(s3_store, here) == {"train.log"}
    assert s3_store.get(f"{here.mirror.url}/train.log") == b"another run\n"


def test_a_folder_that_moves_aside_is_no_object_to_remove(s3_store, on_machine):
    """A listing has folders, too; a driver may refuse to remove one."""
    (on_machine("here").folder / "vdl").mkdir()
    here = on_machine("here")
    (here.folder / "vdl" / "records").write_bytes(b"curves")
    here.upload()
    again = on_machine("here")
    again.prepare()
    assert "vdl/" in again.mirror.there
    again.archive_earlier_run(TrainerState(), None)
    s3_store.reset()
    again.upload()
    removed = [one["path"] for one in s3_store.requests if one["method"] == "DELETE"]
    assert not [path for path in removed if path.endswith("/")]


def test_all_slashes_of_an_output_belong_to_its_key():
    assert [Mirror(f"s3://bucket/run{end}").url for end in ("", "/", "//")] == [
        "s3://bucket/run",
        "s3://bucket/run",
        "s3://bucket/run/",
    ]


def test_a_log_that_the_store_does_not_take_ends_no_run(s3_store, on_machine, caplog):
    here = on_machine("here")
    (here.folder / "metrics.jsonl").write_text("a record\n")
    (here.folder / "train.log").write_text("a line\n")
    s3_store.fault("error", "*metrics.jsonl", method="PUT")
    save(here, "epoch_00001", 1.0, 1, 1)
    assert "metrics.jsonl: the store answers 500; tried 3 times; the next upload tries again" in caplog.text
    assert names(s3_store, here) == FIRST | {"train.log"}
    s3_store.reset()
    save(here, "epoch_00002", 2.0, 2, 2)
    assert names(s3_store, here) == FIRST | SECOND | {"train.log", "metrics.jsonl"}


@pytest.mark.parametrize("fault", ["error", "denied"])
def test_a_store_that_is_away_when_only_logs_are_new_ends_no_run(s3_store, on_machine, caplog, fault):
    here = on_machine("here")
    save(here, "epoch_00001", 1.0, 1, 1)
    (here.folder / "train.log").write_text("a line\n")
    s3_store.fault(fault)
    here.upload()
    assert "the next upload tries again" in caplog.text
    s3_store.reset()
    here.upload()
    assert names(s3_store, here) == FIRST | {"train.log"}
