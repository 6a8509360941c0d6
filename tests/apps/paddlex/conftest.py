"""A config of PaddleX's form on the motion data set."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.apps.paddlex.training_configs import training_config

_SMALL = {
    "framework": "Recognizer2D",
    "backbone": {
        "name": "ResNetTweaksTSM",
        "pretrained": None,
        "depth": 18,
        "width": 4,
        "stage_blocks": [1, 1, 1, 1],
    },
    "head": {"name": "ppTSMHead", "num_classes": 8, "in_channels": 32, "drop_ratio": 0.5, "ls_eps": 0.1},
}


@pytest.fixture(scope="session")
def paddlex_config(motion_dataset, tmp_path_factory) -> Path:
    """What PaddleX hands over, with a network of 8 classes that trains in a second."""
    folder = tmp_path_factory.mktemp("paddlex")
    labels = folder / "label.txt"
    labels.write_text("".join(f"{label} {name}\n" for label, name in enumerate(motion_dataset.classes)))
    config = training_config("PP-TSM-R50_8frames_uniform", _SMALL, 8, short_side=30, crop=28)
    root, train, valid = motion_dataset.root, motion_dataset.train_list, motion_dataset.valid_list
    for split, path in (("train", train), ("valid", valid), ("test", valid)):
        config["DATASET"][split] = {
            "format": "VideoDataset",
            "data_prefix": str(root),
            "file_path": str(path),
        }
    config["OPTIMIZER"]["learning_rate"].update(max_epoch=3, warmup_epochs=1)
    config["Infer"]["PostProcess"]["class_id_map_file"] = str(labels)
    config.update(epochs=3, save_interval=1, report=False)
    path = folder / "paddlex.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
