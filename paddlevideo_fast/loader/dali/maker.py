"""Runs drafts through DALI, and finds and replaces those that fail."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader.collate import Batch, batch_of
from paddlevideo_fast.loader.dali.drafts import Draft, Drafter
from paddlevideo_fast.loader.dali.graph import ClipGraph, GraphShape, cause_of
from paddlevideo_fast.loader.dataset import Sample
from paddlevideo_fast.loader.errors import LoaderError


class BatchMaker:
    """Makes one batch at a time.

    One damaged file fails the whole batch in DALI, and the pipeline with it. The samples then run one by one
    in new pipelines; each that fails moves on to its substitute, and the batch runs again.

    Args:
        drafter: moves drafts on.
        shape: of the pipelines.
    """

    def __init__(self, drafter: Drafter, shape: GraphShape) -> None:
        self._drafter = drafter
        self._shape = shape
        self._graph = ClipGraph(shape)
        self._drafts: List[Draft] = []
        self._error: Optional[RuntimeError] = None

    def start(self, drafts: List[Draft]) -> None:
        """Begins with a batch; returns at once.

        Raises:
            LoaderError: its clips have different shapes.
        """
        self._drafts, self._error = drafts, None
        try:
            self._feed(_usable(drafts))
        except RuntimeError as error:
            self._error = error  # told by `finish`, as what fails later is

    def finish(self) -> Optional[Batch]:
        """Waits for the batch; None where none was begun.

        Raises:
            LoaderError: DALI fails although each of the files decodes by itself.
        """
        if not self._drafts:
            return None
        drafts, self._drafts = self._drafts, []
        clips = None
        try:
            if self._error is not None:
                raise self._error
            clips = self._collect(_usable(drafts))
        except RuntimeError as error:
            clips = self._recover(drafts, error)
        return self._batch(drafts, clips)

    def close(self) -> None:
        """Ends DALI's threads."""
        self._graph.close()

    def _renew(self) -> None:
        self._graph.close()
        self._graph = ClipGraph(self._shape)

    def _recover(self, drafts: List[Draft], error: RuntimeError) -> Any:
        self._renew()
        num_failures = sum(len(draft.failures) for draft in drafts)
        for draft in drafts:
            self._settle(draft)
        if num_failures == sum(len(draft.failures) for draft in drafts):
            raise LoaderError(f"DALI fails on a batch whose files decode one by one: {cause_of(error)}")
        try:
            return self._run(_usable(drafts))
        except RuntimeError as again:
            raise LoaderError(
                f"DALI fails on a batch whose files decode one by one: {cause_of(again)}"
            ) from again

    def _settle(self, draft: Draft) -> None:
        """Moves a draft on until it decodes by itself, or no record is left."""
        while draft.attempt is not None:
            try:
                self._run([draft])
                return
            except RuntimeError as error:
                self._renew()
                draft.fail(VideoDecodeError(draft.attempt.record.path, f"DALI: {cause_of(error)}"))
                self._drafter.go_on(draft)

    def _run(self, drafts: Sequence[Draft]) -> Any:
        self._feed(drafts)
        return self._collect(drafts)

    def _feed(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        shapes = sorted({draft.clip_size for draft in drafts})
        if len(shapes) > 1:
            raise LoaderError(
                f"clips of different shapes {shapes} in one batch: end the transforms with a crop to one size"
            )
        self._graph.start({name: [draft.inputs[name] for draft in drafts] for name in drafts[0].inputs})

    def _collect(self, drafts: Sequence[Draft]) -> Any:
        if not drafts:
            return None
        clips, shapes = self._graph.finish()
        for draft, (_, height, width, _) in zip(drafts, shapes):
            if (height, width) != draft.frame_size:
                raise RuntimeError(
                    f"its frames decode to {width}×{height}, not to the {draft.frame_size[1]}×"
                    f"{draft.frame_size[0]} that its crop was chosen for"
                )
        return clips

    def _batch(self, drafts: Sequence[Draft], clips: Any) -> Batch:
        num_crops = self._drafter.dataset.num_crops
        samples = [
            Sample(None, draft.label, attempt.request.index, attempt.request.view, num_crops=num_crops)
            for draft, attempt in ((draft, draft.attempt) for draft in drafts)
            if attempt is not None
        ]
        if clips is not None:  # views lie one after the other
            clips = clips.reshape((len(samples), -1, *clips.shape[3:]))
        return batch_of(samples, clips, [failure for draft in drafts for failure in draft.failures])


def _usable(drafts: Sequence[Draft]) -> List[Draft]:
    return [draft for draft in drafts if draft.attempt is not None]
