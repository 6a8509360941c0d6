"""The command that prints a script for completion in a shell."""
