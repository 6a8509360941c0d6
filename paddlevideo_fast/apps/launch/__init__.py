"""The command that starts the processes of a run on several devices."""
