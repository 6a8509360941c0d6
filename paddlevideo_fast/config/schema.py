"""Which section of a config holds what: the tree that the check and the config reference go through."""

from paddlevideo_fast import registry
from paddlevideo_fast.config import settings
from paddlevideo_fast.config.sections import Component, ComponentList, Group, Section, Unsupported

_DATASET = Component(
    registry.DATASETS,
    injected=("pipeline", "seed", "training"),
    purpose="An annotation list and where its files lie.",
)
PIPELINE = Group(
    {
        "decode": Component(registry.DECODERS, purpose="How a file is opened."),
        "sample": Component(registry.SAMPLERS, purpose="Which frames of it are read."),
        "decode_sampler": Component(
            registry.SAMPLERS, purpose="Stands for `sample`, and for `decode` with a VideoDecoder."
        ),
        "transform": ComponentList(registry.TRANSFORMS, purpose="What happens to the frames, in this order."),
    },
    settings.PipelineSettings,
    required=("decode", "sample", "transform"),
    replaced_by={"decode": "decode_sampler", "sample": "decode_sampler"},
    purpose="From a file to a clip.",
)


def _splits(section: Section) -> dict[str, Section]:
    return dict.fromkeys(("train", "valid", "test"), section)


ROOT = Group(
    {
        "MODEL": Component(registry.RECOGNIZERS, purpose="The network."),
        "DATASET": Group(_splits(_DATASET), settings.DatasetSettings),
        "PIPELINE": Group(_splits(PIPELINE), purpose="What is done to a sample, for each part of the data."),
        "OPTIMIZER": Component(registry.OPTIMIZERS, purpose="How the weights are updated."),
        "METRIC": Component(registry.METRICS, purpose="What an evaluation measures."),
        "MIX": Component(registry.MIXES, purpose="Mixing of the samples of a training batch."),
        "CALLBACKS": ComponentList(
            registry.CALLBACKS,
            purpose="Callbacks of your own, from plug-ins. They come after validation, before the records "
            "and the checkpoint.",
            plain_names=True,
        ),
        "TRACKERS": ComponentList(
            registry.TRACKERS,
            purpose="Where curves, settings and results go besides the output folder. Without this section: "
            "`visualdl`. Where `use_visualdl` is written, it decides on VisualDL.",
            plain_names=True,
        ),
        **{key: Group(settings=kind) for key, (_, kind, _) in settings.SECTIONS.items()},
        "DALI_LOADER": Group(settings=settings.DaliData),
        "INFERENCE": Unsupported("prediction reads videos as PIPELINE.valid says"),
    },
    settings.RunSettings,
    required=("MODEL", "DATASET", "PIPELINE"),
    needs={
        "DATASET.train": ("PIPELINE.train", "OPTIMIZER"),
        "DATASET.valid": ("PIPELINE.valid", "METRIC"),
        "DATASET.test": ("PIPELINE.test", "METRIC"),
    },
    purpose="Settings of the run, at the top level of the file.",
)
