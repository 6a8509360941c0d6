"""Optimizers, the rules of their parameters, and learning-rate curves."""

from paddlevideo_fast.solver.learning_rate import LearningRate
from paddlevideo_fast.solver.optimizer import build_optimizer
