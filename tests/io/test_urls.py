"""What of a URL is shown and stored, and how its paths are joined."""

import pickle

import pytest

from paddlevideo_fast.errors import ConfigError, ObjectError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.io.urls import bare_url, join, masked, secret_in, shown_url
from paddlevideo_fast.log import printable

SECRET = "hunter2"
SIGNED = [
    f"https://h/v/a.mp4?apikey={SECRET}",
    f"https://h/v/a.mp4?auth={SECRET}&x=1",
    f"https://h/v/a.mp4?hdnts=exp=1~hmac={SECRET}",
    f"https://h/v/a.mp4?X-Amz-Signatur%65={SECRET}",
    f"https://h/v/a.mp4?{SECRET}",
    f"https://h/v/a.mp4;token={SECRET}",
    f"https://h/v;{SECRET}/a.mp4",
    f"https://h/v/a.mp4#sig={SECRET}",
    f"https://h/v/a.mp4#{SECRET}?x",
    f"https://h/v/a.mp4?x=1#{SECRET}",
]
WITH_USER = [f"https://me:{SECRET}@h/v/a.mp4", f"rtsp://{SECRET}@h/v/a.mp4", f"s3://me:{SECRET}@h/v/a.mp4"]


@pytest.mark.parametrize("url", SIGNED)
def test_signatures_are_neither_shown_nor_stored(url):
    assert bare_url(url) == "https://h/v/a.mp4"
    assert shown_url(url) == "https://h/v/a.mp4?…"
    assert secret_in(url) == "a query, fragment or parameter that may be a signature or key"
    assert masked(f"in '{url}': {url}; {url}: is bad") == (
        "in 'https://h/v/a.mp4?…': https://h/v/a.mp4?…; https://h/v/a.mp4?…: is bad"
    )
    assert printable(url) == shown_url(url)


@pytest.mark.parametrize("url", WITH_USER)
def test_users_are_neither_shown_nor_stored(url):
    scheme = url.partition(":")[0]
    assert bare_url(url) == shown_url(url) == masked(url) == f"{scheme}://h/v/a.mp4"
    assert secret_in(url) == "a user name or password"


@pytest.mark.parametrize("password", ["p/hunter2", "p?hunter2", "p#hunter2"])
def test_a_password_that_is_not_encoded(password):
    url = f"https://me:{password}@h/a.mp4"
    assert "hunter2" not in shown_url(url) + bare_url(url) + masked(url)
    assert secret_in(url) == "a user name or password"


def test_what_stays():
    for url in (
        "https://h:8080/a b.mp4",
        "http://[::1]:80/a",
        "s3://bucket//a//b.mp4",
        "s3://bucket/a#1;2.mp4",
        "data/a?b#c;d.mp4",
        "note: http is not used",
    ):
        assert bare_url(url) == shown_url(url) == masked(url) == url
        assert secret_in(url) == ""
    assert secret_in("https://h/a?version=2&Download=true") == ""
    assert secret_in("https://h/a#sha256=" + 64 * "0") == ""
    assert secret_in("https://h/a#sha256=0") != ""


def test_a_url_with_blanks_in_a_text():
    assert masked("https://h/a b.mp4?sig=1&c=2: is bad; why? x=1") == "https://h/a b.mp4?…: is bad; why? x=1"


def test_errors_show_no_signature():
    url = SIGNED[0]
    errors = [
        PaddleVideoFastError(f"{url}: no"),
        ConfigError([f"a.yaml:1  KEY: {url}"]),
        VideoDecodeError(url, f"see {url}"),
        ObjectError(shown_url(url), f"see {url}"),
    ]
    for error in (*errors, *pickle.loads(pickle.dumps(errors))):
        assert SECRET not in str(error) + repr(error) + repr(vars(error))
    assert VideoDecodeError(url, "is bad").cause_in(url) == "is bad"


def test_all_slashes_are_kept():
    assert join("s3://b//a//", "c") == "s3://b//a//c"
    assert join("s3://b/x/", "y", "z.txt") == "s3://b/x/y/z.txt"
    assert (join("/a", "b"), join("/a", "s3://b/x")) == ("/a/b", "s3://b/x")
    assert join("s3://b//a", "c//d") == "s3://b//a/c//d"


def test_a_long_text_without_a_url_is_searched_in_linear_time():
    """The search for a scheme once took quadratic time: for this text, days."""
    assert masked("a" * 2_000_000) == "a" * 2_000_000
