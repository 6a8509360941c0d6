"""The page of a server, in a browser."""

import pytest

from tests.support.browser import Browser


def put(browser, files):
    """Chooses a file, as a user does in the dialog."""
    document = browser.ask("DOM.getDocument")["root"]["nodeId"]
    node = browser.ask("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
    browser.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])


SHOWN = "!document.getElementById('result').hidden && document.getElementById('top').rows.length"


def test_a_dropped_video_shows_its_classes_over_time(serve, motion_videos, make_clip, tmp_path):
    server = serve()
    short = sorted((motion_videos / "valid").glob("*.mp4"))[0]
    long = make_clip(tmp_path / "long <b>.mp4", num_frames=110, size=(96, 64), fps=20)
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.url)
        browser.wait_for("document.getElementById('model').textContent == 'TSM_motion, 8 classes'")
        put(browser, [short])
        assert browser.wait_for(SHOWN) == 5
        assert browser.value("document.getElementById('over-time').hidden")
        put(browser, [long])
        browser.wait_for("document.getElementById('segments').rows.length")
        assert browser.value("document.getElementById('status').textContent") == "long <b>.mp4"
        windows = browser.value("document.querySelector('.cells').querySelectorAll('button').length")
        assert windows == 6  # the last one begins at 4.5 s, so that cells of a second would be too wide
        cells = "[...document.querySelector('.cells').querySelectorAll('button')]"
        shares = browser.value(f"{cells}.map(cell => parseFloat(cell.style.width))")
        assert sum(shares) == pytest.approx(100)
        assert shares[:3] == pytest.approx([100 / 5.5] * 3, abs=1e-3)
        begin = browser.value("document.querySelector('.cells').children[2].title")
        assert "2.0 – 3.0 s" in begin
        browser.value("document.querySelector('.cells').children[2].click()")
        browser.wait_for("document.getElementById('video').currentTime == 2")
        browser.wait_for("document.querySelector('.now').style.left.startsWith('36.36')")
        # dropped, and no video
        browser.value(
            "(() => { const held = new DataTransfer(); held.items.add(new File(['no video'], 'note.txt'));"
            "document.dispatchEvent(new DragEvent('drop', {dataTransfer: held, cancelable: true})); })()"
        )
        browser.wait_for("document.getElementById('status').className == 'error'")
        text = browser.value("document.getElementById('status').textContent")
        assert text.startswith("the video cannot be decoded: not a video")
        assert browser.value("document.getElementById('result').hidden")
        server.stop()
        put(browser, [short])
        browser.wait_for("document.getElementById('status').textContent == 'The server does not answer.'")
    expected = ("status of 422", "ERR_CONNECTION_REFUSED")
    assert [one for one in browser.problems if not any(text in one for text in expected)] == []
