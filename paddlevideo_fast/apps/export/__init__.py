"""A trained network as a program."""
