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


@pytest.mark.parametrize(
    ("index", "place", "spare", "expected"),
    [
        (OPEN, 3, True, [3]),
        (OPEN, 3, False, [3, 4, 6, 7, 8]),  # and what leads the next group
        (OPEN, 5, False, [5, 6, 7, 8, 9]),
        (CLOSED, 1, False, [1, 2]),
        (CLOSED, 0, False, [0, 1, 2]),
        (CLOSED, 5, False, [5]),
    ],
)
def test_damage_spreads_to_the_end_of_the_group_and_to_what_leads_the_next(index, place, spare, expected):
    assert list(index.undecodable(place, spare)) == expected


def test_decoding_begins_with_key_packets():
    assert [place for place in range(10) if OPEN.is_access_point(place)] == [0, 5]
    late = FrameIndex([0, 1, 2], [1], 3)  # the first packet is none: decoding begins with it all the same
    assert [place for place in range(3) if late.is_access_point(place)] == [0, 1]
    assert OPEN.one_to_one
    assert not FrameIndex([0, 2], [0], 3).one_to_one
    assert FrameIndex([0, 2, 1], [0], 3, hidden=[2]).shown == [0, 1]
