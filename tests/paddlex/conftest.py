"""A config of PaddleX's shape on the motion data set."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

_SCALE = {"Scale": {"short_size": 30}}
_NORMAL = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def _pipeline(*steps, valid_mode):
    return {
        "decode": {"name": "VideoDecoder", "backend": "decord"},
        "sample": {"name": "Sampler", "num_seg": 8, "seg_len": 1, "valid_mode": valid_mode},
        "transform": [
            _SCALE,
            *steps,
            {"Image2Array": None},
            {"Normalization": _NORMAL},
        ],
    }


@pytest.fixture(scope="session")
def paddlex_config(motion_dataset, tmp_path_factory) -> Path:
    """What PaddleX hands over, with a network of 8 classes that trains in a second."""
    folder = tmp_path_factory.mktemp("paddlex")
    labels = folder / "label.txt"
    labels.write_text("".join(f"{label} {name}\n" for label, name in enumerate(motion_dataset.classes)))

    def listed(path):
        return {"format": "VideoDataset", "data_prefix": str(motion_dataset.root), "file_path": str(path)}

    valid = _pipeline({"CenterCrop": {"target_size": 28}}, valid_mode=True)
    config = {
        "Global": {
            "checkpoints": None,
            "pretrained_model": None,
            "output_dir": "./output/",
            "device": "cpu",
            "use_visualdl": False,
            "save_inference_dir": "./inference",
            "to_static": False,
            "algorithm": "PP-TSM-R50_8frames_uniform",
        },
        "MODEL": {
            "framework": "Recognizer2D",
            "backbone": {
                "name": "ResNetTweaksTSM",
                "pretrained": None,
                "depth": 18,
                "width": 4,
                "stage_blocks": [1, 1, 1, 1],
            },
            "head": {
                "name": "ppTSMHead",
                "num_classes": 8,
                "in_channels": 32,
                "drop_ratio": 0.5,
                "ls_eps": 0.1,
            },
        },
        "DATASET": {
            "batch_size": 16,
            "num_workers": 0,
            "train": listed(motion_dataset.train_list),
            "valid": listed(motion_dataset.valid_list),
            "test": listed(motion_dataset.valid_list),
        },
        "PIPELINE": {
            "train": _pipeline({"RandomCrop": {"target_size": 28}}, valid_mode=False),
            "valid": valid,
            "test": valid,
        },
        "OPTIMIZER": {
            "name": "Momentum",
            "momentum": 0.9,
            "learning_rate": {
                "iter_step": True,
                "name": "CustomWarmupCosineDecay",
                "max_epoch": 3,
                "warmup_epochs": 1,
                "warmup_start_lr": 0.005,
                "cosine_base_lr": 0.01,
            },
            "weight_decay": {"name": "L2", "value": 1e-4},
            "use_nesterov": True,
        },
        "MIX": {"name": "Mixup", "alpha": 0.2},
        "METRIC": {"name": "CenterCropMetric"},
        "INFERENCE": {"name": "ppTSM_Inference_helper", "num_seg": 8, "target_size": 28},
        "Infer": {
            "transforms": [
                {"ReadVideo": {"num_seg": 8, "sample_type": "uniform"}},
                _SCALE,
                {"CenterCrop": {"target_size": 28}},
                {"Image2Array": {"data_format": "tchw"}},
                {"NormalizeVideo": _NORMAL},
            ],
            "PostProcess": {"name": "Topk", "topk": 1, "class_id_map_file": str(labels)},
        },
        "model_name": "ppTSM",
        "log_interval": 10,
        "epochs": 3,
        "save_interval": 1,
        "log_level": "INFO",
        "report": False,
    }
    path = folder / "paddlex.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
