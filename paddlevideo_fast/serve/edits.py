"""Changes of a list by hand: a journal keeps each of them, and the new list is made of the old one and it."""

import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.loader.tables import Row, json_line

Label = int | str


class ConflictError(PaddleVideoFastError):
    """Somebody else has changed the same entry meanwhile, or there is nothing to undo."""


class State(NamedTuple):
    """What is edited of an entry. All values are JSON values.

    Attributes:
        labels: of the entry, as the list has them.
        is_dropped: it is not in the new list.
        spans: parts that take its place in the new list, in seconds; none: the entry is as it was.
    """

    labels: Sequence[Label]
    is_dropped: bool = False
    spans: Sequence[Sequence[float]] = ()


class Change(NamedTuple):
    """A change of an entry, as a line of the journal has it.

    Attributes:
        number: of all changes, from 1.
        place: of the entry in the list, from 0.
        before, after: its states.
        client: who has made it.
        undoes: number of the change that it undoes; 0: none.
    """

    number: int
    place: int
    before: State
    after: State
    client: str
    undoes: int = 0


class EditedList:
    """A list, the changes of it so far, and the new list.

    A journal that is there is continued, if it is of this list.

    Args:
        source: the list; it is never written.
        rows: its entries.
        output: the new list, .jsonl. The journal is beside it, `<output>.journal`.

    Raises:
        PaddleVideoFastError: the journal is of another list, damaged before its last line, or the output is
            the list itself.
    """

    def __init__(self, source: Path, rows: Sequence[Row], output: Path) -> None:
        if output.suffix != ".jsonl" or output.resolve() == source.resolve():
            raise PaddleVideoFastError(f"--output {output}: name a new list that ends in .jsonl")
        self.rows, self.output = rows, output
        self.journal = output.with_name(f"{output.name}.journal")
        self.changes: list[Change] = []
        self._states: dict[int, State] = {}
        self._newest: dict[int, int] = {}  # number of the last change of an entry
        self._lasting: dict[int, list[int]] = {}  # numbers of its changes that are not undone
        self._lock = threading.Lock()
        identity = {"list": source.name, "crc32": f"{zlib.crc32(source.read_bytes()):08x}"}
        for change in self._read(identity):
            self._note(change)
        self._file: IO[str] = self._opened(identity)

    def state(self, place: int) -> State:
        """The state of an entry."""
        return self._states.get(place, State(list(self.rows[place].labels)))

    def version(self, place: int) -> int:
        """Number of the last change of an entry; 0: there is none."""
        return self._newest.get(place, 0)

    def change(self, place: int, seen: int, after: State, client: str) -> Change:
        """Changes an entry.

        Args:
            place: of the entry.
            seen: its version when the client looked at it.
            after: its new state.
            client: who changes it.

        Raises:
            ConflictError: it has another version now.
        """
        with self._lock:
            if self.version(place) != seen:
                raise ConflictError("this entry was changed meanwhile, here or in another window")
            return self._add(Change(len(self.changes) + 1, place, self.state(place), after, client))

    def undo(self, client: str) -> Change:
        """Takes the last change of a client back, of those that nobody has changed since.

        Raises:
            ConflictError: there is none.
        """
        with self._lock:
            for change in reversed(self.changes):
                lasting = self._lasting[change.place]
                if change.client == client and lasting and lasting[-1] == change.number:
                    number, place = len(self.changes) + 1, change.place
                    return self._add(
                        Change(number, place, change.after, change.before, client, change.number)
                    )
        raise ConflictError("there is no change of yours to undo")

    def write(self) -> int:
        """Writes the new list and returns its number of entries."""
        with self._lock:
            lines = [json_line(row) for place in range(len(self.rows)) for row in self._edited(place)]
        atomic_write_text(self.output, "".join(f"{line}\n" for line in lines))
        return len(lines)

    def close(self) -> None:
        """Closes the journal."""
        self._file.close()

    def _edited(self, place: int) -> Iterator[Row]:
        row, state = self.rows[place], self.state(place)
        if state.is_dropped:
            return
        row = row._replace(labels=tuple(state.labels))
        if not state.spans:
            yield row
        for start, end in state.spans:
            yield row._replace(span=Span(start, end, "sec"))

    def _add(self, change: Change) -> Change:
        self._file.write(json.dumps(change) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._note(change)
        return change

    def _note(self, change: Change) -> None:
        self.changes.append(change)
        self._states[change.place] = change.after
        self._newest[change.place] = change.number
        lasting = self._lasting.setdefault(change.place, [])
        if change.undoes:
            lasting.remove(change.undoes)
        else:
            lasting.append(change.number)

    def _read(self, identity: dict[str, str]) -> Iterator[Change]:
        if not self.journal.is_file():
            return
        first, *lines = self.journal.read_text(encoding="utf-8").split("\n")
        if first and json.loads(first) != identity:
            raise PaddleVideoFastError(
                f"{self.journal}: is of another list, or the list has changed since; choose another --output"
            )
        for at, line in enumerate(lines, start=2):
            try:
                values: list[Any] = json.loads(line)
            except ValueError as error:
                if at > len(lines):  # the last one, which a kill has cut off
                    return
                raise PaddleVideoFastError(f"{self.journal}:{at}: is damaged: {error}") from error
            values[2], values[3] = State(*values[2]), State(*values[3])
            yield Change(*values)

    def _opened(self, identity: dict[str, str]) -> IO[str]:
        """The journal without what a kill has cut off."""
        lines = [json.dumps(identity), *map(json.dumps, self.changes)]
        atomic_write_text(self.journal, "".join(f"{line}\n" for line in lines))
        return open(self.journal, "a", encoding="utf-8")  # see `close`
