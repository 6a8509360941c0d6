"""The output folder of a run: where it goes on from, and what makes room for it."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from paddlevideo_fast.config import Config, RunSettings
from paddlevideo_fast.engine import Checkpoint, CheckpointStore, Distribution, Trainer, load_checkpoint
from paddlevideo_fast.engine.output import move_aside, move_earlier_run_aside, writing
from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.log import add_log_file, get_logger

logger = get_logger(__name__)


def checkpoint_to_resume(
    settings: RunSettings, store: CheckpointStore, distribution: Distribution
) -> Optional[Checkpoint]:
    """The checkpoint that the settings say to go on from, if any: the one that rank 0 finds.

    Raises:
        CheckpointError: it is missing or damaged, on any rank.
    """
    prefix = distribution.gather_from(lambda: _prefix_to_resume(settings, store))[0]
    return None if prefix is None else load_checkpoint(prefix)


def _prefix_to_resume(settings: RunSettings, store: CheckpointStore) -> Optional[str]:
    if settings.resume_epoch:
        return str(store.prefix(f"epoch_{settings.resume_epoch:05d}"))
    if not settings.resume:
        return None
    if settings.resume != "auto" and not Path(settings.resume).is_dir():
        return settings.resume
    folder = store if settings.resume == "auto" else CheckpointStore(settings.resume, settings.model_name)
    latest = folder.latest()
    if latest is None and settings.resume != "auto":
        raise CheckpointError(f"no checkpoint of '{settings.model_name}' in '{settings.resume}'")
    if latest is None:
        logger.info("resume=auto: '%s' holds no checkpoint yet, the run starts anew", store.folder)
    return latest


def open_output(
    cfg: Config, store: CheckpointStore, trainer: Trainer, checkpoint: Optional[Checkpoint]
) -> None:
    """Makes room in the output folder, and opens the run's log and config there."""
    if checkpoint is not None and Path(checkpoint.prefix).resolve().parent == store.folder.resolve():
        _move_later_checkpoints_aside(store, trainer)
    else:
        move_earlier_run_aside(store.folder, store.name)
    with writing(store.folder):
        add_log_file(store.folder / "train.log")
        _without_start(cfg).save(store.folder / "config.yaml")


def _without_start(cfg: Config) -> Config:
    """The config without what belongs to this start alone: loading it gives the run from its beginning."""
    start = ("resume", "resume_epoch", "weights", "profiler_options")
    return Config({key: value for key, value in cfg.items() if key not in start}, path=cfg.path)


def _move_later_checkpoints_aside(store: CheckpointStore, trainer: Trainer) -> None:
    """A run that goes on from an older checkpoint leaves a branch behind, which resume=auto must not take."""
    position = trainer.state.step, trainer.state.epoch
    later = [prefix for *place, prefix in store.complete() if tuple(place) > position]
    target = move_aside(store.folder, [path for prefix in later for path in store.files(prefix)])
    if target is not None:
        logger.info("%d checkpoints after the resumed one were moved to '%s'", len(later), target)
