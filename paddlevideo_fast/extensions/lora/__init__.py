"""LoRA: small matrices train in place of the weights."""

import paddlevideo_fast.modeling  # it imports this package, so it comes first
