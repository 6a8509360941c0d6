"""From a checked config to a trained or evaluated model; besides the command line, only this reads one."""

from paddlevideo_fast.assembly.build import TrainingSetup, training_setup
from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.assembly.plan import RunPlan, plan_run
from paddlevideo_fast.assembly.run import train
from paddlevideo_fast.assembly.testing import test
