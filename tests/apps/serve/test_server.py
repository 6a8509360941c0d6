"""The server answers as `predict` does, and refuses in one clear answer what it cannot use."""

import base64
import contextlib
import gzip
import http.client
import json
import os
import random
import select
import signal
import socket
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from paddlevideo_fast.apps.predict.predictor import Predictor, Windowing, entry_of
from paddlevideo_fast.apps.serve.reading import (
    Readers,
    ReadingSettings,
    SlowError,
    UnusableError,
    VideoLimits,
)
from paddlevideo_fast.cli.commands import COMMANDS

IN_FLIGHT = "paddlevideo_fast_requests_in_flight"


@pytest.fixture(scope="module")
def video(motion_videos):
    return sorted((motion_videos / "valid").glob("*.mp4"))[0]


@pytest.fixture(scope="module")
def predictor(program):
    return Predictor(program)


def without_path(entry):
    return json.loads(json.dumps({name: value for name, value in entry.items() if name != "path"}))


def form_of(data, name="file", filename="../../etc/passwd"):
    """Body and content type of a form with one file."""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'
    return head.encode() + data + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"


def test_each_way_to_send_a_video_gives_the_prediction_of_predict(server, predictor, video):
    data = video.read_bytes()
    (found,) = predictor.predict([video])
    expected = {**without_path(entry_of(found, 3)), "num_clips": 1}
    form, kind = form_of(data)
    answers = [
        server.ask("predict?top_k=3", data),
        server.ask("predict?top_k=3", data, Content_Type="video/mp4"),
        server.ask("predict?top_k=3", form, Content_Type=kind),
        server.ask_json("predict?top_k=3", {"video": base64.b64encode(data).decode()}),
    ]
    for status, answer in answers:
        assert (status, answer["num_clips"]) == (200, 1)
        assert [each["name"] for each in answer["top"]] == [each["name"] for each in expected["top"]]
        scores = [each["score"] for each in answer["top"]]
        assert scores == pytest.approx([each["score"] for each in expected["top"]], abs=1e-5)


def test_pixels_are_predicted_as_they_are(server, predictor, video):
    clips = predictor.clips_of(video)
    (found,) = predictor.predict([video])
    for shape in (clips.shape, clips.shape[1:]):
        content = {"clip": base64.b64encode(clips.tobytes()).decode(), "shape": list(shape)}
        status, answer = server.ask_json("predict?top_k=1", content)
        assert status == 200
        assert answer["top"][0]["score"] == pytest.approx(found.top(1)[0].score, abs=1e-5)


def test_windows_and_segments_are_those_of_predict(server, predictor, video):
    (found,) = predictor.predict_windows([video], Windowing(0.2, 0.1))
    expected = without_path(entry_of(found, 1))
    status, answer = server.ask("predict?window_sec=0.2&stride_sec=0.1&top_k=1", video.read_bytes())
    assert (status, answer["num_clips"]) == (200, len(expected["windows"]))
    assert len(answer["windows"]) > 2
    for name in ("windows", "segments"):
        for ours, theirs in zip(answer[name], expected[name], strict=True):
            assert ours["start_sec"] == theirs["start_sec"]
            assert ours["end_sec"] == theirs["end_sec"]


def refusals():
    """(path, body, content type, status, what the answer says)."""
    some = base64.b64encode(bytes(12)).decode()
    as_json = "application/json"
    yield "predict", b"", "", 400, "holds no video"
    yield "predict", b"no video", "", 422, "the video cannot be decoded: not a video"
    curl = "application/x-www-form-urlencoded"
    yield (
        "predict",
        b"no video",
        curl,
        422,
        "; if curl -d sent it, which changes files, type  curl --",
    )
    yield "predict", b"", curl, 400, "  curl --data-binary @video.mp4 http://127.0.0.1:"
    yield "predict", bytes(3 << 20), "", 413, "larger than the 2 MiB"
    yield "predict", gzip.compress(bytes(1 << 20), mtime=0), "", 422, "cannot be decoded"
    yield "predict?top_k=0", b"x", "", 400, "top_k"
    yield "predict?windowsec=2", b"x", "", 400, "windowsec: unknown; known: top_k, window_sec, stride_sec"
    yield "predict?window_sec=-1", b"x", "", 400, "window_sec"
    yield "predict?window_sec=inf", b"x", "", 400, "window_sec"
    yield "predict?window_sec=1e308", b"x", "", 400, "window_sec"
    yield "predict?window_sec=2&stride_sec=1e308", b"x", "", 400, "stride_sec"
    yield "predict?top_k=" + "9" * 5000, b"x", "", 400, "top_k"
    yield "predict?stride_sec=1", b"x", "", 400, "needs window_sec"
    yield "predict", b"{", as_json, 400, "no JSON"
    yield "predict", b"[" * 100_000, as_json, 400, "no JSON"
    yield "predict", b"[]", as_json, 400, "one of video, clip"
    yield "predict", b'{"video": "", "clip": ""}', as_json, 400, "one of video, clip"
    yield "predict", b'{"url": "http://example.org/a.mp4"}', as_json, 400, "one of video, clip"
    yield "predict", b'{"video": "%"}', as_json, 400, "video: expected base64"
    yield "predict", b'{"video": 3}', as_json, 400, "video: expected base64"
    for shape in (
        "null",
        '"x"',
        "[1, 2]",
        "[1.5, 2, 2, 3]",
        "[-1, -2, 2, 3]",
        "[true, 2, 2, 3]",
        f"[1, 2, 2, 1{'0' * 4000}]",
    ):
        body = f'{{"clip": "{some}", "shape": {shape}}}'
        yield "predict", body.encode(), as_json, 400, "shape: expected"
    yield "predict", f'{{"clip": "{some}", "shape": [1, 2, 3, 3]}}'.encode(), as_json, 400, "12 bytes"
    yield ("predict", f'{{"clip": "{some}", "shape": [1, 2, 2, 3]}}'.encode(), as_json, 422, "[8, 56, 56, 3]")
    body = f'{{"clip": "{some}", "shape": [1, 2, 2, 3]}}'.encode()
    yield "predict?window_sec=1", body, as_json, 400, "one window"
    yield "predict", b"--x--", "multipart/form-data; boundary=x", 400, "holds no file"
    yield "predict", b"abc", "multipart/form-data", 400, "form cannot be read"
    yield "nothing", None, "", 404, "Not Found"
    yield "predict", None, "", 405, "Method Not Allowed"


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "text"), refusals(), ids=lambda value: str(value)[:30]
)
def test_wrong_requests_get_one_clear_answer(server, path, body, kind, status, text):
    answer = server.ask(path, body, Content_Type=kind or "application/octet-stream")
    assert answer[0] == status
    assert text in answer[1]["error"]
    assert set(answer[1]) == {"error"}


def mp4_of_many_frames(video):
    """A file of a few kilobytes whose tables say that it has 200 million frames."""
    data = bytearray(video.read_bytes())
    for name, at, value in ((b"stsz", 8, 1), (b"stsz", 12, 200_000_000), (b"stsc", 16, 200_000_000)):
        place = data.index(name) + len(name)
        data[place + at - 4 : place + at] = value.to_bytes(4, "big")
    place = data.index(b"stts") + 4
    data[place + 8 : place + 12] = (200_000_000).to_bytes(4, "big")
    return bytes(data)


def test_videos_beyond_the_limits_are_refused(server, make_clip, tmp_path, video):
    large = make_clip(tmp_path / "large.mp4", num_frames=3, size=(640, 480)).read_bytes()
    many = make_clip(tmp_path / "many.mp4", num_frames=401, fps=60).read_bytes()
    long = make_clip(tmp_path / "long.mp4", num_frames=63, fps=3).read_bytes()
    windows = "predict?window_sec=0.05&stride_sec=0.04"
    for path, data, text in (
        ("predict", large, "frames of 640×480"),
        ("predict", many, "401 frames; 400 are allowed"),
        ("predict", long, "lasts 21 s; 20 s are allowed"),
        (windows, long, "lasts 21 s"),
        ("predict?window_sec=0.001", video.read_bytes(), "shorter than one of its frames"),
    ):
        status, answer = server.ask(path, data)
        assert (status, text in answer["error"]) == (422, True), answer
    status, answer = server.ask("predict", mp4_of_many_frames(video))
    assert status in (413, 422), answer
    assert server.ask("predict", video.read_bytes())[0] == 200


@pytest.fixture
def start_readers(program):
    """`start_readers(imports, memory_mb=…)`: one process that reads videos for the server."""
    recipe, started = Predictor(program).recipe, []

    def start(imports=recipe.settings.imports, **limits):
        started.append(Readers(ReadingSettings(recipe.views, imports, VideoLimits(**limits)), 1))
        return started[-1]

    yield start
    for readers in started:
        readers.close()


def read(readers, path, windowing=None, sec=60):
    """All that a reader gives of a file: the windows, and then the clips of each."""
    with path.open("rb") as file:
        return list(readers.read(file.fileno(), windowing, time.monotonic() + sec))


def test_a_video_that_needs_too_much_memory_is_refused(start_readers, make_clip, tmp_path):
    readers = start_readers(memory_mb=32)
    with pytest.raises(UnusableError, match="needs more than the 32 MiB of memory that serve --memory_mb"):
        read(readers, make_clip(tmp_path / "large.mov", 2, (4096, 2304), rotation=90))
    small = make_clip(tmp_path / "small.mp4", num_frames=10, size=(96, 64))
    assert [views.shape for views in read(readers, small)[1:]] == [(1, 8, 56, 56, 3)]


def test_reading_that_takes_too_long_ends_with_its_process(start_readers, video):
    readers = start_readers()
    before = readers._idle.queue[0]
    with pytest.raises(SlowError, match="takes too long"):
        read(readers, video, sec=-1)
    assert readers._idle.queue[0] is not before
    assert len(read(readers, video)) == 2


def test_a_reader_names_a_plug_in_that_it_cannot_import(start_readers, video, capfd):
    assert len(read(start_readers(["./gone.py"]), video)) == 2
    assert "gone.py cannot be imported" in capfd.readouterr().err


def test_damaged_files_get_one_clear_answer_each(server, video):
    rng = random.Random(3)
    statuses = set()
    for number in range(60):
        data = bytearray(video.read_bytes())
        at = rng.randrange(len(data) - 8)
        if number % 3 == 0:
            del data[at:]
        else:
            data[at : at + 4] = rng.randbytes(4)
        status, answer = server.ask("predict", bytes(data) or b"x")
        assert "top" in answer if status == 200 else set(answer) == {"error"}
        assert "/proc" not in json.dumps(answer)
        statuses.add(status)
    assert 422 in statuses <= {200, 422}
    assert server.metric(IN_FLIGHT) == 0


def half_sent(server, path="predict"):
    """A connection that has sent the beginning of a request."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc".encode())
    return connection


def children_of(process):
    pids = []
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
                    pids.append(int(pid))
    return pids


def sent(server, data, path="predict"):
    """A connection that has sent a whole request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", f"/{path}", data)
    return connection


def test_requests_beyond_the_bound_are_refused_and_gone_clients_make_room(server, video):
    (reader,) = children_of(server.process)
    data = video.read_bytes()
    os.kill(reader, signal.SIGSTOP)
    try:
        waiting = [sent(server, data) for _ in range(3)]
        server.wait_for(IN_FLIGHT, 3)
        answer = sent(server, data).getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert "3 requests are worked on" in json.loads(answer.read())["error"]
        assert server.ask("health")[0] == 200
        waiting.pop(2).close()  # one that has no reader yet
        waiting.pop(1).close()
        server.wait_for(IN_FLIGHT, 1)
    finally:
        os.kill(reader, signal.SIGCONT)
    assert waiting[0].getresponse().status == 200
    assert server.ask("predict", data)[0] == 200
    assert children_of(server.process) == [reader]


def test_slow_uploads_hold_no_place(server, video):
    waiting = [half_sent(server) for _ in range(9)]
    server.wait_for(IN_FLIGHT, 9)
    assert server.ask("predict", video.read_bytes())[0] == 200
    for each in waiting:
        each.close()
    server.wait_for(IN_FLIGHT, 0)


def test_uploads_together_have_a_bound(server):
    body = bytes(2 << 20)
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    for each in waiting:
        each.sendall(head + body[:-1])
    refused, _, _ = select.select(waiting, [], [], 15)
    answer = http.client.HTTPResponse(refused[0])
    answer.begin()
    assert (answer.status, b"other requests fill the space" in answer.read()) == (503, True)
    for each in waiting:
        each.close()
    server.wait_for(IN_FLIGHT, 0)
    assert server.ask("predict", bytes(9))[0] == 422


def test_a_killed_reader_is_replaced(server, video):
    (reader,) = children_of(server.process)
    os.kill(reader, signal.SIGKILL)
    assert server.ask("predict", video.read_bytes())[0] == 200
    (reader,) = children_of(server.process)
    os.kill(reader, signal.SIGSTOP)
    waiting = sent(server, video.read_bytes())
    server.wait_for(IN_FLIGHT, 1)
    os.kill(reader, signal.SIGKILL)
    assert waiting.getresponse().status == 200
    assert children_of(server.process) != [reader]


def test_a_reader_that_a_video_ends_is_replaced_and_a_gone_client_costs_none(start_readers, video):
    readers = start_readers()
    first = readers._idle.queue[0]
    with video.open("rb") as file:
        for _ in range(3):
            reading = readers.read(file.fileno(), Windowing(0.1), time.monotonic() + 60)
            assert next(reading).windows
            reading.close()
        assert len(read(readers, video)) == 2
        assert readers._idle.queue[0] is first
        reading = readers.read(file.fileno(), Windowing(0.1), time.monotonic() + 60)
        assert next(reading).windows
        first._process.kill()
        first._process.join()
        with pytest.raises(UnusableError, match=r"ended the process that read it \(exit code -9\)"):
            list(reading)
    assert len(read(readers, video)) == 2


def test_a_reader_that_cannot_be_started_is_started_later(start_readers, video, monkeypatch):
    readers = start_readers()
    fail = Mock(side_effect=OSError(11, "Resource temporarily unavailable"))
    monkeypatch.setattr("paddlevideo_fast.apps.serve.reading._Process", fail)
    readers._idle.queue[0]._process.kill()
    for _ in range(2):
        with pytest.raises(SlowError, match="no process to read the video can be started"):
            read(readers, video)
    monkeypatch.undo()
    assert len(read(readers, video)) == 2


def test_an_error_of_this_package_does_not_cost_the_process(start_readers, video):
    readers, windowing = start_readers(), Windowing(0.1)
    first = readers._idle.queue[0]
    object.__setattr__(windowing, "stride_sec", "x")
    with pytest.raises(UnusableError, match="makes its reader fail"):
        read(readers, video, windowing)
    assert len(read(readers, video)) == 2
    assert readers._idle.queue[0] is first


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:80", None, 200),
        ("[::1]:80", None, 200),
        ("localhost.:80", "http://localhost.:80", 200),
        ("gpu-box", None, 200),
        ("videos.example.org", "https://videos.example.org", 200),
        ("127.0.0.1:80", "https://videos.example.org", 200),
        ("evil.example:80", None, 403),
        ("127.0.0.1.evil.example", None, 403),
        ("127.0.0.1:80", "http://evil.example", 403),
        ("127.0.0.1:80", "http://127.0.0.1:81", 403),
        ("127.0.0.1:80", "null", 403),
        ("127.0.0.1:80", "http://[", 403),
    ],
)
def test_pages_of_other_sites_are_refused(host, origin, status):
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from paddlevideo_fast.apps.serve.own_site import OwnSite

    app = OwnSite(Starlette(routes=[Route("/", lambda request: PlainTextResponse())]), ["videos.example.org"])
    answer = TestClient(app).get("/", headers={"Host": host, **({"Origin": origin} if origin else {})})
    assert answer.status_code == status
    assert status == 200 or "error" in answer.json()


def test_many_clients_share_batches(serve, video):
    server = serve("--max_batch", 4, "--max_wait_ms", 100)
    statuses = []
    data = video.read_bytes()
    threads = [
        threading.Thread(target=lambda: statuses.append(server.ask("predict", data)[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 8
    assert server.metric("paddlevideo_fast_clips_total") == 8
    assert server.metric("paddlevideo_fast_batch_clips_count") < 8


def test_it_ends_when_asked_and_answers_what_it_works_on(serve, video, tmp_path):
    server = serve()
    data, statuses = video.read_bytes(), []
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data[:100])
    server.wait_for(IN_FLIGHT, 1)
    stopping = threading.Thread(target=lambda: statuses.append(server.stop()))
    stopping.start()
    time.sleep(0.5)
    connection.sendall(data[100:])
    answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    stopping.join()
    assert statuses == [-signal.SIGTERM], "".join(server.lines)
    assert children_of(server.process) == []


@pytest.mark.parametrize("moment", ["before the server", "in the server"])
def test_ctrl_c_while_it_starts_ends_it_and_interrupts_no_import(monkeypatch, capsys, moment):
    """The app and uvicorn import more at their start, and an import may lose a `KeyboardInterrupt`."""
    reached = []

    class Interrupted(uvicorn.Server):
        def run(self, sockets=None):
            if moment == "in the server":
                signal.raise_signal(signal.SIGINT)
            reached.append("server")
            super().run(sockets)

    def make_app(service, names):
        if moment == "before the server":
            signal.raise_signal(signal.SIGINT)
        reached.append("app")
        return FastAPI()

    class Described:
        def __init__(self, predictor, options):
            pass

        def description(self):
            return {"model_name": "tiny"}

    monkeypatch.setattr("paddlevideo_fast.apps.serve.command.make_predictor", lambda args: None)
    monkeypatch.setattr("paddlevideo_fast.apps.serve.service.Service", Described)
    monkeypatch.setattr("paddlevideo_fast.apps.serve.app.make_app", make_app)
    monkeypatch.setattr("uvicorn.Server", Interrupted)
    assert COMMANDS["serve"].start(["inference", "--port", "0"]) == 130
    assert reached == (["app"] if moment == "before the server" else ["app", "server"])
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_the_command_names_wrong_input(run, server, program):
    code, _, text = run("serve", program.with_suffix(""), "--port", server.port)
    assert (code, f"--port {server.port}: Address already in use" in text) == (2, True), text
    code, _, text = run("serve")
    assert (code, "MODEL" in text) == (2, True)


def test_the_description_names_classes_and_limits(server):
    status, found = server.ask("model")
    assert (status, found["num_classes"], found["clip_shape"]) == (200, 8, [8, 56, 56, 3])
    assert (found["max_mb"], found["max_sec"]) == (2, 20.0)
    paths = server.ask("openapi.json")[1]["paths"]
    assert set(paths) == {"/predict", "/health", "/model", "/metrics"}


def test_batches_hold_clips_of_one_shape_and_errors_reach_their_callers():
    from paddlevideo_fast.apps.predict.program import Program
    from paddlevideo_fast.apps.serve.batching import BatchedProgram
    from paddlevideo_fast.errors import ProgramError

    entered, may_go, sizes = threading.Event(), threading.Event(), []

    class Doubling(Program):
        def _run(self, clips):
            entered.set()
            assert may_go.wait(30)
            sizes.append(clips.shape)
            if clips.shape[1] == 3:
                raise ValueError("three")
            return 2 * clips

        def _cause(self, error):
            return str(error)

    batched = BatchedProgram(Doubling("file", "cpu"), 4, 0.0, lambda num_clips, sec: None)
    results = {}

    def call(key, clips):
        try:
            results[key] = batched.run(clips)
        except ProgramError as error:
            results[key] = str(error)

    calls = {"first": (1, 2), "a": (2, 2), "other": (1, 3), "b": (2, 2), "c": (3, 2), "large": (9, 2)}
    threads = []
    for number, (key, shape) in enumerate(calls.items()):
        threads.append(threading.Thread(target=call, args=(key, np.full(shape, number, np.float32))))
        threads[-1].start()
        assert entered.wait(30)
        while number and len(batched._waiting) < number:
            time.sleep(0.001)
    may_go.set()
    for thread in threads:
        thread.join(30)
    batched.close()
    assert sizes == [(1, 2), (4, 2), (1, 3), (3, 2), (9, 2)]
    assert "three" in results.pop("other")
    for key, found in results.items():
        number = list(calls).index(key)
        assert np.array_equal(found, np.full(calls[key], 2 * number, np.float32))
