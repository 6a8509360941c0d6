"""Blocks of remote objects and their cache on disk: what is read is right, bounded and shared."""

import contextlib
import errno
import logging
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.errors import ObjectError
from paddlevideo_fast.sources.remote import block_cache, block_folder, stores
from paddlevideo_fast.sources.remote.block_cache import DiskBlocks, RemoteFile
from paddlevideo_fast.sources.remote.block_folder import TRAILER
from tests.support.fresh_stores import start_anew
from tests.support.killed_readers import most_stored

KIB = 1024
CONTENT = np.random.default_rng(0).integers(0, 256, 1000 * KIB + 77, dtype=np.uint8).tobytes()
BLOCK = 16 * KIB
STORED = BLOCK + TRAILER.size


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    start_anew(monkeypatch, (10.0, 3, 20.0, 0.02))


@pytest.fixture
def url(http_store, tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "object").write_bytes(CONTENT)
    return http_store.publish(tmp_path / "served") + "object"


@pytest.fixture
def use(monkeypatch, tmp_path):
    def start(max_bytes=100 * STORED, folder=tmp_path / "cache"):
        cache = DiskBlocks(folder, max_bytes, BLOCK)
        monkeypatch.setattr(block_cache, "_kept", cache)
        return cache

    return start


def read(file, ranges):
    return [bytes(view) for view in file.views(ranges)]


def expected(ranges):
    return [CONTENT[offset : offset + size] for offset, size in ranges]


def some_ranges(rng, count=20, longest=40 * KIB):
    starts = [rng.randrange(len(CONTENT)) for _ in range(count)]
    return [(start, rng.randrange(min(longest, len(CONTENT) - start) + 1)) for start in starts]


def stored_bytes(folder):
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                total += os.stat(os.path.join(place, name)).st_size if place != str(folder) else 0
    return total


@pytest.mark.parametrize("has_cache", [True, False])
def test_ranges_and_streams_are_the_object(url, use, has_cache):
    if has_cache:
        use()
    file = RemoteFile(url)
    rng = random.Random(1)
    for _ in range(5):
        ranges = some_ranges(rng)
        assert read(file, ranges) == expected(ranges)
    assert file.read() == CONTENT
    assert file.seek(-10, os.SEEK_END) == len(CONTENT) - 10
    assert (file.read(100), file.read(1)) == (CONTENT[-10:], b"")
    with pytest.raises(ValueError, match="bytes"):
        file.views([(len(CONTENT) - 5, 6)])


def test_a_stream_copies_only_what_is_read(url, use, monkeypatch):
    use()
    cut, sizes = block_cache._cut, []

    def noted(got, offset, size, *rest):
        sizes.append(size)
        return cut(got, offset, size, *rest)

    monkeypatch.setattr(block_cache, "_cut", noted)
    with RemoteFile(url).stream() as stream:
        assert stream.read() == CONTENT
    assert sum(sizes) == len(CONTENT)


def test_neighbours_are_one_request_and_come_once(url, use, http_store):
    use()
    file = RemoteFile(url)
    http_store.reset()
    file.fetch([(5, 3 * BLOCK), (20 * BLOCK, 10), (20 * BLOCK + 100, BLOCK)])
    assert sorted(request["num_bytes"] for request in http_store.requests) == [2 * BLOCK, 4 * BLOCK]
    ranges = [(7, 3 * BLOCK - 7), (21 * BLOCK, 10)]
    assert read(file, ranges) == expected(ranges)
    assert http_store.num_requests == 2


def test_a_later_process_finds_them(url, use, http_store):
    use()
    RemoteFile(url).fetch([(0, len(CONTENT))])
    http_store.reset()
    use()
    child = os.fork()
    if child == 0:
        os._exit(0 if RemoteFile(url).read() == CONTENT else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert http_store.num_requests == 1  # which version there is


def test_altered_blocks_are_fetched_again(url, use, http_store, caplog):
    cache = use()
    RemoteFile(url).fetch([(0, 4 * BLOCK)])
    first, second, third, _ = sorted(path for path in Path(cache.on_disk.folder).glob("*/*"))
    for path, place in ((first, 100), (second, BLOCK + 3)):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
    os.truncate(third, 50)
    use()
    file = RemoteFile(url)
    http_store.reset()
    assert read(file, [(0, 4 * BLOCK)]) == expected([(0, 4 * BLOCK)])
    assert http_store.num_bytes == 3 * BLOCK
    assert "holds altered blocks; they are fetched again" in caplog.text
    os.replace(first, second)  # a right block at the place of another one
    use()
    assert read(file, [(0, 4 * BLOCK)]) == expected([(0, 4 * BLOCK)])


def test_an_object_that_changes_is_never_mixed(url, use, http_store):
    use()
    file = RemoteFile(url)
    assert read(file, [(0, 10)]) == expected([(0, 10)])
    http_store.put(url, CONTENT[::-1])
    assert read(file, [(0, 10)]) == expected([(0, 10)])  # of the version that was opened
    with pytest.raises(ObjectError, match="was changed while it was in use"):
        file.views([(10 * BLOCK, 5)])
    assert read(RemoteFile(url), [(0, 10)]) == [CONTENT[::-1][:10]]


def test_the_least_recently_used_go_first(url, use, http_store, monkeypatch):
    monkeypatch.setattr(block_folder, "_TOUCH_SEC", -1.0)
    cache = use(4 * STORED)
    file = RemoteFile(url)
    for number in (0, 1, 2, 3, 0, 4, 0, 5):
        file.views([(number * BLOCK, 1)])
        assert stored_bytes(cache.on_disk.folder) <= 4 * STORED
        time.sleep(0.01)
    http_store.reset()
    use(4 * STORED)
    read(file, [(number * BLOCK, 1) for number in (0, 3, 4, 5)])
    assert http_store.num_requests == 0
    use(2 * STORED)  # a smaller bound holds at once
    assert stored_bytes(cache.on_disk.folder) <= 2 * STORED
    assert read(file, [(0, 9 * BLOCK)]) == expected([(0, 9 * BLOCK)])
    assert stored_bytes(cache.on_disk.folder) <= 2 * STORED
    use(STORED - 1)  # not even one
    assert read(file, [(0, 9 * BLOCK)]) == expected([(0, 9 * BLOCK)])
    assert stored_bytes(cache.on_disk.folder) == 0


def _reader(url, seed, folder, bound):
    """Reads at random for ever; ends with 1 where a byte is wrong."""
    rng = random.Random(seed)
    block_cache._kept = DiskBlocks(folder, bound, BLOCK)
    file = RemoteFile(url)
    while True:
        ranges = some_ranges(rng, 3)
        if read(file, ranges) != expected(ranges):
            os._exit(1)


def test_four_processes_killed_at_random(tmp_path, monkeypatch):
    """The bound holds but for what is in flight, nothing wrong is served, and the cache goes on."""
    (tmp_path / "object").write_bytes(CONTENT)
    url, folder, bound = f"file://{tmp_path}/object", tmp_path / "cache", 20 * STORED
    cache = DiskBlocks(folder, bound, BLOCK)
    most = most_stored(
        lambda seed: _reader(url, seed, folder, bound),
        lambda: stored_bytes(folder),
        num_processes=4,
        num_kills=20,
        least=4 * STORED,
    )
    num_in_flight = 24  # a block for each process that was ever there
    assert 4 * STORED < most <= bound + num_in_flight * STORED
    monkeypatch.setattr(block_folder, "_PART_SEC", 0.0)
    block_cache._kept = cache
    assert RemoteFile(url).read() == CONTENT
    assert cache.on_disk.evict() == stored_bytes(folder) <= bound
    assert not list(folder.glob("*/*.part"))


def test_a_full_disk_is_told_once_and_reading_goes_on(url, use, http_store, monkeypatch, caplog):
    cache = use()
    file = RemoteFile(url)
    file.fetch([(0, 2 * BLOCK)])
    before = stored_bytes(cache.on_disk.folder)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    for _ in range(3):
        assert read(file, [(0, 5 * BLOCK)]) == expected([(0, 5 * BLOCK)])
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "blocks of remote files are fetched and not kept: No space left on device" in warning
    assert stored_bytes(cache.on_disk.folder) == before
    http_store.reset()
    assert read(file, [(3 * BLOCK, 5)]) == expected([(3 * BLOCK, 5)])
    assert http_store.num_requests == 0  # the last ones are kept in memory
    monkeypatch.undo()


def test_a_folder_that_cannot_be_written(url, use, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    use(folder=tmp_path / "file" / "cache")
    file = RemoteFile(url)
    assert file.read() == CONTENT
    assert len(caplog.records) == 1
    assert "are fetched and not kept: Not a directory" in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"-5", b"1" * 40])
def test_a_count_that_is_lost_or_wrong_is_made_anew(url, use, content):
    cache = use()
    RemoteFile(url).fetch([(0, 6 * BLOCK)])
    count = Path(cache.on_disk.folder) / "blocks"
    assert count.stat().st_size == 6
    count.unlink()
    if content is not None:
        count.write_bytes(content)
    use(5 * STORED)
    RemoteFile(url).fetch([(6 * BLOCK, 7 * BLOCK)])
    assert stored_bytes(cache.on_disk.folder) <= 5 * STORED
    assert count.stat().st_size == stored_bytes(cache.on_disk.folder) // STORED


def test_threads_that_want_the_same_blocks_wait_for_one_request(url, use, http_store):
    use()
    file = RemoteFile(url)
    http_store.reset()
    http_store.delay_sec = 0.1
    ranges = [(5, 3 * BLOCK), (20 * BLOCK, 10)]
    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(read, file, ranges) for _ in range(4)]:
            assert future.result() == expected(ranges)
    assert http_store.num_requests == 2
    assert file.fetch(ranges) == 0


def test_a_request_that_fails_fails_for_its_thread_alone(url, use, monkeypatch):
    """The thread that has waited for it asks by itself."""
    use()
    file, asked, may_fail = RemoteFile(url), threading.Event(), threading.Event()
    read_range = stores.read_range

    def once(*arguments):
        monkeypatch.setattr(stores, "read_range", read_range)
        asked.set()
        assert may_fail.wait(10)
        raise ObjectError(url, "breaks")

    monkeypatch.setattr(stores, "read_range", once)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, file, [(0, 10)])
        assert asked.wait(10)
        second = threads.submit(read, file, [(3, 10)])
        may_fail.set()
        with pytest.raises(ObjectError, match="breaks"):
            first.result()
        assert second.result() == expected([(3, 10)])


def test_without_a_version_nothing_is_kept_on_disk(url, use, caplog):
    cache = use()
    file = RemoteFile(url, stores.Stat(len(CONTENT), ""))
    assert file.read() == CONTENT
    assert stored_bytes(cache.on_disk.folder) == 0
    assert "neither ETag nor date" in caplog.text
