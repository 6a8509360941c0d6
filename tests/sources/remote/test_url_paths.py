"""Paths in stores: how they are joined, what they are called and what of them is shown."""

import pickle

import pytest

from paddlevideo_fast.sources.remote.paths import UrlPath
from tests.io.test_urls import SECRET, SIGNED


@pytest.mark.parametrize("url", SIGNED)
def test_signatures_are_neither_names_nor_shown(url):
    assert UrlPath(url).name == "a.mp4"
    assert SECRET not in repr(UrlPath(url))


def test_all_slashes_are_kept():
    path = UrlPath("s3://b//a//c.tar.gz")
    assert str(path) == "s3://b//a//c.tar.gz"
    assert str(path.with_name("d")) == str(path.parent / "d") == "s3://b//a//d"
    assert str(path.with_suffix(".x")) == "s3://b//a//c.tar.x"
    assert (path.name, path.stem, path.suffix) == ("c.tar.gz", "c.tar", ".gz")
    assert path != UrlPath("s3://b/a/c.tar.gz")
    assert type(str(path)) is str
    assert pickle.loads(pickle.dumps(path)).parent == path.parent


def test_paths_below_a_url():
    path = UrlPath("https://h/v/x/a.mp4?sig=1")
    assert path.relative_to("https://h/v").as_posix() == "x/a.mp4"
    assert path.relative_to("https://h/v/").as_posix() == "x/a.mp4"
    assert UrlPath("s3://b/v").relative_to("s3://b/v/").parts == ()
    assert str(UrlPath("s3://b").parent) == "s3://b"
    for url in ("s3://b/w/a", "s3://b/v//a", "s3://b/vv"):
        with pytest.raises(ValueError, match="is not below"):
            UrlPath(url).relative_to("s3://b/v")
    assert sorted(map(UrlPath, ["s3://b/a.c", "s3://b/a/c"])) == [
        UrlPath("s3://b/a/c"),
        UrlPath("s3://b/a.c"),
    ]
