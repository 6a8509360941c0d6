"""From features to logits and the loss. Importing this package registers them."""

from paddlevideo_fast.modeling.heads.frame_heads import TSMHead, TSNHead, ppTSMHead, ppTSNHead

__all__ = ["TSMHead", "TSNHead", "ppTSMHead", "ppTSNHead"]
