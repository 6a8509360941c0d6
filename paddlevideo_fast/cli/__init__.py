"""The command line: what tools/*.py start."""

from paddlevideo_fast.cli.command import add_config_arguments, quiet_import, run_command
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.cli.train import build_parser

main = COMMANDS["train"].start
