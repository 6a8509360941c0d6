"""A network in two halves: the pooled features that its backbone gives, and the head that trains on them."""

import hashlib

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.freezing import set_frozen
from paddlevideo_fast.modeling.recognizers import Recognizer, Recognizer2D, Recognizer3D
from paddlevideo_fast.modeling.stages import learned_parameters

_HEADLESS = "features need a recognizer whose head has a layer of its own, such as TSMHead or SlowFastHead"


def require_head(model: nn.Layer) -> None:
    """Checks that a network has a head which can train on features.

    Raises:
        ConfigError: it is a distillation, or the backbone classifies.
    """
    if not isinstance(model, Recognizer):
        raise ConfigError(f"MODEL.framework={type(model).__name__}: {_HEADLESS}")
    if model.head.num_classes is None:
        raise ConfigError(f"MODEL.head.name={type(model.head).__name__}: {_HEADLESS}")


def require_logits(model: nn.Layer) -> None:
    """Checks that a network is one whose logits can be stored.

    Raises:
        ConfigError: it is a distillation, or has no classes.
    """
    if not isinstance(model, Recognizer) or not model.has_classes:
        name = type(model).__name__
        raise ConfigError(f"MODEL.framework={name}: --logits needs a single network with classes")


class PooledFeatures(nn.Layer):
    """From clips, as the recognizer takes them, to what its head pools from the backbone's features.

    Args:
        whole: the recognizer, which `require_head` has taken.
    """

    def __init__(self, whole: nn.Layer) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """[N, C], or [N, P, C] where the head takes P parts of a clip, such as frames or tokens."""
        return self.whole.head.pool(*self.whole.features(clips))


class HeadOnly(Recognizer):
    """The head of a recognizer, which takes pooled features in place of clips.

    The backbone is frozen and does not run. It stays beside the head, so that a checkpoint holds the whole
    network.

    Args:
        whole: the recognizer.

    Attributes:
        layout: of the clips that the whole recognizer takes.
    """

    data_formats = (*Recognizer2D.data_formats, *Recognizer3D.data_formats)

    def __init__(self, whole: nn.Layer) -> None:
        require_head(whole)
        super().__init__(whole.backbone, whole.head)
        self.layout = whole.layout
        set_frozen(self, [name for name in learned_parameters(self) if name.startswith("backbone.")])

    def forward(self, features: paddle.Tensor) -> paddle.Tensor:
        """Features, as `PooledFeatures` gives them, to logits [N, num_classes]."""
        return self.head.classify(features)


def digest_of(layer: nn.Layer) -> str:
    """SHA-256 of the names, shapes and values of a layer's parameters and statistics."""
    digest = hashlib.sha256()
    for name, tensor in sorted(layer.state_dict().items()):
        values = np.ascontiguousarray(tensor.astype("float32").numpy())
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
