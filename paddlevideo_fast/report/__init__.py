"""Results as files that people look at: tables, pictures and one HTML page."""

from paddlevideo_fast.report.drawings import picture
from paddlevideo_fast.report.output import save_json
from paddlevideo_fast.report.results import Evaluated, ReportedRun, with_certainty, write_test
from paddlevideo_fast.report.tables import Naming
