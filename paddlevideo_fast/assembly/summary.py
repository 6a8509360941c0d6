"""What the log says of a training: what it is at its beginning, and where its results are at its end."""

import os
import shlex
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.assembly.build import TrainingSetup
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.engine import CheckpointStore, Trainer
from paddlevideo_fast.engine.callbacks.evaluation import best_of
from paddlevideo_fast.engine.checkpoint import Snapshot
from paddlevideo_fast.log import counted, get_logger
from paddlevideo_fast.machine import MKL_PATH, available_cores
from paddlevideo_fast.modeling import classes_of, count_parameters

logger = get_logger(__name__)


def log_begin(trainer: Trainer, setup: TrainingSetup, checkpoint: Snapshot | None) -> None:
    """Logs where a training begins, how large an epoch is, and on what it computes."""
    run = setup.spec.run
    if checkpoint is not None:
        done, step = trainer.state.epoch, trainer.state.step_in_epoch
        logger.info("resumed %s: epoch %d, step %d of it", checkpoint.prefix, done + 1, step)
        if done >= trainer.num_epochs:
            logger.info("nothing is left to train: epoch %d of %d is done", done, trainer.num_epochs)
    if setup.spec.multigrid and not run.multigrid:
        logger.info("MULTIGRID has no effect: add --multigrid to train in its schedule")
    loader, num_clips = trainer.make_loader(trainer.phase_of(trainer.state.epoch)), len(setup.split.dataset)
    num_batches = min(trainer.steps_in_epoch(loader) * trainer.accumulate_steps, len(loader))
    num_taken = num_clips * num_batches // max(len(loader), 1)
    precision = trainer.precision
    how = f"{precision.name} ({precision.reason})" if precision.reason else precision.name
    logger.info(
        f"{run.model_name}: {count_parameters(trainer.model) / 1e6:.2f} M parameters, "
        f"{counted(num_taken, 'clip')} an epoch in {counted(num_batches, 'batch')}, "
        f"{counted(trainer.num_epochs, 'epoch')}, paddle {paddle.__version__} on "
        f"{paddle.device.get_device()} in {how}, seed {run.seed}, to {run.output_dir}"
    )
    dataset = setup.split.dataset
    if num_taken < num_clips:
        logger.info("max_iters: an epoch takes %d of the %d clips", num_taken, num_clips)
    if dataset.clips_per_video > 1:
        share = -(-len(dataset) // dataset.clips_per_video)
        text = "an epoch reads %d of the %d videos and makes %d clips of each"
        logger.info(text, share, len(dataset), dataset.clips_per_video)
    for note in setup.notes:
        logger.info(note)
    flags = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("FLAGS_") or name in ("NVIDIA_TF32_OVERRIDE", "KMP_BLOCKTIME", MKL_PATH)
    ]
    cores = ",".join(map(str, available_cores()))
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    logger.info("CPU threads: %s, on cores %s; Paddle flags: %s", threads, cores, " ".join(flags) or "none")


def log_results(store: CheckpointStore, trainer: Trainer, spec: RunSpec) -> dict[str, Any]:
    """Logs where the weights of a training are, and what to type next, and returns the results.

    Args:
        store: the checkpoints of the run.
        trainer: after its last epoch.
        spec: of the run.
    """
    folder, last, state = store.folder, store.latest(), trainer.state
    best = folder / f"{spec.run.model_name}_best.pdparams"
    weights = best if best.exists() else last and Path(f"{last}.pdparams")
    results: dict[str, Any] = {
        "output_dir": spec.run.output_dir,
        "weights": store.mirror.address(weights) if weights else None,
        "epochs": state.epoch,
        "best": dict(state.best),
        "last_validation": dict(state.last_validation),
    }
    if not weights:
        return results
    kind, address = "best" if weights == best else "last", results["weights"]
    chosen = best_of(state.best, state.choice, state.last_validation)
    logger.info("%s weights: %s (%s)", kind, address, chosen)
    if not classes_of(spec.model):
        logger.info("next: fine-tune a classifier with -o MODEL.backbone.pretrained=%s", shlex.quote(address))
        return results
    where = shlex.quote(str(folder))
    if spec.holds("DATASET.test"):
        logger.info("test:    paddlevideo-fast test %s", where)
    logger.info("export:  paddlevideo-fast export %s", where)
    logger.info("predict: paddlevideo-fast predict %s -i new_video.mp4", where)
    return results
