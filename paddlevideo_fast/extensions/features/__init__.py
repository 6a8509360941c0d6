"""Features of a frozen backbone, for heads that train on them in minutes."""
