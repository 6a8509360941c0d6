"""Timelines, read back from the picture."""

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from paddlevideo_fast.extensions.report.drawings import draw_timeline, lettering, shown_classes


def scores_of(best, num_classes, score=0.9):
    scores = np.full((len(best), num_classes), (1 - score) / (num_classes - 1), np.float32)
    scores[np.arange(len(best)), best] = score
    return scores


@pytest.fixture
def drawn(monkeypatch):
    """Of the figures that are saved while a test runs: legend, label and ticks of the time axis."""
    seen = []
    save = Figure.savefig

    def noted(self, *args, **options):
        save(self, *args, **options)
        legend = [text.get_text() for text in self.axes[0].get_legend().get_texts()]
        ticks = [tick.get_text() for tick in self.axes[1].get_xticklabels()]
        seen.append((legend, self.axes[1].get_xlabel(), ticks))

    monkeypatch.setattr(Figure, "savefig", noted)
    return seen


def test_the_strip_has_the_color_of_the_best_class(tmp_path, drawn):
    path = tmp_path / "new" / "t.png"
    edges = [0, 10, 20, 30, 60, 80]
    letters = lettering(["left", "right $x$", "_up", "down"])
    draw_timeline(path, edges, scores_of([0, 0, 1, 2, 0], 4), letters)
    ((legend, axis, ticks),) = drawn
    assert (legend, axis) == (["left", " _up", r"right \$x\$"], "time (s)")
    assert {"0", "20", "80"} <= set(ticks)
    pixels = np.asarray(Image.open(path).convert("RGB"))
    assert pixels.shape[0] < pixels.shape[1]
    row = pixels[int(pixels.shape[0] * 0.85)]  # through the strip
    colors = [np.round(np.multiply(matplotlib.colors.to_rgb(f"C{number}"), 255)) for number in range(3)]
    counts = [(np.abs(row - color) <= 1).all(axis=1).sum() for color in colors]
    total = sum(counts)
    assert total > 0.7 * len(row)
    for count, length_sec in zip(counts, (40, 30, 10)):  # left, _up, right
        assert count / total == pytest.approx(length_sec / 80, abs=0.02)
    first = [int(np.flatnonzero((np.abs(row - color) <= 1).all(axis=1))[0]) for color in colors]
    assert first[0] < first[2] < first[1]


def test_of_many_classes_only_those_that_matter_are_shown(tmp_path, drawn):
    rng = np.random.default_rng(0)
    best = np.repeat(np.arange(30), np.arange(1, 31))  # class 29 the longest
    edges = np.arange(len(best) + 1) * 10.0
    scores = scores_of(best, 400)
    order = rng.permutation(400)
    assert len(best) == 465
    names = [f"class of a rather long name, number {number}" for number in range(400)]
    draw_timeline(tmp_path / "t.png", edges, scores[:, order], lettering(names))
    ((legend, axis, ticks),) = drawn
    places = np.argsort(order)
    assert shown_classes(edges, scores[:, order]) == places[29:21:-1].tolist()
    assert len(legend) == 9
    assert legend[-1] == "others (below)"
    assert max(map(len, legend)) == 28
    assert axis == "time (h:min:s)"
    assert "1:00:00" in ticks


def test_many_windows_are_averaged(tmp_path, monkeypatch):
    seen = []
    stairs = Axes.stairs

    def noted(self, values, edges, **options):
        seen.append((np.asarray(values), np.asarray(edges), self))
        return stairs(self, values, edges, **options)

    monkeypatch.setattr(Axes, "stairs", noted)
    scores = scores_of(np.arange(1001) % 2, 2)  # averaged by three
    draw_timeline(tmp_path / "t.png", np.arange(1002) * 2.0, scores, lettering(["a", "b"]))
    values, edges, axes = seen[0]
    assert axes.get_ylabel() == "probability (mean of 3 windows)"
    assert values.shape == (334,)
    assert edges.tolist() == [*range(0, 2003 - 4, 6), 2002]
    assert np.allclose(values[:2], [(0.9 + 0.1 + 0.9) / 3, (0.1 + 0.9 + 0.1) / 3])
    assert np.allclose(values[-1], (0.1 + 0.9) / 2)


def test_few_best_classes_are_joined_by_the_next_ones():
    scores = np.array([[0.7, 0.1, 0.2], [0.7, 0.1, 0.2]])
    assert shown_classes(np.array([0.0, 1.0, 2.0]), scores) == [0, 2, 1]
    assert shown_classes(np.array([0.0, 1.0]), np.array([[0.2, 0.8]])) == [1, 0]


def test_one_window_and_wrong_paths(tmp_path, drawn):
    letters = lettering(["a", "b"])
    draw_timeline(tmp_path / "t.png", [0, 0.04], scores_of([1], 2), letters)
    draw_timeline(tmp_path / "t.png", [0, 200.0], scores_of([1], 2), letters)
    assert drawn[1][1] == "time (min:s)"
    assert "3:20" in drawn[1][2]
