"""Plug-ins: modules and files of users, whose import registers components of their own.

A config names them with the key `imports`, a command with `--import`, and an installed package with an entry
point of the group `paddlevideo_fast.plugins`. Nothing else is imported for a user: no weight file, checkpoint
or annotation list can name code.
"""

import functools
import importlib
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

GROUP = "paddlevideo_fast.plugins"
_NOT_OF_USERS = (
    "<frozen importlib",
    *(os.path.dirname(path) + os.sep for path in (__file__, importlib.__file__)),
)
_failed: list[str] = []  # files


class Import(NamedTuple):
    """Something to import.

    Attributes:
        name: a module, `my_package.parts`, or the absolute path of a file or of the folder of a package.
        where: who names it, `tsm.yaml:3  imports`.
        is_relative: the file was named by a relative path.
    """

    name: str
    where: str
    is_relative: bool = False


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not of a module."""
    return name.endswith(".py") or "/" in name or os.sep in name


def located(name: str, where: str, folder: str) -> Import:
    """The import of a name; relative files lie in `folder`."""
    if not is_file(name):
        return Import(name, where)
    path = os.path.expanduser(name)
    return Import(os.path.abspath(os.path.join(folder, path)), where, not os.path.isabs(path))


@functools.cache
def installed_imports() -> tuple[Import, ...]:
    """What installed packages register by entry points."""
    from importlib import metadata

    points = metadata.entry_points(group=GROUP)
    where = f"entry point '%s' of {GROUP}"
    return tuple(Import(point.value.partition(":")[0].strip(), where % point.name) for point in points)


def import_all(imports: Iterable[Import]) -> list[str]:
    """Imports each that this process has not imported yet.

    Returns:
        A problem for each that fails: who names it, the error, and the line of the user's file.
    """
    problems = []
    for name, where, _ in imports:
        try:
            if is_file(name):
                _import_file(name)
            else:
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            problems.append(f"{where}: {name} cannot be imported: {_cause(name, error)}")
    return problems


def _import_file(path: str) -> None:
    file = os.path.join(path, "__init__.py") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise FileNotFoundError(f"there is no file {file}")
    if _module_of(file) is not None:
        return
    stem = Path(path).stem
    # a name of its own: a file may be called as a module of somebody else, and may have failed before
    name = f"plugin_{stem}_{zlib.crc32(os.fsencode(os.path.realpath(file))):08x}"
    name += f"_{_failed.count(file)}" if file in _failed else ""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("a file of Python code ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        _failed.append(file)
        raise


def _module_of(file: str) -> ModuleType | None:
    """The module that this process has imported from a file, under whatever name."""
    name, real = os.path.basename(file), os.path.realpath(file)
    for module in list(sys.modules.values()):
        known = getattr(module, "__dict__", {}).get("__file__")  # some modules import others when asked
        if isinstance(known, str) and os.path.basename(known) == name and os.path.realpath(known) == real:
            return module
    return None


def _cause(name: str, error: BaseException) -> str:
    """The error in one line, with the lines of the user's files that led to it."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or name}:{error.lineno or 1}"
        return f"{type(error).__name__}: {error.msg} ({place})"
    frames = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_OF_USERS)
    ]
    if isinstance(error, FileNotFoundError) and not frames:
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not frames:
        return f"{error}; it has to be installed. A file is named by its path: ./{name.replace('.', '/')}.py"
    text = " ".join(str(error).split())
    places = ", in ".join(dict.fromkeys([*frames[:1], *frames[-1:]]))
    return f"{type(error).__name__}{': ' if text else ''}{text}{f' ({places})' if places else ''}"
