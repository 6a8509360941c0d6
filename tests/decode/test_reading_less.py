"""What decoding leaves out; `test_exact_frames` says that the frames stay the same."""

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import av1, open_video
from paddlevideo_fast.decode.picture_decoder import PictureDecoder
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import in_sequence, with_data, write_corpus_clip
from tests.support.numbered_clips import draw, packets_of, read_number


@pytest.mark.parametrize("name", ["mjpeg.avi", "mjpeg.mov", "prores.mov", "vp8.webm", "vp8_hidden.webm"])
def test_nothing_is_decoded_for_the_index(name, tmp_path, monkeypatch):
    clip = write_corpus_clip(tmp_path, name)
    monkeypatch.setattr(PictureDecoder, "_learn_index", lambda self, *_: pytest.fail("decodes everything"))
    wanted = [len(clip.numbers) - 1, 3, 0]
    with open_video(clip.path) as reader:
        assert reader.num_frames == len(clip.numbers)
        assert [read_number(frame) for frame in reader.read(wanted)] == [clip.numbers[i] for i in wanted]


def test_a_packet_that_is_no_jpeg_is_found_by_decoding(tmp_path):
    path = write_corpus_clip(tmp_path, "mjpeg.avi").path
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(5):
        at = data.index(b"\xff\xd8\xff", at + 1)
    data[at : at + 2] = b"\x12\x34"
    path.write_bytes(data)
    with pytest.raises(VideoDecodeError, match="damaged"), open_video(path) as reader:
        reader.read(range(reader.num_frames))


@pytest.fixture(scope="module")
def av1_clip(tmp_path_factory):
    return write_corpus_clip(tmp_path_factory.mktemp("av1"), "av1_hidden.mp4").path


def test_non_reference_frames_of_av1_do_not_reach_the_decoder(av1_clip):
    decoder = PictureDecoder(VideoSource(str(av1_clip)), allow_cut=False)
    whole = {picture.pts: picture.to_ndarray() for picture in decoder.pictures()}
    wanted = {decoder.shown[index] for index in (11, 37)}
    span = (0, len(decoder._packets))
    needed = set(decoder._needed(span, wanted))
    assert wanted <= needed
    assert len(needed) < 0.9 * span[1]
    found = {picture.pts: picture.to_ndarray() for picture in decoder.pictures(wanted)}
    assert wanted <= set(found)
    assert all(np.array_equal(found[place], whole[place]) for place in found)
    decoder.close()


def test_zeroed_headers_of_av1_do_not_pass_for_non_reference_frames(av1_clip):
    decoder = PictureDecoder(VideoSource(str(av1_clip)), allow_cut=False)
    is_spare, packets = decoder._is_nonref_packet, list(decoder._packets)
    spare = [is_spare(packet) for packet in packets]
    assert 0 < sum(spare) < len(spare)
    for first in range(12):
        for packet, was_spare in zip(packets, spare):
            data = bytearray(bytes(packet))
            data[first : first + 64] = bytes(len(data[first : first + 64]))
            assert was_spare or not is_spare(bytes(data)), first
    decoder.close()


def test_an_unknown_header_of_av1_says_nothing():
    assert av1.nonref_test(None) is None
    assert av1.nonref_test(b"\x81\x00\x0c\x00") is None
    # a sequence header of a still picture: profile 0, still_picture, reduced_still_picture_header
    assert av1.nonref_test(b"\x81\x00\x0c\x00\x0a\x03\x18\x00\x00") is None


def write_still(path, bframes="2", arrange=list):
    """MPEG-4 of a picture that stands still; the packets of B-frames have fewer than 20 bytes."""
    picture = draw(5, 320, 256)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25, options={"bf": bframes, "b": "900000"})
        stream.width, stream.height, stream.pix_fmt = 320, 256, "yuv420p"
        packets = []
        for number in range(24):
            moved = np.roll(picture, 4 * number, axis=1) if number > 14 else picture
            packets += stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24"))
        for packet in arrange([*packets, *stream.encode()]):
            container.mux(packet)
    return path


def drop_a_picture(packets):
    """In place of a P picture, a header without one: type P, no second, time 3, and the bit "not coded"."""
    place = next(p for p, packet in enumerate(packets) if p > 4 and bytes(packet)[4] >> 6 == 1)
    empty = with_data(packets[place], b"\0\0\1\xb6" + (0b01_0_1_00011_1_0_01111).to_bytes(2, "big"))
    return [*packets[:place], empty, *packets[place + 1 :]]


@pytest.mark.parametrize(("bframes", "arrange"), [("2", list), ("0", drop_a_picture)])
def test_short_packets_of_mpeg4_are_looked_into(bframes, arrange, tmp_path, monkeypatch):
    path = write_still(tmp_path / "clip.avi", bframes, arrange)
    assert min(packet.size for packet in packets_of(path)) < 20
    expected = in_sequence(path)
    if arrange is list:
        monkeypatch.delattr(PictureDecoder, "_learn_index")
    with open_video(path) as reader:
        assert reader.num_frames == len(expected) == (24 if arrange is list else 23)
        for wanted in ([0, 7, 22], [13], [3, 2, 16]):
            assert np.array_equal(reader.read(wanted), np.stack([expected[index] for index in wanted]))
