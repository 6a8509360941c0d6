"""A server that was attacked answers a thousand requests as before, and its log stays small."""

import contextlib
import http.client
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.apps.serve.test_server import IN_FLIGHT, children_of, half_sent, sent

NUM_FILES = 256
NUM_CLIENTS = 100
NUM_REQUESTS = 1000


@pytest.fixture(scope="module")
def video(motion_videos):
    return sorted((motion_videos / "valid").glob("*.mp4"))[0].read_bytes()


@pytest.fixture(scope="module")
def attacked(serve):
    flags = ("--max_queue", 8, "--max_mb", 4, "--timeout_sec", 20)
    return serve(*flags, num_files=NUM_FILES)


def opened(server, text=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), 30)
    with contextlib.suppress(OSError):
        connection.sendall(text)
    return connection


def retried(ask, *given):
    """An answer; a server that is full of connections may end this one, too."""
    for _ in range(9):
        with contextlib.suppress(OSError):
            return ask(*given)
        time.sleep(1)
    return ask(*given)


def idle(server, video):
    """Sockets that send nothing, or half a head, more than the process may open."""
    return [opened(server, b"POST /predict HTTP/1.1\r\nHo" * (number % 2)) for number in range(2 * NUM_FILES)]


def slow(server, video):
    """Uploads that do not end."""
    return [half_sent(server) for _ in range(NUM_CLIENTS)]


def unread(server, video):
    """Clients that send requests and take no answer."""
    return [opened(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 40) for _ in range(NUM_CLIENTS)]


def gone(server, video):
    """Clients that leave when they have sent a video, with many windows."""
    for _ in range(NUM_CLIENTS):
        with contextlib.suppress(ConnectionError):
            sent(server, video, "predict?window_sec=0.1&stride_sec=0.05").close()
    while retried(server.metric, IN_FLIGHT) > 0:
        time.sleep(0.1)
    return []


def naming(server, video):
    """Files, hosts and numbers that lead elsewhere."""
    for text in (
        b"ffconcat version 1.0\nfile /dev/stdin\n",
        b"#EXTM3U\n#EXTINF:1,\n/dev/zero\n#EXT-X-ENDLIST\n",
    ):
        assert server.ask("predict", text)[0] == 422
    assert server.ask_json("predict", {"clip": "AAAA", "shape": [10**999, 10**999, 10**999, 3]})[0] == 400
    for query in (
        "window_sec=1e308",
        "window_sec=1&stride_sec=1e308",
        "window_sec=nan",
        "top_k=" + "9" * 999,
    ):
        assert server.ask(f"predict?{query}", video)[0] in (400, 200)
    assert server.ask("model", Host="evil.example")[0] == 403
    assert server.ask("predict", video, Origin="http://evil.example")[0] == 403
    return []


def killed(server, video):
    """The reader is killed while it is idle."""
    (reader,) = children_of(server.process)
    os.kill(reader, signal.SIGKILL)
    return []


def log_of(server):
    return "".join(server.lines)


@pytest.mark.parametrize("attack", [idle, slow, unread, gone, naming, killed])
def test_requests_are_answered_under_an_attack(attack, attacked, video):
    expected = attacked.ask("predict", video)
    readers = children_of(attacked.process)
    length = len(log_of(attacked))
    connections = attack(attacked, video)
    for _ in range(3):
        assert retried(attacked.ask, "predict", video) == expected
    assert attacked.metric('paddlevideo_fast_requests_total{status="500"}') == 0
    assert len(log_of(attacked)) - length < 1000, log_of(attacked)
    assert attack is killed or children_of(attacked.process) == readers
    for each in connections:
        each.close()


@pytest.mark.slow
def test_a_thousand_requests_after_the_attacks(attacked, video):
    expected = attacked.ask("predict", video)
    assert expected[0] == 200
    attacks = [attack(attacked, video) for attack in (idle, slow, unread, gone, naming, killed)]
    statuses, began = [], time.monotonic()

    def ask(number):
        connection = http.client.HTTPConnection("127.0.0.1", attacked.port, timeout=60)
        for _ in range(NUM_REQUESTS // 4):
            connection.request("POST", "/predict", video)
            answer = connection.getresponse()
            statuses.append((answer.status, json.loads(answer.read()) == expected[1]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert statuses == [(200, True)] * NUM_REQUESTS
    assert len(log_of(attacked)) < 3000, log_of(attacked)
    for each in sum(attacks, []):
        each.settimeout(90 - (time.monotonic() - began))
        with contextlib.suppress(ConnectionError):
            while each.recv(1 << 16):  # until the server has closed it
                pass
    assert attacked.metric(IN_FLIGHT) == 0
    assert len(os.listdir(f"/proc/{attacked.process.pid}/fd")) < 100
    assert len(children_of(attacked.process)) == 1
