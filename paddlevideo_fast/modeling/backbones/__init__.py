"""Networks from frames to features. Importing this package registers them."""

from paddlevideo_fast.modeling.backbones.resnet import ResNet
from paddlevideo_fast.modeling.backbones.resnet_tsm import ResNetTSM, ResNetTweaksTSM

__all__ = ["ResNet", "ResNetTSM", "ResNetTweaksTSM"]
