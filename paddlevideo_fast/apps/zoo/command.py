"""Lists the built-in configs with what they need and what others have published for them.

Examples:
    paddlevideo-fast zoo
    paddlevideo-fast zoo tsm k400
    paddlevideo-fast zoo tsm_k400_videos
    paddlevideo-fast zoo --cached
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import JSON, CommandParser
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.log import counted
from paddlevideo_fast.registry import did_you_mean

if TYPE_CHECKING:
    from paddlevideo_fast.apps.zoo.zoo import Entry, Published


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast zoo`."""
    parser = CommandParser("zoo", __doc__)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="name of a config, to show its details; or parts of names, to list matching configs",
    )
    parser.add_argument("--cached", action="store_true", help="list the downloaded weights with their sizes")
    parser.add_argument("--remove", metavar="NAME", help="remove the downloaded weights of a name")
    parser.add_argument("--json", **JSON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Prints the list; 2: nothing fits the words."""
    if args.remove is not None or args.cached:
        _manage_cache(args)
        return
    from paddlevideo_fast.apps.zoo.zoo import read_zoo

    entries = read_zoo()
    all_are_names = set(args.words) <= {entry.name for entry in entries}
    named = [entry for entry in entries if all_are_names and entry.name in args.words]
    chosen = named or [entry for entry in entries if all(word in entry.name for word in args.words)]
    if not chosen:
        hint = did_you_mean(args.words[0], [entry.name for entry in entries]).partition("; known")[0]
        text = f"no built-in config is called {' '.join(args.words)}{hint}; paddlevideo-fast zoo  lists all"
        raise PaddleVideoFastError(text)
    if args.json:
        for entry in chosen:
            print_result(asdict(entry), json=True)
    elif named:
        print("\n\n".join("\n".join(_details(entry)) for entry in named))
    else:
        print("\n".join(_table(chosen)))
        print("\npaddlevideo-fast zoo NAME  tells all about one; commands take it: train NAME")


def _manage_cache(args: argparse.Namespace) -> None:
    """Removes weights from the cache, or lists those in it."""
    from paddlevideo_fast.apps.zoo.named_weights import cached, folder_of_weights, remove

    if args.remove is not None:
        result = {"name": args.remove, "num_bytes": remove(args.remove)}
        print_result(
            result, args.json, lambda _: f"{args.remove}: removed, {result['num_bytes'] / 1e6:.1f} MB"
        )
    elif args.json:
        for entry in cached():
            print_result(entry._asdict(), json=True)
    else:
        entries = cached()
        width = max([len(entry.name) for entry in entries], default=0)
        for entry in entries:
            day = time.strftime("%Y-%m-%d", time.localtime(entry.used_at))
            print(
                f"{entry.name:<{width}}  {entry.num_bytes / 1e6:>8.1f} MB  used {day}  {entry.url}".rstrip()
            )
        total_mb = sum(entry.num_bytes for entry in entries) / 1e6
        print(f"{counted(len(entries), 'name')}, {total_mb:.1f} MB in {folder_of_weights()}")


def _table(entries: Sequence[Entry]) -> Iterator[str]:
    rows = [("name", "network", "parameters", "data", "clip", "starts from", "published top-1")]
    for entry in entries:
        files = [file.rpartition("/")[2] for file in entry.pretrained]
        weights = files[0] if len(files) == 1 else f"{len(files)} files" if files else "random weights"
        own = entry.published[0] if entry.published and not entry.published[0].options else None
        top1 = f"{own.top1:.2f}" if own else ""
        data = f"{entry.data}, {entry.stored_as}"
        size = f"{entry.num_parameters / 1e6:.3g} M"
        rows.append((entry.name, entry.network, size, data, entry.clip, weights, top1))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _details(entry: Entry) -> Iterator[str]:
    from paddlevideo_fast.apps.zoo.zoo import results_by_name, source_of_weights
    from paddlevideo_fast.jobs.run import size_text

    def line(title: str, text: str) -> str:
        return f"  {title:<13}{text}"

    yield entry.name
    yield line("file", str(entry.path))
    yield line("network", entry.network)
    size = f"about {size_text(4 * entry.num_parameters)} of weights"
    yield line("size", f"{entry.num_parameters / 1e6:.3g} M parameters, {size}")
    yield line("data", f"{entry.data}, {entry.stored_as}: {', '.join(entry.lists)}")
    yield line("", f"{entry.maker}  writes them")
    yield line("clip", f"{entry.clip} frames")
    yield line("training", f"{entry.epochs} epochs")
    for file in entry.pretrained:
        yield line("starts from", file)
        yield line("", source_of_weights(file))
    for name, result in results_by_name(entry.name, entry.published).items():
        yield from (line(*pair) for pair in zip(("published", *[""] * 9), _published(result, entry)))
        yield line("by name", f"-w {name}  downloads and converts it")


def _published(result: Published, entry: Entry) -> list[str]:
    """The lines of a result: its numbers, where its weights are, and how to use them."""
    file = result.weights.rpartition("/")[2]
    options = "".join(f' -o "{option}"' for option in result.options)
    training = f", {result.training}" if result.training else ""
    numbers = f"top-1 {result.top1:.2f}" + ("" if result.top5 is None else f", top-5 {result.top5:.2f}")
    use = (
        f"paddlevideo-fast convert {entry.name} --from {result.converter} --src {file} "
        f"--output_file {entry.name}.pdparams{options}"
    )
    return [
        f"{numbers}: {result.name}{training}, {result.frames} frames, {result.views} views, {result.toolkit}",
        result.weights,
        use,
    ]
