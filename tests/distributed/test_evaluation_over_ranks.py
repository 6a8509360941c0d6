"""Three processes that share ten videos see what one process sees, to the last bit."""

import json
from pathlib import Path

import evaluation_ranks as ranks
import pytest

from paddlevideo_fast.engine import Distribution
from tests.support.launching import Job

NUM_RANKS = 3

ONE_VIEW = """
MODEL:
  framework: Recognizer2D
  backbone: {{name: ResNetTSM, depth: 18, num_seg: 4, width: 8, stage_blocks: [1, 1, 1, 1]}}
  head: {{name: TSMHead, num_classes: 7, in_channels: 64, drop_ratio: 0.5, std: 0.5}}
DATASET:
  test_batch_size: 4
  max_bad_share: {max_bad_share}
  test: {{format: VideoDataset, file_path: {videos}}}
PIPELINE:
  test:
    decode: {{name: VideoDecoder, on_corrupt: nearest}}
    sample: {{name: Sampler, num_seg: 4, seg_len: 1, valid_mode: true, select_left: true}}
    transform: [{{CenterCrop: {{target_size: 32}}}}, Image2Array: ]
METRIC: {{name: CenterCropMetric}}
model_name: tiny
epochs: 1
"""

MANY_VIEWS = """
MODEL:
  framework: Recognizer3D
  backbone:
    {{name: ResNetSlowFast, depth: 50, alpha: 4, beta: 2, width_per_group: 4, fusion_kernel_sz: 5,
     stage_blocks: [1, 1, 1, 1]}}
  head: {{name: SlowFastHead, width_per_group: 4, alpha: 4, beta: 2, num_classes: 7, dropout_rate: 0.5}}
DATASET:
  test_batch_size: 4
  max_bad_share: 0.5
  test: {{format: SFVideoDataset, file_path: {videos}, test_mode: true, num_ensemble_views: 3,
         num_spatial_crops: 3}}
PIPELINE:
  test:
    decode: {{name: VideoDecoder, on_corrupt: nearest}}
    sample: {{name: DecodeSampler, num_frames: 4, sampling_rate: 2, test_mode: true}}
    transform:
      - JitterScale: {{min_size: 36, max_size: 36}}
      - MultiCrop: {{target_size: 32, test_mode: true}}
      - Image2Array: {{transpose: false}}
      - PackOutput: {{alpha: 4}}
METRIC: {{name: MultiCropMetric}}
model_name: tiny
epochs: 1
"""


SEVERAL_LABELS = MANY_VIEWS.replace("dropout_rate", "activation: sigmoid, dropout_rate").replace(
    "MultiCropMetric", "MeanAveragePrecision"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory, make_clip, broken_videos):
    """What one process finds, and what each of three finds, by the name of the config."""
    folder = tmp_path_factory.mktemp("evaluation")
    clips = [make_clip(folder / f"{number}.mp4", 8 + 3 * number, (48, 40)) for number in range(8)]
    files = [*clips[:5], broken_videos["text"], *clips[5:], broken_videos["damaged"]]
    bad = [broken_videos[name] for name in ("text", "empty", "missing")]
    lists = {"ten": files, "two": clips[:2], "bad": [clips[0], bad[0], bad[1], bad[2], *clips[1:7]]}
    for name, paths in lists.items():
        lines = [f"{path} {number % 7}\n" for number, path in enumerate(paths)]
        (folder / f"{name}.list").write_text("".join(lines))
        rows = [
            {"path": str(path), "label": [number % 7, 6][: number % 3]} for number, path in enumerate(paths)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text, videos, max_bad_share in (
        ("one_view", ONE_VIEW, "ten", 0.5),
        ("many_views", MANY_VIEWS, "ten", 0.5),
        ("several_labels", SEVERAL_LABELS, "ten", 0.5),
        ("fewer_videos_than_ranks", ONE_VIEW, "two", 0.5),
        ("too_many_bad", ONE_VIEW, "bad", 0.2),
    ):
        listed = f"{videos}.jsonl" if text is SEVERAL_LABELS else f"{videos}.list"
        config = text.format(videos=folder / listed, max_bad_share=max_bad_share)
        (folder / f"{name}.yaml").write_text(config)
    with Job([Path(ranks.__file__), folder], NUM_RANKS, folder) as job:
        job.succeed(240)
    listed = (folder / "bad_samples.txt").read_text()
    together = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    return folder, together, listed


@pytest.mark.parametrize("name", ["one_view", "many_views", "several_labels", "fewer_videos_than_ranks"])
def test_metrics_are_those_of_one_process_to_the_last_bit(found, name):
    folder, together, _ = found
    alone = ranks.metrics_of(folder / f"{name}.yaml", Distribution())
    assert alone["num_samples"] == (2 if name == "fewer_videos_than_ranks" else 9)
    if name != "fewer_videos_than_ranks":
        assert alone["num_failed"] == 1
        assert alone["bad"] == ["text.mp4"]
        assert alone["num_replaced"] > 0
    assert 0 < alone["loss"] < 100
    for rank in together:
        assert rank[name] == alone


def test_rank_0_lists_the_bad_files_of_all(found):
    _, _, listed = found
    names = [Path(line.split("\t")[0]).name for line in listed.splitlines()]
    assert names.count("text.mp4") == 1
    assert names.count("damaged.mp4") == 1
    assert {"text.mp4", "damaged.mp4", "empty.mp4", "missing.mp4"} == set(names)


def test_bad_files_are_counted_over_all_ranks(found):
    folder, together, _ = found
    (kind, message) = ranks.metrics_of(folder / "too_many_bad.yaml", Distribution())["error"]
    assert kind == "BadSampleShareError"
    for rank in together:  # each has one of the three bad files
        assert rank["too_many_bad"]["error"][0] == kind
        assert rank["too_many_bad"]["error"][1].startswith("3 of 10 files do not decode")
    assert message.startswith("3 of 10 files do not decode")


def test_what_one_rank_raises_is_raised_on_all(found):
    for rank in found[1]:
        for run in ("stopped", "without_state"):  # between batches, and where the metric gives its state
            assert rank[run] == {"error": ["ConfigError", "2 problems\n  the first\n  the second"]}


@pytest.mark.parametrize("max_batches", [None, 4, 1])
def test_population_statistics_are_those_of_one_process(found, max_batches):
    alone = ranks.statistics_of(Distribution(), max_batches)
    for rank in found[1]:
        for name, values in alone.items():
            assert rank[f"statistics {max_batches}"][name] == pytest.approx(values, rel=1e-9)
        assert rank[f"statistics {max_batches}"] == found[1][0][f"statistics {max_batches}"]
