"""What the data tools share: failures, and provenance."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import paddlevideo_fast
from paddlevideo_fast.errors import EXIT_FAILURES, PaddleVideoFastError
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.io.urls import bare_url, secret_in
from paddlevideo_fast.jobs.list_lines import UNLISTABLE, json_line, list_line
from paddlevideo_fast.loader.class_names import one_form, read_class_names
from paddlevideo_fast.loader.tables import Row
from paddlevideo_fast.log import counted, printable

PROVENANCE = "provenance.json"

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
_NUM_SHOWN = 20

Argument = TypeVar("Argument")


class ToolError(PaddleVideoFastError):
    """Something that the user of a data tool can put right."""


# --- times and samples


@contextlib.contextmanager
def muted(level: int) -> Iterator[None]:
    """The log lacks the lines of this level and below; a trial of a training is not logged as one."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size_text(num_bytes: int) -> str:
    """A number of bytes in KB, MB, GB or TB, with three digits."""
    exponent = min(4, max(0, (len(str(num_bytes)) - 1) // 3))
    return f"{num_bytes / 1000**exponent:.3g} {('bytes', 'KB', 'MB', 'GB', 'TB')[exponent]}"


def spread(items: Sequence[Argument], count: int) -> list[Argument]:
    """Some items, evenly spaced over all of them; all where there are no more than `count`."""
    count = min(count, len(items))
    return [items[(2 * place + 1) * len(items) // (2 * count)] for place in range(count)]


def digest_of(values: Sequence[Any]) -> str:
    """A name for a task with these arguments, JSON values, which does not show them."""
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def state_of(path: str) -> list[int]:
    """Size and time of a file or folder, which has changed where they differ; empty for a URL."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


# --- failures


def report_failures(
    failures: Sequence[tuple[str, str]], total: int, file: Path | None = None, hint: str = ""
) -> int:
    """Reports the videos that failed on stderr and in a file, and returns the exit code.

    Args:
        failures: path or name of each video, and the cause.
        total: number of videos that were tried.
        file: where to list them, see `write_failures`; None writes no file.
        hint: what the user can do, added to the last line.
    """
    if file:
        write_failures(file, failures)
    if not failures:
        return 0
    for video, cause in failures[: _NUM_SHOWN if file else None]:
        print(f"failed: {printable(video)}: {printable(cause)}", file=sys.stderr)
    listed = f"; {file} lists them" if file else ""
    print(f"error: {len(failures)} of {counted(total, 'video')} failed{listed}{hint}", file=sys.stderr)
    return EXIT_FAILURES


def write_failures(file: Path, failures: Sequence[tuple[str, str]]) -> None:
    """Writes lines `video<TAB>cause`, or removes the file of an earlier run.

    Names are as they are shown, and URLs as packed frames store them: without what may be secret.
    """
    if failures:
        write_lines(file, (f"{printable(bare_url(video))}\t{printable(cause)}" for video, cause in failures))
    else:
        file.unlink(missing_ok=True)


def stop_if_disk_fails(path: Path, error: Exception) -> None:
    """Raises `ToolError` where `error` means that `path` cannot be written, and other files neither."""
    number = getattr(error, "errno", None)
    if number in _DISK_ERRORS:
        raise ToolError(
            f"{path}: cannot be written: {os.strerror(number)}; what is finished is kept: put "
            "this right and run the same command again"
        ) from error


def require_file(path: Path | None, flag: str = "output") -> None:
    """Raises `ToolError` where a file is to be written and there is a folder."""
    if path is not None and path.is_dir():
        raise ToolError(f"--{flag} {path}: is a folder; name a file")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a text file with one entry a line, completely or not at all."""
    atomic_write_text(path, "".join(f"{line}\n" for line in lines))


def write_entries(path: Path, header: Sequence[str], entries: Sequence[str]) -> None:
    """Writes entries of a list that was read, unchanged; warns on stderr where they may hold secrets."""
    write_lines(path, [*header, *entries])
    if any(map(secret_in, entries)):
        text = "has the URLs as they were, with what may be a signature or key; keep it to yourself"
        print(f"warning: {path}: {text}", file=sys.stderr)


def lines_of(
    rows: Iterable[tuple[str | Path, Row]], has_names: bool = False
) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines of a list, and path and cause of each clip that no list can hold.

    Args:
        rows: path of each clip, for messages, and its entry.
        has_names: the list has named fields.
    """
    lines, left_out = [], []
    for path, row in rows:
        numbers: Any = row.labels if row.num_frames is None else (row.num_frames, *row.labels)
        line = json_line(row) if has_names else list_line(row.path, *numbers)
        if line is None:
            left_out.append((str(path), UNLISTABLE))
        else:
            lines.append(line)
    return lines, left_out


def list_text(result: Mapping[str, Any]) -> str:
    """What is printed of a list that was written."""
    return f"{result['file']}: {counted(result['num_lines'], 'line')}"


def classes_text(result: Mapping[str, Any]) -> str:
    """What is printed of a file of class names that was written."""
    return f"{result['file']}: {counted(result['num_classes'], 'class')}"


def json_lines(file: Path) -> Iterator[Any]:
    """What the lines of a .jsonl file say. Lines that a killed run has left unfinished are passed over."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def class_names(file: Path, needed: Iterable[str] = ()) -> list[str]:
    """The class names of a file, one a line.

    Raises:
        AnnotationError: the file cannot be read.
        ToolError: it lacks one of the names `needed`.
    """
    names = read_class_names(file)
    unknown = sorted({*map(one_form, needed)} - set(names))
    if unknown:
        raise ToolError(f"{file}: lacks the class {unknown[0]!r}")
    return names


# --- provenance


@dataclass(frozen=True)
class Provenance:
    """What made an output folder: one entry of its provenance.json for each tool and set of lists.

    Attributes:
        tool: name of the script.
        options: options that decide the content.
        lists: name of each list or annotation file that was read → CRC32 of its bytes, in hexadecimal.
        folder: folder of the clips, as it was given.
        version: version of the toolkit.
        complete: whether the run has come to its end.
    """

    tool: str
    options: dict[str, Any]
    lists: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    version: str = paddlevideo_fast.__version__
    complete: bool = False

    @contextlib.contextmanager
    def kept_in(self, output: Path, completes: bool = True) -> Iterator[None]:
        """Writes this entry before the block, and that the run is complete after it.

        Args:
            output: the folder.
            completes: the block does all of the work; not only a share of it.

        Raises:
            ToolError: the provenance.json that is there is damaged.
        """
        self._write(output)
        yield
        if completes:
            replace(self, complete=True)._write(output)

    def _write(self, output: Path) -> None:
        others = [one for one in read_provenance(output) if (one.tool, set(one.lists)) != self._key()]
        mine = replace(self, folder=bare_url(self.folder))
        runs = [asdict(one) for one in [*others, mine]]
        atomic_write_text(output / PROVENANCE, json.dumps({"runs": runs}, indent=1) + "\n")

    def _key(self) -> tuple[str, set]:
        return self.tool, set(self.lists)


def crc32_of(*files: Path) -> dict[str, str]:
    """Name of each file → CRC32 of its bytes, as `Provenance.lists` has it."""
    return {file.name: f"{zlib.crc32(file.read_bytes()):08x}" for file in files}


def read_provenance(output: Path) -> list[Provenance]:
    """The entries of a folder's provenance.json; none where there is no such file.

    Raises:
        ToolError: the file is damaged.
    """
    file = output / PROVENANCE
    try:
        return [Provenance(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise ToolError(f"{file}: is damaged; remove it, or choose another --output") from error


def earlier_run(output: Path, tool: str) -> Provenance | None:
    """The last entry of a tool; None where it has not written to this folder."""
    return next((one for one in reversed(read_provenance(output)) if one.tool == tool), None)
