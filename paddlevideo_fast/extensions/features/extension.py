"""The keys `features` and `features_memory_gb`: training on stored features, in place of clips."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import paddle

from paddlevideo_fast.assembly.build import TrainingSetup
from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.assembly.plan import RunPlan
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.types import NonNegative
from paddlevideo_fast.device import upload
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.extensions.features.loader import DTYPE, KIND, FeatureLoader, StoredFeatures
from paddlevideo_fast.extensions.features.model import HeadOnly, digest_of
from paddlevideo_fast.extensions.features.recipe import (
    BACKBONE,
    WEIGHTS,
    local_folder,
    recipe_of_features,
    require_same,
)
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import classes_of, load_weights
from paddlevideo_fast.registry import EXTENSIONS, MIXES

logger = get_logger(__name__)

# what needs clips, or the backbone
_NEEDS_VIDEOS = {
    "multigrid": "changes the shape of the clips, and features have one; leave one of the two out",
    "train_dali": "reads videos, and training reads features; leave one of the two out",
    "FINETUNE.unfreeze_at": "the backbone does not run in a training on features; leave one of the two out",
}


@EXTENSIONS.register("features", "features_memory_gb")
@dataclass(frozen=True)
class Features(Extension):
    """Training of the head alone, on features that the frozen backbone has given.

    Args:
        features: folder of features that `paddlevideo-fast features` has computed: training and validation
            read them in place of videos, and train the head alone. Checkpoints hold the whole network; tests,
            export and prediction leave this key aside. null: train on videos.
        features_memory_gb: features in use at the same time, in GiB. A training set that is larger is read
            file by file, in a new random order in each epoch, and mixed in a window of as many clips as take
            so much; see the page on few videos.
    """

    features: str | None = None
    features_memory_gb: NonNegative = 8.0

    replaces = {
        "PRECISEBN": "training on features runs no batch norm",
        "FINETUNE": "training on features trains the head and nothing else",
    }
    brings_weights = True

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> Extension | None:
        return super().of(section, config) if config.get("features") is not None else _MemoryAlone()

    def problems(self, plan: RunPlan) -> Problems:
        """What needs clips, and networks without classes."""
        spec = plan.spec
        yield from (Problem(key, text) for key, text in _NEEDS_VIDEOS.items() if spec.config.at(key))
        if "layout" in getattr(MIXES.get((spec.mix or {"name": "Mixup"})["name"]), "injected", ()):
            yield Problem("MIX", "cuts boxes out of frames, and training reads features; take Mixup")
        if spec.mix:
            yield Problem("MIX", "mixes features, not clips", is_error=False)
        if not classes_of(spec.model):
            text = f"are for training a classifier, and {spec.model['framework']} has none"
            yield Problem("features", text)

    def on_model(self, setup: TrainingSetup) -> None:
        """Leaves the head of the network, beside the backbone that has given the features.

        Raises:
            WeightError: the backbone's weights are not in the folder of the features.
        """
        load_weights(setup.model.backbone, local_folder(self.features or "") / BACKBONE, strict=True)
        setup.model = HeadOnly(setup.model)

    def on_data(self, setup: TrainingSetup, name: SplitName, split: Split) -> Split:
        """The same part of the data, whose loader reads the features.

        Raises:
            FeatureError: they are missing, unfinished or altered, or were computed from something else.
        """
        memory_bytes = round(self.features_memory_gb * 2**30)
        stored = StoredFeatures(local_folder(self.features or "") / name, memory_bytes)
        was = stored.index.recipe
        now = recipe_of_features(setup.spec, split.dataset, name, setup.plan.precision)
        if was.get(KIND) == "logits":
            raise FeatureError(
                f"{stored.folder}: these are logits of a whole network, and a head trains on features: "
                "compute them in another folder without --logits"
            )
        kept = {key: was.get(key) for key in (WEIGHTS, DTYPE)}  # training takes any type of values
        require_same(stored.folder, split.dataset, was, {**now, **kept})
        sampler = split.loader.batch_sampler
        window = stored.window(split.dataset, memory_bytes) if name == "train" else None
        if window is not None:
            sampler = sampler.mixing(window)
            text = "%s: %.1f GB, more than features_memory_gb: an epoch reads file by file and mixes %d clips"
            logger.info(text, stored.folder, stored.num_bytes / 1e9, window.size)
        return replace(split, loader=FeatureLoader(stored, sampler, split.dataset), preprocess=_as_float32)

    def begin(self, setup: TrainingSetup) -> None:
        """Checks that the backbone, with the weights that it has now, has given the features.

        Raises:
            FeatureError: it has other weights.
        """
        assert isinstance(setup.split.loader, FeatureLoader)
        stored = setup.split.loader.stored
        if digest_of(setup.model.backbone) != stored.index.recipe.get(WEIGHTS):
            raise FeatureError(
                f"{stored.folder}: another backbone than the one of the loaded weights gave these features: "
                "leave -w out, or compute the features of these weights"
            )


class _MemoryAlone(Extension):
    """The key `features_memory_gb` without features."""

    def problems(self, plan: RunPlan) -> Problems:
        yield Problem("features_memory_gb", "has no effect without features", is_error=False)


def _as_float32(features: Any) -> paddle.Tensor:
    tensor = upload(features)
    return tensor if tensor.dtype == paddle.float32 else tensor.astype("float32")
