"""What the engine asks of models, loaders and preprocessing."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import paddle

from paddlevideo_fast.loader import Batch

Logits: TypeAlias = paddle.Tensor | tuple[paddle.Tensor, ...]
# from uint8 clips [N, T, H, W, C] to the model's float32 input, on the device
Preprocess = Callable[[Any], paddle.Tensor]
# from clips, labels and a generator to mixed clips and labels
Mix = Callable[[paddle.Tensor, paddle.Tensor, np.random.Generator], tuple[paddle.Tensor, Any]]


class VideoModel(Protocol):
    """A `paddle.nn.Layer` with a loss.

    `model(clips)` gives logits [N, num_classes], or a tuple of logits, the first of which count. A model may
    have more methods:

    - `loss_of_each(logits, labels)`, the losses [N] of the clips; without it evaluation calls `loss` once a
      clip.
    - `count_hits(logits, labels)`, what the log says of a step beside its loss; without it as
      `metrics.count_hits`.
    - `key_clips(keys)`, for a model that draws something for each clip. It is called before each training
      batch with (seed, epoch, number of the record, view) of each clip. What is a function of these is the
      same on any rank, in any batch and after a resume.
    - `pictures(clips)`, which gives a report titles and clips to show below clips of the data.
    """

    training: bool

    def __call__(self, clips: paddle.Tensor) -> Logits: ...

    def loss(self, logits: Logits, labels: Any) -> paddle.Tensor:
        """The scalar loss of logits and labels (int64 [N], or what a mix made of them)."""

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def state_dict(self) -> dict[str, paddle.Tensor]: ...

    def set_state_dict(self, state: Any) -> Any: ...

    def parameters(self) -> list[paddle.Tensor]: ...

    def named_parameters(self) -> Iterable[tuple[str, paddle.Tensor]]: ...

    def named_sublayers(self) -> Iterable[tuple[str, paddle.nn.Layer]]: ...


class Objective(Protocol):
    """Gives the loss of a training step in place of the model; it may have the method `key_clips`, too.

    Attributes:
        identity: JSON values that a run must have again to be resumed inside an epoch.
    """

    identity: dict[str, Any]

    def observing(self, preprocess: Preprocess) -> Preprocess:
        """`preprocess`, so that this object sees the clips of a step as well."""

    def loss(self, logits: Logits, labels: Any) -> paddle.Tensor:
        """The scalar loss of what the model gave, and of labels, as `VideoModel.loss` takes them."""


class BatchLoader(Protocol):
    """Gives the batches of each epoch."""

    def __len__(self) -> int:
        """Batches of an epoch."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on."""

    def close(self) -> None:
        """Ends the workers; an epoch that is asked for later starts new ones."""
