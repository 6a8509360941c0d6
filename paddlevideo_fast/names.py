"""Names are data: how the names of files and classes are shown, whatever characters Linux lets them have."""

from __future__ import annotations

import io
import sys

from paddlevideo_fast.urls import masked


def printable(name: str) -> str:
    r"""A name as one line of valid Unicode: a character that does not print is its escape, such as `\n`.

    A byte that is not UTF-8 is shown as `\xff`. Python holds it as a lone surrogate, which no UTF-8 file
    and no library in C++ takes. Of a URL, what may be secret is left out.
    """
    name = masked(name)
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _escape(char) for char in name)


def is_unicode(name: str) -> bool:
    """Whether a name is Unicode throughout, without bytes that are not UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def tolerate_names() -> None:
    """Lets the console show any name: what its encoding does not have becomes an escape, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # else a host has put its own in its place
            stream.reconfigure(errors="backslashreplace")


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
