"""Mean scores of videos over their views, and metrics that are computed from them."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import paddle

from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.device import LateReader
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.metrics.predictions import Predictions

Numbers = Sequence[int] | np.ndarray
State = tuple[Predictions, np.ndarray] | None


class Metric(Protocol):
    """What an evaluation asks of a metric. Each process has its own samples until `accumulate`."""

    def reset(self) -> None:
        """Forgets all samples."""

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N]; float32 [N, num_classes] where a video has any number of classes.
            ids: [N], the number of each sample.
            views: [N], which view of the sample it is.
        """

    def state(self) -> Any:
        """What this process knows of the samples since `reset`; it pickles."""

    def accumulate(self, states: Sequence[Any] | None = None) -> dict[str, float]:
        """The values over the samples of all processes, from the state of each; None: of this one alone.

        The first value decides which epoch is best.
        """


class VideoScores:
    """Adds up the scores of each video over its views; a view that comes again counts once.

    One sum a video is kept, so memory does not grow with the number of views. Sums are float64. The scores of
    a batch are read from the device while later batches are computed.

    Args:
        activation: makes scores of logits.
    """

    def __init__(self, activation: Activation = "softmax") -> None:
        self._activation = activation
        self._seen: set[tuple[int, int]] = set()
        self._labels: dict[int, np.ndarray] = {}
        self._sums: dict[int, np.ndarray] = {}
        self._num_views: dict[int, int] = {}
        self._late = LateReader(self._count)

    def __len__(self) -> int:
        self._late.read_all()
        return len(self._sums)

    def add(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `Metric.update`."""
        self._late.add([_probabilities(logits, self._activation), labels], np.array(ids), np.array(views))

    def _count(self, values: Sequence[np.ndarray], ids: np.ndarray, views: np.ndarray) -> None:
        scores, labels = values
        keys = zip(ids.tolist(), views.tolist())
        for key, label, score in zip(keys, labels, scores.astype(np.float64)):
            if key in self._seen:
                continue
            self._seen.add(key)
            video = key[0]
            self._labels.setdefault(video, label)
            self._sums[video] = self._sums.get(video, 0.0) + score
            self._num_views[video] = self._num_views.get(video, 0) + 1

    def predictions(self) -> Predictions:
        """The mean scores of the videos, in the order in which they came."""
        sums = self.sums()
        num_views = np.array(list(self._num_views.values()))
        means = sums / num_views[:, None]
        labels = np.array(list(self._labels.values()))
        return Predictions(np.array(list(self._sums)), labels, means.astype(np.float32), num_views)

    def sums(self) -> np.ndarray:
        """float64 [N, num_classes], the sums of the videos' scores, in the order in which they came."""
        self._late.read_all()
        return np.stack(list(self._sums.values()))


def _probabilities(logits: paddle.Tensor, activation: Activation) -> paddle.Tensor:
    """float32 [N, num_classes], on the device."""
    logits = logits.astype("float32")
    if activation == "softmax":
        return paddle.nn.functional.softmax(logits, axis=1)
    return paddle.nn.functional.sigmoid(logits)


class VideoMetric:
    """Computes values from the mean scores of videos, and keeps the scores as predictions.

    All views of a video belong to one process; a video that other processes have, too, counts once. A
    subclass says what the values are (`_values`), and what they need of a video besides its mean scores
    (`_facts`).

    Attributes:
        activation: of the heads that the metric is for; None: it looks at no scores.
        value_names: names of the values, from which SELECTION chooses; empty where they are not known before
            the first validation.
        predictions: of the videos of all processes, after `accumulate`; of the last pass until then.
    """

    activation: ClassVar[Activation | None] = "softmax"
    value_names: tuple[str, ...] = ()
    ignored_arguments: ClassVar[dict[str, str]] = {
        "data_size": "the loader knows it",
        "batch_size": "the loader knows it",
        "log_interval": "the evaluation shows its own progress",
    }

    def __init__(self) -> None:
        self.predictions: Predictions | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets all videos."""
        self._scores = VideoScores(self.activation or "softmax")

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `Metric.update`."""
        self._scores.add(logits, labels, ids, views)

    def state(self) -> State:
        """Predictions and facts of this process's videos; None: there are no videos."""
        if not len(self._scores):
            return None
        predictions = self._scores.predictions()
        return predictions, self._facts(predictions)

    def accumulate(self, states: Sequence[State] | None = None) -> dict[str, float]:
        """The values over the videos of all processes.

        Args:
            states: of all processes; None: of this one alone.

        Raises:
            PaddleVideoFastError: there are no videos.
        """
        parts: list[tuple[Predictions, np.ndarray]] = [
            state for state in states or [self.state()] if state is not None
        ]
        if not parts:
            raise PaddleVideoFastError(
                "no sample was evaluated; check the annotation list and the decode log"
            )
        together = Predictions(*(np.concatenate(arrays) for arrays in zip(*(own for own, _ in parts))))
        _, first = np.unique(together.ids, return_index=True)
        facts = np.concatenate([facts for _, facts in parts])[first]
        self.predictions = Predictions(*(array[first] for array in together))
        return self._values(self.predictions, facts)

    def _facts(self, predictions: Predictions) -> np.ndarray:
        """[N, ...], what `_values` needs of each video of this process besides its prediction."""
        return np.empty((len(predictions.ids), 0))

    def _values(self, predictions: Predictions, facts: np.ndarray) -> dict[str, float]:
        """The values by name; unless SELECTION says otherwise, the first decides which epoch is best."""
        raise NotImplementedError
