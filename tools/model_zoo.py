"""Writes the tables of docs/*/model_zoo.md anew, from configs/recognition/*/metafile.yml.

A table lies between `<!-- results: DATA SET -->` and `<!-- end -->`; its first two lines stay. The list
between `<!-- options -->` and `<!-- end -->` has the options that rows refer to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / "docs" / lang / "model_zoo.md" for lang in ("en", "zh-CN"))

_TABLE = re.compile(r"(<!-- results: (.+?) -->\n\n(?:\|.*\n){2})(?:\|.*\n)*(?=\n<!-- end -->)")
_OPTIONS = re.compile(r"(<!-- options -->\n\n)(?:\d+\. .*\n)*(?=\n<!-- end -->)")


@dataclass(frozen=True)
class Published:
    """A result that somebody has published.

    Attributes:
        name: of the network.
        data: set that it is for.
        frames: of a clip; of 3D networks the slow frames × the distance between them.
        views: clips × crops of the test.
        top1: percent.
        config: of the network, from the root of the repository.
        toolkit: that trained it.
        source: page with the numbers.
        weights: what to download.
        converter: what `--from` has to be.
        paper: page of the network's paper.
        top5: percent; None where it was not published.
        training: what sets the training apart from other rows.
        options: changes to the config.
    """

    name: str
    data: str
    frames: str
    views: str
    top1: float
    config: str
    toolkit: str
    source: str
    weights: str
    converter: str
    paper: str
    top5: Optional[float] = None
    training: str = ""
    options: Tuple[str, ...] = ()


def read_metafiles(root: Path = ROOT) -> List[Published]:
    """The results in all metafiles of a repository, in the order of their files."""
    results = []
    for path in sorted(root.glob("configs/recognition/*/metafile.yml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in content["models"]:
            options = tuple(entry.pop("options", ()))
            results.append(Published(**entry, options=options, paper=content["paper"]["url"]))
    return results


def updated(text: str, results: Sequence[Published]) -> str:
    """A page with the tables and the options of `results`."""
    notes: Dict[Tuple[str, ...], int] = {}

    def table(match: re.Match[str]) -> str:
        rows = [_row(result, notes) for result in results if result.data == match[2]]
        return match[1] + "".join(rows)

    text = _TABLE.sub(table, text)
    flags = [" ".join(f'-o "{option}"' for option in options) for options in notes]
    listed = "".join(f"{number}. `{line}`\n" for number, line in enumerate(flags, start=1))
    return _OPTIONS.sub(lambda match: match[1] + listed, text)


def _row(result: Published, notes: Dict[Tuple[str, ...], int]) -> str:
    config = f"[{Path(result.config).stem}](../../{result.config})"
    if result.options:
        config += f"<sup>{notes.setdefault(result.options, len(notes) + 1)}</sup>"
    cells = [
        f"[{result.name}]({result.paper})",
        result.training,
        result.frames,
        result.views,
        f"{result.top1:.2f}",
        "" if result.top5 is None else f"{result.top5:.2f}",
        f"[{result.toolkit}]({result.source}), `{result.converter}`",
        config,
        f"[{result.weights.rsplit('.', 1)[1]}]({result.weights})",
    ]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    """Writes both pages."""
    results = read_metafiles()
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
