"""All of a tool's work, or one job's share of it, and what is known of it already.

A job array does a list in shares, each job on any machine that sees the output:

    --shard 0/3    tasks 0, 3, 6, ...
    --shard 1/3    tasks 1, 4, 7, ...
    --shard 2/3    tasks 2, 5, 8, ...
    --merge        no task: writes the lists and reports that a run of all would write

Each job keeps a journal in the output folder, with the result of every task. A job that is started again goes
on after its journal; what failed is tried again. `--merge` takes all journals, removes them when all is
written, and refuses where a result is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import (
    IO,
    Any,
    NamedTuple,
    Protocol,
    TypeVar,
)

from paddlevideo_fast.errors import ObjectMissingError
from paddlevideo_fast.io.files import UrlPath, sweep, working_folder
from paddlevideo_fast.io.locks import Lock, only_writer
from paddlevideo_fast.io.stores import put
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.preparation.executor import LOCAL, Engine, Site, common_folder, run_all
from paddlevideo_fast.preparation.run import ToolError, disk_error

_JOURNAL = ".journal-"


class Share(NamedTuple):
    """Share `number`, from 0 on, of `total` shares."""

    number: int
    total: int


class _HasCause(Protocol):
    @property
    def cause(self) -> str | None:
        """Why the task failed; empty or None where it did not."""


Task = TypeVar("Task")
Outcome = TypeVar("Outcome", bound=_HasCause)


class Work:
    """How a tool does its tasks.

    Args:
        engine: where.
        share: which of them; None: all.
        merges: none; the journals of all shares say what came of them.
    """

    def __init__(self, engine: Engine, share: Share | None = None, merges: bool = False) -> None:
        self.engine = engine
        self.share = share
        self.merges = merges
        self._lock: Lock | None = None
        self._remote: Any = None  # the output, if it is a URL
        self._journals: Path | None = None  # what the names of all of them begin with

    @classmethod
    def of(cls, args: argparse.Namespace) -> Work:
        """What the flags of a tool say."""
        if args.shard and args.merge:
            raise ToolError("give either --shard, to do a share of the work, or --merge, to put all together")
        trial = next((flag for flag in ("estimate", "verify") if getattr(args, flag, None) is not None), "")
        if trial and (args.shard or args.merge):
            raise ToolError(f"--{trial} writes nothing: leave out --shard and --merge")
        workers = getattr(args, "workers", None)  # the readers of features are those of the config
        idle = "--merge does no work" if args.merge else ""
        if args.scheduler != LOCAL and (idle or trial == "estimate"):
            _warn("scheduler", idle or "--estimate tries its videos here")
        if workers is not None and (idle or (args.scheduler != LOCAL and trial != "estimate")):
            _warn("workers", idle or f"the workers of {args.scheduler} do the work")
        workers = num_cores() if workers is None else workers
        return cls(Engine(workers, args.scheduler), args.shard, args.merge)

    @property
    def is_whole(self) -> bool:
        """Whether all results are known at the end."""
        return self.share is None

    def mine(self, tasks: Sequence[Task]) -> list[Task]:
        """Those of all tasks that this job does."""
        return list(tasks if self.share is None else tasks[self.share.number :: self.share.total])

    @contextlib.contextmanager
    def writing(
        self, folder: Path, name: str, file: str = "", folders: Iterable[Path] = ()
    ) -> Iterator[None]:
        """Keeps others from writing the same; removes the journals and what killed workers left at the end.

        Args:
            folder: of the output.
            name: the same for all jobs that share a work, and for no other work in this folder.
            file: name of the output in it; "": all of the folder.
            folders: where tasks put files.

        Raises:
            OutputInUseError: another process writes to the same.
        """
        work = f"{zlib.crc32(name.encode('utf-8', 'surrogateescape')):08x}"
        share = None if self.share is None else (f"{work}-of-{self.share.total}", self.share.number)
        self._remote = folder if isinstance(folder, UrlPath) else None
        self._journals = working_folder(folder) / f"{_JOURNAL}{work}-"
        with only_writer(folder, file, share=share) as lock:
            # the workers write to a folder, and this process a single file; nobody sees a lock of a store
            self._lock = None if file or self._remote is not None else lock
            there = set(folders)
            self._sweep(there)
            yield
            if self.is_whole:
                self._sweep(there)
                for journal in self._all_journals():
                    journal.unlink()
                for journal in self._remote_journals():
                    journal.unlink(missing_ok=True)

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], what: str, folders: Sequence[str]
    ) -> Iterator[Any]:
        """Does tasks and yields their results in their order; `folders` are what they read, see `run_all`."""
        return run_all(function, tasks, self.engine, what, Site(self._lock, folders))

    def results(
        self,
        function: Callable[[Task], Outcome],
        tasks: Sequence[Task],
        what: str,
        sources: Sequence[str],
        key: Callable[[Task], str],
        restored: Callable[[Task, Any], Outcome | None],
    ) -> list[Outcome] | None:
        """Does tasks whose result is not known, and returns the results of all in their order.

        Args:
            function: does one; see `run_all`.
            tasks: those of this job that are to be done.
            what: their name.
            sources: the files that they read.
            key: a name of a task among all.
            restored: a result from what JSON has kept of it, or None where it is of no more use.

        Returns:
            The results; None where this job has only done a share.

        Raises:
            ToolError: with `merges`, results are missing; else see `run_all`.
        """
        found: dict[int, Outcome] = {}
        known = self._known()
        for place, task in enumerate(tasks):
            for value in known.get(key(task), []):
                result = restored(task, value)
                if result is not None and (self.merges or not result.cause):
                    found[place] = result
                    if not result.cause:
                        break
        missing = [place for place in range(len(tasks)) if place not in found]
        if self.merges and missing:
            raise ToolError(self._unfinished(len(missing), what))
        if found and not self.merges:
            print(f"{what}: {len(found)} of {len(tasks)} are done already", flush=True)
        with self._journal() as note:
            results = run_all(
                function,
                [tasks[place] for place in missing],
                self.engine,
                what,
                Site(self._lock, common_folder(sources)),
                lambda task, result: note(key(task), result),
            )
            found.update(zip(missing, results))
        if self.share is None:
            return [found[place] for place in range(len(tasks))]
        if self._remote is not None:  # for the merge, on whatever machine
            for journal in self._all_journals():
                put(journal, str(self._remote / journal.name))
        failed = sum(bool(result.cause) for result in found.values())
        print(
            f"--shard {self.share.number}/{self.share.total}: {len(tasks)} {what} done, {failed} of them "
            "failed; when all shards are done, run the same command with --merge in place of --shard"
        )
        return None

    def _sweep(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            if not isinstance(folder, UrlPath) and folder.is_dir():
                sweep(folder, alone=self.is_whole)

    def _unfinished(self, num_missing: int, what: str) -> str:
        return (
            f"--merge: {num_missing} {what} have no result yet: wait for the end of all --shard jobs, and "
            "start again what was stopped; or leave --merge out, and this run does them"
        )

    def _all_journals(self) -> list[Path]:
        if self._journals is None:
            return []
        return sorted(self._journals.parent.glob(f"{self._journals.name}*"))

    def _remote_journals(self) -> list[Path]:
        """Those that shares have put into the store of the output."""
        if self._remote is None or self._journals is None:
            return []
        try:
            return [*self._remote.glob(f"{self._journals.name}*")]
        except ObjectMissingError:  # nothing has been written there
            return []

    def _known(self) -> dict[str, list[Any]]:
        """Key of a task → what journals say of it. Unfinished lines are passed over."""
        known: dict[str, list[Any]] = {}
        for journal in (*self._all_journals(), *self._remote_journals()):
            for line in journal.read_text(encoding="utf-8").splitlines():
                try:
                    key, value = json.loads(line)
                    known.setdefault(key, []).append(value)
                except (ValueError, TypeError):
                    continue
        return known

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Callable[[str, Any], None]]:
        """A function that notes the result of a task under its key; without an output it does nothing."""
        if self._journals is None or self.merges:
            yield lambda key, result: None
            return
        number, total = self.share or (0, 1)
        path = self._journals.with_name(f"{self._journals.name}{number}-of-{total}.jsonl")
        with contextlib.ExitStack() as files:
            opened: list[IO[str]] = []

            def note(key: str, result: Any) -> None:
                try:
                    if not opened:
                        file = files.enter_context(open(path, "a", encoding="utf-8"))
                        opened.append(file)
                        file.write("\n" if file.tell() else "")  # the last line may be unfinished
                    opened[0].write(json.dumps([key, result]) + "\n")
                    opened[0].flush()
                except OSError as error:
                    raise disk_error(path, error) or error from error

            yield note


def _warn(flag: str, reason: str) -> None:
    print(f"warning: --{flag} has no effect: {reason}", file=sys.stderr)
