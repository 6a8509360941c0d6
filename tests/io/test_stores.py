"""The stores that tests of remote data read from do what a test asks of them."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.stores import FAULTS, Store

CONTENT = bytes(range(256)) * 16


@pytest.fixture
def http_url(http_store: Store, tmp_path: Path) -> str:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x.bin").write_bytes(CONTENT)
    return http_store.publish(tmp_path) + "a%20b/x.bin"


def _get(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers={"Range": "bytes=16-31", **headers})
    with urllib.request.urlopen(request, timeout=0.5) as answer:
        return answer.status, answer.read(), answer.headers


def test_ranges_delay_and_counters(http_store: Store, http_url: str) -> None:
    status, body, headers = _get(http_url)
    assert (status, body, headers["Content-Range"]) == (206, CONTENT[16:32], "bytes 16-31/4096")
    assert _get(http_url, Range="bytes=-5")[1] == CONTENT[-5:]
    http_store.delay_sec = 0.1
    before = time.monotonic()
    assert _get(http_url, Range="bytes=4090-9999")[1] == CONTENT[4090:]
    assert time.monotonic() - before >= 0.1
    assert (http_store.num_requests, http_store.num_bytes) == (3, 16 + 5 + 6)
    assert http_store.requests[0]["path"].endswith("/a b/x.bin")
    http_store.reset()
    assert (http_store.num_requests, http_store.delay_sec) == (0, 0)


def _outcome(http_url: str) -> Any:
    try:
        status, body, headers = _get(http_url)
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Retry-After"]
    except urllib.error.URLError as error:
        return type(error.reason).__name__
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    return status, body


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_hits_the_requests_that_it_names(http_store: Store, http_url: str, name: str) -> None:
    here = CONTENT[16:32]
    expected = {
        "timeout": socket.timeout.__name__,  # TimeoutError since Python 3.10
        "close": "RemoteDisconnected",
        "reset": "ConnectionResetError",
        "cut": "IncompleteRead",
        "short": (206, here[:8]),
        "long": (206, here + bytes(1000)),
        "throttled": (503, "1"),
        "error": (500, None),
        "denied": (403, None),
        "unauthorised": (401, None),
        "gone": (404, None),
        "changed": (206, bytes(255 - value for value in here)),
        "understated": (206, CONTENT[16:31]),
        "unranged": (200, CONTENT),
        "flipped": (206, here[:8] + bytes([here[8] ^ 255]) + here[9:]),
        "redirect": "ConnectionRefusedError",
        "drip": (206, here),
    }
    http_store.fault(name, "*x.bin", times=1, after=1, method="GET")
    outcomes = [_outcome(http_url) for _ in range(3)]
    assert outcomes == [(206, here), expected[name], (206, here)]
    assert [request["fault"] for request in http_store.requests] == ["", name, ""]


def test_faults_take_turns_at_every_third_request(http_store: Store, http_url: str) -> None:
    http_store.fault(("error", "gone"), "*x.bin", after=1, every=3)
    for _ in range(8):
        _outcome(http_url)
    assert [request["fault"] for request in http_store.requests] == [
        *("", "error", "", "", "gone", "", "", "error")
    ]


def test_a_changed_object_has_another_version(http_store: Store, http_url: str) -> None:
    etag = _get(http_url)[2]["ETag"]
    assert _get(http_url, **{"If-Match": etag})[0] == 206
    http_store.fault("changed")
    assert _get(http_url)[2]["ETag"] != etag
    with pytest.raises(urllib.error.HTTPError) as caught:
        _get(http_url, **{"If-Match": etag})
    assert caught.value.code == 412


def test_s3_through_its_own_driver(s3_store: Store, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    url = s3_store.publish(tmp_path) + "x.bin"
    files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    assert files.cat_file(path, start=16, end=32) == CONTENT[16:32]
    assert s3_store.num_bytes == 16
    s3_store.fault("denied", "*x.bin", times=1, method="GET")
    with pytest.raises(PermissionError):
        files.cat_file(path, start=0, end=1)
    files.pipe_file(path + "2", CONTENT)
    assert s3_store.get(url + "2") == CONTENT
    assert s3_store.names(url) == ["", "2"]
    with pytest.raises(KeyError):
        s3_store.get(url + "3")
