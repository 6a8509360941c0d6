"""Networks from frames or clips to features. Importing this package registers them."""

from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.backbones.mobilenet import PPTSM_MobileNetV2, PPTSM_MobileNetV3
from paddlevideo_fast.modeling.backbones.movinet import MoViNet
from paddlevideo_fast.modeling.backbones.mvit import MViT
from paddlevideo_fast.modeling.backbones.pptsm_v2 import PPTSM_v2
from paddlevideo_fast.modeling.backbones.r2plus1d import ResNetR2Plus1D
from paddlevideo_fast.modeling.backbones.resnet import ResNet, ResNetTSM, ResNetTweaksTSM, ResNetTweaksTSN
from paddlevideo_fast.modeling.backbones.resnet3d import ResNetI3D, ResNetSlow, ResNetSlowFast
from paddlevideo_fast.modeling.backbones.swin import SwinTransformer3D
from paddlevideo_fast.modeling.backbones.timesformer import (
    TokenShiftVisionTransformer,
    VisionTransformer,
    VisionTransformer_tweaks,
)
from paddlevideo_fast.modeling.backbones.videomae import VideoMAEViT
from paddlevideo_fast.modeling.backbones.vjepa2 import VJEPA2
from paddlevideo_fast.modeling.backbones.x3d import X3D
