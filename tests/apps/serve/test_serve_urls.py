"""A server that reads URLs reads public ones, whatever a name, a redirect or a spelling says."""

import asyncio
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paddlevideo_fast.apps.serve.errors import RequestError
from paddlevideo_fast.apps.serve.fetching import fetch, is_public


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::7f00:1", False),
        ("::127.0.0.1", False),
        ("fec0::1", False),
        ("2002:7f00:1::", False),
        ("2002:808:808::", True),
    ],
)
def test_addresses(address, public):
    assert is_public(address) is public


class _Answers(BaseHTTPRequestHandler):
    num_asked = 0

    def do_GET(self):
        type(self).num_asked += 1
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/missing":
            self.send_error(404)
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(bytes(1 << 16))
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"video")

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(url, allow_local=False):
    file = io.BytesIO()
    asyncio.run(fetch(url, file, 1 << 20, allow_local))
    return file.getvalue()


def refused(url, allow_local=False):
    with pytest.raises(RequestError) as caught:
        fetched(url, allow_local)
    return caught.value.status, str(caught.value)


def test_local_addresses_are_refused_in_every_spelling(site):
    port = site.rpartition(":")[2]
    numbers = ("127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
    digits = [
        str.maketrans("0123456789", each) for each in ("０１２３４５６７８９", "⓪①②③④⑤⑥⑦⑧⑨", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗")
    ]
    written = ["127.0.0.1".translate(each) for each in digits] + [
        "127。0。0。1",
        "１２７．0｡0.1",
        "ｌocalhost",
    ]
    for host in ("127.0.0.1", "localhost", "LOCALHOST", *numbers, *written):
        status, text = refused(f"http://{host}:{port}/a.mp4")
        assert (status, "local network" in text) == (403, True), (host, text)
        assert refused(f"http://u:p@{host}:{port}/a.mp4")[0] == 403
    assert refused(f"http://127.0.0.1.:{port}/a.mp4")[0] in (403, 422)  # as aiohttp takes it
    assert _Answers.num_asked == 0


def test_a_name_that_leads_here_is_refused_where_it_is_connected_to(site, monkeypatch):
    import socket

    port = int(site.rpartition(":")[2])

    def getaddrinfo(host, *args, **keys):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert refused(f"http://videos.example.org:{port}/a.mp4")[0] == 403
    assert fetched(f"http://videos.example.org:{port}/a.mp4", allow_local=True) == b"video"


def test_a_redirect_to_a_local_address_is_refused(monkeypatch, site):
    monkeypatch.setattr("paddlevideo_fast.apps.serve.fetching.is_public", lambda host: host == "127.0.0.1")
    port = site.rpartition(":")[2]
    assert fetched(f"{site}/to//a.mp4") == b"video"
    for host in ("127.0.0.2", "127.3", "0x7f000003"):
        assert refused(f"{site}/to/http://{host}:{port}/a.mp4")[0] == 403, host


def test_redirects_are_followed_a_few_times_and_checked_each_time(site):
    assert fetched(f"{site}/to//a.mp4", allow_local=True) == b"video"
    assert refused(f"{site}/to/file:///etc/passwd", allow_local=True)[0] == 400
    turns = f"{site}/to/" * 4 + f"{site}/a.mp4"
    assert refused(turns, allow_local=True) == (422, "the URL leads on more than 3 times")


def test_other_urls_get_one_clear_answer(site):
    assert refused(f"{site}/missing", allow_local=True) == (422, "the URL answers with status 404")
    assert refused(f"{site}/endless", allow_local=True)[0] == 413
    for url in ("ftp://example.org/a", "file:///etc/passwd", "nothing", "http://", "http://[::1"):
        assert refused(url) == (400, "url: expected http://… or https://…")
    assert refused("http://127.0.0.1:1/a.mp4", allow_local=True) == (422, "the URL cannot be read")
    for url in (
        "http://a\0b/c",
        "http://\ud800/",
        "http://a b/",
        "http://" + "a" * 300,
        "http://8.8.8.8:99999/",
    ):
        assert refused(url)[0] in (400, 422), url
