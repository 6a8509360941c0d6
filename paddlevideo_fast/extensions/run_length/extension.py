"""The section RLT: what repeats in a clip is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paddlevideo_fast.config.types import Count, NonNegative
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan
    from paddlevideo_fast.config import Config

_FRAMEWORK = "RunLengthRecognizer"
_REPLACED = ("Recognizer3D", "RecognizerTransformer", _FRAMEWORK)


@EXTENSIONS.register("RLT")
@dataclass(frozen=True)
class RunLength(Extension):
    """Run-length tokens: a plain video ViT computes a patch that does not change for a while once.

    A tubelet is a few frames of a square of pixels, and a token of the network. The token of tubelet i + 1
    is left out where the mean over channels and pixels of |last frame of tubelet i + 1 - first frame of
    tubelet i| is at most `threshold`. The first tubelet of a clip always stays. The pixels are normalised, as
    the network takes them.

    Args:
        threshold: the largest difference of pixels that counts as a repetition. The paper has 0.1. null: no
            token is left out, as without the section, also of a network that was trained with it.
        learned_lengths: add to each token what the network learns of how many tubelets it stands for, from 1
            to this number; longer runs count as this many. 0: the network is not told.

    Reference: Choudhury et al., "Don't Look Twice: Faster Video Transformers with Run-Length Tokenization",
    arXiv 2411.05222.
    """

    threshold: NonNegative | None = 0.1
    learned_lengths: Count = 0

    @classmethod
    def expand(cls, config: Config) -> None:
        """Makes the network that MODEL describes one that leaves tokens out."""
        model: Mapping[str, Any] = config["MODEL"]
        name = model["framework"]
        if name not in _REPLACED:
            text = f"{name} is no network that takes clips as tokens and classifies them; leave RLT out"
            raise config.error("MODEL.framework", text)
        section = {
            field: config["RLT"].get(field, getattr(cls, field)) for field in ("threshold", "learned_lengths")
        }
        config["MODEL"] = {**model, "framework": _FRAMEWORK, **section}

    def problems(self, plan: RunPlan) -> Problems:
        """A threshold with which the first tubelets alone would be left."""
        _, deviations = plan.pipelines["train"].normalization
        most = sum(1 / deviation for deviation in deviations) / len(deviations)
        if self.threshold is not None and self.threshold >= most:
            text = f"no pixels differ by more than {most:.3g}, so the first tubelets alone would be left"
            yield Problem(f"RLT.threshold={self.threshold:g}", f"{text}; the paper has 0.1")

    def on_model(self, setup: TrainingSetup) -> None:
        if self.threshold is not None:
            text = "run-length tokens: those that differ by at most %g from the one before are left out"
            setup.notes.append(text % self.threshold)
