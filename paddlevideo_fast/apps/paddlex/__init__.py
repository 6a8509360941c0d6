"""PaddleX on this toolkit: what its modules start in the folder of a checkout.

Only this package knows PaddleX's configs and folders. It sits above the command line and translates.
"""

from paddlevideo_fast.apps.paddlex.commands import export, main
