"""Reading objects by URL: what is well, what is tried again, and the three ways in which it ends."""

import os
import pickle
import time

import pytest

from paddlevideo_fast.errors import (
    InstallationError,
    MissingExtraError,
    ObjectError,
    ObjectMissingError,
    PaddleVideoFastError,
    StoreAccessError,
    StoreAwayError,
)
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import join, shown_url
from paddlevideo_fast.sources.remote import stores
from tests.support.fresh_stores import start_anew

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    start_anew(monkeypatch, (2.0, 3, 1.0, 0.02))


_ON_S3 = ("cut", "short", "understated", "error", "unranged")  # moto is slow


@pytest.fixture(params=["http", "s3"])
def store(request):
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def url(store, tmp_path):
    for name in ("a b.bin", "other.bin"):
        (tmp_path / name).write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    return store.publish(tmp_path) + "a b.bin"


def test_ranges_and_whole_objects(store, url):
    size, version = stores.stat(url)
    assert size == len(CONTENT)
    assert stores.read_range(url, 100, 700, version) == CONTENT[100:800]
    assert stores.read_range(url, 0, 0) == b""
    assert stores.read_all(url, 10**6) == CONTENT
    assert stores.stat(url.replace("a b.bin", "empty")).size == 0
    assert stores.read_all(url.replace("a b.bin", "empty"), 10) == b""
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        stores.read_all(url, 1000)
    with pytest.raises(ObjectMissingError, match="there is no such object") as caught:
        stores.stat(url + "x")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, PaddleVideoFastError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.strerror, copy.filename) == (str(caught.value), caught.value.cause, url + "x")
    assert stores.exists(url)
    assert not stores.exists(url + "x")
    store.put(url, CONTENT[::-1])
    with pytest.raises(ObjectError, match="was changed while it was in use"):
        stores.read_range(url, 0, 10, version)


@pytest.mark.parametrize(
    "fault", ["close", "reset", "cut", "short", "understated", "long", "error", "unranged", "timeout"]
)
def test_a_fault_that_passes_is_not_noticed(request, tmp_path, fault):
    store = request.getfixturevalue("s3_store" if fault in _ON_S3 else "http_store")
    (tmp_path / "file").write_bytes(CONTENT)
    url = store.publish(tmp_path) + "file"
    _, version = stores.stat(url)
    store.reset()
    store.fault(fault, times=1)
    assert stores.read_range(url, 1, 5000, version) == CONTENT[1:5001]
    assert store.num_requests == 2


def test_the_server_says_how_long_to_wait(store, url):
    store.fault("throttled", times=1)
    began = time.monotonic()
    assert stores.read_range(url, 1, 5000) == CONTENT[1:5001]
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("fault", ["reset", "cut", "error", "redirect"])
def test_an_object_that_stays_broken_is_named_if_its_store_lives(store, url, fault):
    stores.stat(url.replace("a b", "other"))
    store.fault(fault, "*a*b.bin")
    with pytest.raises(ObjectError, match=r"a b\.bin: .*; tried 3 times"):
        stores.read_range(url, 1, 5000)


def test_a_store_that_is_away(store, url):
    stores.stat(url)
    store.fault("error")
    with pytest.raises(
        StoreAwayError, match=r"the store is away: no good answer for \d s \(the store answers 500\)"
    ):
        stores.read_range(url, 1, 5000)


@pytest.mark.parametrize(("fault", "status"), [("denied", 403), ("unauthorised", 401)])
def test_a_store_that_refuses(store, url, fault, status):
    store.fault(fault)
    with pytest.raises(StoreAccessError, match=f"answers {status}: check the credentials"):
        stores.read_range(url, 1, 5000)
    assert store.num_requests == 1


def test_nobody_listens():
    with pytest.raises(StoreAwayError, match="http://127.0.0.1:9: the store is away"):
        stores.stat("http://127.0.0.1:9/x")


def test_a_forked_process_reads_too(store, url, monkeypatch):
    start_anew(monkeypatch, (20.0, 3, 20.0, 0.02))  # a busy machine may take its time
    stores.read_range(url, 0, 10)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if stores.read_range(url, 5, 10) == CONTENT[5:15] else 1)
        finally:
            os._exit(2)  # an error must not become a second run of the tests
    assert os.waitpid(child, 0)[1] == 0
    assert stores.read_range(url, 5, 10) == CONTENT[5:15]


def test_writing_and_listing(s3_store, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    url = s3_store.url + "written/deep/file"
    stores.put(tmp_path / "file", url)
    assert s3_store.get(url) == CONTENT
    assert stores.list_folder(s3_store.url + "written") == ["deep/"]
    assert stores.list_folder(s3_store.url + "written/deep/") == ["file"]
    stores.remove(url)
    stores.remove(url)
    assert s3_store.names(s3_store.url + "written") == []


def test_keys_are_kept_byte_for_byte(s3_store, tmp_path):
    keys = ("a/b", "/a/b", "/a//b", "a//b", "a b/#;+%41")
    for key in keys:
        (tmp_path / "file").write_bytes(key.encode())
        stores.put(tmp_path / "file", join(f"{s3_store.url}keys/", key))
    assert s3_store.names(f"{s3_store.url}keys/") == sorted(keys)
    for key in keys:
        url = f"{s3_store.url}keys/{key}"
        size, version = stores.stat(url)
        assert stores.read_range(url, 0, size, version) == as_path(url).read_bytes() == key.encode()
    assert [path.name for path in as_path(f"{s3_store.url}keys//a").iterdir()] == ["b"]
    (tmp_path / "file").write_bytes(b"top")
    stores.put(tmp_path / "file", "s3://videos//top/file")
    assert stores.read_all("s3://videos//top/file", 10) == b"top"
    for folder in ("s3://videos//top", f"{s3_store.url}keys//"):
        with pytest.raises(ObjectError, match="a folder with an empty name cannot be listed"):
            stores.list_folder(folder)
    stores.remove(f"{s3_store.url}keys//a//b")
    assert s3_store.names(f"{s3_store.url}keys/") == sorted({*keys} - {"/a//b"})


def test_paths_of_a_web_server_are_kept(http_store, tmp_path):
    folder = tmp_path / "a b#%41"
    folder.mkdir()
    (folder / "file").write_bytes(CONTENT)
    url = http_store.publish(tmp_path)
    assert stores.read_all(f"{url}a%20b%23%2541/file?x=1#y", 10**5) == CONTENT
    stores.stat(f"{url}/a%20b%23%2541//file")
    assert http_store.requests[-1]["path"].endswith("//a b#%41//file")


def test_a_web_server_that_takes_no_files(http_store, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    with pytest.raises(ObjectError, match="the store answers 405"):
        stores.put(tmp_path / "file", http_store.url + "file")
    with pytest.raises(ObjectError, match="the store answers 405"):
        stores.remove(http_store.url + "file")
    with pytest.raises(ObjectError, match="does not list folders"):
        stores.list_folder(http_store.url)


def test_any_driver_of_fsspec(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    url = "memory://folder/file"
    stores.put(tmp_path / "file", url)
    size, version = stores.stat(url)
    assert (size, stores.read_range(url, 3, 5, version)) == (len(CONTENT), CONTENT[3:8])
    stores.put(tmp_path / "file", url)
    with pytest.raises(ObjectError, match="was changed"):
        stores.read_range(url, 3, 5, version)
    assert stores.list_folder("memory://folder") == ["file"]
    stores.remove(url)
    with pytest.raises(ObjectMissingError):
        stores.read_all(url, 10)
    with pytest.raises(StoreAccessError, match="fsspec has no driver for nonsense://"):
        stores.stat("nonsense://x/y")


def test_no_secret_is_repeated_or_taken(http_store, monkeypatch):
    assert shown_url("https://me:pw@h/a?X-Amz-Signature=1&b=2") == "https://h/a?…"
    url = http_store.url.replace("://", "://me:hunter2@") + "x?sig=hunter3"
    with pytest.raises(StoreAccessError, match="with a user name and password is not taken") as caught:
        stores.stat(url)
    assert "hunter" not in str(caught.value)
    http_store.fault("denied")
    with pytest.raises(StoreAccessError) as caught:
        stores.stat(http_store.url + "x?sig=hunter3")
    assert "hunter" not in str(caught.value)
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e .\.\[remote\]"):
        stores.stat("s3://other/x")


def appended(path):
    with open(path, "ab") as file:
        file.write(b"b" * 1000)


def replaced(path):
    path.with_name("new").write_bytes(b"a longer one")
    path.with_name("new").replace(path)


@pytest.mark.parametrize(("num_bytes", "change"), [(10, appended), (10**6, appended), (5, replaced)])
def test_a_file_that_changes_is_written_as_it_was(s3_store, tmp_path, monkeypatch, num_bytes, change):
    """It changes before each request, so its end never stays where it was."""
    path, url = tmp_path / "metrics.jsonl", f"{s3_store.url}{tmp_path.name}/metrics.jsonl"
    path.write_bytes(b"a" * num_bytes)
    ask = stores._Store.driver

    def driver(store, asked):
        change(path)
        return ask(store, asked)

    monkeypatch.setattr(stores._Store, "driver", driver)
    stores.put(path, url)
    assert s3_store.get(url) == b"a" * num_bytes


def test_a_store_says_that_its_driver_is_too_old(installed):
    installed["s3fs"] = "0.4.2"
    with pytest.raises(InstallationError, match="reading s3://bucket/a.mp4 needs s3fs>="):
        stores.read_all("s3://bucket/a.mp4", 100)
