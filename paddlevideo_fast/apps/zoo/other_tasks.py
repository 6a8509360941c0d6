"""Configs of PaddleVideo for tasks other than classification, refused in one sentence each."""

import re

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.registry import DATASETS, RECOGNIZERS

# what PaddleVideo's configs of other tasks name: a pattern of frameworks and data sets, and the task
_OTHER_TASKS = {
    "GCN|Skeleton": "skeleton models",
    "Localizer": "models that localize actions",
    "Segment|MSTCN|ASRF|CFBI|MANet": "segmentation models",
    "RCNN|Detector|Estimator": "models that detect objects or estimate depth",
    "Partitioner": "models of shot boundaries",
    "ActBert|Recognizer1D": "models of text, sound or stored features",
    "MRI": "models of MRI volumes",
}


def refuse(config: Config) -> None:
    """Refuses a config of another task: each of its sections would be a problem.

    Raises:
        ConfigError: names the task.
    """
    keys = dict.fromkeys((f"DATASET.{split}.format" for split in ("train", "valid", "test")), DATASETS)
    for key, registry in {"MODEL.framework": RECOGNIZERS, **keys}.items():
        name = config.at(key)
        for pattern, task in _OTHER_TASKS.items():
            if isinstance(name, str) and name not in registry and re.search(pattern, name):
                text = f"{name}: {task} are out of scope, this toolkit classifies videos by their frames"
                raise config.error(key, text)
