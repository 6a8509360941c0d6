"""`data browse`: a page to correct a list, whose journal loses nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.annotations import read_video_list
from paddlevideo_fast.loader.tables import list_rows
from paddlevideo_fast.serve.edits import ConflictError, EditedList, State
from tests.support.browser import Browser


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "all.list"
    path.write_text("a b.mp4 0\nc.mp4 1\nd.mp4 2\n")
    return path


def opened(source, name="new.jsonl"):
    return EditedList(source, list(list_rows(str(source))), source.with_name(name))


def written(source, name="new.jsonl"):
    return [json.loads(line) for line in source.with_name(name).read_text().splitlines()]


def test_changes_go_to_a_new_list_and_the_old_one_stays(source):
    before = source.read_bytes()
    edited = opened(source)
    edited.change(0, 0, State([2]), "one")
    edited.change(1, 0, State([1], is_dropped=True), "one")
    edited.change(2, 0, State([2], spans=[[0.5, 1], [2, 3.25]]), "two")
    assert edited.write() == 3
    assert written(source) == [
        {"path": "a b.mp4", "label": 2},
        {"path": "d.mp4", "label": 2, "start_sec": 0.5, "end_sec": 1},
        {"path": "d.mp4", "label": 2, "start_sec": 2, "end_sec": 3.25},
    ]
    assert source.read_bytes() == before
    records = read_video_list(str(source.with_name("new.jsonl")), None, "")
    assert [record.labels for record in records] == [(2,), (2,), (2,)]


def test_an_entry_that_changed_meanwhile_is_not_overwritten(source):
    edited = opened(source)
    edited.change(0, 0, State([1]), "one")
    with pytest.raises(ConflictError, match="changed meanwhile"):
        edited.change(0, 0, State([2]), "two")
    edited.change(0, edited.version(0), State([2]), "two")
    assert edited.state(0).labels == [2]


def test_each_client_undoes_its_own_changes_in_turn(source):
    edited = opened(source)
    edited.change(0, 0, State([1]), "one")
    edited.change(1, 0, State([0]), "two")
    edited.change(0, 1, State([2]), "one")
    edited.change(2, 0, State([0]), "one")
    assert edited.undo("one").place == 2
    assert edited.undo("one").place == 0
    assert edited.state(0).labels == [1]
    assert edited.undo("one").place == 0
    assert [edited.state(place).labels for place in range(3)] == [[0], [0], [2]]
    with pytest.raises(ConflictError, match="no change of yours"):
        edited.undo("one")


def test_a_change_that_somebody_built_on_cannot_be_undone(source):
    edited = opened(source)
    edited.change(0, 0, State([1]), "one")
    edited.change(0, 1, State([2]), "two")
    with pytest.raises(ConflictError):
        edited.undo("one")
    assert edited.state(0).labels == [2]


def test_the_journal_is_continued_after_a_kill(source):
    edited = opened(source)
    edited.change(0, 0, State([1]), "one")
    edited.change(1, 0, State([1], True), "one")
    edited.undo("one")
    with edited.journal.open("a") as file:
        file.write("[4, 2, [[2], false, []], [[0")  # killed here
    again = opened(source)
    assert [change.number for change in again.changes] == [1, 2, 3]
    assert again.state(1) == State([1], False, [])
    again.change(2, 0, State([0]), "two")
    assert opened(source).state(2).labels == [0]


def test_journals_of_other_lists_and_damaged_ones_are_refused(source):
    edited = opened(source)
    edited.change(0, 0, State([1]), "one")
    edited.change(1, 0, State([1]), "one")
    lines = edited.journal.read_text().splitlines()
    edited.journal.write_text("\n".join([lines[0], "[1, 2", lines[2]]))
    with pytest.raises(PaddleVideoFastError, match=r"new.jsonl.journal:2: is damaged"):
        opened(source)
    edited.journal.write_text("\n".join(lines))
    source.write_text(source.read_text() + "e.mp4 0\n")
    with pytest.raises(PaddleVideoFastError, match="is of another list, or the list has changed"):
        opened(source)
    for name in ("new.txt", "all.list"):
        with pytest.raises(PaddleVideoFastError, match="a new list that ends in .jsonl"):
            opened(source, name)


class Served:
    """`data browse` in a process of its own."""

    def __init__(self, *words):
        command = [
            sys.executable,
            "-m",
            "paddlevideo_fast",
            "data",
            "browse",
            *map(str, words),
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url, self.token = re.search(r"(http://\S+/)\?token=(\S+)", line).groups()

    def ask(self, path, body=None, token=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-Token": self.token if token is None else token, "Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers)) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@pytest.fixture(scope="module")
def videos(tmp_path_factory, make_clip):
    """A list of real videos beside many entries whose files are not there, with a report's findings."""
    root = tmp_path_factory.mktemp("browsed")
    for number in range(3):
        make_clip(root / f"{number}.mp4", num_frames=48, size=(96, 64), fps=12)
    lines = [f"{number}.mp4 {number}\n" for number in range(3)]
    lines += [f"far away/{number:05}.mp4 {number % 3}\n" for number in range(50_000)]
    (root / "all.list").write_text("".join(lines))
    (root / "few.list").write_text("".join(lines[:3]))
    (root / "classes.txt").write_text("run\n<i>walk\nsit\n")
    for name in ("all", "few"):
        (root / f"{name}_report").mkdir()
        black = {"line": 2, "path": "1.mp4", "finding": "black", "detail": "80% of the frames", "weight": 0.8}
        wrong = {"line": 3, "path": "2.mp4", "finding": "label contradicted", "weight": 0.9}
        wrong["detail"] = "a network sees run, by 0.9"
        text = "".join(json.dumps(one) + "\n" for one in (black, wrong))
        (root / f"{name}_report/findings.jsonl").write_text(text)
    return root


@pytest.fixture
def served(videos, tmp_path):
    started = []

    def start(name, *more):
        flags = ("--data_prefix", videos, "--classes", videos / "classes.txt")
        started.append(Served(videos / f"{name}.list", *flags, "--output", tmp_path / "new.jsonl", *more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def change_of(place, seen, label, **more):
    wanted = {"place": place, "seen": seen, "labels": [label], "dropped": False, "spans": []}
    return {**wanted, "client": "c", **more}


def test_requests_are_checked(served, videos):
    server = served("few")
    assert server.ask("entries", token="")[0] == 403
    assert server.ask("", token="x")[0] == 403
    status, found = server.ask("entries")
    assert (status, found["names"], found["newest"]) == (200, ["run", "<i>walk", "sit"], 0)
    assert found["rows"][1] == ["1.mp4", [1], False, [], 0, ["black: 80% of the frames"], 0]
    assert found["rows"][2][5:] == [["label contradicted: a network sees run, by 0.9"], 0.9]
    for wanted in (
        {},
        change_of(9, 0, 0),
        change_of(-1, 0, 0),
        change_of(0, "0", 0),
        change_of(0, 0, 3),
        change_of(0, 0, "run"),
        change_of(0, 0, 0, labels=[]),
        change_of(0, 0, 0, spans=[[2, 1]]),
        change_of(0, 0, 0, spans=[["a", 1]]),
    ):
        status, answer = server.ask("change", wanted)
        assert (status, "malformed" in answer["error"]) == (422, True), wanted
    assert server.ask("change", change_of(0, 0, 2))[0] == 200
    assert server.ask("change", change_of(0, 0, 1))[0] == 409
    assert server.ask("news?since=0")[1] == {"newest": 1, "rows": [[0, [2], False, [], 1]]}
    assert server.ask("clip/0")[1][:2] == b"\xff\xd8"
    assert server.ask("clip/3")[0] == 404
    assert server.ask("video/0")[1] == (videos / "0.mp4").read_bytes()
    assert server.ask("undo", {"client": "c"})[1]["place"] == 0
    assert server.ask("undo", {"client": "c"})[0] == 409


def test_two_windows_lose_nothing(served, tmp_path):
    server = served("few")
    statuses = []

    def work(client):
        for _ in range(40):
            seen = server.ask("entries")[1]["rows"][0][4]
            statuses.append(server.ask("change", {**change_of(0, seen, 1), "client": client})[0])

    threads = [threading.Thread(target=work, args=(client,)) for client in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "new.jsonl.journal").read_text().splitlines()
    assert set(statuses) <= {200, 409}
    assert len(lines) - 1 == statuses.count(200)
    server.stop()
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 3


def press(browser, key):
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" else "")


def test_the_page_corrects_fifty_thousand_entries(served, videos, tmp_path):
    server = served("all")
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{server.url}?token={server.token}")
        browser.wait_for("document.getElementById('count').textContent == '50003 of 50003'")
        browser.wait_for("document.getElementById('length').textContent == '4 s'")
        assert browser.value("document.getElementById('clip').width") == 360
        assert browser.value("document.querySelectorAll('.row').length") < 100
        press(browser, "3")
        browser.wait_for("document.getElementById('status').textContent == 'saved'")
        assert browser.value("document.querySelector('.row.changed .class').textContent") == "sit"
        press(browser, "j")
        browser.wait_for("document.getElementById('findings').textContent == 'black: 80% of the frames'")
        press(browser, "d")
        browser.wait_for("document.querySelectorAll('.row.dropped').length == 1")
        press(browser, "z")
        browser.wait_for("document.querySelectorAll('.row.dropped').length == 0")
        press(browser, "j")
        browser.wait_for("document.getElementById('length').textContent == '4 s' && clip && chosen == 2")
        browser.value("clip.times = [0.5]; frame = 0; clip.frames = 1")
        press(browser, "[")
        browser.value("clip.times = [2.25]")
        press(browser, "]")
        browser.wait_for("document.getElementById('spans').textContent == '0.5 – 2.25 s'")
        browser.value("(at('finding').value = 'black', at('finding').oninput())")
        assert browser.value("document.getElementById('count').textContent") == "1 of 50003"
        browser.value("(at('finding').value = '', at('search').value = '49999', at('search').oninput())")
        assert browser.value("document.getElementById('count').textContent") == "1 of 50003"
        browser.value("(at('search').value = 'sees run', at('search').oninput())")
        assert browser.value("shown.join()") == "2"
        browser.value("(at('search').value = '', at('order').value = 'margin', at('order').oninput())")
        assert browser.value("shown.slice(0, 3).join()") == "2,0,1"
        browser.value("(at('order').value = '', at('class').value = '1', at('class').oninput())")
        assert browser.value("document.getElementById('count').textContent") == "16668 of 50003"
        browser.value("at('list').scrollTop = 1e6")
        browser.wait_for("[...document.querySelectorAll('.row')].some(row => row.dataset.place > 49900)")
        # what another window changes is seen here
        assert server.ask("change", change_of(1, 2, 0))[0] in (200, 409)
        browser.value("(at('class').value = '', at('class').oninput(), choose(3))")
        browser.wait_for("document.getElementById('status').textContent.includes('cannot be decoded')")
    server.stop()
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert len(lines) == 50_003
    assert lines[0] == {"path": "0.mp4", "label": 2}
    assert lines[2] == {"path": "2.mp4", "label": 2, "start_sec": 0.5, "end_sec": 2.25}
    assert [one for one in browser.problems if "404" not in one and "422" not in one] == []


def test_wrong_input_is_one_message(videos, tmp_path, capsys):
    words = ["data", "browse", str(videos / "few.list"), "--data_prefix", str(videos)]
    assert main([*words, "--output", str(tmp_path / "new.list")]) == 2
    assert "name a new list that ends in .jsonl" in capsys.readouterr().err
    assert main([*words[:2], str(tmp_path / "none.list")]) == 2
    assert "there is no such list" in capsys.readouterr().err
