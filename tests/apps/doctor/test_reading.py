"""The reader alone is timed stage by stage, and clips are tried in the other forms that suit them."""

import numpy as np
import pytest

from paddlevideo_fast.apps.doctor import reading
from paddlevideo_fast.apps.doctor.reading import other_forms, share_of_cost, time_reading
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.loader import ClipRequest
from tests.loader.building import dataset_of
from tests.support.tracked_people import write_people


@pytest.fixture
def dataset(config):
    """`dataset(…)`: the training set of a config with these values."""

    def make(**values):
        spec = RunSpec.for_training(load_config(str(config(**values))))
        return training_setup(plan_run(spec)).split.dataset

    return make


def test_reading_alone_finds_every_stage(dataset):
    clips = dataset(transforms="{RandomCrop: {target_size: 28}}, {ColorJitter: {hue: 0.5, p: 1.0}}")
    opened = clips.open
    cost = time_reading(clips, [[ClipRequest(index, epoch=0)] for index in range(12)])
    assert cost.clip_shape == (4, 28, 28, 3)
    assert set(cost.augment_steps) == {"ColorJitter"}
    assert min(cost.stages.values()) > 0
    assert cost.stages["augment"] == pytest.approx(cost.augment_steps["ColorJitter"])
    assert cost.total_sec == pytest.approx(sum(cost.stages.values()))
    assert clips.open == opened
    assert "load" not in vars(clips)


def test_videos_are_tried_prepared_and_packed(dataset, tmp_path):
    clips = dataset()
    few = reading._few_clips(clips)
    forms = other_forms(clips, 4)
    several, *forms = forms
    assert several.name == "4 clips from one decode"
    assert [form.name for form in forms] == ["prepared videos", "packed frames"]
    for form in forms:
        folder = tmp_path / form.name
        folder.mkdir()
        other = form.convert(few, folder)
        assert [record.label for record in other.records] == [record.label for record in few.records]
        for number in range(len(few)):
            request = ClipRequest(number, epoch=0)
            difference = np.abs(other[request].clip.astype(int) - few[request].clip)
            assert difference.mean() < 10  # the same frames, compressed once more
        assert share_of_cost(clips, form) > 0


def test_clips_along_a_box_are_tried_as_whole_pictures_which_are_smaller(tmp_path):
    write_people(tmp_path / "a.mp4", size=(640, 400), length=12)
    (tmp_path / "x.jsonl").write_text('{"path": "a.mp4", "label": 0, "box": [500, 300, 630, 390]}')
    scale = [{"Scale": {"short_size": 40}}, {"CenterCrop": {"target_size": 40}}]
    clips = dataset_of(tmp_path / "x.jsonl", transform=scale, training=True, data_prefix=str(tmp_path))
    assert clips[ClipRequest(0, 0)].clip is not None
    prepared = reading._prepared(reading._few_clips(clips), tmp_path / "prepared")
    assert prepared[ClipRequest(0, 0)].clip is not None


def test_folders_of_frames_are_tried_packed(dataset, rawframes_dataset):
    clips = dataset(
        data=rawframes_dataset.root,
        list=rawframes_dataset.list_file,
        format="FrameDataset",
        decoder="FrameDecoder",
    )
    (packed,) = other_forms(clips, 4)
    assert packed.name == "packed frames"
    assert share_of_cost(clips, packed) > 0


def test_another_decoder_is_tried_where_it_is_not_ours(dataset):
    clips = dataset(decoder="VideoDecoder, backend: cv2")
    form = other_forms(clips, 4)[0]
    assert form.name == "another decoder"
    assert share_of_cost(clips, form) > 0
    assert clips.decoder.backend == "cv2"


def test_clips_too_long_to_convert_are_an_error(dataset, monkeypatch):
    clips = dataset()
    monkeypatch.setattr(reading, "_MAX_PIXELS", 1)
    for form in other_forms(clips, 4):
        with pytest.raises(reading.TrialError, match="too long"):
            share_of_cost(clips, form)


def test_clips_that_cannot_be_converted_are_an_error(dataset, monkeypatch):
    clips = dataset()
    form = reading.Form("lost", "", lambda few, folder: reading._changed(few, records=few.records[1:]))
    with pytest.raises(reading.TrialError, match="1 of 3 clips could not be converted"):
        share_of_cost(clips, form)


def test_several_clips_from_one_decode_are_tried(dataset):
    """As many as batches hold; a config that asks for so many already is told nothing of it."""
    clips = dataset()
    names = [other_forms(clips, size)[0].name for size in (8, 6, 5)]
    assert names == ["4 clips from one decode", "2 clips from one decode", "prepared videos"]
    form = other_forms(clips, 8)[0]
    assert form.how.startswith("-o DATASET.train.clips_per_video=4; ")
    other = form.convert(clips, None)
    assert (other.clips_per_video, clips.clips_per_video) == (4, 1)
    assert other_forms(other, 8)[0].name == "prepared videos"
    opened, open_record = [], clips.open
    clips.open = lambda record: opened.append(record) or open_record(record)
    other.open = clips.open
    videos = [[ClipRequest(index, 0, clip, 4) for clip in range(4)] for index in range(5)]
    cost = time_reading(other, videos)
    assert len(opened) == 1 + 5  # the first one warms up
    assert cost.clip_shape == (4, 28, 28, 3)
    assert share_of_cost(clips, form) > 0
