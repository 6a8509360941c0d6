"""What a run may have: a folder for each."""
