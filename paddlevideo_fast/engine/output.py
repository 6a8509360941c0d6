"""The output folder of a run: its checkpoints, where a run goes on from, and how earlier runs make room.

Nothing of an earlier run is overwritten.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.engine.checkpoint import (
    ENDINGS,
    Buffers,
    Snapshot,
    load_checkpoint,
    read_mark,
    write_checkpoint,
    write_weights,
    writing,
)
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.state import TrainerState
from paddlevideo_fast.errors import CheckpointError, PaddleVideoFastError, UnsavedError, WeightError
from paddlevideo_fast.io.files import as_path, sweep
from paddlevideo_fast.io.locks import LOCK
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_LONGEST_BYTES = 255 - len("_step_00000000.pdparams")
_TRACKED = ("tensorboard", "wandb", "trackers.json")  # what trackers cannot take back
FOLDS = "folds.json"  # the result of a cross-validation, whose runs are in fold_1, fold_2, …
_RUN_FILES = (
    *("metrics.jsonl", "train.log", "config.yaml", "class_names.txt", "bad_samples.txt"),
    *("vdl", "report.html", "predictions.jsonl", "test"),
)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run's output folder; a URL has a local one, which goes into the store with each save.
        name: the model's name, with which the names of the files start.

    Attributes:
        folder: the local folder.
        name: as given.
        mirror: the local folder as the image of one in a store; does nothing for a folder of this machine.

    Raises:
        CheckpointError: the name cannot be part of a file name.
    """

    def __init__(self, folder: str | Path, name: str) -> None:
        if "/" in name:
            raise CheckpointError(f"model_name '{name}' holds a '/', but files are named after it")
        if len(os.fsencode(name)) > _LONGEST_BYTES:
            raise CheckpointError(
                f"model_name is {len(os.fsencode(name))} bytes long, but files are named after it: take at "
                f"most {_LONGEST_BYTES}"
            )
        self.mirror = file_system(folder).output_folder(str(folder))
        self.folder = self.mirror.folder
        self.name = name

    def prepare(self) -> None:
        """Makes the folder, and removes temporary files of processes that died while they saved.

        Of a run in a store, all but the weights is fetched.

        Raises:
            CheckpointError: the folder cannot be made or written to.
            PaddleVideoFastError: the store does not answer, or refuses.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as exc:
            raise CheckpointError(
                f"output folder '{self.folder}' cannot be written: {exc.strerror or exc}; "
                "choose another with -o output_dir=..."
            ) from exc
        self.fetch_marks()
        self.mirror.try_writing()

    def fetch_marks(self) -> None:
        """Fetches what a store has of a run, but for weights; does nothing for a folder."""
        self.mirror.fetch(skip=ENDINGS)

    def fetch(self, prefix: str) -> None:
        """Fetches the files of a checkpoint, and the best weights; does nothing for a folder."""
        if Path(prefix).parent == self.folder:
            stem = Path(prefix).name
            best = f"{self.name}_best.pdparams"
            self.mirror.fetch([best, *(f"{stem}{ending}" for ending in (*ENDINGS, ".json"))])

    def upload(self) -> None:
        """Puts what has changed in the folder of a URL into the store.

        A log or curve that the store does not take is a warning; the next upload tries again.

        Raises:
            PaddleVideoFastError: the store does not take a checkpoint.
        """
        self.mirror.push(required=(*ENDINGS, ".json"))

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Uploads when the block ends, also after an error."""
        try:
            yield
        except BaseException:
            try:
                self.upload()
            except PaddleVideoFastError as error:
                logger.error("%s", error)
            raise
        self.upload()

    def prefix(self, tag: str) -> Path:
        """Path without ending of the checkpoint `tag`, such as "epoch_00003"."""
        return self.folder / f"{self.name}_{tag}"

    def save(self, tag: str, snapshot: Snapshot) -> str:
        """Writes a checkpoint and returns its prefix.

        Raises:
            UnsavedError: a file cannot be written (disk full, say); earlier checkpoints are whole. The
                checkpoint is then beside the folder or in a temporary folder, where there is room for it.
        """
        self._put("checkpoint", snapshot, lambda copied: self._save(tag, copied))
        return str(self.prefix(tag))

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Writes a copy in host memory, which may use buffers of earlier saves of this kind."""
        write(snapshot.on_host())

    def _save(self, tag: str, snapshot: Snapshot) -> None:
        prefix = self.prefix(tag)
        try:
            write_checkpoint(prefix, snapshot)
        except OSError as exc:
            problem = f"checkpoint '{prefix}' cannot be written: {exc.strerror or exc}; "
            elsewhere = self._save_elsewhere(tag, snapshot)
            if elsewhere is None:
                problem += f"earlier checkpoints in '{self.folder}' are whole. Make room and go on with "
                raise UnsavedError(problem + "-o resume=auto") from exc
            problem += f"it is '{elsewhere}' instead. Mend the folder and go on with "
            raise UnsavedError(problem + f"-o resume={shlex.quote(str(elsewhere))}") from exc
        self.upload()

    def _save_elsewhere(self, tag: str, snapshot: Snapshot) -> Path | None:
        """The prefix of a checkpoint outside the folder; None where it cannot be written either."""
        path = self.folder.absolute()
        for parent in (path.parent, None):
            try:
                folder = Path(tempfile.mkdtemp(prefix=f"{path.name}-saved-", dir=parent))
            except OSError:
                continue
            try:
                write_checkpoint(folder / f"{self.name}_{tag}", snapshot)
                return folder / f"{self.name}_{tag}"
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def save_weights(self, tag: str, weights: Mapping[str, Any]) -> None:
        """Writes the weights alone, which is all that testing and export need of the best epoch."""
        self._put(tag, Snapshot(dict(weights)), lambda copied: self._save_weights(tag, copied))

    def _save_weights(self, tag: str, snapshot: Snapshot) -> None:
        write_weights(self.prefix(tag), snapshot.weights)
        self.upload()

    def check(self) -> None:
        """Raises the error of a save that has failed since the last call; does not wait."""

    def wait(self) -> None:
        """Waits until all that was saved is on the disk.

        Raises:
            UnsavedError, CheckpointError: a save failed.
        """

    def close(self) -> None:
        """Like `wait`; an error is logged."""

    def complete(self) -> list[tuple[int, int, str]]:
        """(step, epoch, prefix) of the checkpoints that have their mark, oldest first.

        At the same step, a checkpoint after the evaluation of an epoch is newer than one before it.
        """
        return _complete(self.folder, re.escape(self.name))

    def latest(self) -> str | None:
        """Prefix of the newest complete checkpoint."""
        checkpoints = self.complete()
        return checkpoints[-1][-1] if checkpoints else None

    def remove_all_but(self, num_kept: int) -> None:
        """Removes all checkpoints but the `num_kept` newest; what cannot be removed stays, with a warning."""
        for *_, old in self.complete()[:-num_kept]:
            try:
                for path in self.files(old):
                    path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("'%s' cannot be removed: %s", old, error.strerror or error)
            else:
                self.mirror.discard(Path(old + ending) for ending in (".json", *ENDINGS))

    def files(self, prefix: str) -> list[Path]:
        """The existing files of a checkpoint, its mark first."""
        paths = [Path(prefix + ending) for ending in (".json", ".pdstates", ".pdopt", ".pdparams")]
        return [path for path in paths if path.exists()]

    def checkpoint_to_resume(
        self, resume: str | None, resume_epoch: int | None, distribution: Distribution
    ) -> Snapshot | None:
        """The checkpoint that a run goes on from; rank 0 chooses it for all ranks.

        Args:
            resume: "auto" for the newest of the store, a folder for its newest, or a checkpoint.
            resume_epoch: the store's checkpoint after so many epochs; goes before `resume`.
            distribution: the ranks.

        Returns:
            None where the run starts anew.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, on any rank.
        """
        source: CheckpointStore = self
        if resume and not file_system(resume).is_local:
            source, resume = self._fetched_marks(resume)
        prefix = distribution.gather_from(lambda: self._prefix_to_resume(resume, resume_epoch))[0]
        if prefix is None:
            return None
        source.fetch(prefix)
        return load_checkpoint(prefix)

    def _fetched_marks(self, url: str) -> tuple[CheckpointStore, str]:
        """The store that a URL to resume from belongs to, and the URL's place in its local folder."""
        folder, name = re.sub(r"\.(pdparams|pdopt|pdstates|json)$", "", url.removesuffix("/")), ""
        if file_system(folder).exists(f"{folder}.pdparams"):
            folder, _, name = folder.rpartition("/")
        source = CheckpointStore(folder, self.name)
        source.fetch_marks()
        return source, str(source.folder / name)

    def _prefix_to_resume(self, resume: str | None, resume_epoch: int | None) -> str | None:
        if resume_epoch:
            return str(self.prefix(f"epoch_{resume_epoch:05d}"))
        if not resume:
            return None
        if resume == "auto":
            latest = self.latest()
            if latest is None:
                logger.info("resume=auto: '%s' holds no checkpoint yet, the run starts anew", self.folder)
            return latest
        if not Path(resume).is_dir():
            return resume
        latest = CheckpointStore(resume, self.name).latest()
        if latest is None:
            raise CheckpointError(f"no checkpoint of '{self.name}' in '{resume}'")
        return latest

    def archive_earlier_run(self, state: TrainerState, checkpoint: Snapshot | None) -> None:
        """Moves to `earlier-<n>/` what a run must not write over or mix with its own files.

        Args:
            state: where the run begins or goes on.
            checkpoint: that it goes on from. Where it is one of the store, checkpoints behind it belong to a
                branch that is left, and `resume=auto` must not take them. Else all files of an earlier run of
                this name go; other files stay.

        Raises:
            CheckpointError: the files cannot be moved, or a URL holds weights: a store moves nothing aside.
        """
        if checkpoint is None or Path(checkpoint.prefix).resolve().parent != self.folder.resolve():
            self.require_no_weights()
            moved = self.earlier_files()
            text = f"'{self.folder}' held an earlier run: moved to '%s' (-o resume=auto goes on with a run)"
        else:
            position = state.step, state.epoch
            later = [prefix for step, epoch, prefix in self.complete() if (step, epoch) > position]
            moved = [path for prefix in later for path in self.files(prefix)]
            text = f"{len(later)} checkpoints after the resumed one were moved to '%s'"
            if moved:  # trackers begin another run, with the records up to here
                self.require_no_weights()
                moved += [self.folder / name for name in _TRACKED if (self.folder / name).exists()]
        target = move_aside(self.folder, moved)
        self.mirror.discard(moved)
        if target is not None:
            logger.info(text, target)

    def require_no_weights(self) -> None:
        """Raises `CheckpointError` where a URL holds weights of a run."""
        mirror, stem = self.mirror, f"{self.name}_"
        if any(name.startswith(stem) and name.endswith(".pdparams") for name in mirror.there):
            raise CheckpointError(
                f"output_dir {mirror.url}: holds an earlier run, or checkpoints behind the resumed one, "
                "and a store moves nothing aside: go on with -o resume=auto, or choose another output_dir"
            )

    def earlier_files(self) -> list[Path]:
        """The files of an earlier run of this name."""
        pattern = re.compile(
            re.escape(self.name) + r"_((epoch|step)_\d+|best|average(_last\d+)?(_report)?)"
            r"\.(pdparams|pdopt|pdstates|json)"
        )  # not a glob: another model's name may begin with this one's
        files = [self.folder / file for file in (*_RUN_FILES, *_TRACKED) if (self.folder / file).exists()]
        return files + [path for path in self.folder.iterdir() if pattern.fullmatch(path.name)]


class ReadOnlyStore(CheckpointStore):
    """The checkpoints of a run on a rank that only reads them: rank 0 writes."""

    def prepare(self) -> None:
        """Rank 0 does it."""

    def upload(self) -> None:
        """Rank 0 does it."""

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Rank 0 does it."""

    def remove_all_but(self, num_kept: int) -> None:
        """Rank 0 does it."""


class BackgroundStore(CheckpointStore):
    """Writes checkpoints in a thread, from copies in host memory; training stops for the copy only.

    A save waits for the last save of its kind, as both use the same memory: beside the network it takes as
    much as weights, optimizer and moving average together, and the weights once more for the best. What the
    thread meets is raised by the next call of `check`, `wait`, or a save of the same kind; of several errors
    one is raised and the others are logged. As with `CheckpointStore`, a process that dies leaves no file
    half written.

    Args:
        folder: the run's output folder.
        name: the model's name, with which the names of the files start.
    """

    def __init__(self, folder: Any, name: str) -> None:
        super().__init__(folder, name)
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._coming: list[Future] = []
        self._last: dict[str, Future] = {}  # of each kind
        self._buffers: dict[str, Buffers] = {}

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        self._wait_for(kind)
        copied = snapshot.on_host(self._buffers.setdefault(kind, {}))
        self._last[kind] = self._thread.submit(write, copied)
        self._coming.append(self._last[kind])

    def remove_all_but(self, num_kept: int) -> None:
        self._coming.append(self._thread.submit(super().remove_all_but, num_kept))  # behind what is written

    def check(self) -> None:
        self._collect([each for each in self._coming if each.done()])

    def wait(self) -> None:
        self._collect(list(self._coming))

    def close(self) -> None:
        while self._coming:
            try:
                self.wait()
            except PaddleVideoFastError as error:
                logger.error("%s", error)
        self._thread.shutdown()  # neither thread nor memory outlives the run
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # starts with the next save
        self._last.clear()
        self._buffers.clear()

    def _wait_for(self, kind: str) -> None:
        if kind in self._last:
            last = self._last.pop(kind)
            last.exception()
            self._collect([last] if last in self._coming else [])

    def _collect(self, ended: list[Future]) -> None:
        """Waits for these saves; raises one error, an `UnsavedError` if there is one, and logs the others."""
        errors = [error for error in (each.exception() for each in ended) if error is not None]
        self._coming = [each for each in self._coming if each not in ended]
        errors.sort(key=lambda error: not isinstance(error, UnsavedError))
        for error in errors[1:]:
            logger.error("%s", error, exc_info=None if isinstance(error, PaddleVideoFastError) else error)
        if errors:
            raise errors[0]


def _complete(folder: Any, name: str) -> list[tuple[int, int, str]]:
    """See `CheckpointStore.complete`; `name` is a pattern."""
    mark, checkpoints = re.compile(rf"{name}_(epoch|step)_\d+\.json"), []
    for path in folder.iterdir() if folder.is_dir() else ():
        record = read_mark(path) if mark.fullmatch(path.name) else None
        if record is not None:
            position = record["trainer"]["step"], record["trainer"]["epoch"]
            checkpoints.append((*position, str(path)[: -len(".json")]))
    return sorted(checkpoints)


def newest_run(base: str | Path) -> Path | None:
    """The folder of the newest run among BASE, BASE_2, BASE_3, …: the one that saved weights last.

    None where none of them holds weights.
    """
    folder = as_path(str(base).rstrip("/"))
    numbered = re.compile(re.escape(folder.name) + r"_\d+")
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    runs = [folder, *(path for path in beside if numbered.fullmatch(path.name) and path.is_dir())]
    saved = [
        (max(path.stat().st_mtime_ns for path in weights), run) for run in runs if (weights := _saved(run))
    ]
    return max(saved)[1] if saved else None


def weights_of_run(folder: str | Path) -> Path:
    """The best weights in the output folder of a run; those of the newest checkpoint where there are no best.

    Raises:
        WeightError: there are neither.
    """
    folder = as_path(folder)
    best = [path for path in _saved(folder) if path.name.endswith("_best.pdparams")]
    if best:
        return max(best, key=lambda path: path.stat().st_mtime_ns)
    checkpoints = _complete(folder, ".+")
    if not checkpoints:
        raise WeightError(f"{folder}: holds neither best weights nor a checkpoint of a run")
    return as_path(f"{checkpoints[-1][-1]}.pdparams")


def epochs_of_run(folder: str | Path) -> tuple[int, int]:
    """How many epochs the run in a folder has done, and how many its config has; 0, 0 if it does not say."""
    checkpoints, file = _complete(as_path(folder), ".+"), as_path(folder) / CONFIG_FILE
    with contextlib.suppress(PaddleVideoFastError):
        epochs = load_config(str(file), check=False).get("epochs")
        return (checkpoints[-1][1], epochs) if checkpoints and isinstance(epochs, int) else (0, 0)
    return 0, 0


def run_of_config(cfg: Config) -> str:
    """The folder of the run that saved a config, which may have been moved since, else of its newest run.

    An output_dir of -o goes before both; without any run, it is the folder that a run would take.
    """
    base, path = RunSpec.of(cfg).run.output_dir, Path(cfg.path or "")
    is_saved = path.name == CONFIG_FILE and bool(_saved(path.parent))
    if is_saved and file_system(base).is_local and not cfg.where("output_dir").startswith("-o "):
        return str(path.parent)
    return base if cfg.get("output_dir") else str(newest_run(base) or base)


def weights_of_config(cfg: Config) -> Path:
    """The weights of the run that saved a config, else of the newest run that was started with it.

    Raises:
        WeightError: there are none.
    """
    folder = run_of_config(cfg)
    try:
        return weights_of_run(folder)
    except WeightError as error:
        raise WeightError(f"'{folder}' holds no weights") from error


def _saved(folder: Any) -> list[Any]:
    """The best weights, and the weights of checkpoints, that a run has saved in `folder`."""
    pattern = re.compile(r".+_(best|(epoch|step)_\d+)\.pdparams")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []


def run_with(base: str | Path, path: str | Path) -> Path | None:
    """The run among `base`, `base_2`, … whose folder `path` is, or lies in; None: another or none."""
    base = Path(base).expanduser()
    numbered = re.compile(re.escape(base.name) + r"(_\d+)?")
    for folder in (Path(path).expanduser(), Path(path).expanduser().parent):
        if numbered.fullmatch(folder.name) and folder.resolve().parent == base.resolve().parent:
            return base.with_name(folder.name) if _holds_run(folder) else None
    return None


def folder_of_run(base: str | Path, resume: str | None = None) -> Path:
    """The folder that a run takes: of the run that it resumes, else the first free of `base`, `base_2`, ….

    Args:
        base: the folder that the config's name gives.
        resume: "auto": the newest run; a checkpoint or folder: the run that it belongs to; None: a new run.
    """
    there = newest_run(base) or Path(base) if resume == "auto" else resume and run_with(base, resume)
    if there:
        return there
    numbered = (Path(f"{base}_{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([Path(base)], numbered) if not _is_taken(each))


def _holds_run(folder: Path) -> bool:
    if (folder / "config.yaml").exists() or (folder / FOLDS).exists():
        return True
    return folder.is_dir() and any(folder.glob("*.pdparams"))


def _is_taken(folder: Path) -> bool:
    """Whether a run is in a folder, has just begun there, or the path is a file."""
    return _holds_run(folder) or (folder / LOCK).exists() or folder.is_file()


def move_aside(folder: Path, paths: Sequence[Path]) -> Path | None:
    """Moves files to a new `folder/earlier-<n>/`, which is returned; None where there is nothing to move.

    VisualDL's records become `vdl.zip`.

    Raises:
        CheckpointError: the files cannot be moved.
    """
    if not paths:
        return None
    number = 1
    while (target := folder / f"earlier-{number}").exists():
        number += 1
    with writing(folder):
        target.mkdir()
        for path in paths:
            path.rename(target / path.name)
    for board in target.rglob("vdl"):  # VisualDL would show it beside the runs of today
        with contextlib.suppress(OSError):  # it stays a folder
            shutil.make_archive(str(board), "zip", board)
            shutil.rmtree(board)
    return target
