"""What every loader promises, run over each of them."""

import importlib.util
import shutil
from dataclasses import replace

import av  # before Paddle, whose bundled zlib else breaks its import on 2.6
import numpy as np
import pytest

from paddlevideo_fast.extensions.augmentation.colours import ColorJitter
from paddlevideo_fast.extensions.augmentation.transforms import RandAugment, RandomErasing
from paddlevideo_fast.extensions.dali.loader import DaliLoader
from paddlevideo_fast.loader import BadSamples, LoaderError, Pipeline, Sampler, VideoRecord
from paddlevideo_fast.loader.dataset import VideoDecoder
from paddlevideo_fast.loader.transforms.crop import UniformCrop
from tests.loader.building import dataset_of, loader_of, pack, write_tar
from tests.support.dali_codecs import clip_for_dali, no_dali

BACKENDS = ["pyav", "cv2", "frames", "packed", "tar"]
if importlib.util.find_spec("decord"):
    BACKENDS.append("decord_library")
if no_dali() is None:
    BACKENDS.append("dali")
FORMATS = {"frames": "FrameDataset", "packed": "PackedFrameDataset", "tar": "WebDataset"}
BAD_LINES = {"frames": "nowhere 12 2\n", "packed": "nowhere 12 2\n", "tar": "bad.tar\n"}
NUM_CLIPS = 7


@pytest.fixture(scope="module")
def lists(tmp_path_factory, make_clip):
    """Seven clips as videos, as frames, as packed frames and in tar shards, with their lists."""
    import cv2

    root = tmp_path_factory.mktemp("contract")
    video_lines, frame_lines, dali_lines = [], [], []
    for number in range(NUM_CLIPS):
        path = make_clip(root / f"clip {number}.mp4", 12 + number, size=(80, 60))
        video_lines.append(f"clip {number}.mp4 {number % 3}\n")
        if no_dali() is None:
            clip_for_dali(make_clip, root / f"dali {number}.mp4", 12 + number, size=(80, 60))
            dali_lines.append(f"dali {number}.mp4 {number % 3}\n")
        frame_lines.append(f"folder {number} {12 + number} {number % 3}\n")
        (root / f"folder {number}").mkdir()
        with av.open(str(path)) as container:
            for index, frame in enumerate(container.decode(video=0), start=1):
                image = cv2.cvtColor(frame.to_ndarray(format="rgb24"), cv2.COLOR_RGB2BGR)
                cv2.imwrite(str(root / f"folder {number}" / f"img_{index:05}.jpg"), image)
        write_tar(root / f"clip {number}.tar", {"a.mp4": path.read_bytes(), "a.cls": b"%d" % (number % 3)})
    write_tar(root / "bad.tar", {"nowhere.mp4": b"", "nowhere.cls": b"2"})
    (root / "tar.list").write_text("".join(f"clip {number}.tar\n" for number in range(NUM_CLIPS)))
    (root / "videos.list").write_text("".join(video_lines))
    (root / "frames.list").write_text("".join(frame_lines))
    (root / "dali.list").write_text("".join(dali_lines))
    # one more, called `nowhere`, is packed, and all of its bytes are altered
    shutil.copytree(root / "folder 0", root / "nowhere")
    pack(root / "packed", root, [*frame_lines, "nowhere 12 2"], NUM_CLIPS)
    shutil.rmtree(root / "nowhere")
    data = root / "packed" / "00001.data"
    data.write_bytes(bytes(byte ^ 255 for byte in data.read_bytes()))
    return root


def list_of(backend):
    own = {"frames": "frames.list", "packed": "frames.list", "dali": "dali.list", "tar": "tar.list"}
    return own.get(backend, "videos.list")


def make_loader(dataset, backend, batch_size, num_workers=0, **options):
    options["make"] = DaliLoader if backend == "dali" else None
    return loader_of(dataset, batch_size, num_workers, **options)


def make_dataset(lists, backend, training=True, file_path=None, keys=None, **sampler):
    decode = (
        {"name": "VideoDecoder", "backend": backend} if backend in ("pyav", "cv2", "decord_library") else None
    )
    sample = {"name": "Sampler", "num_seg": 4, "seg_len": 1, "valid_mode": not training, **sampler}
    crops = [{"MultiScaleCrop": {"target_size": 32}}, {"RandomFlip": None}]
    transform = [{"Scale": {"short_size": 40, "fixed_ratio": False}}]
    transform += crops if training else [{"CenterCrop": {"target_size": 32}}]
    transform += [{"Image2Array": None}, {"Normalization": {"mean": [0.4] * 3, "std": [0.2] * 3}}]
    keys = {
        "format": FORMATS.get(backend, "VideoDataset"),
        "data_prefix": str(lists / "packed" if backend == "packed" else lists),
        **(keys or {}),
    }
    file_path = file_path or lists / list_of(backend)
    return dataset_of(file_path, sample, transform, training, decode=decode, seed=5, **keys)


def train_loader(lists, backend, num_workers=0):
    return make_loader(make_dataset(lists, backend), backend, 2, num_workers, drop_last=True)


def same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second):
        for name in ("clips", "labels", "ids", "views"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.failures == other.failures


def augmented(lists, backend):
    """The last two batches of an epoch, of a loader whose clips all go through RandAugment and erasing."""
    dataset = make_dataset(lists, backend)
    dataset.pipeline.pixelwise = [RandAugment(p=1.0), RandomErasing(p=1.0, mode="pixel")]
    return list(make_loader(dataset, backend, 2, drop_last=True).epoch(3, start_batch=1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_augmentations_follow_from_the_key_of_a_clip(lists, backend):
    if backend == "dali":
        with pytest.raises(LoaderError, match="RandAugment cannot be done inside DALI .*: leave it out"):
            augmented(lists, backend)
        return
    first = augmented(lists, backend)
    same(first, augmented(lists, backend))
    for batch, plain in zip(first, train_loader(lists, backend).epoch(3, start_batch=1)):
        np.testing.assert_array_equal(batch.ids, plain.ids)
        assert all((one != other).any() for one, other in zip(batch.clips, plain.clips))


@pytest.mark.smoke
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_and_resume(lists, backend, num_workers):
    loader = train_loader(lists, backend, num_workers)
    batches = list(loader.epoch(3))
    assert len(batches) == len(loader) == 3
    for batch in batches:
        assert batch.clips.shape == (2, 4, 32, 32, 3)
        assert batch.clips.dtype == np.uint8
        assert batch.clips.flags.c_contiguous
        for array in (batch.labels, batch.ids, batch.views):
            assert (array.shape, array.dtype) == ((2,), np.int64)
        assert (batch.labels == batch.ids % 3).all()
        assert batch.failures == []
    same(list(loader.epoch(3, start_batch=2)), batches[2:])
    assert list(loader.epoch(3, start_batch=3)) == []


@pytest.mark.parametrize(("backend", "num_workers"), [*((backend, 0) for backend in BACKENDS), ("pyav", 2)])
def test_several_labels(lists, backend, num_workers):
    dataset = make_dataset(lists, backend)
    several = [tuple(label for label in range(3) if number >> label & 1) for number in range(NUM_CLIPS)]
    dataset.records = [replace(one, labels=labels) for one, labels in zip(dataset.records, several)]
    dataset.num_classes = 3
    batches = list(make_loader(dataset, backend, 4, num_workers).epoch(0))
    for batch in batches:
        assert batch.labels.dtype == np.float32
        expected = [[float(label in several[index]) for label in range(3)] for index in batch.ids]
        np.testing.assert_array_equal(batch.labels, expected)
    assert sum(map(len, batches)) == NUM_CLIPS


@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_change_nothing(lists, backend):
    alone = list(train_loader(lists, backend).epoch(1))
    same(list(train_loader(lists, backend, num_workers=2).epoch(1)), alone)
    other_epoch = list(train_loader(lists, backend).epoch(2))
    assert any((one.clips != other.clips).any() for one, other in zip(alone, other_epoch))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_validation_keeps_the_last_batch(lists, backend, num_workers):
    dataset = make_dataset(lists, backend, training=False)
    batches = list(make_loader(dataset, backend, 3, num_workers).epoch(0))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(NUM_CLIPS))
    assert max(record.label for record in dataset.records) == 2
    assert dataset.pipeline.normalization == ((0.4,) * 3, (0.2,) * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_frames_are_the_ones_sampled(lists, backend, frame_number):
    dataset = make_dataset(lists, backend, training=False, select_left=True)
    dataset.pipeline.geometric.clear()
    batch = next(make_loader(dataset, backend, 1).epoch(0))
    assert [frame_number(frame) for frame in batch.clips[0]] == [1, 4, 7, 10]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_files(lists, backend, num_workers, tmp_path):
    bad_line = BAD_LINES.get(backend, "nowhere.mp4 2\n")
    file_path = tmp_path / "some bad.list"
    file_path.write_text(bad_line + (lists / list_of(backend)).read_text() + bad_line * 2)
    bad_path = str(lists / bad_line.split()[0])
    if backend == "packed":
        bad_path = str(lists / "packed" / "00001.data:nowhere")
    if backend == "tar":
        bad_path = str(lists / "bad.tar:nowhere.mp4")

    loader = make_loader(make_dataset(lists, backend, True, file_path), backend, 5, num_workers)
    batches = list(loader.epoch(0))
    assert [len(batch) for batch in batches] == [5, 5]
    failures = [failure for batch in batches for failure in batch.failures]
    assert {path for path, _ in failures} == {bad_path}
    assert len(failures) >= 3
    same(list(loader.epoch(0)), batches)

    loader = make_loader(make_dataset(lists, backend, False, file_path), backend, 5, num_workers)
    batches = list(loader.epoch(0))
    assert [batch.ids.tolist() for batch in batches] == [[1, 2, 3, 4], [5, 6, 7]]
    bad = BadSamples(tmp_path / "bad_samples.txt", len(loader.dataset), max_share=0.5)
    for batch in batches:
        bad.add(batch.incidents)
    assert list(bad.causes) == [bad_path]
    assert sum(len(batch.failures) for batch in batches) == 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_nothing_but_bad_files(lists, num_workers, tmp_path):
    file_path = tmp_path / "all bad.list"
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"")
    file_path.write_text(f"{tmp_path}/a.mp4 0\n{tmp_path}/b.mp4 1\n")
    for training, count in ((False, 2), (True, 10)):
        dataset = make_dataset(lists, "pyav", training, file_path)
        (batch,) = loader_of(dataset, 2, num_workers).epoch(0)
        assert len(batch) == len(batch.clips) == len(batch.ids) == 0
        assert len(batch.failures) == count


def test_packed_frames_are_the_frames_they_were_packed_from(lists):
    packed, frames, video = (train_loader(lists, backend) for backend in ("packed", "frames", "pyav"))
    same(list(packed.epoch(0)), list(frames.epoch(0)))
    for batch, other in zip(packed.epoch(1), video.epoch(1)):
        assert batch.ids.tolist() == other.ids.tolist()
        assert np.abs(batch.clips.astype(int) - other.clips).mean() < 4  # JPEG's loss


def test_views_of_a_pipeline():
    windows = Sampler(num_seg=8, seg_len=1, dense_sample=True, valid_mode=True)
    assert Pipeline(windows, [UniformCrop(224)]).num_views == 30


def test_a_missing_frame_counts_for_its_folder(lists, tmp_path):
    file_path = tmp_path / "frames.list"
    file_path.write_text("folder 0 40 0\n")
    (batch,) = loader_of(make_dataset(lists, "frames", False, file_path)).epoch(0)
    ((path, cause),) = batch.failures
    assert path == str(lists / "folder 0")
    assert "img_000" in cause


@pytest.mark.parametrize("backend", BACKENDS)
def test_clips_are_made_in_the_batch(lists, backend):
    """The first clip says how large the batch is and is copied; the others are written where they stay."""
    dataset = make_dataset(lists, backend)
    samples = []
    load = dataset.load
    dataset.load = lambda *which: samples.extend(made := load(*which)) or made
    batch = next(loader_of(dataset, 4).epoch(0))
    assert [np.shares_memory(sample.clip, batch.clips) for sample in samples] == [False, True, True, True]
    for sample, clip in zip(samples, batch.clips):
        np.testing.assert_array_equal(sample.clip, clip)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_frames_that_do_not_decode_are_replaced_where_asked(lists, broken_videos, num_workers, tmp_path):
    """A file with a damaged stretch: a bad sample, or a clip with the nearest frames and their count."""
    file_path = tmp_path / "damaged.list"
    file_path.write_text(f"clip 0.mp4 0\n{broken_videos['damaged']} 1\n")
    counts = {}
    for on_corrupt in ("raise", "nearest"):
        decode = {"name": "VideoDecoder", "on_corrupt": on_corrupt}
        sample = {"name": "Sampler", "num_seg": 40, "seg_len": 1, "linspace_sample": True}
        crop = [{"CenterCrop": {"target_size": 40}}]
        dataset = dataset_of(file_path, sample, crop, decode=decode, data_prefix=str(lists))
        (batch,) = loader_of(dataset, 2, num_workers).epoch(0)
        num_replaced = sum(incident.num_frames for incident in batch.incidents)
        counts[on_corrupt] = (batch.ids.tolist(), len(batch.failures), num_replaced > 0)
    assert counts == {"raise": ([0], 1, False), "nearest": ([0, 1], 0, True)}
    assert num_replaced < 40


def test_replacing_needs_the_exact_reader():
    with pytest.raises(LoaderError, match="on_corrupt: nearest needs backend: pyav, not cv2"):
        VideoDecoder("cv2", on_corrupt="nearest")


class Requests:
    """A batch sampler that yields each request of other batches alone."""

    def __init__(self, batches):
        self.alone = [[request] for batch in batches for request in batch]

    def batches(self, epoch, start_batch=0):
        return self.alone


def several_clips(lists, backend, num_clips, num_workers=0, file_path=None, **options):
    """A loader of so many clips a video, in batches of two videos, and their jitter of colours."""
    dataset = make_dataset(lists, backend, file_path=file_path, keys={"clips_per_video": num_clips})
    dataset.pipeline.pixelwise.append(ColorJitter(brightness=0.4, p=1.0))
    return make_loader(dataset, backend, 2 * num_clips, num_workers, **options)


@pytest.mark.smoke
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_clips_from_one_pass_are_those_that_are_read_alone(lists, backend, num_workers):
    """Also at another epoch, on two ranks, and in an epoch that begins in its middle."""
    loader = several_clips(lists, backend, 3, num_workers)
    batches = list(loader.epoch(4))
    assert [len(batch) for batch in batches] == [6, 3]
    assert batches[0].views.tolist() == [0, 0, 1, 1, 2, 2]
    same(list(loader.epoch(4, start_batch=1)), batches[1:])
    reference = several_clips(lists, backend, 1)
    reference.batch_sampler = Requests(loader.batch_sampler.batches(4))
    alone = list(reference.epoch(4))
    for name in ("clips", "labels", "ids", "views"):
        together, single = ([getattr(batch, name) for batch in side] for side in (batches, alone))
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(single))
    clips = batches[0].clips.astype(int)
    assert min(np.abs(clips[0] - clips[place]).mean() for place in (2, 4)) > 1  # other frames, crops, colours
    if not num_workers:
        ranks = [several_clips(lists, backend, 3, rank=rank, world_size=2) for rank in range(2)]
        shares = np.concatenate([next(iter(rank.epoch(4))).clips for rank in ranks])
        whole = {clip.tobytes() for clip in np.concatenate([batch.clips for batch in batches])}
        assert {clip.tobytes() for clip in shares} >= whole


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_file_is_replaced_with_all_its_clips(lists, backend, tmp_path):
    """By one video, which is read once; a file that fails is one incident for all of its clips."""
    bad_line = BAD_LINES.get(backend, "nowhere.mp4 2\n")
    file_path = tmp_path / "some bad.list"
    file_path.write_text(bad_line + (lists / list_of(backend)).read_text())
    loaders = [several_clips(lists, backend, 2, workers, file_path) for workers in (0, 2)]
    assert len(loaders[0].dataset) == 8
    seen = []
    for epoch in range(6):
        batches = list(loaders[0].epoch(epoch))
        same(list(loaders[1].epoch(epoch)), batches)
        for batch, requests in zip(batches, loaders[0].batch_sampler.batches(epoch)):
            half = len(requests) // 2
            assert len(batch) == len(requests)
            assert batch.ids[:half].tolist() == batch.ids[half:].tolist()
            assert batch.views.tolist() == [0] * half + [1] * half
            bad = [request.index for request in requests[:half]].count(0)
            first_causes = [path for path, _ in batch.failures if "nowhere" in path]
            assert bool(first_causes) == bool(bad)
            seen += first_causes
    assert (
        3 <= len(seen) < 6
    )  # the bad file has its turn in three of six epochs; it may be its own substitute


def test_a_file_is_opened_once_for_all_of_its_clips(lists):
    def count(training, **keys):
        dataset = make_dataset(lists, "pyav", training, keys=keys)
        opened, open_record = [], dataset.open
        dataset.open = lambda record: opened.append(record) or open_record(record)
        (batch,) = loader_of(dataset, 24).epoch(0)
        return len(batch), len(opened)

    assert count(True, clips_per_video=4) == (8, 2)
    assert count(False, num_ensemble_views=3) == (21, NUM_CLIPS)


def test_a_view_that_does_not_decode_leaves_the_others(lists, broken_videos):
    """An evaluation loses what is damaged and nothing else, as if it read each view by itself."""
    dataset = make_dataset(lists, "pyav", False, keys={"num_ensemble_views": 4}, num_seg=2, seg_len=4)
    dataset.records = [VideoRecord(str(broken_videos["damaged"]), 1), dataset.records[0]]
    (batch,) = loader_of(dataset, 8).epoch(0)
    alone = list(loader_of(dataset, 1).epoch(0))
    assert len(batch.failures) == 2
    assert batch.failures == [failure for one in alone for failure in one.failures]
    np.testing.assert_array_equal(batch.clips, np.concatenate([one.clips for one in alone if len(one)]))
    assert batch.views.tolist() == [int(view) for one in alone for view in one.views]


def test_several_clips_that_cannot_be_meant(lists):
    with pytest.raises(LoaderError, match="VideoDataset: clips_per_video is for training"):
        make_dataset(lists, "pyav", training=False, keys={"clips_per_video": 2})
    with pytest.raises(LoaderError, match="clips_per_video is 2, and num_ensemble_views .* make 3 views"):
        make_dataset(lists, "pyav", valid_mode=True, keys={"clips_per_video": 2, "num_ensemble_views": 3})
