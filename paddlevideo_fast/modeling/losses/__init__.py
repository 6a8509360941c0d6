"""Losses. Importing this package registers them."""

from paddlevideo_fast.modeling.losses.cross_entropy import CrossEntropyLoss
from paddlevideo_fast.modeling.losses.distillation import DistillationCELoss, DistillationDMLLoss

__all__ = ["CrossEntropyLoss", "DistillationCELoss", "DistillationDMLLoss"]
