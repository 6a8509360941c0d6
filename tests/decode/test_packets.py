"""Which packets are decoded for a frame, against a decoder that is drawn by hand."""

import pytest

from paddlevideo_fast.decode.packets import FrameIndex

# place    0  1  2  3  4   5  6  7  8  9
# picture  I0 P4 B2 B1 B3  I8 B6 B5 B7 P9
OPEN = FrameIndex([0, 3, 2, 4, 1, 7, 6, 8, 5, 9], [0, 5], 10)
# two closed groups of three
CLOSED = FrameIndex([0, 2, 1, 3, 5, 4], [0, 3], 6)
# three groups of three; the last one's second picture is shown before its key frame
THREE = FrameIndex([0, 1, 2, 3, 4, 5, 7, 6, 8], [0, 3, 6], 9)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("index", "wanted", "expected"),
    [
        (OPEN, [0], [(0, 1)]),
        (OPEN, [2], [(0, 3)]),
        (OPEN, [5], [(5, 6)]),
        (OPEN, [9], [(5, 10)]),
        (OPEN, [6], [(0, 7)]),  # shown before its group's key frame: the group before is decoded, too
        (OPEN, [2, 6], [(0, 7)]),
        (OPEN, [2, 9], [(0, 3), (5, 10)]),
        (CLOSED, [4], [(3, 5)]),
        (CLOSED, [1, 3], [(0, 2), (3, 4)]),
        (CLOSED, [5, 0], [(0, 1), (3, 6)]),
        (CLOSED, [2, 3], [(0, 3), (3, 4)]),  # two runs: decoding starts anew with the second key frame
        (THREE, [7], [(3, 8)]),  # from one group before its own, not from the beginning
    ],
)
def test_spans(index, wanted, expected):
    assert index.spans(wanted) == expected
