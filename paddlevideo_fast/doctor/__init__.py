"""Where the time of a training run goes, what would help, and what a multigrid run would cost."""

from paddlevideo_fast.doctor import multigrid
from paddlevideo_fast.doctor.diagnosis import examine, limit
from paddlevideo_fast.doctor.finding import batch_report, find_batch_size, find_rate, rate_report
from paddlevideo_fast.doctor.report import report, summary
