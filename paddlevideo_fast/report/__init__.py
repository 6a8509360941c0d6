"""Results as files that people look at: tables, pictures and one HTML page."""

from paddlevideo_fast.report.annotated import AnnotatedFormat, Caption, annotate
from paddlevideo_fast.report.figures import confusion_picture, curve_figures, picture
from paddlevideo_fast.report.files import save_json, whole
from paddlevideo_fast.report.fonts import Lettering, lettering
from paddlevideo_fast.report.page import Example, Page, render
from paddlevideo_fast.report.sheets import contact_sheet
from paddlevideo_fast.report.tables import Naming, class_rows, hardest_rows, write_tables
from paddlevideo_fast.report.targets import refuse_inputs, targets
from paddlevideo_fast.report.timeline import draw_timeline

__all__ = [
    "AnnotatedFormat",
    "Caption",
    "Example",
    "Lettering",
    "Naming",
    "Page",
    "annotate",
    "class_rows",
    "confusion_picture",
    "contact_sheet",
    "curve_figures",
    "draw_timeline",
    "hardest_rows",
    "lettering",
    "picture",
    "refuse_inputs",
    "render",
    "save_json",
    "targets",
    "whole",
    "write_tables",
]
