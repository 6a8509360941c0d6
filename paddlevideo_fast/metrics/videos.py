"""Mean scores of videos over their views, and metrics that are computed from them."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import paddle

from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.device import LateReader
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.metrics.predictions import Predictions
from paddlevideo_fast.registry import METRICS

Numbers = Sequence[int] | np.ndarray


class VideoMetric:
    """Computes values from the mean scores of videos, and keeps the scores; evaluations take any subclass.

    Each process has its own samples until `accumulate`.

    All views of a video belong to one process; a video that other processes have, too, counts once, and so
    does a view that comes again. One sum a video is kept, in float64, so memory does not grow with the number
    of views. The scores of a batch are read from the device while later batches are computed.

    A subclass says what the values are (`_values`), and what they need of a video besides its mean scores
    (`_clip_facts`, `_facts`).

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

    def names_with(self, num_classes: int) -> tuple[str, ...]:
        """`value_names`, of a network with so many classes."""
        return self.value_names

    def reset(self) -> None:
        """Forgets all videos."""
        self._seen: set[tuple[int, int]] = set()
        self._sums: dict[int, np.ndarray] = {}
        self._num_views: dict[int, int] = {}
        self._first: dict[int, list[np.ndarray]] = {}  # label and `_clip_facts` of a video's first clip
        self._late = LateReader(self._count)

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N]; float32 [N, num_classes] where a video has any number of classes.
            ids: [N], the number of each sample.
            views: [N], which view of the sample it is.
        """
        functional = paddle.nn.functional
        logits = logits.astype("float32")
        scores = functional.sigmoid(logits) if self.activation == "sigmoid" else functional.softmax(logits, 1)
        facts = self._clip_facts(logits, labels)
        self._late.add([scores, labels, *facts], np.array(ids), np.array(views))

    def _count(self, values: Sequence[np.ndarray], ids: np.ndarray, views: np.ndarray) -> None:
        scores, *others = values
        scores = scores.astype(np.float64)
        for row, (video, view) in enumerate(zip(ids.tolist(), views.tolist())):
            if (video, view) not in self._seen:
                self._seen.add((video, view))
                self._first.setdefault(video, [array[row] for array in others])
                self._sums[video] = self._sums.get(video, 0.0) + scores[row]
                self._num_views[video] = self._num_views.get(video, 0) + 1

    def state(self) -> Any:
        """Predictions and facts of this process's videos, in the order in which they came; None: no video."""
        self._late.read_all()
        if not self._sums:
            return None
        sums, num_views = np.stack(list(self._sums.values())), np.array(list(self._num_views.values()))
        labels, *facts = map(np.array, zip(*self._first.values()))
        means = (sums / num_views[:, None]).astype(np.float32)
        return Predictions(np.array(list(self._sums)), labels, means, num_views), self._facts(
            sums, labels, *facts
        )

    def accumulate(self, states: Sequence[Any] | None = None) -> dict[str, float]:
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
            text = "no sample was evaluated; check the annotation list and the decode log"
            raise PaddleVideoFastError(text)
        together = Predictions(*(np.concatenate(arrays) for arrays in zip(*(own for own, _ in parts))))
        _, first = np.unique(together.ids, return_index=True)
        facts = np.concatenate([facts for _, facts in parts])[first]
        self.predictions = Predictions(*(array[first] for array in together))
        return self._values(self.predictions, facts)

    def _clip_facts(self, logits: paddle.Tensor, labels: paddle.Tensor) -> list[paddle.Tensor]:
        """Tensors [N, ...] that `_facts` needs of the first clip of each video."""
        return []

    def _facts(self, sums: np.ndarray, labels: np.ndarray, *clip_facts: np.ndarray) -> np.ndarray:
        """[N, ...], what `_values` needs of each video of this process besides its prediction.

        Args:
            sums: float64 [N, num_classes], of the scores of the views.
            labels: see `Predictions`.
            clip_facts: see `_clip_facts`.
        """
        return np.empty((len(sums), 0))

    def _values(self, predictions: Predictions, facts: np.ndarray) -> dict[str, float]:
        """The values by name; unless SELECTION says otherwise, the first decides which epoch is best."""
        raise NotImplementedError


@METRICS.register()
class LossMetric(VideoMetric):
    """Nothing but the loss, the mean over the clips, as pre-training needs it; any network has one.

    The validation with the lowest loss is the best, unless SELECTION says otherwise.
    """

    activation = None
    value_names = ("loss",)

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Keeps nothing: an evaluation adds up the losses itself."""

    def state(self) -> None:
        """Nothing."""

    def accumulate(self, states: Sequence[Any] | None = None) -> dict[str, float]:
        """No values beside the evaluation's own loss."""
        return {}
