"""Networks from frames to features. Importing this package registers them."""

from paddlevideo_fast.modeling.backbones.resnet import ResNet
from paddlevideo_fast.modeling.backbones.resnet_tsm import ResNetTSM
from paddlevideo_fast.modeling.backbones.resnet_tweaks import ResNetTweaksTSM, ResNetTweaksTSN

__all__ = ["ResNet", "ResNetTSM", "ResNetTweaksTSM", "ResNetTweaksTSN"]
