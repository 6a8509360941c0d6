"""Results as files that people look at: tables, pictures and one HTML page."""

from paddlevideo_fast.extensions.report.drawings import picture
from paddlevideo_fast.extensions.report.output import save_json
from paddlevideo_fast.extensions.report.results import Evaluated, ReportedRun, write_test
from paddlevideo_fast.extensions.report.tables import Naming
