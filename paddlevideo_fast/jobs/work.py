"""All of a tool's work, or one job's share of it, and what is known of it already.

A job array does a list in shares, each job on any machine that sees the output:

    --job 0/3    tasks 0, 3, 6, ...
    --job 1/3    tasks 1, 4, 7, ...
    --job 2/3    tasks 2, 5, 8, ...
    --merge      no task: writes the lists and reports that a run of all would write

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from paddlevideo_fast.errors import ObjectMissingError
from paddlevideo_fast.io.files import atomic_write_text, sweep, working_folder
from paddlevideo_fast.io.locks import Lock, only_writer
from paddlevideo_fast.jobs.dry_run import MakeTrial, estimate, print_dry_run
from paddlevideo_fast.jobs.executor import LOCAL, Executor, SharedFiles, common_folder, run_all
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    json_lines,
    read_provenance,
    require_file,
    stop_if_disk_fails,
    write_lines,
)
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.sources.remote.stores import put

_JOURNAL = ".journal-"

Item = TypeVar("Item")


class Shard(NamedTuple):
    """Part `number`, from 0 on, of `total` parts of the tasks."""

    number: int
    total: int


class Outcome(Protocol):
    """What came of a task. JSON holds it, see `Task.restored`."""

    @property
    def cause(self) -> str | None:
        """Why the task failed; empty or None where it did not."""


class Task(Protocol):
    """What a tool does many of; it is pickled."""

    @property
    def name(self) -> str:
        """Tells it from all other tasks."""

    @property
    def sources(self) -> Sequence[str]:
        """The files that it reads."""

    def do(self) -> Outcome:
        """Does it; see `run_all`."""

    def restored(self, value: Any) -> Outcome | None:
        """An outcome from what JSON has kept of it, or None where it is of no more use."""


AnyTask = TypeVar("AnyTask", bound=Task)


def _do(task: Task) -> Outcome:
    return task.do()


class Work:
    """How a tool does its tasks.

    Args:
        executor: where.
        shard: which of them; None: all.
        merges: none; the journals of all shares say what came of them.
        is_dry: none; it says what they would take, and nothing is written.
        json: a dry run prints JSON.
    """

    def __init__(
        self,
        executor: Executor,
        shard: Shard | None = None,
        merges: bool = False,
        is_dry: bool = False,
        json: bool = False,
    ) -> None:
        self.executor = executor
        self.shard = shard
        self.merges = merges
        self.is_dry = is_dry
        self.json = json
        self._output: Any = None
        self._lock: Lock | None = None
        self._remote: Any = None  # the output, if it is a URL
        self._journals: Path | None = None  # what the names of all of them begin with
        self._journal: IO[str] | None = None  # this job's, from its first result on

    @classmethod
    def of(cls, args: argparse.Namespace) -> Work:
        """What the flags of a tool say."""
        if args.job and args.merge:
            raise ToolError("give either --job, to do a share of the work, or --merge, to put all together")
        is_elsewhere = args.scheduler != LOCAL
        idle = "--merge does no work" if args.merge else ""
        if is_elsewhere and idle:
            _warn("scheduler", idle)
        if args.workers is not None and (idle or is_elsewhere):
            _warn("workers", idle or f"the workers of {args.scheduler} do the work")
        workers = num_cores() if args.workers is None else args.workers
        is_dry = getattr(args, "dry_run", False)  # not all tools have it
        return cls(Executor(workers, args.scheduler), args.job, args.merge, is_dry, args.json)

    @property
    def is_whole(self) -> bool:
        """Whether all results are known at the end."""
        return self.shard is None

    def mine(self, tasks: Sequence[Item]) -> list[Item]:
        """The tasks that this job does."""
        return list(tasks if self.shard is None else tasks[self.shard.number :: self.shard.total])

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
            OutputError: the output cannot be written.
            ToolError: `file` is a folder.
        """
        require_file(folder / file if file else None, "output_file")
        work = f"{zlib.crc32(name.encode('utf-8', 'surrogateescape')):08x}"
        share = None if self.shard is None else (f"{work}-of-{self.shard.total}", self.shard.number)
        self._output, self._remote = folder, None if isinstance(folder, Path) else folder
        self._journals = working_folder(folder) / f"{_JOURNAL}{work}-"
        locking = only_writer(folder, file, "--output_file" if file else "--output", share)
        if self.is_dry:
            with locking:  # nobody else writes to it, and this process can; that leaves nothing
                self._all_journals()
            yield
            return
        with locking as lock:
            # the workers write to a folder, and this process a single file; nobody sees a lock of a store
            self._lock = None if file or self._remote is not None else lock
            there = [path for path in {*folders} if isinstance(path, Path)]
            for path in there:
                sweep(path, alone=self.is_whole)
            try:
                if (
                    self._remote is not None
                ):  # a lock on this machine does not show that the store takes files
                    self._all_journals()  # of a web server, which lists nothing, this says so
                    probe = folder / f".writable-{work}"
                    atomic_write_text(probe, "")
                    probe.unlink(missing_ok=True)
                yield
            finally:
                if self._journal:
                    self._journal.close()
                for path in there:
                    sweep(path)  # after Ctrl-C, of workers that were killed
            if self.is_whole:
                for path in there:
                    sweep(path, alone=True)
                for journal in self._all_journals():
                    journal.unlink(missing_ok=True)

    @contextlib.contextmanager
    def recording(self, made: Provenance) -> Iterator[None]:
        """Writes to provenance.json what makes the output, see `Provenance.kept_in`; use it in `writing`."""
        if self.is_dry:
            read_provenance(self._output)
            yield
        else:
            with made.kept_in(self._output, self.is_whole):
                yield

    @contextlib.contextmanager
    def writing_file(self, file: Path | None, name: str, content: str) -> Iterator[None]:
        """As `writing`, of a single file; None: the results are only printed.

        Args:
            file: of the output.
            name: of the work, such as "check".
            content: of the file, for the error.

        Raises:
            ToolError: there is no file, and jobs do shards, whose results go there; else see `writing`.
        """
        if file is not None:
            with self.writing(file.parent, f"{name} {file.name}", file.name):
                yield
        elif self.shard or self.merges:
            raise ToolError(f"--output_file is missing: with --job and --merge, the file for {content}")
        else:
            yield

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], what: str, folders: Sequence[str]
    ) -> Iterator[Any]:
        """Does tasks and yields their results in their order; `folders` are what they read, see `run_all`."""
        return run_all(function, tasks, self.executor, what, SharedFiles(self._lock, folders))

    def results(
        self,
        tasks: Sequence[Task],
        what: str,
        done: Mapping[str, Any] | None = None,
        trial: MakeTrial | None = None,
    ) -> list[Any] | None:
        """Does tasks whose outcome is not known.

        Args:
            tasks: of this job.
            what: their name.
            done: name of a task → its outcome, where it is known.
            trial: for a tool with --dry_run, see `MakeTrial`.

        Returns:
            The outcomes of all in their order; None where this job has only done a share, or nothing.

        Raises:
            ToolError: with `merges`, outcomes are missing; else see `run_all`.
        """
        outcome_of = dict(done or {})
        known = self._known()
        for task in tasks:
            values = [] if task.name in outcome_of else known.get(task.name, [])
            outcomes = [outcome for value in reversed(values) if (outcome := task.restored(value))]
            best = min(outcomes, key=lambda outcome: bool(outcome.cause), default=None)
            if best and (self.merges or not best.cause):
                outcome_of[task.name] = best
        missing = [task for task in tasks if task.name not in outcome_of]
        if self.merges and missing:
            raise ToolError(
                f"--merge: {len(missing)} {what} have no result yet: wait for the end of all jobs, "
                "and start again what was stopped; or leave --merge out, and this run does them"
            )
        if self.is_dry and trial:
            num_done = len(tasks) - len(missing)
            print_dry_run(estimate(missing, num_done, what, self._output, self.executor, trial), self.json)
            return None
        if len(missing) < len(tasks) and not self.merges:
            done_already = f"{what}: {len(tasks) - len(missing)} of {len(tasks)} are done already"
            print(done_already, file=sys.stderr, flush=True)
        shared = SharedFiles(self._lock, common_folder([file for task in missing for file in task.sources]))
        results = run_all(_do, missing, self.executor, what, shared, self._note)
        outcome_of.update(zip([task.name for task in missing], results))
        if self.shard is None:
            return [outcome_of[task.name] for task in tasks]
        if self._remote is not None:  # for the merge, on whatever machine
            for journal in self._all_journals():
                if isinstance(journal, Path):
                    put(journal, str(self._remote / journal.name))
        failed = sum(bool(outcome_of[task.name].cause) for task in tasks)
        print(
            f"--job {self.shard.number}/{self.shard.total}: {len(tasks)} {what} done, {failed} of them "
            "failed; when all jobs are done, run the same command with --merge in place of --job"
        )
        return None

    def remembered(self, tasks: Sequence[AnyTask], what: str, file: Path | None) -> dict[AnyTask, Any] | None:
        """The outcomes of this job's tasks, which a file keeps from one work to the next, but for failures.

        Args:
            tasks: of all jobs; each is known by its name, and may be named twice.
            what: their name.
            file: .jsonl; it may hold outcomes of other tasks. None: nothing is kept.

        Returns:
            None where this job has only done a share.
        """
        mine = self.mine([*dict.fromkeys(tasks)])
        kept = dict(json_lines(file)) if file else {}
        known = {task.name: task.restored(kept[task.name]) for task in mine if task.name in kept}
        results = self.results(mine, what, {name: outcome for name, outcome in known.items() if outcome})
        if results is None:
            return None
        outcomes = dict(zip(mine, results))
        if file:
            kept |= {task.name: outcome for task, outcome in outcomes.items() if not outcome.cause}
            write_lines(file, (json.dumps(entry) for entry in kept.items()))
        return outcomes

    def _all_journals(self) -> list[Any]:
        """The journals on this machine, and the journals that jobs have put into the store of the output."""
        if self._journals is None:
            return []
        journals: list[Any] = sorted(self._journals.parent.glob(f"{self._journals.name}*"))
        with contextlib.suppress(ObjectMissingError):  # nothing has been written there
            if self._remote is not None:
                journals += self._remote.glob(f"{self._journals.name}*")
        return journals

    def _known(self) -> dict[str, list[Any]]:
        """Name of a task → what journals say of it. Unfinished lines are passed over."""
        known: dict[str, list[Any]] = {}
        for journal in self._all_journals():
            for name, value in json_lines(journal):
                known.setdefault(name, []).append(value)
        return known

    def _note(self, task: Task, outcome: Outcome) -> None:
        """Adds an outcome to this job's journal; without an output, there is none."""
        if self._journals is None:
            return
        number, total = self.shard or (0, 1)
        path = self._journals.with_name(f"{self._journals.name}{number}-of-{total}.jsonl")
        try:
            if self._journal is None:
                self._journal = open(path, "a", encoding="utf-8")  # noqa: SIM115  # see `writing`
                self._journal.write("\n" if self._journal.tell() else "")  # the last line may be unfinished
            self._journal.write(json.dumps([task.name, outcome]) + "\n")
            self._journal.flush()
        except OSError as error:
            stop_if_disk_fails(path, error)
            raise


def _warn(flag: str, reason: str) -> None:
    print(f"warning: --{flag} has no effect: {reason}", file=sys.stderr)
