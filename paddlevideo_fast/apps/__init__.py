"""What one does besides training: a folder for each, with its command."""
