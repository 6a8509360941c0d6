"""A student and a teacher for tests."""

import copy
from typing import Any


def distillation_of(network: dict[str, Any]) -> dict[str, Any]:
    """MODEL of a student that learns from a frozen teacher, both the same network."""
    parts = {key: network[key] for key in ("backbone", "head")}
    cross_entropy = {"name": "DistillationCELoss", "model_name_pairs": ["Student", "GroundTruth"]}
    mutual = {"name": "DistillationDMLLoss", "model_name_pairs": ["Student", "Teacher"]}
    return {
        "framework": "RecognizerDistillation",
        "models": [{"Teacher": parts}, {"Student": copy.deepcopy(parts)}],
        "loss": {"Train": [cross_entropy, mutual], "Val": [cross_entropy]},
        "freeze_params_list": [True, False],
    }
