"""Decoded frames that runs of a machine share."""

import paddlevideo_fast.decode  # it imports this package, so it comes first
