"""Fonts for names of classes in any script."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, NamedTuple, Sequence, Set

from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_LATIN = frozenset(range(ord("!"), ord("~") + 1))
_PLACEHOLDERS = "LastResort"  # a font of boxes that stand for characters


class Lettering(NamedTuple):
    """How names of classes are written into pictures.

    Attributes:
        font_file: a font.
        names: of the classes, by number; those that it cannot write are "class 17" and the like.
    """

    font_file: Path
    names: List[str]


def lettering(names: Sequence[str]) -> Lettering:
    """A font for names: the one that comes with matplotlib, else one of the system that has all characters.

    Where no font has, the names that cannot be written are replaced and a warning says so.
    """
    from matplotlib import font_manager  # see figures.pyplot

    default = Path(font_manager.findfont("DejaVu Sans"))
    needed = {ord(letter) for name in names for letter in name if not letter.isspace()} | _LATIN
    for font_file in (default, *_system_fonts()):
        if needed <= _characters(font_file):
            return Lettering(font_file, list(names))
    known = _characters(default)
    drawn = [
        name if all(letter.isspace() or ord(letter) in known for letter in name) else f"class {number}"
        for number, name in enumerate(names)
    ]
    logger.warning(
        "no font of this system has all characters of the class names: %d of them are shown as numbers in "
        "pictures; install a font such as Noto Sans CJK",
        sum(one != other for one, other in zip(drawn, names)),
    )
    return Lettering(default, drawn)


def _system_fonts() -> Iterator[Path]:
    """Those that matplotlib finds, upright ones of usual weight first."""
    from matplotlib import font_manager

    entries = sorted(
        font_manager.fontManager.ttflist,
        key=lambda entry: (entry.style != "normal", str(entry.weight) not in ("400", "normal"), entry.fname),
    )
    return (Path(entry.fname) for entry in entries if _PLACEHOLDERS not in entry.fname)


def _characters(font_file: Path) -> Set[int]:
    """Code points of a font; none where it is damaged."""
    from matplotlib.ft2font import FT2Font

    try:
        return set(FT2Font(str(font_file)).get_charmap())
    except (OSError, RuntimeError):  # the system's affair: another one is taken
        return set()
