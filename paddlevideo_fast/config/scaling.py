"""Another number of epochs or another batch size, and what follows from it in a config."""

import json
from typing import Any

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.sections import arguments_in


def scaled(
    config: Config, epochs: int | None, batch_size: int | None, num_processes: int = 1
) -> tuple[list[str], str]:
    """Overrides that set the epochs and the batch size of a config, and a text that says what follows.

    The curve of the learning rate is stretched with the epochs; `OPTIMIZER.base_batch_size` lets the rate
    follow the batch size. Keys that an override sets stay as they are.

    Args:
        config: an unchecked config.
        epochs: of the training; None: as the config says.
        batch_size: clips a step and process; None: as the config says.
        num_processes: of the run.
    """
    put: dict[str, Any] = {}
    notes: list[str] = []
    if epochs is not None:
        before = config.get("epochs")
        put["epochs"] = epochs
        changed: dict[str, Any] = {}
        is_known = isinstance(before, int) and before > 0
        for schedule in arguments_in(config, "OPTIMIZER", "learning_rate") if is_known else ():
            cls: Any = schedule.cls
            for key, value in cls.stretched(schedule.given, before, epochs).items():
                if not config.where(("OPTIMIZER", "learning_rate", key)).startswith("-o "):
                    changed[key] = put[f"OPTIMIZER.learning_rate.{key}"] = value
        follows = ", ".join(f"{key} {value}" for key, value in changed.items()) or "as it is"
        notes.append(f"--epochs {epochs}, and {before} in the config; learning rate: {follows}")
    if batch_size is not None:
        before = (config.get("DATASET") or {}).get("batch_size", 8)
        put["DATASET.batch_size"] = batch_size
        notes.append(f"--batch_size {batch_size}, and {before} in the config")
        if config.get("GRADIENT_ACCUMULATION") is None and isinstance(before, int):
            base = config.at("OPTIMIZER.base_batch_size")
            if base is None:
                base = before * num_processes * config.get("accumulate_steps", 1)
                put["OPTIMIZER.base_batch_size"] = base
            notes[-1] += f"; the learning rate is for updates of {base} clips and follows their number"
    return [f"{key}={json.dumps(value)}" for key, value in put.items()], "; ".join(notes)
