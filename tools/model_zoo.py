"""Writes the tables of docs/*/model_zoo.md anew, from configs/recognition/*/metafile.yml, those of
configs/recognition/README*.md, by recipes.py, and configs/sizes.yml.

A table lies between `<!-- results: DATA SET -->` and `<!-- end -->`; its first two lines stay. The list
between `<!-- options -->` and `<!-- end -->` has the options that rows refer to. `paddlevideo-fast zoo`
prints them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.apps.zoo.zoo import Published, read_metafiles

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / "docs" / lang / "model_zoo.md" for lang in ("en", "zh-CN"))
SIZES = ROOT / "configs" / "sizes.yml"
RECIPES = {
    lang: ROOT / "configs" / "recognition" / name
    for lang, name in (("en", "README.md"), ("zh-CN", "README_cn.md"))
}

_TABLE = re.compile(r"(<!-- results: (.+?) -->\n\n(?:\|.*\n){2})(?:\|.*\n)*(?=\n<!-- end -->)")
_OPTIONS = re.compile(r"(<!-- options -->\n\n)(?:\d+\. .*\n)*(?=\n<!-- end -->)")


def updated(text: str, results: Sequence[Published]) -> str:
    """A page with the tables and the options of `results`."""
    notes: dict[tuple[str, ...], int] = {}

    def table(match: re.Match[str]) -> str:
        rows = [_row(result, notes) for result in results if result.data == match[2]]
        return match[1] + "".join(rows) if rows else match[0]

    text = _TABLE.sub(table, text)
    flags = [" ".join(f'-o "{option}"' for option in options) for options in notes]
    listed = "".join(f"{number}. `{line}`\n" for number, line in enumerate(flags, start=1))
    return _OPTIONS.sub(lambda match: match[1] + listed, text)


def with_recipes(lang: str) -> str:
    """The text of the page in `lang` with the table of recipes, for which each network is built."""
    from benchmarks import tables
    from tools import recipes

    return tables.updated(RECIPES[lang], {"recipes": lambda: recipes.table(lang)})


def sizes() -> dict[str, int]:
    """The number of parameters of each built-in config's network, of a distillation the student's."""
    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.config.builtin import built_in_configs
    from paddlevideo_fast.modeling import build_model, count_parameters

    numbers = {}
    for name, path in built_in_configs().items():
        model = build_model(load_config(path)["MODEL"], load_pretrained=False)
        numbers[name] = count_parameters(getattr(model, "Student", model))
    return numbers


def _row(result: Published, notes: dict[tuple[str, ...], int]) -> str:
    config = f"[{Path(result.config).stem}](../../{result.config})"
    if result.options:
        config += f"<sup>{notes.setdefault(result.options, len(notes) + 1)}</sup>"
    cells = [
        f"[{result.name}]({result.paper})" + (f", {result.training}" if result.training else ""),
        result.frames,
        result.views,
        f"{result.top1:.2f}",
        "" if result.top5 is None else f"{result.top5:.2f}",
        f"[`{result.converter}`]({result.source})",
        config,
        f"[{result.weights.rsplit('.', 1)[1]}]({result.weights})",
    ]
    return "| " + " | ".join(cells) + " |\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the pages in both languages."""
    argparse.ArgumentParser(
        prog="tools/model_zoo.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    results = read_metafiles()
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    counts = "".join(f"{name}: {number}\n" for name, number in sizes().items())
    text = "# Parameters of each config's network, counted by tools/model_zoo.py and shown by `zoo`."
    SIZES.write_text(f"{text}\n{counts}", encoding="utf-8")
    for lang, page in RECIPES.items():
        page.write_text(with_recipes(lang), encoding="utf-8")


if __name__ == "__main__":
    main()
