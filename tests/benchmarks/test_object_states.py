"""The weights that PP-TSMv2 begins with on motion."""

import numpy as np
import paddle

from benchmarks import object_states
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.preparation.motion import CLASSES


def test_targets_are_what_the_class_moves():
    clips, targets = object_states._batch(0)
    assert clips.shape == (32, 2, 112, 112, 3)
    motion = targets.reshape(4, len(CLASSES), 2, 6)[..., 3:]
    for number, (part, direction) in enumerate(CLASSES.values()):
        moved = motion[:, number].any(axis=(0, 1))
        assert moved.tolist() == [part == each for each in range(3)]
        if part < 3:
            assert (np.sign(motion[:, number, :, part]) == direction).all()


def test_a_network_of_more_frames_begins_with_the_weights(tmp_path):
    file = tmp_path / "new" / "pretrained.pdparams"
    object_states.pretrain(file, 2, 0.004)
    backbone = {**object_states.BACKBONE, "num_seg": 8, "class_num": 8, "pretrained": str(file)}
    model = build_model({"framework": "Recognizer2D", "backbone": backbone, "head": {"name": "MoViNetHead"}})
    stored = paddle.load(str(file))
    same = [
        name
        for name, value in model.state_dict().items()
        if name in stored and value.shape == stored[name].shape
    ]
    different = {name for name in model.state_dict() if name not in same}
    assert different == {"backbone.fc.weight", "backbone.fc.bias"}
    for name in same:
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), stored[name].numpy())
