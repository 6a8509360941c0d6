"""Configs of transformers and of MoViNet with the sections, keys and values that PaddleVideo's have."""

from __future__ import annotations

import copy

import pytest
import yaml

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.config import RunSpec, build, load_config
from paddlevideo_fast.loader import DecodeSampler, build_pipeline
from paddlevideo_fast.registry import LEARNING_RATES, MIXES, OPTIMIZERS

K400 = ("data/k400/videos", "data/k400/{}.list", None)
UCF101 = ("", "data/ucf101/ucf101_{}_split_1_videos.txt", ".avi")
RUNTIME = {"test": {"num_seg": 8, "avg_type": "prob"}}
VIT = {
    "img_size": 224, "patch_size": 16, "in_channels": 3, "embed_dim": 768, "depth": 12, "num_heads": 12,
    "mlp_ratio": 4, "qkv_bias": True, "epsilon": 1e-6, "num_seg": 8, "attention_type": "divided_space_time",
}  # fmt: skip
SWIN = {
    "name": "SwinTransformer3D", "patch_size": [2, 4, 4], "embed_dim": 96, "depths": [2, 2, 18, 2],
    "num_heads": [3, 6, 12, 24], "window_size": [8, 7, 7], "mlp_ratio": 4.0, "qkv_bias": True,
    "qk_scale": "None", "drop_rate": 0.0, "attn_drop_rate": 0.0, "drop_path_rate": 0.1, "patch_norm": True,
}  # fmt: skip


def model(backbone, head, framework="RecognizerTransformer", **more):
    return {"framework": framework, "backbone": backbone, "head": head, **more}


def data(place, format_name="VideoDataset", **more):
    prefix, path, suffix = place
    split = {"format": format_name, "data_prefix": prefix, **({"suffix": suffix} if suffix else {})}
    names = {"train": "train", "valid": "val", "test": "val"}
    return {
        "num_workers": 4,
        **more,
        **{key: {**split, "file_path": path.format(name)} for key, name in names.items()},
    }


def normalised(mean, std):
    white = {"mean": [mean] * 3, "std": [std] * 3, "tensor_shape": [1, 1, 1, 3]}
    return [{"Normalization": white}, {"Image2Array": {"data_format": "cthw"}}]


def jittered(low, high, *crop):
    return [{"JitterScale": {"min_size": low, "max_size": high}}, *crop]


def windows(transforms, valid_modes=(False, True, True), **way):
    """TimeSformer's and TokShift's pipelines: PyAV, with the length of a clip in `decode`."""
    return {
        split: {
            "decode": {"name": "VideoDecoder", "backend": "pyav", "mode": split, "num_seg": 8},
            "sample": {"name": "Sampler", "num_seg": 8, "seg_len": 1, "valid_mode": fixed, **(
                way if split == "train" or way.get("linspace_sample") else {}
            )},
            "transform": steps,
        }
        for split, fixed, steps in zip(("train", "valid", "test"), valid_modes, transforms)
    }  # fmt: skip


def swin_pipeline():
    resized = {
        "short_size": 256,
        "fixed_ratio": False,
        "keep_ratio": True,
        "backend": "cv2",
        "do_round": True,
    }
    white = {"Normalization": {
        "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "tensor_shape": [3, 1, 1, 1],
        "inplace": True,
    }}  # fmt: skip
    end = [white, {"Image2Array": {"data_format": "cthw"}}]
    square = {"Scale": {**resized, "short_size": 224, "keep_ratio": False}}
    crops = {
        "train": [
            {"Scale": resized},
            {"RandomResizedCrop": {"backend": "cv2"}},
            square,
            {"RandomFlip": None},
        ],
        "valid": [
            {"Scale": resized},
            {"CenterCrop": {"target_size": 224, "do_round": False, "backend": "cv2"}},
        ],
        "test": [
            {"Scale": {**resized, "short_size": 224}},
            {"UniformCrop": {"target_size": 224, "backend": "cv2"}},
        ],
    }
    modes = {"train": "train", "valid": "valid", "test": "valid"}
    clip = {"name": "Sampler", "frame_interval": 2, "seg_len": 32, "use_pil": False}
    return {
        split: {
            "decode": {"name": "VideoDecoder", "backend": "decord", "mode": modes[split]},
            "sample": {**clip, "num_seg": 4 if split == "test" else 1, "valid_mode": split != "train"},
            "transform": steps + end,
        }
        for split, steps in crops.items()
    }


def movinet_pipeline():
    end = [
        {"Image2Array": None},
        {"Normalization": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
    ]
    scaled, centre = {"Scale": {"short_size": 192}}, {"CenterCrop": {"target_size": 172}}
    crops = [
        {"MultiScaleCrop": {"target_size": 192}},
        {"RandomCrop": {"target_size": 172}},
        {"RandomFlip": None},
    ]
    return {
        split: {
            "decode": {"name": "FrameDecoder"},
            "sample": {"name": "Sampler", "num_seg": 50, "seg_len": 1, "valid_mode": split != "train"},
            "transform": [scaled, *([*crops, {"RandomFlip": None}] if split == "train" else [centre]), *end],
        }
        for split in ("train", "valid", "test")
    }


def steps(rate, milestones):
    curve = {"name": "MultiStepDecay", "learning_rate": rate, "milestones": milestones, "gamma": 0.1}
    return {"name": "Momentum", "momentum": 0.9, "use_nesterov": True, "learning_rate": curve}


def config(model_section, dataset, pipeline, optimizer, clips, helper, epochs, **more):
    accumulated = {"GRADIENT_ACCUMULATION": {"global_batch_size": clips}} if clips else {}
    return {
        "MODEL": model_section, "DATASET": dataset, "PIPELINE": pipeline, "OPTIMIZER": optimizer,
        **accumulated, "METRIC": {"name": "CenterCropMetric"}, "INFERENCE": helper, "epochs": epochs,
        "model_name": "m", "log_interval": 20, "save_interval": 5, "log_level": "INFO", **more,
    }  # fmt: skip


def timesformer(place):
    crop, flip = {"RandomCrop": {"target_size": 224}}, {"RandomFlip": None}
    seen = normalised(0.45, 0.225) + jittered(256, 320, crop, flip)
    tested = normalised(0.45, 0.225) + jittered(224, 224, {"UniformCrop": {"target_size": 224}})
    head = {"name": "TimeSformerHead", "num_classes": 400, "in_channels": 768, "std": 0.02}
    return config(
        model({"name": "VisionTransformer", "pretrained": "vit.pdparams", **VIT}, head, runtime_cfg=RUNTIME),
        data(place, batch_size=8, valid_batch_size=8, test_batch_size=1),
        windows([seen, seen, tested], (False, False, True), linspace_sample=True),
        {**steps(0.005, [11, 14]), "weight_decay": {"name": "L2", "value": 1e-4}},
        64, {"name": "TimeSformer_Inference_helper", "num_seg": 8, "target_size": 224}, 15,
    )  # fmt: skip


def pptimesformer():
    crop, flip = {"RandomCrop": {"target_size": 224}}, {"RandomFlip": None}
    plain = normalised(0, 1)
    head = {"name": "ppTimeSformerHead", "num_classes": 400, "in_channels": 768, "std": 0.02, "ls_eps": 0.1}
    curve = {
        "iter_step": True, "name": "CustomWarmupCosineDecay", "max_epoch": 20, "warmup_epochs": 2,
        "warmup_start_lr": 0.00025, "cosine_base_lr": 0.0025,
    }  # fmt: skip
    return config(
        model({"name": "VisionTransformer_tweaks", **VIT, "qkv_bias": False}, head, runtime_cfg=RUNTIME),
        data(K400, batch_size=8, test_batch_size=1),
        windows(
            [
                plain + jittered(256, 320, crop, flip),
                plain + jittered(256, 256, {"CenterCrop": {"target_size": 224}}),
                plain + jittered(224, 224, {"UniformCrop": {"target_size": 224}}),
            ],
            linspace_sample=True,
        ),
        {
            "name": "Momentum", "momentum": 0.9, "learning_rate": curve, "use_nesterov": True,
            "weight_decay": {"name": "L2", "value": 0.00007},
            "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 40.0},
        },
        64, {"name": "TimeSformer_Inference_helper", "num_seg": 8, "mean": [0, 0, 0]}, 20,
        MIX={"name": "VideoMix", "cutmix_prob": 0.5, "mixup_alpha": 0.2, "cutmix_alpha": 1.0},
    )  # fmt: skip


def tokshift():
    crop = {"RandomCrop": {"target_size": 256}}
    colours = [
        {name: {"p": 0.1}} for name in ("RandomBrightness", "RandomSaturation", "RandomGamma", "RandomHue")
    ]
    white = normalised(0.5, 0.5)
    backbone = {"name": "TokenShiftVisionTransformer", **VIT, "img_size": 256, "drop_rate": 0.0}
    head = {"name": "TokenShiftHead", "num_classes": 101, "in_channels": 768, "ls_eps": 0.01, "std": 0.02}
    return config(
        model({**backbone, "attention_type": "space_only"}, head, runtime_cfg=RUNTIME),
        data(UCF101, batch_size=16, valid_batch_size=4, valid_num_workers=4, test_batch_size=4),
        windows(
            [
                [{"RandomFlip": {"p": 0.5}}, *colours, *white, *jittered(256, 380, crop)],
                white + jittered(256, 256, crop),
                white + jittered(256, 256, {"MultiCenterCrop": {"target_size": 256}}),
            ],
            dense_sample=True,
        ),
        {
            **steps(0.0609, [10, 20]), "weight_decay": {"name": "L2", "value": 0.0},
            "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 1.0},
        },
        256, {"name": "TokenShift_Inference_helper", "num_seg": 8, "target_size": 256}, 25,
    )  # fmt: skip


def movinet():
    curve = {
        "iter_step": True, "name": "CustomWarmupCosineDecay", "max_epoch": 160, "warmup_epochs": 10,
        "warmup_start_lr": 0.001, "cosine_base_lr": 0.5,
    }  # fmt: skip
    backbone = {"name": "MoViNet", "model_type": "A0", "causal": False, "conv_type": "3d", "num_classes": 400}
    dataset = data(("", "data/k400/{}.list", "img_{:05}.jpg"), "FrameDataset", batch_size=32)
    return config(
        model(backbone, {"name": "MoViNetHead"}, "MoViNetRecognizerFrame"), dataset, movinet_pipeline(),
        {
            "name": "RMSProp", "momentum": 0.9, "rho": 0.9, "epsilon": 1.0, "learning_rate": curve,
            "weight_decay": {"name": "L2", "value": 0.00003},
        },
        None, {"name": "ppTSM_Inference_helper", "num_seg": 50, "short_size": 192}, 160,
    )  # fmt: skip


def swin(backbone, in_channels, rate, decay):
    head = {"name": "I3DHead", "num_classes": 400, "in_channels": in_channels, "spatial_type": "avg",
            "drop_ratio": 0.5, "std": 0.01}  # fmt: skip
    curve = {
        "name": "CustomWarmupCosineStepDecay", "iter_step": True, "warmup_iters": 2.5, "warmup_ratio": 0.1,
        "min_lr": 0, "base_lr": rate, "max_epoch": 30,
    }  # fmt: skip
    return config(
        model({**SWIN, **backbone}, head, runtime_cfg={"test": {"num_seg": 32, "avg_type": "prob"}}),
        data(K400, batch_size=1, test_batch_size=1), swin_pipeline(),
        {
            "name": "AdamW", "beta1": 0.9, "beta2": 0.999, "learning_rate": curve, "weight_decay": decay,
            "no_weight_decay_name": "norm relative_position_bias_table",
        },
        64, {"name": "VideoSwin_Inference_helper", "num_seg": 1, "seg_len": 32}, 30,
    )  # fmt: skip


BASE = {"embed_dim": 128, "num_heads": [4, 8, 16, 32], "drop_path_rate": 0.2}
ALL = {
    "timesformer_k400": timesformer(K400),
    "timesformer_ucf101": timesformer(UCF101),
    "pptimesformer": pptimesformer(),
    "tokshift": tokshift(),
    "movinet": movinet(),
    "videoswin_small": swin({}, 768, "1e-4", 0.02),
    "videoswin_base": swin(BASE, 1024, "3e-5", 0.05),
}
WITHOUT_EFFECT = {
    "timesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "pptimesformer": {"Normalization.tensor_shape", "INFERENCE"},
    "tokshift": {"Normalization.tensor_shape", "INFERENCE"},
    "movinet": {"INFERENCE"},
    "videoswin": {"Scale.backend", "RandomResizedCrop.backend", "CenterCrop.backend", "UniformCrop.backend",
                  "Normalization.tensor_shape", "sample.use_pil", "head.spatial_type", "INFERENCE"},
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_config_with_paddlevideos_keys_loads_and_fits_together(name, tmp_path, warnings):
    path = tmp_path / f"{name}.yaml"
    text = yaml.safe_dump(copy.deepcopy(ALL[name]), sort_keys=False).replace("'None'", "None")
    path.write_text(text.replace("'1e-4'", "1e-4").replace("'3e-5'", "3e-5"))
    spec = RunSpec.for_training(load_config(path))
    told = {".".join(line.split("  ")[1].split(":")[0].split(".")[-2:]) for line in warnings}
    assert told == WITHOUT_EFFECT[name.partition("_")[0]]
    check_evaluation(spec, "train", "valid", "test")
    rate = build(LEARNING_RATES, spec.optimizer["learning_rate"])
    assert rate.misfit(spec.run.epochs) == ""
    assert rate.at(0) > 0
    build(OPTIMIZERS, spec.optimizer)
    if spec.mix:
        build(MIXES, spec.mix)
    for split in ("train", "valid", "test"):
        section = spec.splits[split].pipeline
        pipeline = build_pipeline(section)
        takes_a_part = isinstance(pipeline.sample, DecodeSampler)
        assert takes_a_part == ("timesformer" in name)
        if takes_a_part:
            assert pipeline.sample.sampling_rate == 32
            assert pipeline.sample.test_mode == (split == "test")
