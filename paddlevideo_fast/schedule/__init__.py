"""What changes over a run, as pure functions: learning rates and phases. No Paddle here."""

from paddlevideo_fast.schedule.learning_rate import cosine, linear_warmup, piecewise, relative_steps
from paddlevideo_fast.schedule.phases import Phase, plain_phases

__all__ = ["Phase", "cosine", "linear_warmup", "piecewise", "plain_phases", "relative_steps"]
