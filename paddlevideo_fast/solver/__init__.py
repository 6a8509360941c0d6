"""Optimizers, their parameter groups, and learning-rate curves."""

from paddlevideo_fast.solver.learning_rate import Constant, LearningRate
from paddlevideo_fast.solver.optimizer import ParameterGroup, build_optimizer, group_parameters
