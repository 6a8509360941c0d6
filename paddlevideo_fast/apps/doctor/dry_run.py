"""`train --dry_run`: what a training would read, write and take. It makes all checks and writes nothing."""

import argparse
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.apps.doctor.timing import OF_A_STEP, StepTimes, time_steps
from paddlevideo_fast.assembly import TrainingSetup
from paddlevideo_fast.assembly.folder import in_own_folder
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.assembly.run import build_run
from paddlevideo_fast.cli.command import say
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.checkpoint import Snapshot, portable_state
from paddlevideo_fast.engine.distribution import launched_rank, make_distribution
from paddlevideo_fast.engine.output import CheckpointStore, ReadOnlyStore
from paddlevideo_fast.errors import UsageError
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs.dry_run import Fact, free_bytes, print_dry_run
from paddlevideo_fast.jobs.run import duration, muted, size_text
from paddlevideo_fast.log import counted
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
    with cfg.placing(), muted(logging.INFO):
        plan = plan_run(RunSpec.for_training(cfg), launched_rank()[1])
        distribution = make_distribution(plan.spec.distributed)
        spec = in_own_folder(plan.spec, distribution)
        store = ReadOnlyStore(spec.run.output_dir, spec.run.model_name)
        distribution.gather_from(lambda: _require_free(store) if distribution.is_main else None)
        trainer, setup, checkpoint = build_run(replace(plan, spec=spec), store, distribution)
        setup.split.bad_samples.path = None
        with contextlib.closing(setup):
            loader = trainer.make_loader(trainer.phase_of(trainer.state.epoch))
            steps_in_epoch = trainer.steps_in_epoch(loader)
            times = None
            if trainer.state.epoch < trainer.num_epochs:
                say("timing a few steps")
                times = time_steps(setup, loader, _NUM_STEPS, 1, _BUDGET_SEC)
            # only after some steps, the optimizer has its tensors
            optimizer = distribution.gather_optimizer_state(portable_state(setup.optimizer, setup.model))
            facts = {
                "data": _data(setup),
                "network": _network(setup, checkpoint),
                "training": _training(trainer, setup, steps_in_epoch),
                "output": _output(trainer, store, checkpoint),
                "disk": _disk(trainer, setup, optimizer),
                "time": _time(trainer, setup, times),
            }
        print_dry_run(facts, args.json)


def _require_free(store: CheckpointStore) -> None:
    """Checks that no other run writes to the folder, and that this one can; that leaves nothing there."""
    with only_writer(store.folder, given_by="output_dir"):
        store.fetch_marks()


def _data(setup: TrainingSetup) -> Fact:
    sections = setup.spec.config["DATASET"]
    values: dict[str, Any] = {
        name: {"file_path": sections[name].get("file_path"), "num_records": len(split.dataset.records)}
        for name, split in (("train", setup.split), ("valid", setup.valid))
        if split is not None
    }
    texts = [
        f"{name} {counted(each['num_records'], 'record')} of {each['file_path']}"
        for name, each in values.items()
    ]
    values["num_classes"] = setup.model.num_classes
    return Fact(values, f"{', '.join(texts)}, {counted(setup.model.num_classes, 'class')}")


def _network(setup: TrainingSetup, checkpoint: Snapshot | None) -> Fact:
    spec, num_parameters = setup.spec, count_parameters(setup.model)
    weights = spec.run.weights or (spec.model.get("backbone") or {}).get("pretrained") or None
    weights = weights if checkpoint is None else f"{checkpoint.prefix}.pdparams"
    values = {"name": spec.run.model_name, "num_parameters": num_parameters, "weights": weights}
    source = f"from {weights}" if weights else "from random weights"
    return Fact(values, f"{spec.run.model_name}, {num_parameters / 1e6:.2f} M parameters, {source}")


def _training(trainer: Trainer, setup: TrainingSetup, steps_in_epoch: int) -> Fact:
    epochs, clips, is_multigrid = trainer.num_epochs, setup.plan.global_batch_size, setup.spec.run.multigrid
    highest = max(setup.curve.at(part / 100) for part in range(100 * epochs + 1))
    values = {
        "num_epochs": epochs,
        "num_steps": trainer.steps_before(epochs),
        "clips_per_step": clips,
        "optimizer": (setup.spec.optimizer or {}).get("name"),
        "highest_learning_rate": highest,
        "schedule": type(setup.curve).__name__,
        "multigrid": is_multigrid,
    }
    shapes = "in multigrid shapes" if is_multigrid else f"of {counted(steps_in_epoch, 'step')}"
    return Fact(
        values,
        f"{counted(epochs, 'epoch')} {shapes}, {counted(clips, 'clip')} a step; {values['optimizer']}, "
        f"learning rate up to {highest:.3g} ({values['schedule']})",
    )


def _output(trainer: Trainer, store: CheckpointStore, checkpoint: Snapshot | None) -> Fact:
    """The output folder, where a run goes on, and what of an earlier run would move."""
    state, folder = trainer.state, store.mirror.address(store.folder)
    if checkpoint is not None and Path(checkpoint.prefix).resolve().parent == store.folder.resolve():
        position, what = (state.step, state.epoch), "checkpoints behind it"
        num_moved = sum((step, epoch) > position for step, epoch, _ in store.complete())
    else:
        what = "files of an earlier run there"
        num_moved = len(store.earlier_files()) if store.folder.is_dir() else 0
    if num_moved or checkpoint is None:
        store.require_no_weights()
    text, values = folder, {"folder": folder, "num_moved": num_moved}
    if checkpoint is not None:
        values |= {
            "checkpoint": checkpoint.prefix,
            "epoch": state.epoch,
            "step_in_epoch": state.step_in_epoch,
        }
        step = f", step {state.step_in_epoch + 1} of it" if state.step_in_epoch else ""
        is_done = state.epoch >= trainer.num_epochs
        where = ", and nothing is left to train" if is_done else f" in epoch {state.epoch + 1}{step}"
        text += f"; goes on from {checkpoint.prefix}{where}"
    if num_moved:
        text += f"; {num_moved} {what} would move to {store.folder / 'earlier-<n>'}"
    return Fact(values, text)


def _disk(trainer: Trainer, setup: TrainingSetup, optimizer: Mapping[str, Any]) -> Fact:
    """The checkpoints that stay."""
    run, state = setup.spec.run, trainer.state
    num_saved = _num_epochs_with(run.save_interval, trainer)
    if run.save_every_steps:
        num_saved += (trainer.steps_before(trainer.num_epochs) - state.step) // run.save_every_steps
    num_left = min(num_saved, run.keep_last or num_saved)
    weights = _num_bytes(stored_state(setup.model))
    of_callbacks = sum(_num_bytes(callback.tensors()) for callback in trainer.callbacks)
    checkpoint = weights + _num_bytes(optimizer) + of_callbacks
    total, free = num_left * checkpoint, free_bytes(setup.output_folder)
    text = f"{counted(num_left, 'checkpoint')} of {size_text(checkpoint)}"
    if setup.valid is not None:
        total += weights
        text += " and the best weights"
    text += f", {size_text(total)}"
    if free is not None:
        text += f"; free there: {size_text(free)}"
        text += "; WARNING: that does not suffice" if total > free else ""
    values = {"num_checkpoints": num_left, "checkpoint_bytes": checkpoint, "num_bytes": total}
    return Fact({**values, "free_bytes": free}, text)


def _num_epochs_with(interval: int, trainer: Trainer) -> int:
    """How many epochs are left that end as every `interval`-th and the last do: with a save, say."""
    ends = range(trainer.state.epoch + 1, trainer.num_epochs + 1)
    return sum(epoch % interval == 0 or epoch == trainer.num_epochs for epoch in ends)


def _num_bytes(value: Any) -> int:
    """The size of all tensors in nested dictionaries."""
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, paddle.Tensor):
        return value.size * value.element_size()
    return getattr(value, "nbytes", 0)


def _time(trainer: Trainer, setup: TrainingSetup, times: StepTimes | None) -> Fact:
    """How long the steps and validations that are left take.

    All steps count alike. In multigrid, a step of smaller clips has more of them.
    """
    run, device = setup.spec.run, paddle.get_device()
    num_steps = trainer.steps_before(trainer.num_epochs) - trainer.state.step
    if times is None:
        return Fact({"seconds": 0.0, "num_steps": 0, "device": device}, "none")
    clips = 0
    if setup.valid is not None:
        loader, dataset = setup.valid.loader, setup.valid.dataset
        batches = min(len(loader), run.max_iters or len(loader))
        clips = batches * loader.batch_sampler.batch_size * dataset.num_crops
        clips *= _num_epochs_with(run.val_interval, trainer)
    clips_of_step = times.num_clips / times.num_steps
    seconds = times.step_sec * (num_steps + OF_A_STEP * clips / clips_of_step)
    values = {"seconds": seconds, "num_steps": num_steps, "step_sec": times.step_sec, "device": device}
    return Fact(
        values,
        f"about {duration(seconds)} for {counted(num_steps, 'step')} and the validations, by "
        f"{counted(times.num_steps, 'step')} of "
        f"{times.step_sec:.3g} s on {device}; its start and the report take some seconds more",
    )
