"""From features to logits and the loss. Importing this package registers them."""

from paddlevideo_fast.modeling.heads.clip_heads import I3DHead, SlowFastHead
from paddlevideo_fast.modeling.heads.frame_heads import MoViNetHead, TSMHead, TSNHead, ppTSMHead, ppTSNHead

__all__ = ["I3DHead", "MoViNetHead", "SlowFastHead", "TSMHead", "TSNHead", "ppTSMHead", "ppTSNHead"]
