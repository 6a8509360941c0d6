"""`train --dry_run`: what a training would read, write and take. It makes all checks and writes nothing."""

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.apps.doctor.timing import OF_A_STEP, StepTimes, time_steps
from paddlevideo_fast.assembly import TrainingSetup
from paddlevideo_fast.assembly.folder import in_own_folder
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.assembly.run import build_run
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.checkpoint import Snapshot, portable_state
from paddlevideo_fast.engine.distribution import launched_rank, make_distribution
from paddlevideo_fast.engine.output import CheckpointStore, ReadOnlyStore
from paddlevideo_fast.errors import UsageError
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs.dry_run import free_bytes, print_dry_run
from paddlevideo_fast.jobs.run import duration, size_text
from paddlevideo_fast.modeling import count_parameters
from paddlevideo_fast.modeling.weights import stored_state

_NUM_STEPS, _BUDGET_SEC = 4, 20.0


def run(cfg: Config, args: argparse.Namespace) -> None:
    """Prints what a training of a config would be.

    Raises:
        UsageError: the command line asks for a test, or for several runs.
        PaddleVideoFastError: as the training would end with.
    """
    if args.test:
        raise UsageError("--dry_run: is for a training; leave --test out")
    if args.folds:
        raise UsageError(
            "--dry_run: is for one run; leave --folds out, whose K runs take about K times as much"
        )
    with cfg.placing(), _without_infos():
        plan = plan_run(RunSpec.for_training(cfg), launched_rank()[1])
        distribution = make_distribution(plan.spec.distributed)
        spec = in_own_folder(plan.spec, distribution)
        store = ReadOnlyStore(spec.run.output_dir, spec.run.model_name)
        distribution.gather_from(lambda: _require_free(store) if distribution.is_main else None)
        trainer, setup, checkpoint = build_run(replace(plan, spec=spec), store, distribution)
        setup.split.bad_samples.path = None
        with contextlib.closing(setup):
            loader = trainer.make_loader(trainer.phase_of(trainer.state.epoch))
            lines = [
                _data_line(setup),
                _network_line(setup, checkpoint),
                _training_line(trainer, setup, trainer.steps_in_epoch(loader)),
                _folder_line(trainer, store, checkpoint),
            ]
            times = None
            if trainer.state.epoch < trainer.num_epochs:
                times = time_steps(setup, loader, _NUM_STEPS, 1, _BUDGET_SEC)
            optimizer = distribution.gather_optimizer_state(portable_state(setup.optimizer, setup.model))
            lines += [_disk_line(trainer, setup, optimizer), _time_line(trainer, setup, times)]
        print_dry_run(lines, args.json)


def _require_free(store: CheckpointStore) -> None:
    """Checks that no other run writes to the folder, and that this one can; that leaves nothing there."""
    with only_writer(store.folder, given_by="output_dir"):
        store.fetch_marks()


def _data_line(setup: TrainingSetup) -> str:
    data = setup.spec.config["DATASET"]
    parts = [("training", "train", setup.split), ("validation", "valid", setup.valid)]
    texts = [
        f"{len(split.dataset.records)} records of {data[key].get('file_path')} for {what}"
        for what, key, split in parts
        if split is not None
    ]
    return f"data: {', '.join(texts)}, {setup.model.num_classes} classes"


def _network_line(setup: TrainingSetup, checkpoint: Snapshot | None) -> str:
    spec = setup.spec
    weights = spec.run.weights or (spec.model.get("backbone") or {}).get("pretrained")
    weights = weights if checkpoint is None else f"{checkpoint.prefix}.pdparams"
    source = f"from {weights}" if weights else "from random weights"
    return f"network: {spec.run.model_name}, {count_parameters(setup.model) / 1e6:.2f} M parameters, {source}"


def _training_line(trainer: Trainer, setup: TrainingSetup, steps: int) -> str:
    epochs = trainer.num_epochs
    highest = max(setup.curve.at(part / 100) for part in range(100 * epochs + 1))
    name = (setup.spec.optimizer or {}).get("name")
    plain = f"{epochs} epochs of {steps} steps"
    text = f"{epochs} epochs in multigrid shapes" if setup.spec.run.multigrid else plain
    return (
        f"training: {text}, {setup.plan.global_batch_size} clips a step; {name}, "
        f"learning rate up to {highest:.3g} ({type(setup.curve).__name__})"
    )


def _folder_line(trainer: Trainer, store: CheckpointStore, checkpoint: Snapshot | None) -> str:
    """The output folder, where a run goes on, and what of an earlier run would move."""
    state, text = trainer.state, f"output: {store.mirror.address(store.folder)}"
    if checkpoint is not None:
        step = f", step {state.step_in_epoch + 1} of it" if state.step_in_epoch else ""
        text += f"; goes on from {checkpoint.prefix}"
        done = state.epoch >= trainer.num_epochs
        text += ", and nothing is left to train" if done else f" in epoch {state.epoch + 1}{step}"
    if checkpoint is not None and Path(checkpoint.prefix).resolve().parent == store.folder.resolve():
        position, what = (state.step, state.epoch), "checkpoints behind it"
        num_moved = sum((step, epoch) > position for step, epoch, _ in store.complete())
    else:
        what = "files of an earlier run there"
        num_moved = len(store.earlier_files()) if store.folder.is_dir() else 0
    if num_moved or checkpoint is None:
        store.require_no_weights()
    if num_moved:
        text += f"; {num_moved} {what} would move to {store.folder / 'earlier-<n>'}"
    return text


def _disk_line(trainer: Trainer, setup: TrainingSetup, optimizer: Mapping[str, Any]) -> str:
    """The checkpoints that stay, after some steps: only then the optimizer has its tensors."""
    run, state = setup.spec.run, trainer.state
    ends = range(state.epoch + 1, trainer.num_epochs + 1)
    num_saved = sum(epoch % run.save_interval == 0 or epoch == trainer.num_epochs for epoch in ends)
    if run.save_every_steps:
        left = trainer.steps_before(trainer.num_epochs) - state.step
        num_saved += left // run.save_every_steps
    num_left = min(num_saved, run.keep_last or num_saved)
    weights = _num_bytes(stored_state(setup.model))
    of_callbacks = sum(_num_bytes(callback.tensors()) for callback in trainer.callbacks)
    checkpoint = weights + _num_bytes(optimizer) + of_callbacks
    total = num_left * checkpoint + (weights if setup.valid is not None else 0)
    text = f"disk: {num_left} checkpoints of {size_text(checkpoint)}"
    text += " and the best weights" if setup.valid is not None else ""
    free = free_bytes(setup.output_folder)
    if free is None:
        return text
    warning = "; WARNING: that does not suffice" if total > free else ""
    return f"{text}, {size_text(total)}; free there: {size_text(free)}{warning}"


def _num_bytes(value: Any) -> int:
    """The size of all tensors in nested dictionaries."""
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, paddle.Tensor):
        return value.size * value.element_size()
    return getattr(value, "nbytes", 0)


def _time_line(trainer: Trainer, setup: TrainingSetup, times: StepTimes | None) -> str:
    """How long the steps and validations that are left take.

    All steps count alike, also those of multigrid, which has more clips where they are smaller.
    """
    run, state = setup.spec.run, trainer.state
    if times is None:
        return "time: none"
    num_steps = trainer.steps_before(trainer.num_epochs) - state.step
    clips = 0
    if setup.valid is not None:
        ends = range(state.epoch + 1, trainer.num_epochs + 1)
        num = sum(epoch % run.val_interval == 0 or epoch == trainer.num_epochs for epoch in ends)
        loader, dataset = setup.valid.loader, setup.valid.dataset
        batches = min(len(loader), run.max_iters or len(loader))
        clips = num * batches * loader.batch_sampler.batch_size * dataset.num_crops
    num_clips = times.num_clips / times.num_steps
    seconds = times.step_sec * (num_steps + OF_A_STEP * clips / num_clips)
    return (
        f"time: about {duration(seconds)} for {num_steps} steps and the validations, "
        f"by {times.num_steps} steps of {times.step_sec:.3g} s on {paddle.get_device()}"
    )


@contextlib.contextmanager
def _without_infos() -> Iterator[None]:
    """The log says warnings and errors alone."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
