"""`paddlevideo-fast data`: its tools, some of which data/*.py start as well."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from paddlevideo_fast.cli.command import quiet_import
from paddlevideo_fast.cli.commands import Command, GroupParser
from paddlevideo_fast.errors import PaddleVideoFastError


class Tool(Command):
    """A data tool; its parser is the function `NAME_parser` beside the function `NAME`."""

    def load(self, function: str) -> Callable[..., Any]:
        from paddlevideo_fast.decode.opencv import check_opencv

        check_opencv()  # the tools import cv2 without a check
        with quiet_import():  # `report` imports Paddle
            return super().load(function)

    def run(self, words: Sequence[str]) -> int | None:
        try:
            return self.load(self.parser.removesuffix("_parser"))(words)
        except OSError as error:  # of a file that the user has named
            raise PaddleVideoFastError(str(error)) from error


def _tool(module: str, function: str, text: str, goes_on: str = "") -> Tool:
    return Tool(f"paddlevideo_fast.apps.data.{module}", text, f"{function}_parser", goes_on=goes_on)


TOOLS: dict[str, Command] = {
    "list": _tool("lists", "build", "write the lists of folders of classes"),
    "check": _tool("lists", "check", "decode everything that a list names", "output_file write_clean"),
    "report": _tool("report", "report", "describe a set of videos on one page", "list"),
    "prepare": _tool("videos", "prepare_list", "re-encode videos, for faster reading", "output"),
    "extract": _tool("frames", "extract", "extract the frames of videos", "output"),
    "pack": _tool("packing", "pack", "pack frames into shards", "output"),
    "convert": _tool("annotations", "convert", "write a list from annotations of other projects"),
    "motion": _tool("motion", "make", "make the motion data set of the quick start", "output"),
    "k400": _tool("public_datasets", "k400", "write the lists of Kinetics-400"),
    "ucf101": _tool("public_datasets", "ucf101", "write the lists of UCF101"),
    "ssv2": _tool("public_datasets", "ssv2", "write the lists of Something-Something V2"),
}


def build_parser() -> GroupParser:
    """The parser of `paddlevideo-fast data`."""
    return GroupParser("data", TOOLS, "Makes lists of data sets, checks, re-encodes and packs them.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    return build_parser().start(list(sys.argv[1:] if argv is None else argv))
