"""The one training loop and its hooks: it knows steps, not models, not data, not features."""

from __future__ import annotations

import contextlib
import enum
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import paddle

from paddlevideo_fast.device import upload
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.guard import Hooked, call_hook
from paddlevideo_fast.engine.interrupt import InterruptGuard, TrainingInterrupted
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.engine.protocols import BatchLoader, Mix, Objective, Preprocess, VideoModel
from paddlevideo_fast.engine.state import StepRecord, StepWindow, TrainerState
from paddlevideo_fast.engine.step_sync import StepSync
from paddlevideo_fast.errors import BadSampleShareError, NonFiniteLossError, UnsavedError
from paddlevideo_fast.loader import Batch, DecodeFailure
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.metrics.accuracy import count_hits
from paddlevideo_fast.modeling.layers.batch_norm import without_clips
from paddlevideo_fast.schedule.phases import Phase

logger = get_logger(__name__)


class TrainingEnds(Exception):
    """A callback raises it to end the run at this step, without an error and without a checkpoint."""


class Slot(enum.IntEnum):
    """When a callback runs among the others, whose hooks run slot by slot.

    STEP: what makes the step as it shall be. The rate is set before a step, and an average of the weights
    follows it, so evaluation sees the newest average.
    EVALUATE: what measures the weights. Statistics of batch norms come before validation, callbacks of users
    behind it: they see its result.
    RECORD: what writes down. The records hold the results, and what users' callbacks have changed.
    SAVE: the checkpoint. A run that dies between the records and it repeats the steps and their records; it
    never lacks them.
    SHOW: what reads the records and what is on the disk: pages, trackers, the callbacks of a caller, the
    profiler, which may end the run, and last the progress bar, below the lines.
    """

    STEP = 0
    EVALUATE = 1
    RECORD = 2
    SAVE = 3
    SHOW = 4


class Callback(Hooked):
    """Something that happens around the steps; a hook does nothing unless a subclass overrides it.

    Hooks run in list order. `fit_end` runs after the last epoch only, `close` always, also after an error.
    A subclass with `non_critical = True` cannot end a run; see `Hooked`.

    Attributes:
        slot: where a run puts it into its list.
    """

    slot = Slot.EVALUATE

    def fit_begin(self, trainer: Trainer) -> None:
        """Before the first step; a resumed run has its state already."""

    def phase_begin(self, trainer: Trainer) -> None:
        """`trainer.phase` is the new phase."""

    def epoch_begin(self, trainer: Trainer) -> None:
        """Before the first step of an epoch, or of the part of it that a resumed run still trains."""

    def step_begin(self, trainer: Trainer) -> None:
        """Before the forward pass of an optimizer step."""

    def step_end(self, trainer: Trainer) -> None:
        """After the optimizer step; `trainer.state` counts it already."""

    def epoch_end(self, trainer: Trainer) -> None:
        """`trainer.state.epoch` counts the finished epoch already."""

    def before_evaluation(self, trainer: Trainer) -> None:
        """Puts in place the weights to evaluate."""

    def after_evaluation(self, trainer: Trainer) -> None:
        """Puts back the weights to train; also where an error came before `before_evaluation`."""

    def before_checkpoint(self, trainer: Trainer) -> None:
        """Makes the state of the run the same on all ranks, before rank 0 writes it."""

    def interrupted(self, trainer: Trainer) -> None:
        """A signal asked the run to stop between two steps."""

    def fit_end(self, trainer: Trainer) -> None:
        """After the last epoch."""

    def close(self) -> None:
        """Releases files; also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """JSON values a checkpoint must hold."""
        return {}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    def tensors(self) -> dict[str, Any]:
        """Tensors a checkpoint must hold, by the structured name of the parameter they belong to."""
        return {}

    def set_tensors(self, tensors: dict[str, Any]) -> None:
        """Takes back, as arrays, what `tensors` gave."""


@dataclass(eq=False, repr=False)
class Trainer:
    """Trains a model over phases of epochs.

    Everything else (learning rate, evaluation, checkpoints, logs) is a callback. Randomness on the device is
    a function of (seed, step, rank), randomness of a sample a function of (seed, epoch, index, view). So a
    run that stops after any step and goes on from its checkpoint takes the same steps as a run that never
    stopped.

    Args:
        model: see `VideoModel`.
        optimizer: with a plain number as its learning rate.
        make_loader: gives the loader of a phase, which takes the place of the last phase's loader.
        preprocess: uint8 clips [N, T, H, W, C] to the model's float32 input, on the device.
        phases: one for ordinary training.
        callbacks: in the order in which their hooks run.
        objective: gives the loss; None: the model does. See `Objective`.
        mix: mixes the clips and labels of a batch, such as `modeling.Mixup`.
        precision: casts and loss scaling.
        distribution: the other processes of the run; each has its share of every step's clips.
        seed: of everything random on the device.
        accumulate_steps: batches whose gradients are averaged in one optimizer step.
        max_iters: ends each epoch after so many optimizer steps, as PaddleVideo's flag does.
        on_incidents: called with the incidents of each batch that has any.
        data_identity: JSON values that decide, with the phase, which samples a step sees (batch size, the
            list). A run must have the same values to be resumed inside an epoch.

    Attributes:
        state: where the run stands; the same on all ranks.
        phase: the phase under way.
        steps_per_epoch: optimizer steps of an epoch of the phase under way.
        total_steps: optimizer steps of the run.
        reader_cost_sec, batch_cost_sec: of the newest step, the wait for data on the device, and the whole
            time. The device may still be at work at the end of a step; see `Recorder`.
        epoch_cost_sec: training time of the newest epoch, without what follows it.
        step_sync: what the ranks tell each other.
        num_own_clips: clips of the newest step on this rank.
        wants_gradient_norm: measure the gradients of the next steps, before they are clipped.
        stop_reason: why training ends before its last epoch; set by `stop`.
        last_checkpoint: set by the checkpoint callback; named when the loss is not finite.
        results: of a finished run, on rank 0: its folder and weights, the best validation and the last one.
    """

    model: VideoModel
    optimizer: paddle.optimizer.Optimizer
    make_loader: Callable[[Phase], BatchLoader]
    preprocess: Preprocess
    phases: Sequence[Phase]
    callbacks: Sequence[Callback] = ()
    objective: Objective | None = None
    mix: Mix | None = None
    precision: Precision = field(default_factory=Precision)
    distribution: Distribution = field(default_factory=Distribution)
    seed: int = 0
    accumulate_steps: int = 1
    max_iters: int | None = None
    on_incidents: Callable[[list[DecodeFailure]], None] | None = None
    data_identity: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.callbacks, self.phases = list(self.callbacks), list(self.phases)
        self.data_identity = dict(self.data_identity)
        self.state = TrainerState()
        self.window = StepWindow(self.distribution, getattr(self.model, "count_hits", count_hits))
        self.phase = self.phases[0]
        self.steps_per_epoch = self.total_steps = 0
        self.reader_cost_sec = self.batch_cost_sec = self.epoch_cost_sec = 0.0
        self.num_own_clips = 0
        self.wants_gradient_norm = False
        self._stand_in: Batch | None = None
        self.last_checkpoint: str | None = None
        self.results: dict[str, Any] = {}
        self.interrupt = InterruptGuard()
        self.step_sync = StepSync(self.distribution, self._count)
        self.stop_reason: str | None = None
        self._step_model, self._step_optimizer = self.model, self.optimizer

    @property
    def num_clips(self) -> int:
        """Clips of the newest step on all ranks, where each has as many as this one."""
        return self.num_own_clips * self.distribution.world_size

    @property
    def num_epochs(self) -> int:
        """Epochs of all phases."""
        return self.phases[-1].end_epoch

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left to train."""
        return self.stop_reason is not None or self.state.epoch >= self.num_epochs

    @property
    def progress(self) -> float:
        """Epochs done, with the fraction of the one under way."""
        return self.state.epoch + self.state.step_in_epoch / max(self.steps_per_epoch, 1)

    def stop(self, reason: str) -> None:
        """Makes the epoch that has just ended the last one; every rank must call it after the same epoch.

        The hooks of the epoch and `fit_end` still run, as after any last epoch.

        Args:
            reason: for the log.
        """
        self.stop_reason = reason
        logger.info(reason)

    def fit(self) -> TrainerState:
        """Trains from `state` to the end.

        Returns:
            The final state.

        Raises:
            TrainingInterrupted: a signal came; the callbacks have saved.
            NonFiniteLossError, NonFiniteGradientError, BadSampleShareError, CheckpointError: as their
                messages say.
        """
        self.total_steps = self.steps_before(self.num_epochs)
        self._step_model, self._step_optimizer = self.distribution.wrap(
            self.model, self.optimizer, self.precision.scaler
        )
        try:
            self.call("fit_begin")
            for phase in self.phases:
                if self.state.epoch < phase.end_epoch and not self.is_finished:
                    self._run_phase(phase)
            self.call("fit_end")
        except BaseException:
            with contextlib.suppress(Exception):  # it is in the log; the error that ended the run is raised
                call_hook(self.callbacks, "close")
            raise
        call_hook(self.callbacks, "close")
        return self.state

    def steps_in_epoch(self, loader: BatchLoader) -> int:
        """Optimizer steps of an epoch over `loader`."""
        steps = -(-len(loader) // self.accumulate_steps)
        return steps if self.max_iters is None else min(steps, self.max_iters)

    def steps_before(self, epoch: int) -> int:
        """Optimizer steps of the epochs before `epoch`."""
        return sum(
            self.steps_in_epoch(self.make_loader(phase)) * (min(phase.end_epoch, epoch) - phase.start_epoch)
            for phase in self.phases
            if phase.start_epoch < epoch
        )

    def phase_of(self, epoch: int) -> Phase:
        """The phase that an epoch belongs to; past the end, the last."""
        return next((phase for phase in self.phases if epoch < phase.end_epoch), self.phases[-1])

    def _run_phase(self, phase: Phase) -> None:
        self.phase = phase
        loader = self.make_loader(phase)
        self.steps_per_epoch = self.steps_in_epoch(loader)
        self.call("phase_begin")
        while self.state.epoch < phase.end_epoch and not self.is_finished:
            if self.state.step_in_epoch == 0:  # else the epoch is a resumed one
                self.state.epoch_averages = {}
                self.state.num_replaced = self.state.num_skipped = 0
            self.call("epoch_begin")
            self._train_epoch(loader)
            self._end_epoch()

    def _end_epoch(self) -> None:
        """Counts the epoch and calls the hooks that evaluate, record and save it.

        Where a hook fails or is interrupted on all ranks, the training of the epoch is saved before the run
        ends. A resumed run begins with the hooks.
        """
        self.drain()
        if not self.state.epoch_averages and self.state.num_skipped:
            text = f"no step of epoch {self.state.epoch + 1} has a finite loss in float16: train in bfloat16"
            raise NonFiniteLossError(f"{text} (--amp_dtype) or in float32")
        if not self.state.epoch_averages:
            text = f"no clip of epoch {self.state.epoch + 1} decodes: there was no training"
            raise BadSampleShareError(text)
        self.state.epoch += 1
        self.state.step_in_epoch = 0
        try:
            self.call("epoch_end")
        except UnsavedError:
            raise  # there is nowhere to save
        except Exception as error:
            if self.distribution.is_shared(error):  # all ranks must save together
                self.state.epoch -= 1
                self.state.step_in_epoch = self.steps_per_epoch
                self.call("interrupted")
            raise

    def _train_epoch(self, loader: BatchLoader) -> None:
        start_batch = self.state.step_in_epoch * self.accumulate_steps
        self.model.train()
        epoch_began = began = time.perf_counter()
        steps = _grouped(to_device(loader.epoch(self.state.epoch, start_batch)), self.accumulate_steps)
        for group in itertools.islice(steps, self.steps_per_epoch - self.state.step_in_epoch):
            self.reader_cost_sec = time.perf_counter() - began
            self._stop_if_asked(group)
            self.call("step_begin")
            self.train_step(group)
            self.state.step_in_epoch += 1
            self.state.step += 1
            self.batch_cost_sec = time.perf_counter() - began
            self.call("step_end")
            began = time.perf_counter()
        self.epoch_cost_sec = time.perf_counter() - epoch_began

    def _stop_if_asked(self, batches: list[Batch]) -> None:
        """Stops before a step over `batches`, where a signal came on any rank.

        Raises:
            TrainingInterrupted: the callbacks have saved.
        """
        self.step_sync.before_step(batches, self.interrupt.requested)
        if self.step_sync.signal_number is not None:
            self.call("interrupted")
            raise TrainingInterrupted(self.step_sync.signal_number)

    def _count(self, incidents: list[DecodeFailure]) -> None:
        self.state.num_replaced += sum(incident.num_frames for incident in incidents)
        if self.on_incidents is not None:
            self.on_incidents(incidents)

    def _share_stand_in(self, batches: Sequence[Batch]) -> None:
        """Gives each rank a clip for the steps in which it has none, once any rank has one."""
        if self._stand_in is not None or self.distribution.world_size == 1:
            return
        own = next((batch for batch in batches if len(batch)), None)
        have_one = self.distribution.gather(own is not None)
        if not any(have_one):
            return
        if own is not None:
            clips = np.array(own.clips[:1])
            own = Batch(clips, own.labels[:1].copy(), own.ids[:1].copy(), own.views[:1].copy())
        if not all(have_one):
            giver = have_one.index(True)
            own = self.distribution.gather(own if self.distribution.rank == giver else None)[giver]
        self._stand_in = own

    def train_step(self, batches: list[Batch]) -> None:
        """Takes one optimizer step over the mean gradient of the clips of all ranks.

        Nothing is read back from the device, except one flag in float16; see `MixedPrecision`. Where a rank
        has an empty batch and others do not, it computes on a clip of another batch or rank, with weight 0:
        the ranks exchange as many messages then.
        """
        paddle.seed(step_seed(self.seed, self.state.step, self.distribution.rank))
        self.num_own_clips = sum(len(batch) for batch in batches)
        self._share_stand_in(batches)
        micro_batches = self.step_sync.post(batches, self.interrupt.requested)
        if not micro_batches:
            return  # nothing decoded, substitutes included
        losses, logits_list = [], []
        objective: Any = self.model if self.objective is None else self.objective
        for micro, (own, weight) in enumerate(micro_batches):
            batch = own if len(own) else cast(Batch, self._stand_in)
            clips, labels = self.preprocess(batch.clips), upload(batch.labels)
            if hasattr(objective, "key_clips"):
                drawn = zip(batch.ids.tolist(), batch.views.tolist())
                objective.key_clips([(self.seed, self.state.epoch, *each) for each in drawn])
            if self.mix is not None:
                rng = np.random.default_rng((self.seed, self.state.step, micro, self.distribution.rank))
                clips, labels = self.mix(clips, labels, rng)
            statistics = contextlib.nullcontext() if len(own) else without_clips(self.model)
            with (
                self.distribution.accumulating(self._step_model, micro == len(micro_batches) - 1),
                statistics,
            ):
                outputs = self.precision.forward(self._step_model, clips)
                loss = objective.loss(outputs, labels)
                if isinstance(weight, paddle.Tensor):
                    loss = loss * weight.astype(loss.dtype)
                elif weight != 1:
                    loss = loss * weight
                self.precision.backward(loss)
            losses.append(loss.detach())
            if len(own):
                logits = outputs[0] if isinstance(outputs, tuple) else outputs
                logits_list.append(logits.detach())
        gradient_norm = None
        if self.wants_gradient_norm and self.distribution.has_whole_gradients:
            gradient_norm = _norm_of_gradients(self.model) / self.precision.scale
        is_taken = self.precision.optimizer_step(self._step_optimizer, self.model)
        self.state.num_skipped += not is_taken
        self.window.add(
            StepRecord(
                step=self.state.step + 1,
                loss=losses[0] if len(losses) == 1 else paddle.add_n(losses),
                logits=logits_list,
                labels=[batch.labels for batch, _ in micro_batches if len(batch)],
                ids=[int(i) for batch in batches for i in batch.ids],
                gradient_norm=gradient_norm if is_taken else None,
                is_taken=is_taken,
            )
        )

    def drain(self) -> dict[str, float]:
        """Adds the steps since the last call to the epoch's averages; see `StepWindow.drain`.

        This waits for the device. All ranks must call it at the same step: they read all messages here, too.
        """
        self.step_sync.flush()
        return self.window.drain(self.state.epoch_averages, self.last_checkpoint)

    def call(self, hook: str) -> None:
        """Calls a hook of all callbacks, in their order; those that only show cannot end the run."""
        call_hook(self.callbacks, hook, self)


@paddle.no_grad()
def _norm_of_gradients(model: VideoModel) -> paddle.Tensor:
    """The norm of all gradients together, on the device."""
    gradients = (each.grad for each in model.parameters() if each.grad is not None)
    return paddle.add_n([each.astype("float32").square().sum() for each in gradients]).sqrt()


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The device seed of a step: dropout needs no generator state in a checkpoint."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0])


def _grouped(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of `size` batches; the last may be shorter."""
    iterator = iter(batches)
    while group := list(itertools.islice(iterator, size)):
        yield group
