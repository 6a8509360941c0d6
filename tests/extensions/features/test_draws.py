"""Records that an epoch draws more than once have a copy of their features for each draw."""

from types import SimpleNamespace

import numpy as np

from paddlevideo_fast.extensions.features.loader import FeatureLoader
from paddlevideo_fast.loader import ClipBatchSampler, VideoRecord
from paddlevideo_fast.loader.balance import make_repeat_counts


def test_draws_of_a_record_have_different_stored_features():
    records = [VideoRecord(f"{label}.mp4", (label,)) for label in (0, 0, 0, 1)]
    stored = SimpleNamespace(
        index=SimpleNamespace(num_copies=3, failed={}),
        features=np.arange(12.0).reshape(12, 1),
        labels=np.tile([0, 0, 0, 1], 3),
    )
    dataset = SimpleNamespace(
        records=records, training=True, num_crops=1, candidates=lambda request: [request.index]
    )
    sampler = ClipBatchSampler(
        4,
        4,
        shuffle=True,
        drop_last=True,
        seed=5,
        repeat_counts=make_repeat_counts(records, "balanced", seed=5),
    )
    for epoch in range(3):
        (batch,) = FeatureLoader(stored, sampler, dataset).epoch(epoch)
        assert (batch.ids == 3).sum() == 2
        copies = batch.clips[batch.ids == 3, 0] // 4
        assert set(copies) == {epoch, (epoch + 1) % 3}
