"""Where the time of a training run goes, what limits it, and what would help."""

from paddlevideo_fast.bench.doctor.chart import draw
from paddlevideo_fast.bench.doctor.diagnosis import limit, report, summary
from paddlevideo_fast.bench.doctor.examination import examine

__all__ = ["draw", "examine", "limit", "report", "summary"]
