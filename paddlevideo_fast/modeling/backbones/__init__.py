"""Networks from frames or clips to features. Importing this package registers them."""

from paddlevideo_fast.modeling.backbones.mobilenet import PPTSM_MobileNetV2, PPTSM_MobileNetV3
from paddlevideo_fast.modeling.backbones.pptsm_v2 import PPTSM_v2
from paddlevideo_fast.modeling.backbones.resnet import ResNet, ResNetTSM, ResNetTweaksTSM, ResNetTweaksTSN
from paddlevideo_fast.modeling.backbones.resnet3d import ResNetI3D, ResNetSlow, ResNetSlowFast
from paddlevideo_fast.modeling.backbones.timesformer import (
    TokenShiftVisionTransformer,
    VisionTransformer,
    VisionTransformer_tweaks,
)
from paddlevideo_fast.modeling.backbones.videomae import VideoMAEViT

__all__ = [
    "PPTSM_MobileNetV2",
    "PPTSM_MobileNetV3",
    "PPTSM_v2",
    "ResNet",
    "ResNetI3D",
    "ResNetSlow",
    "ResNetSlowFast",
    "ResNetTSM",
    "ResNetTweaksTSM",
    "ResNetTweaksTSN",
    "VideoMAEViT",
    "TokenShiftVisionTransformer",
    "VisionTransformer",
    "VisionTransformer_tweaks",
]
