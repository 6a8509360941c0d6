"""Passes over data without training: validation, tests and the statistics of precise batch norm."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from tqdm import tqdm

from paddlevideo_fast.device import LateReader, upload
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.engine.protocols import BatchLoader, Preprocess, VideoModel
from paddlevideo_fast.loader import Batch, DecodeFailure
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.modeling.contexts import evaluating
from paddlevideo_fast.modeling.losses import loss_of_each


@dataclass(eq=False, repr=False)
class Evaluator:
    """Runs models over one set of data, in eval mode and without gradients.

    Ranks share the data. They may have different numbers of batches, as none waits for another before the
    end of a pass. An error on one rank is raised on all.

    Args:
        loader: on each rank its own share, which may be empty.
        preprocess: uint8 clips [N, T, H, W, C] to the model's float32 input.
        precision: as the `Trainer`'s.
        distribution: the processes that share the data.
        on_incidents: called with the incidents of each batch that has any; may raise where they are too many.
            At the end each rank has called it with the incidents of all ranks.
        max_batches: ends a pass after so many batches, counted on all ranks together; None: all.
        show_progress: draws a bar; for a terminal.
    """

    loader: BatchLoader
    preprocess: Preprocess
    precision: Precision = field(default_factory=Precision)
    distribution: Distribution = field(default_factory=Distribution)
    on_incidents: Callable[[list[DecodeFailure]], None] | None = None
    max_batches: int | None = None
    show_progress: bool = False

    def run(
        self, model: VideoModel, metric: VideoMetric, check_stop: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """Evaluates a model.

        A sample that does not decode is left out of the means and counted: never replaced, never silent.
        Where ranks share the data, the result equals that of one process to the last bit.

        Args:
            model: its train or eval mode is the same afterwards.
            metric: is reset first.
            check_stop: called before each batch; what it raises ends the evaluation.

        Returns:
            The metric's values and, the same on all ranks:
            "loss": the mean over clips;
            "num_samples", "num_failed": samples that were evaluated or did not decode, each counted once,
            however many views of it there are;
            "num_replaced": frames that did not decode and were replaced by others.
        """
        clips, losses = [np.empty((0, 2), np.int64)], [np.empty(0, np.float32)]
        late = LateReader(lambda values: losses.append(values[0]))
        metric.reset()

        def visit(batch: Batch, logits: paddle.Tensor) -> None:
            labels = upload(batch.labels)
            clips.append(np.stack([batch.ids, batch.views], axis=1))
            each = getattr(model, "loss_of_each", None)
            late.add([loss_of_each(model.loss, each, logits, labels)])
            metric.update(logits, labels, batch.ids, batch.views)

        incidents = self.visit(model, visit, "evaluation", check_stop=check_stop)

        def own_share() -> tuple[np.ndarray, np.ndarray, Any]:
            late.read_all()
            return np.concatenate(clips), np.concatenate(losses), metric.state()

        shares = self.distribution.gather_from(own_share)
        seen, each_loss = (np.concatenate(parts) for parts in list(zip(*shares))[:2])
        counts: dict[str, float] = {
            "num_samples": len(np.unique(seen[:, 0])),
            "num_failed": len({incident.path for incident in incidents if incident.kind == "failed"}),
            "num_replaced": sum(incident.num_frames for incident in incidents),
        }
        if not len(seen):
            return counts
        _, first = np.unique(seen, axis=0, return_index=True)  # a clip that comes again counts once
        loss = math.fsum(each_loss[first]) / len(first)  # rounded once, so the order makes no difference
        return {**metric.accumulate([state for *_, state in shares]), "loss": loss, **counts}

    def visit(
        self,
        model: VideoModel,
        visit: Callable[[Batch, Any], None],
        title: str,
        epoch: int = 0,
        check_stop: Callable[[], None] | None = None,
    ) -> list[DecodeFailure]:
        """Calls `visit` with each batch that has clips and with what the model gives for it.

        Args:
            model: its train or eval mode is the same afterwards.
            visit: must not wait for other ranks.
            title: of the bar.
            epoch: of the loader.
            check_stop: called before each batch; what it raises ends the pass.

        Returns:
            The incidents of all ranks.
        """

        def own_pass() -> list[DecodeFailure]:
            incidents: list[DecodeFailure] = []
            num_batches = self._num_batches()
            batches = itertools.islice(to_device(self.loader.epoch(epoch)), num_batches)
            for batch in tqdm(batches, title, num_batches, leave=False, disable=not self.show_progress):
                if check_stop is not None:
                    check_stop()
                incidents += batch.incidents
                self._note(batch.incidents)
                if len(batch):
                    visit(batch, self.precision.forward(model, self.preprocess(batch.clips)))
            return incidents

        with evaluating(model), paddle.no_grad():
            by_rank = self.distribution.gather_from(own_pass)
        self.distribution.gather_from(lambda: self._hear_of_others(by_rank))
        return list(itertools.chain(*by_rank))

    def _num_batches(self) -> int:
        """Batches of a pass on this rank."""
        if self.max_batches is None:
            return len(self.loader)
        each, rest = divmod(self.max_batches, self.distribution.world_size)
        return min(len(self.loader), each + int(self.distribution.rank < rest))

    def _hear_of_others(self, by_rank: list[list[DecodeFailure]]) -> None:
        for rank, incidents in enumerate(by_rank):
            if rank != self.distribution.rank:
                self._note(incidents)

    def _note(self, incidents: list[DecodeFailure]) -> None:
        if incidents and self.on_incidents is not None:
            self.on_incidents(incidents)
