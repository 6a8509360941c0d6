"""What predictors give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence

import numpy as np

from paddlevideo_fast.errors import PaddleVideoFastError


class Score(NamedTuple):
    """A class and its probability; the name is its number where nobody gave one."""

    class_id: int
    name: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """What a video shows, or a window of it.

    Attributes:
        path: the file.
        scores: float32 [num_classes], probabilities: the mean over the views.
        logits: float32 [V, num_classes], of each view.
        class_names: by number, where they are known.
    """

    path: str
    scores: np.ndarray
    logits: np.ndarray
    class_names: Optional[Sequence[str]] = None

    def top(self, num_classes: int) -> List[Score]:
        """The most probable classes, the best first."""
        best = np.argsort(-self.scores, kind="stable")[:num_classes].tolist()
        return [Score(number, self.name_of(number), float(self.scores[number])) for number in best]

    def name_of(self, class_id: int) -> str:
        """Name of a class; its number where nobody gave one."""
        return self.class_names[class_id] if self.class_names else str(class_id)


class Unread(NamedTuple):
    """A file that no clip can be made of."""

    path: str
    error: PaddleVideoFastError


class BatchTime(NamedTuple):
    """What the files of one batch took, in seconds."""

    num_files: int
    preprocess_sec: float
    inference_sec: float
