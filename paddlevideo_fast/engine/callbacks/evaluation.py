"""Validation between epochs, and the section SELECTION: which is the best, and when training stops early."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.settings import settings_from
from paddlevideo_fast.config.types import NonNegative, PositiveInt
from paddlevideo_fast.engine.evaluator import Evaluator
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.engine.output import CheckpointStore
from paddlevideo_fast.engine.trainer import Callback, Trainer
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.metrics.accuracy import certainty
from paddlevideo_fast.modeling import classes_of
from paddlevideo_fast.modeling.weights import stored_state
from paddlevideo_fast.registry import EXTENSIONS, did_you_mean

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan

logger = get_logger(__name__)

_MAX_TOGETHER = 5
_LOSS = "loss"
_COUNT = "num_"


def best_of(best: Mapping[str, float], choice: Mapping[str, float], last: Mapping[str, float]) -> str:
    """The best validation of a run and the last one in words; "not validated" where there is none.

    Args:
        best: see `TrainerState.best`.
        choice: see `TrainerState.choice`.
        last: see `TrainerState.last_validation`.
    """
    name = next(iter(best), "")
    if not name:
        return "not validated"
    text = f"{name} {best[name]:.5g}, epoch {best['epoch']}"
    if choice.get("validations", 1) > 1:
        text += f", chosen from {choice['validations']} validations"
    if choice.get("mean_of", 1) > 1:
        text += f" by the mean of {choice['mean_of']} in a row, {choice['mean']:.5g}"
    if name not in last:
        return text
    text += f"; last: {name} {last[name]:.5g}, epoch {last['epoch']}"
    interval = certainty(last)
    return f"{text}, {interval} of {last['num_samples']} samples" if interval else text


@EXTENSIONS.register("SELECTION")
@dataclass(frozen=True)
class Selection(Extension):
    """Which validation is the best, and when training stops early.

    Args:
        metric: the value that decides: any value that validation gives, such as `mean_class_acc` or `loss`.
            null for the first value that begins with `top`; the first of all if there is none.
        mode: whether a high value (`max`) or a low value (`min`) is good; null for `min` with a loss and
            `max` with anything else.
        patience: stop training after this many validations in a row without an improvement; null for never.
        min_delta: an improvement for `patience` must be larger than this. The best weights are saved after
            any improvement.
        mean_of: how many validations in a row are compared by their mean, so that one lucky epoch does not
            decide. 1: each alone, as PaddleVideo does; null: a quarter of the run's validations, at most 5.
    """

    metric: str | None = None
    mode: Literal["max", "min"] | None = None
    patience: PositiveInt | None = None
    min_delta: NonNegative = 0.0
    mean_of: PositiveInt | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> "Selection":
        """Every run compares its validations, by the defaults where the config says nothing."""
        return settings_from(cls, section)

    def problems(self, plan: "RunPlan") -> Problems:
        """A selection among validations that the run does not make, or by a value that they do not give."""
        if not plan.spec.holds("SELECTION"):
            return
        if plan.metric is None:
            text = "compares validations, and this run has none: it needs DATASET.valid and validate"
            yield Problem("SELECTION", text)
        elif plan.metric.value_names:
            self.check(plan.metric.names_with(classes_of(plan.spec.model)))
        if self.min_delta and self.patience is None:
            yield Problem("SELECTION.min_delta", "has no effect without SELECTION.patience", is_error=False)

    def callbacks(self, setup: "TrainingSetup") -> Iterable[Callback]:
        metric = setup.plan.metric
        if setup.valid is not None and metric is not None:
            evaluator = setup.evaluator(setup.valid)
            yield Evaluation(evaluator, metric, setup.spec.run.val_interval, setup.store, self)

    def check(self, names: Sequence[str]) -> None:
        """Checks that a validation gives the configured value.

        Args:
            names: of the values that the metric gives.

        Raises:
            ConfigError: it does not; the message has the names.
        """
        name, choices = self.metric, {*names, _LOSS}
        if name is not None and name not in choices:
            hint = did_you_mean(name, choices)
            listed = "" if "known:" in hint else f" Known: {', '.join(sorted(choices))}"
            raise ConfigError(f"SELECTION.metric={name}: validation gives no such value{hint}{listed}")

    def value_of(self, metrics: Mapping[str, float]) -> tuple[str, float] | None:
        """Name and value of the number that decides; None where nothing was evaluated.

        If the settings name none, the first value that begins with "top" decides, else the first of all.

        Raises:
            ConfigError: the validation does not give the configured value.
        """
        names = [name for name in metrics if not name.startswith(_COUNT)]
        if not names:
            return None
        self.check(names)
        usual = next((name for name in names if name.startswith("top")), names[0])
        name = self.metric or usual
        return name, metrics[name]

    def is_better(self, name: str, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is better than another one by more than `by`; NaN never is.

        Args:
            name: of the value. A loss is better if it is lower, anything else if it is higher, unless the
                settings say otherwise.
            value: of a validation.
            than: the other value; None: any number is better.
            by: ≥ 0.
        """
        if math.isnan(value) or than is None:
            return not math.isnan(value)
        mode = self.mode or ("min" if name.endswith(_LOSS) else "max")
        return value > than + by if mode == "max" else value < than - by


class Score(NamedTuple):
    """What decides about a validation.

    Attributes:
        epoch: of the validation.
        num_values: validations in a row, this one the last.
        mean: of their values.
        loss: of this one.
    """

    epoch: int = 0
    num_values: int = 0
    mean: float = 0.0
    loss: float = 0.0


@dataclass(eq=False)
class Evaluation(Callback):
    """Validates after every `interval`-th epoch and after the last, and remembers the best.

    Args:
        evaluator: over the validation data.
        metric: what is measured.
        interval: in epochs.
        store: where the best weights are saved; None: nowhere.
        selection: which value decides which epoch is best, and when training stops early.
    """

    evaluator: Evaluator
    metric: VideoMetric
    interval: int = 1
    store: CheckpointStore | None = None
    selection: Selection = field(default_factory=Selection)

    def __post_init__(self) -> None:
        self._name = ""  # of the value that decides
        self._values: list[tuple[int, float]] = []  # epochs and values of all validations that count
        self._best = self._reference = Score()  # the best one, and the newest improvement
        self._waiting: list[int] = []  # epochs of the validations since

    def fit_begin(self, trainer: Trainer) -> None:
        self._stop_if_exhausted(trainer)  # the checkpoint may be the last one of a run that has stopped

    def epoch_end(self, trainer: Trainer) -> None:
        epoch = trainer.state.epoch
        if epoch % self.interval != 0 and epoch != trainer.num_epochs:
            return
        try:
            trainer.call("before_evaluation")
            metrics = self.evaluator.run(trainer.model, self.metric, trainer.interrupt.raise_if_requested)
            trainer.state.last_validation = {**metrics, "epoch": epoch}
            self._compare(trainer, metrics)
        finally:
            trainer.call("after_evaluation")
        self._stop_if_exhausted(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "values": [list(each) for each in self._values],
            "best": self._best._asdict(),
            "reference": self._reference._asdict(),
            "waiting": list(self._waiting),
        }

    def set_state_dict(self, state: dict[str, Any]) -> None:
        self._name, self._waiting = state["name"], list(state["waiting"])
        self._values = [(epoch, value) for epoch, value in state["values"]]
        self._best, self._reference = Score(**state["best"]), Score(**state["reference"])

    def _compare(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        measured, epoch = self.selection.value_of(metrics), trainer.state.epoch
        if not math.isfinite(metrics.get("loss", 0.0)):
            measured = None
            logger.warning(
                "the validation loss is %s: these weights are no candidate for the best", metrics["loss"]
            )
        if measured is not None and not math.isnan(measured[1]):
            score = self._score(trainer, *measured, metrics.get("loss", math.inf))
            if self._is_better(trainer, score, self._best, with_loss=True):
                self._save_best(trainer, score, measured[1])
            chosen = {"mean_of": self._best.num_values, "mean": self._best.mean}
            trainer.state.choice = {"validations": len(self._values), **chosen}
            if self._is_better(trainer, score, self._reference, self.selection.min_delta):
                self._reference, self._waiting = score, []
        if epoch not in (*self._waiting, self._reference.epoch):  # a run that was interrupted repeats one
            self._waiting.append(epoch)

    def _score(self, trainer: Trainer, name: str, value: float, loss: float) -> Score:
        """What decides about a validation: the mean of its value and of those before it."""
        epoch, best = trainer.state.epoch, trainer.state.best
        if name != self._name:
            if best:
                logger.info("epoch %d was the best by another value; %s decides now", best["epoch"], name)
            self._name, self._values, self._best, self._reference = name, [], Score(), Score()
        self._values = [each for each in self._values if each[0] < epoch] + [(epoch, value)]
        together = [value for _, value in self._values[-self._num_together(trainer) :]]
        return Score(epoch, len(together), math.fsum(together) / len(together), loss)

    def _num_together(self, trainer: Trainer) -> int:
        planned = -(-trainer.num_epochs // self.interval)
        return self.selection.mean_of or max(1, min(_MAX_TOGETHER, planned // 4))

    def _is_better(
        self, trainer: Trainer, score: Score, than: Score, by: float = 0.0, with_loss: bool = False
    ) -> bool:
        """Whether a validation is better than another one; a mean of more validations always is.

        Args:
            trainer: of the run.
            score: of the validation.
            than: of the other one.
            by: the mean must be better by more than this.
            with_loss: of equal means that with the lower loss is better.
        """
        num_values = min(than.num_values, self._num_together(trainer))
        if score.num_values != num_values:
            return score.num_values > num_values
        if with_loss and score.mean == than.mean:
            return score.loss < than.loss
        return self.selection.is_better(self._name, score.mean, than.mean, by)

    def _save_best(self, trainer: Trainer, score: Score, value: float) -> None:
        trainer.state.best = {self._name: value, "epoch": score.epoch}
        self._best = score
        if (store := self.store) is not None:
            weights = stored_state(trainer.model)
            trainer.distribution.gather_from(lambda: store.save_weights("best", weights))

    def _stop_if_exhausted(self, trainer: Trainer) -> None:
        settings = self.selection
        if settings.patience is None or len(self._waiting) < settings.patience or trainer.is_finished:
            return
        least = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
        since, (epoch, count, mean, _) = "", self._reference
        if count:
            of = f"mean of {count} " if count > 1 else ""
            since = f" since epoch {epoch} ({of}{self._name} {mean:.5f})"
        trainer.stop(
            f"training stops after epoch {trainer.state.epoch} of {trainer.num_epochs}: no validation has "
            f"improved{least}{since}, {len(self._waiting)} in a row (SELECTION.patience {settings.patience})"
        )
