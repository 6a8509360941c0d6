"""What changes over a run, as pure functions: learning rates and phases. No Paddle here."""

from paddlevideo_fast.schedule.curves import cosine, linear_warmup, piecewise
from paddlevideo_fast.schedule.multigrid import Baseline, RateStep, multigrid_schedule, rate_multiplier
from paddlevideo_fast.schedule.phases import Phase, ShortShape, plain_phases
