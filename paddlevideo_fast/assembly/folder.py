"""The output folder of a run: which one it is, who may write to it, and what a run writes there first."""

import contextlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from paddlevideo_fast.assembly.build import TrainingSetup
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.types import leaves
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.output import BackgroundStore, CheckpointStore, ReadOnlyStore, folder_of_run
from paddlevideo_fast.errors import shown
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.loader.class_names import write_class_names
from paddlevideo_fast.log import get_logger, log_file

logger = get_logger(__name__)

_NUM_CHANGES = 6  # shown
_CONFIG = "config.yaml"


def take_folder(
    spec: RunSpec, distribution: Distribution, held: contextlib.ExitStack, in_background: bool
) -> tuple[RunSpec, CheckpointStore]:
    """The run in its output folder, and its store, which rank 0 alone may write to as long as `held` is open.

    Args:
        spec: of the run.
        distribution: the ranks.
        held: keeps other runs out, and uploads the folder of a URL when it ends.
        in_background: checkpoints are written in a thread.
    """
    spec = in_own_folder(spec, distribution)
    folder, name = spec.run.output_dir, spec.run.model_name
    writing_store = BackgroundStore if in_background else CheckpointStore
    store = (writing_store if distribution.is_main else ReadOnlyStore)(folder, name)

    def take() -> None:
        store.prepare()
        if distribution.is_main:
            held.enter_context(only_writer(store.folder, given_by="output_dir"))
            held.enter_context(store.uploading())

    distribution.gather_from(take)
    return spec, store


def in_own_folder(spec: RunSpec, distribution: Distribution) -> RunSpec:
    """The run in the folder that its config names, else in the one that rank 0 chooses."""
    base, run = spec.run.output_dir, spec.run
    if spec.config.get("output_dir"):
        return spec
    resume = "auto" if run.resume_epoch else run.resume
    folder = distribution.gather_from(lambda: str(folder_of_run(base, resume)))[0]
    if folder != base:
        verb = "goes on in" if resume else "writes to"
        logger.info("%s holds an earlier run: this one %s %s", base, verb, folder)
    return spec.in_folder(folder)


def begin_output(setup: TrainingSetup, resumes: bool, held: contextlib.ExitStack) -> None:
    """Writes config and class names to the output folder, and opens its log.

    Args:
        setup: of the run.
        resumes: the run goes on from a checkpoint.
        held: keeps the log in the folder open.
    """
    spec, folder = setup.spec, setup.output_folder
    # what belongs to this start alone is left out: loading the file gives the run from its beginning
    options = [extension for extension in spec.extensions if extension.is_of_one_start]
    start = {"resume", "resume_epoch", "weights", *(key.name for each in options for key in fields(each))}
    saved = Config({key: value for key, value in spec.config.items() if key not in start})
    with writing(folder):
        held.enter_context(log_file(folder / "train.log"))
        if resumes and (folder / _CONFIG).is_file():
            _warn_of_changes(load_config(folder / _CONFIG, check=False), saved)
        saved.save(folder / _CONFIG)
        if setup.label_names is not None:
            write_class_names(folder, setup.label_names)


def _warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns about keys that a resumed run had otherwise so far, and names the flags that keep them."""
    old, new = ({dotted(path): value for path, value in leaves(each)} for each in (before, now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    keys = [key for key in keys if key not in ("output_dir", "imports")]
    if keys:
        changes = [f"{key} was {shown(old.get(key))} and is {shown(new.get(key))}" for key in keys]
        flags = [f"-o {shlex.quote(f'{key}={json.dumps(old.get(key))}')}" for key in keys]
        more = f"; to go on as before, stop it and add  {' '.join(flags)}"
        more = f" and {len(keys) - _NUM_CHANGES} more" if len(keys) > _NUM_CHANGES else more
        text = "this start changes keys of the run that it goes on with: %s%s"
        logger.warning(text, ", ".join(changes[:_NUM_CHANGES]), more)
