"""Training configs of the form that PaddleX hands over: PaddleVideo's sections, `Global` and `Infer`."""

from __future__ import annotations

from typing import Any

_NORMAL = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_PPTSM_HEAD = {"name": "ppTSMHead", "num_classes": 400, "in_channels": 2048, "drop_ratio": 0.5, "ls_eps": 0.1}

# PaddleX's modules: network, and frames of a clip.
MODELS: dict[str, Any] = {
    "PP-TSM-R50_8frames_uniform": (
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNetTweaksTSM", "pretrained": None, "depth": 50},
            "head": _PPTSM_HEAD,
        },
        8,
    ),
    **{
        f"PP-TSMv2-LCNetV2_{num_frames}frames_uniform": (
            {
                "framework": "Recognizer2D",
                "backbone": {
                    "name": "PPTSM_v2",
                    "pretrained": None,
                    "num_seg": num_frames,
                    "class_num": 400,
                },
                "head": {"name": "MoViNetHead"},
            },
            num_frames,
        )
        for num_frames in (8, 16)
    },
}


def training_config(
    algorithm: str, network: dict[str, Any], num_frames: int, short_side: int = 256, crop: int = 224
) -> dict[str, Any]:
    """The YAML of a module; PaddleX changes what its user chooses, such as data, classes and epochs.

    Args:
        algorithm: name of the module.
        network: section MODEL.
        num_frames: of a clip.
        short_side: of the frames, in pixels.
        crop: side of the square that the network sees, in pixels.
    """
    scale = {"Scale": {"short_size": short_side}}

    def pipeline(valid: bool, *crops: dict[str, Any]) -> dict[str, Any]:
        return {
            "decode": {"name": "VideoDecoder", "backend": "decord"},
            "sample": {"name": "Sampler", "num_seg": num_frames, "seg_len": 1, "valid_mode": valid},
            "transform": [scale, *crops, {"Image2Array": None}, {"Normalization": _NORMAL}],
        }

    centre = {"CenterCrop": {"target_size": crop}}
    data = {"format": "VideoDataset", "data_prefix": "videos", "file_path": "videos.txt"}
    return {
        "Global": {
            "checkpoints": None,
            "pretrained_model": None,
            "output_dir": "./output/",
            "device": "cpu",
            "use_visualdl": False,
            "save_inference_dir": "./inference",
            "to_static": False,
            "algorithm": algorithm,
        },
        "MODEL": network,
        "DATASET": {"batch_size": 16, "num_workers": 0, "train": data, "valid": data, "test": data},
        "PIPELINE": {
            "train": pipeline(False, {"RandomCrop": {"target_size": crop}}, {"RandomFlip": None}),
            "valid": pipeline(True, centre),
            "test": pipeline(True, centre),
        },
        "OPTIMIZER": {
            "name": "Momentum",
            "momentum": 0.9,
            "learning_rate": {
                "iter_step": True,
                "name": "CustomWarmupCosineDecay",
                "max_epoch": 80,
                "warmup_epochs": 10,
                "warmup_start_lr": 0.005,
                "cosine_base_lr": 0.01,
            },
            "weight_decay": {"name": "L2", "value": 1e-4},
            "use_nesterov": True,
        },
        "MIX": {"name": "Mixup", "alpha": 0.2},
        "METRIC": {"name": "CenterCropMetric"},
        "INFERENCE": {"name": "ppTSM_Inference_helper", "num_seg": num_frames, "target_size": crop},
        "Infer": {
            "transforms": [
                {"ReadVideo": {"num_seg": num_frames, "sample_type": "uniform"}},
                scale,
                centre,
                {"Image2Array": {"data_format": "tchw"}},
                {"NormalizeVideo": _NORMAL},
            ],
            "PostProcess": {"name": "Topk", "topk": 1, "class_id_map_file": "label.txt"},
        },
        # by this name PaddleX decides which key has the number of classes
        "model_name": "ppTSM" if network["head"]["name"] == "ppTSMHead" else "ppTSMv2",
        "log_interval": 10,
        "epochs": 80,
        "log_level": "INFO",
    }
