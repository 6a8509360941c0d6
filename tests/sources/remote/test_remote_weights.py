"""Weights at a URL are fetched once for each version, and their checksum is compared."""

import hashlib
import multiprocessing
import os
import tarfile
from pathlib import Path

import paddle
import pytest

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import load_weights, weights
from paddlevideo_fast.modeling.weights import fetch_weights
from tests.modeling.test_weights import arrays, randomised, same
from tests.support.fresh_stores import start_anew


@pytest.fixture
def published(http_store, make_model, tmp_path, monkeypatch):
    """Two networks, and the URLs of their weights, which have one name in two folders."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start_anew(monkeypatch, (2.0, 3, 1.0, 0.01))
    models, root = [make_model(), randomised(make_model())], tmp_path / "published"
    for number, model in enumerate(models):
        (root / str(number)).mkdir(parents=True)
        paddle.save(model.state_dict(), str(root / str(number) / "best.pdparams"))
    url = http_store.publish(root)
    return models, [f"{url}{number}/best.pdparams" for number in range(2)], root


def test_urls_with_one_base_name_are_two_files(http_store, published, make_model, tmp_path):
    models, urls, root = published
    http_store.fault("cut", times=2)
    paths = [fetch_weights(url) for url in urls]
    assert [os.path.basename(path) for path in paths] == ["best.pdparams"] * 2
    for model, url in zip(models, urls):
        other = make_model()
        load_weights(other, url, strict=True)
        assert same(arrays(other), arrays(model))
    http_store.reset()
    assert [fetch_weights(url) for url in urls] == paths
    assert {request["range"] for request in http_store.requests} == {"bytes=0-0"}
    (root / "0" / "best.pdparams").write_bytes((root / "1" / "best.pdparams").read_bytes())
    assert fetch_weights(urls[0]) != paths[0]
    names = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert names == {"best.pdparams"}


def test_processes_download_one_file_at_once(http_store, published):
    _, urls, root = published
    http_store.delay_sec = 0.1
    with multiprocessing.get_context("fork").Pool(3) as pool:
        paths = pool.map(fetch_weights, [urls[0]] * 3, chunksize=1)
    assert len(set(paths)) == 1
    assert Path(paths[0]).read_bytes() == (root / "0" / "best.pdparams").read_bytes()


def test_the_checksum_of_a_url(published, make_model, monkeypatch):
    _, urls, root = published
    digest = hashlib.sha256((root / "0" / "best.pdparams").read_bytes()).hexdigest()
    path = fetch_weights(f"{urls[0]}#sha256={digest.upper()}")
    assert path == fetch_weights(urls[0])
    with pytest.raises(WeightError, match=rf"1/best\.pdparams: its SHA-256 is \w{{64}}, and not {digest}"):
        load_weights(make_model(), f"{urls[1]}#sha256={digest}")
    # two processes find the same wrong file, and one has removed it
    monkeypatch.setattr(weights, "fingerprint", lambda path: path.unlink() or {"sha256": "0"})
    with pytest.raises(WeightError, match="its SHA-256 is 0, and not"):
        fetch_weights(f"{urls[1]}#sha256={digest}")


def test_an_archive_is_not_unpacked(published, make_model, tmp_path):
    _, urls, root = published
    with tarfile.open(root / "all.tar", "w") as archive:
        archive.add(root / "0", "0")
    with pytest.raises(WeightError, match="all.tar: is not a Paddle weight file"):
        load_weights(make_model(), f"{urls[0].rpartition('0/')[0]}all.tar")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["all.tar"]


def test_a_download_that_fails_names_url_and_cause(http_store, published, make_model):
    _, urls, _ = published
    with pytest.raises(WeightError, match=r"0/gone: there is no such file; check the path"):
        load_weights(make_model(), urls[0].replace("best.pdparams", "gone"))
    http_store.fault("close")
    with pytest.raises(
        WeightError, match=r"0/best\.pdparams: cannot be fetched: .* the store is away: .*by hand"
    ):
        load_weights(make_model(), urls[0])
