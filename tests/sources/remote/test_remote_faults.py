"""Each way in which a server lies or fails has the outcome that the docs tell, for videos by URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import AnnotationError, PaddleVideoFastError, StoreAccessError, StoreAwayError
from paddlevideo_fast.loader import ClipRequest
from tests.loader.building import dataset_of
from tests.support.fresh_stores import start_anew
from tests.support.stores import FAULTS, Store

CROP = [{"CenterCrop": {"target_size": 32}}]
# what is told of a file whose every answer is so, while the store has others; None: it is read all the same
FOR_GOOD: dict[str, Any] = {
    "timeout": "no answer within 1 s; tried 3 times",
    "close": "the connection fails (ServerDisconnectedError); tried 3 times",
    "reset": "the connection fails",
    "cut": "the connection fails (ClientPayloadError); tried 3 times",
    "short": "tried 3 times",
    "understated": "tried 3 times",
    "long": "tried 3 times",
    "throttled": "the store answers 503; tried 3 times",
    "error": "the store answers 500; tried 3 times",
    "denied": StoreAccessError,
    "unauthorised": StoreAccessError,
    "gone": "there is no such object",
    "changed": "was changed while it was in use; start again with what is there now",
    "unranged": None,
    "flipped": "",  # the decoder notices, or not: nothing in a video tells
    "redirect": "the connection fails (ClientConnectorError); tried 3 times",
    "drip": "no answer within 1 s; tried 3 times",
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    start_anew(monkeypatch, (1, 3, 3.0, 0.01))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_clip: Any) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for name in ("a.mp4", "b.mp4"):
        make_clip(root / name, 12)
    (root / "set.list").write_text("a.mp4 0\nb.mp4 1\n")
    return root


def _dataset(url: str) -> Any:
    return dataset_of(f"{url}set.list", transform=CROP, data_prefix=url)


def _sample(dataset: Any, index: int) -> Any:
    return dataset[ClipRequest(index, 0, 3)]


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name not in ("denied", "unauthorised", "gone", "changed", "flipped")]
)
def test_what_passes_is_not_noticed(http_store: Store, folder: Path, fault: str) -> None:
    dataset, local = _dataset(http_store.publish(folder)), _dataset(f"{folder}/")
    http_store.fault(fault, "*a.mp4", times=2)
    sample = _sample(dataset, 0)
    assert not sample.incidents
    assert np.array_equal(sample.clip, _sample(local, 0).clip)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_stays_is_an_incident_of_the_file(http_store: Store, folder: Path, fault: str) -> None:
    url = http_store.publish(folder)
    dataset = _dataset(url)
    _sample(dataset, 1)  # the store lives
    if fault == "changed":
        http_store.fault(fault, "*a.mp4", after=1)  # between the first answer and the next
    else:
        http_store.fault(fault, "*a.mp4")
    expected = FOR_GOOD[fault]
    if isinstance(expected, type):
        with pytest.raises(expected, match=r"a\.mp4: the store answers 40[13]: check the credentials"):
            _sample(dataset, 0)
        assert sum(request["fault"] == fault for request in http_store.requests) == 1
        return
    sample = _sample(dataset, 0)
    if expected is None:
        assert not sample.incidents
        assert np.array_equal(sample.clip, _sample(_dataset(f"{folder}/"), 0).clip)
    elif expected:
        (incident,) = sample.incidents
        assert incident.path == f"{url}a.mp4"
        assert expected in incident.cause, incident.cause
    assert not _sample(dataset, 1).incidents


def test_a_store_that_is_away_ends_the_run(http_store: Store, folder: Path) -> None:
    dataset = _dataset(http_store.publish(folder))
    http_store.fault("close")
    with pytest.raises(StoreAwayError, match="the store has been away|the store is away"):
        _sample(dataset, 0)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s4://bucket/set.list", "fsspec has no driver for s4://"),
        ("gdrive://bucket/set.list", "driver"),
        ("s3://no-such-bucket/set.list", "there is no such list"),
        ("{store}set.lits", "there is no such list"),
        ("http://user:secret-word@127.0.0.1:1/set.list", "user name and password is not taken"),
    ],
)
def test_wrong_urls_are_told_in_one_sentence(s3_store: Store, folder: Path, url: str, told: str) -> None:
    place = url.format(store=s3_store.publish(folder))
    with pytest.raises(PaddleVideoFastError, match=told) as caught:
        dataset_of(place)
    assert "\n" not in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_a_data_prefix_with_nothing_in_it(s3_store: Store, folder: Path) -> None:
    url = s3_store.publish(folder)
    with pytest.raises(AnnotationError, match=f"none of its 2 files is below data_prefix '{url}nowhere'"):
        dataset_of(f"{url}set.list", data_prefix=f"{url}nowhere")


def test_no_signature_is_repeated(http_store: Store, folder: Path, tmp_path: Path) -> None:
    url = http_store.publish(folder)
    listed = tmp_path / "signed.list"
    listed.write_text(f"{url}a.mp4?X-Amz-Signature=secret-word 0\n{url}gone.mp4?token=secret-word 1\n")
    dataset = dataset_of(listed, transform=CROP)
    assert not _sample(dataset, 0).incidents
    (incident,) = _sample(dataset, 1).incidents
    assert (incident.path, "secret-word" in str(incident)) == (f"{url}gone.mp4?…", False)
    with open_video(f"{url}a.mp4?token=secret-word") as reader:
        assert "secret-word" not in reader.path
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
