"""The output folder: where a run goes on from, and how earlier runs make room; nothing is overwritten."""

import contextlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from paddlevideo_fast.engine.checkpoint import CheckpointStore, Snapshot, load_checkpoint, writing
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.state import TrainerState
from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.io.stores import exists
from paddlevideo_fast.io.urls import is_url
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_TRACKED = ("tensorboard", "wandb", "trackers.json")  # what trackers cannot take back
_RUN_FILES = (
    *("metrics.jsonl", "train.log", "config.yaml", "class_names.txt", "bad_samples.txt"),
    *("vdl", "report.html", "test"),
)


def checkpoint_to_resume(
    store: CheckpointStore, resume: str | None, resume_epoch: int | None, distribution: Distribution
) -> Snapshot | None:
    """The checkpoint that a run goes on from; rank 0 chooses it for all ranks.

    Args:
        store: of the run.
        resume: "auto" for the newest of the store, a folder for its newest, or a checkpoint.
        resume_epoch: the store's checkpoint after so many epochs; goes before `resume`.
        distribution: the ranks.

    Returns:
        None where the run starts anew.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, on any rank.
    """
    source = store
    if resume and is_url(resume):
        source, resume = _fetched_marks(store, resume)
    prefix = distribution.gather_from(lambda: _prefix_to_resume(store, resume, resume_epoch))[0]
    if prefix is None:
        return None
    source.fetch(prefix)
    return load_checkpoint(prefix)


def _fetched_marks(store: CheckpointStore, url: str) -> tuple[CheckpointStore, str]:
    """The store that a URL to resume from belongs to, and the URL's place in its local folder."""
    folder, name = re.sub(r"\.(pdparams|pdopt|pdstates|json)$", "", url.removesuffix("/")), ""
    if exists(f"{folder}.pdparams"):
        folder, _, name = folder.rpartition("/")
    source = CheckpointStore(folder, store.name)
    source.fetch_marks()
    return source, str(source.folder / name)


def _prefix_to_resume(store: CheckpointStore, resume: str | None, resume_epoch: int | None) -> str | None:
    if resume_epoch:
        return str(store.prefix(f"epoch_{resume_epoch:05d}"))
    if not resume:
        return None
    if resume == "auto":
        latest = store.latest()
        if latest is None:
            logger.info("resume=auto: '%s' holds no checkpoint yet, the run starts anew", store.folder)
        return latest
    if not Path(resume).is_dir():
        return resume
    latest = CheckpointStore(resume, store.name).latest()
    if latest is None:
        raise CheckpointError(f"no checkpoint of '{store.name}' in '{resume}'")
    return latest


def make_room(store: CheckpointStore, state: TrainerState, checkpoint: Snapshot | None) -> None:
    """Moves aside what a run must not write over or mix with its own files.

    Args:
        store: of the run.
        state: where the run begins or goes on.
        checkpoint: that it goes on from. Where it is one of the store, checkpoints behind it belong to a
            branch that is left, and `resume=auto` must not take them. Else all files of the earlier run go.

    Raises:
        CheckpointError: the files cannot be moved.
    """
    if checkpoint is None or Path(checkpoint.prefix).resolve().parent != store.folder.resolve():
        _require_no_weights(store)
        earlier = _earlier_run(store.folder, store.name)
        move_earlier_run_aside(store.folder, store.name)
        store.discard(earlier)
        return
    later = [prefix for step, epoch, prefix in store.complete() if (step, epoch) > (state.step, state.epoch)]
    left = [path for prefix in later for path in store.files(prefix)]
    if left:  # trackers begin another run, with the records up to here
        left += [store.folder / name for name in _TRACKED if (store.folder / name).exists()]
    if left:
        _require_no_weights(store)
    target = move_aside(store.folder, left)
    store.discard(left)
    if target is not None:
        logger.info("%d checkpoints after the resumed one were moved to '%s'", len(later), target)


def move_earlier_run_aside(folder: Path, name: str) -> None:
    """Moves the files of an earlier run of this name to `folder/earlier-<n>/`; other files stay.

    Raises:
        CheckpointError: the files cannot be moved.
    """
    target = move_aside(folder, _earlier_run(folder, name))
    if target is not None:
        logger.info(
            "'%s' held an earlier run: moved to '%s' (-o resume=auto goes on with a run)", folder, target
        )


def _require_no_weights(store: CheckpointStore) -> None:
    """Raises `CheckpointError` where a URL holds weights of a run: nothing is moved aside there."""
    mirror, stem = store.mirror, f"{store.name}_"
    if mirror and any(name.startswith(stem) and name.endswith(".pdparams") for name in mirror.there):
        raise CheckpointError(
            f"output_dir {mirror.url}: holds an earlier run, or checkpoints behind the resumed one, "
            "and a store moves nothing aside: go on with -o resume=auto, or choose another output_dir"
        )


def _earlier_run(folder: Path, name: str) -> list[Path]:
    """The files of an earlier run of this name."""
    pattern = re.compile(
        re.escape(name) + r"_((epoch|step)_\d+|best|average(_last\d+|_greedy)?(_report)?)"
        r"\.(pdparams|pdopt|pdstates|json)"
    )  # not a glob: another model's name may begin with this one's
    found = [folder / file for file in (*_RUN_FILES, *_TRACKED) if (folder / file).exists()]
    return found + [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


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
