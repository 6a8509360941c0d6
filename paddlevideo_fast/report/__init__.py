"""Results as files that people look at: tables, pictures and one HTML page."""

from paddlevideo_fast.report.figures import confusion_picture, curve_figures, picture
from paddlevideo_fast.report.files import save_json, whole
from paddlevideo_fast.report.page import Example, Page, render
from paddlevideo_fast.report.sheets import contact_sheet
from paddlevideo_fast.report.tables import Naming, class_rows, hardest_rows, write_tables

__all__ = [
    "Example",
    "Naming",
    "Page",
    "class_rows",
    "confusion_picture",
    "contact_sheet",
    "curve_figures",
    "hardest_rows",
    "picture",
    "render",
    "save_json",
    "whole",
    "write_tables",
]
